package chat

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A filter is a filter of Jinja2. One of call and variadic is set.
type filter struct {
	sig      signature
	call     func(e *evaluator, v value, a bound) (value, error)
	variadic func(e *evaluator, v value, a arguments) (value, error)
}

func (e *evaluator) applyFilter(f *filter, name string, v value, args arguments) (value, error) {
	if f.variadic != nil {
		return f.variadic(e, v, args)
	}
	a, err := f.sig.bind("filter "+name, args)
	if err != nil {
		return nil, err
	}
	return f.call(e, v, a)
}

// textFilter is a filter on str(v); a string that safe or escape marked would
// stay marked, so it is refused.
func textFilter(s string, f func(e *evaluator, s string, a bound) (value, error)) *filter {
	return &filter{sig: sig(s), call: func(e *evaluator, v value, a bound) (value, error) {
		if _, ok := v.(markup); ok {
			return nil, refused("this filter on a string that safe or escape marked")
		}
		text, err := e.str(v)
		if err != nil {
			return nil, err
		}
		if err := e.scan(len(text)); err != nil {
			return nil, err
		}
		return f(e, text, a)
	}}
}

// plainText is v as a string, for filters that do not convert their operand.
func plainText(v value) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case markup:
		return "", refused("this filter on a string that safe or escape marked")
	case *undefined:
		return "", v.err()
	}
	return "", failed("expected a string, not %s", typeName(v))
}

// filters are the filters that are supported.
var filters map[string]*filter

