package model

import (
	"fmt"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
)

// Role says how a tensor is stored and used.
type Role int

const (
	// Weight is a matrix that may be stored in any type.
	Weight Role = iota
	// Vector is a norm, bias or small F32 tensor, and stays F32.
	Vector
)

// Spec is one tensor of a model: its name in a GGUF file, its shape, and
// whether the model works without it.
type Spec struct {
	Name     string
	Shape    format.Shape
	Role     Role
	Optional bool
}

// Tensor is a named tensor of a model, under its GGUF name. Data is a view into
// a mapped file, or memory of its own where the tensor had to be computed.
type Tensor struct {
	Name   string
	Source string // its name, or how it was made, in the checkpoint it came from
	DType  quant.DType
	Shape  format.Shape
	Data   []byte
}

// Global tensor names.
const (
	nameEmbed      = "token_embd.weight"
	nameOutputNorm = "output_norm.weight"
	nameOutput     = "output.weight"
	nameRopeFreqs  = "rope_freqs.weight"
)

// blockName is the GGUF name of a tensor of layer i.
func blockName(i int, name string) string { return fmt.Sprintf("blk.%d.%s", i, name) }

// Tensors lists every tensor of a model of this configuration, in the order
// they are written. An optional tensor that is absent has this meaning: a bias
// is 0, output.weight is token_embd.weight (tied), attn_field.weight is 0 (a
// constant gate), attn_slope.weight is 1, rope_freqs.weight is 1.
func (c *Config) Tensors() []Spec {
	d, f := int64(c.Hidden), int64(c.FeedForward)
	hq, hkv, hf := int64(c.Heads), int64(c.KVHeads), int64(c.FieldHeads)
	dk, dv := int64(c.KeyDim), int64(c.ValDim)
	var specs []Spec
	add := func(name string, role Role, optional bool, shape ...int64) {
		specs = append(specs, Spec{name, shape, role, optional})
	}
	add(nameEmbed, Weight, false, int64(c.VocabSize), d)
	if c.RopeDim > 0 {
		add(nameRopeFreqs, Vector, true, int64(c.RopeDim/2))
	}
	for i := range c.Blocks {
		block := func(name string, role Role, optional bool, shape ...int64) {
			add(blockName(i, name), role, optional, shape...)
		}
		linear := func(name string, out, in int64) {
			block(name+".weight", Weight, false, out, in)
			block(name+".bias", Vector, true, out)
		}
		block("attn_norm.weight", Vector, false, d)
		linear("attn_q", hq*dk, d)
		linear("attn_k", hkv*dk, d)
		linear("attn_v", hkv*dv, d)
		switch c.QKNorm {
		case NormHead:
			block("attn_q_norm.weight", Vector, false, hq, dk)
			block("attn_k_norm.weight", Vector, false, hkv, dk)
		case NormShared:
			block("attn_q_norm.weight", Vector, false, dk)
			block("attn_k_norm.weight", Vector, false, dk)
		}
		if c.KeyShift {
			block("attn_k_shift.weight", Vector, false, hkv, d)
		}
		if c.ValueShift {
			block("attn_v_shift.weight", Vector, false, hkv, d)
		}
		if c.Field != FieldNone {
			block("attn_field.weight", Vector, true, hf, d)
			block("attn_field.bias", Vector, true, hf)
			switch c.Level {
			case LevelRelative, LevelAbsolute:
				block("attn_level.weight", Vector, false, hf, d)
				block("attn_level.bias", Vector, true, hf)
			case LevelOffset:
				block("attn_level.bias", Vector, false, hf)
			}
			block("attn_slope.weight", Vector, true, hf)
		}
		if c.OutputNorm {
			block("attn_output_norm.weight", Vector, false, hq*dv)
		}
		if c.OutputGate != GateNone {
			block("attn_gate.weight", Weight, false, hq*dv, d)
		}
		linear("attn_output", d, hq*dv)
		block("ffn_norm.weight", Vector, false, d)
		linear("ffn_gate", f, d)
		linear("ffn_up", f, d)
		linear("ffn_down", d, f)
	}
	add(nameOutputNorm, Vector, false, d)
	add(nameOutput, Weight, true, int64(c.VocabSize), d)
	return specs
}
