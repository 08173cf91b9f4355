package chat

import (
	"cmp"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A value is a Python value. It is one of
//
//	nil                            None
//	bool, int64, float64, string   their Python namesakes; integers outside 64 bits are refused
//	markup                         a string marked by the filters safe and escape
//	*list                          a list or a tuple
//	*dict                          a dict
//	*undefined                     what a missing variable, key or attribute gives
//	*rangeValue                    range(…)
//	*view                          dict.keys(), dict.values(), dict.items()
//	*iterator                      a generator: what map, select and others give
//	*namespace, *loop, *macro      the objects of Jinja2
//	*function, *method             what can be called
type value any

// markup is a string that Jinja2 holds to be escaped. Python joins it with other
// strings by escaping them; here that is refused and it can only be printed,
// compared and tested.
type markup string

type list struct {
	items []value
	tuple bool
}

func (l *list) typeName() string {
	if l.tuple {
		return "tuple"
	}
	return "list"
}

// A dict keeps its entries in the order of insertion, as Python does.
type dict struct {
	keys   []value
	values []value
	index  map[string]int // by hashKey
}

func newDict() *dict { return &dict{index: map[string]int{}} }

// set inserts or replaces; the key of the first insertion stays.
func (d *dict) set(key, v value) error {
	h, err := hashKey(key)
	if err != nil {
		return err
	}
	if i, ok := d.index[h]; ok {
		d.values[i] = v
		return nil
	}
	d.index[h] = len(d.keys)
	d.keys = append(d.keys, key)
	d.values = append(d.values, v)
	return nil
}

// setString is set for a string key, which cannot fail.
func (d *dict) setString(key string, v value) {
	h := "s" + key
	if i, ok := d.index[h]; ok {
		d.values[i] = v
		return
	}
	d.index[h] = len(d.keys)
	d.keys = append(d.keys, key)
	d.values = append(d.values, v)
}

// get looks a key up; an unhashable key is an error.
func (d *dict) get(key value) (value, bool, error) {
	h, err := hashKey(key)
	if err != nil {
		return nil, false, err
	}
	if i, ok := d.index[h]; ok {
		return d.values[i], true, nil
	}
	return nil, false, nil
}

// setKey is set, with the work of hashing the key counted.
func (e *evaluator) setKey(d *dict, key, v value) error {
	if err := e.scanKey(key); err != nil {
		return err
	}
	return d.set(key, v)
}

// scanKey counts the work of hashing a key.
func (e *evaluator) scanKey(key value) error {
	s, _ := text(key)
	return e.scan(len(s))
}

// hashKey is a string that is equal for equal keys and only for them.
func hashKey(v value) (string, error) {
	switch v := v.(type) {
	case nil:
		return "n", nil
	case bool:
		if v {
			return "i1", nil
		}
		return "i0", nil
	case int64:
		return "i" + strconv.FormatInt(v, 10), nil
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<62 {
			return "i" + strconv.FormatInt(int64(v), 10), nil
		}
		return "f" + strconv.FormatFloat(v, 'g', -1, 64), nil
	case string:
		return "s" + v, nil
	case markup:
		return "s" + string(v), nil
	case *undefined:
		return "u", nil
	case *list:
		if !v.tuple {
			return "", failed("unhashable type: 'list'")
		}
		return "", refused("tuple as a key or in a set")
	case *dict:
		return "", failed("unhashable type: 'dict'")
	}
	return "", refused("%s as a key or in a set", typeName(v))
}

// undefined is a missing value: it prints as nothing, is false and empty, and
// fails in almost any other use with the message it carries.
type undefined struct{ msg string }

func (u *undefined) err() error { return failed("%s", u.msg) }

type rangeValue struct{ start, stop, step int64 }

// length is the number of integers in the range.
func (r *rangeValue) length() int64 {
	switch {
	case r.step > 0 && r.start < r.stop:
		return (r.stop-r.start-1)/r.step + 1
	case r.step < 0 && r.start > r.stop:
		return (r.start-r.stop-1)/-r.step + 1
	}
	return 0
}

func (r *rangeValue) at(i int64) value { return r.start + i*r.step }

// view is what dict.keys, dict.values and dict.items return.
type view struct {
	d    *dict
	kind string // "keys", "values" or "items"
}

func (v *view) at(i int) value {
	switch v.kind {
	case "keys":
		return v.d.keys[i]
	case "values":
		return v.d.values[i]
	}
	return &list{items: []value{v.d.keys[i], v.d.values[i]}, tuple: true}
}

// iterator is a Python generator: it can be read once.
type iterator struct {
	next func() (value, bool, error)
}

// namespace is Jinja2's namespace(): the only object whose attributes a
// template can assign.
type namespace struct{ attrs *dict }

// function is a global function.
type function struct {
	call func(e *evaluator, args arguments) (value, error)
}

// method is a method bound to its object.
type method struct {
	self value
	name string
	m    *methodDef
}

// typeName is the name of a value's type as Python gives it.
func typeName(v value) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case markup:
		return "Markup"
	case *list:
		return v.typeName()
	case *dict:
		return "dict"
	case *undefined:
		return "Undefined"
	case *rangeValue:
		return "range"
	case *view:
		return "dict_" + v.kind
	case *iterator:
		return "generator"
	case *namespace:
		return "Namespace"
	case *loop:
		return "LoopContext"
	case *macro:
		return "Macro"
	case *function:
		return "function"
	}
	return "method"
}