func init() { // not a literal: map and its kin look filters up themselves
	lengthFilter := &filter{call: func(e *evaluator, v value, _ bound) (value, error) {
		if l, ok := v.(*loop); ok {
			return l.length(e)
		}
		n, ok := length(v)
		if !ok {
			return nil, failed("object of type '%s' has no len()", typeName(v))
		}
		if s, ok := text(v); ok {
			return n, e.scan(len(s))
		}
		return n, nil
	}}
	defaultFilter := &filter{sig: sig("? default_value boolean"), call: func(_ *evaluator, v value, a bound) (value, error) {
		if _, ok := v.(*undefined); ok || a.truth(1) && !truth(v) {
			return a.or(0, ""), nil
		}
		return v, nil
	}}
	escapeFilter := &filter{call: func(e *evaluator, v value, _ bound) (value, error) {
		if m, ok := v.(markup); ok {
			return m, nil
		}
		s, err := e.str(v)
		if err != nil {
			return nil, err
		}
		s = htmlEscaper.Replace(s)
		return markup(s), e.alloc(len(s))
	}}
	filters = map[string]*filter{
		"length":  lengthFilter,
		"count":   lengthFilter,
		"default": defaultFilter,
		"d":       defaultFilter,
		"escape":  escapeFilter,
		"e":       escapeFilter,
		"safe": {call: func(e *evaluator, v value, _ bound) (value, error) {
			s, err := e.str(v)
			return markup(s), err
		}},
		"string": {call: func(e *evaluator, v value, _ bound) (value, error) {
			if m, ok := v.(markup); ok {
				return m, nil
			}
			s, err := e.str(v)
			return s, err
		}},
		"upper":      textFilter("", func(e *evaluator, s string, _ bound) (value, error) { return e.newString(upper(s)) }),
		"lower":      textFilter("", func(e *evaluator, s string, _ bound) (value, error) { return e.newString(lower(s)) }),
		"capitalize": textFilter("", func(e *evaluator, s string, _ bound) (value, error) { return e.newString(capitalize(s)) }),
		"title":      textFilter("", func(e *evaluator, s string, _ bound) (value, error) { return e.newString(titleFilter(s)) }),
		"trim": textFilter("? chars", func(e *evaluator, s string, a bound) (value, error) {
			s, err := stripFunc(s, a.or(0, nil), true, true)
			if err != nil {
				return nil, err
			}
			return e.newString(s)
		}),
		"center": textFilter("? width", func(e *evaluator, s string, a bound) (value, error) {
			width, err := a.int(0, 80)
			if err != nil {
				return nil, err
			}
			return e.pad(s, width, " ", centerLeft)
		}),
		"replace": textFilter("old new ? count", func(e *evaluator, s string, a bound) (value, error) {
			old, err := e.str(a[0])
			if err != nil {
				return nil, err
			}
			new, err := e.str(a[1])
			if err != nil {
				return nil, err
			}
			count := int64(-1)
			if a.or(2, nil) != nil {
				if count, err = a.int(2, -1); err != nil {
					return nil, err
				}
			}
			return e.replace(s, old, new, count)
		}),
		"format": {variadic: func(e *evaluator, v value, a arguments) (value, error) {
			if len(a.named) > 0 {
				return nil, refused("filter 'format' with named arguments")
			}
			if _, ok := v.(markup); ok {
				return nil, refused("this filter on a string that safe or escape marked")
			}
			s, err := e.str(v)
			if err != nil {
				return nil, err
			}
			return e.percent(s, &list{items: a.positional, tuple: true})
		}},
		"indent":   {sig: sig("? width first blank"), call: filterIndent},
		"truncate": {sig: sig("? length killwords end leeway"), call: filterTruncate},
		"int":      {sig: sig("? default base"), call: filterInt},
		"float": {sig: sig("? default"), call: func(e *evaluator, v value, a bound) (value, error) {
			if s, ok := text(v); ok {
				if err := e.scan(len(s)); err != nil {
					return nil, err
				}
			}
			f, err := toFloat(v)
			if isValueError(err) {
				return a.or(0, 0.0), nil
			}
			return f, err
		}},
		"abs":    {call: filterAbs},
		"round":  {sig: sig("? precision method"), call: filterRound},
		"tojson": {sig: sig("? ensure_ascii indent separators sort_keys"), call: filterToJSON},

		"list": {call: func(e *evaluator, v value, _ bound) (value, error) {
			items, err := e.collect(v)
			return &list{items: items}, err
		}},
		"items": {call: func(e *evaluator, v value, _ bound) (value, error) {
			switch v := v.(type) {
			case *undefined:
				return e.lazy(v)
			case *dict:
				return e.lazy(&view{v, "items"})
			}
			return nil, failed("can only get item pairs from a mapping, not %s", typeName(v))
		}},
		"first": {call: func(e *evaluator, v value, _ bound) (value, error) {
			next, err := e.iterate(v)
			if err != nil {
				return nil, err
			}
			item, ok, err := next()
			if err != nil || ok {
				return item, err
			}
			return &undefined{"No first item, sequence was empty."}, nil
		}},
		"last": {call: func(e *evaluator, v value, _ bound) (value, error) {
			items, err := e.reversed(v)
			if err != nil {
				return nil, err
			}
			if len(items) == 0 {
				return &undefined{"No last item, sequence was empty."}, nil
			}
			return items[0], nil
		}},
		"reverse": {call: func(e *evaluator, v value, _ bound) (value, error) {
			switch v := v.(type) {
			case string:
				runes := []rune(v)
				slices.Reverse(runes)
				return e.newString(string(runes))
			case markup:
				return nil, refused("this filter on a string that safe or escape marked")
			case *iterator: // Python's reversed fails, and Jinja2 makes a list
				items, err := e.collect(v)
				slices.Reverse(items)
				return &list{items: items}, err
			}
			items, err := e.reversed(v)
			if err != nil {
				return nil, err
			}
			return e.lazy(&list{items: items})
		}},
		"join": {sig: sig("? d attribute"), call: filterJoin},
		"map":  {variadic: filterMap},
		"select": {variadic: func(e *evaluator, v value, a arguments) (value, error) {
			return e.selectFilter(v, a, false, true)
		}},
		"reject": {variadic: func(e *evaluator, v value, a arguments) (value, error) {
			return e.selectFilter(v, a, false, false)
		}},
		"selectattr": {variadic: func(e *evaluator, v value, a arguments) (value, error) {
			return e.selectFilter(v, a, true, true)
		}},
		"rejectattr": {variadic: func(e *evaluator, v value, a arguments) (value, error) {
			return e.selectFilter(v, a, true, false)
		}},
		"sort": {sig: sig("? reverse case_sensitive attribute"), call: func(e *evaluator, v value, a bound) (value, error) {
			items, err := e.collect(v)
			if err != nil {
				return nil, err
			}
			keys, err := e.sortKeys(items, a.or(2, nil), a.truth(1))
			if err != nil {
				return nil, err
			}
			return e.sorted(items, keys, a.truth(0))
		}},
		"dictsort": {sig: sig("? case_sensitive by reverse"), call: filterDictSort},
		"unique":   {sig: sig("? case_sensitive attribute"), call: filterUnique},
		"min": {sig: sig("? case_sensitive attribute"), call: func(e *evaluator, v value, a bound) (value, error) {
			return e.extreme(v, a, func(key, best value) (bool, error) { return e.less(key, best, false) })
		}},
		"max": {sig: sig("? case_sensitive attribute"), call: func(e *evaluator, v value, a bound) (value, error) {
			return e.extreme(v, a, func(key, best value) (bool, error) { return e.less(best, key, false) })
		}},
		"sum":   {sig: sig("? attribute start"), call: filterSum},
		"batch": {sig: sig("linecount ? fill_with"), call: filterBatch},
		"slice": {sig: sig("slices ? fill_with"), call: filterSlice},
	}
}

