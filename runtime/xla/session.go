package xla

import (
	"fmt"
	"math"
	"slices"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	"github.com/gomlx/gomlx/pkg/core/shapes"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/cpu"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
)

// Session is one sequence.
type Session struct {
	*lanes
	*sequence
	lane int // of the lanes' sequences, which one it is
}

// sequence is what the host knows of a sequence.
type sequence struct {
	books *cache.Cache
	fresh cache.Fresh   // of takeIn
	walks []*cache.Walk // [layer]; nil without a walk
	moved []float32     // [N][Hf], how far the bases of a layer move before each token

	report func(layer, first int, field, level []float64) // of SetProbe; nil: nobody looks
	base   [][]float64                                    // [layer][Hf], how far the walks' bases have moved, for report
}

// lanes are B sequences that go through the model side by side: one call of a
// program takes in a chunk of each.
type lanes struct {
	e            *Engine
	typ          quant.DType  // of the cache
	policy       cache.Policy // of the first sequence
	seqs         []*sequence
	sessions     int    // how many of them are of a session
	lastK, lastV *array // [L, B, Hkv*d], [L, B, Hkv*dv], the unshifted projections of the last tokens; nil unless shifted
	keys         *slots
	watch        watch
	inputs       map[int]*inputs // by the size of a chunk
	at           []int32         // [L][B][groups][N], the slots where the keys of a chunk go
	buf          hostBuffers
	watchBuf     watchBuffers
}

// hostBuffers hold outputs that the host cannot look at where they are.
type hostBuffers struct {
	key, value   []float32
	field, level []float64
	last, logits []float32
}

// inputs are the arrays of a chunk size.
type inputs struct{ tokens, x, cos, sin, from *array }

