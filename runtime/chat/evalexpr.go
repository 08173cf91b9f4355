package chat

import (
	"errors"
	"strings"
)

// eval evaluates an expression. An error gets the place of the innermost
// expression that caused it.
func (e *evaluator) eval(x expr) (value, error) {
	if err := e.charge(1); err != nil {
		return nil, at(err, x.node().pos)
	}
	v, err := e.evalNode(x)
	if err != nil {
		return nil, at(err, x.node().pos)
	}
	return v, nil
}

func (e *evaluator) evalNode(x expr) (value, error) {
	switch x := x.(type) {
	case *constExpr:
		return x.v, nil
	case *nameExpr:
		if v, ok := e.lookup(x.level, x.name); ok {
			return v, nil
		}
		return &undefined{"'" + clip(x.name) + "' is undefined"}, nil
	case *seqExpr:
		items, err := e.evalAll(x.items)
		if err != nil {
			return nil, err
		}
		return &list{items: items, tuple: x.tuple}, e.alloc(valueBytes * (len(items) + 2))
	case *dictExpr:
		return e.evalDict(x)
	case *unaryExpr:
		v, err := e.eval(x.x)
		if err != nil {
			return nil, err
		}
		if x.op == "not" {
			return !truth(v), nil
		}
		return negate(v, x.op == "-")
	case *binaryExpr:
		a, err := e.eval(x.x)
		if err != nil {
			return nil, err
		}
		b, err := e.eval(x.y)
		if err != nil {
			return nil, err
		}
		return e.arith(x.op, a, b)
	case *logicExpr:
		v, err := e.eval(x.x)
		if err != nil || truth(v) != x.and {
			return v, err
		}
		return e.eval(x.y)
	case *compareExpr:
		return e.evalCompare(x)
	case *concatExpr:
		var b strings.Builder
		for _, item := range x.items {
			v, err := e.eval(item)
			if err != nil {
				return nil, err
			}
			s, err := e.str(v)
			if err != nil {
				return nil, err
			}
			if err := e.alloc(len(s)); err != nil {
				return nil, err
			}
			b.WriteString(s)
		}
		return b.String(), nil
	case *condExpr:
		v, err := e.eval(x.test)
		if err != nil {
			return nil, err
		}
		if truth(v) {
			return e.eval(x.then)
		}
		if x.otherwise == nil {
			return &undefined{"the inline if-expression evaluated to false and has no else"}, nil
		}
		return e.eval(x.otherwise)
	case *attrExpr:
		v, err := e.eval(x.x)
		if err != nil {
			return nil, err
		}
		return e.attr(v, x.name)
	case *itemExpr:
		v, err := e.eval(x.x)
		if err != nil {
			return nil, err
		}
		i, err := e.eval(x.index)
		if err != nil {
			return nil, err
		}
		return e.item(v, i)
	case *sliceExpr:
		return e.evalSlice(x)
	case *callExpr:
		f, err := e.eval(x.x)
		if err != nil {
			return nil, err
		}
		args, err := e.evalArgs(x.args)
		if err != nil {
			return nil, err
		}
		return e.callValue(f, args)
	case *filterExpr:
		v, err := e.eval(x.x)
		if err != nil {
			return nil, err
		}
		return e.filter(x, v)
	case *testExpr:
		v, err := e.eval(x.x)
		if err != nil {
			return nil, err
		}
		args, err := e.evalArgs(x.args)
		if err != nil {
			return nil, err
		}
		return e.test(x.f, x.name, v, args)
	}
	return nil, refused("expression")
}

// filter applies one filter to v.
func (e *evaluator) filter(x *filterExpr, v value) (value, error) {
	args, err := e.evalArgs(x.args)
	if err != nil {
		return nil, err
	}
	v, err = e.applyFilter(x.f, x.name, v, args)
	return v, at(err, x.pos)
}

func (e *evaluator) evalAll(xs []expr) ([]value, error) {
	values := make([]value, len(xs))
	for i, x := range xs {
		v, err := e.eval(x)
		if err != nil {
			return nil, err
		}
		values[i] = v
	}
	return values, nil
}

