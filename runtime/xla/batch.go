package xla

import (
	"fmt"

	"github.com/gomlx/gomlx/backends"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/internal/finite"
)

// Batch is a fixed number of sequences that go through the model side by side, so
// that a pass reads the weights once for all of them. Each has a cache of its own
// that drops keys as that of a session does; on the device all have as many slots.
type Batch struct {
	*lanes
	n      int // sequences, at most as many as the lanes
	typ    quant.DType
	policy cache.Policy
}

// NewBatch starts n empty sequences. It fails as NewSession does.
func (e *Engine) NewBatch(n int, t quant.DType, p cache.Policy) (*Batch, error) {
	if n < 1 || n > maxBatch {
		return nil, fmt.Errorf("a batch of %d sequences, expected 1 to %d", n, maxBatch)
	}
	var seqs []*sequence
	for range n {
		q, err := e.newSequence(t, p)
		if err != nil {
			return nil, err
		}
		seqs = append(seqs, q)
	}
	l, err := e.newLanes(seqs, t, p)
	if err != nil {
		return nil, err
	}
	return &Batch{l, n, t, p}, nil
}

// maxBatch bounds the sequences of a batch.
const maxBatch = 1024

// Feed runs ids[i] through the model after all that sequence i was fed before; there
// must be as many lists as sequences, and some may be empty. each is called with the
// logits of the last token of every sequence that was fed, in the order in which they
// end; it may change them, and they are valid during the call. It fails as a session's
// Feed does, and the whole batch is then of no further use, except after an id outside
// the vocabulary.
func (b *Batch) Feed(ids [][]int32, each func(sequence int, logits []float32) error) error {
	m := b.e.model
	if len(ids) != b.n {
		return fmt.Errorf("tokens for %d sequences, the batch has %d", len(ids), b.n)
	}
	for i, list := range ids {
		if err := checkIDs(list, m.VocabSize); err != nil {
			return fmt.Errorf("sequence %d: %w", i, err)
		}
	}
	rest := append([][]int32(nil), ids...)
	now := make([][]int32, len(ids))
	for {
		longest := 0
		for _, list := range rest {
			longest = max(longest, len(list))
		}
		if longest == 0 {
			return nil
		}
		size := chunkSize(longest, max(1, b.e.chunk*b.e.lanesOver()/len(b.seqs)))
		for i, list := range rest {
			n := min(size, len(list))
			now[i], rest[i] = list[:n], list[n:]
		}
		err := try(func() error {
			return b.feedChunk(now, size, func(logits, _ backends.Buffer) error {
				return b.ended(logits, now, rest, each)
			})
		})
		if err != nil {
			return err
		}
	}
}

// ended passes on the logits, a buffer of [B, V], of the sequences that were fed and
// of which nothing is left.
func (b *Batch) ended(logits backends.Buffer, fed, rest [][]int32, each func(int, []float32) error) error {
	vocab := b.e.model.VocabSize
	var all []float32
	for i := range fed {
		if len(fed[i]) == 0 || len(rest[i]) > 0 {
			continue
		}
		if all == nil {
			all = grow(&b.buf.logits, len(b.seqs)*vocab)
			if err := take(b.e, logits, all); err != nil {
				return err
			}
		}
		row := all[i*vocab : (i+1)*vocab]
		if err := finite.Logits(row, b.Len(i)-1); err != nil {
			return fmt.Errorf("sequence %d: %w", i, err)
		}
		if err := each(i, row); err != nil {
			return err
		}
	}
	return nil
}

// Len is the number of tokens fed to sequence i.
func (b *Batch) Len(i int) int { return b.seqs[i].Len() }

// CacheStats measures the cache of sequence i.
func (b *Batch) CacheStats(i int) cache.Stats {
	st := b.seqs[i].books.Stats()
	b.keys.report(&st, len(b.seqs))
	return st
}

// Reset makes sequence i an empty one, for another text.
func (b *Batch) Reset(i int) error {
	q, err := b.e.newSequence(b.typ, b.policy)
	if err != nil {
		return err
	}
	b.seqs[i] = q
	for _, last := range []*array{b.lastK, b.lastV} {
		if last == nil {
			continue
		}
		width := last.shape.Dimensions[2]
		for layer := range b.e.model.Blocks {
			clear(last.floats()[(layer*len(b.seqs)+i)*width:][:width])
		}
	}
	return nil
}
