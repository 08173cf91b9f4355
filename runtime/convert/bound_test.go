package convert

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/ops/reference"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/cpu"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// layerInput is what the projections of a layer see, [tokens, D]: the output of a
// decoder that ends before that layer, with its norm for the final one and the
// identity for the output matrix.
func layerInput(t *testing.T, m *model.Model, layer int, ids []int32) []float64 {
	t.Helper()
	d := modeltest.Reference(m)
	d.Weights.Norm = d.Weights.Layers[layer].AttnNorm
	n := d.Config.Hidden
	if layer == 0 {
		var x []float64
		for _, id := range ids {
			x = append(x, d.Weights.Embedding[int(id)*n:(int(id)+1)*n]...)
		}
		return reference.RMSNorm(x, d.Weights.Norm, d.Config.NormEps)
	}
	d.Weights.Layers, d.Config.Layers = d.Weights.Layers[:layer], layer
	d.Config.Vocab = max(d.Config.Vocab, n)
	d.Weights.Head = make([]float64, d.Config.Vocab*n)
	for i := range n {
		d.Weights.Head[i*n+i] = 1
	}
	wide := make([]int, len(ids))
	for i, id := range ids {
		wide[i] = int(id)
	}
	rows, err := d.Forward(nil, wide)
	if err != nil {
		t.Fatal(err)
	}
	var h []float64
	for i := range ids {
		h = append(h, rows[i*d.Config.Vocab:i*d.Config.Vocab+n]...)
	}
	return h
}

// largestLogits are the largest |Scale q·k| of every query head of a layer on ids.
func largestLogits(t *testing.T, m *model.Model, layer int, ids []int32) []float64 {
	t.Helper()
	h, d := layerInput(t, m, layer, ids), modeltest.Reference(m)
	c, l := d.Config, &d.Weights.Layers[layer]
	q := reference.Linear(h, l.Query, l.QueryBias, c.Hidden, c.Heads*c.KeyDim)
	k := reference.Linear(h, l.Key, l.KeyBias, c.Hidden, c.KeyHeads*c.KeyDim)
	if c.KeyShift {
		k = reference.Shift(k, reference.Linear(h, l.KeyShift, nil, c.Hidden, c.KeyHeads), make([]float64, c.KeyHeads*c.KeyDim), nil)
	}
	if c.QKNorm != reference.NormNone {
		q, k = reference.HeadNorm(q, l.QueryNorm, c.Heads, c.QKNormEps), reference.HeadNorm(k, l.KeyNorm, c.KeyHeads, c.QKNormEps)
	}
	c.Rotary.Apply(q, c.Heads, c.KeyDim, 0)
	c.Rotary.Apply(k, c.KeyHeads, c.KeyDim, 0)
	most := make([]float64, c.Heads)
	for i := range ids {
		for j := range i + 1 {
			for head := range c.Heads {
				kv, sum := head*c.KeyHeads/c.Heads, 0.0
				for e := range c.KeyDim {
					key := float64(quant.F16ToF32(quant.F32ToF16(float32(k[(j*c.KeyHeads+kv)*c.KeyDim+e]))))
					sum += q[(i*c.Heads+head)*c.KeyDim+e] * key
				}
				most[head] = max(most[head], math.Abs(c.Scale*sum))
			}
		}
	}
	return most
}

// TestFoxBounds measures the logits of every forgetting-attention case on its ids
// against the bounds that its file stores.
func TestFoxBounds(t *testing.T) {
	cases := 0
	for _, dir := range caseFolders(t, "fox") {
		golden, err := filepath.Glob(filepath.Join(dir, "golden_*.safetensors"))
		if err != nil || len(golden) == 0 {
			continue // a file beside the cases
		}
		folder := filepath.Join(dir, "f32")
		if _, err := os.Stat(folder); err != nil {
			folder = filepath.Join(dir, "bf16")
		}
		ids := openGolden(t, golden[0]).ints("ids.64")
		cases++
		src, _ := open(t, folder)
		for _, typ := range []quant.DType{quant.F16, quant.Q8_0, quant.Q4_K} {
			_, m := converted(t, src, typ)
			if len(m.LogitBound) != m.Blocks*m.Heads {
				t.Fatalf("%s: the %s file has %d bounds, expected %d", dir, typ, len(m.LogitBound), m.Blocks*m.Heads)
			}
			closest := 0.0
			for layer := range m.Layers {
				for h, logit := range largestLogits(t, m, layer, ids) {
					u := float64(m.LogitBound[layer*m.Heads+h])
					closest = max(closest, logit/u)
					if !(logit <= u) || logit == 0 {
						t.Errorf("%s, %s, layer %d, head %d: a logit of %g, the bound is %g", dir, typ, layer, h, logit, u)
					}
				}
			}
			t.Logf("%s, %s: the largest logit is %.2f of its bound", filepath.Base(dir), typ, closest)
		}
	}
	if cases == 0 {
		t.Error("no cases")
	}
}