func (e *evaluator) evalDict(x *dictExpr) (value, error) {
	d := newDict()
	for i := range x.keys {
		k, err := e.eval(x.keys[i])
		if err != nil {
			return nil, err
		}
		v, err := e.eval(x.values[i])
		if err != nil {
			return nil, err
		}
		if err := e.setKey(d, k, v); err != nil {
			return nil, err
		}
	}
	return d, e.alloc(4 * valueBytes * (len(x.keys) + 2))
}

// arguments are the evaluated arguments of a call.
type arguments struct {
	positional []value
	names      []string
	named      []value
}

func (e *evaluator) evalArgs(a callArgs) (arguments, error) {
	positional, err := e.evalAll(a.positional)
	if err != nil {
		return arguments{}, err
	}
	named, err := e.evalAll(a.named)
	return arguments{positional, a.names, named}, err
}

func (e *evaluator) evalCompare(x *compareExpr) (value, error) {
	left, err := e.eval(x.first)
	if err != nil {
		return nil, err
	}
	for i, op := range x.ops {
		right, err := e.eval(x.rest[i])
		if err != nil {
			return nil, err
		}
		ok, err := e.compare(op, left, right)
		if err != nil || !ok {
			return false, err
		}
		left = right
	}
	return true, nil
}

func (e *evaluator) compare(op string, a, b value) (bool, error) {
	switch op {
	case "==":
		return e.equal(a, b)
	case "!=":
		eq, err := e.equal(a, b)
		return !eq, err
	case "<":
		return e.less(a, b, false)
	case "<=":
		return e.less(a, b, true)
	case ">":
		return e.less(b, a, false)
	case ">=":
		return e.less(b, a, true)
	case "in":
		return e.contains(b, a)
	}
	in, err := e.contains(b, a) // not in
	return !in, err
}

// callValue calls f, which must be callable.
func (e *evaluator) callValue(f value, args arguments) (value, error) {
	switch f := f.(type) {
	case *macro:
		return f.call(e, args)
	case *function:
		return f.call(e, args)
	case *method:
		return f.m.invoke(e, f.self, f.name, args)
	case *undefined:
		return nil, f.err()
	case *loop:
		return nil, refused("recursive loop")
	}
	return nil, failed("'%s' object is not callable", typeName(f))
}

// attr is v.name: an attribute of the Python object, or else the item.
func (e *evaluator) attr(v value, name string) (value, error) {
	if u, ok := v.(*undefined); ok {
		return nil, u.err()
	}
	found, ok, err := e.attribute(v, name)
	if ok || err != nil {
		return found, err
	}
	if d, ok := v.(*dict); ok {
		found, ok, err := d.get(name)
		if ok || err != nil {
			return found, err
		}
	}
	return missing(v, name), nil
}

// missing is what an attribute or item that is not there gives.
func missing(v value, name string) value {
	return &undefined{"'" + typeName(v) + "' has no attribute or item '" + clip(name) + "'"}
}

// attribute is getattr(v, name), without the items.
func (e *evaluator) attribute(v value, name string) (value, bool, error) {
	switch v := v.(type) {
	case *loop:
		return v.attr(e, name)
	case *namespace:
		return v.attrs.get(name)
	}
	typ := typeName(v)
	m, ok := methods[typ][name]
	if ok {
		if m.mutates {
			return &undefined{typ + "." + name + " changes the " + typ + ", which templates may not"}, true, nil
		}
		return &method{self: v, name: name, m: m}, true, nil
	}
	if unsupportedAttrs[typ][name] {
		return nil, false, refused("attribute '%s' of %s", name, typ)
	}
	switch v.(type) {
	case *iterator, *macro, *function, *method, markup:
		return nil, false, refused("attribute '%s' of %s", clip(name), typ)
	}
	return nil, false, nil
}