var htmlEscaper = strings.NewReplacer("&", "&amp;", ">", "&gt;", "<", "&lt;", "'", "&#39;", `"`, "&#34;")

// lazy is a generator over v.
func (e *evaluator) lazy(v value) (value, error) {
	next, err := e.iterate(v)
	return &iterator{next}, err
}

// reversed is list(reversed(v)).
func (e *evaluator) reversed(v value) ([]value, error) {
	if _, ok := v.(*iterator); ok {
		return nil, failed("'generator' object is not reversible")
	}
	items, err := e.collect(v)
	slices.Reverse(items)
	return items, err
}

func filterIndent(e *evaluator, v value, a bound) (value, error) {
	s, err := plainText(v)
	if err != nil {
		return nil, err
	}
	var indent string
	if w, ok := a.or(0, int64(4)).(string); ok {
		indent = w
	} else {
		n, err := a.int(0, 4)
		if err != nil {
			return nil, err
		}
		spaces, err := e.repeat(" ", n)
		if err != nil {
			return nil, err
		}
		indent = spaces.(string)
	}
	lines := splitLines(s+"\n", false)
	if err := e.alloc(len(s)); err != nil {
		return nil, err
	}
	if n := e.lim.AllocBytes; len(indent) > 0 && len(lines) > n/len(indent) {
		return nil, errorAt(Limit, noPos, "indenting makes more than %d bytes", n)
	}
	if err := e.alloc(len(lines) * (len(indent) + valueBytes)); err != nil {
		return nil, err
	}
	var b strings.Builder
	for i, line := range lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		if i == 0 && a.truth(1) || i > 0 && (line != "" || a.truth(2)) {
			b.WriteString(indent)
		}
		b.WriteString(line)
	}
	return b.String(), nil
}

func filterTruncate(e *evaluator, v value, a bound) (value, error) {
	most, err := a.int(0, 255)
	if err != nil {
		return nil, err
	}
	end, err := a.str(2, "...")
	if err != nil {
		return nil, err
	}
	leeway := int64(5)
	if a.or(3, nil) != nil {
		if leeway, err = a.int(3, 5); err != nil {
			return nil, err
		}
	}
	endLen, _ := length(end)
	if most < endLen || leeway < 0 {
		return nil, failed("truncate needs a length of at least %d and a leeway of at least 0", endLen)
	}
	n, ok := length(v)
	if !ok {
		return nil, failed("object of type '%s' has no len()", typeName(v))
	}
	if n <= most || n-most <= leeway {
		return v, nil // of whatever type
	}
	s, err := plainText(v)
	if err != nil {
		return nil, err
	}
	if err := e.alloc(len(s)); err != nil {
		return nil, err
	}
	s = string([]rune(s)[:most-endLen])
	if !a.truth(1) {
		if i := strings.LastIndexByte(s, ' '); i >= 0 {
			s = s[:i]
		}
	}
	return s + end, nil
}

// errValue marks the errors that int and float answer with their default.
var errValue = errors.New("value error")

func isValueError(err error) bool { return errors.Is(err, errValue) }

// toFloat is float(v).
func toFloat(v value) (float64, error) {
	if s, ok := text(v); ok {
		return parseFloat(s)
	}
	if u, ok := v.(*undefined); ok {
		return 0, u.err()
	}
	i, f, isFloat, ok := number(v)
	if !ok {
		return 0, errValue
	}
	if !isFloat {
		f = float64(i)
	}
	return f, nil
}

