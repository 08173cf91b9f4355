package cpu

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// sequences is a batch under test: tokens, and the logits of all positions so far.
type sequences struct {
	ids       [][]int32
	parts     []engine.Part
	logits    [][]float32
	positions [][]int // of the logits
}

// newSequences starts sessions with the caches of the types and policies, one for
// each, and tokens of different lengths for them.
func newSequences(t *testing.T, e *Engine, lengths []int, types []quant.DType, policies []cache.Policy) *sequences {
	t.Helper()
	b := &sequences{logits: make([][]float32, len(lengths)), positions: make([][]int, len(lengths))}
	for i, n := range lengths {
		s, err := e.NewSession(types[i%len(types)], policies[i%len(policies)])
		if err != nil {
			t.Fatal(err)
		}
		b.ids = append(b.ids, modeltest.Tokens(n, e.model.VocabSize, uint64(i)))
		b.parts = append(b.parts, engine.Part{
			Session: s,
			Want:    func(int) bool { return true },
			Each: func(position int, l []float32) error {
				b.positions[i] = append(b.positions[i], position)
				b.logits[i] = append(b.logits[i], l...)
				return nil
			},
		})
	}
	return b
}

// feed feeds all tokens, in batches to which sequence i gives size(i) tokens until it
// has no more.
func (b *sequences) feed(e *Engine, size func(i int) int) error {
	for {
		var parts []engine.Part
		for i, p := range b.parts {
			if rest := b.ids[i][p.Session.Len():]; len(rest) > 0 {
				p.IDs = rest[:min(size(i), len(rest))]
				parts = append(parts, p)
			}
		}
		if len(parts) == 0 {
			return nil
		}
		if err := e.FeedBatch(parts); err != nil {
			return err
		}
	}
}

