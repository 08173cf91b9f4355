package cache

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/internal/state"
)

// device is what an engine does around the books of a remote cache, for one layer and
// in loops: it keeps the keys in their slots, and tells what a policy asks for.
type device struct {
	q    *sequence
	c    *Cache
	key  map[[2]int][]float32 // of group and slot, [KeyHeads of the group, KeyDim]
	base []float64            // [FieldHeads], as the sequence has it
}

func newDevice(t testing.TB, q *sequence, p Policy) *device {
	t.Helper()
	c, err := NewRemote(q.shape, p)
	if err != nil {
		t.Fatal(err)
	}
	return &device{q: q, c: c, key: make(map[[2]int][]float32), base: make([]float64, q.shape.FieldHeads)}
}

// feed takes n tokens in from t on.
func (d *device) feed(t, n int) {
	x, s := d.q.x, d.q.shape
	d.c.Begin(n)
	slots := 0
	for _, g := range d.c.Groups(0) {
		slots = max(slots, g.Remote().Slots())
	}
	for index, g := range d.c.Groups(0) {
		f := &Fresh{N: n, Stride: n + 1, Slots: make([]int32, n)}
		f.Field, f.Level = make([]float64, g.fieldHeads*f.Stride), make([]float64, g.fieldHeads*f.Stride)
		for h := range g.fieldHeads {
			base := 0.0 // relative to that before the chunk
			for i := range n {
				at := (t+i)*s.FieldHeads + g.first.field + h
				base += float64(x.Moved[at])
				f.Field[h*f.Stride+i], f.Level[h*f.Stride+i] = base+float64(x.Field[at]), base+float64(x.Level[at])
			}
		}
		f.Moved, f.MovedStride = x.Moved[t*s.FieldHeads+g.first.field:], s.FieldHeads
		query := func(i, h int) []float32 { return x.Query[((t+i)*s.QueryHeads+g.first.query+h)*s.KeyDim:][:s.KeyDim] }
		key := func(i, h int) []float32 { return x.Key[((t+i)*s.KeyHeads+g.first.key+h)*s.KeyDim:][:s.KeyDim] }
		lengths := func(heads int, of func(i, h int) []float32) (list []float32) {
			for h := range heads {
				for i := range n {
					list = append(list, float32(length(of(i, h))))
				}
				list = append(list, 0)
			}
			return list
		}
		f.Query, f.Key = lengths(g.queryHeads, query), lengths(g.keyHeads, key)
		if p := d.c.policy; p.Mode == Budget || p.Audit {
			d.weigh(f, index, g, slots, query, key)
		}
		g.Remote().Take(f)
		for i, at := range f.Slots {
			if at >= 0 {
				k := d.key[[2]int{index, int(at)}][:0]
				for h := range g.keyHeads {
					k = append(k, key(i, h)...)
				}
				d.key[[2]int{index, int(at)}] = k
			}
		}
	}
	d.c.Advance(n)
}

// weigh sets Weight and Removed, by the definition.
func (d *device) weigh(f *Fresh, index int, g *Group, slots int, query, key func(i, h int) []float32) {
	level, all := make([]float32, g.fieldHeads*slots), make([]float32, g.fieldHeads*slots)
	low, dropped := make([]float32, g.fieldHeads*slots), make([]float32, slots)
	g.Remote().Fields(level, low, slots)
	g.Remote().Audited(all, dropped, slots)
	f.Weight = make([]float32, slots+f.Stride)
	f.Removed = make([]float32, g.queryHeads)
	for i := range f.N {
		for h := range g.queryHeads {
			fh, kh := g.fieldHead(h), g.keyHead(h)
			field := f.Field[fh*f.Stride:]
			weight := func(k []float32, level, low float64, from int) float64 {
				for j := from; j <= i; j++ {
					low = min(low, field[j])
				}
				dot := 0.0
				for j, x := range query(i, h) {
					dot += float64(x) * float64(k[j])
				}
				return math.Exp(dot*float64(g.scale) - float64(g.slope[fh])*max(0, level-low))
			}
			weights := make([]float64, len(f.Weight))
			live, gone := 0.0, 0.0
			for s := range slots {
				at := fh*slots + s
				if all[at] == posInf {
					continue
				}
				k := d.key[[2]int{index, s}][kh*g.keyDim:]
				w := weight(k, float64(all[at]), float64(low[at]), 0)
				if level[at] == posInf {
					gone += w
				} else {
					live += w
					weights[s] = w
				}
			}
			for j := range i + 1 {
				weights[slots+j] = weight(key(j, kh), f.Level[fh*f.Stride+j], math.Inf(1), j+1)
				live += weights[slots+j]
			}
			f.Removed[h] = max(f.Removed[h], float32(gone/(live+gone)))
			if i == f.N-1 {
				for j, w := range weights {
					f.Weight[j] = max(f.Weight[j], float32(w/live))
				}
			}
		}
	}
}

