package reference

import (
	"fmt"
	"math"
)

// NormKind says how queries and keys are normalised.
type NormKind string

// The kinds of query-key norm, by the names that files use.
const (
	NormNone   NormKind = "none"
	NormHead   NormKind = "head"   // one weight for each head, [heads, d]
	NormShared NormKind = "shared" // one weight for all heads, [d]
)

// Config is the shape of a decoder: plain softmax, forgetting attention and
// first passage attention are all settings of it.
type Config struct {
	Vocab, Hidden, FeedForward, Layers int

	Heads, KeyHeads  int
	KeyDim, ValueDim int     // of one head
	Scale            float64 // of the dot products; 0 stands for 1/sqrt(KeyDim)

	NormEps   float64
	QKNorm    NormKind
	QKNormEps float64
	Rotary    Rotary // the zero value turns nothing

	KeyShift, ValueShift bool
	OutputNorm           bool       // per-head RMS norm of the attention's output, eps NormEps
	OutputGate           Activation // "" for none
	Activation           Activation // of the gated feed-forward layer

	FieldHeads      int
	FieldKind       FieldKind // NoField: plain softmax, and the other field settings are not read
	FieldActivation Activation
	LevelKind       LevelKind
	Interval        Interval
}

// Layer holds the weights of one block. A matrix is [out, in]; a bias may be
// nil, as may be all that the configuration has no use for.
type Layer struct {
	AttnNorm                                  []float64 // [D]
	Query, Key, Value, Output                 []float64 // [Hq*d, D], [Hkv*d, D], [Hkv*dv, D], [D, Hq*dv]
	QueryBias, KeyBias, ValueBias, OutputBias []float64
	QueryNorm, KeyNorm                        []float64 // [Hq*d], [Hkv*d]; shared: [d]
	KeyShift, ValueShift                      []float64 // [Hkv, D]
	OutputNorm                                []float64 // [Hq*dv]
	OutputGate, OutputGateBias                []float64 // [Hq*dv, D], [Hq*dv]
	Field, FieldBias                          []float64 // [Hf, D], [Hf]
	Level, LevelBias                          []float64 // [Hf, D], [Hf]
	Slope                                     []float64 // [Hf]; nil stands for ones
	FeedNorm                                  []float64 // [D]
	FeedGate, FeedUp, FeedDown                []float64 // [F, D], [F, D], [D, F]
	FeedGateBias, FeedUpBias, FeedDownBias    []float64
}

// Weights holds the weights of a decoder.
type Weights struct {
	Embedding []float64 // [V, D]
	Norm      []float64 // [D]
	Head      []float64 // [V, D]; nil: the embedding is used (tied)
	Layers    []Layer
}

// Decoder computes the logits of a decoder in float64.
type Decoder struct {
	Config  Config
	Weights Weights // of the sizes that LoadWeights checks
	// RoundKV is nil, or rounds keys and values as a cache's type does. The
	// current call's keys and values are rounded too, so that the way in which
	// a sequence is split over calls makes no difference.
	RoundKV func(float64) float64
}

