package attention

import (
	"math"

	"github.com/firstpassage/fpa/ops/kernels"
)

// live is which slots stay, where dead ones are dropped. Heads whose slots stay or
// go together form a group: the query heads that no key head and no field head
// joins to others.
type live struct {
	groups int
	low    []float32 // [B, Hf, P+T], at the end of the call
	slots  []int32   // [B, group][P+T], the live ones first, in order
	count  []int     // [B, group]
	limit  []float64 // [Hf], the penalty from which a key is dead
}

// planDrop finds the slots that stay and returns the largest number of a group.
func (c *Call[E]) planDrop() int {
	n, l := c.Past+c.New, &c.drop
	if n == 0 { // there is nothing, of whatever batch size
		return 0
	}
	l.groups = gcd(c.KeyHeads, c.FieldHeads)
	if total := c.Batch * l.groups; cap(l.slots) < total*n || cap(l.count) < total {
		l.slots, l.count = make([]int32, total*n), make([]int, total)
	}
	l.slots, l.count = l.slots[:c.Batch*l.groups*n], l.count[:c.Batch*l.groups]
	l.low = grow(l.low, c.Batch*c.FieldHeads*n)
	if cap(l.limit) < c.FieldHeads {
		l.limit = make([]float64, c.FieldHeads)
	}
	l.limit = l.limit[:c.FieldHeads]
	clear(l.limit)
	for h, t := range c.Threshold {
		f := h * c.FieldHeads / c.QueryHeads
		l.limit[f] = max(l.limit[f], t)
	}
	most, perGroup := 0, c.FieldHeads/l.groups
	for g := range l.count {
		first := g * perGroup // of all batch entries' field heads
		for f := first; f < first+perGroup; f++ {
			c.lows(l.low[f*n:(f+1)*n], f)
		}
		slots, count := l.slots[g*n:(g+1)*n], 0
		for j := range n {
			for f := first; f < first+perGroup; f++ {
				if c.lives(f, j) {
					slots[count] = int32(j)
					count++
					break
				}
			}
		}
		l.count[g] = count
		most = max(most, count)
	}
	return most
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// level is the level of slot j, past ones first, of a field head of the batch.
func (c *Call[E]) level(f, j int) float32 {
	if j < c.Past {
		return c.PastLevel[f*c.Past+j]
	}
	return c.Level[f*c.New+j-c.Past]
}

// lives says whether a field head needs a slot. Level and low are float32 numbers
// that may have been rounded, so the fall between them is lowered by what that can
// amount to.
func (c *Call[E]) lives(f, j int) bool {
	l := c.level(f, j)
	if l == posInf {
		return false
	}
	level, low := float64(l), float64(c.drop.low[f*(c.Past+c.New)+j])
	fall := level - low - (math.Abs(level)+math.Abs(low))*0x1p-22
	head := f % c.FieldHeads
	return !(float64(c.Slope[head])*fall >= c.drop.limit[head])
}

// lows sets low to those of all slots, past ones first, at the end of the call,
// for a field head of the batch; +Inf where there is no key.
func (c *Call[E]) lows(low []float32, f int) {
	level, field := c.Level[f*c.New:(f+1)*c.New], c.Field[f*c.New:(f+1)*c.New]
	past, fresh := low[:c.Past], low[c.Past:]
	least := posInf
	for t := c.New - 1; t >= 0; t-- {
		fresh[t] = posInf
		if level[t] == posInf {
			continue
		}
		before := least
		least = min(least, field[t])
		fresh[t] = before
		if c.Inclusive {
			fresh[t] = least
		}
	}
	copy(past, c.PastLow[f*c.Past:(f+1)*c.Past])
	kernels.UpdateLow(past, least)
	for j, l := range c.PastLevel[f*c.Past : (f+1)*c.Past] {
		if l == posInf {
			past[j] = posInf
		}
	}
}

// keepField writes the levels and lows that stay of the unit's field head.
func (u *part[E]) keepField() {
	f := u.batch*u.FieldHeads + u.fieldHead
	if u.Threshold == nil {
		if u.PresentLow != nil {
			u.lows(u.PresentLow[f*u.slots:(f+1)*u.slots], f)
		}
		if u.PresentLevel != nil {
			level := u.PresentLevel[f*u.slots : (f+1)*u.slots]
			copy(level, u.PastLevel[f*u.Past:(f+1)*u.Past])
			copy(level[u.Past:], u.Level[f*u.New:(f+1)*u.New])
		}
		return
	}
	l, n := &u.drop, u.Past+u.New
	g := f / (u.FieldHeads / l.groups)
	slots := l.slots[g*n : g*n+l.count[g]]
	for i := range u.slots {
		level, low := posInf, posInf
		if i < len(slots) {
			j := int(slots[i])
			level, low = u.level(f, j), l.low[f*n+j]
		}
		if u.PresentLevel != nil {
			u.PresentLevel[f*u.slots+i] = level
		}
		if u.PresentLow != nil {
			u.PresentLow[f*u.slots+i] = low
		}
	}
}

// keep writes the keys and values of the unit's share of the present slots, as
// far as they lie in from..to.
func (u *part[E]) keep(from, to int) {
	u.keepKeys(from, to)
	u.keepValues(from, to)
}

func (u *part[E]) keepKeys(from, to int) {
	if u.PresentKey != nil {
		u.keepRows(u.PresentKey, u.PastKey, u.Key, u.KeyDim, from, to)
	}
}

func (u *part[E]) keepValues(from, to int) {
	if u.PresentValue != nil {
		u.keepRows(u.PresentValue, u.PastValue, u.Value, u.ValueDim, from, to)
	}
}

func (u *part[E]) keepRows(dst, past, fresh []E, width, from, to int) {
	from, to = max(from, u.keepFrom), min(to, u.keepTo)
	if from >= to {
		return
	}
	dst, past, fresh = u.keys(dst, u.slots, width), u.keys(past, u.Past, width), u.keys(fresh, u.New, width)
	if u.Threshold == nil {
		if from < u.Past {
			copy(dst[from*width:], past[from*width:min(to, u.Past)*width])
		}
		if to > u.Past {
			from = max(from, u.Past)
			copy(dst[from*width:], fresh[(from-u.Past)*width:(to-u.Past)*width])
		}
		return
	}
	l, n := &u.drop, u.Past+u.New
	g := u.batch*l.groups + u.keyHead/(u.KeyHeads/l.groups)
	slots := l.slots[g*n : g*n+l.count[g]]
	for i := from; i < to; i++ {
		row := dst[i*width : (i+1)*width]
		switch {
		case i >= len(slots):
			clear(row)
		case int(slots[i]) < u.Past:
			copy(row, past[int(slots[i])*width:])
		default:
			copy(row, fresh[(int(slots[i])-u.Past)*width:])
		}
	}
}