// moving has the bases of a sequence move now and then.
func (q *sequence) moving() *sequence {
	base := make([]float32, q.shape.FieldHeads)
	for i := range q.x.Field {
		h := i % q.shape.FieldHeads
		if d := q.x.Field[i] - base[h]; d < -20 {
			q.x.Moved[i] = float32(math.Round(float64(d)))
			base[h] += q.x.Moved[i]
		}
		q.x.Field[i] -= base[h]
		q.x.Level[i] -= base[h]
	}
	return q
}

// TestRemote holds the books of a remote cache against a local cache: the same keys
// live after each chunk, and the statistics are the same.
func TestRemote(t *testing.T) {
	const tokens = 400
	for _, s := range shapes() {
		if s.Type != quant.F32 || s.FieldHeads == 0 {
			continue
		}
		q := newSequence(s, tokens, 21).moving()
		for _, p := range []Policy{
			{Mode: Off},
			{Mode: Exact},
			{Mode: Bounded, Eps: 1e-2},
			{Mode: Measured, Eps: 1e-2},
			{Mode: Budget, Keep: Keep{Share: 0.2}},
		} {
			p.Bound, p.Positions = q.bound, true
			for _, chunk := range []int{1, 37, 100} {
				if chunk > 1 && p.Mode == Budget {
					continue // it drops at the end of a chunk alone
				}
				name := fmt.Sprintf("%+v, %s %+v by %d", s, p.Mode, p.Keep, chunk)
				local, d := newCache(t, q.shape, p), newDevice(t, q, p)
				q.feed(t, local, chunk, func(fed int) {
					first := d.c.Tokens()
					d.feed(first, fed-first)
					want, got := local.Stats(), d.c.Stats()
					if fmt.Sprint(got.Positions) != fmt.Sprint(want.Positions) {
						t.Fatalf("%s: after %d tokens keys %v live, expected %v", name, fed, got.Positions, want.Positions)
					}
					if got.BytesLive != want.BytesLive || got.BytesPeak != want.BytesPeak {
						t.Fatalf("%s: %+v, expected %+v", name, got, want)
					}
				})
				want, got := local.Stats(), d.c.Stats()
				near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-3*b }
				if a, b := got.Budget, want.Budget; b != nil && (a.Dropped != b.Dropped || b.Dropped == 0 || !near(a.LargestWeight, b.LargestWeight) || !near(a.MeanWeight, b.MeanWeight)) {
					t.Errorf("%s: %+v, expected %+v", name, a, b)
				}
				if p.Mode != Off && want.Kept > 0.9 {
					t.Errorf("%s: %g is kept, nothing was tested", name, want.Kept)
				}
			}
		}
	}
}

// TestRemoteAudit computes, by the definition and over all keys ever fed, what the
// keys that are gone would have weighed. (A local audit drops other keys now and then:
// of those that die together the ledger lets the first ones go, and here dropped keys
// keep their slots.)
func TestRemoteAudit(t *testing.T) {
	const tokens = 200
	q := newSequence(Shape{QueryHeads: 2, KeyHeads: 1, FieldHeads: 2, KeyDim: 4, ValueDim: 4, Type: quant.F32}, tokens, 11).moving()
	s := q.shape
	for _, p := range []Policy{{Mode: Off}, {Mode: Bounded, Eps: 1e-2}, {Mode: Budget, Keep: Keep{Share: 0.2}}} {
		p.Bound, p.Positions, p.Audit = q.bound, true, true
		d := newDevice(t, q, p)
		want := 0.0
		for i := range tokens {
			kept := d.c.Stats().Positions[0][0]
			d.feed(i, 1)
			for h := range s.QueryHeads {
				total, gone, base := 0.0, 0.0, 0.0
				low := math.Inf(1)
				for j := i; j >= 0; j-- { // fields on the zero of token i
					at := j*2 + h
					dot := 0.0
					for x := range s.KeyDim {
						dot += float64(q.x.Query[(i*2+h)*s.KeyDim+x]) * float64(q.x.Key[j*s.KeyDim+x])
					}
					w := math.Exp(dot*float64(s.Scale) - float64(s.Slope[h])*max(0, base+float64(q.x.Level[at])-low))
					total += w
					if _, here := slices.BinarySearch(kept, j); !here && j < i {
						gone += w
					}
					low = min(low, base+float64(q.x.Field[at]))
					base -= float64(q.x.Moved[at])
				}
				want = max(want, gone/total)
			}
		}
		st := d.c.Stats()
		if a := st.Audit; a.Removed+st.Live[0][0] != tokens || math.Abs(a.LargestWeight-want) > 1e-3*want {
			t.Errorf("%s: the audit says %+v, expected a weight of %g; %d live", p.Mode, a, want, st.Live[0][0])
		}
		if p.Mode != Off && (want == 0 || st.Kept > 0.5) {
			t.Errorf("%s: %g is kept, and what is gone weighs %g: nothing was tested", p.Mode, st.Kept, want)
		}
	}
}

