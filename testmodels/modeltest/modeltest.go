// Package modeltest makes random models for tests, and the float64 oracle of a
// model.
package modeltest

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/firstpassage/fpa/ops/kernels"
	"github.com/firstpassage/fpa/ops/reference"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
)

// Config is a small model with every option at its plainest; tests change what
// they look at. Its sizes are odd on purpose.
func Config() model.Config {
	return model.Config{
		VocabSize: 67, ContextLength: 64, Hidden: 36, Blocks: 2, FeedForward: 52,
		Heads: 4, KVHeads: 4, KeyDim: 10, ValDim: 10,
		NormEps: 1e-6, Scale: float32(1 / math.Sqrt(10)),
		Field: model.FieldWalk, FieldActivation: model.Tanh, FieldHeads: 4, Level: model.LevelRelative, Interval: model.Exclusive,
		QKNorm: model.NormHead, QKNormEps: 1e-5, OutputGate: model.GateNone, Activation: model.Silu,
	}
}

// Options are variations of Config that together switch on everything a block
// can have, by name.
func Options() map[string]func(*model.Config) {
	return map[string]func(*model.Config){
		"plain": func(*model.Config) {},
		"softmax rope": func(c *model.Config) {
			c.Field, c.FieldHeads, c.QKNorm = model.FieldNone, 0, model.NormNone
			c.RopeDim, c.RopeBase = 10, 10000
		},
		"partial rope, shared norm": func(c *model.Config) { c.RopeDim, c.RopeBase, c.QKNorm = 4, 500, model.NormShared },
		"fox pro": func(c *model.Config) {
			c.FieldActivation, c.Level = model.LogSigmoid, model.LevelTied
			c.KeyShift, c.ValueShift, c.OutputNorm, c.OutputGate = true, true, true, model.Sigmoid
		},
		"grouped, field a query head":  func(c *model.Config) { c.KVHeads = 2 },
		"grouped, field a key head":    func(c *model.Config) { c.KVHeads, c.FieldHeads = 2, 2 },
		"one field for all heads":      func(c *model.Config) { c.KVHeads, c.FieldHeads = 2, 1 },
		"one key head, key shift":      func(c *model.Config) { c.KVHeads, c.KeyShift = 1, true },
		"value width, value shift":     func(c *model.Config) { c.ValDim, c.ValueShift = 14, true },
		"direct absolute":              func(c *model.Config) { c.Field, c.Level = model.FieldDirect, model.LevelAbsolute },
		"inclusive relative":           func(c *model.Config) { c.Interval = model.Inclusive },
		"offset, negative softplus":    func(c *model.Config) { c.Level, c.FieldActivation = model.LevelOffset, model.NegSoftplus },
		"identity field, silu gate":    func(c *model.Config) { c.FieldActivation, c.OutputGate = model.Identity, model.Silu },
		"gelu, own scale":              func(c *model.Config) { c.Activation, c.Scale = model.Gelu, 0.2 },
		"gelu_tanh, sigmoid gate norm": func(c *model.Config) { c.Activation, c.OutputNorm = model.GeluTanh, true },
		"relu":                         func(c *model.Config) { c.Activation = model.Relu },
		"sigmoid":                      func(c *model.Config) { c.Activation = model.Sigmoid },
	}
}

// Random makes the tensors of a model: F32, of a size that keeps activations
// near 1, slopes and norms positive. Every optional tensor is there, except the
// output matrix when tied is set.
func Random(c model.Config, seed uint64, tied bool) model.Parts {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := model.Parts{Config: c}
	for _, s := range c.Tensors() {
		if tied && s.Name == "output.weight" {
			continue
		}
		n, _ := s.Shape.Elements()
		data := make([]byte, 4*n)
		scale := 1 / math.Sqrt(float64(s.Shape[len(s.Shape)-1]))
		for i := range n {
			v := rng.NormFloat64() * scale
			switch {
			case strings.Contains(s.Name, "norm"), strings.Contains(s.Name, "slope"), strings.Contains(s.Name, "freqs"):
				v = 1 + 0.3*rng.Float64()
			case strings.HasSuffix(s.Name, ".bias"):
				v = 0.3 * rng.NormFloat64()
			}
			binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(float32(v)))
		}
		p.Tensors = append(p.Tensors, model.Tensor{Name: s.Name, Source: s.Name, DType: quant.F32, Shape: s.Shape, Data: data})
	}
	return p
}

