package cpu

import (
	"errors"
	"fmt"

	"github.com/firstpassage/fpa/runtime/engine"
)

// errBusy says that an engine was called from within a call of its own.
var errBusy = errors.New("the engine is feeding other tokens; feed these after that call has returned, not from within it")

// FeedBatch feeds several sessions of the engine, all of whose rows share a pass
// over the weights; see engine.Batcher. A part's logits are those of Session.Feed up
// to the order of sums in float32, which depends on the number of rows of a pass:
// see kernels.MatMul. They do not depend on what the other rows are.
func (e *Engine) FeedBatch(parts []engine.Part) error {
	if e.feeding {
		for i := range parts {
			parts[i].Err = errBusy
		}
		return errBusy
	}
	e.feeding = true
	p := &e.pass
	defer p.end()
	for i := range parts {
		p.join(&parts[i])
	}
	for p.fill() {
		p.guarded()
	}
	for i := range parts {
		if err := parts[i].Err; err != nil {
			return err
		}
	}
	return nil
}

// join makes a part one of the batch, unless there is something wrong with it.
func (p *pass) join(part *engine.Part) {
	m := p.e.model
	s, ours := part.Session.(*Session)
	part.Err = nil
	switch {
	case !ours || s.e != p.e:
		part.Err = fmt.Errorf("the batch has a session of another engine (%T)", part.Session)
		return
	case s.feeding:
		part.Err = errors.New("the batch has a session twice; give all its tokens at once")
		return
	}
	for i, id := range part.IDs {
		if id < 0 || int(id) >= m.VocabSize {
			part.Err = fmt.Errorf("token %d of the input is id %d, the vocabulary has %d entries", i, id, m.VocabSize)
			return
		}
	}
	s.feeding = true
	p.all = append(p.all, sequence{s: s, part: part, ids: part.IDs, last: s.Len() + len(part.IDs) - 1})
}

// end lets go of the batch.
func (p *pass) end() {
	for i := range p.all {
		p.all[i].s.feeding = false
	}
	clear(p.all)
	p.all = p.all[:0]
	p.e.feeding = false
}

// guarded is run; a memory fault becomes the error of every sequence that has rows
// in the pass.
func (p *pass) guarded() {
	err := guard(func() error {
		p.run()
		return nil
	})
	for _, q := range p.seqs {
		if err != nil {
			q.fail(err)
		}
	}
}
