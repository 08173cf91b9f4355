package chat

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Kind tells the causes of an Error apart.
type Kind int

const (
	// Syntax: the template is not valid Jinja2.
	Syntax Kind = iota + 1
	// Unsupported: the template is valid, but uses something this package
	// refuses because it cannot do it exactly as Jinja2 does, or safely.
	Unsupported
	// Limit: a bound of Limits was reached.
	Limit
	// Failed: an operation failed, as it would in Python (a wrong type, an
	// undefined value, a division by zero).
	Failed
	// Raised: the template itself called raise_exception; Msg is its message.
	Raised
	// BadInput: a message, tool or variable given to Render is not usable.
	BadInput
)

// String is the kind in words.
func (k Kind) String() string {
	switch k {
	case Syntax:
		return "syntax error"
	case Unsupported:
		return "not supported"
	case Limit:
		return "limit reached"
	case Failed:
		return "failed"
	case Raised:
		return "raised by the template"
	case BadInput:
		return "bad input"
	}
	return "Kind(" + strconv.Itoa(int(k)) + ")"
}

// Error is the only type of error that Parse and Render return.
type Error struct {
	Kind Kind
	Line int // from 1; 0 when the error has no place in the template
	Col  int // in characters, from 1
	Msg  string

	pos int // byte offset in the normalized source, or noPos
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("chat template: %s: %s", e.Kind, e.Msg)
	}
	return fmt.Sprintf("chat template: line %d, column %d: %s: %s", e.Line, e.Col, e.Kind, e.Msg)
}

const noPos = -1

func errorAt(kind Kind, pos int, format string, args ...any) *Error {
	return &Error{Kind: kind, pos: pos, Msg: fmt.Sprintf(format, args...)}
}

func syntaxError(pos int, format string, args ...any) error {
	return errorAt(Syntax, pos, format, args...)
}

func unsupported(pos int, format string, args ...any) error {
	return errorAt(Unsupported, pos, format, args...)
}

// failed is an error of an operation; the evaluator adds the place.
func failed(format string, args ...any) error { return errorAt(Failed, noPos, format, args...) }

// refused is an operation that is not supported; the evaluator adds the place.
func refused(format string, args ...any) error { return errorAt(Unsupported, noPos, format, args...) }

// at gives an error that has no place yet the place pos.
func at(err error, pos int) error {
	var e *Error
	if errors.As(err, &e) && e.pos == noPos {
		e.pos = pos
	}
	return err
}

// locate turns the byte offset of an error into line and column.
func locate(err error, src string) error {
	var e *Error
	if errors.As(err, &e) && e.pos >= 0 && e.Line == 0 {
		before := src[:min(e.pos, len(src))]
		e.Line = strings.Count(before, "\n") + 1
		e.Col = utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]) + 1
	}
	return err
}

// isRange reports whether a conversion failed because the number is too large
// or too small, which Python does not treat as an error for floats.
func isRange(err error) bool { return errors.Is(err, strconv.ErrRange) }
