package xla

import (
	"encoding/binary"

	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"
	"github.com/x448/float16"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
)

// Suffixes of what a packed matrix [rows, in] consists of. A block is 32 numbers of a
// row, each scale * code, and the block's minimum more where there is one.
const (
	codesOf = ".codes" // [rows, in/32, 32] int8, or [rows, in/32, 16] uint8 with two codes of 4 bits: number i in the low half of byte i, number i+16 in the high one
	scaleOf = ".scale" // [rows, in/32] float32
	leastOf = ".least" // [rows, in/32] float32
)

// blockLen is the number of elements of the blocks that can stay packed.
const blockLen = 32

// packable says whether the device can keep these parts of a matrix packed.
func (e *Engine) packable(parts []model.Linear) bool {
	if !e.packed || e.mesh != nil {
		return false
	}
	for _, p := range parts {
		if !p.Present() || p.W.Type != parts[0].W.Type {
			return false
		}
	}
	switch parts[0].W.Type {
	case quant.Q4_0, quant.Q4_1, quant.Q8_0:
		return true
	}
	return false
}

// packed uploads projections of in numbers as one packed matrix.
func (u *uploader) packed(name string, in int, parts []model.Linear) {
	t, rows := parts[0].W.Type, 0
	for _, p := range parts {
		rows += p.W.Rows
	}
	// The data of a block: its scale, perhaps its minimum, its codes.
	blocks, size := in/blockLen, t.BlockBytes()
	each := func(do func(block int, data []byte)) {
		block := 0
		for _, p := range parts {
			for at := 0; at+size <= len(p.W.Data); at += size {
				do(block, p.W.Data[at:at+size])
				block++
			}
		}
	}
	number := func(suffix string, at int) {
		u.add(name+suffix, shapes.Make(dtypes.Float32, rows, blocks), onAll, func(flat any) error {
			each(func(block int, data []byte) {
				flat.([]float32)[block] = float16.Frombits(binary.LittleEndian.Uint16(data[at:])).Float32()
			})
			return nil
		})
	}
	number(scaleOf, 0)
	first := 2
	if t == quant.Q4_1 {
		number(leastOf, 2)
		first = 4
	}
	shape := shapes.Make(dtypes.Uint8, rows, blocks, size-first)
	if t == quant.Q8_0 {
		shape.DType = dtypes.Int8
	}
	u.add(name+codesOf, shape, onAll, func(flat any) error {
		each(func(block int, data []byte) {
			switch to := flat.(type) {
			case []uint8:
				copy(to[block*(size-first):], data[first:])
			case []int8:
				for i, c := range data[first:] {
					to[block*(size-first)+i] = int8(c)
				}
			}
		})
		return nil
	})
}

// unpack is a packed matrix [rows, in] in the type that the device computes in.
func (b *builder) unpack(name string) *gx.Node {
	codes, scale, least := b.weight(name+codesOf), b.weight(name+scaleOf), b.weight(name+leastOf)
	x := gx.ConvertDType(codes, dtypes.Float32)
	if codes.DType() == dtypes.Uint8 {
		low := gx.BitwiseAnd(codes, gx.BroadcastToDims(gx.Scalar(b.g, dtypes.Uint8, 15), codes.Shape().Dimensions...))
		low = gx.ConvertDType(low, dtypes.Float32)
		x = gx.Concatenate([]*gx.Node{low, gx.MulScalar(gx.Sub(x, low), 1.0/16)}, 2)
		if least == nil {
			x = gx.AddScalar(x, -8)
		}
	}
	dims := x.Shape().Dimensions
	spread := func(perBlock *gx.Node) *gx.Node { return gx.BroadcastToDims(gx.InsertAxes(perBlock, 2), dims...) }
	x = gx.Mul(x, spread(scale))
	if least != nil {
		x = gx.Add(x, spread(least))
	}
	x = gx.Reshape(x, dims[0], -1)
	if b.e.memory.half {
		x = gx.ConvertDType(x, dtypes.Float16)
	}
	return x
}
