package chat

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// A methodDef is a method of a Python type. Exactly one of call and variadic is
// set, unless the method is one that mutates and therefore cannot be called.
type methodDef struct {
	sig      signature
	call     func(e *evaluator, self value, a bound) (value, error)
	variadic func(e *evaluator, self value, a arguments) (value, error)
	named    bool // arguments can be given by name; most of Python's take none
	mutates  bool
}

func (m *methodDef) invoke(e *evaluator, self value, name string, args arguments) (value, error) {
	if m.variadic != nil {
		return m.variadic(e, self, args)
	}
	if len(args.names) > 0 && !m.named {
		return nil, failed("%s takes no keyword arguments", name)
	}
	a, err := m.sig.bind(name, args)
	if err != nil {
		return nil, err
	}
	return m.call(e, self, a)
}

// strMethod defines a method of str.
func strMethod(s string, f func(e *evaluator, s string, a bound) (value, error)) *methodDef {
	return &methodDef{sig: sig(s), call: func(e *evaluator, self value, a bound) (value, error) {
		text := self.(string)
		if err := e.scan(len(text)); err != nil {
			return nil, err
		}
		return f(e, text, a)
	}}
}

// withNames is strMethod for a method whose arguments have names.
func withNames(s string, f func(e *evaluator, s string, a bound) (value, error)) *methodDef {
	m := strMethod(s, f)
	m.named = true
	return m
}

// searchMethod is strMethod for a method that searches; the bounds that Python
// lets it have are refused.
func searchMethod(f func(e *evaluator, s string, a bound) (value, error)) *methodDef {
	return strMethod("sub ? start end", func(e *evaluator, s string, a bound) (value, error) {
		if a.has(1) {
			return nil, refused("bounds of a search in text")
		}
		return f(e, s, a)
	})
}

// stringMethod is a method without arguments that returns a string.
func stringMethod(f func(string) string) *methodDef {
	return strMethod("", func(e *evaluator, s string, _ bound) (value, error) { return e.newString(f(s)) })
}

// boolMethod is a method without arguments that returns a bool.
func boolMethod(f func(string) bool) *methodDef {
	return strMethod("", func(_ *evaluator, s string, _ bound) (value, error) { return f(s), nil })
}

// digitMethod is str.isdigit and its kin, which agree on ASCII and on what is
// no number at all.
func digitMethod(f func(rune) bool) *methodDef {
	return strMethod("", func(_ *evaluator, s string, _ bound) (value, error) {
		if strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf && unicode.IsNumber(r) }) >= 0 {
			return nil, refused("test for digits of text with digits outside ASCII")
		}
		return everyRune(s, f), nil
	})
}

func stripMethod(left, right bool) *methodDef {
	return strMethod("? chars", func(e *evaluator, s string, a bound) (value, error) {
		s, err := stripFunc(s, a.or(0, nil), left, right)
		if err != nil {
			return nil, err
		}
		return e.newString(s)
	})
}

func splitMethod(f func(s string, sep *string, max int64) ([]string, error)) *methodDef {
	return withNames("? sep maxsplit", func(e *evaluator, s string, a bound) (value, error) {
		var sep *string
		if a.or(0, nil) != nil {
			text, err := a.str(0, "")
			if err != nil {
				return nil, err
			}
			sep = &text
		}
		max, err := a.int(1, -1)
		if err != nil {
			return nil, err
		}
		if err := e.alloc(len(s)); err != nil {
			return nil, err
		}
		parts, err := f(s, sep, max)
		if err != nil {
			return nil, err
		}
		return e.newList(stringValues(parts))
	})
}

func stringValues(parts []string) []value {
	items := make([]value, len(parts))
	for i, p := range parts {
		items[i] = p
	}
	return items
}

