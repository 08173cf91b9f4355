package model

import (
	"fmt"
	"math"
	"sort"
	"strings"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/ops/kernels"
	"github.com/firstpassage/fpa/quant"
)

// Linear is a matrix [out, in] and its bias [out], nil where there is none.
type Linear struct {
	W    kernels.Matrix
	Bias []float32
}

// Present says whether the model has this projection.
func (l Linear) Present() bool { return l.W.Rows > 0 }

// Layer holds the weights of one block. Slices that a configuration does not
// ask for are nil. H is Config.Heads, Hkv KVHeads, Hf FieldHeads, d KeyDim,
// dv ValDim, D Hidden and F FeedForward.
type Layer struct {
	AttnNorm       []float32 // [D]
	Q, K, V        Linear    // [H*d, D], [Hkv*d, D], [Hkv*dv, D]
	QNorm, KNorm   []float32 // [H*d], [Hkv*d]; a shared weight is repeated
	KShift, VShift Linear    // [Hkv, D]
	Field, Level   Linear    // [Hf, D]; the matrix may be absent, the bias not
	Slope          []float32 // [Hf], at least 0
	OutputNorm     []float32 // [H*dv]
	Gate           Linear    // [H*dv, D]
	O              Linear    // [D, H*dv]
	FFNNorm        []float32 // [D]
	FFNGate, FFNUp Linear    // [F, D]
	FFNDown        Linear    // [D, F]
}

// Model is a decoder ready to run: its configuration and weights. Matrices are
// used where they lie, in the mapped file; vectors are copied to float32.
type Model struct {
	Config
	Embed     kernels.Matrix // [V, D]
	Layers    []Layer
	FinalNorm []float32 // [D]
	Output    Linear    // [V, D]
	InvFreq   []float64 // [RopeDim/2], radians a position; nil without RoPE
}

// Build makes a Model of tensors. The data of the matrices is used in place and
// must stay mapped as long as the model. Every tensor that the configuration
// asks for must be there with its shape, and no other. Errors are FormatErrors
// or UnsupportedErrors that name the tensor.
func Build(c Config, tensors []Tensor) (*Model, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Blocks > len(tensors) {
		return nil, bad("block_count", "is %d, but the file has %d tensors in all", c.Blocks, len(tensors))
	}
	b := builder{byName: make(map[string]*Tensor, len(tensors))}
	for i := range tensors {
		b.byName[tensors[i].Name] = &tensors[i]
	}
	if err := b.check(&c, tensors); err != nil {
		return nil, err
	}
	m := &Model{Config: c}
	m.Embed = b.matrix(nameEmbed)
	m.FinalNorm = b.vector(nameOutputNorm)
	m.Output.W = m.Embed
	if b.has(nameOutput) {
		m.Output.W = b.matrix(nameOutput)
	}
	if c.RopeDim > 0 {
		m.InvFreq = inverseFrequencies(c.RopeDim, c.RopeBase, b.vector(nameRopeFreqs))
	}
	m.Layers = make([]Layer, c.Blocks)
	for i := range m.Layers {
		b.layer(&m.Layers[i], &c, i)
	}
	return m, b.err
}

// Release tells the system that the data of a matrix of the model will hardly be read
// again, so that they need not stay in memory.
func (m *Model) Release(w kernels.Matrix) { gguf.Release(w.Data) }

// builder looks tensors up and keeps the first error.
type builder struct {
	byName map[string]*Tensor
	err    error
}

// check holds the tensors against the description of the model.
func (b *builder) check(c *Config, tensors []Tensor) error {
	wanted := make(map[string]bool)
	for _, s := range c.Tensors() {
		wanted[s.Name] = true
		t := b.byName[s.Name]
		switch {
		case t == nil && s.Optional:
		case t == nil:
			return bad(s.Name, "the tensor is missing; the configuration asks for it with shape %v", s.Shape)
		case !t.Shape.Equal(s.Shape):
			return bad(t.Source, "has shape %v, the configuration asks for %v", t.Shape, s.Shape)
		case !kernels.CanMultiply(t.DType) || integer(t.DType):
			return &format.UnsupportedError{Offset: -1, Where: t.Source, Msg: fmt.Sprintf("type %s cannot be run; convert the tensor to F32, F16 or BF16", t.DType)}
		}
	}
	if len(tensors) != len(b.byName) {
		return bad("", "%d tensors have the name of another one", len(tensors)-len(b.byName))
	}
	var extra []string
	for name := range b.byName {
		if !wanted[name] {
			extra = append(extra, b.byName[name].Source)
		}
	}
	if len(extra) > 0 {
		sort.Strings(extra)
		return &format.UnsupportedError{Offset: -1, Where: extra[0], Msg: fmt.Sprintf(
			"the configuration has no place for this tensor%s; running the model without it would give other results", others(extra[1:]))}
	}
	return nil
}

// integer says whether a type holds whole numbers, which are no weights without
// a scale that the file would have to name.
func integer(d quant.DType) bool {
	switch d {
	case quant.I8, quant.I16, quant.I32, quant.I64, quant.U8, quant.U16, quant.U32, quant.U64, quant.Bool:
		return true
	}
	return false
}