// Tokens are n random ids of a vocabulary.
func Tokens(n, vocab int, seed uint64) []int32 {
	rng := rand.New(rand.NewPCG(seed, 2))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(rng.IntN(vocab))
	}
	return ids
}

// Reference is the float64 oracle of a model, on the model's own weights.
func Reference(m *model.Model) *reference.Decoder {
	c := reference.Config{
		Vocab: m.VocabSize, Hidden: m.Hidden, FeedForward: m.FeedForward, Layers: m.Blocks,
		Heads: m.Heads, KeyHeads: m.KVHeads, KeyDim: m.KeyDim, ValueDim: m.ValDim, Scale: float64(m.Scale),
		NormEps: float64(m.NormEps), QKNorm: reference.NormKind(m.QKNorm), QKNormEps: float64(m.QKNormEps),
		KeyShift: m.KeyShift, ValueShift: m.ValueShift, OutputNorm: m.OutputNorm,
		Activation: reference.Activation(m.Activation),
		FieldHeads: m.FieldHeads, FieldKind: reference.FieldKind(m.Field), FieldActivation: reference.Activation(m.FieldActivation),
		LevelKind: reference.LevelKind(m.Level),
	}
	if m.OutputGate != model.GateNone {
		c.OutputGate = reference.Activation(m.OutputGate)
	}
	if m.QKNorm == model.NormShared {
		c.QKNorm = reference.NormHead // Model repeats the weight
	}
	if m.Interval == model.Inclusive {
		c.Interval = reference.Inclusive
	}
	if m.RopeDim > 0 {
		c.Rotary = reference.Rotary{Dim: m.RopeDim, Base: m.RopeBase}
		for i, angle := range c.Rotary.Angles() {
			c.Rotary.Factors = append(c.Rotary.Factors, angle/m.InvFreq[i])
		}
	}
	w := reference.Weights{Embedding: wide(m.Embed), Norm: wideVector(m.FinalNorm), Head: wide(m.Output.W)}
	for i := range m.Layers {
		w.Layers = append(w.Layers, layer(&m.Layers[i]))
	}
	return &reference.Decoder{Config: c, Weights: w}
}

func layer(l *model.Layer) reference.Layer {
	r := reference.Layer{
		AttnNorm: wideVector(l.AttnNorm), FeedNorm: wideVector(l.FFNNorm), Slope: wideVector(l.Slope),
		QueryNorm: wideVector(l.QNorm), KeyNorm: wideVector(l.KNorm), OutputNorm: wideVector(l.OutputNorm),
		KeyShift: wide(l.KShift.W), ValueShift: wide(l.VShift.W), OutputGate: wide(l.Gate.W),
	}
	for _, p := range []struct {
		l       model.Linear
		w, bias *[]float64
	}{
		{l.Q, &r.Query, &r.QueryBias}, {l.K, &r.Key, &r.KeyBias}, {l.V, &r.Value, &r.ValueBias}, {l.O, &r.Output, &r.OutputBias},
		{l.Field, &r.Field, &r.FieldBias}, {l.Level, &r.Level, &r.LevelBias},
		{l.FFNGate, &r.FeedGate, &r.FeedGateBias}, {l.FFNUp, &r.FeedUp, &r.FeedUpBias}, {l.FFNDown, &r.FeedDown, &r.FeedDownBias},
	} {
		*p.w, *p.bias = wide(p.l.W), wideVector(p.l.Bias)
	}
	return r
}

// wide decodes a matrix to float64; nil stays nil.
func wide(m kernels.Matrix) []float64 {
	if m.Rows == 0 {
		return nil
	}
	v := make([]float32, m.Rows*m.Cols)
	if err := quant.Decode(v, m.Type, m.Data); err != nil {
		panic(err)
	}
	return wideVector(v)
}

func wideVector(v []float32) []float64 {
	if v == nil {
		return nil
	}
	w := make([]float64, len(v))
	for i, x := range v {
		w[i] = float64(x)
	}
	return w
}
