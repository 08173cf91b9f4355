package convert

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/quant"
)

// pieceElements is how many elements of a tensor are converted at a time: a
// multiple of every block length, 4 MB of float32.
const pieceElements = 1 << 20

// writeTensors converts every tensor and writes it, on so many threads. Each
// thread takes a whole tensor, so a tensor's bytes are written in order.
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
						first = fmt.Errorf("tensor %s: %w", plans[i].Name, err)
					}
					mu.Unlock()
					cancel()
				}
			}
		})
	}
	for i := range plans {
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

// write converts one tensor and writes it piece by piece.
func (p *TensorPlan) write(ctx context.Context, w io.Writer, measure bool, progress func(int64)) error {
	src, from, to := p.tensor.Data, p.tensor.DType, p.dtype
	if from == to { // also what F32 would round, such as F64, is kept
		measured := 0.0
		if measure {
			p.MaxError, p.RMSE = &measured, &measured
		}
		return copyPieces(ctx, w, src, progress)
	}
	var e quant.Error
	out := make([]byte, bytesOf(to, pieceElements))
	for len(src) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(pieceElements, len(src)/from.BlockBytes()*from.BlockLen())
		in := src[:bytesOf(from, n)]
		piece := out[:bytesOf(to, n)]
		if err := quant.Convert(piece, to, in, from, n); err != nil {
			return err
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
		src = src[len(in):]
	}
	if measure {
		rmse := e.RMSE()
		p.MaxError, p.RMSE = &e.Max, &rmse
	}
	return nil
}

// bytesOf is the size of n elements, a whole number of blocks.
func bytesOf(t quant.DType, n int) int { return n / t.BlockLen() * t.BlockBytes() }

func copyPieces(ctx context.Context, w io.Writer, src []byte, progress func(int64)) error {
	for len(src) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(len(src), 4<<20)
		if _, err := w.Write(src[:n]); err != nil {
			return err
		}
		progress(int64(n))
		src = src[n:]
	}
	return nil
}

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
