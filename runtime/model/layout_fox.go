package model

import (
	"math"
	"strings"
)

// foxQKNormEps is the epsilon of the query and key norms of forgetting-attention
// models, whatever norm_eps says: both code bases construct them with the
// default of the norm's class.
const foxQKNormEps = 1e-5

var foxGlobal = map[string]string{
	"model.embeddings.weight": nameEmbed,
	"model.norm.weight":       nameOutputNorm,
	"lm_head.weight":          nameOutput,
}

// foxLayout is the layout of the official Forgetting Transformer: the gate and up
// matrices of the feed-forward block are one, a shifted key or value has its
// matrix and its shift side by side.
var foxLayout = layout{
	name:   "FoX",
	config: foxConfig,
	place: func(_ *configReader, name string) []piece {
		if n, rest, ok := cutLayer(name); ok {
			switch rest {
			case "attn.fgate_bias": // a constant gate, learned or fixed
				return whole("blk." + n + ".attn_field.bias")
			case "mlp.gate_proj.weight":
				return []piece{{"blk." + n + ".ffn_gate.weight", 0, 2}, {"blk." + n + ".ffn_up.weight", 1, 2}}
			}
		}
		return foxPlace(nil, name)
	},
	check: func(r *configReader, have map[string]bool) error {
		kind := r.string("fgate_type", "full")
		for i := range r.int("num_hidden_layers", 24) {
			weight, bias := have[blockName(i, "attn_field.weight")], have[blockName(i, "attn_field.bias")]
			if weight != (kind == "full") || bias != (kind != "none") {
				return bad("fgate_type", "is %q, but layer %d has gate weights: %v, gate bias: %v", kind, i, weight, bias)
			}
		}
		return r.err
	},
}

var foxPlace = placeLayer(foxGlobal, map[string]string{
	"attn_norm":              "attn_norm",
	"mlp_norm":               "ffn_norm",
	"attn.q_proj":            "attn_q",
	"attn.k_proj":            "attn_k",
	"attn.k_proj.linear":     "attn_k",
	"attn.k_proj.shift_proj": "attn_k_shift",
	"attn.v_proj":            "attn_v",
	"attn.v_proj.linear":     "attn_v",
	"attn.v_proj.shift_proj": "attn_v_shift",
	"attn.fgate_proj":        "attn_field",
	"attn.ogate_proj":        "attn_gate",
	"attn.output_norm":       "attn_output_norm",
	"attn.q_norm":            "attn_q_norm",
	"attn.k_norm":            "attn_k_norm",
	"attn.o_proj":            "attn_output",
	"mlp.down_proj":          "ffn_down",
})

// flaLayout is the layout of flash-linear-attention. For two days in April 2025
// its forget gate had the name that the output gate has now, attn.g_proj; the
// gate has one row a head, which tells them apart.
var flaLayout = layout{
	name:   "FLA",
	config: flaConfig,
	place: func(r *configReader, name string) []piece {
		if shape := r.layerShape("attn.g_proj.weight"); len(shape) == 2 && shape[0] == int64(r.int("num_heads", 32)) && !r.hasAny(".attn.f_proj.") {
			name = strings.Replace(name, ".attn.g_proj.", ".attn.f_proj.", 1)
		}
		return flaPlace(r, name)
	},
	check: func(r *configReader, have map[string]bool) error {
		if !have["blk.0.attn_field.weight"] {
			return bad("attn.f_proj.weight", "the forget gate is missing; models of early April 2025 with an output gate lost it")
		}
		return nil
	},
}

var flaPlace = placeLayer(foxGlobal, map[string]string{
	"attn_norm":     "attn_norm",
	"mlp_norm":      "ffn_norm",
	"attn.q_proj":   "attn_q",
	"attn.k_proj":   "attn_k",
	"attn.v_proj":   "attn_v",
	"attn.f_proj":   "attn_field",
	"attn.g_proj":   "attn_gate",
	"attn.q_norm":   "attn_q_norm",
	"attn.k_norm":   "attn_k_norm",
	"attn.o_proj":   "attn_output",
	"mlp.gate_proj": "ffn_gate",
	"mlp.up_proj":   "ffn_up",
	"mlp.down_proj": "ffn_down",
})

