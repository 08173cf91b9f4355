// Package passkey_test holds the trained model of this folder against its
// goldens, through every form it can be run in.
package passkey_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/convert"
	"github.com/firstpassage/fpa/runtime/cpu"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/generate"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/runtime/sample"
	"github.com/firstpassage/fpa/runtime/tokenizer"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// goldenLengths are the lengths of the sequences in golden.safetensors.
var goldenLengths = []int{1, 7, 64, 300, 1024, 2048}

// golden is one sequence with the logits of some positions, from float64.
type golden struct {
	ids    []int32
	pos    map[int]bool
	logits []float32 // [positions, V]
}

func readGoldens(t *testing.T) []golden {
	t.Helper()
	f, err := safetensors.Open("golden.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ints := func(name string) []int32 {
		x, ok := f.Lookup(name)
		if !ok || x.DType != quant.I32 {
			t.Fatalf("golden.safetensors has no I32 tensor %s", name)
		}
		v := make([]int32, len(x.Data)/4)
		for i := range v {
			v[i] = int32(binary.LittleEndian.Uint32(x.Data[4*i:]))
		}
		return v
	}
	var out []golden
	for _, n := range goldenLengths {
		g := golden{ids: ints(fmt.Sprintf("ids.%d", n)), pos: map[int]bool{}}
		for _, p := range ints(fmt.Sprintf("pos.%d", n)) {
			g.pos[int(p)] = true
		}
		x, ok := f.Lookup(fmt.Sprintf("logits.%d", n))
		if !ok || len(g.ids) != n {
			t.Fatalf("golden.safetensors lacks the sequence of length %d", n)
		}
		g.logits = make([]float32, len(x.Data)/4)
		if err := quant.Decode(g.logits, x.DType, x.Data); err != nil {
			t.Fatal(err)
		}
		out = append(out, g)
	}
	return out
}

