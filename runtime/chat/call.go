package chat

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// A signature binds arguments to parameters by position or by name.
type signature struct {
	params   []string
	required int // how many of params have no default
}

// sig reads a signature: parameters separated by spaces, those with a default
// after a '?'.
func sig(s string) signature {
	must, may, _ := strings.Cut(s, "?")
	required := strings.Fields(must)
	return signature{append(required, strings.Fields(may)...), len(required)}
}

// absent stands for an argument that was not given.
type absent struct{}

// bind orders the arguments by parameter.
func (s signature) bind(name string, a arguments) (bound, error) {
	if len(a.positional) > len(s.params) {
		return nil, failed("%s takes at most %d argument(s), %d given", name, len(s.params), len(a.positional))
	}
	b := make(bound, len(s.params))
	for i := range b {
		b[i] = absent{}
	}
	copy(b, a.positional)
	for i, n := range a.names {
		at := slices.Index(s.params, n)
		if at < 0 {
			return nil, failed("%s got an unexpected argument '%s'", name, clip(n))
		}
		if at < len(a.positional) {
			return nil, failed("%s got the argument '%s' twice", name, n)
		}
		b[at] = a.named[i]
	}
	for i := range s.required {
		if b[i] == (absent{}) {
			return nil, failed("%s misses the argument '%s'", name, s.params[i])
		}
	}
	return b, nil
}

// bound are arguments in the order of the parameters.
type bound []value

// has reports whether the i-th argument was given.
func (b bound) has(i int) bool { return b[i] != absent{} }

// or is the i-th argument, or def.
func (b bound) or(i int, def value) value {
	if b.has(i) {
		return b[i]
	}
	return def
}

// truth is the i-th argument as a boolean, false when it was not given.
func (b bound) truth(i int) bool { return b.has(i) && truth(b[i]) }

// int is the i-th argument, which must be an integer, or def.
func (b bound) int(i int, def int64) (int64, error) {
	if !b.has(i) {
		return def, nil
	}
	n, _, isFloat, ok := number(b[i])
	if !ok || isFloat {
		return 0, failed("'%s' object cannot be interpreted as an integer", typeName(b[i]))
	}
	return n, nil
}

// str is the i-th argument, which must be a plain string, or def.
func (b bound) str(i int, def string) (string, error) {
	if !b.has(i) {
		return def, nil
	}
	switch v := b[i].(type) {
	case string:
		return v, nil
	case markup:
		return "", refused("a string that safe or escape marked as an argument")
	}
	return "", failed("expected a string as argument, not %s", typeName(b[i]))
}

// maxRange is the longest range the sandbox of Jinja2 gives.
const maxRange = 100_000

// globals are the functions every template has.
var globals = map[string]*function{
	"range":           {callRange},
	"dict":            {callDict},
	"namespace":       {callNamespace},
	"raise_exception": {callRaise},
	"strftime_now":    {callStrftime},
}

func callRange(_ *evaluator, args arguments) (value, error) {
	a, err := sig("start ? stop step").bind("range", arguments{positional: args.positional})
	if err != nil {
		return nil, err
	}
	if len(args.names) > 0 {
		return nil, failed("range takes no named arguments")
	}
	r := &rangeValue{step: 1}
	for i, field := range []*int64{&r.start, &r.stop, &r.step} {
		if u, ok := a[i].(*undefined); ok {
			return nil, u.err()
		}
		if *field, err = a.int(i, *field); err != nil {
			return nil, err
		}
	}
	if !a.has(1) {
		r.start, r.stop = 0, r.start
	}
	if r.step == 0 {
		return nil, failed("range() arg 3 must not be zero")
	}
	// Bounds this close together cannot overflow in length.
	const far = 1 << 61
	if max(r.start, r.stop, r.step) > far || min(r.start, r.stop, r.step) < -far || r.length() > maxRange {
		return nil, failed("range longer than %d", maxRange)
	}
	return r, nil
}