// parseFloat reads a number as float() does: decimal, with single underscores
// between digits, or inf and nan, white space around it.
func parseFloat(s string) (float64, error) {
	s = strings.TrimFunc(s, isSpace)
	if !isASCII(s) {
		return 0, refused("number with characters outside ASCII")
	}
	word := strings.ToLower(strings.TrimLeft(s, "+-"))
	if word != "inf" && word != "infinity" && word != "nan" && strings.Trim(word, "0123456789_.e+-") != "" {
		return 0, errValue
	}
	s, ok := dropUnderscores(s)
	if !ok {
		return 0, errValue
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !isRange(err) {
		return 0, errValue
	}
	return f, nil
}

// dropUnderscores removes underscores, each of which must stand between digits.
func dropUnderscores(s string) (string, bool) {
	for i := range len(s) {
		if s[i] == '_' && (i == 0 || i == len(s)-1 || !isDigit(s[i-1]) || !isDigit(s[i+1])) {
			return "", false
		}
	}
	return strings.ReplaceAll(s, "_", ""), true
}

// parseInt reads a decimal number as int() does.
func parseInt(s string) (int64, error) {
	s = strings.TrimFunc(s, isSpace)
	if !isASCII(s) {
		return 0, refused("number with characters outside ASCII")
	}
	s, ok := dropUnderscores(s)
	if !ok {
		return 0, errValue
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if isRange(err) {
		return 0, refused("%s", errInt)
	}
	if err != nil {
		return 0, errValue
	}
	return n, nil
}

func filterInt(e *evaluator, v value, a bound) (value, error) {
	if base, err := a.int(1, 10); err != nil || base != 10 {
		return nil, refused("filter 'int' with a base other than 10")
	}
	if _, ok := v.(*undefined); ok {
		_, err := toFloat(v)
		return nil, err
	}
	if s, ok := text(v); ok {
		if err := e.scan(len(s)); err != nil {
			return nil, err
		}
		n, err := parseInt(s)
		if !isValueError(err) {
			return n, err
		}
		f, err := parseFloat(s)
		if isValueError(err) || err == nil && (math.IsInf(f, 0) || math.IsNaN(f)) {
			return a.or(0, int64(0)), nil
		}
		if err != nil {
			return nil, err
		}
		n, err = floatToInt(f)
		return n, err
	}
	i, f, isFloat, ok := number(v)
	switch {
	case !ok || math.IsNaN(f):
		return a.or(0, int64(0)), nil
	case !isFloat:
		return i, nil
	}
	n, err := floatToInt(f)
	return n, err
}

func filterAbs(_ *evaluator, v value, _ bound) (value, error) {
	i, f, isFloat, ok := number(v)
	switch u, isUndefined := v.(*undefined); {
	case isUndefined:
		return nil, u.err()
	case !ok:
		return nil, failed("bad operand type for abs(): '%s'", typeName(v))
	case isFloat:
		return math.Abs(f), nil
	case i < 0:
		return negate(i, true)
	}
	return i, nil
}

func filterRound(_ *evaluator, v value, a bound) (value, error) {
	precision, err := a.int(0, 0)
	if err != nil {
		return nil, err
	}
	method, err := a.str(1, "common")
	if err != nil {
		return nil, err
	}
	if u, ok := v.(*undefined); ok {
		return nil, u.err()
	}
	i, f, isFloat, ok := number(v)
	if !ok {
		return nil, failed("type %s cannot be rounded", typeName(v))
	}
	if precision < 0 || precision > 15 {
		return nil, refused("rounding to %d places", precision)
	}
	if isFloat && (math.IsInf(f, 0) || math.IsNaN(f)) {
		return nil, refused("rounding %s", floatRepr(f))
	}
	switch method {
	case "common":
		if !isFloat {
			return i, nil
		}
		f, err = strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(precision), 64), 64)
		return f, err
	case "floor", "ceil":
		scale := math.Pow10(int(precision))
		if !isFloat {
			f = float64(i)
		}
		if f *= scale; math.Abs(f) >= 1<<53 {
			return nil, refused("rounding of a number this large")
		}
		if method == "floor" {
			return math.Floor(f)/scale + 0, nil // + 0: the integer of Python has no -0
		}
		return math.Ceil(f)/scale + 0, nil
	}
	return nil, failed("method must be common, ceil or floor")
}

