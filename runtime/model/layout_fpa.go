package model

import (
	"math"
	"strings"
)

// fpaLayout is the layout of docs/checkpoints.md.
var fpaLayout = layout{
	name:   "FPA",
	config: fpaConfig,
	place: func(_ *configReader, name string) []piece {
		if n, rest, ok := cutLayer(name); ok {
			switch rest {
			case fpaSlope:
				return whole("blk." + n + ".attn_slope.weight")
			case fpaLevelOffset:
				return whole("blk." + n + ".attn_level.bias")
			}
		}
		return fpaPlace(nil, name)
	},
	check: checkBiases,
}

// The names in a layer that are whole, without .weight or .bias.
const (
	fpaSlope       = "self_attn.slope"
	fpaLevelOffset = "self_attn.level_offset"
)

var fpaPlace = placeLayer(fpaGlobal, fpaLayer)

// fpaGlobal are the names outside of layers.
var fpaGlobal = map[string]string{
	"model.embed_tokens.weight": nameEmbed,
	"model.rope_freqs.weight":   nameRopeFreqs,
	"model.norm.weight":         nameOutputNorm,
	"lm_head.weight":            nameOutput,
}

// CheckpointName is the name that a tensor of a model has in an FPA checkpoint
// (docs/checkpoints.md). name is one of those of Config.Tensors.
func (c *Config) CheckpointName(name string) string {
	for checkpoint, g := range fpaGlobal {
		if g == name {
			return checkpoint
		}
	}
	rest, _ := strings.CutPrefix(name, "blk.")
	n, rest, _ := strings.Cut(rest, ".")
	prefix := "model.layers." + n + "."
	switch {
	case rest == "attn_slope.weight":
		return prefix + fpaSlope
	case rest == "attn_level.bias" && c.Level == LevelOffset:
		return prefix + fpaLevelOffset
	}
	base, kind, _ := strings.Cut(rest, ".")
	for checkpoint, g := range fpaLayer {
		if g == base {
			return prefix + checkpoint + "." + kind
		}
	}
	return name
}

// fpaLayer are the names in a layer: those of a Llama checkpoint and what FPA
// adds.
var fpaLayer = map[string]string{
	"input_layernorm":          "attn_norm",
	"post_attention_layernorm": "ffn_norm",
	"self_attn.q_proj":         "attn_q",
	"self_attn.k_proj":         "attn_k",
	"self_attn.v_proj":         "attn_v",
	"self_attn.o_proj":         "attn_output",
	"self_attn.q_norm":         "attn_q_norm",
	"self_attn.k_norm":         "attn_k_norm",
	"self_attn.field_proj":     "attn_field",
	"self_attn.level_proj":     "attn_level",
	"self_attn.gate_proj":      "attn_gate",
	"self_attn.o_norm":         "attn_output_norm",
	"self_attn.k_shift_proj":   "attn_k_shift",
	"self_attn.v_shift_proj":   "attn_v_shift",
	"mlp.gate_proj":            "ffn_gate",
	"mlp.up_proj":              "ffn_up",
	"mlp.down_proj":            "ffn_down",
}

// fpaKeys are the keys of config.json that fpaConfig reads.
var fpaKeys = []string{
	"model_type", "vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers", "intermediate_size",
	"num_attention_heads", "num_key_value_heads", "head_dim", "value_head_dim", "rms_norm_eps", "hidden_act", "tie_word_embeddings",
	"attention_bias", "attention_output_bias", "mlp_bias", "attention_scale", "qk_norm", "qk_norm_eps", "output_gate", "output_norm",
	"key_shift", "value_shift", "field_kind", "field_activation", "field_interval", "num_field_heads", "level_kind",
	"rope_theta", "partial_rotary_factor", "rope_scaling", "sliding_window",
	"bos_token_id", "eos_token_id", "pad_token_id",
}

// fpaConfig reads the configuration of an FPA model; the keys and what they mean
// when absent are those of docs/checkpoints.md.
func fpaConfig(r *configReader) Config {
	if kind := r.string("model_type", ""); kind != "fpa" {
		r.unsupported("model_type", "is %q, but the tensors are those of an FPA checkpoint; expected \"fpa\"", kind)
	}
	r.refuseMisspelt(fpaKeys)
	r.refuse("is not part of an FPA checkpoint; remove the key or set it to null if the model does not use it", "rope_scaling", "sliding_window")
	c := Config{
		VocabSize:     r.required("vocab_size"),
		ContextLength: r.required("max_position_embeddings"),
		Hidden:        r.required("hidden_size"),
		Blocks:        r.required("num_hidden_layers"),
		FeedForward:   r.required("intermediate_size"),
		Heads:         r.required("num_attention_heads"),
		NormEps:       float32(r.float("rms_norm_eps", 1e-6)),
		Field:         FieldKind(r.string("field_kind", string(FieldWalk))),
		Interval:      Interval(r.string("field_interval", string(Exclusive))),
		QKNorm:        NormKind(r.string("qk_norm", string(NormNone))),
		OutputGate:    Activation(r.string("output_gate", string(GateNone))),
		OutputNorm:    r.bool("output_norm"),
		KeyShift:      r.bool("key_shift"),
		ValueShift:    r.bool("value_shift"),
		Activation:    Activation(r.string("hidden_act", string(Silu))),
	}
	if r.err != nil || c.Heads < 1 {
		return c // Validate names what is wrong
	}
	c.KVHeads = r.int("num_key_value_heads", c.Heads)
	c.KeyDim = r.int("head_dim", c.Hidden/c.Heads)
	c.ValDim = r.int("value_head_dim", c.KeyDim)
	c.Scale = float32(r.float("attention_scale", 1/math.Sqrt(float64(c.KeyDim))))
	if c.QKNorm != NormNone {
		c.QKNormEps = float32(r.float("qk_norm_eps", float64(c.NormEps)))
	}
	if c.Field != FieldNone {
		c.FieldActivation = Activation(r.string("field_activation", string(Tanh)))
		c.FieldHeads = r.int("num_field_heads", c.Heads)
		c.Level = LevelKind(r.string("level_kind", string(LevelTied)))
	}
	if r.c.Has("rope_theta") {
		c.RopeBase = r.float("rope_theta", 0)
		c.RopeDim = int(r.float("partial_rotary_factor", 1) * float64(c.KeyDim))
	}
	return c
}

// checkBiases holds the biases that are there against attention_bias and
// mlp_bias: a bias that was lost, or is not meant, changes every logit.
func checkBiases(r *configReader, have map[string]bool) error {
	layers := r.required("num_hidden_layers")
	attention := r.bool("attention_bias")
	for _, b := range []struct {
		key   string
		want  bool
		names []string
	}{
		{"attention_bias", attention, []string{"attn_q", "attn_k", "attn_v"}},
		{"attention_output_bias", r.boolOr("attention_output_bias", attention), []string{"attn_output"}},
		{"mlp_bias", r.bool("mlp_bias"), []string{"ffn_gate", "ffn_up", "ffn_down"}},
	} {
		for i := range layers {
			for _, name := range b.names {
				bias := blockName(i, name+".bias")
				if have[bias] && !b.want {
					return bad(bias, "the checkpoint has this bias, but config.json does not say %s", b.key)
				}
				if !have[bias] && b.want {
					return bad(bias, "the tensor is missing; config.json says %s", b.key)
				}
			}
		}
	}
	return r.err
}
