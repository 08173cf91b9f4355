package xla

import (
	"fmt"

	"github.com/gomlx/gomlx/pkg/core/dtypes"
	"github.com/gomlx/gomlx/pkg/core/dtypes/bfloat16"
	"github.com/gomlx/gomlx/pkg/core/shapes"
	"github.com/x448/float16"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
)

// Names of weights on the device; those of layer i have the prefix layerName(i).
// Projections of the same input are one matrix, [outputs of all, inputs].
const (
	nameFinalNorm = "final_norm" // [D]
	nameOutput    = "output"     // [V, D]

	nameAttnNorm   = "attn_norm"   // [D]
	nameProject    = "project"     // q, k, v and the output gate: [H*d + Hkv*d + Hkv*dv (+ H*dv), D]
	nameSmall      = "small"       // key shift, value shift, field, level: [.., D], float32; part of project if that is float32 too
	nameQNorm      = "q_norm"      // [H, d]
	nameKNorm      = "k_norm"      // [Hkv, d]
	nameSlope      = "slope"       // [Hf]
	nameOffset     = "offset"      // [Hf], of LevelOffset
	nameOutputNorm = "output_norm" // [H, dv]
	nameO          = "o"           // [D, H*dv]
	nameFFNNorm    = "ffn_norm"    // [D]
	nameFFNIn      = "ffn_in"      // gate and up: [2F, D]
	nameFFNOut     = "ffn_out"     // [D, F]

	bias = ".bias" // of a projection, where it has one
)

func layerName(i int) string { return fmt.Sprintf("layer %d ", i) }

// upload puts all weights but the embedding on the device.
func (e *Engine) upload() error {
	m := e.model
	u := &uploader{e: e}
	u.vector(nameFinalNorm, m.FinalNorm, m.Hidden)
	u.linear(nameOutput, e.memory.half, m.Hidden, m.Output)
	for i := range m.Layers {
		l, at := &m.Layers[i], layerName(i)
		u.vector(at+nameAttnNorm, l.AttnNorm, m.Hidden)
		project := []model.Linear{l.Q, l.K, l.V}
		if m.OutputGate != model.GateNone {
			project = append(project, l.Gate)
		}
		small := smallProjections(m, l)
		if !e.memory.half && e.splitOver() == 1 && !e.packed {
			project, small = append(project, small...), nil
		}
		u.linear(at+nameProject, e.memory.half, m.Hidden, project...)
		if len(small) > 0 {
			u.linear(at+nameSmall, false, m.Hidden, small...)
		}
		if m.QKNorm != model.NormNone {
			u.vector(at+nameQNorm, l.QNorm, m.Heads, m.KeyDim)
			u.vector(at+nameKNorm, l.KNorm, m.KVHeads, m.KeyDim)
		}
		if m.FieldHeads > 0 {
			u.vector(at+nameSlope, l.Slope, m.FieldHeads)
		}
		if m.FieldHeads > 0 && m.Level == model.LevelOffset {
			u.vector(at+nameOffset, l.Level.Bias, m.FieldHeads)
		}
		if m.OutputNorm {
			u.vector(at+nameOutputNorm, l.OutputNorm, m.Heads, m.ValDim)
		}
		u.linear(at+nameO, e.memory.half, m.Heads*m.ValDim, l.O)
		u.vector(at+nameFFNNorm, l.FFNNorm, m.Hidden)
		u.linear(at+nameFFNIn, e.memory.half, m.Hidden, l.FFNGate, l.FFNUp)
		u.linear(at+nameFFNOut, e.memory.half, m.FeedForward, l.FFNDown)
	}
	return u.err
}

// smallProjections are those that stay float32: key shift, value shift, field and
// level, as far as the model has them. A field without a matrix is a bias alone,
// and gets a matrix of zeros.
func smallProjections(m *model.Model, l *model.Layer) []model.Linear {
	var list []model.Linear
	if m.KeyShift {
		list = append(list, l.KShift)
	}
	if m.ValueShift {
		list = append(list, l.VShift)
	}
	if m.FieldHeads > 0 {
		list = append(list, l.Field)
		if m.Level == model.LevelRelative || m.Level == model.LevelAbsolute {
			list = append(list, l.Level)
		}
	}
	return list
}

// uploader keeps the first error.
type uploader struct {
	e   *Engine
	err error
}