// callDict is dict(mapping or pairs, name=value, …).
func callDict(e *evaluator, args arguments) (value, error) {
	d := newDict()
	if len(args.positional) > 1 {
		return nil, failed("dict expected at most 1 argument, got %d", len(args.positional))
	}
	if len(args.positional) == 1 {
		if u, ok := args.positional[0].(*undefined); ok {
			return nil, u.err()
		}
		if src, ok := args.positional[0].(*dict); ok {
			for i, k := range src.keys {
				if err := e.setKey(d, k, src.values[i]); err != nil {
					return nil, err
				}
			}
		} else {
			pairs, err := e.collect(args.positional[0])
			if err != nil {
				return nil, err
			}
			for _, p := range pairs {
				pair, err := e.collect(p)
				if err != nil {
					return nil, err
				}
				if len(pair) != 2 {
					return nil, failed("dictionary update sequence element has length %d; 2 is required", len(pair))
				}
				if err := e.setKey(d, pair[0], pair[1]); err != nil {
					return nil, err
				}
			}
		}
	}
	for i, name := range args.names {
		d.setString(name, args.named[i])
	}
	return d, e.alloc(4 * valueBytes * (len(d.keys) + 2))
}

func callNamespace(e *evaluator, args arguments) (value, error) {
	d, err := callDict(e, args)
	if err != nil {
		return nil, err
	}
	return &namespace{d.(*dict)}, nil
}

func callRaise(e *evaluator, args arguments) (value, error) {
	a, err := sig("message").bind("raise_exception", args)
	if err != nil {
		return nil, err
	}
	msg, err := e.str(a[0])
	if err != nil {
		return nil, err
	}
	return nil, errorAt(Raised, noPos, "%s", msg)
}

func callStrftime(e *evaluator, args arguments) (value, error) {
	a, err := sig("format").bind("strftime_now", args)
	if err != nil {
		return nil, err
	}
	format, err := a.str(0, "")
	if err != nil {
		return nil, err
	}
	s, err := strftime(format, e.now)
	if err != nil {
		return nil, err
	}
	return e.newString(s)
}

// strftime formats a time as Python's strftime does in the C locale.
func strftime(format string, t time.Time) (string, error) {
	var b strings.Builder
	pad := func(n, width int) {
		s := strconv.Itoa(n)
		b.WriteString(strings.Repeat("0", max(0, width-len(s))) + s)
	}
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		i++
		width := 2
		if i < len(format) && format[i] == '-' { // glibc: no padding
			width = 0
			i++
		}
		if i == len(format) {
			return "", refused("strftime format that ends in '%%'")
		}
		hour12 := (t.Hour()+11)%12 + 1
		switch c := format[i]; c {
		case 'd':
			pad(t.Day(), width)
		case 'm':
			pad(int(t.Month()), width)
		case 'y':
			pad(t.Year()%100, width)
		case 'H':
			pad(t.Hour(), width)
		case 'I':
			pad(hour12, width)
		case 'M':
			pad(t.Minute(), width)
		case 'S':
			pad(t.Second(), width)
		case 'j':
			pad(t.YearDay(), width*3/2)
		default:
			if width == 0 {
				return "", refused("strftime format '%%-%c'", c)
			}
			switch c {
			case 'Y':
				pad(t.Year(), 1)
			case 'B':
				b.WriteString(t.Month().String())
			case 'b', 'h':
				b.WriteString(t.Month().String()[:3])
			case 'A':
				b.WriteString(t.Weekday().String())
			case 'a':
				b.WriteString(t.Weekday().String()[:3])
			case 'p':
				b.WriteString(t.Format("PM"))
			case 'F':
				b.WriteString(t.Format("2006-01-02"))
			case 'T':
				b.WriteString(t.Format("15:04:05"))
			case 'D':
				b.WriteString(t.Format("01/02/06"))
			case 'R':
				b.WriteString(t.Format("15:04"))
			case 'f':
				pad(t.Nanosecond()/1000, 6)
			case 'e':
				b.WriteString(t.Format("_2"))
			case 'Z', 'z': // the time has no zone, as datetime.now() has none
			case '%':
				b.WriteByte('%')
			default:
				return "", refused("strftime format '%%%c'", c)
			}
		}
	}
	return b.String(), nil
}
