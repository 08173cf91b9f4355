// Package convert writes a model as a GGUF file and verifies that the file gives
// the results of its source.
package convert

import (
	"context"
	"fmt"
	"sync"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
)

// Types are the names of the types that matrices can be written in, as --type
// takes them.
var Types = map[string]quant.DType{
	"f32": quant.F32, "f16": quant.F16, "bf16": quant.BF16, "q8_0": quant.Q8_0,
}

// TensorPlan says how one tensor is written.
type TensorPlan struct {
	Name       string  `json:"name"`
	Source     string  `json:"source"`
	SourceType string  `json:"source_type"`
	Type       string  `json:"type"`
	Shape      []int64 `json:"shape"`
	Note       string  `json:"note,omitempty"` // why the type is not the one asked for
	// MaxError and RMSE compare the written values with the source's, filled in
	// when a report is asked for.
	MaxError *float64 `json:"max_error,omitempty"`
	RMSE     *float64 `json:"rmse,omitempty"`

	tensor *model.Tensor
	dtype  quant.DType
	stats  quant.Stats
}

// order brings the tensors into the order of the model's description, which is
// the order in the file.
func order(p *model.Parts) ([]TensorPlan, error) {
	byName := make(map[string]*model.Tensor, len(p.Tensors))
	for i := range p.Tensors {
		byName[p.Tensors[i].Name] = &p.Tensors[i]
	}
	var plans []TensorPlan
	for _, s := range p.Config.Tensors() {
		if t := byName[s.Name]; t != nil {
			plans = append(plans, TensorPlan{
				Name: s.Name, Source: t.Source, SourceType: t.DType.String(), Shape: t.Shape, tensor: t,
				dtype: quant.F32,
			})
			if s.Role == model.Weight {
				plans[len(plans)-1].dtype = quant.Invalid // chosen after the scan
			}
		}
	}
	return plans, nil
}

// maxF16 is the largest finite half-precision number.
const maxF16 = 65504

// chooseType settles the type of a matrix, and says so when it is not the one
// asked for.
func (p *TensorPlan) chooseType(want quant.DType) {
	if p.dtype == quant.Invalid {
		p.dtype = want
		cols := p.Shape[len(p.Shape)-1]
		if cols%int64(want.BlockLen()) != 0 {
			p.dtype = quant.F16
			p.Note = fmt.Sprintf("rows of %d elements do not fill %s blocks of %d", cols, want, want.BlockLen())
		}
		if p.dtype == quant.F16 && p.stats.Max > maxF16 {
			p.dtype = quant.F32
			if p.tensor.DType == quant.BF16 {
				p.dtype = quant.BF16
			}
			p.Note = fmt.Sprintf("largest value %g does not fit F16", p.stats.Max)
		}
	}
	p.Type = p.dtype.String()
}

// scan reads every tensor once, refuses values that are not finite, and tells
// the progress in bytes. It runs on so many threads.
func scan(ctx context.Context, plans []TensorPlan, threads int, progress func(int64)) error {
	const piece = 8 << 20 // of a tensor, a whole number of blocks of every type
	type job struct{ plan, from, to int }
	jobs := make(chan job)
	var mu sync.Mutex
	var first error
	var group sync.WaitGroup
	for range threads {
		group.Go(func() {
			for j := range jobs {
				t := plans[j.plan].tensor
				s, err := quant.Scan(t.DType, t.Data[j.from:j.to])
				if err == nil && s.NaN+s.Inf > 0 {
					err = &format.FormatError{Offset: -1, Where: t.Source, Msg: fmt.Sprintf(
						"holds %d NaN and %d infinite values; the checkpoint is damaged or its training diverged", s.NaN, s.Inf)}
				}
				mu.Lock()
				plans[j.plan].stats.Merge(s)
				if first == nil {
					first = err
				}
				mu.Unlock()
				progress(int64(j.to - j.from))
			}
		})
	}
	failed := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return first != nil
	}
	for i := range plans {
		n := len(plans[i].tensor.Data)
		step := piece / plans[i].tensor.DType.BlockBytes() * plans[i].tensor.DType.BlockBytes()
		for from := 0; from < n && ctx.Err() == nil && !failed(); from += step {
			jobs <- job{i, from, min(from+step, n)}
		}
	}
	close(jobs)
	group.Wait()
	if first == nil {
		first = ctx.Err()
	}
	return first
}
