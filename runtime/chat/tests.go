package chat

import "slices"

// A test is a test of Jinja2, what follows 'is'.
type test struct {
	sig  signature
	call func(e *evaluator, v value, a bound) (bool, error)
}

func (e *evaluator) test(t *test, name string, v value, args arguments) (value, error) {
	a, err := t.sig.bind("test "+name, args)
	if err != nil {
		return nil, err
	}
	return t.call(e, v, a)
}

// typeTest is a test without arguments that cannot fail.
func typeTest(f func(v value) bool) *test {
	return &test{call: func(_ *evaluator, v value, _ bound) (bool, error) { return f(v), nil }}
}

// compareTest is a comparison as a test.
func compareTest(op string) *test {
	return &test{sig: sig("other"), call: func(e *evaluator, v value, a bound) (bool, error) {
		return e.compare(op, v, a[0])
	}}
}

// caseTest is lower or upper, on str(v).
func caseTest(f func(string) bool) *test {
	return &test{call: func(e *evaluator, v value, _ bound) (bool, error) {
		s, err := e.str(v)
		if err == nil {
			err = e.scan(len(s))
		}
		return err == nil && f(s), err
	}}
}

// remainderTest is whether v % divisor is want.
func (e *evaluator) remainderTest(v, divisor value, want int64) (bool, error) {
	r, err := e.arith("%", v, divisor)
	if err != nil {
		return false, err
	}
	return e.equal(r, want)
}

// isType is a test for the types of the given names.
func isType(names ...string) *test {
	return typeTest(func(v value) bool { return slices.Contains(names, typeName(v)) })
}

// tests are the tests that are supported.
var tests = testTable()

func testTable() map[string]*test {
	table := map[string]*test{
		"defined": typeTest(func(v value) bool { _, ok := v.(*undefined); return !ok }),
		"none":    typeTest(func(v value) bool { return v == nil }),
		"true":    typeTest(func(v value) bool { return v == true }),
		"false":   typeTest(func(v value) bool { return v == false }),

		"undefined": isType("Undefined"),
		"boolean":   isType("bool"),
		"integer":   isType("int"),
		"float":     isType("float"),
		"number":    isType("bool", "int", "float"),
		"string":    isType("str", "Markup"),
		"mapping":   isType("dict"),
		"sequence":  isType("str", "Markup", "list", "tuple", "dict", "range", "Undefined"),
		"iterable": isType("str", "Markup", "list", "tuple", "dict", "range", "Undefined",
			"dict_keys", "dict_values", "dict_items", "generator", "LoopContext"),
		"escaped": isType("Markup"),
		"callable": typeTest(func(v value) bool {
			switch v.(type) {
			case *macro, *function, *method, *loop, *undefined: // Python finds a __call__ in these
				return true
			}
			return false
		}),
		"lower": caseTest(isLower),
		"upper": caseTest(isUpper),
		"odd": {call: func(e *evaluator, v value, _ bound) (bool, error) {
			return e.remainderTest(v, int64(2), 1)
		}},
		"even": {call: func(e *evaluator, v value, _ bound) (bool, error) {
			return e.remainderTest(v, int64(2), 0)
		}},
		"divisibleby": {sig: sig("num"), call: func(e *evaluator, v value, a bound) (bool, error) {
			return e.remainderTest(v, a[0], 0)
		}},
		"in": {sig: sig("seq"), call: func(e *evaluator, v value, a bound) (bool, error) {
			return e.contains(a[0], v)
		}},
		"sameas": {sig: sig("other"), call: func(_ *evaluator, v value, a bound) (bool, error) {
			if _, ok := a[0].(bool); ok || a[0] == nil {
				return v == a[0], nil
			}
			if _, ok := v.(bool); ok || v == nil {
				return false, nil
			}
			return false, refused("test 'sameas' with anything but booleans and none")
		}},
	}
	for op, also := range map[string][]string{
		"==": {"eq", "equalto"},
		"!=": {"ne"},
		">":  {"gt", "greaterthan"},
		">=": {"ge"},
		"<":  {"lt", "lessthan"},
		"<=": {"le"},
	} {
		t := compareTest(op)
		table[op] = t
		for _, name := range also {
			table[name] = t
		}
	}
	return table
}