// foxCommon reads what the official code and FLA share. A forgetting head is a
// walk of log sigmoid increments with tied levels and slope 1.
func foxCommon(r *configReader) Config {
	c := Config{
		VocabSize:       r.int("vocab_size", 32000),
		ContextLength:   r.int("max_position_embeddings", 2048),
		Hidden:          r.int("hidden_size", 2048),
		Blocks:          r.int("num_hidden_layers", 24),
		Heads:           r.int("num_heads", 32),
		NormEps:         float32(r.float("norm_eps", 1e-6)),
		Field:           FieldWalk,
		FieldActivation: LogSigmoid,
		Level:           LevelTied,
		Interval:        Exclusive,
		QKNorm:          NormNone,
		OutputGate:      GateNone,
		Activation:      foxActivation(r, "hidden_act", "swish"),
	}
	r.refuse("a forgetting-attention model with it cannot be represented", "window_size", "attnres_block_size")
	if r.err != nil || c.Heads < 1 {
		return c // Validate names what is wrong
	}
	c.KVHeads = r.int("num_kv_heads", c.Heads)
	c.KeyDim = c.Hidden / c.Heads
	c.ValDim = c.KeyDim
	c.Scale = defaultScale(c.KeyDim)
	c.FieldHeads = c.Heads
	c.FeedForward = foxFeedForward(r, c.Hidden)
	if r.bool("qk_norm") {
		// Whether the weight is shared is told by its shape: configurations from
		// before 2025-03-31 do not say, and then it is.
		c.QKNorm, c.QKNormEps = NormHead, foxQKNormEps
		if s := r.layerShape("attn.q_norm.weight"); len(s) == 1 && s[0] == int64(c.KeyDim) && c.Heads > 1 {
			c.QKNorm = NormShared
		}
	}
	return c
}

// foxFeedForward is the width of the feed-forward block: given, or from
// hidden_ratio by the rule of the reference code.
func foxFeedForward(r *configReader, hidden int) int {
	if r.c.Has("intermediate_size") {
		return r.int("intermediate_size", 0)
	}
	ratio := r.float("hidden_ratio", 4)
	n := math.Trunc(float64(hidden) * ratio * 2 / 3)
	if !(n > 0 && n < maxDim) {
		r.unsupported("hidden_ratio", "is %g, which gives no width of the feed-forward block", ratio)
		return 0
	}
	return 256 * int(math.Ceil(n/256))
}

// foxActivation reads the name of an activation; "swish" is silu.
func foxActivation(r *configReader, key, absent string) Activation {
	if name := r.string(key, absent); name != "swish" {
		return Activation(name)
	}
	return Silu
}

func foxConfig(r *configReader) Config {
	if r.hasAny(".attn.c_proj.") || r.c.Has("n_embd") {
		r.unsupported("n_embd", "this is a fork of the Forgetting Transformer with another output norm, epsilon and rotary base; it cannot be represented")
	}
	r.refuse("the reference code has no grouped heads", "num_kv_heads")
	c := foxCommon(r)
	if r.err != nil {
		return c
	}
	switch kind := r.string("fgate_type", "full"); kind {
	case "full", "bias_only", "fixed":
	case "none":
		c.Field, c.FieldActivation, c.FieldHeads, c.Level = FieldNone, "", 0, ""
	default:
		r.unsupported("fgate_type", "%q is not known, expected full, bias_only, fixed or none", kind)
	}
	c.OutputNorm = r.bool("use_output_norm")
	c.KeyShift, c.ValueShift = r.bool("use_k_shift"), r.bool("use_v_shift")
	if r.bool("use_output_gate") {
		c.OutputGate = foxActivation(r, "ogate_act", "sigmoid")
		if c.OutputNorm {
			c.OutputGate = Sigmoid
		}
	}
	if r.bool("use_rope") {
		c.RopeDim, c.RopeBase = c.KeyDim, r.float("rope_base", 500000)
	}
	return c
}

func flaConfig(r *configReader) Config {
	c := foxCommon(r)
	if r.err != nil {
		return c
	}
	if r.bool("use_output_gate") {
		c.OutputGate = Sigmoid
	}
	return c
}
