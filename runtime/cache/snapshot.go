package cache

import (
	"errors"
	"math"
	"math/bits"
	"slices"

	"github.com/firstpassage/fpa/ops/kernels"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/internal/state"
)

// Save writes the cache, in the order in which its keys lie in their pages, so
// that Load makes one that goes on to the same bits. It fails for an audited
// cache, whose dropped keys are not saved.
func (c *Cache) Save(w *state.Writer) error { return c.save(w, nil) }

// A Row is K and V of a slot of a remote cache, as the host holds them, [KeyDim] and
// [ValueDim]. Heads count from the layer's first.
type Row func(layer, keyHead, slot int) (k, v []float32)

// SaveRemote is Save for a remote cache. A local cache loads what it writes.
func (c *Cache) SaveRemote(w *state.Writer, row Row) error { return c.save(w, row) }

func (c *Cache) save(w *state.Writer, row Row) error {
	if c.policy.Audit {
		return errors.New("an audited cache cannot be saved")
	}
	state.PutInt(w, c.tokens)
	state.Put(w, c.peak)
	for i, layer := range c.groups {
		for _, g := range layer {
			g.save(w, i, row)
		}
	}
	return nil
}

// Load reads what Save wrote into a new cache of the same shape and policy. An
// error is left in r.
func (c *Cache) Load(r *state.Reader) { c.load(r, nil) }

// LoadRemote is Load for a remote cache; the rows that row returns are filled.
func (c *Cache) LoadRemote(r *state.Reader, row Row) { c.load(r, row) }

func (c *Cache) load(r *state.Reader, row Row) {
	const mostTokens = math.MaxInt32
	c.tokens = state.Int(r, "the number of tokens", mostTokens)
	c.peak = state.One[int64](r)
	for i, layer := range c.groups {
		for _, g := range layer {
			g.load(r, c.tokens, i, row)
			if r.Err() != nil {
				return
			}
		}
	}
}

func (g *Group) save(w *state.Writer, layer int, row Row) {
	g.settle()
	g.clock.forget()
	state.PutInt(w, g.clock.step)
	state.Put(w, g.clock.base...)
	if g.ledger != nil {
		state.Put(w, g.ledger.bound...)
		state.Put(w, g.ledger.spent...)
		state.Put(w, g.ledger.removed)
	}
	if g.norms != nil {
		state.Put(w, g.norms.query...)
		state.Put(w, g.norms.key...)
	}
	state.PutInt(w, g.dropped.keys)
	state.Put(w, g.dropped.largest, g.dropped.sum)
	pages, from := g.pages, []int(nil)
	if row != nil && g.empty() >= 2*PageSlots { // as a local cache never leaves it
		pages, from = g.packed()
	}
	state.PutInt(w, len(pages))
	for i, p := range pages {
		state.Put(w, p.live)
		// Which pages attention skips, and which it looks at for dead keys, is part of
		// the order of its sums.
		state.Put(w, p.worst...)
		for _, dead := range p.dead {
			flag := uint8(0)
			if dead {
				flag = 1
			}
			state.Put(w, flag)
		}
		for live := p.live; live != 0; live &= live - 1 {
			slot := bits.TrailingZeros64(live)
			for f := range g.fieldHeads {
				state.Put(w, p.level[f*PageSlots+slot], p.low[f*PageSlots+slot])
			}
			for h := range g.keyHeads {
				if row != nil {
					at := i*PageSlots + slot
					if from != nil {
						at = from[at]
					}
					k, v := row(layer, g.first.key+h, at)
					g.saveRows(w, k, v)
					continue
				}
				s, dk, dv := h*PageSlots+slot, g.keyDim, g.valueDim
				switch g.typ {
				case quant.F16:
					state.Put(w, p.k16[s*dk:(s+1)*dk]...)
					state.Put(w, p.v16[s*dv:(s+1)*dv]...)
				case quant.Q8_0:
					state.Put(w, p.kScale[s], p.vScale[s])
					state.Put(w, p.k8[s*dk:(s+1)*dk]...)
					state.Put(w, p.v8[s*dv:(s+1)*dv]...)
				default:
					state.Put(w, p.k32[s*dk:(s+1)*dk]...)
					state.Put(w, p.v32[s*dv:(s+1)*dv]...)
				}
			}
		}
	}
}

