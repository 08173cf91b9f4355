// Package format holds what the file formats below it share: shapes, limits
// and the two kinds of error. It does no input or output of its own.
package format

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// Shape is the size of each dimension of a tensor, outermost first (row-major,
// the order PyTorch prints). An empty shape is a scalar.
type Shape []int64

// Elements is the product of the dimensions. It fails when a dimension is
// negative or the product does not fit an int64.
func (s Shape) Elements() (int64, error) {
	n := int64(1)
	zero := false
	for _, d := range s {
		switch {
		case d < 0:
			return 0, fmt.Errorf("shape %v has a negative dimension", s)
		case d == 0:
			zero = true
		case n > math.MaxInt64/d:
			return 0, fmt.Errorf("shape %v has more than 2^63-1 elements", s)
		default:
			n *= d
		}
	}
	if zero {
		return 0, nil
	}
	return n, nil
}

// Equal reports whether two shapes have the same dimensions.
func (s Shape) Equal(t Shape) bool {
	if len(s) != len(t) {
		return false
	}
	for i := range s {
		if s[i] != t[i] {
			return false
		}
	}
	return true
}

// String is the shape as [a, b, c].
func (s Shape) String() string {
	parts := make([]string, len(s))
	for i, d := range s {
		parts[i] = fmt.Sprint(d)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// Limits bounds what a reader accepts before it allocates. The zero value of
// a field means the default.
type Limits struct {
	HeaderBytes  int64 // bytes of header or metadata; default 100 MB
	Tensors      int64 // tensors of one file; default 1,000,000
	KeyValues    int64 // metadata entries; default 100,000
	StringBytes  int64 // bytes of one string; default 16 MiB
	ArrayLength  int64 // elements of one array; default 64 Mi
	NestingDepth int   // depth of nested JSON or nested arrays; default 64
}

// WithDefaults replaces each zero field by its default.
func (l Limits) WithDefaults() Limits {
	set := func(field *int64, value int64) {
		if *field == 0 {
			*field = value
		}
	}
	set(&l.HeaderBytes, 100_000_000)
	set(&l.Tensors, 1_000_000)
	set(&l.KeyValues, 100_000)
	set(&l.StringBytes, 16<<20)
	set(&l.ArrayLength, 64<<20)
	if l.NestingDepth == 0 {
		l.NestingDepth = 64
	}
	return l
}

// FormatError says that a file is wrong: which file, where in it, what was
// found and what was expected.
type FormatError struct {
	Path   string // the file; empty when the reader was given no name
	Offset int64  // byte offset of what is wrong; negative when it has none
	Where  string // the key, tensor or field concerned; may be empty
	Msg    string // what was found and what was expected
}

func (e *FormatError) Error() string { return place(e.Path, e.Offset, e.Where) + e.Msg }

// UnsupportedError says that a file is right, but holds something that this
// program cannot read or represent.
type UnsupportedError struct {
	Path   string
	Offset int64
	Where  string
	Msg    string // what is not supported, and what to do instead
}

func (e *UnsupportedError) Error() string { return place(e.Path, e.Offset, e.Where) + e.Msg }

// place is the prefix of an error message: "file: at byte n: where: ".
func place(path string, offset int64, where string) string {
	var b strings.Builder
	if path != "" {
		b.WriteString(path + ": ")
	}
	if offset >= 0 {
		fmt.Fprintf(&b, "at byte %d: ", offset)
	}
	if where != "" {
		b.WriteString(where + ": ")
	}
	return b.String()
}

// WithPath sets the path of a FormatError or UnsupportedError that has none,
// for readers that work on streams and do not know the file's name.
func WithPath(err error, path string) error {
	var f *FormatError
	if errors.As(err, &f) && f.Path == "" {
		f.Path = path
	}
	var u *UnsupportedError
	if errors.As(err, &u) && u.Path == "" {
		u.Path = path
	}
	return err
}
