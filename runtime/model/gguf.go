package model

import (
	"fmt"
	"math"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/gguf"
)

// KV is the configuration as metadata of the fpa architecture, in the order it
// is written. FromGGUF reads the same configuration back.
func (c *Config) KV() []gguf.KV {
	var kv []gguf.KV
	add := func(key string, v gguf.Value) {
		kv = append(kv, gguf.KV{Key: gguf.ArchKey(gguf.ArchFPA, key), Value: v})
	}
	number := func(key string, n int) { add(key, gguf.ValueOf(uint32(n))) }
	number(gguf.VocabSize, c.VocabSize)
	number(gguf.ContextLength, c.ContextLength)
	number(gguf.EmbeddingLength, c.Hidden)
	number(gguf.BlockCount, c.Blocks)
	number(gguf.FeedForwardLength, c.FeedForward)
	number(gguf.HeadCount, c.Heads)
	number(gguf.HeadCountKV, c.KVHeads)
	number(gguf.AttnKeyLength, c.KeyDim)
	number(gguf.AttnValueLength, c.ValDim)
	add(gguf.NormEpsilon, gguf.ValueOf(c.NormEps))
	if c.Scale != defaultScale(c.KeyDim) {
		add(gguf.AttentionScale, gguf.ValueOf(c.Scale))
	}
	add(gguf.FieldKind, gguf.ValueOf(string(c.Field)))
	if c.Field != FieldNone {
		add(gguf.FieldActivation, gguf.ValueOf(string(c.FieldActivation)))
		number(gguf.FieldHeadCount, c.FieldHeads)
		add(gguf.LevelKind, gguf.ValueOf(string(c.Level)))
		add(gguf.Interval, gguf.ValueOf(string(c.Interval)))
	}
	add(gguf.QKNorm, gguf.ValueOf(string(c.QKNorm)))
	if c.QKNorm != NormNone {
		add(gguf.QKNormEpsilon, gguf.ValueOf(c.QKNormEps))
	}
	add(gguf.OutputGate, gguf.ValueOf(string(c.OutputGate)))
	add(gguf.OutputNorm, gguf.ValueOf(c.OutputNorm))
	add(gguf.AttnKeyShift, gguf.ValueOf(c.KeyShift))
	add(gguf.AttnValueShift, gguf.ValueOf(c.ValueShift))
	if c.LogitBound != nil {
		add(gguf.LogitBound, gguf.ValueOf(c.LogitBound))
	}
	add(gguf.FeedForwardActivation, gguf.ValueOf(string(c.Activation)))
	if c.RopeDim > 0 {
		number(gguf.RopeDimensionCount, c.RopeDim)
		add(gguf.RopeFreqBase, gguf.ValueOf(float32(c.RopeBase)))
	}
	return kv
}

// defaultScale is the logit scale of a model that names none.
func defaultScale(keyDim int) float32 { return float32(1 / math.Sqrt(float64(keyDim))) }

// FromGGUF reads the parts of a model of the architecture fpa or llama. Errors
// name the file and the key or tensor.
func FromGGUF(f *gguf.File) (Parts, error) {
	arch, _, err := f.Str(gguf.KeyArchitecture)
	if err != nil {
		return Parts{}, err
	}
	var p Parts
	switch arch {
	case gguf.ArchFPA:
		p, err = fpaParts(f)
	case gguf.ArchLlama:
		p, err = llamaParts(f)
	default:
		err = &format.UnsupportedError{Offset: -1, Where: gguf.KeyArchitecture,
			Msg: fmt.Sprintf("%q cannot be run, expected %q or %q", arch, gguf.ArchFPA, gguf.ArchLlama)}
	}
	return p, format.WithPath(err, f.Paths()[0])
}

func fpaParts(f *gguf.File) (Parts, error) {
	m := &metadata{f: f, arch: gguf.ArchFPA}
	p := Parts{Config: m.config()}
	if m.err != nil {
		return p, m.err
	}
	return p, p.addGGUF(f)
}

// addGGUF adds the tensors of a file as they are.
func (p *Parts) addGGUF(f *gguf.File) error {
	for _, t := range f.Tensors() {
		if !t.DType.Valid() {
			return &format.UnsupportedError{Offset: -1, Where: t.Name, Msg: fmt.Sprintf("type %s cannot be read; convert the model to F16 or Q8_0", t.Type)}
		}
		p.Tensors = append(p.Tensors, Tensor{Name: t.Name, Source: t.Name, DType: t.DType, Shape: t.Shape, Data: f.Data(t)})
	}
	return nil
}