// affixMethod is str.startswith or str.endswith, of a string or a tuple of them.
func affixMethod(match func(s, affix string) bool) *methodDef {
	return searchMethod(func(_ *evaluator, s string, a bound) (value, error) {
		l, ok := a[0].(*list)
		if !ok || !l.tuple {
			affix, err := a.str(0, "")
			return err == nil && match(s, affix), err
		}
		for _, item := range l.items {
			affix, ok := item.(string)
			if !ok {
				return nil, failed("tuple for startswith or endswith must only contain str, not %s", typeName(item))
			}
			if match(s, affix) {
				return true, nil
			}
		}
		return false, nil
	})
}

// findMethod is str.find and its kin; must makes a miss an error.
func findMethod(index func(s, sub string) int, must bool) *methodDef {
	return searchMethod(func(_ *evaluator, s string, a bound) (value, error) {
		sub, err := a.str(0, "")
		if err != nil {
			return nil, err
		}
		i := index(s, sub)
		if i < 0 {
			if must {
				return nil, failed("substring not found")
			}
			return int64(-1), nil
		}
		return int64(utf8.RuneCountInString(s[:i])), nil
	})
}

// partitionMethod is str.partition, and str.rpartition with last.
func partitionMethod(last bool) *methodDef {
	return strMethod("sep", func(e *evaluator, s string, a bound) (value, error) {
		sep, err := a.str(0, "")
		if err != nil {
			return nil, err
		}
		if sep == "" {
			return nil, failed("empty separator")
		}
		i := strings.Index(s, sep)
		if last {
			i = strings.LastIndex(s, sep)
		}
		parts := []string{s, "", ""}
		switch {
		case i >= 0:
			parts = []string{s[:i], sep, s[i+len(sep):]}
		case last:
			parts = []string{"", "", s}
		}
		return &list{items: stringValues(parts), tuple: true}, e.alloc(5 * valueBytes)
	})
}

// replace is str.replace; a negative count means all.
func (e *evaluator) replace(s, old, new string, count int64) (value, error) {
	n := int64(strings.Count(s, old))
	if count >= 0 {
		n = min(n, count)
	}
	// A count of the result before it is made.
	if grow := int64(len(new) - len(old)); grow > 0 && n > int64(e.lim.AllocBytes)/grow {
		return nil, errorAt(Limit, noPos, "replacing makes more than %d bytes", e.lim.AllocBytes)
	}
	if err := e.alloc(len(s) + int(n)*(len(new)-len(old))); err != nil {
		return nil, err
	}
	return strings.Replace(s, old, new, int(n)), nil
}

// padMethod is str.ljust and its kin: left gives the part of the padding that
// goes before the text.
func padMethod(left func(pad, width int) int) *methodDef {
	return strMethod("width ? fill", func(e *evaluator, s string, a bound) (value, error) {
		width, err := a.int(0, 0)
		if err != nil {
			return nil, err
		}
		fill, err := a.str(1, " ")
		if err != nil {
			return nil, err
		}
		if utf8.RuneCountInString(fill) != 1 {
			return nil, failed("the fill character must be exactly one character long")
		}
		return e.pad(s, width, fill, left)
	})
}

func (e *evaluator) pad(s string, width int64, fill string, left func(pad, width int) int) (value, error) {
	pad := width - int64(utf8.RuneCountInString(s))
	if pad <= 0 {
		return s, nil
	}
	if pad > int64(e.lim.AllocBytes) {
		return nil, errorAt(Limit, noPos, "padding to %d characters", width)
	}
	if err := e.alloc(len(s) + int(pad)*len(fill)); err != nil {
		return nil, err
	}
	before := left(int(pad), int(width))
	return strings.Repeat(fill, before) + s + strings.Repeat(fill, int(pad)-before), nil
}

// centerLeft is how Python shares an odd padding.
func centerLeft(pad, width int) int { return pad/2 + pad&width&1 }

