// Package convert writes a model as a GGUF file and verifies that the file gives
// the results of its source.
package convert

import (
	"fmt"

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

	tensor  *model.Tensor
	matrix  bool // may be written in any type; the rest stays F32
	dtype   quant.DType
	largest float32 // magnitude of the values seen so far
}

// order brings the tensors into the order of the model's description, which is
// the order in the file.
func order(p *model.Parts) []TensorPlan {
	byName := make(map[string]*model.Tensor, len(p.Tensors))
	for i := range p.Tensors {
		byName[p.Tensors[i].Name] = &p.Tensors[i]
	}
	var plans []TensorPlan
	for _, s := range p.Config.Tensors() {
		if t := byName[s.Name]; t != nil {
			plans = append(plans, TensorPlan{
				Name: s.Name, Source: t.Source, SourceType: t.DType.String(), Shape: t.Shape,
				tensor: t, matrix: s.Role == model.Weight,
			})
		}
	}
	return plans
}

// maxF16 is the largest finite half-precision number.
const maxF16 = 65504

// chooseType settles the type of a tensor by the values seen so far, and says so
// when it is not the one asked for.
func (p *TensorPlan) chooseType(want quant.DType) {
	p.dtype, p.Note = quant.F32, ""
	if p.matrix {
		p.dtype = want
		if cols := p.Shape[len(p.Shape)-1]; cols%int64(want.BlockLen()) != 0 {
			p.dtype = quant.F16
			p.Note = fmt.Sprintf("rows of %d elements do not fill %s blocks of %d", cols, want, want.BlockLen())
		}
		if p.dtype == quant.F16 && p.largest > maxF16 {
			p.dtype = quant.F32
			if p.tensor.DType == quant.BF16 {
				p.dtype = quant.BF16
			}
			p.Note = fmt.Sprintf("largest value %g does not fit F16", p.largest)
		}
	}
	p.Type = p.dtype.String()
}
