package onnx

import (
	"fmt"
	"math"

	"github.com/firstpassage/fpa/quant"
)

// DataType is the type of a tensor's elements (TensorProto.DataType).
type DataType int32

// The element types.
const (
	Undefined      DataType = 0
	Float          DataType = 1 // float32
	Uint8          DataType = 2
	Int8           DataType = 3
	Uint16         DataType = 4
	Int16          DataType = 5
	Int32          DataType = 6
	Int64          DataType = 7
	String         DataType = 8
	Bool           DataType = 9
	Float16        DataType = 10
	Double         DataType = 11
	Uint32         DataType = 12
	Uint64         DataType = 13
	Complex64      DataType = 14
	Complex128     DataType = 15
	BFloat16       DataType = 16
	Float8E4M3FN   DataType = 17
	Float8E4M3FNUZ DataType = 18
	Float8E5M2     DataType = 19
	Float8E5M2FNUZ DataType = 20
	Uint4          DataType = 21
	Int4           DataType = 22
	Float4E2M1     DataType = 23
	Float8E8M0     DataType = 24
	Uint2          DataType = 25
	Int2           DataType = 26
	Float6E2M3     DataType = 27
	Float6E3M2     DataType = 28
)

// dataTypes describes each type: its name in the schema, the bits of an
// element (0 for strings, which have no fixed size), the same type of package
// quant, the field of TensorProto that may hold its elements instead of raw_data,
// and for integers in int32_data the range of an entry.
var dataTypes = [...]struct {
	name     string
	bits     int64
	quant    quant.DType
	field    int
	min, max int64
}{
	Undefined:      {name: "UNDEFINED"},
	Float:          {"FLOAT", 32, quant.F32, tensorFloats, 0, 0},
	Uint8:          {"UINT8", 8, quant.U8, tensorInt32s, 0, math.MaxUint8},
	Int8:           {"INT8", 8, quant.I8, tensorInt32s, math.MinInt8, math.MaxInt8},
	Uint16:         {"UINT16", 16, quant.U16, tensorInt32s, 0, math.MaxUint16},
	Int16:          {"INT16", 16, quant.I16, tensorInt32s, math.MinInt16, math.MaxInt16},
	Int32:          {"INT32", 32, quant.I32, tensorInt32s, math.MinInt32, math.MaxInt32},
	Int64:          {"INT64", 64, quant.I64, tensorInt64s, math.MinInt64, math.MaxInt64},
	String:         {"STRING", 0, quant.Invalid, tensorStrings, 0, 0},
	Bool:           {"BOOL", 8, quant.Bool, tensorInt32s, 0, 1},
	Float16:        {"FLOAT16", 16, quant.F16, tensorInt32s, 0, math.MaxUint16},
	Double:         {"DOUBLE", 64, quant.F64, tensorDoubles, 0, 0},
	Uint32:         {"UINT32", 32, quant.U32, tensorUint64s, 0, math.MaxUint32},
	Uint64:         {"UINT64", 64, quant.U64, tensorUint64s, 0, math.MaxInt64},
	Complex64:      {"COMPLEX64", 64, quant.C64, tensorFloats, 0, 0},
	Complex128:     {"COMPLEX128", 128, quant.Invalid, tensorDoubles, 0, 0},
	BFloat16:       {"BFLOAT16", 16, quant.BF16, tensorInt32s, 0, math.MaxUint16},
	Float8E4M3FN:   {"FLOAT8E4M3FN", 8, quant.F8E4M3, tensorInt32s, 0, math.MaxUint8},
	Float8E4M3FNUZ: {"FLOAT8E4M3FNUZ", 8, quant.F8E4M3FNUZ, tensorInt32s, 0, math.MaxUint8},
	Float8E5M2:     {"FLOAT8E5M2", 8, quant.F8E5M2, tensorInt32s, 0, math.MaxUint8},
	Float8E5M2FNUZ: {"FLOAT8E5M2FNUZ", 8, quant.F8E5M2FNUZ, tensorInt32s, 0, math.MaxUint8},
	Uint4:          {"UINT4", 4, quant.Invalid, tensorInt32s, 0, math.MaxUint8},
	Int4:           {"INT4", 4, quant.Invalid, tensorInt32s, 0, math.MaxUint8},
	Float4E2M1:     {"FLOAT4E2M1", 4, quant.F4, tensorInt32s, 0, math.MaxUint8},
	Float8E8M0:     {"FLOAT8E8M0", 8, quant.F8E8M0, tensorInt32s, 0, math.MaxUint8},
	Uint2:          {"UINT2", 2, quant.Invalid, tensorInt32s, 0, math.MaxUint8},
	Int2:           {"INT2", 2, quant.Invalid, tensorInt32s, 0, math.MaxUint8},
	Float6E2M3:     {"FLOAT6E2M3", 6, quant.F6E2M3, 0, 0, 0},
	Float6E3M2:     {"FLOAT6E3M2", 6, quant.F6E3M2, 0, 0, 0},
}

// Valid reports whether d is one of the types above, Undefined excepted.
func (d DataType) Valid() bool { return d > Undefined && int(d) < len(dataTypes) }

// String is the name of the type in the schema.
func (d DataType) String() string {
	if d != Undefined && !d.Valid() {
		return fmt.Sprintf("DataType(%d)", int32(d))
	}
	return dataTypes[d].name
}

// Bytes is the size of n elements in raw form; elements of less than a byte
// are packed, the last byte filled up. It fails when n is negative, the size
// does not fit an int64, or the type has no fixed size.
func (d DataType) Bytes(n int64) (int64, error) {
	if !d.Valid() || dataTypes[d].bits == 0 {
		return 0, fmt.Errorf("%s has no fixed size", d)
	}
	bits := dataTypes[d].bits
	if n < 0 || n > (math.MaxInt64-7)/bits {
		return 0, fmt.Errorf("%d elements of %s overflow", n, d)
	}
	return (n*bits + 7) / 8, nil
}

// Quant is the type of package quant with the same layout, and whether there
// is one. In package quant some types of less than a byte come in whole blocks
// only.
func (d DataType) Quant() (quant.DType, bool) {
	if !d.Valid() {
		return quant.Invalid, false
	}
	q := dataTypes[d].quant
	return q, q != quant.Invalid
}

// DataTypeOf is the element type with the layout of a type of package quant,
// and whether there is one.
func DataTypeOf(q quant.DType) (DataType, bool) {
	for d, info := range dataTypes {
		if q != quant.Invalid && info.quant == q {
			return DataType(d), true
		}
	}
	return Undefined, false
}