// NewSession starts an empty sequence with a cache of the given type and policy.
// It fails for cache types but F16, F32 and Q8_0, and with F16 on gomlx's Go backend.
func (e *Engine) NewSession(t quant.DType, p cache.Policy) (engine.Session, error) {
	s, err := e.newSession(t, p)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (e *Engine) newSession(t quant.DType, p cache.Policy) (*Session, error) {
	q, err := e.newSequence(t, p)
	if err != nil {
		return nil, err
	}
	l, err := e.newLanes([]*sequence{q}, t, p)
	if err != nil {
		return nil, err
	}
	return &Session{l, q, 0}, nil
}

// newLanes puts empty sequences side by side, and some idle ones where devices could
// not share them evenly otherwise.
func (e *Engine) newLanes(seqs []*sequence, t quant.DType, p cache.Policy) (*lanes, error) {
	m := e.model
	stored, err := e.cacheType(t)
	if err != nil {
		return nil, err
	}
	s := &lanes{e: e, typ: t, policy: p, seqs: seqs, sessions: len(seqs), watch: watchOf(m, p), inputs: make(map[int]*inputs)}
	n := (len(seqs) + e.lanesOver() - 1) / e.lanesOver() * e.lanesOver()
	for len(s.seqs) < n {
		q, err := e.newSequence(t, p)
		if err != nil {
			return nil, err
		}
		s.seqs = append(s.seqs, q)
	}
	err = try(func() error {
		var err error
		if m.KeyShift {
			if s.lastK, err = e.newArray(shapes.Make(dtypes.Float32, m.Blocks, n, m.KVHeads*m.KeyDim), byLayer); err != nil {
				return err
			}
		}
		if m.ValueShift {
			if s.lastV, err = e.newArray(shapes.Make(dtypes.Float32, m.Blocks, n, m.KVHeads*m.ValDim), byLayer); err != nil {
				return err
			}
		}
		s.keys, err = e.newSlots(n, stored, t, s.watch.dropped, leastSlots)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// newSequence is an empty sequence.
func (e *Engine) newSequence(t quant.DType, p cache.Policy) (*sequence, error) {
	m := e.model
	if p.Bound == nil && p.Mode != cache.Off {
		p.Bound = e.logitBound(t)
	}
	p.SelfPenalised = m.SelfPenalised()
	books, err := cache.NewRemote(cpu.CacheShape(m, t), p)
	if err != nil {
		return nil, err
	}
	q := &sequence{books: books}
	if m.Field == model.FieldWalk {
		for range m.Layers {
			q.walks = append(q.walks, cache.NewWalk(m.FieldHeads))
		}
	}
	return q, nil
}

// logitBound is the proved bound of the model's logits with a cache of type t, nil
// where there is none. A file carries that of F16, which holds for F32 too.
func (e *Engine) logitBound(t quant.DType) []float32 {
	if e.model.LogitBound != nil && t != quant.Q8_0 {
		return e.model.LogitBound
	}
	if _, done := e.bound[t]; !done {
		e.bound[t] = e.model.LogitBounds(t)
	}
	return e.bound[t]
}

// Len is the number of tokens fed.
func (s *sequence) Len() int { return s.books.Tokens() }

// begun says whether any token was fed.
func (s *sequence) begun() bool { return s.Len() > 0 }

// CacheStats measures the cache. What is allocated are the slots on the device, of
// which all heads of all layers have as many.
func (s *Session) CacheStats() cache.Stats {
	st := s.books.Stats()
	s.keys.report(&st, s.sessions)
	return st
}

// SetProbe has report called with the field and the level of every token that is
// fed, as package cpu's session does. It must be set before the first Feed.
func (s *Session) SetProbe(report func(layer, first int, field, level []float64)) {
	s.report = report
	for range s.e.model.Layers {
		s.base = append(s.base, make([]float64, s.e.model.FieldHeads))
	}
}

// tell reports n tokens of a layer, field and level being [Hf, size] relative to the
// base before them.
func (s *sequence) tell(layer, n, size int, field, level []float64) {
	if s.report == nil || len(s.moved) == 0 {
		return
	}
	base := s.base[layer]
	var f, l []float64
	for t := range n {
		for h := range base {
			f = append(f, base[h]+field[h*size+t])
			l = append(l, base[h]+level[h*size+t])
		}
	}
	s.report(layer, s.Len(), f, l)
	for i, by := range s.moved {
		base[i%len(base)] += float64(by)
	}
}

// Feed runs ids through the model, a chunk at a time; see engine.Session.
func (s *Session) Feed(ids []int32, want func(position int) bool, each func(position int, logits []float32) error) error {
	part := engine.Part{Session: s, IDs: ids, Want: want, Each: each}
	s.feedTogether([]*engine.Part{&part})
	return part.Err
}

// checkIDs checks that all ids are of the vocabulary.
func checkIDs(ids []int32, vocab int) error {
	for i, id := range ids {
		if id < 0 || int(id) >= vocab {
			return fmt.Errorf("token %d of the input is id %d, the vocabulary has %d entries", i, id, vocab)
		}
	}
	return nil
}

// chunkSizes are the numbers of tokens that the decoder is compiled for.
var chunkSizes = []int{1, 16, 64, 256, 512}

// passTokens is how many more tokens cost as much as another pass over the
// weights.
const passTokens = 16

// chunkSize is the size of the next chunk when n tokens are to be fed, not much
// above most: a size that holds them all, if little of it stays empty, or else the
// largest that they fill.
func chunkSize(n, most int) int {
	size := 1
	for _, c := range chunkSizes {
		if c > n {
			if c <= max(most, chunkSizes[1]) && c-n <= max(passTokens, n/4) && n > 1 {
				return c
			}
			break
		}
		if c <= most {
			size = c
		}
	}
	return size
}

// feedChunk feeds up to size tokens to each sequence, none to those that ids does not
// reach, and passes on the logits of the last ones and the residual stream, as
// chunkGraph puts them out.
func (s *lanes) feedChunk(ids [][]int32, size int, output func(logits, stream backends.Buffer) error) error {
	e := s.e
	if more := len(s.seqs) - len(ids); more > 0 {
		ids = append(ids[:len(ids):len(ids)], make([][]int32, more)...)
	}
	for i, q := range s.seqs {
		q.books.Begin(len(ids[i]))
	}
	capacity := s.keys.capacity
	if size > 1 && !s.watch.needsCache() && !slices.ContainsFunc(s.seqs, (*sequence).begun) {
		capacity = 0 // a prompt from the start has nothing but itself to attend to
	}
	key := programKey{
		kind: decodeChunk, lanes: len(s.seqs) / e.lanesOver(), n: size, slots: capacity,
		typ: s.keys.typ, round: s.keys.rounded, watch: s.watch,
	}
	p := e.program(key, (*builder).chunkGraph)
	in, err := s.chunkInputs(ids, size, capacity > 0)
	if err != nil {
		return err
	}
	out, err := e.run(p, in...)
	if err != nil {
		return err
	}
	defer e.release(out...)
	logits, stream, rest := out[0], out[1], out[2:]
	fresh, rest := rest[:2*e.model.Blocks], rest[2*e.model.Blocks:]
	field, level, rest := rest[0], rest[1], rest[2:]
	for _, last := range []*array{s.lastK, s.lastV} {
		if last != nil {
			if err := take(e, rest[0], last.floats()); err != nil {
				return err
			}
			rest = rest[1:]
		}
	}
	if err := s.checkInputs(rest[0], key, in, ids); err != nil {
		return err
	}
	seen, err := s.readWatched(rest[1:], key)
	if err != nil {
		return err
	}
	if err := s.takeIn(field, level, seen, ids, size); err != nil {
		return err
	}
	if err := s.keys.resize(s.seqs); err != nil {
		return err
	}
	if err := s.keys.write(fresh, s.at, size, &s.buf); err != nil {
		return err
	}
	for i, q := range s.seqs {
		q.books.Advance(len(ids[i]))
	}
	return output(logits, stream)
}

// chunkInputs are the buffers that chunkGraph asks for, with the cache or without.
func (s *lanes) chunkInputs(ids [][]int32, size int, cached bool) ([]backends.Buffer, error) {
	e, m, n := s.e, s.e.model, len(s.seqs)
	x := s.inputs[size]
	if x == nil {
		x = &inputs{}
		half := m.RopeDim / 2
		for _, a := range []struct {
			to    **array
			shape shapes.Shape
			axes  axes
		}{
			{&x.tokens, shapes.Make(dtypes.Int32, n), byRow},
			{&x.x, shapes.Make(dtypes.Float32, n*size, m.Hidden), byRow},
			{&x.cos, shapes.Make(dtypes.Float32, n*size, max(1, half)), byRow},
			{&x.sin, shapes.Make(dtypes.Float32, n*size, max(1, half)), byRow},
			{&x.from, shapes.Make(dtypes.Float64, m.Blocks, n, max(1, m.FieldHeads)), byLayer},
		} {
			var err error
			if *a.to, err = e.newArray(a.shape, a.axes); err != nil {
				return nil, err
			}
		}
		s.inputs[size] = x
	}
	for j, q := range s.seqs {
		x.tokens.ints()[j] = int32(len(ids[j]))
		if err := e.embed(x.x.floats()[j*size*m.Hidden:], ids[j]); err != nil {
			return nil, err
		}
		half := j * size * len(m.InvFreq)
		q.turn(m.InvFreq, x.cos.floats()[half:], x.sin.floats()[half:], len(ids[j]))
		if n := len(ids[j]); n > 0 {
			pad(x.x.floats()[j*size*m.Hidden:], n, size, m.Hidden)
			pad(x.cos.floats()[half:], n, size, len(m.InvFreq))
			pad(x.sin.floats()[half:], n, size, len(m.InvFreq))
		}
		for i, w := range q.walks {
			for h := range m.FieldHeads {
				x.from.doubles()[(i*n+j)*m.FieldHeads+h] = w.From(h)
			}
		}
	}
	arrays := []*array{x.tokens, x.x}
	if m.RopeDim > 0 {
		arrays = append(arrays, x.cos, x.sin)
	}
	arrays = append(arrays, x.from)
	for _, last := range []*array{s.lastK, s.lastV} {
		if last != nil {
			arrays = append(arrays, last)
		}
	}
	if cached {
		s.keys.describe(s.seqs)
		arrays = append(arrays, s.keys.level, s.keys.low)
	}
	var in []backends.Buffer
	if s.watch.dropped {
		arrays = append(arrays, s.keys.allLevel, s.keys.dropped)
	}
	for _, a := range arrays {
		b, err := a.send()
		if err != nil {
			return nil, err
		}
		in = append(in, b)
	}
	if cached {
		in = append(in, s.keys.buffers()...)
	}
	return in, nil
}

// pad has rows n to size repeat the first one: what they hold is computed with, and must
// not be anything that a token does not have.
func pad(x []float32, n, size, width int) {
	for ; n < size; n++ {
		copy(x[n*width:(n+1)*width], x[:width])
	}
}

// embed looks the rows of the tokens up.
func (e *Engine) embed(x []float32, ids []int32) error {
	m := e.model
	rowBytes := len(m.Embed.Data) / m.VocabSize
	for t, id := range ids {
		row := m.Embed.Data[int(id)*rowBytes : (int(id)+1)*rowBytes]
		if err := quant.Decode(x[t*m.Hidden:(t+1)*m.Hidden], m.Embed.Type, row); err != nil {
			return fmt.Errorf("token_embd.weight, row %d: %w", id, err)
		}
	}
	return nil
}

// turn writes the cosines and sines of the rotary embedding of n new tokens.
func (s *sequence) turn(freq []float64, cos, sin []float32, n int) {
	for t := range n {
		for i, f := range freq {
			sin64, cos64 := math.Sincos(float64(s.Len()+t) * f)
			cos[t*len(freq)+i], sin[t*len(freq)+i] = float32(cos64), float32(sin64)
		}
	}
}

// takeIn hands field and level of the chunk, buffers of [L, B, Hf, size] float64, to
// the books, which choose the slots of the new keys and drop others.
func (s *lanes) takeIn(fieldOut, levelOut backends.Buffer, seen watched, ids [][]int32, size int) error {
	e, m := s.e, s.e.model
	count := m.Blocks * len(s.seqs) * max(1, m.FieldHeads) * size
	field, err := view(e, fieldOut, count, &s.buf.field)
	if err != nil {
		return err
	}
	level, err := view(e, levelOut, count, &s.buf.level)
	if err != nil {
		return err
	}
	s.at = s.at[:0]
	for i := range m.Layers {
		for j, q := range s.seqs {
			own := (i*len(s.seqs) + j) * m.FieldHeads * size
			s.at = q.takeIn(m, i, field[own:], level[own:], len(ids[j]), size, s.at, func(x *cache.Fresh, g, groups int) {
				seen.describe(x, m, i, j, len(s.seqs), g, groups)
			})
		}
	}
	return nil
}

// takeIn takes n new tokens of a layer in, field and level being [Hf, size], and
// appends where their keys go, [groups][size], -1 for no slot. describe says what else
// is known of a group.
func (s *sequence) takeIn(m *model.Model, layer int, field, level []float64, n, size int, slots []int32, describe func(x *cache.Fresh, g, groups int)) []int32 {
	groups := s.books.Groups(layer)
	at := len(slots)
	for range len(groups) * size {
		slots = append(slots, -1)
	}
	if n == 0 {
		return slots
	}
	s.reach(m, layer, n, size, field)
	s.tell(layer, n, size, field, level)
	heads := m.FieldHeads / len(groups)
	x := &s.fresh
	x.N, x.Stride, x.Inclusive = n, size, m.Interval == model.Inclusive
	for g, group := range groups {
		first := g * heads
		x.Field, x.Level = field[first*size:(first+heads)*size], level[first*size:(first+heads)*size]
		x.Moved, x.MovedStride = s.moved[first:], m.FieldHeads
		x.Slots = slots[at+g*size : at+g*size+n]
		describe(x, g, len(groups))
		group.Remote().Take(x)
	}
	return slots
}

// reach sets the walks of a layer to where n tokens brought them, field being
// [Hf, size], and moved to how their bases move on the way.
func (s *sequence) reach(m *model.Model, layer, n, size int, field []float64) {
	s.moved = append(s.moved[:0], make([]float32, n*m.FieldHeads)...)
	if s.walks == nil {
		return
	}
	for h := range m.FieldHeads {
		base := 0.0 // relative to that before the chunk
		for t := range n {
			by := s.walks[layer].Reach(h, field[h*size+t]-base)
			base += float64(by)
			s.moved[t*m.FieldHeads+h] = by
		}
	}
}