// LoadWeights takes the weights of a decoder from lookup, which returns the
// values of a tensor in row-major order, or nil where there is none. The names
// are those of GGUF: token_embd.weight, blk.0.attn_q.weight, and so on.
func LoadWeights(c Config, lookup func(name string) []float64) (Weights, error) {
	if err := c.Check(); err != nil {
		return Weights{}, err
	}
	var firstErr error
	// get returns a tensor of exactly n elements; 0 means that the
	// configuration has none, whatever the file holds.
	get := func(name string, n int, required bool) []float64 {
		if n == 0 {
			return nil
		}
		x := lookup(name)
		if firstErr == nil && (x != nil && len(x) != n || x == nil && required) {
			firstErr = fmt.Errorf("reference: tensor %s has %d elements, want %d", name, len(x), n)
		}
		return x
	}
	when := func(cond bool, n int) int {
		if cond {
			return n
		}
		return 0
	}
	d, f := c.Hidden, c.FeedForward
	q, k, v, o := c.Heads*c.KeyDim, c.KeyHeads*c.KeyDim, c.KeyHeads*c.ValueDim, c.Heads*c.ValueDim
	qNorm, kNorm := 0, 0
	switch c.QKNorm {
	case NormHead:
		qNorm, kNorm = q, k
	case NormShared:
		qNorm, kNorm = c.KeyDim, c.KeyDim
	}
	hasField := c.FieldKind != NoField
	levelWeight := hasField && (c.LevelKind == Relative || c.LevelKind == Absolute)
	levelBias := hasField && c.LevelKind != Tied

	w := Weights{
		Embedding: get("token_embd.weight", c.Vocab*d, true),
		Norm:      get("output_norm.weight", d, true),
		Head:      get("output.weight", c.Vocab*d, false),
	}
	for n := range c.Layers {
		weight := func(name string, n int) []float64 { return get(name+".weight", n, true) }
		bias := func(name string, n int) []float64 { return get(name+".bias", n, false) }
		at := func(name string) string { return fmt.Sprintf("blk.%d.%s", n, name) }
		w.Layers = append(w.Layers, Layer{
			AttnNorm:       weight(at("attn_norm"), d),
			Query:          weight(at("attn_q"), q*d),
			Key:            weight(at("attn_k"), k*d),
			Value:          weight(at("attn_v"), v*d),
			Output:         weight(at("attn_output"), d*o),
			QueryBias:      bias(at("attn_q"), q),
			KeyBias:        bias(at("attn_k"), k),
			ValueBias:      bias(at("attn_v"), v),
			OutputBias:     bias(at("attn_output"), d),
			QueryNorm:      weight(at("attn_q_norm"), qNorm),
			KeyNorm:        weight(at("attn_k_norm"), kNorm),
			KeyShift:       weight(at("attn_k_shift"), when(c.KeyShift, c.KeyHeads*d)),
			ValueShift:     weight(at("attn_v_shift"), when(c.ValueShift, c.KeyHeads*d)),
			OutputNorm:     weight(at("attn_output_norm"), when(c.OutputNorm, o)),
			OutputGate:     weight(at("attn_gate"), when(c.OutputGate != "", o*d)),
			OutputGateBias: bias(at("attn_gate"), when(c.OutputGate != "", o)),
			Field:          get(at("attn_field.weight"), when(hasField, c.FieldHeads*d), false),
			FieldBias:      bias(at("attn_field"), when(hasField, c.FieldHeads)),
			Level:          weight(at("attn_level"), when(levelWeight, c.FieldHeads*d)),
			LevelBias:      bias(at("attn_level"), when(levelBias, c.FieldHeads)),
			Slope:          get(at("attn_slope.weight"), when(hasField, c.FieldHeads), false),
			FeedNorm:       weight(at("ffn_norm"), d),
			FeedGate:       weight(at("ffn_gate"), f*d),
			FeedUp:         weight(at("ffn_up"), f*d),
			FeedDown:       weight(at("ffn_down"), d*f),
			FeedGateBias:   bias(at("ffn_gate"), f),
			FeedUpBias:     bias(at("ffn_up"), f),
			FeedDownBias:   bias(at("ffn_down"), d),
		})
	}
	return w, firstErr
}

// Check reports the first setting that makes no decoder.
func (c *Config) Check() error {
	for _, s := range []struct {
		name  string
		value int
	}{
		{"Vocab", c.Vocab}, {"Hidden", c.Hidden}, {"FeedForward", c.FeedForward}, {"Layers", c.Layers},
		{"Heads", c.Heads}, {"KeyHeads", c.KeyHeads}, {"KeyDim", c.KeyDim}, {"ValueDim", c.ValueDim},
	} {
		if s.value < 1 {
			return fmt.Errorf("reference: %s is %d, want at least 1", s.name, s.value)
		}
	}
	if c.Heads%c.KeyHeads != 0 {
		return fmt.Errorf("reference: %d heads over %d key heads; want a divisor", c.Heads, c.KeyHeads)
	}
	switch c.QKNorm {
	case NormNone, NormHead, NormShared:
	default:
		return fmt.Errorf("reference: unknown query-key norm %q", string(c.QKNorm))
	}
	r := c.Rotary
	if r.Dim < 0 || r.Dim%2 != 0 || r.Dim > c.KeyDim || r.Factors != nil && len(r.Factors) != r.Dim/2 {
		return fmt.Errorf("reference: rotary dimension %d with %d factors; want an even number up to %d, and none or one factor a pair",
			r.Dim, len(r.Factors), c.KeyDim)
	}
	if _, err := c.Activation.Func(); err != nil {
		return err
	}
	if c.OutputGate != "" {
		if _, err := c.OutputGate.Func(); err != nil {
			return err
		}
	}
	if err := checkKinds(c.FieldKind, c.FieldActivation, c.LevelKind); err != nil || c.FieldKind == NoField {
		return err
	}
	if c.FieldHeads < 1 || c.Heads%c.FieldHeads != 0 {
		return fmt.Errorf("reference: %d heads over %d field heads; want a divisor", c.Heads, c.FieldHeads)
	}
	return nil
}

