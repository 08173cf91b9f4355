package convert

import (
	"fmt"
	"strings"

	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
)

// A mix says which type each matrix of a model gets, as users of llama.cpp know it
// from the types of the same names (there Q4_K means Q4_K_M):
//
//   - F32, F16, BF16, Q8_0 and Q6_K: all matrices alike.
//   - Types of fewer bits: the output matrix, which is the embedding where the two
//     are tied, gets Q6_K: it is read once a token and errs straight into the logits.
//   - Q4_K and Q5_K: in half of the layers attn_v and ffn_down get Q6_K, too.
//
// Where rows do not fill the blocks of 256, see narrower.
type mix struct {
	want   quant.DType
	output string // name of the matrix that makes the logits
	layers int
}

func newMix(want quant.DType, p *model.Parts) mix {
	m := mix{want: want, output: "token_embd.weight", layers: p.Config.Blocks}
	for i := range p.Tensors {
		if p.Tensors[i].Name == "output.weight" {
			m.output = "output.weight"
		}
	}
	return m
}

// of is the type for a matrix, whatever its shape.
func (m mix) of(name string) quant.DType {
	switch m.want {
	case quant.Q4_0, quant.Q4_1, quant.Q5_0, quant.Q5_1, quant.Q4_K, quant.Q5_K:
	default:
		return m.want
	}
	if name == m.output {
		return quant.Q6_K
	}
	if m.want != quant.Q4_K && m.want != quant.Q5_K {
		return m.want
	}
	var layer int
	if n, err := fmt.Sscanf(name, "blk.%d.", &layer); n != 1 || err != nil {
		return m.want
	}
	if (strings.HasSuffix(name, ".attn_v.weight") || strings.HasSuffix(name, ".ffn_down.weight")) && m.sensitive(layer) {
		return quant.Q6_K
	}
	return m.want
}

// sensitive tells the layers whose errors cost most: the first and the last eighth,
// and every third between them.
func (m mix) sensitive(layer int) bool {
	eighth := m.layers / 8
	return layer < eighth || layer >= 7*m.layers/8 || (layer-eighth)%3 == 2
}

// narrower is the type for a matrix whose rows do not fill the blocks of t: one of
// blocks of 32 with no fewer bits, or F16 where there is none.
func narrower(t quant.DType) quant.DType {
	switch t {
	case quant.Q4_K:
		return quant.Q5_0
	case quant.Q5_K:
		return quant.Q5_1
	case quant.Q6_K:
		return quant.Q8_0
	}
	return quant.F16
}

// largestOf is a magnitude that the type holds without overflow of its binary16
// numbers.
func largestOf(t quant.DType) float32 {
	const f16 = 65504
	switch t {
	case quant.F16, quant.Q4_1, quant.Q5_1: // the lowest element of a block is binary16
		return f16
	case quant.Q4_0:
		return 8 * f16
	case quant.Q5_0:
		return 16 * f16
	case quant.Q8_0:
		return 127 * f16
	case quant.Q4_K, quant.Q5_K: // the lowest element is up to 63 times binary16
		return 63 * f16
	case quant.Q6_K:
		return 127 * 31 * f16
	}
	return 3.4e38
}

// fileType is the number that stands for the mix of a type in a file's header.
func fileType(t quant.DType) (gguf.FileType, bool) {
	switch t {
	case quant.Q4_K:
		return gguf.FileQ4_K_M, true
	case quant.Q5_K:
		return gguf.FileQ5_K_M, true
	}
	return gguf.FileTypeOf(t)
}

// RequantiseError says that a matrix of the source has lost precision already and
// would lose more.
type RequantiseError struct {
	Tensor   string
	From, To quant.DType
}

func (e *RequantiseError) Error() string {
	return fmt.Sprintf("tensor %s: it is already %s; to quantise it again, as %s, would add to its error. Begin with the model in F32, F16 or BF16, or allow it (--allow-requantize)",
		e.Tensor, e.From, e.To)
}

// checkRequantise refuses to quantise what is quantised. A matrix that keeps its type
// is copied, and loses nothing.
func checkRequantise(plans []TensorPlan) error {
	for i := range plans {
		p := &plans[i]
		if from := p.tensor.DType; from.Quantised() && p.dtype.Quantised() && from != p.dtype {
			return &RequantiseError{p.Source, from, p.dtype}
		}
	}
	return nil
}
