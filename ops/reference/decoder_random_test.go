package reference

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// fpaConfig is a decoder that uses most of what the public cases leave out:
// a signed walk, levels of their own, slopes, a scale, keys wider than values,
// a partial rotary embedding, fewer field heads than heads.
func fpaConfig() Config {
	return Config{
		Vocab: 50, Hidden: 24, FeedForward: 20, Layers: 2,
		Heads: 4, KeyHeads: 2, KeyDim: 6, ValueDim: 5, Scale: 0.3,
		NormEps: 1e-6, QKNorm: NormHead, QKNormEps: 1e-5,
		Rotary:   Rotary{Dim: 4, Base: 100},
		KeyShift: true, ValueShift: true, OutputNorm: true, OutputGate: SiLU, Activation: GELU,
		FieldHeads: 2, FieldKind: Walk, FieldActivation: Tanh, LevelKind: Relative, Interval: Inclusive,
	}
}

// randomTensors returns the tensors of fpaConfig, biases included.
func randomTensors(rng *rand.Rand) map[string][]float64 {
	c := fpaConfig()
	d := c.Hidden
	q, k, v, o := c.Heads*c.KeyDim, c.KeyHeads*c.KeyDim, c.KeyHeads*c.ValueDim, c.Heads*c.ValueDim
	sizes := map[string]int{
		"attn_norm.weight": d, "ffn_norm.weight": d,
		"attn_q.weight": q * d, "attn_q.bias": q, "attn_k.weight": k * d, "attn_k.bias": k, "attn_v.weight": v * d, "attn_v.bias": v,
		"attn_output.weight": d * o, "attn_output.bias": d, "attn_q_norm.weight": q, "attn_k_norm.weight": k,
		"attn_k_shift.weight": c.KeyHeads * d, "attn_v_shift.weight": c.KeyHeads * d,
		"attn_output_norm.weight": o, "attn_gate.weight": o * d, "attn_gate.bias": o,
		"attn_field.weight": c.FieldHeads * d, "attn_field.bias": c.FieldHeads,
		"attn_level.weight": c.FieldHeads * d, "attn_level.bias": c.FieldHeads, "attn_slope.weight": c.FieldHeads,
		"ffn_gate.weight": c.FeedForward * d, "ffn_gate.bias": c.FeedForward, "ffn_up.weight": c.FeedForward * d, "ffn_up.bias": c.FeedForward,
		"ffn_down.weight": d * c.FeedForward, "ffn_down.bias": d,
	}
	tensors := map[string][]float64{
		"token_embd.weight": normals(rng, c.Vocab*d, 1), "output_norm.weight": normals(rng, d, 1), "output.weight": normals(rng, c.Vocab*d, 0.3),
	}
	for _, layer := range []string{"blk.0.", "blk.1."} {
		for name, n := range sizes {
			x := normals(rng, n, 0.4)
			if strings.Contains(name, "norm") || strings.Contains(name, "slope") {
				for i := range x {
					x[i] = math.Abs(1 + x[i])
				}
			}
			tensors[layer+name] = x
		}
	}
	return tensors
}

func newDecoder(t *testing.T, c Config, tensors map[string][]float64) *Decoder {
	t.Helper()
	w, err := LoadWeights(c, func(name string) []float64 { return tensors[name] })
	if err != nil {
		t.Fatal(err)
	}
	return &Decoder{Config: c, Weights: w}
}

func forward(t *testing.T, d *Decoder, ids []int) []float64 {
	t.Helper()
	logits, err := d.Forward(nil, ids)
	if err != nil {
		t.Fatal(err)
	}
	return logits
}

// Any split of a sequence over calls gives the same logits, keys and values
// rounded or not.
func TestDecoderSplits(t *testing.T) {
	rng := rand.New(rand.NewPCG(51, 52))
	tensors := randomTensors(rng)
	ids := make([]int, 60)
	for i := range ids {
		ids[i] = rng.IntN(50)
	}
	changes := map[string]func(c *Config){
		"relative walk": func(c *Config) {},
		"exclusive":     func(c *Config) { c.Interval = Exclusive },
		"offset":        func(c *Config) { c.LevelKind = Offset },
		"absolute":      func(c *Config) { c.FieldKind, c.LevelKind = Direct, Absolute },
		"softmax":       func(c *Config) { c.FieldKind = NoField },
		"no norm":       func(c *Config) { c.QKNorm, c.OutputNorm, c.OutputGate = NormNone, false, Sigmoid },
		"forgetting":    func(c *Config) { c.FieldActivation, c.LevelKind = LogSigmoid, Tied },
	}
	seen := map[float64]string{}
	for name, change := range changes {
		c := fpaConfig()
		change(&c)
		d := newDecoder(t, c, tensors)
		for _, round := range []func(float64) float64{nil, func(x float64) float64 { return math.Round(x*64) / 64 }} {
			d.RoundKV = round
			whole := forward(t, d, ids)
			if other, ok := seen[whole[len(whole)-1]]; ok {
				t.Errorf("%s gives what %s gives", name, other)
			}
			seen[whole[len(whole)-1]] = name
			state := d.NewState()
			var parts []float64
			for from := 0; from < len(ids); {
				to := min(len(ids), from+rng.IntN(12))
				logits, err := d.Forward(state, ids[from:to])
				if err != nil {
					t.Fatal(err)
				}
				parts = append(parts, logits...)
				from = to
			}
			if diff := maxDiff(parts, whole); !(diff <= 1e-10) || state.Tokens != len(ids) {
				t.Errorf("%s: logits of %d tokens differ by %g", name, state.Tokens, diff)
			}
		}
	}
}