// TestRemoteSlots has most keys of long chunks die: what is left lies in the first
// slots, each key in its own.
func TestRemoteSlots(t *testing.T) {
	q := newSequence(Shape{QueryHeads: 1, KeyHeads: 1, FieldHeads: 1, KeyDim: 2, ValueDim: 2, Type: quant.F32}, 2048, 5)
	d := newDevice(t, q, Policy{Mode: Bounded, Eps: 1e-2, Bound: q.bound})
	g := d.c.Groups(0)[0]
	for at := 0; at < 2048; at += 512 {
		d.feed(at, 512)
		if n := g.Remote().Slots(); n > g.Live()+2*PageSlots {
			t.Errorf("after %d tokens %d keys need %d slots", at+512, g.Live(), n)
		}
	}
	checkSlots(t, g)
}

// TestRemoteSparse saves a remote cache whose keys lie far apart, which a local one
// must be able to read, and reads it again.
func TestRemoteSparse(t *testing.T) {
	for _, typ := range []quant.DType{quant.F32, quant.F16, quant.Q8_0} {
		q := newSequence(Shape{QueryHeads: 1, KeyHeads: 1, FieldHeads: 1, KeyDim: 3, ValueDim: 2, Type: typ}, 640, 6)
		p := Policy{Mode: Off, Positions: true}
		d := newDevice(t, q, p)
		for at := range 640 {
			d.feed(at, 1)
		}
		g := d.c.Groups(0)[0]
		for i := range 500 {
			if i%5 != 0 {
				g.remove(i/PageSlots, i%PageSlots)
			}
		}
		rows := func(_, _, slot int) (k, v []float32) {
			k, v = []float32{float32(slot), 1, -3}, []float32{5, float32(-slot)}
			if typ == quant.Q8_0 {
				narrow := make([]int8, 3)
				for _, row := range [][]float32{k, v} {
					scale := max(float32(slot), 3) / 127 * 1.37
					for i := range row {
						narrow[i] = int8(127 - i*slot%100)
						row[i] = float32(narrow[i]) * scale
					}
				}
			}
			return k, v
		}
		var b bytes.Buffer
		w := state.NewWriter(&b)
		if err := d.c.SaveRemote(w, rows); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		local := newCache(t, q.shape, p)
		r := state.NewReader(bytes.NewReader(b.Bytes()))
		local.Load(r)
		if err := r.End(); err != nil {
			t.Fatalf("%s: %v", typ, err)
		}
		again, err := NewRemote(q.shape, p)
		if err != nil {
			t.Fatal(err)
		}
		held := make(map[int][2][]float32)
		r = state.NewReader(bytes.NewReader(b.Bytes()))
		again.LoadRemote(r, func(_, _, slot int) (k, v []float32) {
			held[slot] = [2][]float32{make([]float32, 3), make([]float32, 2)}
			return held[slot][0], held[slot][1]
		})
		if err := r.End(); err != nil {
			t.Fatalf("%s: %v", typ, err)
		}
		if n := again.Groups(0)[0].Live(); n != g.Live() || n != local.Groups(0)[0].Live() || n != len(held) {
			t.Errorf("%s: %d keys, expected %d", typ, n, g.Live())
		}
		to := 0
		for i, p := range g.pages {
			for slot := range PageSlots {
				if p.live>>slot&1 == 0 {
					continue
				}
				k, v := rows(0, 0, i*PageSlots+slot)
				if !slices.Equal(held[to][0], k) || !slices.Equal(held[to][1], v) {
					t.Fatalf("%s: slot %d has %v, expected %v and %v", typ, to, held[to], k, v)
				}
				to++
			}
		}
	}
}