// State is what a decoder carries from call to call.
type State struct {
	Tokens int // positions so far
	layers []layerState
}

// layerState is the part of one layer, see [Operands].
type layerState struct {
	key, value []float64 // [Hkv, P, d], [Hkv, P, dv]
	level, low []float64 // [Hf, P]
	walk       []float64 // [Hf]
	keyShift   []float64 // [Hkv, d], the last unshifted key
	valueShift []float64 // [Hkv, dv]
}

// NewState returns the state before the first token.
func (d *Decoder) NewState() *State {
	s := &State{layers: make([]layerState, d.Config.Layers)}
	for n := range s.layers {
		s.layers[n] = layerState{
			walk:       make([]float64, d.fieldHeads()),
			keyShift:   make([]float64, d.Config.KeyHeads*d.Config.KeyDim),
			valueShift: make([]float64, d.Config.KeyHeads*d.Config.ValueDim),
		}
	}
	return s
}

// fieldHeads is the number of field heads the operator sees.
func (d *Decoder) fieldHeads() int {
	if d.Config.FieldKind == NoField {
		return 1
	}
	return d.Config.FieldHeads
}

// Forward runs the tokens that follow those in state, and returns their
// logits, [T, V]. The state is advanced; nil stands for a fresh one that is
// thrown away. After an error the state is not usable.
func (d *Decoder) Forward(state *State, ids []int) ([]float64, error) {
	c, w := &d.Config, &d.Weights
	if err := c.Check(); err != nil {
		return nil, err
	}
	if len(w.Layers) != c.Layers {
		return nil, fmt.Errorf("reference: weights of %d layers, want %d", len(w.Layers), c.Layers)
	}
	if state == nil {
		state = d.NewState()
	}
	act, err := c.Activation.Func()
	if err != nil {
		return nil, err
	}
	x := make([]float64, 0, len(ids)*c.Hidden) // [T, D], the residual stream
	for i, id := range ids {
		if id < 0 || id >= c.Vocab {
			return nil, fmt.Errorf("reference: token %d has id %d, want 0 to %d", i, id, c.Vocab-1)
		}
		x = append(x, w.Embedding[id*c.Hidden:(id+1)*c.Hidden]...)
	}
	for n := range w.Layers {
		l := &w.Layers[n]
		h := RMSNorm(x, l.AttnNorm, c.NormEps)
		a, err := d.attention(l, &state.layers[n], h, state.Tokens)
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", n, err)
		}
		add(x, a)
		m := RMSNorm(x, l.FeedNorm, c.NormEps)
		gate := Linear(m, l.FeedGate, l.FeedGateBias, c.Hidden, c.FeedForward)
		up := Linear(m, l.FeedUp, l.FeedUpBias, c.Hidden, c.FeedForward)
		add(x, Linear(Gate(act, gate, up), l.FeedDown, l.FeedDownBias, c.FeedForward, c.Hidden))
	}
	state.Tokens += len(ids)
	head := w.Head
	if head == nil {
		head = w.Embedding
	}
	return Linear(RMSNorm(x, w.Norm, c.NormEps), head, nil, c.Hidden, c.Vocab), nil
}

