package cpu

import (
	"unsafe"

	"github.com/firstpassage/fpa/ops/kernels"
	"github.com/firstpassage/fpa/runtime/model"
)

// loaded returns a copy of the model whose quantised matrices, with pack, carry the form
// that the kernels multiply fastest (see kernels.Matrix.Pack), and whose others are
// copies where copying says so; and the memory that holds all that, nil where it is
// nothing. The pages of the file that were read for it are given back to the system
// matrix by matrix, so that at no time both forms are held in full.
func loaded(m *model.Model, p *pool, pack bool, copying Copying) (*model.Model, *arena, error) {
	packs := func(w *kernels.Matrix) bool { return pack && w.PackedBytes() > 0 }
	copied := copying == CopyAlways
	if copying == CopyIfSmall {
		unpacked := 0
		for _, w := range matrices(m) {
			if !packs(w) {
				unpacked += len(w.Data)
			}
		}
		copied = worthCopying(unpacked, largePageMemory())
	}
	roomFor := func(w *kernels.Matrix) int { // a multiple of 64
		n := 0
		switch {
		case packs(w):
			n = w.PackedBytes()
		case copied:
			n = len(w.Data)
		}
		return (n + 63) &^ 63
	}
	size := 0
	for _, w := range matrices(m) {
		size += roomFor(w)
	}
	if size == 0 {
		return m, nil, nil
	}
	memory, err := newArena(size)
	if err != nil {
		return nil, nil, err
	}
	c := *m
	c.Layers = append([]model.Layer(nil), m.Layers...)
	room := memory.bytes
	err = guard(func() error {
		for _, w := range matrices(&c) {
			n := roomFor(w)
			if n == 0 {
				continue
			}
			from := *w
			if packs(w) {
				*w = w.Pack(room[:n])
				rows := w.Rows
				const step = 16 * 16
				p.run((rows+step-1)/step, workFunc(func(_, task int) {
					w.PackRows(task*step, min((task+1)*step, rows))
				}))
			} else {
				data := room[:len(w.Data):len(w.Data)]
				const step = 1 << 20
				p.run((len(data)+step-1)/step, workFunc(func(_, task int) {
					copy(data[task*step:min((task+1)*step, len(data))], from.Data[task*step:])
				}))
				w.Data = data
			}
			room = room[n:]
			m.Release(from)
		}
		return nil
	})
	if err != nil {
		memory.free()
		return nil, nil, err
	}
	return &c, memory, nil
}

// holds says whether b, which is not empty, lies in the arena.
func (a *arena) holds(b []byte) bool {
	at := uintptr(unsafe.Pointer(&b[0])) - uintptr(unsafe.Pointer(&a.bytes[0]))
	return at < uintptr(len(a.bytes))
}

// worthCopying tells whether so many bytes of weights are copied unasked, with so much
// memory that can be had in large pages: more than the processor finds without them, and
// no more than takes a moment and leaves memory for everything else.
func worthCopying(bytes, available int) bool {
	const least, most = 8 << 20, 1 << 30
	return bytes >= least && bytes <= min(most, available/4)
}

// rounding returns a copy of the model for whose matrices activations are rounded to 8
// bits.
func rounding(m *model.Model) *model.Model {
	c := *m
	c.Layers = append([]model.Layer(nil), m.Layers...)
	for _, w := range matrices(&c) {
		w.Int8 = true
	}
	return &c
}

// matrices are the matrices that a model multiplies with.
func matrices(m *model.Model) []*kernels.Matrix {
	list := []*kernels.Matrix{&m.Output.W}
	for i := range m.Layers {
		l := &m.Layers[i]
		for _, p := range []*model.Linear{&l.Q, &l.K, &l.V, &l.KShift, &l.VShift, &l.Gate, &l.O, &l.FFNGate, &l.FFNUp, &l.FFNDown} {
			if p.Present() {
				list = append(list, &p.W)
			}
		}
	}
	return list
}