// length is len(v); ok is false for values without a length.
func length(v value) (n int64, ok bool) {
	switch v := v.(type) {
	case string:
		return int64(utf8.RuneCountInString(v)), true
	case markup:
		return int64(utf8.RuneCountInString(string(v))), true
	case *list:
		return int64(len(v.items)), true
	case *dict:
		return int64(len(v.keys)), true
	case *undefined:
		return 0, true
	case *rangeValue:
		return v.length(), true
	case *view:
		return int64(len(v.d.keys)), true
	}
	return 0, false
}

// truth is bool(v).
func truth(v value) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case markup:
		return v != ""
	}
	n, ok := length(v)
	return !ok || n > 0 // a loop has a length too, of one item at least
}

// number is the numeric value of an int, a bool or a float.
func number(v value) (i int64, f float64, isFloat, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 0, false, true
		}
		return 0, 0, false, true
	case int64:
		return v, 0, false, true
	case float64:
		return 0, v, true, true
	}
	return 0, 0, false, false
}

// text is the string in a str or Markup.
func text(v value) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case markup:
		return string(v), true
	}
	return "", false
}

// compareIntFloat compares exactly: converting to float64 could round.
func compareIntFloat(i int64, f float64) int {
	switch {
	case f >= 1<<63:
		return -1
	case f < -(1 << 63):
		return 1
	}
	if c := cmp.Compare(i, int64(math.Trunc(f))); c != 0 {
		return c
	}
	return cmp.Compare(0, f-math.Trunc(f))
}

// compareNumbers compares two numbers; nan reports that they have no order.
func compareNumbers(a, b value) (c int, nan, ok bool) {
	ai, af, aFloat, aOK := number(a)
	bi, bf, bFloat, bOK := number(b)
	if !aOK || !bOK {
		return 0, false, false
	}
	if aFloat && math.IsNaN(af) || bFloat && math.IsNaN(bf) {
		return 0, true, true
	}
	switch {
	case aFloat && bFloat:
		return cmp.Compare(af, bf), false, true
	case aFloat:
		return -compareIntFloat(bi, af), false, true
	case bFloat:
		return compareIntFloat(ai, bf), false, true
	}
	return cmp.Compare(ai, bi), false, true
}

// equal is a == b.
func (e *evaluator) equal(a, b value) (bool, error) {
	return e.equalDepth(a, b, 0)
}

func (e *evaluator) equalDepth(a, b value, depth int) (bool, error) {
	if err := e.deep(depth); err != nil {
		return false, err
	}
	if c, nan, ok := compareNumbers(a, b); ok {
		return c == 0 && !nan, nil
	}
	if s, ok := text(a); ok {
		t, ok := text(b)
		return ok && s == t, e.scan(min(len(s), len(t)))
	}
	switch a := a.(type) {
	case nil:
		return b == nil, nil
	case *undefined:
		_, ok := b.(*undefined)
		return ok, nil
	case *list:
		b, ok := b.(*list)
		if !ok || a.tuple != b.tuple || len(a.items) != len(b.items) {
			return false, nil
		}
		for i := range a.items {
			if eq, err := e.equalDepth(a.items[i], b.items[i], depth+1); err != nil || !eq {
				return false, err
			}
		}
		return true, nil
	case *dict:
		b, ok := b.(*dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false, nil
		}
		for i, k := range a.keys {
			if err := e.scanKey(k); err != nil {
				return false, err
			}
			v, ok, err := b.get(k)
			if err != nil || !ok {
				return false, err
			}
			if eq, err := e.equalDepth(a.values[i], v, depth+1); err != nil || !eq {
				return false, err
			}
		}
		return true, nil
	case *rangeValue:
		b, ok := b.(*rangeValue)
		if !ok || a.length() != b.length() {
			return false, nil
		}
		n := a.length()
		return n == 0 || a.start == b.start && (n == 1 || a.step == b.step), nil
	case *view:
		if _, ok := b.(*view); ok {
			return false, refused("comparison of dict views")
		}
		return false, nil
	case *method:
		if _, ok := b.(*method); ok {
			return false, refused("comparison of methods")
		}
		return false, nil
	}
	return a == b, nil // the other objects are equal to themselves alone
}

