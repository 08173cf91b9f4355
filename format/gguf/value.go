package gguf

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Type is the type of a metadata value, as numbered in the file.
type Type uint32

// The value types.
const (
	TypeUint8 Type = iota
	TypeInt8
	TypeUint16
	TypeInt16
	TypeUint32
	TypeInt32
	TypeFloat32
	TypeBool
	TypeString
	TypeArray
	TypeUint64
	TypeInt64
	TypeFloat64
	numTypes
)

// typeTable is the name of each value type and the fewest bytes a value of it
// takes in a file.
var typeTable = [numTypes]struct {
	name string
	size int64
}{
	TypeUint8:   {"u8", 1},
	TypeInt8:    {"i8", 1},
	TypeUint16:  {"u16", 2},
	TypeInt16:   {"i16", 2},
	TypeUint32:  {"u32", 4},
	TypeInt32:   {"i32", 4},
	TypeFloat32: {"f32", 4},
	TypeBool:    {"bool", 1},
	TypeString:  {"str", 8},
	TypeArray:   {"array", 12},
	TypeUint64:  {"u64", 8},
	TypeInt64:   {"i64", 8},
	TypeFloat64: {"f64", 8},
}

// String is the type's short name: u8, f32, str, array.
func (t Type) String() string {
	if t < numTypes {
		return typeTable[t].name
	}
	return fmt.Sprintf("Type(%d)", uint32(t))
}

// Native is the set of Go types a Value can be made of: each scalar type of
// the format, and slices of them.
type Native interface {
	uint8 | int8 | uint16 | int16 | uint32 | int32 | uint64 | int64 | float32 | float64 | bool | string |
		[]uint8 | []int8 | []uint16 | []int16 | []uint32 | []int32 | []uint64 | []int64 |
		[]float32 | []float64 | []bool | []string
}

// Value is one metadata value with its exact type. The zero Value is invalid:
// no file contains it, every accessor fails on it, and the Writer refuses it.
//
// Accessors return ok=false for a value of another type; none converts with a
// loss, and none returns a zero in place of a value.
type Value struct {
	v any // a Native, or []Value for an array of arrays
}

// ValueOf makes a value of the GGUF type that corresponds to T: a uint32 is
// stored as u32, a []string as an array of strings. A slice is not copied.
func ValueOf[T Native](v T) Value { return Value{v} }

// NestedArray makes an array of arrays. It fails when an item is no array.
// The specification allows such values, but ggml refuses a file with one.
func NestedArray(items []Value) (Value, error) {
	for i, item := range items {
		if t, ok := item.Type(); !ok || t != TypeArray {
			return Value{}, fmt.Errorf("item %d of a nested array has type %s, expected an array", i, item.TypeName())
		}
	}
	return Value{append([]Value{}, items...)}, nil
}

// Type is the value's type; TypeArray for every array. ok is false for the
// zero Value.
func (v Value) Type() (t Type, ok bool) {
	switch v.v.(type) {
	case uint8:
		return TypeUint8, true
	case int8:
		return TypeInt8, true
	case uint16:
		return TypeUint16, true
	case int16:
		return TypeInt16, true
	case uint32:
		return TypeUint32, true
	case int32:
		return TypeInt32, true
	case uint64:
		return TypeUint64, true
	case int64:
		return TypeInt64, true
	case float32:
		return TypeFloat32, true
	case float64:
		return TypeFloat64, true
	case bool:
		return TypeBool, true
	case string:
		return TypeString, true
	}
	_, ok = v.Elem()
	return TypeArray, ok
}

// Elem is the type of an array's elements; ok is false when v is no array.
func (v Value) Elem() (t Type, ok bool) {
	switch v.v.(type) {
	case []uint8:
		return TypeUint8, true
	case []int8:
		return TypeInt8, true
	case []uint16:
		return TypeUint16, true
	case []int16:
		return TypeInt16, true
	case []uint32:
		return TypeUint32, true
	case []int32:
		return TypeInt32, true
	case []uint64:
		return TypeUint64, true
	case []int64:
		return TypeInt64, true
	case []float32:
		return TypeFloat32, true
	case []float64:
		return TypeFloat64, true
	case []bool:
		return TypeBool, true
	case []string:
		return TypeString, true
	case []Value:
		return TypeArray, true
	}
	return 0, false
}

// TypeName names the type: u32, str, [f32], [[u8]]; an empty nested array is
// [array].
func (v Value) TypeName() string {
	if items, ok := v.v.([]Value); ok && len(items) > 0 {
		return "[" + items[0].TypeName() + "]"
	}
	if t, ok := v.Elem(); ok {
		return "[" + t.String() + "]"
	}
	if t, ok := v.Type(); ok {
		return t.String()
	}
	return "invalid"
}

// Any is the value as its Go type: a Native, or []Value for an array of
// arrays; nil for the zero Value. The caller must not change a slice.
func (v Value) Any() any { return v.v }

