package xla

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/pkg/core/dtypes"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// passkey is the trained model, and a text of n tokens for it.
func passkey(t testing.TB, n int) (*model.Model, []int32) {
	t.Helper()
	dir := filepath.Join("..", "..", "testmodels", "passkey")
	g := readGolden(t, filepath.Join(dir, "golden.safetensors"), 1024)
	return openModel(t, dir), g.ids[:n]
}

// TestEviction compares the keys that are kept, and the logits, with the CPU
// engine's: with both of them fed in the same chunks, none may differ.
func TestEviction(t *testing.T) {
	m, ids := passkey(t, 200)
	for _, p := range []cache.Policy{{Mode: cache.Exact}, {Mode: cache.Bounded, Eps: 1e-2}} {
		for _, typ := range []quant.DType{quant.F32, quant.F16} {
			base := newSession(t, cpuEngine(t, m), typ, p)
			var want []float32
			var live [][][]int
			for i := range ids {
				want = append(want, feed(t, base, ids[i:i+1], nil)...)
				live = append(live, base.CacheStats().Live)
			}
			if s := base.CacheStats(); s.Kept > 0.5 {
				t.Fatalf("the CPU engine keeps %g of the cache: this compares too little", s.Kept)
			}
			// gomlx's Go backend has no half precision.
			suits := func(k kind) bool {
				return k.compiles == (typ == quant.F16) && (!k.compiles || p.Mode == cache.Exact && k.shared)
			}
			each(t, suits, func(t *testing.T, k kind) {
				s := newSession(t, k.engine(t, m, Options{}), typ, p)
				worst := 0.0
				for i := range ids {
					got := feed(t, s, ids[i:i+1], nil)
					worst = max(worst, maxDiff(got, want[i*m.VocabSize:(i+1)*m.VocabSize]))
					if l := s.CacheStats().Live; fmt.Sprint(l) != fmt.Sprint(live[i]) {
						t.Fatalf("%s %s: live keys after %d tokens: %v, the CPU engine has %v", p.Mode, typ, i+1, l, live[i])
					}
				}
				if allowed := map[quant.DType]float64{quant.F32: 1e-4, quant.F16: 2e-3}[typ]; !(worst < allowed) {
					t.Errorf("%s %s: logits differ by %g", p.Mode, typ, worst)
				}
			})
		}
	}
}

// TestChunks feeds a text in chunks of many sizes, so that keys die inside chunks
// and the cache grows and shrinks, and compares with nothing dropped.
func TestChunks(t *testing.T) {
	m, ids := passkey(t, 1000)
	wanted := []int{499, 519, 520, 521, 999}
	want := func(p int) bool { return slices.Contains(wanted, p) }
	all := feed(t, newSession(t, cpuEngine(t, m), quant.F32, cache.Policy{Mode: cache.Off}), ids, want)
	each(t, func(k kind) bool { return !k.compiles }, func(t *testing.T, k kind) {
		s := newSession(t, k.engine(t, m, Options{}), quant.F32, cache.Policy{Mode: cache.Exact})
		var got []float32
		var capacities []int
		for rest := ids; len(rest) > 0; {
			n := min([]int{500, 20, 1, 1, 478}[len(capacities)], len(rest))
			got = append(got, feed(t, s, rest[:n], want)...)
			rest = rest[n:]
			capacities = append(capacities, s.(*Session).keys.capacity)
		}
		if d := maxDiff(got, all); !(d < 1e-4) {
			t.Errorf("logits differ by %g", d)
		}
		if most := slices.Max(capacities); most > 2*leastSlots {
			t.Errorf("capacities %v", capacities)
		}
	})
}