// Two ways to write one model give the same logits.
func TestDecoderEquivalents(t *testing.T) {
	rng := rand.New(rand.NewPCG(53, 54))
	ids := make([]int, 40)
	for i := range ids {
		ids[i] = rng.IntN(50)
	}
	scaled := func(x []float64, by float64) []float64 {
		y := make([]float64, len(x))
		for i := range x {
			y[i] = by * x[i]
		}
		return y
	}
	layers := []string{"blk.0.", "blk.1."}
	for _, c := range []struct {
		name           string
		a, b           func(c *Config)
		tensorsB       func(tensors map[string][]float64)
		differentModel bool // the reverse: the change must be felt
	}{
		{name: "log sigmoid is negated softplus of the negated input",
			a: func(c *Config) { c.FieldActivation = LogSigmoid },
			b: func(c *Config) { c.FieldActivation = NegSoftplus },
			tensorsB: func(x map[string][]float64) {
				for _, l := range layers {
					x[l+"attn_field.weight"] = scaled(x[l+"attn_field.weight"], -1)
					x[l+"attn_field.bias"] = scaled(x[l+"attn_field.bias"], -1)
				}
			}},
		{name: "a relative level without weight is an offset",
			a: func(c *Config) { c.LevelKind = Offset },
			b: func(c *Config) {},
			tensorsB: func(x map[string][]float64) {
				for _, l := range layers {
					clear(x[l+"attn_level.weight"])
				}
			}},
		{name: "an offset of zero is tied",
			a: func(c *Config) { c.LevelKind = Tied },
			b: func(c *Config) { c.LevelKind = Offset },
			tensorsB: func(x map[string][]float64) {
				for _, l := range layers {
					clear(x[l+"attn_level.bias"])
				}
			}},
		{name: "slope 0 is no field",
			a: func(c *Config) { c.FieldKind = NoField },
			b: func(c *Config) {},
			tensorsB: func(x map[string][]float64) {
				for _, l := range layers {
					clear(x[l+"attn_slope.weight"])
				}
			}},
		{name: "half the walk at twice the slope",
			a: func(c *Config) { c.FieldActivation = Identity },
			b: func(c *Config) { c.FieldActivation = Identity },
			tensorsB: func(x map[string][]float64) {
				for _, l := range layers {
					for _, name := range []string{"attn_field.weight", "attn_field.bias", "attn_level.weight", "attn_level.bias"} {
						x[l+name] = scaled(x[l+name], 0.5)
					}
					x[l+"attn_slope.weight"] = scaled(x[l+"attn_slope.weight"], 2)
				}
			}},
		{name: "the slope is felt", differentModel: true,
			a: func(c *Config) {}, b: func(c *Config) {},
			tensorsB: func(x map[string][]float64) { x["blk.1.attn_slope.weight"][1] *= 1.5 }},
		{name: "the level is felt", differentModel: true,
			a: func(c *Config) {}, b: func(c *Config) {},
			tensorsB: func(x map[string][]float64) { x["blk.1.attn_level.bias"][0] += 0.5 }},
		{name: "the interval is felt", differentModel: true,
			a: func(c *Config) {}, b: func(c *Config) { c.Interval = Exclusive }, tensorsB: func(map[string][]float64) {}},
	} {
		tensors := randomTensors(rng)
		configA, configB := fpaConfig(), fpaConfig()
		c.a(&configA)
		c.b(&configB)
		a := forward(t, newDecoder(t, configA, tensors), ids)
		c.tensorsB(tensors)
		b := forward(t, newDecoder(t, configB, tensors), ids)
		diff := maxDiff(a, b)
		if c.differentModel && !(diff > 1e-3) || !c.differentModel && !(diff <= 1e-9) {
			t.Errorf("%s: logits differ by %g", c.name, diff)
		}
	}
}

func TestDecoderRefuses(t *testing.T) {
	rng := rand.New(rand.NewPCG(55, 56))
	tensors := randomTensors(rng)
	d := newDecoder(t, fpaConfig(), tensors)
	for _, id := range []int{-1, 50} {
		if _, err := d.Forward(nil, []int{3, id}); err == nil {
			t.Errorf("id %d gives no error", id)
		}
	}
	if logits, err := d.Forward(nil, nil); err != nil || len(logits) != 0 {
		t.Errorf("no tokens: %d logits, %v", len(logits), err)
	}
	for name, spoil := range map[string]func(c *Config){
		"heads":               func(c *Config) { c.KeyHeads = 3 },
		"field heads":         func(c *Config) { c.FieldHeads = 3 },
		"no layers":           func(c *Config) { c.Layers = 0 },
		"rotary width":        func(c *Config) { c.Rotary.Dim = 8 },
		"rotary factors":      func(c *Config) { c.Rotary.Factors = []float64{1} },
		"norm kind":           func(c *Config) { c.QKNorm = "layer" },
		"activation":          func(c *Config) { c.Activation = "powlu" },
		"gate":                func(c *Config) { c.OutputGate = "powlu" },
		"walk with absolutes": func(c *Config) { c.LevelKind = Absolute },
		"wrong tensor sizes":  func(c *Config) { c.KeyDim = 4 },
		"missing layer":       func(c *Config) { c.Layers = 3 },
	} {
		c := fpaConfig()
		spoil(&c)
		w, err := LoadWeights(c, func(name string) []float64 { return tensors[name] })
		if err == nil {
			_, err = (&Decoder{Config: c, Weights: w}).Forward(nil, []int{1, 2})
		}
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