// keyValues is what a configuration is read from: a GGUF file, or the metadata of
// an ONNX model. Each getter says whether there is such a key; a value of another
// type is an error.
type keyValues interface {
	Uint32(key string) (uint32, bool, error)
	Int64(key string) (int64, bool, error)
	Float32(key string) (float32, bool, error)
	Floats(key string) ([]float32, bool, error)
	Bool(key string) (value, present bool, err error)
	Str(key string) (string, bool, error)
}

// metadata reads the keys of an architecture and keeps the first error.
type metadata struct {
	f    keyValues
	arch string
	err  error
}

// get reads a key; absent is its value when the file has none.
func get[T any](m *metadata, key string, getter func(string) (T, bool, error), absent T) T {
	v, present, err := getter(gguf.ArchKey(m.arch, key))
	if err != nil && m.err == nil {
		m.err = err
	}
	if err != nil || !present {
		return absent
	}
	return v
}

// required reads a size that every model has.
func (m *metadata) required(key string) int {
	full := gguf.ArchKey(m.arch, key)
	n, present, err := m.f.Uint32(full)
	if err == nil && !present {
		err = &format.FormatError{Offset: -1, Where: full, Msg: "the key is missing; every model of this architecture has it"}
	}
	if err != nil && m.err == nil {
		m.err = err
	}
	return int(n)
}

func (m *metadata) int(key string, absent int) int {
	return int(get(m, key, m.f.Uint32, uint32(absent)))
}

func (m *metadata) string(key, absent string) string { return get(m, key, m.f.Str, absent) }

func (m *metadata) config() Config {
	c := Config{
		VocabSize:     m.required(gguf.VocabSize),
		ContextLength: m.required(gguf.ContextLength),
		Hidden:        m.required(gguf.EmbeddingLength),
		Blocks:        m.required(gguf.BlockCount),
		FeedForward:   m.required(gguf.FeedForwardLength),
		Heads:         m.required(gguf.HeadCount),
		NormEps:       get(m, gguf.NormEpsilon, m.f.Float32, 1e-6),
		Field:         FieldKind(m.string(gguf.FieldKind, string(FieldNone))),
		Interval:      Interval(m.string(gguf.Interval, string(Exclusive))),
		QKNorm:        NormKind(m.string(gguf.QKNorm, string(NormNone))),
		OutputGate:    Activation(m.string(gguf.OutputGate, string(GateNone))),
		OutputNorm:    get(m, gguf.OutputNorm, m.f.Bool, false),
		KeyShift:      get(m, gguf.AttnKeyShift, m.f.Bool, false),
		ValueShift:    get(m, gguf.AttnValueShift, m.f.Bool, false),
		Activation:    Activation(m.string(gguf.FeedForwardActivation, string(Silu))),
		RopeDim:       m.int(gguf.RopeDimensionCount, 0),
		LogitBound:    get(m, gguf.LogitBound, m.f.Floats, nil),
	}
	if m.err != nil || c.Heads < 1 {
		return c // Validate names what is wrong
	}
	c.KVHeads = m.int(gguf.HeadCountKV, c.Heads)
	c.KeyDim = m.int(gguf.AttnKeyLength, c.Hidden/c.Heads)
	c.ValDim = m.int(gguf.AttnValueLength, c.KeyDim)
	c.Scale = get(m, gguf.AttentionScale, m.f.Float32, defaultScale(c.KeyDim))
	if c.QKNorm != NormNone {
		c.QKNormEps = get(m, gguf.QKNormEpsilon, m.f.Float32, c.NormEps)
	}
	if c.Field != FieldNone {
		c.FieldActivation = Activation(m.string(gguf.FieldActivation, string(Tanh)))
		c.FieldHeads = m.int(gguf.FieldHeadCount, c.Heads)
		c.Level = LevelKind(m.string(gguf.LevelKind, string(LevelTied)))
	}
	if c.RopeDim > 0 {
		c.RopeBase = float64(get(m, gguf.RopeFreqBase, m.f.Float32, 10000))
	}
	if scaling := m.string(gguf.RopeScalingType, "none"); scaling != "none" && m.err == nil {
		m.err = &format.UnsupportedError{Offset: -1, Where: gguf.ArchKey(m.arch, gguf.RopeScalingType),
			Msg: fmt.Sprintf("rope scaling %q cannot be run, expected none; frequency factors go into the tensor %s", scaling, nameRopeFreqs)}
	}
	return c
}
