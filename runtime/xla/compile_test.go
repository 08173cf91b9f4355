package xla

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// forgetful is a tiny model that keeps every key until token 0 comes, whose field lies
// far below the level of all others.
func forgetful(t *testing.T) *model.Model {
	c := modeltest.Config()
	c.Hidden, c.FeedForward, c.Blocks, c.VocabSize = 8, 8, 1, 16
	c.Heads, c.KVHeads, c.FieldHeads, c.KeyDim, c.ValDim = 1, 1, 1, 4, 4
	c.Field, c.FieldActivation, c.Level = model.FieldDirect, model.Identity, model.LevelAbsolute
	p := modeltest.Random(c, 3, true)
	for _, x := range p.Tensors {
		set := func(i int, v float32) { binary.LittleEndian.PutUint32(x.Data[4*i:], math.Float32bits(v)) }
		switch x.Name {
		case "token_embd.weight":
			for id := range c.VocabSize {
				set(id*c.Hidden, -1)
			}
			set(0, 1)
		case "blk.0.attn_field.weight", "blk.0.attn_level.weight", "blk.0.attn_field.bias", "blk.0.attn_level.bias":
			for i := range len(x.Data) / 4 {
				set(i, 0)
			}
			if x.Name == "blk.0.attn_field.weight" {
				set(0, -1000)
			}
		}
	}
	return build(t, p)
}

// TestCompilations runs 5,000 tokens in chunks of many sizes and one by one, with a cache
// that grows and is emptied twice: a program is compiled for each size of chunk with each
// capacity that comes up, and when all have come up nothing is compiled any more.
func TestCompilations(t *testing.T) {
	m := forgetful(t)
	each(t, func(k kind) bool { return k.shared && !k.compiles }, func(t *testing.T, k kind) {
		e := k.engine(t, m, Options{})
		s := newSession(t, e, quant.F32, cache.Policy{Mode: cache.Exact}).(*Session)
		type bucket struct{ size, capacity int }
		decoders := map[bucket]bool{}
		outputs := map[int]bool{}
		none := func(int) bool { return false }
		fed := 0
		feedOne := func(n int, id int32) {
			ids := modeltest.Tokens(n, m.VocabSize, uint64(fed))
			for i := range ids {
				ids[i] = max(1, ids[i])
			}
			ids[n-1] = id
			for left := n; left > 0; {
				size := chunkSize(left, e.chunk)
				capacity := s.keys.capacity
				if size > 1 && s.Len() == 0 {
					capacity = 0
				}
				decoders[bucket{size, capacity}] = true
				take := min(size, left)
				want := none
				if left == n && take > 1 { // of a token that is not the last of its chunk
					first := s.Len()
					want = func(p int) bool { return p == first }
					outputs[size] = true
				}
				feed(t, s, ids[n-left:n-left+take], want)
				left -= take
			}
			fed += n
		}
		var counts []int
		most := 0
		for range 2 {
			for _, n := range []int{700, 20, 100, 5} {
				feedOne(n, 1)
			}
			for range 1000 {
				feedOne(1, 1)
				most = max(most, s.keys.capacity)
			}
			for range 674 {
				feedOne(1, 0) // which empties the cache, but for the token itself
			}
			if n := s.keys.capacity; n != leastSlots {
				t.Errorf("capacity %d after all keys died", n)
			}
			feedOne(1, 1)
			counts = append(counts, e.Stats().Compilations)
		}
		if most < 1825 || fed != 5000 {
			t.Errorf("%d tokens, and the capacity was %d at most", fed, most)
		}
		if want := len(decoders) + len(outputs); counts[1] != want {
			t.Errorf("%d programs, expected %d decoders and %d outputs", counts[1], len(decoders), len(outputs))
		}
		// The first prompt met no cache, which the second one did.
		if more := counts[1] - counts[0]; more > len(chunkSizes) {
			t.Errorf("%d programs, and %d when the same came up again", counts[0], counts[1])
		}
		capacities := 1 + 4 // none, and 256 to 2,048
		if bound := len(chunkSizes)*capacities + len(chunkSizes); counts[1] > bound {
			t.Errorf("%d programs, the buckets allow %d", counts[1], bound)
		}
	})
}