// TestDropWithoutQKNorm runs a forgetting-attention model without QK-norm for longer
// than its bounds ask for: keys are dropped, and the logits stay what they were.
func TestDropWithoutQKNorm(t *testing.T) {
	p := modeltest.Random(modeltest.Config(), 1, true)
	c := &p.Config
	c.QKNorm, c.FieldActivation, c.Level = model.NormNone, model.LogSigmoid, model.LevelTied
	p.Tensors = slices.DeleteFunc(p.Tensors, func(x model.Tensor) bool {
		return strings.Contains(x.Name, "_q_norm") || strings.Contains(x.Name, "_k_norm") || strings.Contains(x.Name, "attn_level")
	})
	_, m := converted(t, asFile(t, p), quant.F16)
	s := SummariseBounds(m)
	if s == nil || s.From != FromWeights || s.TokensToDrop == nil || *s.TokensToDrop > 100 {
		t.Fatalf("bounds: %+v, expected some that ask for less than 100 tokens", s)
	}
	ids := modeltest.Tokens(400, m.VocabSize, 3)
	run := func(mode cache.Mode) ([]float32, cache.Stats) {
		e, err := cpu.New(m, cpu.Options{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		session, err := e.NewSession(quant.F16, cache.Policy{Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		var last []float32
		if err := session.Feed(ids, nil, func(_ int, l []float32) error { last = slices.Clone(l); return nil }); err != nil {
			t.Fatal(err)
		}
		return last, session.CacheStats()
	}
	want, _ := run(cache.Off)
	got, stats := run(cache.Exact)
	for i := range want {
		if d := math.Abs(float64(got[i] - want[i])); !(d <= 1e-5) {
			t.Fatalf("logit %d differs by %g", i, d)
		}
	}
	if stats.Kept > 0.5 {
		t.Errorf("%.2f of the keys are kept", stats.Kept)
	}
	t.Logf("%v\n%.3f kept after %d tokens", s, stats.Kept, len(ids))
}

// TestBoundsAsWritten stores the bounds of the rounded tensors, not of the source's.
func TestBoundsAsWritten(t *testing.T) {
	p := modeltest.Random(modeltest.Config(), 1, true)
	p.Config.QKNorm = model.NormNone
	p.Config.Hidden = 64
	p = modeltest.Random(p.Config, 1, true)
	src := asFile(t, p)
	original, err := src.Build()
	if err != nil {
		t.Fatal(err)
	}
	var before []float32
	for _, typ := range []quant.DType{quant.F32, quant.F16, quant.Q8_0} {
		f, r := written(t, src, Options{Type: typ, NoCheck: true})
		got, _, err := f.Floats(gguf.ArchKey(gguf.ArchFPA, gguf.LogitBound))
		if err != nil {
			t.Fatal(err)
		}
		parts, err := model.FromGGUF(f)
		if err != nil {
			t.Fatal(err)
		}
		m, err := model.Build(parts.Config, parts.Tensors)
		if err != nil {
			t.Fatal(err)
		}
		if want := m.LogitBounds(quant.F16); !slices.Equal(got, want) || !slices.Equal(r.LogitBound, want) {
			t.Errorf("%s: the file has the bounds %v, the report %v, expected %v", typ, got, r.LogitBound, want)
		}
		if typ == quant.F32 != slices.Equal(got, original.LogitBounds(quant.F16)) {
			t.Errorf("%s: the bounds of the source are %v, those of the file %v", typ, original.LogitBounds(quant.F16), got)
		}
		if slices.Equal(got, before) {
			t.Errorf("%s has the bounds of another type", typ)
		}
		before = got
		if r.Bounds == nil || r.Bounds.Smallest != slices.Min(got) || r.Bounds.Largest != slices.Max(got) || r.Bounds.Groups != 8 {
			t.Errorf("%s: summary %+v of %v", typ, r.Bounds, got)
		}
	}
}

// TestNoBounds writes models without a bound: the file says nothing of any, and a
// note says why.
func TestNoBounds(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*model.Config)
		scale  float32 // of the key projections
		note   string
	}{
		"softmax":   {func(c *model.Config) { c.Field, c.FieldHeads = model.FieldNone, 0 }, 1, ""},
		"inclusive": {func(c *model.Config) { c.Interval = model.Inclusive }, 1, "see itself"},
		"epsilon":   {func(c *model.Config) { c.QKNormEps = 0 }, 1, "epsilon"},
		"overflow":  {func(c *model.Config) { c.QKNorm = model.NormNone }, 1e5, "overflow"},
	} {
		config := modeltest.Config()
		c.change(&config)
		p := modeltest.Random(config, 1, true)
		for _, x := range p.Tensors {
			if strings.HasSuffix(x.Name, "attn_k.weight") {
				for i := 0; i < len(x.Data); i += 4 {
					v := math.Float32frombits(binary.LittleEndian.Uint32(x.Data[i:]))
					binary.LittleEndian.PutUint32(x.Data[i:], math.Float32bits(v*c.scale))
				}
			}
		}
		f, r := written(t, asFile(t, p), Options{Type: quant.F16, NoCheck: true})
		if _, found, err := f.Floats(gguf.ArchKey(gguf.ArchFPA, gguf.LogitBound)); found || err != nil {
			t.Errorf("%s: the file has bounds (%v)", name, err)
		}
		notes := strings.Join(r.Notes, "\n")
		if r.Bounds != nil || r.LogitBound != nil || strings.Contains(notes, "keep every key") != (c.note != "") || !strings.Contains(notes, c.note) {
			t.Errorf("%s: summary %+v, notes %q, expected %q", name, r.Bounds, notes, c.note)
		}
	}
}

// TestTokensToFall takes heads whose fall is known.
func TestTokensToFall(t *testing.T) {
	// One layer, one head, no input to the field but its bias.
	build := func(field, level float32, slope float32, change func(*model.Config)) *model.Model {
		c := modeltest.Config()
		c.Blocks, c.Heads, c.KVHeads, c.FieldHeads, c.ContextLength = 1, 1, 1, 1, 1000
		change(&c)
		p := modeltest.Random(c, 1, true)
		for _, x := range p.Tensors {
			v := map[string]float32{"blk.0.attn_field.bias": field, "blk.0.attn_level.bias": level, "blk.0.attn_slope.weight": slope}
			if b, ok := v[x.Name]; ok {
				binary.LittleEndian.PutUint32(x.Data, math.Float32bits(b))
			}
			if x.Name == "blk.0.attn_field.weight" || x.Name == "blk.0.attn_level.weight" {
				clear(x.Data)
			}
		}
		m, err := model.Build(c, p.Tensors)
		if err != nil {
			t.Fatal(err)
		}
		m.LogitBound = []float32{10}
		return m
	}
	need := 20 + math.Log(4*(1<<25))
	kind := func(a model.Activation, l model.LevelKind) func(*model.Config) {
		return func(c *model.Config) { c.FieldActivation, c.Level = a, l }
	}
	direct := func(l model.LevelKind) func(*model.Config) {
		return func(c *model.Config) { c.Field, c.FieldActivation, c.Level = model.FieldDirect, model.Tanh, l }
	}
	never := math.Inf(1)
	for name, c := range map[string]struct {
		m    *model.Model
		want float64
	}{
		"forgetting":      {build(2, 0, 1, kind(model.LogSigmoid, model.LevelTied)), need / math.Log1p(math.Exp(-2))},
		"twice the slope": {build(2, 0, 2, kind(model.LogSigmoid, model.LevelTied)), need / 2 / math.Log1p(math.Exp(-2))},
		"softplus":        {build(2, 0, 1, kind(model.NegSoftplus, model.LevelTied)), need / math.Log1p(math.Exp(2))},
		"tanh":            {build(-0.5, 0, 1, kind(model.Tanh, model.LevelTied)), need / math.Tanh(0.5)},
		"rising":          {build(0.5, 0, 1, kind(model.Identity, model.LevelTied)), never},
		"softmax head":    {build(-1, 0, 0, kind(model.Identity, model.LevelTied)), never},
		"offset":          {build(-1, 8, 1, kind(model.Identity, model.LevelOffset)), need - 8},
		"relative":        {build(-1, 8, 1, kind(model.Identity, model.LevelRelative)), need - 8},
		"high level":      {build(0, 1e6, 1, kind(model.Identity, model.LevelRelative)), 1},
		"direct, tied":    {build(0, 0, 10, direct(model.LevelTied)), never},
		"direct, high":    {build(0, 4, 10, direct(model.LevelAbsolute)), 1},
		"direct, low":     {build(0, 3, 10, direct(model.LevelAbsolute)), never},
	} {
		s := SummariseBounds(c.m)
		got := never
		if s.TokensToDrop != nil {
			got = *s.TokensToDrop
		}
		if want := math.Ceil(c.want); !(math.Abs(got-want) <= 1) && got != want {
			t.Errorf("%s: %g tokens, expected %g", name, got, want)
		}
		if out := c.want > 1000; (s.OutOfReach == 1) != out || strings.Contains(s.String(), "out of reach") != out {
			t.Errorf("%s: %d groups out of reach, said as %q", name, s.OutOfReach, s)
		}
	}
	// A field that follows its input: the mean of max(0, -x) of a normal x is
	// deviation/sqrt(2 pi).
	m := build(0, 0, 1, kind(model.Identity, model.LevelTied))
	for i := range m.Hidden {
		binary.LittleEndian.PutUint32(m.Layers[0].Field.W.Data[4*i:], math.Float32bits(0.25/m.Layers[0].AttnNorm[i]))
	}
	want := need / (0.25 * math.Sqrt(float64(m.Hidden)) / math.Sqrt(2*math.Pi))
	if s := SummariseBounds(m); math.Abs(*s.TokensToDrop/want-1) > 0.02 {
		t.Errorf("%g tokens, expected %g", *s.TokensToDrop, want)
	}
}