// TestGrow feeds more than the first capacity without dropping anything.
func TestGrow(t *testing.T) {
	c := modeltest.Config()
	c.Blocks = 1
	m := build(t, modeltest.Random(c, 3, true))
	ids := modeltest.Tokens(2*leastSlots+40, c.VocabSize, 4)
	want := feed(t, newSession(t, cpuEngine(t, m), quant.F32, cache.Policy{Mode: cache.Off}), ids, func(p int) bool { return p == len(ids)-1 })
	// The goldens grow XLA's shared one.
	each(t, func(k kind) bool { return !k.compiles || !k.shared }, func(t *testing.T, k kind) {
		e := k.engine(t, m, Options{Chunk: 256})
		s := newSession(t, e, quant.F32, cache.Policy{Mode: cache.Off})
		got := feed(t, s, ids, func(p int) bool { return p == len(ids)-1 })
		if d := maxDiff(got, want); !(d < 1e-4) {
			t.Errorf("logits differ by %g", d)
		}
		if n := s.(*Session).keys.capacity; n != 4*leastSlots {
			t.Errorf("capacity %d after %d tokens", n, len(ids))
		}
		if s.CacheStats().BytesAllocated < s.CacheStats().BytesLive {
			t.Errorf("%+v", s.CacheStats())
		}
		if k.compiles {
			return
		}
		before := e.Stats().Compilations
		feed(t, newSession(t, e, quant.F32, cache.Policy{Mode: cache.Off}), ids, func(p int) bool { return p == len(ids)-1 })
		if after := e.Stats().Compilations; after != before {
			t.Errorf("the same sequence again: %d programs compiled", after-before)
		}
		for _, id := range ids[:100] {
			feed(t, s, []int32{id}, func(int) bool { return false })
		}
		if after := e.Stats().Compilations; after > before+2 { // the program for one token, and for its row
			t.Errorf("100 tokens one by one: %d programs compiled", after-before)
		}
	})
}

// TestSnapshot saves a session in the middle and goes on with it: here, and on the
// CPU engine, whose sessions can be read too.
func TestSnapshot(t *testing.T) {
	for _, name := range []string{"fox pro", "one field for all heads", "softmax rope", "direct absolute"} {
		c := modeltest.Config()
		modeltest.Options()[name](&c)
		m := build(t, modeltest.Random(c, 5, true))
		ids := modeltest.Tokens(40, c.VocabSize, 9)
		p := cache.Policy{Mode: cache.Exact}
		for _, typ := range []quant.DType{quant.F32, quant.F16} {
			suits := func(k kind) bool {
				return k.compiles == (typ == quant.F16) && (!k.compiles || name == "fox pro" && k.shared)
			}
			each(t, suits, func(t *testing.T, k kind) {
				ours, theirs := engine.Engine(k.engine(t, m, Options{})), cpuEngine(t, m)
				base := newSession(t, theirs, typ, p)
				feed(t, base, ids[:30], nil)
				want := feed(t, base, ids[30:], nil)
				for _, way := range []struct{ from, to engine.Engine }{{ours, ours}, {ours, theirs}, {theirs, ours}} {
					s := newSession(t, way.from, typ, p)
					feed(t, s, ids[:30], nil)
					var b bytes.Buffer
					if err := s.Save(&b); err != nil {
						t.Fatal(err)
					}
					r, err := way.to.RestoreSession(bytes.NewReader(b.Bytes()), typ, p)
					if err != nil {
						t.Fatal(err)
					}
					if r.Len() != 30 || !slices.EqualFunc(r.CacheStats().Live, s.CacheStats().Live, slices.Equal) {
						t.Errorf("%s: %d tokens and %v live keys restored, expected 30 and %v", name, r.Len(), r.CacheStats().Live, s.CacheStats().Live)
					}
					if d := maxDiff(feed(t, r, ids[30:], nil), want); !(d < 1e-3) {
						t.Errorf("%s %s, %T to %T: logits differ by %g", name, typ, way.from, way.to, d)
					}
					if _, err := way.to.RestoreSession(bytes.NewReader(b.Bytes()[:b.Len()/2]), typ, p); err == nil {
						t.Error("half a session was restored")
					}
				}
			})
		}
	}
}

