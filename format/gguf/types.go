package gguf

import (
	"fmt"
	"math"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
)

// GGMLType is ggml's number of an element type, as stored in a tensor
// description (enum ggml_type of ggml.h).
type GGMLType uint32

// The element types of ggml.
const (
	GGMLF32    GGMLType = 0
	GGMLF16    GGMLType = 1
	GGMLQ4_0   GGMLType = 2
	GGMLQ4_1   GGMLType = 3
	GGMLQ5_0   GGMLType = 6
	GGMLQ5_1   GGMLType = 7
	GGMLQ8_0   GGMLType = 8
	GGMLQ8_1   GGMLType = 9
	GGMLQ2_K   GGMLType = 10
	GGMLQ3_K   GGMLType = 11
	GGMLQ4_K   GGMLType = 12
	GGMLQ5_K   GGMLType = 13
	GGMLQ6_K   GGMLType = 14
	GGMLQ8_K   GGMLType = 15
	GGMLIQ4_NL GGMLType = 20
	GGMLI8     GGMLType = 24
	GGMLI16    GGMLType = 25
	GGMLI32    GGMLType = 26
	GGMLI64    GGMLType = 27
	GGMLF64    GGMLType = 28
	GGMLBF16   GGMLType = 30
)

// typeInfo is the block shape of an element type. Types that package quant
// does not know have dtype quant.Invalid: their tensors can be listed, hashed
// and copied, but not decoded.
type typeInfo struct {
	name          string
	length, bytes int64 // elements and bytes of a block
	dtype         quant.DType
}

// typeInfos is indexed by GGMLType; removed numbers have no name.
var typeInfos = [...]typeInfo{
	0:  {"F32", 1, 4, quant.F32},
	1:  {"F16", 1, 2, quant.F16},
	2:  {"Q4_0", 32, 18, quant.Q4_0},
	3:  {"Q4_1", 32, 20, quant.Q4_1},
	6:  {"Q5_0", 32, 22, quant.Q5_0},
	7:  {"Q5_1", 32, 24, quant.Q5_1},
	8:  {"Q8_0", 32, 34, quant.Q8_0},
	9:  {"Q8_1", 32, 36, quant.Invalid},
	10: {"Q2_K", 256, 84, quant.Q2_K},
	11: {"Q3_K", 256, 110, quant.Q3_K},
	12: {"Q4_K", 256, 144, quant.Q4_K},
	13: {"Q5_K", 256, 176, quant.Q5_K},
	14: {"Q6_K", 256, 210, quant.Q6_K},
	15: {"Q8_K", 256, 292, quant.Q8_K},
	16: {"IQ2_XXS", 256, 66, quant.Invalid},
	17: {"IQ2_XS", 256, 74, quant.Invalid},
	18: {"IQ3_XXS", 256, 98, quant.Invalid},
	19: {"IQ1_S", 256, 50, quant.Invalid},
	20: {"IQ4_NL", 32, 18, quant.IQ4_NL},
	21: {"IQ3_S", 256, 110, quant.Invalid},
	22: {"IQ2_S", 256, 82, quant.Invalid},
	23: {"IQ4_XS", 256, 136, quant.Invalid},
	24: {"I8", 1, 1, quant.I8},
	25: {"I16", 1, 2, quant.I16},
	26: {"I32", 1, 4, quant.I32},
	27: {"I64", 1, 8, quant.I64},
	28: {"F64", 1, 8, quant.F64},
	29: {"IQ1_M", 256, 56, quant.Invalid},
	30: {"BF16", 1, 2, quant.BF16},
	34: {"TQ1_0", 256, 54, quant.Invalid},
	35: {"TQ2_0", 256, 66, quant.Invalid},
	39: {"MXFP4", 32, 17, quant.Invalid},
	40: {"NVFP4", 64, 36, quant.Invalid},
	41: {"Q1_0", 128, 18, quant.Invalid},
}

// info is the block shape of t; known is false for numbers that ggml has
// removed or not given out yet.
func (t GGMLType) info() (info typeInfo, known bool) {
	if uint64(t) < uint64(len(typeInfos)) {
		info = typeInfos[t]
	}
	return info, info.name != ""
}

// String is ggml's name of the type.
func (t GGMLType) String() string {
	if info, known := t.info(); known {
		return info.name
	}
	return fmt.Sprintf("GGMLType(%d)", uint32(t))
}

// DType is the type of package quant with the same layout, or quant.Invalid
// when there is none.
func (t GGMLType) DType() quant.DType {
	info, _ := t.info()
	return info.dtype
}

