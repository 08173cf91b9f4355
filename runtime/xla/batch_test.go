package xla

import (
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
				e, base := k.engine(t, m, Options{Chunk: 96}), cpuEngine(t, m)
				ours, alone := make([]engine.Session, 3), make([]engine.Session, 3)
				for i := range ours {
					ours[i], alone[i] = newSession(t, e, quant.F32, p), newSession(t, base, quant.F32, p)
				}
				for round, tokens := range calls {
					parts := make([]engine.Part, 3)
					for i, n := range tokens {
						var want []float32
						ids := modeltest.Tokens(n, c.VocabSize, uint64(10*round+i))
						if n > 0 {
							last := alone[i].Len() + n - 1
							want = feed(t, alone[i], ids, func(p int) bool { return p == last })
						}
						parts[i] = engine.Part{Session: ours[i], IDs: ids, Each: func(_ int, logits []float32) error {
							if d := maxDiff(logits, want); !(d < 1e-4) {
								t.Errorf("call %d, sequence %d: logits differ by %g", round, i, d)
							}
							want = nil
							return nil
						}}
						defer func() {
							if want != nil {
								t.Errorf("call %d, sequence %d: no logits", round, i)
							}
						}()
					}
					if err := engine.FeedBatch(e, parts); err != nil {
						t.Fatal(err)
					}
					for i := range alone {
						if ours[i].Len() != alone[i].Len() {
							t.Errorf("call %d: sequence %d has %d tokens, expected %d", round, i, ours[i].Len(), alone[i].Len())
						}
					}
				}
				l := ours[0].(*Session).lanes
				if l != ours[1].(*Session).lanes || l != ours[2].(*Session).lanes {
					t.Error("the sequences are not side by side")
				}
				if n := l.keys.capacity; name != "fox pro" && n != 2*leastSlots { // whose keys die
					t.Errorf("capacity %d, expected %d", n, 2*leastSlots)
				}
				if s := ours[1].CacheStats(); s.BytesAllocated < s.BytesLive || s.BytesLive == 0 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}
