package passkey_test

import (
	"context"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/cpu"
	"github.com/firstpassage/fpa/runtime/generate"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/runtime/sample"
	"github.com/firstpassage/fpa/runtime/tokenizer"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// TestLongRun runs a context of 65,536 tokens (a million with FPA_LONG_TESTS) and
// asks for a key that stands in the last 2,040: it must be found, the memory must
// stay flat after the first 8,192, and the fields of the first layer, which depend
// on each token alone, must be those of a float64 sum.
func TestLongRun(t *testing.T) {
	tokens := 65_536
	if os.Getenv("FPA_LONG_TESTS") != "" {
		tokens = 1_000_000
	}
	f, m := converted(t, quant.F16)
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	encode := func(text string, special bool) []int32 {
		ids, err := tok.Encode(text, tokenizer.EncodeOptions{AddSpecial: special})
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	// The story without its keys and numbers, again and again.
	var filler strings.Builder
	for _, sentence := range strings.SplitAfter(read("prompt-64x.txt"), ". ") {
		if !strings.ContainsAny(sentence, "0123456789?") {
			filler.WriteString(sentence)
		}
	}
	story, question := encode(filler.String(), false), encode(" "+read("prompt-8x.txt"), false)
	ids := encode("", true)
	for len(ids) < tokens-len(question) {
		ids = append(ids, story[:min(len(story), tokens-len(question)-len(ids))]...)
	}
	ids = append(ids, question...)

	e, err := cpu.New(m, cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	session, err := e.NewSession(quant.F16, cache.Policy{Mode: cache.Exact})
	if err != nil {
		t.Fatal(err)
	}
	fields := newFieldCheck(m, ids)
	session.(*cpu.Session).SetProbe(fields.look)

	const first, step = 8192, 512
	var early, most int64
	var earlyHeap, mostHeap uint64
	for at := 0; at+len(question) < len(ids); at += step {
		if err := session.Feed(ids[at:min(at+step, len(ids)-len(question))], nil, func(int, []float32) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if at/step%16 != 0 {
			continue
		}
		bytes := session.CacheStats().BytesAllocated
		runtime.GC()
		var mem runtime.MemStats
		runtime.ReadMemStats(&mem)
		if at <= first {
			early, earlyHeap = max(early, bytes), max(earlyHeap, mem.HeapAlloc)
		}
		most, mostHeap = max(most, bytes), max(mostHeap, mem.HeapAlloc)
	}
	want := map[string]string{}
	for _, p := range readPrompts(t) {
		want[p.name] = p.Answer
	}
	params := sample.Defaults()
	params.Temp = 0
	res, err := generate.Run(context.Background(), session, tok, sample.New(params, 0), question, generate.Options{Predict: 16, End: f.EndTokens()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.Text != want["prompt-8x.txt"] || res.Reason != generate.ByEnd {
		t.Errorf("after %d tokens the answer is %q ended by %s, expected %q", session.Len(), res.Text, res.Reason, want["prompt-8x.txt"])
	}
	s := session.CacheStats()
	t.Logf("%d tokens: kept %.2e, cache %d bytes live, %d allocated after %d tokens, %d at most; heap %d and %d; fields within %.1e of their span of %.0f",
		session.Len(), s.Kept, s.BytesLive, early, first, most, earlyHeap, mostHeap, fields.worst, fields.span())
	if most > 2*early || mostHeap > earlyHeap+4<<20 {
		t.Errorf("memory grows: the cache from %d to %d bytes, the heap from %d to %d", early, most, earlyHeap, mostHeap)
	}
	if !(fields.worst < 1e-4) || fields.checked < tokens {
		t.Errorf("%d fields differ by %g of their span", fields.checked, fields.worst)
	}
}

// fieldCheck sums the increments of the first layer in float64, with compensation,
// from the model's weights alone.
type fieldCheck struct {
	ids       []int32
	increment [][]float64 // [token id][head]
	sum, lost []float64
	low, high []float64
	worst     float64 // largest difference, relative to the span so far
	checked   int
}

func newFieldCheck(m *model.Model, ids []int32) *fieldCheck {
	d := modeltest.Reference(m)
	c := &fieldCheck{ids: ids, sum: make([]float64, m.FieldHeads), lost: make([]float64, m.FieldHeads), low: make([]float64, m.FieldHeads), high: make([]float64, m.FieldHeads)}
	layer := d.Weights.Layers[0]
	for id := range m.VocabSize {
		x := d.Weights.Embedding[id*m.Hidden : (id+1)*m.Hidden]
		mean := 0.0
		for _, v := range x {
			mean += v * v / float64(m.Hidden)
		}
		inc := make([]float64, m.FieldHeads)
		for h := range inc {
			dot := layer.FieldBias[h]
			for i, v := range x {
				dot += layer.Field[h*m.Hidden+i] * v * layer.AttnNorm[i] / math.Sqrt(mean+float64(m.NormEps))
			}
			inc[h] = math.Tanh(dot)
		}
		c.increment = append(c.increment, inc)
	}
	return c
}

func (c *fieldCheck) look(layer, first int, field, _ []float64) {
	if layer != 0 {
		return
	}
	heads := len(c.sum)
	for t := range len(field) / heads {
		if first+t >= len(c.ids) {
			return // generated
		}
		for h, inc := range c.increment[c.ids[first+t]] {
			y := inc - c.lost[h]
			s := c.sum[h] + y
			c.lost[h] = (s - c.sum[h]) - y
			c.sum[h] = s
			c.low[h], c.high[h] = min(c.low[h], s), max(c.high[h], s)
			if d := math.Abs(field[t*heads+h]-s) / max(1, c.high[h]-c.low[h]); !(d <= c.worst) {
				c.worst = d
			}
		}
		c.checked++
	}
}

func (c *fieldCheck) span() float64 {
	most := 0.0
	for h := range c.low {
		most = max(most, c.high[h]-c.low[h])
	}
	return most
}