// packed are pages with the levels and lows of all keys of a remote cache and no
// empty slot between them, and the slot that each comes from.
func (g *Group) packed() (pages []*page, from []int) {
	to := store{layout: g.layout, pool: g.pool, clock: g.clock}
	for i, p := range g.pages {
		for live := p.live; live != 0; live &= live - 1 {
			slot := bits.TrailingZeros64(live)
			q, s := to.take()
			to.copySlot(q, s, p, slot)
			for f, w := range p.worst {
				q.worst[f] = max(q.worst[f], w)
			}
			from = append(from, i*PageSlots+slot)
		}
	}
	return to.pages, from
}

func (g *Group) load(r *state.Reader, tokens, layer int, row Row) {
	g.clock.step = state.Int(r, "the number of tokens of a head", tokens)
	if g.clock.step != tokens {
		r.Fail("a head has taken %d tokens, the others %d", g.clock.step, tokens)
	}
	state.Finite(r, "a field's base", g.clock.base)
	if g.ledger != nil {
		proved := slices.Clone(g.ledger.bound)
		state.Finite(r, "a logit bound", g.ledger.bound)
		for h, u := range g.ledger.bound {
			if u < proved[h] { // keys may be gone that should have stayed
				r.Fail("the bound on the logits of a head is %g, expected at least %g", u, proved[h])
			}
		}
		state.Finite(r, "the weight of removed keys", g.ledger.spent)
		g.ledger.removed = state.One[float64](r)
		if !(g.ledger.removed >= 0 && slices.Min(g.ledger.spent) >= 0 && slices.Max(g.ledger.spent) <= g.ledger.eps) {
			r.Fail("%g removed keys weigh %g, expected at most %g", g.ledger.removed, g.ledger.spent, g.ledger.eps)
		}
	}
	if g.norms != nil {
		state.Finite(r, "the length of a query", g.norms.query)
		state.Finite(r, "the length of a key", g.norms.key)
	}
	g.dropped.keys = state.Int(r, "the number of dropped keys", tokens)
	weights := []float64{0, 0}
	state.Finite(r, "the weight of a dropped key", weights)
	g.dropped.largest, g.dropped.sum = weights[0], weights[1]
	pages := state.Int(r, "the number of pages", tokens/PageSlots+3)
	for range pages {
		if r.Err() != nil {
			return
		}
		g.loadPage(r, layer, row)
	}
	if g.live > tokens {
		r.Fail("a head has %d keys after %d tokens", g.live, tokens)
	}
}

