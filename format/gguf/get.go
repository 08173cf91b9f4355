package gguf

import (
	"fmt"
	"math"

	"github.com/firstpassage/fpa/format"
)

// The getters below look a key up and demand a type. present is false, and
// the error nil, when the file has no such key. The error is a
// *format.FormatError that names the key, what was found and what was
// expected.
//
// The specification lets writers choose among the integer types, so every
// integer type is accepted where the value fits.

// Lookup is the value of a key; ok is false when the file has none.
func (f *File) Lookup(key string) (v Value, ok bool) {
	i, ok := f.keys[key]
	if !ok {
		return Value{}, false
	}
	return f.kv[i].Value, true
}

// badValue is the error of a getter.
func (f *File) badValue(key, message string, args ...any) error {
	path := ""
	if len(f.parts) > 0 {
		path = f.parts[0].path
	}
	return &format.FormatError{Path: path, Offset: -1, Where: keyPlace(key), Msg: fmt.Sprintf(message, args...)}
}

// wrongType is the error for a value of a type that a getter cannot use.
func (f *File) wrongType(key string, v Value, expected string) error {
	return f.badValue(key, "has type %s (%s), expected %s", v.TypeName(), v, expected)
}

// Uint32 is an integer value from 0 to 2^32-1.
func (f *File) Uint32(key string) (n uint32, present bool, err error) {
	v, present := f.Lookup(key)
	if !present {
		return 0, false, nil
	}
	u, ok := v.Uint64()
	if !ok || u > math.MaxUint32 {
		return 0, true, f.wrongType(key, v, "u32, or another integer from 0 to 2^32-1")
	}
	return uint32(u), true, nil
}

// Uint64 is an integer value from 0 to 2^64-1.
func (f *File) Uint64(key string) (n uint64, present bool, err error) {
	v, present := f.Lookup(key)
	if !present {
		return 0, false, nil
	}
	n, ok := v.Uint64()
	if !ok {
		return 0, true, f.wrongType(key, v, "u64, or another integer from 0")
	}
	return n, true, nil
}

// Int64 is an integer value.
func (f *File) Int64(key string) (n int64, present bool, err error) {
	v, present := f.Lookup(key)
	if !present {
		return 0, false, nil
	}
	n, ok := v.Int64()
	if !ok {
		return 0, true, f.wrongType(key, v, "i64, or another integer below 2^63")
	}
	return n, true, nil
}

// Float32 is an f32 value, or an f64 value rounded to f32. An f64 value that
// would overflow is an error; NaN and infinities of the file are returned.
func (f *File) Float32(key string) (x float32, present bool, err error) {
	v, present := f.Lookup(key)
	if !present {
		return 0, false, nil
	}
	d, ok := v.Float64()
	if !ok || overflows(d) {
		return 0, true, f.wrongType(key, v, "f32")
	}
	return float32(d), true, nil
}

// overflows reports whether a finite x becomes infinite as an f32.
func overflows(x float64) bool {
	return !math.IsInf(x, 0) && math.IsInf(float64(float32(x)), 0)
}

// Str is a string value.
func (f *File) Str(key string) (s string, present bool, err error) {
	v, present := f.Lookup(key)
	if !present {
		return "", false, nil
	}
	s, ok := v.Str()
	if !ok {
		return "", true, f.wrongType(key, v, "str")
	}
	return s, true, nil
}

// Bool is a bool value.
func (f *File) Bool(key string) (b, present bool, err error) {
	v, present := f.Lookup(key)
	if !present {
		return false, false, nil
	}
	b, ok := v.Bool()
	if !ok {
		return false, true, f.wrongType(key, v, "bool")
	}
	return b, true, nil
}

// Strings is an array of strings. The caller must not change it.
func (f *File) Strings(key string) (s []string, present bool, err error) {
	v, present := f.Lookup(key)
	if !present {
		return nil, false, nil
	}
	s, ok := v.Strings()
	if !ok {
		return nil, true, f.wrongType(key, v, "[str]")
	}
	return s, true, nil
}

// Floats is an array of f32, or of f64 rounded to f32, as a new slice. An f64
// that would overflow is an error.
func (f *File) Floats(key string) (x []float32, present bool, err error) {
	v, present := f.Lookup(key)
	if !present {
		return nil, false, nil
	}
	d, ok := v.Float64s()
	if !ok {
		return nil, true, f.wrongType(key, v, "[f32]")
	}
	for i, y := range d {
		if overflows(y) {
			return nil, true, f.badValue(key, "element %d is %g, expected an f32", i, y)
		}
	}
	return widen[float32](d), true, nil
}

// Int32s is an array of integers that fit an int32, as a new slice.
func (f *File) Int32s(key string) (n []int32, present bool, err error) {
	v, present := f.Lookup(key)
	if !present {
		return nil, false, nil
	}
	d, err := f.integers(key, v, math.MinInt32, math.MaxInt32, "[i32]")
	return widen[int32](d), true, err
}

// Uint32s is an array of integers that fit a uint32, as a new slice.
func (f *File) Uint32s(key string) (n []uint32, present bool, err error) {
	v, present := f.Lookup(key)
	if !present {
		return nil, false, nil
	}
	d, err := f.integers(key, v, 0, math.MaxUint32, "[u32]")
	return widen[uint32](d), true, err
}

// integers is an array of integers from low to high.
func (f *File) integers(key string, v Value, low, high int64, expected string) ([]int64, error) {
	d, ok := v.Int64s()
	if !ok {
		return nil, f.wrongType(key, v, expected)
	}
	for i, n := range d {
		if n < low || n > high {
			return nil, f.badValue(key, "element %d is %d, expected %d to %d", i, n, low, high)
		}
	}
	return d, nil
}
