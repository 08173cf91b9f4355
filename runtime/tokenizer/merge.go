package tokenizer

import (
	"math"
	"math/bits"
	"math/rand/v2"
)

// noRank is the rank of a pair that does not merge.
const noRank = math.MaxInt32

// A merge says that a pair becomes one token, and how early: lower ranks first.
type merge struct {
	rank int32
	id   int32
}

// mergeTable maps pairs of tokens to merges: open addressing with a
// multiplicative hash, several times faster than a Go map. The multiplier is
// random, so that a file cannot be made to collide.
type mergeTable struct {
	keys   []uint64 // pairKey of the pair plus 1; 0 is a free slot
	merges []merge
	shift  uint
	mul    uint64
}

// pairKey is never the largest uint64, because ids are not negative.
func pairKey(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// newMergeTable is a table for up to n pairs.
func newMergeTable(n int) *mergeTable {
	logSize := max(bits.Len(uint(n)*2), 4)
	return &mergeTable{
		keys:   make([]uint64, 1<<logSize),
		merges: make([]merge, 1<<logSize),
		shift:  uint(64 - logSize),
		mul:    rand.Uint64() | 1,
	}
}

// put sets the merge of a pair, replacing an earlier one.
func (t *mergeTable) put(left, right int32, m merge) {
	key := pairKey(left, right) + 1
	slot := key * t.mul >> t.shift
	for t.keys[slot] != 0 && t.keys[slot] != key {
		slot = (slot + 1) & uint64(len(t.keys)-1)
	}
	t.keys[slot], t.merges[slot] = key, m
}

// get is the merge of a pair; its rank is noRank where there is none.
func (t *mergeTable) get(left, right int32) merge {
	key := pairKey(left, right) + 1
	slot := key * t.mul >> t.shift
	for {
		switch t.keys[slot] {
		case key:
			return t.merges[slot]
		case 0:
			return merge{rank: noRank}
		}
		slot = (slot + 1) & uint64(len(t.keys)-1)
	}
}

// A merger applies merges to sequences of tokens. It keeps its buffers from one
// call to the next, so it serves one goroutine at a time.
type merger struct {
	table *mergeTable
	pairs []merge  // of each token with the next
	next  []int32  // long sequences: the next token that is left, or the length
	prev  []int32  // the one before, or -1
	heap  []uint64 // rank<<32 | place of the left token
}

// longSequence is the length from which a heap is faster than looking for the
// lowest rank each time.
const longSequence = 64

// merge merges pairs of ids, in place, until none is left: the lowest rank
// first, of equal ranks the leftmost. It returns what remains.
func (m *merger) merge(ids []int32) []int32 {
	switch {
	case len(ids) < 2:
		return ids
	case len(ids) < longSequence:
		return m.mergeShort(ids)
	}
	return m.mergeLong(ids)
}

// mergeShort takes time quadratic in the length.
func (m *merger) mergeShort(ids []int32) []int32 {
	pairs := m.pairs[:0]
	for i := range len(ids) - 1 {
		pairs = append(pairs, m.table.get(ids[i], ids[i+1]))
	}
	m.pairs = pairs
	for {
		best, at := int32(noRank), -1
		for i := range pairs {
			if pairs[i].rank < best {
				best, at = pairs[i].rank, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = pairs[at].id
		copy(ids[at+1:], ids[at+2:])
		ids = ids[:len(ids)-1]
		copy(pairs[at:], pairs[at+1:])
		pairs = pairs[:len(pairs)-1]
		if at > 0 {
			pairs[at-1] = m.table.get(ids[at-1], ids[at])
		}
		if at < len(pairs) {
			pairs[at] = m.table.get(ids[at], ids[at+1])
		}
	}
}

// mergeLong takes time n log n: a linked list of tokens, and a heap of the pairs
// that merge. An entry of the heap is stale when its rank is no longer the
// pair's.
func (m *merger) mergeLong(ids []int32) []int32 {
	n := len(ids)
	m.pairs = append(m.pairs[:0], make([]merge, n)...)
	m.next = append(m.next[:0], make([]int32, n)...)
	m.prev = append(m.prev[:0], make([]int32, n)...)
	m.heap = m.heap[:0]
	pairs, next, prev := m.pairs, m.next, m.prev
	for i := range ids {
		next[i], prev[i] = int32(i+1), int32(i-1)
		pairs[i].rank = noRank
		if i+1 < n {
			pairs[i] = m.table.get(ids[i], ids[i+1])
		}
		if pairs[i].rank != noRank {
			m.heap = append(m.heap, uint64(pairs[i].rank)<<32|uint64(i))
		}
	}
	for i := len(m.heap)/4 + 1; i >= 0; i-- {
		m.down(i)
	}
	for len(m.heap) > 0 {
		top := m.heap[0]
		last := len(m.heap) - 1
		m.heap[0] = m.heap[last]
		m.heap = m.heap[:last]
		m.down(0)
		at := int32(uint32(top))
		if pairs[at].rank != int32(top>>32) {
			continue
		}
		gone := next[at]
		ids[at] = pairs[at].id
		pairs[gone].rank = noRank
		next[at] = next[gone]
		pairs[at].rank = noRank
		if right := next[at]; int(right) < n {
			prev[right] = at
			m.update(at, ids[at], ids[right])
		}
		if left := prev[at]; left >= 0 {
			m.update(left, ids[left], ids[at])
		}
	}
	kept := ids[:0]
	for i := int32(0); int(i) < n; i = next[i] {
		kept = append(kept, ids[i])
	}
	return kept
}

// update looks up the pair that now starts at a place.
func (m *merger) update(at, left, right int32) {
	pair := m.table.get(left, right)
	m.pairs[at] = pair
	if pair.rank == noRank {
		return
	}
	m.heap = append(m.heap, uint64(pair.rank)<<32|uint64(at))
	for i := len(m.heap) - 1; i > 0; {
		parent := (i - 1) / 4
		if m.heap[parent] <= m.heap[i] {
			break
		}
		m.heap[parent], m.heap[i] = m.heap[i], m.heap[parent]
		i = parent
	}
}

// down restores the order of the heap (four children a node) below a place.
func (m *merger) down(i int) {
	h := m.heap
	for {
		least := i
		for child := 4*i + 1; child <= 4*i+4 && child < len(h); child++ {
			if h[child] < h[least] {
				least = child
			}
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}
