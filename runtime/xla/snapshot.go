package xla

import (
	"io"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/internal/state"
)

// Save writes the session in the form of package cpu, whose engine can go on with
// it; see engine.Session.
func (s *Session) Save(to io.Writer) error {
	var row cache.Row
	err := try(func() (err error) {
		row, err = s.keys.host(s.lane)
		return err
	})
	if err != nil {
		return err
	}
	w := state.NewWriter(to)
	if err := s.books.SaveRemote(w, row); err != nil {
		return err
	}
	for i := range s.e.model.Layers {
		if s.walks != nil {
			s.walks[i].Save(w)
		}
		state.Put(w, s.lastOf(i, s.lastK, s.e.model.KeyDim)...)
		state.Put(w, s.lastOf(i, s.lastV, s.e.model.ValDim)...)
	}
	return w.Flush()
}

// lastOf is the last unshifted projection of a layer, or zeros.
func (s *Session) lastOf(layer int, last *array, dim int) []float32 {
	width := s.e.model.KVHeads * dim
	if last == nil {
		return make([]float32, width)
	}
	at := (layer*len(s.seqs) + s.lane) * width
	return last.floats()[at : at+width]
}

// RestoreSession reads a session that Save wrote, here or in package cpu; see
// engine.Engine.
func (e *Engine) RestoreSession(from io.Reader, t quant.DType, p cache.Policy) (engine.Session, error) {
	s, err := e.newSession(t, p)
	if err != nil {
		return nil, err
	}
	m := e.model
	r := state.NewReader(from)
	// Rows are collected as they come: how many slots there are is known at the end.
	key, value := make([][][]float32, m.Blocks), make([][][]float32, m.Blocks)
	for i := range key {
		heads := len(s.seqs) * m.KVHeads // those of idle sequences stay empty
		key[i], value[i] = make([][]float32, heads), make([][]float32, heads)
	}
	s.books.LoadRemote(r, func(layer, head, slot int) (_, _ []float32) {
		return row(&key[layer][head], slot, m.KeyDim), row(&value[layer][head], slot, m.ValDim)
	})
	for i := range m.Layers {
		if s.walks != nil {
			s.walks[i].Load(r)
		}
		state.Finite(r, "a key", s.lastOf(i, s.lastK, m.KeyDim))
		state.Finite(r, "a value", s.lastOf(i, s.lastV, m.ValDim))
	}
	if err := r.End(); err != nil {
		return nil, err
	}
	err = try(func() error {
		if err := s.keys.resize(s.seqs); err != nil {
			return err
		}
		return s.keys.fill(key, value)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// row is row number slot of rows, which become longer where they must.
func row(rows *[]float32, slot, width int) []float32 {
	if more := (slot+1)*width - len(*rows); more > 0 {
		*rows = append(*rows, make([]float32, more)...)
	}
	return (*rows)[slot*width : (slot+1)*width]
}
