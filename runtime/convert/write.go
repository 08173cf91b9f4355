package convert

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/quant"
)

// pieceElements is how many elements of a tensor are looked at, converted and
// written at a time: a multiple of every block length, and few enough that they
// stay in the second-level cache meanwhile.
const pieceElements = 1 << 17

// writeTensors converts every tensor and writes it, on so many threads. Each
// thread takes a whole tensor, so a tensor's bytes are written in order. The largest
// come first, so that none keeps the others waiting at the end.
func writeTensors(ctx context.Context, tensors []*gguf.TensorWriter, plans []TensorPlan, measure bool, threads int, progress func(int64)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var first error
	next := make(chan int)
	var group sync.WaitGroup
	for range threads {
		group.Go(func() {
			for i := range next {
				if err := plans[i].write(ctx, tensors[i], measure, progress); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
					cancel()
				}
			}
		})
	}
	order := make([]int, len(plans))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(elements(plans[b].Shape), elements(plans[a].Shape))
	})
	for _, i := range order {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	group.Wait()
	if first == nil {
		first = ctx.Err()
	}
	return first
}

// write looks at one tensor, converts it and writes it, piece by piece. It fails
// on values that are not finite.
func (p *TensorPlan) write(ctx context.Context, w io.Writer, measure bool, progress func(int64)) error {
	src, from, to := p.tensor.Data, p.tensor.DType, p.dtype
	var e quant.Error
	var out []byte
	if from != to {
		out = make([]byte, bytesOf(to, pieceElements))
	}
	for done := int64(0); len(src) > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(pieceElements, len(src)/from.BlockBytes()*from.BlockLen())
		in := src[:bytesOf(from, n)]
		if err := p.look(in, done); err != nil {
			return err
		}
		piece := in
		if from != to { // a tensor that has the type already is copied as it is
			piece = out[:bytesOf(to, n)]
			if err := quant.Convert(piece, to, in, from, n); err != nil {
				return fmt.Errorf("tensor %s: %w", p.Source, err)
			}
		}
		if measure {
			if err := addError(&e, in, from, piece, to, n); err != nil {
				return err
			}
		}
		if _, err := w.Write(piece); err != nil {
			return err
		}
		progress(int64(len(in)))
		src, done = src[len(in):], done+int64(n)
	}
	if measure {
		rmse := e.RMSE()
		p.MaxError, p.RMSE = &e.Max, &rmse
		if relative := e.Relative(); !math.IsNaN(relative) {
			p.Relative = &relative
		}
	}
	return nil
}

// look notes the largest value of a piece that begins at an element, and refuses
// values that are not finite.
func (p *TensorPlan) look(in []byte, at int64) error {
	s, err := quant.Scan(p.tensor.DType, in)
	if err != nil {
		return fmt.Errorf("tensor %s: %w", p.Source, err)
	}
	if s.NaN+s.Inf > 0 {
		return &format.FormatError{Offset: -1, Where: p.Source, Msg: fmt.Sprintf(
			"elements %d to %d hold %d NaN and %d infinite values; the checkpoint is damaged or its training diverged", at, at+s.Count-1, s.NaN, s.Inf)}
	}
	p.largest = max(p.largest, s.Max)
	return nil
}

// bytesOf is the size of n elements, a whole number of blocks.
func bytesOf(t quant.DType, n int) int { return n / t.BlockLen() * t.BlockBytes() }

// addError compares a converted piece with what it was made of.
func addError(e *quant.Error, in []byte, from quant.DType, out []byte, to quant.DType, n int) error {
	want, got := make([]float32, n), make([]float32, n)
	if err := quant.Decode(want, from, in); err != nil {
		return err
	}
	if err := quant.Decode(got, to, out); err != nil {
		return err
	}
	e.Add(want, got)
	return nil
}