// TypeOf is the ggml number of a type of package quant; ok is false when
// GGUF has no such type.
func TypeOf(d quant.DType) (t GGMLType, ok bool) {
	if d == quant.Invalid {
		return 0, false
	}
	for i, info := range typeInfos {
		if info.dtype == d {
			return GGMLType(i), true
		}
	}
	return 0, false
}

// size is the number of bytes of a tensor of type t, which must be known.
func (t GGMLType) size(shape format.Shape) (int64, error) {
	info, _ := t.info()
	for _, d := range shape {
		if d <= 0 {
			return 0, fmt.Errorf("shape %v has a dimension below 1", shape)
		}
	}
	elements, err := shape.Elements()
	if err != nil {
		return 0, err
	}
	row := int64(1)
	if len(shape) > 0 {
		row = shape[len(shape)-1]
	}
	if row%info.length != 0 {
		return 0, fmt.Errorf("rows have %d elements, expected a multiple of %d for type %s", row, info.length, info.name)
	}
	// 2^62 leaves room for padding.
	if elements/info.length > math.MaxInt64/2/info.bytes {
		return 0, fmt.Errorf("shape %v of type %s has more than 2^62 bytes", shape, info.name)
	}
	return elements / info.length * info.bytes, nil
}

// FileType is the value of general.file_type: the type most matrices of a
// file have (enum llama_ftype of llama.h).
type FileType uint32

// The file types this module writes or meets often.
const (
	FileF32     FileType = 0
	FileF16     FileType = 1
	FileQ4_0    FileType = 2
	FileQ4_1    FileType = 3
	FileQ8_0    FileType = 7
	FileQ5_0    FileType = 8
	FileQ5_1    FileType = 9
	FileQ2_K    FileType = 10
	FileQ3_K_S  FileType = 11
	FileQ3_K_M  FileType = 12
	FileQ3_K_L  FileType = 13
	FileQ4_K_S  FileType = 14
	FileQ4_K_M  FileType = 15
	FileQ5_K_S  FileType = 16
	FileQ5_K_M  FileType = 17
	FileQ6_K    FileType = 18
	FileIQ4_NL  FileType = 25
	FileIQ4_XS  FileType = 30
	FileBF16    FileType = 32
	FileGuessed FileType = 1024 // not told by the file
)

var fileTypeNames = map[FileType]string{
	FileF32: "F32", FileF16: "F16", FileBF16: "BF16",
	FileQ4_0: "Q4_0", FileQ4_1: "Q4_1", FileQ5_0: "Q5_0", FileQ5_1: "Q5_1", FileQ8_0: "Q8_0",
	FileQ2_K: "Q2_K", FileQ3_K_S: "Q3_K_S", FileQ3_K_M: "Q3_K_M", FileQ3_K_L: "Q3_K_L",
	FileQ4_K_S: "Q4_K_S", FileQ4_K_M: "Q4_K_M", FileQ5_K_S: "Q5_K_S", FileQ5_K_M: "Q5_K_M",
	FileQ6_K: "Q6_K", FileIQ4_NL: "IQ4_NL", FileIQ4_XS: "IQ4_XS", FileGuessed: "guessed",
}

// String is the name of the file type as file names carry it (their Encoding
// part): F16, Q8_0, Q4_K_M.
func (t FileType) String() string {
	if name, ok := fileTypeNames[t]; ok {
		return name
	}
	return fmt.Sprintf("FileType(%d)", uint32(t))
}

// FileTypeOf is the file type of a model whose matrices are of type d; for a
// K type it is the pure mixture, which llama.cpp calls S. ok is false when
// there is none.
func FileTypeOf(d quant.DType) (t FileType, ok bool) {
	switch d {
	case quant.F32:
		return FileF32, true
	case quant.F16:
		return FileF16, true
	case quant.BF16:
		return FileBF16, true
	case quant.Q4_0:
		return FileQ4_0, true
	case quant.Q4_1:
		return FileQ4_1, true
	case quant.Q5_0:
		return FileQ5_0, true
	case quant.Q5_1:
		return FileQ5_1, true
	case quant.Q8_0:
		return FileQ8_0, true
	case quant.Q2_K:
		return FileQ2_K, true
	case quant.Q3_K:
		return FileQ3_K_S, true
	case quant.Q4_K:
		return FileQ4_K_S, true
	case quant.Q5_K:
		return FileQ5_K_S, true
	case quant.Q6_K:
		return FileQ6_K, true
	case quant.IQ4_NL:
		return FileIQ4_NL, true
	}
	return 0, false
}
