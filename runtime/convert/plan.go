// Package convert writes a model as a GGUF file, an ONNX model or a checkpoint, and
// verifies that what was written gives the results of its source.
package convert

import (
	"fmt"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
)

// Types are the names of the types that matrices can be written in, as --type
// takes them. The names with _m are llama.cpp's for the same mixes; see mix.
var Types = map[string]quant.DType{
	"f32": quant.F32, "f16": quant.F16, "bf16": quant.BF16,
	"q8_0": quant.Q8_0, "q6_k": quant.Q6_K,
	"q5_k": quant.Q5_K, "q5_k_m": quant.Q5_K, "q5_1": quant.Q5_1, "q5_0": quant.Q5_0,
	"q4_k": quant.Q4_K, "q4_k_m": quant.Q4_K, "q4_1": quant.Q4_1, "q4_0": quant.Q4_0,
}

// TensorPlan says how one tensor is written.
type TensorPlan struct {
	Name       string  `json:"name"`
	Source     string  `json:"source"`
	SourceType string  `json:"source_type"`
	Type       string  `json:"type"`
	Shape      []int64 `json:"shape"`
	Note       string  `json:"note,omitempty"` // why the type is not the one asked for
	// MaxError and RMSE compare the written values with the source's; Relative is
	// RMSE as a share of the root mean square of the source, absent where that is 0.
	// They are filled in when a report is asked for.
	MaxError *float64 `json:"max_error,omitempty"`
	RMSE     *float64 `json:"rmse,omitempty"`
	Relative *float64 `json:"relative_error,omitempty"`

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

// chooseType settles the type of a tensor by its shape and the values seen so far,
// and says so when it is not the one that the tensor should have.
func (p *TensorPlan) chooseType(want quant.DType) {
	p.dtype, p.Note = quant.F32, ""
	if p.matrix {
		p.dtype = want
		cols := p.Shape[len(p.Shape)-1]
		for cols%int64(p.dtype.BlockLen()) != 0 {
			p.Note = fmt.Sprintf("rows of %d elements do not fill %s blocks of %d", cols, p.dtype, p.dtype.BlockLen())
			p.dtype = narrower(p.dtype)
		}
		if p.largest > largestOf(p.dtype) {
			p.Note = fmt.Sprintf("largest value %g does not fit %s", p.largest, p.dtype)
			p.dtype = quant.F32
			if p.tensor.DType == quant.BF16 {
				p.dtype = quant.BF16
			}
		}
	}
	p.Type = p.dtype.String()
}

// typeNotes says in one line a reason which tensors are not of the type they should
// have.
func typeNotes(plans []TensorPlan) (notes []string) {
	type reason struct{ typ, why string }
	names := make(map[reason][]string)
	var order []reason
	for i := range plans {
		p := &plans[i]
		if p.Note == "" {
			continue
		}
		r := reason{p.Type, p.Note}
		if names[r] == nil {
			order = append(order, r)
		}
		names[r] = append(names[r], p.Name)
	}
	for _, r := range order {
		what := names[r][0] + " is"
		if more := len(names[r]) - 1; more > 0 {
			what = fmt.Sprintf("%s and %d more are", names[r][0], more)
		}
		notes = append(notes, fmt.Sprintf("%s written as %s: %s", what, r.typ, r.why))
	}
	return notes
}
