package xla

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// TestFeedBatch feeds sessions together, in parts of several lengths of which some fail,
// beside one that takes turns, and holds all against sessions of the CPU engine: the
// logits of many positions, the keys that are kept, and what is saved.
func TestFeedBatch(t *testing.T) {
	c := modeltest.Config()
	modeltest.Options()["fox pro"](&c)
	c.Blocks = 1
	m := build(t, modeltest.Random(c, 5, true))
	p := cache.Policy{Mode: cache.Exact}
	failed := errors.New("enough")
	// TestDataParallel does it with XLA.
	each(t, func(k kind) bool { return !k.compiles }, func(t *testing.T, k kind) {
		e := k.engine(t, m, Options{Chunk: 32})
		theirs := cpuEngine(t, m)
		const n = 3
		ours, base := make([]engine.Session, n+1), make([]engine.Session, n+1)
		for i := range ours {
			ours[i], base[i] = newSession(t, e, quant.F32, p), newSession(t, theirs, quant.F32, p)
		}
		first := modeltest.Tokens(3, c.VocabSize, 1)
		feed(t, ours[n], first, nil) // not empty: it stays alone
		feed(t, base[n], first, nil)
		for round, tokens := range [][]int{{20, 3, 0, 1}, {1, 1, 1, 0}, {0, 18, 2, 1}} {
			parts, got := make([]engine.Part, n+1), make([][]float32, n+1)
			for i := range parts {
				parts[i] = engine.Part{
					Session: ours[i], IDs: modeltest.Tokens(tokens[i], c.VocabSize, uint64(10*round+i)),
					Each: func(_ int, l []float32) error { got[i] = append(got[i], l...); return nil },
				}
				if i == 1 {
					parts[i].Want = func(p int) bool { return p%3 != 1 }
				}
			}
			if err := engine.FeedBatch(e, parts); err != nil {
				t.Fatal(err)
			}
			for i, x := range parts {
				want := x.Want
				if last := base[i].Len() + len(x.IDs) - 1; want == nil {
					want = func(p int) bool { return p == last }
				}
				if d := maxDiff(got[i], feed(t, base[i], x.IDs, want)); !(d < 1e-4) {
					t.Errorf("round %d, sequence %d: logits differ by %g", round, i, d)
				}
				if a, b := ours[i].CacheStats(), base[i].CacheStats(); ours[i].Len() != base[i].Len() || !slices.EqualFunc(a.Live, b.Live, slices.Equal) {
					t.Errorf("round %d, sequence %d: %d tokens, %v live, expected %d and %v", round, i, ours[i].Len(), a.Live, base[i].Len(), b.Live)
				}
			}
		}
		of := func(i int) *Session { return ours[i].(*Session) }
		if of(0).lanes != of(1).lanes || of(0).lanes != of(2).lanes || of(3).lanes == of(0).lanes {
			t.Error("the sessions that began together are not side by side, or another is")
		}
		// One of those side by side goes on alone, is saved, and is restored elsewhere.
		for _, to := range []engine.Engine{e, theirs} {
			var b bytes.Buffer
			if err := ours[1].Save(&b); err != nil {
				t.Fatal(err)
			}
			r, err := to.RestoreSession(&b, quant.F32, p)
			if err != nil {
				t.Fatal(err)
			}
			want := feed(t, base[1], first, nil)
			if d := max(maxDiff(feed(t, r, first, nil), want), maxDiff(feed(t, ours[1], first, nil), want)); !(d < 1e-4) {
				t.Errorf("%T: logits differ by %g after a session was saved", to, d)
			}
		}
		// What fails leaves the rest as it should be.
		one := modeltest.Tokens(1, c.VocabSize, 2)
		var got []float32
		parts := []engine.Part{
			{Session: ours[0], IDs: one, Each: func(int, []float32) error { return failed }},
			{Session: ours[1], IDs: []int32{-1}},
			{Session: ours[2], IDs: one, Each: func(_ int, l []float32) error { got = append(got, l...); return nil }},
			{Session: ours[2], IDs: one},
			{Session: base[0], IDs: one},
		}
		err := e.FeedBatch(parts)
		if d := maxDiff(got, feed(t, base[2], one, nil)); parts[2].Err != nil || !(d < 1e-4) {
			t.Errorf("beside parts that fail: %v, logits differ by %g", parts[2].Err, d)
		}
		for i, says := range map[int]string{0: "enough", 1: "vocabulary", 3: "twice", 4: "another engine"} {
			if parts[i].Err == nil || !strings.Contains(parts[i].Err.Error(), says) {
				t.Errorf("part %d: %v, expected an error with %q", i, parts[i].Err, says)
			}
		}
		if err != parts[0].Err {
			t.Errorf("the batch's error is %v", err)
		}
	})
}

// TestJoin looks at which sessions go side by side.
func TestJoin(t *testing.T) {
	m := build(t, modeltest.Random(modeltest.Config(), 1, true))
	e := kinds[0].engine(t, m, Options{})
	off, exact, budget := cache.Policy{Mode: cache.Off}, cache.Policy{Mode: cache.Exact}, cache.Policy{Mode: cache.Budget, Keep: cache.Keep{Share: 0.5}}
	var parts []engine.Part
	for _, x := range []struct {
		typ quant.DType
		p   cache.Policy
	}{{quant.F32, off}, {quant.F32, exact}, {quant.F32, budget}, {quant.F32, budget}, {quant.F32, off}} {
		parts = append(parts, engine.Part{Session: newSession(t, e, x.typ, x.p), IDs: []int32{1}, Each: func(int, []float32) error { return nil }})
	}
	if err := e.FeedBatch(parts); err != nil {
		t.Fatal(err)
	}
	var lanes []*lanes
	var where []int
	for _, x := range parts {
		l := x.Session.(*Session).lanes
		i := slices.Index(lanes, l)
		if i < 0 {
			i, lanes = len(lanes), append(lanes, l)
		}
		where = append(where, i)
	}
	if got := fmt.Sprint(where); got != "[0 0 1 1 0]" {
		t.Errorf("side by side are %s, expected the sessions without and those with a budget", got)
	}
}
