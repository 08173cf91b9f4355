// Package cache is the key-value cache that a model itself shrinks, and the
// attention over it.
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
// Group.Feed takes new tokens in, attends and drops keys, either token by token
// or, for longer stretches, in blocks of queries against pages of keys.
//
// Safe eviction (the modes Exact and Bounded) removes a key once its penalty
// proves that its weight stays below a budget for every later query; ledger
// has the rule. The mode Budget holds the cache to a size instead.
package cache

import (
	"fmt"
	"math"
	"slices"

	"github.com/firstpassage/fpa/quant"
)

// PageSlots is the number of keys of a page, one for each bit of a word.
const PageSlots = 64

// Shape is the geometry of a cache, and what attention over it needs to know.
type Shape struct {
	Layers, QueryHeads, KeyHeads int
	FieldHeads                   int // QueryHeads, KeyHeads or 1; 0 without field
	KeyDim, ValueDim             int
	Type                         quant.DType // of K and V: F16, Q8_0 or F32
	Scale                        float32     // of the logits
	Slope                        []float32   // [layer*FieldHeads+head]
}

// Cache is the cache of one sequence.
type Cache struct {
	shape  Shape
	policy Policy
	groups [][]*Group // [layer][group]
	tokens int
	peak   int64 // largest number of live bytes so far
	caps   []int // scratch of plan
}

// New makes an empty cache. It fails when the shape or the policy is not valid.
func New(s Shape, p Policy) (*Cache, error) { return makeCache(s, p, false) }

func makeCache(s Shape, p Policy, remote bool) (*Cache, error) {
	switch s.Type {
	case quant.F16, quant.F32, quant.Q8_0:
	default:
		return nil, fmt.Errorf("cache type %s is not supported, expected f16, q8_0 or f32", s.Type)
	}
	if s.Layers < 1 || s.KeyHeads < 1 || s.QueryHeads%s.KeyHeads != 0 || s.KeyDim < 1 || s.ValueDim < 1 {
		return nil, fmt.Errorf("cache shape %+v is not valid", s)
	}
	if f := s.FieldHeads; f != 0 && f != 1 && f != s.KeyHeads && f != s.QueryHeads {
		return nil, fmt.Errorf("cache shape: %d field heads are neither %d, %d nor 1", f, s.QueryHeads, s.KeyHeads)
	}
	if len(s.Slope) != s.Layers*s.FieldHeads {
		return nil, fmt.Errorf("cache shape: %d slopes for %d layers of %d field heads", len(s.Slope), s.Layers, s.FieldHeads)
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if p.Bound != nil && len(p.Bound) != s.Layers*s.QueryHeads {
		return nil, fmt.Errorf("cache: %d logit bounds for %d layers of %d heads", len(p.Bound), s.Layers, s.QueryHeads)
	}
	c := &Cache{shape: s, policy: p, groups: make([][]*Group, s.Layers)}
	pages := &pool{layout: s.layout()}
	pages.layout.remote, pages.layout.positions = remote, p.Positions
	for layer := range c.groups {
		for i := range s.groupCount() {
			c.groups[layer] = append(c.groups[layer], newGroup(s, p, pages, layer, i))
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

// layout is the geometry of a page; it is the same in all groups.
func (s Shape) layout() layout {
	n := s.groupCount()
	return layout{keyHeads: s.KeyHeads / n, fieldHeads: s.FieldHeads / n, keyDim: s.KeyDim, valueDim: s.ValueDim, typ: s.Type}
}

// Groups are the groups of a layer, in the order of their heads.
func (c *Cache) Groups(layer int) []*Group { return c.groups[layer] }

// Tokens is the number of tokens fed so far.
func (c *Cache) Tokens() int { return c.tokens }

// Begin is called before the groups take n new tokens: it gives every group its
// share of the memory.
func (c *Cache) Begin(n int) {
	if c.policy.Mode == Budget {
		c.plan(n)
	}
}

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
	Mode              Mode         `json:"mode"`
	Tokens            int          `json:"tokens"`
	Kept              float64      `json:"kept"`                // BytesLive / BytesUncompressed
	BytesLive         int64        `json:"bytes_live"`          // K, V, level and low of live keys
	BytesPeak         int64        `json:"bytes_peak"`          // the largest BytesLive after a chunk
	BytesAllocated    int64        `json:"bytes_allocated"`     // whole pages
	BytesUncompressed int64        `json:"bytes_uncompressed"`  // every token kept, same type
	Live              [][]int      `json:"live"`                // live keys [layer][group of heads]
	Evictable         bool         `json:"evictable"`           // keys can be dropped at all
	Positions         [][][]int    `json:"positions,omitempty"` // of the live keys, ascending [layer][group of heads]; where the policy asks for them
	Device            *DeviceStats `json:"device,omitempty"`    // of a cache that is not in the processor's memory in its own type
	Budget            *BudgetStats `json:"budget,omitempty"`    // of the mode Budget
	Audit             *AuditStats  `json:"audit,omitempty"`     // of an audited cache
}

// DeviceStats says how an engine holds the keys of a cache whose books alone are
// kept here. BytesAllocated is what they take.
type DeviceStats struct {
	Type  string `json:"type"`  // the numbers of K and V are held as
	Slots int    `json:"slots"` // of each head of every layer, used or not
}

// Stats measures the cache now.
func (c *Cache) Stats() Stats {
	s := Stats{Mode: c.policy.Mode, Tokens: c.tokens, Live: make([][]int, len(c.groups)), BytesPeak: c.peak}
	if c.policy.Mode == Budget {
		s.Budget = &BudgetStats{Bytes: c.budgetBytes(c.tokens)}
	}
	if c.policy.Audit {
		s.Audit = &AuditStats{}
	}
	for i, layer := range c.groups {
		if c.policy.Positions {
			s.Positions = append(s.Positions, make([][]int, len(layer)))
		}
		for j, g := range layer {
			s.Live[i] = append(s.Live[i], g.live)
			if c.policy.Positions {
				s.Positions[i][j] = g.kept()
			}
			s.BytesLive += int64(g.live) * g.slotBytes()
			s.BytesAllocated += int64(len(g.pages)) * PageSlots * g.slotBytes()
			s.BytesUncompressed += int64(c.tokens) * g.slotBytes()
			s.Evictable = s.Evictable || g.ledger != nil || c.policy.Mode == Budget && !g.softmax()
			if s.Budget != nil {
				s.Budget.add(g.dropped)
			}
			if s.Audit != nil {
				s.Audit.LargestWeight = max(s.Audit.LargestWeight, g.audit.largest)
				s.Audit.Removed += g.audit.live + g.aside
			}
		}
	}
	if s.BytesUncompressed > 0 {
		s.Kept = float64(s.BytesLive) / float64(s.BytesUncompressed)
	}
	return s
}

// LiveRange is the least, the median and the largest number of live keys of a
// layer's groups.
func LiveRange(live []int) (least, median, most int) {
	sorted := slices.Sorted(slices.Values(live))
	return sorted[0], sorted[len(sorted)/2], sorted[len(sorted)-1]
}

// posInf marks an empty slot in level, and an empty stretch in low.
var posInf = float32(math.Inf(1))
