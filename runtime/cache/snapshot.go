package cache

import (
	"errors"
	"math"
	"math/bits"
	"slices"

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
	state.PutInt(w, len(g.pages))
	for i, p := range g.pages {
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
					k, v := row(layer, g.first.key+h, i*PageSlots+slot)
					g.saveRow(w, k)
					g.saveRow(w, v)
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
				g.loadRow(r, k)
				g.loadRow(r, v)
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

// saveRow writes a row of a remote cache, which is of type F16 or F32.
func (l layout) saveRow(w *state.Writer, row []float32) {
	if l.typ == quant.F16 {
		narrow := make([]uint16, len(row))
		quant.EncodeF16(narrow, row)
		state.Put(w, narrow...)
		return
	}
	state.Put(w, row...)
}

// loadRow reads what saveRow wrote. The row must be finite: a device computes with
// what empty slots hold.
func (l layout) loadRow(r *state.Reader, row []float32) {
	const what = "a key or value"
	if l.typ == quant.F32 {
		state.Finite(r, what, row)
		return
	}
	narrow := make([]uint16, len(row))
	state.Get(r, narrow)
	quant.DecodeF16(row, narrow)
	for i, x := range row {
		if x-x != 0 {
			r.Fail("%s is %g, expected a finite number", what, x)
			row[i] = 0
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
