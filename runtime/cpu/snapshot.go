package cpu

import (
	"io"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/internal/state"
)

// Save writes the session; see engine.Session.
func (s *Session) Save(to io.Writer) error {
	w := state.NewWriter(to)
	if err := s.cache.Save(w); err != nil {
		return err
	}
	for i := range s.e.model.Layers {
		if s.walks != nil {
			s.walks[i].Save(w)
		}
		state.Put(w, s.lastK[i]...)
		state.Put(w, s.lastV[i]...)
	}
	return w.Flush()
}

// RestoreSession reads a session that Save wrote; see engine.Engine.
func (e *Engine) RestoreSession(from io.Reader, t quant.DType, p cache.Policy) (engine.Session, error) {
	s, err := e.newSession(t, p)
	if err != nil {
		return nil, err
	}
	r := state.NewReader(from)
	s.cache.Load(r)
	for i := range e.model.Layers {
		if s.walks != nil {
			s.walks[i].Load(r)
		}
		state.Finite(r, "a key", s.lastK[i])
		state.Finite(r, "a value", s.lastV[i])
	}
	if err := r.End(); err != nil {
		return nil, err
	}
	return s, nil
}