func engineOf(t testing.TB, m *model.Model, o Options) *Engine {
	t.Helper()
	e, err := New(m, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// TestBatchOracle holds sequences of different lengths that share every pass against
// the float64 decoder, which knows one sequence, for every option of the block.
func TestBatchOracle(t *testing.T) {
	for name, option := range modeltest.Options() {
		t.Run(name, func(t *testing.T) {
			c := modeltest.Config()
			option(&c)
			m := build(t, modeltest.Random(c, 7, false))
			lengths := []int{40, 1, 17, 90, 5}
			for _, o := range []struct{ size, chunk, threads int }{{1, 512, 2}, {9, 16, 3}, {90, 512, 1}} {
				e := engineOf(t, m, Options{Threads: o.threads, Chunk: o.chunk})
				b := newSequences(t, e, lengths, []quant.DType{quant.F32}, []cache.Policy{{Mode: cache.Off}})
				if err := b.feed(e, func(i int) int { return 1 + i%o.size }); err != nil {
					t.Fatal(err)
				}
				for i, ids := range b.ids {
					if d := maxDiff(b.logits[i], oracle(t, m, ids)); !(d < 2e-5) {
						t.Errorf("%+v: logits of sequence %d differ by %g", o, i, d)
					}
					for want, got := range b.positions[i] {
						if got != want {
							t.Fatalf("%+v: logits of position %d of sequence %d came as those of %d", o, want, i, got)
						}
					}
				}
			}
		})
	}
}

// TestBatchOfPolicies has sessions of every policy and type of cache share passes,
// and compares them with the same sessions alone. Which keys are dropped must not
// depend on company, and the result not on the number of threads.
func TestBatchOfPolicies(t *testing.T) {
	c := modeltest.Config()
	c.KVHeads, c.FieldHeads = 2, 2
	m := build(t, modeltest.Random(c, 7, false))
	for i := range m.Layers {
		for h := range m.Layers[i].Slope {
			m.Layers[i].Slope[h] *= 20 // keys die within the test
		}
	}
	m.LogitBound = m.LogitBounds(quant.F16)
	types := []quant.DType{quant.F16, quant.Q8_0, quant.F32}
	lengths := []int{150, 60, 99, 151, 3, 120, 80}
	var first [][]float32
	for _, threads := range []int{1, 2, 3} {
		e := engineOf(t, m, Options{Threads: threads})
		b := newSequences(t, e, lengths, types, policies())
		if err := b.feed(e, func(i int) int { return 1 + 3*i }); err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = b.logits
		}
		for i := range first {
			if !slices.Equal(b.logits[i], first[i]) {
				t.Errorf("%d threads: logits of sequence %d differ from those of one thread", threads, i)
			}
		}
		alone := newSequences(t, e, lengths, types, policies())
		for i, p := range alone.parts {
			// Sums differ in their last bits, which may round a key to the next number.
			if got := feedAll(t, p.Session, alone.ids[i], 1+3*i); !(maxDiff(got, first[i]) < 2e-4) {
				t.Errorf("%d threads: logits of sequence %d differ by %g from those alone", threads, i, maxDiff(got, first[i]))
			}
			got, want := b.parts[i].Session.CacheStats(), p.Session.CacheStats()
			if got.BytesLive != want.BytesLive {
				t.Errorf("sequence %d keeps %d bytes in company, %d alone", i, got.BytesLive, want.BytesLive)
			}
		}
	}
}

// TestBatchFailures lets single parts of a batch fail in every way; the others give
// what they give alone, and go on.
func TestBatchFailures(t *testing.T) {
	c := modeltest.Config()
	m := build(t, modeltest.Random(c, 3, false))
	const poison = 5 // an id whose keys do not fit into F16
	for i := range c.Hidden {
		copy(m.Embed.Data[4*(poison*c.Hidden+i):], []byte{0, 0, 0xc0, 0x7f}) // NaN
	}
	e, other := engineOf(t, m, Options{Threads: 2}), engineOf(t, m, Options{Threads: 1})
	clean := func(n int, seed uint64) []int32 {
		ids := modeltest.Tokens(n, c.VocabSize, seed)
		for i := range ids {
			if ids[i] == poison {
				ids[i]++
			}
		}
		return ids
	}
	session := func(e *Engine) engine.Session {
		s, err := e.NewSession(quant.F32, cache.Policy{Mode: cache.Off})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, bad := range []struct {
		says string
		part func(good engine.Session) engine.Part
	}{
		{"id 67, the vocabulary has 67", func(engine.Session) engine.Part { return engine.Part{Session: session(e), IDs: []int32{1, 67}} }},
		{"layer 0: a query at position 2 is NaN", func(engine.Session) engine.Part {
			return engine.Part{Session: session(e), IDs: []int32{1, 2, poison, 3}}
		}},
		{"enough", func(engine.Session) engine.Part {
			return engine.Part{Session: session(e), IDs: []int32{1, 2}, Each: func(int, []float32) error { return errors.New("enough") }}
		}},
		{"another engine", func(engine.Session) engine.Part { return engine.Part{Session: session(other), IDs: []int32{1}} }},
		{"a session twice", func(good engine.Session) engine.Part { return engine.Part{Session: good, IDs: []int32{1}} }},
		{"feeding other tokens", func(engine.Session) engine.Part {
			inner := session(e)
			return engine.Part{Session: session(e), IDs: []int32{1}, Each: func(int, []float32) error {
				return inner.Feed([]int32{1}, nil, func(int, []float32) error { return nil })
			}}
		}},
	} {
		for _, n := range []int{1, 12} {
			ids := clean(2*n, 9)
			want := feedAll(t, session(e), ids, n)
			good := session(e)
			var got []float32
			part := engine.Part{Session: good, IDs: ids[:n], Want: func(int) bool { return true }, Each: func(_ int, l []float32) error {
				got = append(got, l...)
				return nil
			}}
			parts := []engine.Part{part, bad.part(good)}
			err := e.FeedBatch(parts)
			if err == nil || !strings.Contains(err.Error(), bad.says) || parts[1].Err != err || parts[0].Err != nil {
				t.Fatalf("error %v, of the parts %v and %v; expected %q of the second", err, parts[0].Err, parts[1].Err, bad.says)
			}
			part.IDs = ids[n:]
			if err := e.FeedBatch([]engine.Part{part}); err != nil {
				t.Fatal(err)
			}
			if d := maxDiff(got, want); !(d < 2e-5) {
				t.Errorf("%q, %d tokens: the other sequence's logits differ by %g", bad.says, n, d)
			}
		}
	}
}

// TestBatchSave saves a session that was fed in batches; what is restored goes on to
// the same bits in a batch of the same size.
func TestBatchSave(t *testing.T) {
	c := modeltest.Config()
	m := build(t, modeltest.Random(c, 7, false))
	m.LogitBound = m.LogitBounds(quant.F16)
	e := engineOf(t, m, Options{Threads: 2})
	exact := []cache.Policy{{Mode: cache.Exact}}
	b := newSequences(t, e, []int{120, 120, 120}, []quant.DType{quant.F16}, exact)
	whole := b.ids
	b.ids = [][]int32{whole[0][:70], whole[1][:70], whole[2][:70]}
	if err := b.feed(e, func(int) int { return 10 }); err != nil {
		t.Fatal(err)
	}
	again := newSequences(t, e, []int{120, 120, 120}, []quant.DType{quant.F16}, exact)
	for i, p := range b.parts {
		var saved bytes.Buffer
		if err := p.Session.Save(&saved); err != nil {
			t.Fatal(err)
		}
		var err error
		if again.parts[i].Session, err = e.RestoreSession(&saved, quant.F16, exact[0]); err != nil {
			t.Fatal(err)
		}
		b.logits[i] = nil
	}
	b.ids = whole
	for _, x := range []*sequences{b, again} {
		if err := x.feed(e, func(int) int { return 1 }); err != nil {
			t.Fatal(err)
		}
	}
	for i := range b.logits {
		if len(b.logits[i]) != 50*m.VocabSize || !slices.Equal(b.logits[i], again.logits[i]) {
			t.Errorf("sequence %d: the restored session gives other logits", i)
		}
	}
}

// TestThreadsShareGroups lets few groups of heads run so long that threads share
// them, and expects the bits of one thread.
func TestThreadsShareGroups(t *testing.T) {
	for _, kind := range []struct {
		name         string
		heads, field int
	}{{"softmax, two key heads", 2, 0}, {"one field", 2, 1}, {"one key head", 1, 4}} {
		t.Run(kind.name, func(t *testing.T) {
			c := modeltest.Config()
			c.KVHeads, c.FieldHeads, c.Blocks = kind.heads, kind.field, 1
			if kind.field == 0 {
				c.Field, c.QKNorm = model.FieldNone, model.NormNone
			}
			m := build(t, modeltest.Random(c, 7, true))
			for _, l := range m.Layers {
				for h := range l.Slope {
					l.Slope[h] /= 100 // no key is dead
				}
			}
			ids := modeltest.Tokens(1300, c.VocabSize, 3)
			var want []float32
			for _, threads := range []int{1, 2, 3, 7} {
				e := engineOf(t, m, Options{Threads: threads})
				s, err := e.NewSession(quant.F16, cache.Policy{Mode: cache.Off})
				if err != nil {
					t.Fatal(err)
				}
				got := feedAll(t, s, ids[:1200], 300)
				got = append(got, feedAll(t, s, ids[1200:], 1)...)
				if want == nil {
					want = got
				}
				if !slices.Equal(got, want) {
					t.Errorf("%d threads: logits differ by %g from those of one", threads, maxDiff(got, want))
				}
				if shared := len(e.pass.apart) > 0; shared != (threads > 1) {
					t.Errorf("%d threads: groups are shared: %v", threads, shared)
				}
			}
		})
	}
}

// TestAllocations feeds token after token and expects that nothing is allocated, but
// where a cache grows. So tokens are counted that lie between two pages, and again if
// what follows the fields grew, which it does ever more rarely.
func TestAllocations(t *testing.T) {
	for _, test := range []struct {
		name     string
		typ      quant.DType // of the weights
		sessions int
		policy   cache.Policy
		option   string
	}{
		{"f32", quant.F32, 1, cache.Policy{Mode: cache.Off}, "softmax rope"},
		{"f16", quant.F16, 1, cache.Policy{Mode: cache.Off}, "softmax rope"},
		{"q8_0", quant.Q8_0, 1, cache.Policy{Mode: cache.Off}, "softmax rope"},
		{"q4_1", quant.Q4_1, 1, cache.Policy{Mode: cache.Off}, "softmax rope"},
		{"fpa", quant.F16, 1, cache.Policy{Mode: cache.Exact}, "plain"},
		{"fox", quant.F16, 1, cache.Policy{Mode: cache.Exact}, "fox pro"},
		{"budget", quant.F16, 1, cache.Policy{Mode: cache.Budget, Keep: cache.Keep{Bytes: 1 << 14}}, "plain"},
		{"batch", quant.F16, 8, cache.Policy{Mode: cache.Exact}, "plain"},
		{"quantised batch", quant.Q8_0, 8, cache.Policy{Mode: cache.Off}, "softmax rope"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := modeltest.Config()
			modeltest.Options()[test.option](&c)
			c.Hidden, c.FeedForward = 64, 96
			m := build(t, modeltest.Random(c, 7, true))
			for i := range m.Layers {
				l := &m.Layers[i]
				for _, w := range []*model.Linear{&l.Q, &l.K, &l.V, &l.O, &l.FFNGate, &l.FFNUp, &l.FFNDown} {
					encode(t, w, test.typ)
				}
				for h := range l.Slope {
					l.Slope[h] *= 200 // keys die soon, so that the caches level off
				}
			}
			m.LogitBound = m.LogitBounds(quant.F16)
			e := engineOf(t, m, Options{Threads: 2})
			parts := make([]engine.Part, test.sessions)
			for i := range parts {
				s, err := e.NewSession(quant.F16, test.policy)
				if err != nil {
					t.Fatal(err)
				}
				feedAll(t, s, modeltest.Tokens(128, c.VocabSize, uint64(i)), 128)
				parts[i] = engine.Part{Session: s, IDs: []int32{1}, Each: func(_ int, logits []float32) error { return nil }}
			}
			next := int32(0)
			step := func() {
				for i := range parts {
					next = (next*5 + 3) % int32(c.VocabSize)
					parts[i].IDs[0] = next
				}
				var err error
				if len(parts) == 1 {
					err = parts[0].Session.Feed(parts[0].IDs, nil, parts[0].Each)
				} else {
					err = e.FeedBatch(parts)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			n := 0.0
			for range 12 {
				for parts[0].Session.Len()%cache.PageSlots != 2 {
					step()
				}
				if n = testing.AllocsPerRun(50, step); n == 0 {
					return
				}
			}
			t.Errorf("%g allocations a step", n)
		})
	}
}

// encode turns the matrix of a projection into another type, where its rows fill the
// blocks of that.
func encode(t *testing.T, l *model.Linear, typ quant.DType) {
	t.Helper()
	if l.W.Cols%typ.BlockLen() != 0 {
		return
	}
	x := make([]float32, l.W.Rows*l.W.Cols)
	if err := quant.Decode(x, l.W.Type, l.W.Data); err != nil {
		t.Fatal(err)
	}
	l.W.Type, l.W.Data = typ, make([]byte, len(x)/typ.BlockLen()*typ.BlockBytes())
	if err := quant.Encode(l.W.Data, typ, x); err != nil {
		t.Fatal(err)
	}
}