// filterToJSON is json.dumps with the defaults transformers gives it.
func filterToJSON(e *evaluator, v value, a bound) (value, error) {
	w := &jsonWriter{e: e, ascii: a.truth(0), sortKeys: a.truth(3), item: ", ", key: ": "}
	switch indent := a.or(1, nil).(type) {
	case nil:
	case string:
		w.multiline, w.indent = true, indent
	default:
		n, err := a.int(1, 0)
		if err != nil {
			return nil, err
		}
		spaces, err := e.repeat(" ", n)
		if err != nil {
			return nil, err
		}
		w.multiline, w.indent = true, spaces.(string)
	}
	if w.multiline {
		w.item = ","
	}
	if seps := a.or(2, nil); seps != nil {
		pair, ok := seps.(*list)
		if !ok || len(pair.items) != 2 {
			return nil, failed("separators must be a pair of strings")
		}
		item, ok1 := pair.items[0].(string)
		key, ok2 := pair.items[1].(string)
		if !ok1 || !ok2 {
			return nil, failed("separators must be a pair of strings")
		}
		w.item, w.key = item, key
	}
	if err := w.write(v, 0); err != nil {
		return nil, err
	}
	return w.b.String(), nil
}

// attrGetter looks up a dotted path of attributes, as map(attribute=…) and its
// kin do. Without an attribute it gives the item itself. What is missing on the
// way is replaced by instead, unless that is None.
func (e *evaluator) attrGetter(attribute, instead value) (func(value) (value, error), error) {
	var parts []value
	switch at := attribute.(type) {
	case nil:
	case string:
		for _, p := range strings.Split(at, ".") {
			if everyRune(p, isDigitRune) {
				n, err := parseInt(p)
				if err != nil {
					return nil, err
				}
				parts = append(parts, n)
				continue
			}
			parts = append(parts, p)
		}
	case int64:
		parts = []value{at}
	default:
		return nil, refused("%s as the name of an attribute", typeName(attribute))
	}
	return func(v value) (value, error) {
		for _, p := range parts {
			var err error
			if v, err = e.item(v, p); err != nil {
				return nil, err
			}
			if _, ok := v.(*undefined); ok && instead != nil {
				v = instead
			}
		}
		return v, nil
	}, nil
}

// sortKey is what filters that compare items compare: strings in lower case,
// unless case counts, and the rest as it is.
func (e *evaluator) sortKey(v value, caseSensitive bool) (value, error) {
	if s, ok := text(v); ok && !caseSensitive {
		return e.newString(lower(s))
	}
	return v, nil
}

func filterJoin(e *evaluator, v value, a bound) (value, error) {
	sep, err := e.str(a.or(0, ""))
	if err != nil {
		return nil, err
	}
	get, err := e.attrGetter(a.or(1, nil), nil)
	if err != nil {
		return nil, err
	}
	items, err := e.collect(v)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for i, item := range items {
		if item, err = get(item); err != nil {
			return nil, err
		}
		s, err := e.str(item)
		if err != nil {
			return nil, err
		}
		if err := e.alloc(len(s) + len(sep)); err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteString(sep)
		}
		b.WriteString(s)
	}
	return b.String(), nil
}

// mapped is a generator of what f makes of the items of v. Undefined and other
// false values give none.
func (e *evaluator) mapped(v value, f func(value) (value, bool, error)) (value, error) {
	if !truth(v) {
		return &iterator{func() (value, bool, error) { return nil, false, nil }}, nil
	}
	next, err := e.iterate(v)
	if err != nil {
		return nil, err
	}
	return &iterator{func() (value, bool, error) {
		for {
			item, ok, err := next()
			if err != nil || !ok {
				return nil, false, err
			}
			if item, ok, err = f(item); err != nil || ok {
				return item, err == nil, err
			}
		}
	}}, nil
}

