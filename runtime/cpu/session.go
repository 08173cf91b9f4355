package cpu

import (
	"slices"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
)

// Session is one sequence: its cache, the running values of its fields, and the
// last projections that key and value shifts look back to.
type Session struct {
	e     *Engine
	typ   quant.DType // of K and V
	cache *cache.Cache
	walks []*cache.Walk // [layer]; nil without a walk
	lastK [][]float32   // [layer][Hkv*d], the unshifted key projection of the last token
	lastV [][]float32
	probe *probe // nil: nobody looks

	feeding bool           // it is in the batch under way
	alone   [1]engine.Part // the batch of Feed
}

// probe is what SetProbe asked for.
type probe struct {
	report       func(layer, first int, field, level []float64)
	base         [][]float64 // [layer][Hf], how far the walks' bases have moved
	field, level []float64   // [n, Hf], of the chunk
}

// NewSession starts an empty sequence with a cache of the given type and policy.
func (e *Engine) NewSession(t quant.DType, p cache.Policy) (engine.Session, error) {
	return e.newSession(t, p)
}

func (e *Engine) newSession(t quant.DType, p cache.Policy) (*Session, error) {
	m := e.model
	// Measuring the bound of a model that carries none takes a while, and off has
	// little use for it.
	if p.Bound == nil && (p.Mode != cache.Off || m.LogitBound != nil && t != quant.Q8_0) {
		p.Bound = e.logitBound(t)
	}
	p.SelfPenalised = m.SelfPenalised()
	c, err := cache.New(CacheShape(m, t), p)
	if err != nil {
		return nil, err
	}
	s := &Session{e: e, typ: t, cache: c}
	for range m.Layers {
		if m.Field == model.FieldWalk {
			s.walks = append(s.walks, cache.NewWalk(m.FieldHeads))
		}
		s.lastK = append(s.lastK, make([]float32, m.KVHeads*m.KeyDim))
		s.lastV = append(s.lastV, make([]float32, m.KVHeads*m.ValDim))
	}
	return s, nil
}

// Len is the number of tokens fed.
func (s *Session) Len() int { return s.cache.Tokens() }

// CacheStats measures the cache.
func (s *Session) CacheStats() cache.Stats { return s.cache.Stats() }

// SetProbe has report called with the field and the level of every token that is
// fed, a layer and a chunk at a time: [n, Hf] for n tokens from position first on,
// in float64 and on one zero for the whole sequence, before they are rounded for
// the cache. The slices are valid during the call. Models without a field report
// nothing. It must be set before the first Feed.
func (s *Session) SetProbe(report func(layer, first int, field, level []float64)) {
	s.probe = &probe{report: report}
	for range s.e.model.Layers {
		s.probe.base = append(s.probe.base, make([]float64, s.e.model.FieldHeads))
	}
}

// resize makes room for n fields of the chunk.
func (p *probe) resize(n int) {
	if p != nil {
		p.field, p.level = slices.Grow(p.field[:0], n)[:n], slices.Grow(p.level[:0], n)[:n]
	}
}

// add notes number i of the fields and levels of the chunk, relative to the base
// that has just moved.
func (p *probe) add(layer, i, head int, field, level float64, moved float32) {
	if p != nil {
		p.base[layer][head] += float64(moved)
		p.field[i], p.level[i] = p.base[layer][head]+field, p.base[layer][head]+level
	}
}

// flush reports the chunk, which begins at position first.
func (p *probe) flush(layer, first int) {
	if p != nil && len(p.field) > 0 {
		p.report(layer, first, p.field, p.level)
	}
}

// Feed runs ids through the model, a chunk at a time; see engine.Session. The
// error of a model file that can no longer be read is a Fault.
func (s *Session) Feed(ids []int32, want func(position int) bool, each func(position int, logits []float32) error) error {
	if s.e.feeding {
		return errBusy
	}
	s.alone[0] = engine.Part{Session: s, IDs: ids, Want: want, Each: each}
	err := s.e.FeedBatch(s.alone[:])
	s.alone[0] = engine.Part{}
	return err
}