// open opens a model that is closed at the end of the test.
func open(t testing.TB, path string) (*model.File, *model.Model) {
	t.Helper()
	f, err := model.Open(path, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	m, err := f.Build()
	if err != nil {
		t.Fatal(err)
	}
	return f, m
}

// converted is the model of this folder as a GGUF file of a type.
func converted(t testing.TB, typ quant.DType) (*model.File, *model.Model) {
	t.Helper()
	src, _ := open(t, ".")
	out := filepath.Join(t.TempDir(), "passkey.gguf")
	if _, err := convert.ToGGUF(context.Background(), src, convert.Options{Output: out, Type: typ, Version: "test"}); err != nil {
		t.Fatal(err)
	}
	return open(t, out)
}

// logits feeds ids in calls of so many tokens and returns the logits of the
// wanted positions.
func logits(t testing.TB, m *model.Model, typ quant.DType, p cache.Policy, ids []int32, calls int, want func(int) bool) []float32 {
	t.Helper()
	e, err := cpu.New(m, cpu.Options{Chunk: min(calls, 512)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s, err := e.NewSession(typ, p)
	if err != nil {
		t.Fatal(err)
	}
	var out []float32
	for len(ids) > 0 {
		n := min(calls, len(ids))
		err := s.Feed(ids[:n], want, func(_ int, l []float32) error {
			out = append(out, l...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		ids = ids[n:]
	}
	return out
}

func maxDiff[A, B float32 | float64](a []A, b []B) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	worst := 0.0
	for i := range a {
		if d := math.Abs(float64(a[i]) - float64(b[i])); !(d <= worst) {
			worst = d
		}
	}
	return worst
}

// TestGoldens holds checkpoint, F32 and F16 file against the goldens, with the
// cache in float32 and in its default type.
func TestGoldens(t *testing.T) {
	goldens := readGoldens(t)
	_, checkpoint := open(t, ".")
	_, f32 := converted(t, quant.F32)
	_, f16 := converted(t, quant.F16)
	for _, c := range []struct {
		name    string
		m       *model.Model
		cache   quant.DType
		mode    cache.Mode
		allowed float64
	}{
		{"checkpoint, f32 cache", checkpoint, quant.F32, cache.Off, 2e-4},
		{"f32 file, f32 cache", f32, quant.F32, cache.Off, 2e-4},
		{"f16 file, f32 cache", f16, quant.F32, cache.Off, 2e-2},
		{"f32 file, f16 cache", f32, quant.F16, cache.Off, 2e-2},
		{"f16 file, f16 cache, exact", f16, quant.F16, cache.Exact, 2e-2},
	} {
		worst := 0.0
		for _, g := range goldens {
			got := logits(t, c.m, c.cache, cache.Policy{Mode: c.mode}, g.ids, 512, func(p int) bool { return g.pos[p] })
			worst = max(worst, maxDiff(got, g.logits))
		}
		t.Logf("%s: largest difference of a logit %.2e", c.name, worst)
		if !(worst <= c.allowed) {
			t.Errorf("%s: logits differ by %g from the goldens, allowed are %g", c.name, worst, c.allowed)
		}
	}
}

// TestRoundedWeights compares the F16 file with a float64 run on the same
// rounded weights.
func TestRoundedWeights(t *testing.T) {
	_, m := converted(t, quant.F16)
	d := modeltest.Reference(m)
	for _, g := range readGoldens(t)[:4] {
		ids := make([]int, len(g.ids))
		for i, id := range g.ids {
			ids[i] = int(id)
		}
		want, err := d.Forward(nil, ids)
		if err != nil {
			t.Fatal(err)
		}
		got := logits(t, m, quant.F32, cache.Policy{Mode: cache.Off}, g.ids, 512, func(int) bool { return true })
		if diff := maxDiff(got, want); !(diff <= 2e-4) {
			t.Errorf("%d tokens: logits differ by %g from float64 on the same weights", len(ids), diff)
		}
	}
}

// prompt is one of the prompts of this folder.
type prompt struct {
	Answer string `json:"answer"`
	Tokens int    `json:"tokens"`
	Factor int    `json:"factor"`
	name   string
	text   string
}

func readPrompts(t testing.TB) []prompt {
	t.Helper()
	data, err := os.ReadFile("prompts.json")
	if err != nil {
		t.Fatal(err)
	}
	var named map[string]prompt
	if err := json.Unmarshal(data, &named); err != nil {
		t.Fatal(err)
	}
	var out []prompt
	for name, p := range named {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		p.name, p.text = name, string(text)
		out = append(out, p)
	}
	return out
}

// TestAnswers asks the prompts of this folder under every mode of the cache, in
// several chunkings. Every one must be answered, with the same text.
func TestAnswers(t *testing.T) {
	f, m := converted(t, quant.F16)
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range readPrompts(t) {
		ids, err := tok.Encode(p.text, tokenizer.EncodeOptions{AddSpecial: true, ParseSpecial: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(ids) != p.Tokens {
			t.Errorf("%s has %d tokens, prompts.json says %d", p.name, len(ids), p.Tokens)
		}
		for _, c := range []struct {
			policy cache.Policy
			typ    quant.DType
			chunk  int
		}{
			{cache.Policy{Mode: cache.Off}, quant.F16, 512},
			{cache.Policy{Mode: cache.Exact}, quant.F16, 512},
			{cache.Policy{Mode: cache.Exact}, quant.F32, 7},
			{cache.Policy{Mode: cache.Bounded, Eps: 1e-3}, quant.F16, 1},
			{cache.Policy{Mode: cache.Exact}, quant.Q8_0, 100},
			{cache.Policy{Mode: cache.Measured, Eps: 1e-3}, quant.F16, 512},
			{cache.Policy{Mode: cache.Budget, Keep: cache.Keep{Share: 0.1}}, quant.F16, 512},
			{cache.Policy{Mode: cache.Budget, Keep: cache.Keep{Bytes: 100_000}}, quant.F16, 512},
		} {
			if p.Factor > 16 && c.policy.Mode == cache.Off && os.Getenv("FPA_LONG_TESTS") == "" {
				continue // attention over every key of 16,384 tokens takes half a minute
			}
			text, reason := ask(t, m, tok, f.EndTokens(), ids, c.policy, c.typ, c.chunk)
			if text != p.Answer || reason != generate.ByEnd {
				t.Errorf("%s, cache %s %s, chunks of %d: answer %q ended by %s, expected %q and the end token", p.name, c.policy.Mode, c.typ, c.chunk, text, reason, p.Answer)
			}
		}
	}
}

func ask(t testing.TB, m *model.Model, tok *tokenizer.Tokenizer, end []int32, ids []int32, p cache.Policy, typ quant.DType, chunk int) (string, generate.Reason) {
	t.Helper()
	e, err := cpu.New(m, cpu.Options{Chunk: chunk})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s, err := e.NewSession(typ, p)
	if err != nil {
		t.Fatal(err)
	}
	params := sample.Defaults()
	params.Temp = 0
	res, err := generate.Run(context.Background(), s, tok, sample.New(params, 0), ids, generate.Options{Predict: 16, End: end}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return res.Text, res.Reason
}

// TestChunking feeds a text of 16 times the training length in chunks of every
// kind and expects the same logits: to 1e-4 with a float32 cache that keeps all,
// and the same best tokens with any cache.
func TestChunking(t *testing.T) {
	f, m := converted(t, quant.F16)
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("prompt-64x.txt")
	if err != nil {
		t.Fatal(err)
	}
	ids, err := tok.Encode(string(text), tokenizer.EncodeOptions{AddSpecial: true})
	if err != nil {
		t.Fatal(err)
	}
	ids = ids[:16*m.ContextLength]
	at := map[int]bool{}
	for n := m.ContextLength; n <= len(ids); n *= 2 {
		at[n-1], at[n-100] = true, true
	}
	want := func(p int) bool { return at[p] }
	whole := logits(t, m, quant.F32, cache.Policy{Mode: cache.Off}, ids, 512, want)
	for _, calls := range []int{1, 7, 512, len(ids)} {
		got := logits(t, m, quant.F32, cache.Policy{Mode: cache.Off}, ids, calls, want)
		if d := maxDiff(got, whole); !(d <= 1e-4) {
			t.Errorf("chunks of %d: logits differ by %g", calls, d)
		}
		for _, mode := range []cache.Mode{cache.Exact, cache.Bounded} {
			got := logits(t, m, quant.F16, cache.Policy{Mode: mode, Eps: 1e-3}, ids, calls, want)
			for i := 0; i < len(whole); i += m.VocabSize {
				if a, b := best(whole[i:i+m.VocabSize]), best(got[i:i+m.VocabSize]); a != b {
					t.Errorf("chunks of %d, cache %s: best token %d, uncompressed %d", calls, mode, b, a)
				}
			}
		}
	}
}

// TestAudit asks the prompt of 8 times the training length with dropped keys kept
// aside: what was dropped must weigh no more than each mode promises, and the cache
// must be small. Logits move by what another order of float32 sums does, to which
// this model is sensitive.
func TestAudit(t *testing.T) {
	f, m := converted(t, quant.F16)
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("prompt-8x.txt")
	if err != nil {
		t.Fatal(err)
	}
	ids, err := tok.Encode(string(text), tokenizer.EncodeOptions{AddSpecial: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		policy      cache.Policy
		typ         quant.DType
		eps, logits float64
	}{
		{cache.Policy{Mode: cache.Exact}, quant.F32, cache.ExactEps, 1e-3},
		{cache.Policy{Mode: cache.Exact}, quant.F16, cache.ExactEps, 1e-3},
		{cache.Policy{Mode: cache.Exact}, quant.Q8_0, cache.ExactEps, 1e-3},
		{cache.Policy{Mode: cache.Bounded, Eps: 1e-3}, quant.F16, 1e-3, 1e-2},
		{cache.Policy{Mode: cache.Measured, Eps: 1e-3}, quant.F16, 1e-3, 1e-2},
	} {
		e, err := cpu.New(m, cpu.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		c.policy.Audit = true
		s, err := e.NewSession(c.typ, c.policy)
		if err != nil {
			t.Fatal(err)
		}
		base, err := e.NewSession(c.typ, cache.Policy{Mode: cache.Off, Audit: true})
		if err != nil {
			t.Fatal(err)
		}
		a := engine.NewAudit(s, base)
		if err := a.Feed(ids, nil, func(int, []float32) error { return nil }); err != nil {
			t.Fatal(err)
		}
		st := a.CacheStats()
		t.Logf("%s %s: kept %.4f, largest weight removed %.2e, largest difference of a logit %.2e",
			c.policy.Mode, c.typ, st.Kept, st.Audit.LargestWeight, st.Audit.LargestLogitDifference)
		if st.Kept > 0.021 || st.Audit.LargestWeight > c.eps || st.Audit.LargestLogitDifference > c.logits || st.Audit.Positions != len(ids) {
			t.Errorf("%s %s: kept %g, %+v; allowed are a weight of %g and a difference of %g", c.policy.Mode, c.typ, st.Kept, *st.Audit, c.eps, c.logits)
		}
	}
}

func best(l []float32) int {
	top := 0
	for i := range l {
		if l[i] > l[top] {
			top = i
		}
	}
	return top
}
