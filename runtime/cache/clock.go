package cache

import (
	"sort"

	"github.com/firstpassage/fpa/ops/kernels"
)

// clock follows the fields of a group: how many tokens have passed, what the
// fields are measured from, and how far they have fallen. Pages look at it when
// they are read, so that a token costs the same however many keys there are.
type clock struct {
	step int       // tokens taken
	base []float64 // [field head], the whole number that fields are relative to
	low  []minima  // [field head]
}

func newClock(fieldHeads int) *clock {
	return &clock{base: make([]float64, fieldHeads), low: make([]minima, fieldHeads)}
}

// move adds to the bases.
func (c *clock) move(by []float32) {
	for f, b := range by {
		c.base[f] += float64(b)
	}
}

// pass counts tokens over which the smallest field of head f was field[f],
// relative to its base.
func (c *clock) pass(tokens int, field []float32) {
	c.step += tokens
	for f, x := range field {
		c.low[f].push(c.step, c.base[f]+float64(x))
	}
}

// since is the smallest field of a head after a step, relative to its base; +Inf
// when there was none.
func (c *clock) since(f, step int) float32 {
	return float32(c.low[f].since(step) - c.base[f])
}

// rebase makes the first n levels and lows of a page relative to the base of now.
func (c *clock) rebase(p *page, f, n int) {
	if by := c.base[f] - p.base[f]; by != 0 {
		level, low := p.fields(f, n)
		kernels.Sub(level, float32(by))
		kernels.Sub(low, float32(by))
		p.base[f] = c.base[f]
	}
}

// lower brings the first n lows of a page up to date for a field head.
func (c *clock) lower(p *page, f, n int) {
	c.rebase(p, f, n)
	_, low := p.fields(f, n)
	kernels.UpdateLow(low, c.since(f, p.step[f]))
	p.step[f] = c.step
}

// settle brings all lows of a page up to date.
func (c *clock) settle(p *page) {
	for f := range c.base {
		c.lower(p, f, p.used())
	}
}

// minima answers what the smallest number since a step was. It keeps the steps
// whose number is smaller than all later ones: a new number removes those at the
// end that are not, so a push costs constant time on average.
type minima struct {
	step  []int // ascending
	value []float64
}

func (m *minima) push(step int, x float64) {
	n := len(m.value)
	for n > 0 && m.value[n-1] >= x {
		n--
	}
	m.step, m.value = append(m.step[:n], step), append(m.value[:n], x)
}

// since is the smallest number pushed after a step, +Inf for none: values ascend
// with steps, so it is the first one after it.
func (m *minima) since(step int) float64 {
	// Nearly always the page was read at the step before, or at this one.
	n := len(m.step)
	if n == 0 || m.step[n-1] <= step {
		return float64(posInf)
	}
	if n == 1 || m.step[n-2] <= step {
		return m.value[n-1]
	}
	return m.value[sort.SearchInts(m.step, step+1)]
}

// forget drops all that was pushed.
func (m *minima) forget() { m.step, m.value = m.step[:0], m.value[:0] }

// longest is the length of the longest list of minima.
func (c *clock) longest() int {
	n := 0
	for i := range c.low {
		n = max(n, len(c.low[i].step))
	}
	return n
}

// forget drops the minima, which every page has taken in.
func (c *clock) forget() {
	for i := range c.low {
		c.low[i].forget()
	}
}