// Len is the number of elements of an array; ok is false when v is no array.
func (v Value) Len() (n int, ok bool) {
	switch a := v.v.(type) {
	case []uint8:
		return len(a), true
	case []int8:
		return len(a), true
	case []uint16:
		return len(a), true
	case []int16:
		return len(a), true
	case []uint32:
		return len(a), true
	case []int32:
		return len(a), true
	case []uint64:
		return len(a), true
	case []int64:
		return len(a), true
	case []float32:
		return len(a), true
	case []float64:
		return len(a), true
	case []bool:
		return len(a), true
	case []string:
		return len(a), true
	case []Value:
		return len(a), true
	}
	return 0, false
}

// Uint64 is the value of any integer type that is not negative.
func (v Value) Uint64() (n uint64, ok bool) {
	if n, ok := v.v.(uint64); ok {
		return n, true
	}
	i, ok := v.Int64()
	if !ok || i < 0 {
		return 0, false
	}
	return uint64(i), true
}

// Int64 is the value of any integer type that fits an int64.
func (v Value) Int64() (n int64, ok bool) {
	switch n := v.v.(type) {
	case uint8:
		return int64(n), true
	case int8:
		return int64(n), true
	case uint16:
		return int64(n), true
	case int16:
		return int64(n), true
	case uint32:
		return int64(n), true
	case int32:
		return int64(n), true
	case int64:
		return n, true
	case uint64:
		if n <= math.MaxInt64 {
			return int64(n), true
		}
	}
	return 0, false
}

// Float64 is the value of either float type.
func (v Value) Float64() (x float64, ok bool) {
	switch x := v.v.(type) {
	case float32:
		return float64(x), true
	case float64:
		return x, true
	}
	return 0, false
}

// Bool is the value of type bool.
func (v Value) Bool() (b, ok bool) {
	b, ok = v.v.(bool)
	return b, ok
}

// Str is the value of type string, byte for byte. (String is the value
// printed for people.)
func (v Value) Str() (s string, ok bool) {
	s, ok = v.v.(string)
	return s, ok
}

// Strings is an array of strings. The caller must not change it.
func (v Value) Strings() (s []string, ok bool) {
	s, ok = v.v.([]string)
	return s, ok
}

// Int64s is an array of any integer type, as a new slice; ok is false when v
// is no such array or an element does not fit.
func (v Value) Int64s() (n []int64, ok bool) {
	switch a := v.v.(type) {
	case []uint8:
		return widen[int64](a), true
	case []int8:
		return widen[int64](a), true
	case []uint16:
		return widen[int64](a), true
	case []int16:
		return widen[int64](a), true
	case []uint32:
		return widen[int64](a), true
	case []int32:
		return widen[int64](a), true
	case []int64:
		return widen[int64](a), true
	case []uint64:
		for _, x := range a {
			if x > math.MaxInt64 {
				return nil, false
			}
		}
		return widen[int64](a), true
	}
	return nil, false
}

// Float64s is an array of either float type, as a new slice.
func (v Value) Float64s() (x []float64, ok bool) {
	switch a := v.v.(type) {
	case []float32:
		return widen[float64](a), true
	case []float64:
		return widen[float64](a), true
	}
	return nil, false
}

// number is what widen converts.
type number interface {
	uint8 | int8 | uint16 | int16 | uint32 | int32 | uint64 | int64 | float32 | float64
}

// widen converts a slice element by element. The caller sees to it that every
// value fits.
func widen[To, From number](from []From) []To {
	to := make([]To, len(from))
	for i, x := range from {
		to[i] = To(x)
	}
	return to
}

// String prints the value for people: strings quoted and long ones cut, of
// arrays the first elements.
func (v Value) String() string {
	const shown = 4
	switch a := v.v.(type) {
	case nil:
		return "invalid"
	case string:
		return strconv.Quote(abbreviate(a))
	case []uint8:
		return list(a, shown)
	case []int8:
		return list(a, shown)
	case []uint16:
		return list(a, shown)
	case []int16:
		return list(a, shown)
	case []uint32:
		return list(a, shown)
	case []int32:
		return list(a, shown)
	case []uint64:
		return list(a, shown)
	case []int64:
		return list(a, shown)
	case []float32:
		return list(a, shown)
	case []float64:
		return list(a, shown)
	case []bool:
		return list(a, shown)
	case []string:
		return list(a, shown)
	case []Value:
		return list(a, shown)
	}
	return fmt.Sprint(v.v)
}

// list prints the first elements of an array, and its length when that is
// not all.
func list[T any](a []T, shown int) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, x := range a {
		if i > 0 {
			b.WriteString(", ")
		}
		if i == shown {
			fmt.Fprintf(&b, "... %d in all", len(a))
			break
		}
		if s, ok := any(x).(string); ok {
			b.WriteString(strconv.Quote(abbreviate(s)))
		} else {
			fmt.Fprint(&b, x)
		}
	}
	b.WriteByte(']')
	return b.String()
}