// TestHalf computes with F16 weights and an F16 cache as they are, as on a GPU.
func TestHalf(t *testing.T) {
	p := modeltest.Random(modeltest.Config(), 8, true)
	for i := range p.Tensors {
		x := &p.Tensors[i]
		if !strings.HasSuffix(x.Name, ".weight") || len(x.Shape) < 2 || strings.Contains(x.Name, "norm") ||
			strings.Contains(x.Name, "field") || strings.Contains(x.Name, "level") {
			continue
		}
		wide := make([]float32, len(x.Data)/4)
		if err := quant.Decode(wide, x.DType, x.Data); err != nil {
			t.Fatal(err)
		}
		x.DType, x.Data = quant.F16, make([]byte, len(x.Data)/2)
		if err := quant.Encode(x.Data, x.DType, wide); err != nil {
			t.Fatal(err)
		}
	}
	m := build(t, p)
	ids := modeltest.Tokens(20, m.VocabSize, 2)
	last := func(p int) bool { return p == len(ids)-1 }
	policy := cache.Policy{Mode: cache.Exact}
	base := newSession(t, cpuEngine(t, m), quant.F16, policy)
	want := feed(t, base, ids, last)
	for _, k := range kinds {
		if !k.half {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			e := k.engine(t, m, Options{})
			if w := e.weights[layerName(0)+nameProject]; w.shape.DType != dtypes.Float16 {
				t.Errorf("weights are %s on the device", w.shape)
			}
			s := newSession(t, e, quant.F16, policy)
			if d := maxDiff(feed(t, s, ids, last), want); !(d < 2e-2) {
				t.Errorf("logits differ by %g", d)
			}
			var b bytes.Buffer
			if err := s.Save(&b); err != nil {
				t.Fatal(err)
			}
			r, err := e.RestoreSession(&b, quant.F16, policy)
			if err != nil {
				t.Fatal(err)
			}
			if d := maxDiff(feed(t, r, ids[:16], nil)[15*m.VocabSize:], feed(t, base, ids[:16], nil)[15*m.VocabSize:]); !(d < 2e-2) {
				t.Errorf("logits differ by %g after it was saved", d)
			}
		})
	}
}

// TestErrors asks for what the engine cannot do.
func TestErrors(t *testing.T) {
	m := build(t, modeltest.Random(modeltest.Config(), 1, true))
	e := kinds[0].engine(t, m, Options{})
	for _, tt := range []struct {
		typ  quant.DType
		p    cache.Policy
		want string
	}{
		{quant.Q4_0, cache.Policy{Mode: cache.Off}, "expected f16, q8_0 or f32"},
		{quant.F16, cache.Policy{Mode: cache.Off}, "use f32"},
		{quant.F32, cache.Policy{Mode: cache.Budget}, "budget"},
		{quant.F32, cache.Policy{Mode: cache.Measured}, "measured"},
		{quant.F32, cache.Policy{Mode: "none"}, "not known"},
	} {
		if _, err := e.NewSession(tt.typ, tt.p); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %+v: %v, expected an error with %q", tt.typ, tt.p, err, tt.want)
		}
	}
	s := newSession(t, e, quant.F32, cache.Policy{Mode: cache.Off})
	if err := s.Feed([]int32{1, int32(m.VocabSize)}, nil, nil); err == nil || !strings.Contains(err.Error(), "vocabulary") {
		t.Errorf("a token outside the vocabulary: %v", err)
	}
	if _, err := New(m, Plugin{CPU, filepath.Join(t.TempDir(), "pjrt_c_api_cpu_plugin.so"), ""}, Options{}); err == nil {
		t.Error("a plugin that is not there was opened")
	}
	if err := try(func() error { panic(fmt.Errorf("no")) }); err == nil {
		t.Error("a panic is no error")
	}
}

// TestChunkSize covers all tokens with few passes and little padding.
func TestChunkSize(t *testing.T) {
	for n := 1; n <= 2000; n++ {
		for _, most := range []int{1, 7, 16, 100, 512} {
			calls, slots := 0, 0
			for left := n; left > 0; calls++ {
				size := chunkSize(left, most)
				if size < 1 || size > max(most, 16) || !slices.Contains(chunkSizes, size) {
					t.Fatalf("a chunk of %d for %d tokens, at most %d", size, left, most)
				}
				slots += size
				left -= min(left, size)
			}
			if slots > n+n/4+passTokens*3 {
				t.Errorf("%d tokens take %d rows in %d chunks", n, slots, calls)
			}
		}
	}
}
