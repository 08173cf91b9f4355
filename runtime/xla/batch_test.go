package xla

import (
	"fmt"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// TestBatch holds sequences that go side by side, in chunks of different lengths, some
// of them waiting, against the CPU engine with each of them alone.
func TestBatch(t *testing.T) {
	for _, name := range []string{"fox pro", "one field for all heads", "softmax rope", "direct absolute"} {
		c := modeltest.Config()
		modeltest.Options()[name](&c)
		m := build(t, modeltest.Random(c, 11, true))
		// How many tokens each sequence gets in each call. The cache grows on the way.
		calls := [][]int{{20, 3, 0}, {1, 1, 1}, {0, 0, 7}, {1, 0, 1}, {5, 300, 40}, {1, 1, 1}}
		each(t, func(k kind) bool { return !k.compiles || name == "fox pro" && k.shared }, func(t *testing.T, k kind) {
			t.Run(name, func(t *testing.T) {
				p := cache.Policy{Mode: cache.Exact}
				b, err := k.engine(t, m, Options{Chunk: 96}).NewBatch(3, quant.F32, p)
				if err != nil {
					t.Fatal(err)
				}
				base := cpuEngine(t, m)
				alone := make([]engine.Session, 3)
				begin := func(i int) { alone[i] = newSession(t, base, quant.F32, p) }
				for i := range alone {
					begin(i)
				}
				for round, tokens := range calls {
					if round == 4 { // another text in the place of the first
						if err := b.Reset(0); err != nil {
							t.Fatal(err)
						}
						begin(0)
					}
					ids := make([][]int32, 3)
					want := make([][]float32, 3)
					for i, n := range tokens {
						ids[i] = modeltest.Tokens(n, c.VocabSize, uint64(10*round+i))
						if n > 0 {
							last := alone[i].Len() + n - 1
							want[i] = feed(t, alone[i], ids[i], func(p int) bool { return p == last })
						}
					}
					err := b.Feed(ids, func(i int, logits []float32) error {
						if d := maxDiff(logits, want[i]); !(d < 1e-4) {
							return fmt.Errorf("call %d, sequence %d: logits differ by %g", round, i, d)
						}
						want[i] = nil
						return nil
					})
					if err != nil {
						t.Fatal(err)
					}
					for i := range alone {
						if want[i] != nil || b.Len(i) != alone[i].Len() {
							t.Errorf("call %d: sequence %d has %d tokens, expected %d", round, i, b.Len(i), alone[i].Len())
						}
					}
				}
				if n := b.keys.capacity; name != "fox pro" && n != 2*leastSlots { // whose keys die
					t.Errorf("capacity %d, expected %d", n, 2*leastSlots)
				}
				if s := b.CacheStats(1); s.BytesAllocated < s.BytesLive || s.BytesLive == 0 {
					t.Errorf("%+v", s)
				}
				if err := b.Feed([][]int32{{0}, {int32(c.VocabSize)}, nil}, nil); err == nil {
					t.Error("a token outside the vocabulary was taken")
				}
				if err := b.Feed([][]int32{{0}}, nil); err == nil {
					t.Error("a batch of three took one list")
				}
			})
		})
	}
	e := kinds[0].engine(t, build(t, modeltest.Random(modeltest.Config(), 1, true)), Options{})
	if _, err := e.NewBatch(0, quant.F32, cache.Policy{Mode: cache.Off}); err == nil {
		t.Error("a batch of none was made")
	}
}
