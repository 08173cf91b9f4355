package xla

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	"github.com/gomlx/gomlx/pkg/core/shapes"

	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/internal/finite"
)

// FeedBatch feeds several sessions of the engine, those that go side by side in one
// pass; see engine.Batcher. Sessions that are empty, with caches of the same type and of
// policies that watch the same, go side by side from the first batch that has them.
// Others take turns.
//
// A fault of the device, or a number that attention cannot work with, fails all parts of
// a pass.
func (e *Engine) FeedBatch(parts []engine.Part) error {
	var all []*engine.Part
	seen := make(map[*Session]bool)
	for i := range parts {
		p := &parts[i]
		s, ours := p.Session.(*Session)
		switch {
		case !ours || s.e != e:
			p.Err = fmt.Errorf("the batch has a session of another engine (%T)", p.Session)
		case seen[s]:
			p.Err = errors.New("the batch has a session twice; give all its tokens at once")
		default:
			p.Err = nil
			seen[s] = true
			all = append(all, p)
		}
	}
	if err := try(func() error { return e.join(all) }); err != nil {
		for _, p := range all {
			p.Err = err
		}
		all = nil
	}
	for len(all) > 0 {
		l := all[0].Session.(*Session).lanes
		var now, later []*engine.Part
		for _, p := range all {
			if p.Session.(*Session).lanes == l {
				now = append(now, p)
			} else {
				later = append(later, p)
			}
		}
		l.feedTogether(now)
		all = later
	}
	for i := range parts {
		if err := parts[i].Err; err != nil {
			return err
		}
	}
	return nil
}

// maxBatch bounds the sessions that go side by side.
const maxBatch = 1024

// join puts empty sessions that are alone side by side.
func (e *Engine) join(parts []*engine.Part) error {
	var alone []*Session
	for _, p := range parts {
		if s := p.Session.(*Session); s.sessions == 1 && !s.begun() {
			alone = append(alone, s)
		}
	}
	for len(alone) > 1 {
		first := alone[0].lanes
		var now, later []*Session
		var seqs []*sequence
		for _, s := range alone {
			if s.typ == first.typ && s.watch == first.watch && len(now) < maxBatch {
				now, seqs = append(now, s), append(seqs, s.sequence)
			} else {
				later = append(later, s)
			}
		}
		alone = later
		if len(now) == 1 {
			continue
		}
		l, err := e.newLanes(seqs, first.typ, first.policy)
		if err != nil {
			return err
		}
		for i, s := range now {
			s.keys.free()
			s.lanes, s.lane = l, i
		}
	}
	return nil
}

// turn is a part while it is fed.
type turn struct {
	*engine.Part
	lane, n int // n: tokens in the chunk
	last    int // position of the last token
}

// feedTogether feeds parts, all of sessions of the lanes, a chunk of each at a time.
func (s *lanes) feedTogether(parts []*engine.Part) {
	var turns []*turn
	rest := make([][]int32, len(s.seqs))
	for _, p := range parts {
		q := p.Session.(*Session)
		if p.Err = checkIDs(p.IDs, s.e.model.VocabSize); p.Err == nil {
			turns = append(turns, &turn{Part: p, lane: q.lane, last: q.Len() + len(p.IDs) - 1})
			rest[q.lane] = p.IDs
		}
	}
	for {
		longest := 0
		for _, ids := range rest {
			longest = max(longest, len(ids))
		}
		if longest == 0 {
			return
		}
		size := chunkSize(longest, max(1, s.e.chunk*s.e.lanesOver()/len(s.seqs)))
		now := make([][]int32, len(rest))
		for i, ids := range rest {
			n := min(size, len(ids))
			now[i], rest[i] = ids[:n], ids[n:]
		}
		err := try(func() error {
			return s.feedChunk(now, size, func(last, stream backends.Buffer) error {
				out := &chunkLogits{s: s, last: last, stream: stream, size: size}
				for _, t := range turns {
					if t.n = len(now[t.lane]); t.n == 0 {
						continue
					}
					if t.Err = out.each(t, s.seqs[t.lane].Len()-t.n); t.Err != nil {
						rest[t.lane] = nil
					}
				}
				return nil
			})
		})
		if err == nil {
			continue
		}
		for _, t := range turns {
			if len(now[t.lane]) > 0 && t.Err == nil {
				t.Err = err
			}
			rest[t.lane] = nil
		}
	}
}

// outputRowsAtOnce is the number of rows whose logits are computed at a time.
const outputRowsAtOnce = 32

// chunkLogits are the logits of a chunk: of the last tokens they are there, those of
// others are computed of the residual stream when they are wanted.
type chunkLogits struct {
	s            *lanes
	last, stream backends.Buffer // [B, V], [B*N, D]
	size         int
	rows         []float32 // of last, once they are fetched
}

// each passes on the logits that are wanted of one sequence, the first of whose tokens
// is at the given position.
func (c *chunkLogits) each(t *turn, first int) error {
	vocab := c.s.e.model.VocabSize
	var rows []int
	for i := range t.n {
		if t.Want == nil && first+i == t.last || t.Want != nil && t.Want(first+i) {
			rows = append(rows, i)
		}
	}
	for len(rows) > 0 {
		here := rows[:1]
		if rows[0] < t.n-1 {
			here = rows[:min(len(rows), outputRowsAtOnce)]
		}
		rows = rows[len(here):]
		logits, err := c.compute(t.lane, here, t.n)
		if err != nil {
			return err
		}
		for i, r := range here {
			row := logits[i*vocab : (i+1)*vocab]
			if err := finite.Logits(row, first+r); err != nil {
				return err
			}
			if err := t.Each(first+r, row); err != nil {
				return err
			}
		}
	}
	return nil
}

// compute returns the logits of some of the n tokens of a sequence.
func (c *chunkLogits) compute(lane int, rows []int, n int) ([]float32, error) {
	s, e, vocab := c.s, c.s.e, c.s.e.model.VocabSize
	if rows[0] == n-1 {
		if c.rows == nil {
			c.rows = grow(&s.buf.last, len(s.seqs)*vocab)
			if err := take(e, c.last, c.rows); err != nil {
				return nil, err
			}
		}
		return c.rows[lane*vocab : (lane+1)*vocab], nil
	}
	each := len(s.seqs) / e.lanesOver() // sequences of a device
	numbers := make([]int32, outputRowsAtOnce)
	for i, r := range rows {
		numbers[i] = int32(lane%each*c.size + r)
	}
	in, err := e.put(numbers, shapes.Make(dtypes.Int32, len(numbers), 1), whole)
	if err != nil {
		return nil, err
	}
	defer e.release(in)
	key := programKey{kind: outputRows, lanes: each, n: c.size, slots: len(numbers)}
	out, err := e.run(e.program(key, (*builder).outputGraph), c.stream, in)
	if err != nil {
		return nil, err
	}
	defer e.release(out...)
	logits := grow(&s.buf.logits, len(numbers)*vocab)
	return logits, take(e, e.onDevice(out[0], lane/each), logits)
}

// grow is a slice of n numbers in v, which it makes longer where it must.
func grow[T any](v *[]T, n int) []T {
	*v = slices.Grow((*v)[:0], n)
	return (*v)[:n]
}