// join is sep.join(items): all of them must be strings.
func (e *evaluator) join(sep string, v value) (value, error) {
	items, err := e.collect(v)
	if err != nil {
		return nil, err
	}
	parts := make([]string, len(items))
	total := 0
	for i, item := range items {
		s, ok := item.(string)
		if !ok {
			if _, ok := item.(markup); ok {
				return nil, refused("joining strings that safe or escape marked")
			}
			return nil, failed("sequence item %d: expected str instance, %s found", i, typeName(item))
		}
		parts[i] = s
		total += len(s) + len(sep)
		if total > e.lim.AllocBytes {
			break // alloc fails
		}
	}
	if err := e.alloc(total); err != nil {
		return nil, err
	}
	return strings.Join(parts, sep), nil
}

// countMethod is list.count or tuple.count.
var countMethod = &methodDef{sig: sig("value"), call: func(e *evaluator, self value, a bound) (value, error) {
	n := int64(0)
	for _, item := range self.(*list).items {
		eq, err := e.equal(item, a[0])
		if err != nil {
			return nil, err
		}
		if eq {
			n++
		}
	}
	return n, nil
}}

// indexMethod is list.index or tuple.index.
var indexMethod = &methodDef{sig: sig("value ? start end"), call: func(e *evaluator, self value, a bound) (value, error) {
	if a.has(1) {
		return nil, refused("bounds of a search in a list")
	}
	for i, item := range self.(*list).items {
		eq, err := e.equal(item, a[0])
		if err != nil {
			return nil, err
		}
		if eq {
			return int64(i), nil
		}
	}
	return nil, failed("value is not in the %s", typeName(self))
}}

// viewMethod is dict.keys, dict.values or dict.items.
func viewMethod(kind string) *methodDef {
	return &methodDef{call: func(_ *evaluator, self value, _ bound) (value, error) {
		return &view{self.(*dict), kind}, nil
	}}
}

// mutator is a method that changes its object, which the sandbox forbids.
var mutator = &methodDef{mutates: true}