// others names up to three more of a list.
func others(names []string) string {
	if len(names) == 0 {
		return ""
	}
	shown := names[:min(3, len(names))]
	return fmt.Sprintf(" (nor for %d more: %s, …)", len(names), strings.Join(shown, ", "))
}

func (b *builder) has(name string) bool { return b.byName[name] != nil }

// matrix is a tensor [out, in] in place.
func (b *builder) matrix(name string) kernels.Matrix {
	t := b.byName[name]
	rows, cols := 1, int(t.Shape[len(t.Shape)-1])
	for _, d := range t.Shape[:len(t.Shape)-1] {
		rows *= int(d)
	}
	if cols%t.DType.BlockLen() != 0 {
		b.fail(bad(name, "rows of %d elements do not fill blocks of %d of type %s", cols, t.DType.BlockLen(), t.DType))
		return kernels.Matrix{}
	}
	return kernels.Matrix{Type: t.DType, Rows: rows, Cols: cols, Data: t.Data}
}

// vector is a tensor copied to float32, or nil when it is absent. Its values
// must be finite: one bad norm weight silences a model without a trace.
func (b *builder) vector(name string) []float32 {
	t := b.byName[name]
	if t == nil {
		return nil
	}
	n, err := t.Shape.Elements()
	if err != nil {
		b.fail(bad(name, "%v", err))
		return nil
	}
	v := make([]float32, n)
	if err := quant.Decode(v, t.DType, t.Data); err != nil {
		b.fail(bad(name, "%v", err))
		return nil
	}
	for i, x := range v {
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			b.fail(bad(name, "element %d is %g; the weights are damaged", i, x))
			return nil
		}
	}
	return v
}

func (b *builder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// linear is a projection with its optional bias; absent altogether when the
// matrix is.
func (b *builder) linear(i int, name string) Linear {
	var l Linear
	if w := blockName(i, name+".weight"); b.has(w) {
		l.W = b.matrix(w)
	}
	l.Bias = b.vector(blockName(i, name+".bias"))
	return l
}

func (b *builder) layer(l *Layer, c *Config, i int) {
	l.AttnNorm = b.vector(blockName(i, "attn_norm.weight"))
	l.Q = b.linear(i, "attn_q")
	l.K = b.linear(i, "attn_k")
	l.V = b.linear(i, "attn_v")
	l.QNorm = b.norm(blockName(i, "attn_q_norm.weight"), c.Heads*c.KeyDim)
	l.KNorm = b.norm(blockName(i, "attn_k_norm.weight"), c.KVHeads*c.KeyDim)
	l.KShift = b.linear(i, "attn_k_shift")
	l.VShift = b.linear(i, "attn_v_shift")
	l.Field = b.small(i, "attn_field", c.FieldHeads)
	if c.Level != LevelTied {
		l.Level = b.small(i, "attn_level", c.FieldHeads)
	}
	l.Slope = b.slope(blockName(i, "attn_slope.weight"), c.FieldHeads)
	l.OutputNorm = b.vector(blockName(i, "attn_output_norm.weight"))
	l.Gate = b.linear(i, "attn_gate")
	l.O = b.linear(i, "attn_output")
	l.FFNNorm = b.vector(blockName(i, "ffn_norm.weight"))
	l.FFNGate = b.linear(i, "ffn_gate")
	l.FFNUp = b.linear(i, "ffn_up")
	l.FFNDown = b.linear(i, "ffn_down")
}

// small is a field or level projection: always F32, its bias always there.
func (b *builder) small(i int, name string, heads int) Linear {
	l := b.linear(i, name)
	if l.Present() && l.W.Type != quant.F32 {
		b.fail(&format.UnsupportedError{Offset: -1, Where: blockName(i, name+".weight"),
			Msg: fmt.Sprintf("is %s; field and level projections must be F32, since their error adds up along the sequence", l.W.Type)})
	}
	b.vector(blockName(i, name+".weight")) // for its check of the values
	if l.Bias == nil {
		l.Bias = make([]float32, heads)
	}
	return l
}

// norm is the weight of a query or key norm, repeated to n where it is shared.
func (b *builder) norm(name string, n int) []float32 {
	v := b.vector(name)
	for len(v) > 0 && len(v) < n {
		v = append(v, v[:min(len(v), n-len(v))]...)
	}
	return v
}

// slope is the slope of each field head, 1 where the tensor is absent.
func (b *builder) slope(name string, heads int) []float32 {
	v := b.vector(name)
	if v == nil {
		v = make([]float32, heads)
		for i := range v {
			v[i] = 1
		}
	}
	for i, s := range v {
		if s < 0 {
			b.fail(bad(name, "slope %d is %g, expected at least 0", i, s))
		}
	}
	return v
}

// inverseFrequencies is the angle a position turns each pair of dimensions by:
// base^(-2i/dim), divided by the factor of that pair where factors are given
// (Llama-3 scaling).
func inverseFrequencies(dim int, base float64, factors []float32) []float64 {
	f := make([]float64, dim/2)
	for i := range f {
		f[i] = math.Pow(base, -2*float64(i)/float64(dim))
		if factors != nil {
			f[i] /= float64(factors[i])
		}
	}
	return f
}