// item is v[i]: the item, or else an attribute of the Python object.
func (e *evaluator) item(v, i value) (value, error) {
	index, isInt := i.(int64)
	if b, ok := i.(bool); ok {
		isInt = true
		if b {
			index = 1
		}
	}
	if s, ok := text(i); ok {
		if err := e.scan(len(s)); err != nil {
			return nil, err
		}
		i = s
	}
	switch v := v.(type) {
	case *undefined:
		return nil, v.err()
	case *dict:
		found, ok, err := v.get(i)
		if ok {
			return found, nil
		}
		var e *Error
		if err != nil && !(errors.As(err, &e) && e.Kind == Failed) {
			return nil, err
		}
	case *list:
		if n := int64(len(v.items)); isInt && index < n && index >= -n {
			return v.items[(index+n)%n], nil
		}
	case string:
		if isInt {
			if r, ok := runeAt(v, index); ok {
				return r, e.scan(len(v))
			}
		}
	case markup:
		return nil, refused("index of a Markup string")
	case *rangeValue:
		if n := v.length(); isInt && index < n && index >= -n {
			return v.at((index + n) % n), nil
		}
	}
	if name, ok := i.(string); ok {
		found, ok, err := e.attribute(v, name)
		if ok || err != nil {
			return found, err
		}
		return missing(v, name), nil
	}
	return &undefined{"'" + typeName(v) + "' has no such item"}, nil
}

// runeAt is s[i] for the i-th character, negative from the end.
func runeAt(s string, i int64) (string, bool) {
	if i >= int64(len(s)) || i < -int64(len(s)) {
		return "", false
	}
	if isASCII(s) {
		if i < 0 {
			i += int64(len(s))
		}
		return s[i : i+1], true
	}
	runes := []rune(s)
	if i < 0 {
		i += int64(len(runes))
	}
	if i < 0 || i >= int64(len(runes)) {
		return "", false
	}
	return string(runes[i]), true
}

// bound evaluates one bound of a slice; ok is false where it is absent or None.
func (e *evaluator) bound(x expr) (i int64, ok bool, err error) {
	if x == nil {
		return 0, false, nil
	}
	v, err := e.eval(x)
	if err != nil || v == nil {
		return 0, false, err
	}
	n, _, isFloat, isNumber := number(v)
	if !isNumber || isFloat {
		return 0, false, failed("slice indices must be integers or None, not %s", typeName(v))
	}
	return n, true, nil
}

func (e *evaluator) evalSlice(x *sliceExpr) (value, error) {
	v, err := e.eval(x.x)
	if err != nil {
		return nil, err
	}
	start, hasStart, err := e.bound(x.start)
	if err != nil {
		return nil, err
	}
	stop, hasStop, err := e.bound(x.stop)
	if err != nil {
		return nil, err
	}
	step, hasStep, err := e.bound(x.step)
	if err != nil {
		return nil, err
	}
	if !hasStep {
		step = 1
	}
	if step == 0 {
		return nil, failed("slice step cannot be zero")
	}
	if u, ok := v.(*undefined); ok {
		return nil, u.err()
	}
	n, ok := length(v)
	if !ok {
		// Python fails, unless Jinja2 saw a constant and made it undefined.
		return nil, refused("slice of a %s", typeName(v))
	}
	// The rules of Python's slice.indices.
	low, high := int64(0), n
	if step < 0 {
		low, high = -1, n-1
	}
	clamp := func(i int64) int64 {
		if i < 0 {
			return max(i+n, low)
		}
		return min(i, high)
	}
	switch {
	case hasStart:
		start = clamp(start)
	case step < 0:
		start = high
	default:
		start = low
	}
	switch {
	case hasStop:
		stop = clamp(stop)
	case step < 0:
		stop = low
	default:
		stop = high
	}
	// Beyond the length every step reaches the end at once; this keeps sums small.
	step = max(min(step, n+1), -n-1)
	r := &rangeValue{start, stop, step}
	count := int(r.length())
	switch v := v.(type) {
	case *list:
		items := make([]value, count)
		for i := range items {
			items[i] = v.items[start+int64(i)*step]
		}
		return &list{items: items, tuple: v.tuple}, e.alloc(valueBytes * (count + 2))
	case string:
		if err := e.alloc(len(v)); err != nil {
			return nil, err
		}
		if isASCII(v) && step == 1 {
			return v[start:max(start, stop)], nil
		}
		runes := []rune(v)
		picked := make([]rune, count)
		for i := range picked {
			picked[i] = runes[start+int64(i)*step]
		}
		return string(picked), nil
	}
	return nil, refused("slice of a %s", typeName(v))
}

// isASCII reports whether every character of s is one byte.
func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}
