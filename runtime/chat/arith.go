package chat

import (
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// Python's arithmetic. Integers that leave 64 bits are refused: Python would
// go on with larger ones.

var errInt = "integer outside 64 bits"

// negate is -v, or +v if !minus.
func negate(v value, minus bool) (value, error) {
	if u, ok := v.(*undefined); ok {
		return nil, u.err()
	}
	i, f, isFloat, ok := number(v)
	switch {
	case !ok:
		return nil, failed("bad operand type for unary minus or plus: '%s'", typeName(v))
	case isFloat && minus:
		return -f, nil
	case isFloat:
		return f, nil
	case !minus:
		return i, nil
	case i == math.MinInt64:
		return nil, refused("%s", errInt)
	}
	return -i, nil
}

// arith is a op b for + - * / // % and **.
func (e *evaluator) arith(op string, a, b value) (value, error) {
	if s, ok := a.(string); ok && op == "%" {
		return e.percent(s, b)
	}
	for _, v := range []value{a, b} {
		switch v := v.(type) {
		case *undefined:
			return nil, v.err()
		case markup:
			return nil, refused("operator '%s' on a string that safe or escape marked", op)
		}
	}
	ai, af, aFloat, aOK := number(a)
	bi, bf, bFloat, bOK := number(b)
	switch {
	case aOK && bOK && (aFloat || bFloat):
		if !aFloat {
			af = float64(ai)
		}
		if !bFloat {
			bf = float64(bi)
		}
		return arithFloat(op, af, bf)
	case aOK && bOK:
		return arithInt(op, ai, bi)
	case op == "*" && aOK && !aFloat:
		if s, ok := b.(*list); ok {
			return e.repeatList(s, ai)
		}
		if s, ok := b.(string); ok {
			return e.repeat(s, ai)
		}
	case op == "*" && bOK && !bFloat:
		if s, ok := a.(*list); ok {
			return e.repeatList(s, bi)
		}
		if s, ok := a.(string); ok {
			return e.repeat(s, bi)
		}
	}
	switch a := a.(type) {
	case string:
		if s, ok := b.(string); ok && op == "+" {
			if err := e.alloc(len(a) + len(s)); err != nil {
				return nil, err
			}
			return a + s, nil
		}
	case *list:
		if l, ok := b.(*list); ok && op == "+" && a.tuple == l.tuple {
			n := len(a.items) + len(l.items)
			if err := e.alloc(valueBytes * (n + 2)); err != nil {
				return nil, err
			}
			items := make([]value, 0, n)
			return &list{items: append(append(items, a.items...), l.items...), tuple: a.tuple}, nil
		}
	case *view:
		if _, ok := b.(*view); ok && op == "-" {
			return nil, refused("difference of dict views")
		}
	}
	return nil, failed("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
}

// repeat is s * n.
func (e *evaluator) repeat(s string, n int64) (value, error) {
	if n <= 0 || s == "" {
		return "", nil
	}
	if n > int64(e.lim.AllocBytes/len(s)) {
		return nil, errorAt(Limit, noPos, "text of %d times %d bytes", n, len(s))
	}
	if err := e.alloc(len(s) * int(n)); err != nil {
		return nil, err
	}
	return strings.Repeat(s, int(n)), nil
}

func (e *evaluator) repeatList(l *list, n int64) (value, error) {
	if n <= 0 || len(l.items) == 0 {
		return &list{tuple: l.tuple}, nil
	}
	if n > int64(e.lim.AllocBytes/valueBytes/len(l.items)) {
		return nil, errorAt(Limit, noPos, "list of %d times %d items", n, len(l.items))
	}
	total := len(l.items) * int(n)
	if err := e.alloc(valueBytes * total); err != nil {
		return nil, err
	}
	items := make([]value, 0, total)
	for range n {
		items = append(items, l.items...)
	}
	return &list{items: items, tuple: l.tuple}, nil
}

func arithInt(op string, a, b int64) (value, error) {
	overflow := false
	var r int64
	switch op {
	case "+":
		r = a + b
		overflow = (r > a) != (b > 0) && b != 0
	case "-":
		r = a - b
		overflow = (r < a) != (b > 0) && b != 0
	case "*":
		var ok bool
		r, ok = multiply(a, b)
		overflow = !ok
	case "**":
		return power(a, b)
	default:
		if b == 0 {
			return nil, failed("division or modulo by zero")
		}
		if op == "/" {
			return divide(a, b), nil
		}
		if b == -1 { // the one case in which Go's division could overflow
			if op == "%" {
				return int64(0), nil
			}
			return negate(a, true)
		}
		q, m := a/b, a%b
		if m != 0 && (m < 0) != (b < 0) { // Python rounds towards minus infinity
			q, m = q-1, m+b
		}
		if op == "%" {
			return m, nil
		}
		return q, nil
	}
	if overflow {
		return nil, refused("%s", errInt)
	}
	return r, nil
}

// multiply is a * b, unless it overflows.
func multiply(a, b int64) (int64, bool) {
	abs := func(x int64) uint64 {
		if x < 0 {
			return -uint64(x)
		}
		return uint64(x)
	}
	hi, lo := bits.Mul64(abs(a), abs(b))
	if hi != 0 || lo > math.MaxInt64 {
		return 0, false
	}
	return a * b, true
}

// power is a ** b for integers, a float for negative b.
func power(a, b int64) (value, error) {
	if b < 0 {
		return arithFloat("**", float64(a), float64(b))
	}
	switch {
	case b == 0 || a == 1:
		return int64(1), nil
	case a == 0:
		return int64(0), nil
	case a == -1:
		return 1 - 2*(b&1), nil
	case b > 63:
		return nil, refused("%s", errInt)
	}
	r := int64(1)
	for range b {
		var ok bool
		if r, ok = multiply(r, a); !ok {
			return nil, refused("%s", errInt)
		}
	}
	return r, nil
}

func arithFloat(op string, a, b float64) (value, error) {
	switch op {
	case "+":
		return a + b, nil
	case "-":
		return a - b, nil
	case "*":
		return a * b, nil
	case "**":
		if a == 0 && b < 0 {
			return nil, failed("0.0 cannot be raised to a negative power")
		}
		if a < 0 && !math.IsInf(a, 0) && b != math.Trunc(b) {
			return nil, refused("complex number as the result of **")
		}
		r := math.Pow(a, b)
		if math.IsInf(r, 0) && !math.IsInf(a, 0) && !math.IsInf(b, 0) {
			return nil, failed("result of ** too large")
		}
		return r, nil
	}
	if b == 0 {
		return nil, failed("float division by zero")
	}
	if op == "/" {
		return a / b, nil
	}
	mod := math.Mod(a, b)
	div := (a - mod) / b
	if mod != 0 {
		if (b < 0) != (mod < 0) {
			mod += b
			div--
		}
	} else {
		mod = math.Copysign(0, b)
	}
	if op == "%" {
		return mod, nil
	}
	if div == 0 {
		return math.Copysign(0, a/b), nil
	}
	floor := math.Floor(div)
	if div-floor > 0.5 {
		floor++
	}
	return floor, nil
}

// percent is the old string formatting, format % arg. Of the conversions %s,
// %d, %i, %f and %% are known, of the options a precision for %f and a width
// with or without zeros for the numbers.
func (e *evaluator) percent(format string, arg value) (value, error) {
	args := []value{arg}
	if l, ok := arg.(*list); ok && l.tuple {
		args = l.items
	}
	var b strings.Builder
	used := 0
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		i++
		spec := i
		for i < len(format) && (isDigit(format[i]) || format[i] == '.') {
			i++
		}
		if i == len(format) {
			return nil, failed("incomplete format")
		}
		options, verb := format[spec:i], format[i]
		if verb == '%' && options == "" {
			b.WriteByte('%')
			continue
		}
		if used == len(args) {
			return nil, failed("not enough arguments for format string")
		}
		s, err := e.formatOne(verb, options, args[used])
		if err != nil {
			return nil, err
		}
		used++
		if err := e.alloc(len(s)); err != nil {
			return nil, err
		}
		b.WriteString(s)
	}
	if used < len(args) {
		if _, isDict := arg.(*dict); !isDict {
			if _, isList := arg.(*list); !isList || args[0] != arg {
				return nil, failed("not all arguments converted during string formatting")
			}
			// A list counts as a mapping here, whose items need not be used.
		}
	}
	return e.newString(b.String())
}

// formatOne formats one argument of percent.
func (e *evaluator) formatOne(verb byte, options string, v value) (string, error) {
	if options != "" && verb == 's' {
		return "", refused("format %%%s%c", options, verb)
	}
	width, precision, hasPrecision := strings.Cut(options, ".")
	zeros := strings.HasPrefix(width, "0")
	w, err := atoi(width)
	p, err2 := atoi(precision)
	if err != nil || err2 != nil || w > 100 || p > 100 {
		return "", refused("format %%%s%c", clip(options), verb)
	}
	var s string
	switch verb {
	case 's':
		return e.str(v)
	case 'd', 'i':
		i, f, isFloat, ok := number(v)
		if u, isUndefined := v.(*undefined); isUndefined {
			return "", u.err()
		}
		if !ok {
			return "", failed("%%%c format: a number is required, not %s", verb, typeName(v))
		}
		if hasPrecision {
			return "", refused("format %%%s%c", options, verb)
		}
		if isFloat {
			if i, err = floatToInt(f); err != nil {
				return "", err
			}
		}
		s = strconv.FormatInt(i, 10)
	case 'f':
		i, f, isFloat, ok := number(v)
		if u, isUndefined := v.(*undefined); isUndefined {
			return "", u.err()
		}
		if !ok {
			return "", failed("must be real number, not %s", typeName(v))
		}
		if !isFloat {
			f = float64(i)
		}
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return "", refused("format of %s", floatRepr(f))
		}
		if !hasPrecision {
			p = 6
		}
		s = strconv.FormatFloat(f, 'f', p, 64)
	default:
		return "", refused("format %%%s%c", options, verb)
	}
	if fill := w - len(s); fill > 0 {
		if !zeros {
			return strings.Repeat(" ", fill) + s, nil
		}
		digits := strings.TrimPrefix(s, "-")
		return s[:len(s)-len(digits)] + strings.Repeat("0", fill) + digits, nil
	}
	return s, nil
}

// atoi reads a number that may be absent.
func atoi(s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	return strconv.Atoi(s)
}

// floatToInt is int(f), which drops the fraction.
func floatToInt(f float64) (int64, error) {
	switch {
	case math.IsNaN(f):
		return 0, failed("cannot convert float NaN to integer")
	case math.IsInf(f, 0):
		return 0, failed("cannot convert float infinity to integer")
	case math.Abs(f) >= 1<<63:
		return 0, refused("%s", errInt)
	}
	return int64(f), nil
}