// less is a < b, or a <= b with orEqual.
func (e *evaluator) less(a, b value, orEqual bool) (bool, error) {
	return e.lessDepth(a, b, orEqual, 0)
}

func (e *evaluator) lessDepth(a, b value, orEqual bool, depth int) (bool, error) {
	if err := e.deep(depth); err != nil {
		return false, err
	}
	for _, v := range []value{a, b} {
		if u, ok := v.(*undefined); ok {
			return false, u.err()
		}
	}
	if c, nan, ok := compareNumbers(a, b); ok {
		return !nan && (c < 0 || c == 0 && orEqual), nil
	}
	if s, ok := text(a); ok {
		if t, ok := text(b); ok {
			c := strings.Compare(s, t) // the order of UTF-8 is that of code points
			return c < 0 || c == 0 && orEqual, e.scan(min(len(s), len(t)))
		}
	}
	if a, ok := a.(*list); ok {
		if b, ok := b.(*list); ok && a.tuple == b.tuple {
			for i := range min(len(a.items), len(b.items)) {
				eq, err := e.equalDepth(a.items[i], b.items[i], depth+1)
				if err != nil {
					return false, err
				}
				if !eq {
					return e.lessDepth(a.items[i], b.items[i], orEqual, depth+1)
				}
			}
			return len(a.items) < len(b.items) || orEqual && len(a.items) == len(b.items), nil
		}
	}
	return false, failed("'<' not supported between instances of '%s' and '%s'", typeName(a), typeName(b))
}

// contains is needle in v.
func (e *evaluator) contains(v, needle value) (bool, error) {
	if s, ok := text(v); ok {
		n, ok := text(needle)
		if !ok {
			return false, failed("'in <string>' requires string as left operand, not %s", typeName(needle))
		}
		return strings.Contains(s, n), e.scan(len(s))
	}
	if err := e.scanKey(needle); err != nil {
		return false, err
	}
	switch v := v.(type) {
	case *dict:
		_, ok, err := v.get(needle)
		return ok, err
	case *rangeValue:
		if _, f, isFloat, ok := number(needle); ok && isFloat && f != math.Trunc(f) {
			return false, nil
		}
	case *view:
		if v.kind == "keys" {
			_, ok, err := v.d.get(needle)
			return ok, err
		}
	}
	next, err := e.iterate(v)
	if err != nil {
		return false, failed("argument of type '%s' is not iterable", typeName(v))
	}
	for {
		item, ok, err := next()
		if err != nil || !ok {
			return false, err
		}
		if eq, err := e.equal(item, needle); err != nil || eq {
			return eq, err
		}
	}
}

// iterate is iter(v): a function that gives one item a call.
func (e *evaluator) iterate(v value) (func() (value, bool, error), error) {
	i := 0
	each := func(n int, at func(int) value) func() (value, bool, error) {
		return func() (value, bool, error) {
			if i >= n {
				return nil, false, nil
			}
			i++
			return at(i - 1), true, e.charge(1)
		}
	}
	if s, ok := text(v); ok {
		return func() (value, bool, error) {
			if i >= len(s) {
				return nil, false, nil
			}
			_, n := utf8.DecodeRuneInString(s[i:])
			i += n
			return s[i-n : i], true, e.charge(1)
		}, nil
	}
	switch v := v.(type) {
	case *list:
		return each(len(v.items), func(i int) value { return v.items[i] }), nil
	case *dict:
		return each(len(v.keys), func(i int) value { return v.keys[i] }), nil
	case *view:
		return each(len(v.d.keys), v.at), nil
	case *rangeValue:
		return each(int(v.length()), func(i int) value { return v.at(int64(i)) }), nil
	case *undefined:
		return each(0, nil), nil
	case *iterator:
		return v.next, nil
	case *loop:
		return nil, refused("iterating over loop")
	}
	return nil, failed("'%s' object is not iterable", typeName(v))
}

// collect is list(v).
func (e *evaluator) collect(v value) ([]value, error) {
	next, err := e.iterate(v)
	if err != nil {
		return nil, err
	}
	var items []value
	for {
		item, ok, err := next()
		if err != nil {
			return nil, err
		}
		if !ok {
			return items, nil
		}
		if err := e.alloc(valueBytes); err != nil {
			return nil, err
		}
		items = append(items, item)
	}
}

// valueBytes is what one item of a list is counted as in Limits.AllocBytes.
const valueBytes = 16