func filterMap(e *evaluator, v value, a arguments) (value, error) {
	if len(a.positional) == 0 && slices.Contains(a.names, "attribute") {
		b, err := sig("attribute ? default").bind("filter map", a)
		if err != nil {
			return nil, err
		}
		get, err := e.attrGetter(b[0], b.or(1, nil))
		if err != nil {
			return nil, err
		}
		return e.mapped(v, func(item value) (value, bool, error) {
			item, err := get(item)
			return item, true, err
		})
	}
	if len(a.positional) == 0 {
		return nil, failed("map requires a filter argument")
	}
	name, ok := a.positional[0].(string)
	f := filters[name]
	if !ok || f == nil {
		return nil, refused("filter '%v' in map", a.positional[0])
	}
	a.positional = a.positional[1:]
	return e.mapped(v, func(item value) (value, bool, error) {
		item, err := e.applyFilter(f, name, item, a)
		return item, true, err
	})
}

// selectFilter is select, reject, selectattr and rejectattr: the items of v, or
// those of which the attribute, that pass a test, or fail it if !want.
func (e *evaluator) selectFilter(v value, a arguments, byAttr, want bool) (value, error) {
	get := func(v value) (value, error) { return v, nil }
	args := a.positional
	if byAttr {
		if len(args) == 0 {
			return nil, failed("missing parameter for attribute name")
		}
		var err error
		if get, err = e.attrGetter(args[0], nil); err != nil {
			return nil, err
		}
		args = args[1:]
	}
	check := func(v value) (bool, error) { return truth(v), nil }
	if len(args) > 0 {
		name, ok := args[0].(string)
		t := tests[name]
		if !ok || t == nil {
			return nil, refused("test '%v' in select or reject", args[0])
		}
		a.positional = args[1:]
		check = func(v value) (bool, error) {
			r, err := e.test(t, name, v, a)
			return err == nil && truth(r), err
		}
	}
	return e.mapped(v, func(item value) (value, bool, error) {
		key, err := get(item)
		if err != nil {
			return nil, false, err
		}
		ok, err := check(key)
		return item, ok == want, err
	})
}

// sortKeys are the keys that sort compares: one attribute or several, in lower
// case where they are strings, unless case counts.
func (e *evaluator) sortKeys(items []value, attribute value, caseSensitive bool) ([]value, error) {
	paths := []value{attribute}
	if s, ok := attribute.(string); ok {
		paths = stringValues(strings.Split(s, ","))
	}
	keys := make([]value, len(items))
	for i := range keys {
		keys[i] = &list{items: make([]value, len(paths))}
	}
	for p, path := range paths {
		get, err := e.attrGetter(path, nil)
		if err != nil {
			return nil, err
		}
		for i, item := range items {
			v, err := get(item)
			if err != nil {
				return nil, err
			}
			if v, err = e.sortKey(v, caseSensitive); err != nil {
				return nil, err
			}
			keys[i].(*list).items[p] = v
			if err := e.alloc(2 * valueBytes); err != nil {
				return nil, err
			}
		}
	}
	return keys, nil
}

// sortStable sorts indexes by their keys, equal ones in their order.
func (e *evaluator) sortStable(order []int, key func(int) value, reverse bool) error {
	var failure error
	slices.SortStableFunc(order, func(a, b int) int {
		if failure != nil {
			return 0
		}
		x, y := key(a), key(b)
		if reverse {
			x, y = y, x
		}
		less, err := e.less(x, y, false)
		if err != nil {
			failure = err
			return 0
		}
		if less {
			return -1
		}
		more, err := e.less(y, x, false)
		if err != nil {
			failure = err
		}
		if more {
			return 1
		}
		return 0
	})
	return failure
}

// sorted is the items in the order of their keys.
func (e *evaluator) sorted(items, keys []value, reverse bool) (value, error) {
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	if err := e.sortStable(order, func(i int) value { return keys[i] }, reverse); err != nil {
		return nil, err
	}
	out := make([]value, len(items))
	for i, n := range order {
		out[i] = items[n]
	}
	return e.newList(out)
}

func filterDictSort(e *evaluator, v value, a bound) (value, error) {
	d, ok := v.(*dict)
	if !ok {
		return nil, failed("'%s' object has no attribute 'items'", typeName(v))
	}
	by, err := a.str(1, "key")
	if err != nil {
		return nil, err
	}
	if by != "key" && by != "value" {
		return nil, failed("dictsort sorts by 'key' or 'value' only")
	}
	pairs := &view{d, "items"}
	items, err := e.collect(pairs)
	if err != nil {
		return nil, err
	}
	keys := make([]value, len(items))
	for i := range items {
		keys[i] = d.keys[i]
		if by == "value" {
			keys[i] = d.values[i]
		}
		if keys[i], err = e.sortKey(keys[i], a.truth(0)); err != nil {
			return nil, err
		}
	}
	return e.sorted(items, keys, a.truth(2))
}