// attention returns the attention branch, [T, D], of one layer for the
// normalised input h, [T, D], whose first row is position start.
func (d *Decoder) attention(l *Layer, s *layerState, h []float64, start int) ([]float64, error) {
	c := &d.Config
	t := len(h) / c.Hidden
	q := Linear(h, l.Query, l.QueryBias, c.Hidden, c.Heads*c.KeyDim)      // [T, Hq*d]
	k := Linear(h, l.Key, l.KeyBias, c.Hidden, c.KeyHeads*c.KeyDim)       // [T, Hkv*d]
	v := Linear(h, l.Value, l.ValueBias, c.Hidden, c.KeyHeads*c.ValueDim) // [T, Hkv*dv]
	if c.KeyShift {
		k = Shift(k, Linear(h, l.KeyShift, nil, c.Hidden, c.KeyHeads), s.keyShift, nil)
	}
	if c.ValueShift {
		v = Shift(v, Linear(h, l.ValueShift, nil, c.Hidden, c.KeyHeads), s.valueShift, nil)
	}
	switch c.QKNorm {
	case NormHead:
		q = HeadNorm(q, l.QueryNorm, c.Heads, c.QKNormEps)
		k = HeadNorm(k, l.KeyNorm, c.KeyHeads, c.QKNormEps)
	case NormShared:
		q = RMSNorm(q, l.QueryNorm, c.QKNormEps)
		k = RMSNorm(k, l.KeyNorm, c.QKNormEps)
	}
	c.Rotary.Apply(q, c.Heads, c.KeyDim, start)
	c.Rotary.Apply(k, c.KeyHeads, c.KeyDim, start)
	if d.RoundKV != nil {
		for _, x := range [][]float64{k, v} {
			for i := range x {
				x[i] = d.RoundKV(x[i])
			}
		}
	}

	hf := d.fieldHeads()
	field, level, slope := make([]float64, hf*t), make([]float64, hf*t), make([]float64, hf)
	if c.FieldKind != NoField {
		source := FieldSource{
			Heads: hf, Width: c.Hidden,
			Kind: c.FieldKind, Activation: c.FieldActivation, Level: c.LevelKind,
			Weight: l.Field, Bias: l.FieldBias, LevelWeight: l.Level, LevelBias: l.LevelBias,
		}
		var err error
		if field, level, err = source.Evaluate(h, s.walk, nil); err != nil {
			return nil, err
		}
		for i := range slope {
			slope[i] = 1
		}
		if l.Slope != nil {
			slope = l.Slope
		}
	}
	r, err := Parallel(Operands{
		Batch: 1, QueryHeads: c.Heads, KeyHeads: c.KeyHeads, FieldHeads: hf,
		New: t, Past: start, KeyDim: c.KeyDim, ValueDim: c.ValueDim,
		Query: HeadsFirst(q, c.Heads, c.KeyDim),
		Key:   HeadsFirst(k, c.KeyHeads, c.KeyDim),
		Value: HeadsFirst(v, c.KeyHeads, c.ValueDim),
		Field: field, Level: level, Slope: slope, Scale: c.Scale, Interval: c.Interval,
		PastKey: s.key, PastValue: s.value, PastLevel: s.level, PastLow: s.low,
	})
	if err != nil {
		return nil, err
	}
	s.key, s.value, s.level, s.low = r.PresentKey, r.PresentValue, r.PresentLevel, r.PresentLow

	y := PositionsFirst(r.Output, c.Heads, c.ValueDim) // [T, Hq*dv]
	if c.OutputNorm {
		y = HeadNorm(y, l.OutputNorm, c.Heads, c.NormEps)
	}
	if c.OutputGate != "" {
		act, err := c.OutputGate.Func()
		if err != nil {
			return nil, err
		}
		y = Gate(act, Linear(h, l.OutputGate, l.OutputGateBias, c.Hidden, c.Heads*c.ValueDim), y)
	}
	return Linear(y, l.Output, l.OutputBias, c.Heads*c.ValueDim, c.Hidden), nil
}

// add adds b to a in place.
func add(a, b []float64) {
	for i := range a {
		a[i] += b[i]
	}
}

// NLL returns -log p(ids[t+1] | ids[..t]) in nats for t = 0..T-2, from the
// logits, [T, V], of ids.
func NLL(logits []float64, ids []int, vocab int) []float64 {
	var nll []float64
	for t := 0; t+1 < len(ids); t++ {
		row := logits[t*vocab : (t+1)*vocab]
		largest := math.Inf(-1)
		for _, l := range row {
			largest = math.Max(largest, l)
		}
		sum := 0.0
		for _, l := range row {
			sum += math.Exp(l - largest)
		}
		nll = append(nll, math.Log(sum)+largest-row[ids[t+1]])
	}
	return nll
}