// newList counts and makes a list.
func (e *evaluator) newList(items []value) (value, error) {
	return &list{items: items}, e.alloc(valueBytes * (len(items) + 2))
}

// str is str(v): what printing v gives.
func (e *evaluator) str(v value) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case markup:
		return string(v), nil
	case *undefined:
		return "", nil
	}
	return e.repr(v)
}

// repr is repr(v).
func (e *evaluator) repr(v value) (string, error) {
	var b strings.Builder
	if err := e.writeRepr(&b, v, 0); err != nil {
		return "", err
	}
	return b.String(), nil
}

func (e *evaluator) writeRepr(b *strings.Builder, v value, depth int) error {
	if err := e.deep(depth); err != nil {
		return err
	}
	start := b.Len()
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case bool:
		if v {
			b.WriteString("True")
		} else {
			b.WriteString("False")
		}
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		b.WriteString(floatRepr(v))
	case string:
		writeStringRepr(b, v)
	case markup:
		b.WriteString("Markup(")
		writeStringRepr(b, string(v))
		b.WriteByte(')')
	case *undefined:
		b.WriteString("Undefined")
	case *list:
		open, end := "[", "]"
		if v.tuple {
			open, end = "(", ")"
			if len(v.items) == 1 {
				end = ",)"
			}
		}
		return e.writeItems(b, open, end, len(v.items), func(i int) value { return v.items[i] }, depth)
	case *dict:
		return e.writeDict(b, v, depth)
	case *rangeValue:
		b.WriteString("range(" + strconv.FormatInt(v.start, 10) + ", " + strconv.FormatInt(v.stop, 10))
		if v.step != 1 {
			b.WriteString(", " + strconv.FormatInt(v.step, 10))
		}
		b.WriteByte(')')
	case *view:
		return e.writeItems(b, "dict_"+v.kind+"([", "])", len(v.d.keys), v.at, depth)
	case *namespace:
		b.WriteString("<Namespace ")
		if err := e.writeDict(b, v.attrs, depth); err != nil {
			return err
		}
		b.WriteByte('>')
	case *macro:
		if v.def.name == nil {
			b.WriteString("<Macro anonymous>")
			break
		}
		b.WriteString("<Macro ")
		writeStringRepr(b, v.def.name.name)
		b.WriteByte('>')
	case *loop:
		n, err := v.length(e)
		if err != nil {
			return err
		}
		b.WriteString("<LoopContext " + strconv.FormatInt(v.index0+1, 10) + "/" + strconv.FormatInt(n, 10) + ">")
	default:
		// Python prints an address in memory, which nobody can want.
		return refused("printing a %s", typeName(v))
	}
	return e.alloc(b.Len() - start)
}

func (e *evaluator) writeItems(b *strings.Builder, open, end string, n int, at func(int) value, depth int) error {
	b.WriteString(open)
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		if err := e.writeRepr(b, at(i), depth+1); err != nil {
			return err
		}
	}
	b.WriteString(end)
	return e.alloc(len(open) + len(end) + 2*n)
}

func (e *evaluator) writeDict(b *strings.Builder, d *dict, depth int) error {
	b.WriteByte('{')
	for i, k := range d.keys {
		if i > 0 {
			b.WriteString(", ")
		}
		if err := e.writeRepr(b, k, depth+1); err != nil {
			return err
		}
		b.WriteString(": ")
		if err := e.writeRepr(b, d.values[i], depth+1); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return e.alloc(4 * len(d.keys))
}

// floatRepr is the shortest decimal that reads back as f, as Python writes it:
// with an exponent below 1e-4 and from 1e16.
func floatRepr(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case f != 0 && (math.Abs(f) < 1e-4 || math.Abs(f) >= 1e16):
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// writeStringRepr writes a string literal the way Python's repr does: in single
// quotes unless only double ones need no escape.
func writeStringRepr(b *strings.Builder, s string) {
	quote := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	b.WriteRune(quote)
	for _, r := range s {
		switch {
		case r == quote || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == ' ' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			b.WriteString(`\x` + hex(r, 2))
		case r < 0x10000:
			b.WriteString(`\u` + hex(r, 4))
		default:
			b.WriteString(`\U` + hex(r, 8))
		}
	}
	b.WriteRune(quote)
}

// hex is r in width hexadecimal digits.
func hex(r rune, width int) string {
	s := strconv.FormatInt(int64(r), 16)
	return strings.Repeat("0", width-len(s)) + s
}

// divide is a / b for integers, rounded once as Python does.
func divide(a, b int64) float64 {
	const exact = 1 << 53
	if a <= exact && a >= -exact && b <= exact && b >= -exact {
		return float64(a) / float64(b)
	}
	f, _ := big.NewRat(a, b).Float64()
	return f
}