// methods are the methods of each type, by the type's name.
var methods = map[string]map[string]*methodDef{
	"str": {
		"strip":      stripMethod(true, true),
		"lstrip":     stripMethod(true, false),
		"rstrip":     stripMethod(false, true),
		"upper":      stringMethod(upper),
		"lower":      stringMethod(lower),
		"capitalize": stringMethod(capitalize),
		"title": strMethod("", func(e *evaluator, s string, _ bound) (value, error) {
			if err := e.charge(len(s)); err != nil { // it looks at every character on its own
				return nil, err
			}
			s, err := title(s)
			if err != nil {
				return nil, err
			}
			return e.newString(s)
		}),
		"split":        splitMethod(split),
		"rsplit":       splitMethod(rsplit),
		"startswith":   affixMethod(strings.HasPrefix),
		"endswith":     affixMethod(strings.HasSuffix),
		"find":         findMethod(strings.Index, false),
		"rfind":        findMethod(strings.LastIndex, false),
		"index":        findMethod(strings.Index, true),
		"rindex":       findMethod(strings.LastIndex, true),
		"partition":    partitionMethod(false),
		"rpartition":   partitionMethod(true),
		"ljust":        padMethod(func(int, int) int { return 0 }),
		"rjust":        padMethod(func(pad, _ int) int { return pad }),
		"center":       padMethod(centerLeft),
		"isalpha":      boolMethod(func(s string) bool { return everyRune(s, unicode.IsLetter) }),
		"isspace":      boolMethod(func(s string) bool { return everyRune(s, isSpace) }),
		"islower":      boolMethod(isLower),
		"isupper":      boolMethod(isUpper),
		"isascii":      boolMethod(isASCII),
		"isdigit":      digitMethod(isDigitRune),
		"isdecimal":    digitMethod(isDigitRune),
		"isnumeric":    digitMethod(isDigitRune),
		"isalnum":      digitMethod(func(r rune) bool { return isDigitRune(r) || unicode.IsLetter(r) }),
		"removeprefix": affixCut(strings.TrimPrefix),
		"removesuffix": affixCut(strings.TrimSuffix),
		"splitlines": withNames("? keepends", func(e *evaluator, s string, a bound) (value, error) {
			if err := e.alloc(len(s)); err != nil {
				return nil, err
			}
			return e.newList(stringValues(splitLines(s, a.truth(0))))
		}),
		"replace": strMethod("old new ? count", func(e *evaluator, s string, a bound) (value, error) {
			old, err := a.str(0, "")
			if err != nil {
				return nil, err
			}
			new, err := a.str(1, "")
			if err != nil {
				return nil, err
			}
			count, err := a.int(2, -1)
			if err != nil {
				return nil, err
			}
			return e.replace(s, old, new, count)
		}),
		"count": searchMethod(func(_ *evaluator, s string, a bound) (value, error) {
			sub, err := a.str(0, "")
			return int64(strings.Count(s, sub)), err
		}),
		"join": strMethod("iterable", func(e *evaluator, s string, a bound) (value, error) {
			return e.join(s, a[0])
		}),
		"zfill": strMethod("width", func(e *evaluator, s string, a bound) (value, error) {
			width, err := a.int(0, 0)
			if err != nil {
				return nil, err
			}
			sign := ""
			if s != "" && (s[0] == '+' || s[0] == '-') {
				sign, s = s[:1], s[1:]
			}
			v, err := e.pad(s, width-int64(len(sign)), "0", func(pad, _ int) int { return pad })
			if err != nil {
				return nil, err
			}
			return sign + v.(string), nil
		}),
	},
	"list": {
		"count": countMethod, "index": indexMethod,
		"append": mutator, "clear": mutator, "extend": mutator, "insert": mutator,
		"pop": mutator, "remove": mutator, "reverse": mutator, "sort": mutator,
		"copy": {call: func(e *evaluator, self value, _ bound) (value, error) {
			return e.newList(self.(*list).items)
		}},
	},
	"tuple": {"count": countMethod, "index": indexMethod},
	"dict": {
		"keys": viewMethod("keys"), "values": viewMethod("values"), "items": viewMethod("items"),
		"get": {sig: sig("key ? default"), call: func(e *evaluator, self value, a bound) (value, error) {
			if err := e.scanKey(a[0]); err != nil {
				return nil, err
			}
			v, ok, err := self.(*dict).get(a[0])
			if err != nil || ok {
				return v, err
			}
			return a.or(1, nil), nil
		}},
		"copy": {call: func(e *evaluator, self value, _ bound) (value, error) {
			return callDict(e, arguments{positional: []value{self}})
		}},
		"clear": mutator, "pop": mutator, "popitem": mutator, "setdefault": mutator, "update": mutator,
	},
}

func isDigitRune(r rune) bool { return r >= '0' && r <= '9' }

// affixCut is str.removeprefix or str.removesuffix.
func affixCut(cut func(s, affix string) string) *methodDef {
	return strMethod("affix", func(_ *evaluator, s string, a bound) (value, error) {
		affix, err := a.str(0, "")
		return cut(s, affix), err
	})
}

// names is a set of the words in s.
func names(s string) map[string]bool {
	set := map[string]bool{}
	for _, n := range strings.Fields(s) {
		set[n] = true
	}
	return set
}

// unsupportedAttrs are further attributes of each Python type. They are known
// here so that they are refused, not taken for missing.
var unsupportedAttrs = map[string]map[string]bool{
	"str": names("casefold encode expandtabs format format_map isidentifier isprintable istitle " +
		"maketrans swapcase translate"),
	"dict":        names("fromkeys"),
	"int":         names("as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag is_integer numerator real to_bytes"),
	"bool":        names("as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag is_integer numerator real to_bytes"),
	"float":       names("as_integer_ratio conjugate from_number fromhex hex imag is_integer real"),
	"range":       names("count index start step stop"),
	"dict_keys":   names("isdisjoint mapping"),
	"dict_values": names("mapping"),
	"dict_items":  names("isdisjoint mapping"),
}

// knownMethods are the names that may be called as methods: those of every
// type above, those that mutate included, since a template may name them in a
// branch that is never taken.
var knownMethods = func() map[string]bool {
	known := names("cycle changed")
	for _, table := range methods {
		for name := range table {
			known[name] = true
		}
	}
	return known
}()