// add makes a weight with the given axes that fill writes.
func (u *uploader) add(name string, shape shapes.Shape, x axes, fill func(flat any) error) {
	if u.err != nil {
		return
	}
	a, err := u.e.newArray(shape, x)
	if err == nil {
		u.e.weights[name] = a
		err = fill(a.flat)
	}
	if err == nil && !a.shared {
		if _, err = a.send(); err == nil {
			a.flat = nil
		}
	}
	if err != nil {
		u.err = fmt.Errorf("%s: %w", name, err)
	}
	u.e.stats.WeightBytes += int64((&pieces{axis: u.e.cut(x, shape), shape: shape}).each(u.e.splitOver()).Memory())
}

func (u *uploader) vector(name string, v []float32, dims ...int) {
	shape := shapes.Make(dtypes.Float32, dims...)
	u.add(name, shape, axesOf(name), func(flat any) error {
		copy(flat.([]float32), v)
		return nil
	})
}

// linear puts projections of in numbers into one matrix, of half precision if half
// is set and they are not float32. Where devices share the rows, which they do if
// they can share those of every part, the rows of each device come together.
func (u *uploader) linear(name string, half bool, in int, parts ...model.Linear) {
	rows, biased := 0, false
	for _, p := range parts {
		rows += outputs(p)
		biased = biased || p.Bias != nil
	}
	if u.e.packable(parts) {
		u.packed(name, in, parts)
		if biased {
			u.bias(name, rows, onAll, 1, parts)
		}
		return
	}
	shape := shapes.Make(matrixType(half, parts), rows, in)
	x, shares := axesOf(name), 1
	if x == byHead {
		shares = u.e.splitOver()
	}
	for _, p := range parts {
		if outputs(p)%shares != 0 {
			x, shares = onAll, 1
		}
	}
	u.add(name, shape, x, func(flat any) error {
		at := 0
		for share := range shares {
			for _, p := range parts {
				n := outputs(p) / shares * in
				if p.Present() {
					bytes := sizeOf(p.W.Type, n)
					if err := decode(flat, at, n, p.W.Type, p.W.Data[share*bytes:(share+1)*bytes]); err != nil {
						return err
					}
				}
				at += n
			}
		}
		return nil
	})
	if !biased {
		return
	}
	if x != byHead {
		x = onAll // devices add up what they have; the bias comes once
	}
	u.bias(name, rows, x, shares, parts)
}

// bias uploads the biases of projections, in the order of their rows.
func (u *uploader) bias(name string, rows int, x axes, shares int, parts []model.Linear) {
	all := make([]float32, 0, rows)
	for share := range shares {
		for _, p := range parts {
			n := outputs(p) / shares
			if p.Bias == nil {
				all = append(all, make([]float32, n)...)
			} else {
				all = append(all, p.Bias[share*n:(share+1)*n]...)
			}
		}
	}
	u.add(name+bias, shapes.Make(dtypes.Float32, rows), x, func(flat any) error {
		copy(flat.([]float32), all)
		return nil
	})
}

func outputs(l model.Linear) int {
	if !l.Present() {
		return len(l.Bias)
	}
	return l.W.Rows
}

// matrixType is how the device stores a matrix of these parts: as the first is,
// if that is a type to compute in.
func matrixType(half bool, parts []model.Linear) dtypes.DType {
	if !half {
		return dtypes.Float32
	}
	switch parts[0].W.Type {
	case quant.F32, quant.F64, quant.Invalid:
		return dtypes.Float32
	case quant.BF16:
		return dtypes.BFloat16
	}
	return dtypes.Float16
}

// decode widens n numbers to flat[at:at+n], in steps, so that a matrix is never in
// memory twice.
func decode(flat any, at, n int, t quant.DType, data []byte) error {
	if f, ok := flat.([]float32); ok {
		return quant.Decode(f[at:at+n], t, data)
	}
	const step = 1 << 16 // a multiple of every block length
	buf := make([]float32, min(step, n))
	for done := 0; done < n; done += step {
		part := buf[:min(step, n-done)]
		if err := quant.Decode(part, t, data[sizeOf(t, done):sizeOf(t, done+len(part))]); err != nil {
			return err
		}
		switch f := flat.(type) {
		case []float16.Float16:
			for i, x := range part {
				f[at+done+i] = float16.Fromfloat32(x)
			}
		case []bfloat16.BFloat16:
			for i, x := range part {
				f[at+done+i] = bfloat16.FromFloat32(x)
			}
		}
	}
	return nil
}

// sizeOf is the size of n numbers of type t, n a multiple of the length of a block.
func sizeOf(t quant.DType, n int) int { return n / t.BlockLen() * t.BlockBytes() }
