// Package cache is the key-value cache that a model itself shrinks.
//
// A slot holds one key: its K and V vectors and, for every field head that
// looks at it, two numbers: the level of the key and its low, the smallest
// value of the field since. Nothing about its position is kept, so the order of
// slots has no meaning and a freed slot is used again by the next key.
//
// Slots live in pages of PageSlots. In a page the K of one head are contiguous
// [slot][KeyDim], and so are the V, which is what the attention kernels read.
// Heads whose keys live and die together form a group: the query heads of one
// key head and its field head or heads, or, where there are fewer field heads
// than key heads, all key heads of one field head. A group is independent of
// every other, so engines run groups in parallel.
//
// Safe eviction (the modes Exact and Bounded) removes a key once its penalty
// proves that its weight stays below a budget for every later query; Ledger
// has the rule.
package cache

import (
	"fmt"
	"math"

	"github.com/firstpassage/fpa/quant"
)

// PageSlots is the number of keys of a page.
const PageSlots = 64

// Shape is the geometry of a cache.
type Shape struct {
	Layers, QueryHeads, KeyHeads int
	FieldHeads                   int // QueryHeads, KeyHeads or 1; 0 without field
	KeyDim, ValueDim             int
	Type                         quant.DType // of K and V: F16 or F32
}

// Mode says when a key is dropped.
type Mode string

// The modes.
const (
	Off     Mode = "off"     // never
	Exact   Mode = "exact"   // removed weight at most 2^-25 in total a query head
	Bounded Mode = "bounded" // removed weight at most Eps in total a query head
)

// ExactEps is the budget of the mode Exact. At 2^-25 the output of a head moves
// by at most 2^-24 of the largest value, the rounding of float32.
const ExactEps = 1.0 / (1 << 25)

// Policy says what is dropped.
type Policy struct {
	Mode Mode
	Eps  float64 // of the mode Bounded, above 0 and below 1
	// Bound[layer*QueryHeads+head] bounds the absolute logit, without penalty,
	// over all inputs. Nil: nothing can be proved, so nothing is dropped.
	Bound []float32
}

// Validate checks that the mode is known and its budget makes sense.
func (p Policy) Validate() error {
	switch p.Mode {
	case Off, Exact:
		return nil
	case Bounded:
		if !(p.Eps > 0 && p.Eps < 1) {
			return fmt.Errorf("cache mode bounded: the budget is %g, expected a number above 0 and below 1", p.Eps)
		}
		return nil
	}
	return fmt.Errorf("cache mode %q is not known, expected off, exact or bounded", p.Mode)
}

// eps is the weight that may be removed in total a query head; 0 for nothing.
func (p Policy) eps() float64 {
	switch {
	case p.Bound == nil || p.Mode == Off:
		return 0
	case p.Mode == Exact:
		return ExactEps
	}
	return p.Eps
}

// Cache is the cache of one sequence.
type Cache struct {
	shape  Shape
	groups [][]*Group // [layer][group]
	tokens int
	peak   int64 // largest number of live bytes so far
}

// New makes an empty cache. It fails when the shape or the policy is not valid.
func New(s Shape, p Policy) (*Cache, error) {
	if s.Type != quant.F16 && s.Type != quant.F32 {
		return nil, fmt.Errorf("cache type %s is not supported, expected f16 or f32", s.Type)
	}
	if s.Layers < 1 || s.KeyHeads < 1 || s.QueryHeads%s.KeyHeads != 0 || s.KeyDim < 1 || s.ValueDim < 1 {
		return nil, fmt.Errorf("cache shape %+v is not valid", s)
	}
	if f := s.FieldHeads; f != 0 && f != 1 && f != s.KeyHeads && f != s.QueryHeads {
		return nil, fmt.Errorf("cache shape: %d field heads are neither %d, %d nor 1", f, s.QueryHeads, s.KeyHeads)
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if p.Bound != nil && len(p.Bound) != s.Layers*s.QueryHeads {
		return nil, fmt.Errorf("cache: %d logit bounds for %d layers of %d heads", len(p.Bound), s.Layers, s.QueryHeads)
	}
	c := &Cache{shape: s, groups: make([][]*Group, s.Layers)}
	pages := &pool{keyDim: s.KeyDim, valueDim: s.ValueDim, half: s.Type == quant.F16}
	n := s.groupCount()
	eps := p.eps()
	for layer := range c.groups {
		for i := range n {
			g := newGroup(s, pages)
			if eps > 0 && s.FieldHeads > 0 {
				first := layer*s.QueryHeads + i*g.QueryHeads
				g.ledger = newLedger(eps, p.Bound[first:first+g.QueryHeads])
			}
			c.groups[layer] = append(c.groups[layer], g)
		}
	}
	return c, nil
}

// groupCount is the number of groups of a layer.
func (s Shape) groupCount() int {
	if s.FieldHeads == 0 {
		return s.KeyHeads
	}
	return min(s.FieldHeads, s.KeyHeads)
}

// Groups are the groups of a layer, in the order of their heads.
func (c *Cache) Groups(layer int) []*Group { return c.groups[layer] }

// Tokens is the number of tokens fed so far.
func (c *Cache) Tokens() int { return c.tokens }

// Advance counts n tokens that every group has taken, and notes the peak.
func (c *Cache) Advance(n int) {
	c.tokens += n
	c.peak = max(c.peak, c.liveBytes())
}

func (c *Cache) liveBytes() int64 {
	var b int64
	for _, layer := range c.groups {
		for _, g := range layer {
			b += int64(g.live) * g.slotBytes()
		}
	}
	return b
}

// Stats measures a cache.
type Stats struct {
	Tokens            int     `json:"tokens"`
	Kept              float64 `json:"kept"`               // BytesLive / BytesUncompressed
	BytesLive         int64   `json:"bytes_live"`         // K, V, level and low of live keys
	BytesPeak         int64   `json:"bytes_peak"`         // the largest BytesLive after a chunk
	BytesAllocated    int64   `json:"bytes_allocated"`    // whole pages
	BytesUncompressed int64   `json:"bytes_uncompressed"` // every token kept, same type
	Live              [][]int `json:"live"`               // live keys [layer][key head group]
	Evictable         bool    `json:"evictable"`          // a proved bound lets keys be dropped
}

// Stats measures the cache now.
func (c *Cache) Stats() Stats {
	s := Stats{Tokens: c.tokens, Live: make([][]int, len(c.groups)), BytesPeak: c.peak}
	for i, layer := range c.groups {
		for _, g := range layer {
			s.Live[i] = append(s.Live[i], g.live)
			s.BytesLive += int64(g.live) * g.slotBytes()
			s.BytesAllocated += int64(len(g.pages)) * PageSlots * g.slotBytes()
			s.BytesUncompressed += int64(c.tokens) * g.slotBytes()
			s.Evictable = s.Evictable || g.ledger != nil
		}
	}
	if s.BytesUncompressed > 0 {
		s.Kept = float64(s.BytesLive) / float64(s.BytesUncompressed)
	}
	return s
}

// posInf marks an empty slot in level, and an empty stretch in low.
var posInf = float32(math.Inf(1))