// loadPage appends a page. It is made only when its first numbers are there.
func (g *Group) loadPage(r *state.Reader, layer int, row Row) {
	live := state.One[uint64](r)
	if r.Err() != nil {
		return
	}
	p := g.pool.get()
	p.live = live
	copy(p.base, g.clock.base)
	for f := range g.fieldHeads {
		p.step[f] = g.clock.step
		for slot := range p.used() {
			p.level[f*PageSlots+slot] = posInf
		}
	}
	for s := range p.position {
		p.position[s] = -1
	}
	g.live += bits.OnesCount64(live)
	g.pages = append(g.pages, p)
	state.Get(r, p.worst)
	for _, w := range p.worst {
		if !(w >= 0) { // +Inf is what a steep slope makes of a fall
			r.Fail("the largest penalty of a page is %g, expected a number from 0 up", w)
		}
	}
	for f := range p.dead {
		flag := state.One[uint8](r)
		if flag > 1 {
			r.Fail("the mark of a dead page is %d, expected 0 or 1", flag)
		}
		p.dead[f] = flag == 1
	}
	if g.empty() > 3*PageSlots { // more than a group ever keeps, and memory for nothing
		r.Fail("a head has %d pages for %d keys", len(g.pages), g.live)
	}
	for ; live != 0; live &= live - 1 {
		slot := bits.TrailingZeros64(live)
		for f := range g.fieldHeads {
			at := f*PageSlots + slot
			state.Finite(r, "the level of a key", p.level[at:at+1])
			p.low[at] = state.One[float32](r)
			if p.low[at] != p.low[at] {
				r.Fail("the low of a key is NaN")
			}
		}
		for h := range g.keyHeads {
			if row != nil {
				k, v := row(layer, g.first.key+h, (len(g.pages)-1)*PageSlots+slot)
				g.loadRows(r, k, v)
				continue
			}
			s, dk, dv := h*PageSlots+slot, g.keyDim, g.valueDim
			switch g.typ {
			case quant.F16:
				state.Get(r, p.k16[s*dk:(s+1)*dk])
				state.Get(r, p.v16[s*dv:(s+1)*dv])
			case quant.Q8_0:
				p.kScale[s], p.vScale[s] = state.One[float32](r), state.One[float32](r)
				state.Get(r, p.k8[s*dk:(s+1)*dk])
				state.Get(r, p.v8[s*dv:(s+1)*dv])
			default:
				state.Get(r, p.k32[s*dk:(s+1)*dk])
				state.Get(r, p.v32[s*dv:(s+1)*dv])
			}
		}
	}
}

// saveRows writes K and V of a slot of a remote cache as a local one does.
func (l layout) saveRows(w *state.Writer, rows ...[]float32) {
	switch l.typ {
	case quant.F16:
		for _, row := range rows {
			narrow := make([]uint16, len(row))
			quant.EncodeF16(narrow, row)
			state.Put(w, narrow...)
		}
	case quant.Q8_0:
		var bytes [][]int8
		for _, row := range rows {
			narrow, scale := bytesOf(row)
			bytes = append(bytes, narrow)
			state.Put(w, scale)
		}
		for _, narrow := range bytes {
			state.Put(w, narrow...)
		}
	default:
		for _, row := range rows {
			state.Put(w, row...)
		}
	}
}

// bytesOf are the bytes and the scale that a row is the product of. Quantised again,
// a row can come to the number beside its scale.
func bytesOf(row []float32) (narrow []int8, scale float32) {
	narrow = make([]int8, len(row))
	scale = kernels.QuantizeQ8(narrow, row)
	for _, s := range []float32{scale, math.Nextafter32(scale, 0), math.Nextafter32(scale, posInf)} {
		if isProduct(row, narrow, s) {
			return narrow, s
		}
	}
	return narrow, scale
}

func isProduct(row []float32, narrow []int8, scale float32) bool {
	for i, x := range narrow {
		if float32(x)*scale != row[i] {
			return false
		}
	}
	return true
}

// loadRows reads what saveRows wrote. The rows must be finite: a device computes with
// what empty slots hold.
func (l layout) loadRows(r *state.Reader, rows ...[]float32) {
	switch l.typ {
	case quant.F16:
		for _, row := range rows {
			narrow := make([]uint16, len(row))
			state.Get(r, narrow)
			quant.DecodeF16(row, narrow)
		}
	case quant.Q8_0:
		scales := make([]float32, len(rows))
		state.Get(r, scales)
		for i, row := range rows {
			narrow := make([]int8, len(row))
			state.Get(r, narrow)
			for j, x := range narrow {
				row[j] = float32(x) * scales[i]
			}
		}
	default:
		for _, row := range rows {
			state.Get(r, row)
		}
	}
	for _, row := range rows {
		for i, x := range row {
			if x-x != 0 {
				r.Fail("a key or value is %g, expected a finite number", x)
				row[i] = 0
			}
		}
	}
}

// Save writes the walk.
func (w *Walk) Save(to *state.Writer) {
	state.Put(to, w.sum...)
	state.Put(to, w.base...)
}

// Load reads what Save wrote into a walk of as many heads.
func (w *Walk) Load(r *state.Reader) {
	state.Finite(r, "a field", w.sum)
	state.Finite(r, "a field's base", w.base)
}