func filterUnique(e *evaluator, v value, a bound) (value, error) {
	get, err := e.attrGetter(a.or(1, nil), nil)
	if err != nil {
		return nil, err
	}
	next, err := e.iterate(v)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	return &iterator{func() (value, bool, error) {
		for {
			item, ok, err := next()
			if err != nil || !ok {
				return nil, false, err
			}
			key, err := get(item)
			if err != nil {
				return nil, false, err
			}
			if key, err = e.sortKey(key, a.truth(0)); err != nil {
				return nil, false, err
			}
			if err := e.scanKey(key); err != nil {
				return nil, false, err
			}
			h, err := hashKey(key)
			if err != nil {
				return nil, false, err
			}
			if !seen[h] {
				seen[h] = true
				return item, true, e.alloc(len(h) + 2*valueBytes)
			}
		}
	}}, nil
}

// extreme is the first item of which no other is better.
func (e *evaluator) extreme(v value, a bound, better func(key, best value) (bool, error)) (value, error) {
	items, err := e.collect(v)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return &undefined{"No aggregated item, sequence was empty."}, nil
	}
	get, err := e.attrGetter(a.or(1, nil), nil)
	if err != nil {
		return nil, err
	}
	best, bestKey := 0, value(nil)
	for i, item := range items {
		key, err := get(item)
		if err != nil {
			return nil, err
		}
		if key, err = e.sortKey(key, a.truth(0)); err != nil {
			return nil, err
		}
		ok := i == 0
		if !ok {
			if ok, err = better(key, bestKey); err != nil {
				return nil, err
			}
		}
		if ok {
			best, bestKey = i, key
		}
	}
	return items[best], nil
}

func filterSum(e *evaluator, v value, a bound) (value, error) {
	get, err := e.attrGetter(a.or(0, nil), nil)
	if err != nil {
		return nil, err
	}
	items, err := e.collect(v)
	if err != nil {
		return nil, err
	}
	total := a.or(1, int64(0))
	if _, ok := text(total); ok {
		return nil, failed("sum() can't sum strings")
	}
	for _, item := range items {
		if item, err = get(item); err != nil {
			return nil, err
		}
		if total, err = e.arith("+", total, item); err != nil {
			return nil, err
		}
		if _, ok := total.(float64); ok {
			// Python 3.12 sums floats more exactly than those before it.
			return nil, refused("sum of floats")
		}
	}
	return total, nil
}

func filterBatch(e *evaluator, v value, a bound) (value, error) {
	n, err := a.int(0, 0)
	if err != nil {
		return nil, err
	}
	if n <= 0 {
		return nil, refused("batches of %d", n)
	}
	items, err := e.collect(v)
	if err != nil {
		return nil, err
	}
	var rows []value
	for len(items) > 0 {
		k := min(n, int64(len(items)))
		row := slices.Clone(items[:k])
		items = items[k:]
		if a.or(1, nil) != nil {
			fill := n - k
			if fill > int64(e.lim.AllocBytes/valueBytes) {
				return nil, errorAt(Limit, noPos, "batches of %d", n)
			}
			if err := e.alloc(valueBytes * int(fill)); err != nil {
				return nil, err
			}
			for range fill {
				row = append(row, a[1])
			}
		}
		r, err := e.newList(row)
		if err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return e.lazy(&list{items: rows})
}

func filterSlice(e *evaluator, v value, a bound) (value, error) {
	n, err := a.int(0, 0)
	if err != nil {
		return nil, err
	}
	items, err := e.collect(v)
	if err != nil {
		return nil, err
	}
	if n <= 0 || n > maxRange {
		return nil, refused("%d slices", n)
	}
	size, extra := int64(len(items))/n, int64(len(items))%n
	rows := make([]value, n)
	for i := range rows {
		k := size
		if int64(i) < extra {
			k++
		}
		row := slices.Clone(items[:k])
		items = items[k:]
		if a.or(1, nil) != nil && int64(i) >= extra {
			row = append(row, a[1])
		}
		if rows[i], err = e.newList(row); err != nil {
			return nil, err
		}
	}
	return e.lazy(&list{items: rows})
}
