package model

import (
	"math"
	"slices"
	"strings"

	"github.com/firstpassage/fpa/format/hf"
)

var llamaGlobal = map[string]string{
	"model.embed_tokens.weight": nameEmbed,
	"model.norm.weight":         nameOutputNorm,
	"lm_head.weight":            nameOutput,
}

// llamaLayout is the layout of Llama, Mistral, SmolLM and Qwen models in Hugging
// Face folders: plain softmax heads with rotary embedding.
var llamaLayout = layout{name: "Llama", config: llamaConfig, place: llamaPlace}

var llamaPlace = placeLayer(llamaGlobal, map[string]string{
	"input_layernorm":          "attn_norm",
	"post_attention_layernorm": "ffn_norm",
	"self_attn.q_proj":         "attn_q",
	"self_attn.k_proj":         "attn_k",
	"self_attn.v_proj":         "attn_v",
	"self_attn.o_proj":         "attn_output",
	"self_attn.q_norm":         "attn_q_norm",
	"self_attn.k_norm":         "attn_k_norm",
	"mlp.gate_proj":            "ffn_gate",
	"mlp.up_proj":              "ffn_up",
	"mlp.down_proj":            "ffn_down",
})

// llamaTypes are the model types whose block is the one described here. Others
// have tensors of the same names and scale embeddings or norms in their code,
// which the tensors do not tell.
var llamaTypes = []string{"llama", "mistral", "qwen2", "qwen3"}

func llamaConfig(r *configReader) Config {
	if kind := r.string("model_type", ""); !slices.Contains(llamaTypes, kind) {
		r.unsupported("model_type", "%q cannot be read, expected one of %s; other models use tensors of these names in other ways", kind, strings.Join(llamaTypes, ", "))
	}
	if r.c.Has("sliding_window") && (!r.c.Has("use_sliding_window") || r.bool("use_sliding_window")) {
		r.unsupported("sliding_window", "attention over a window of the last tokens cannot be represented; if the model was trained without it, set the key to null")
	}
	c := Config{
		VocabSize:     r.required("vocab_size"),
		ContextLength: r.int("max_position_embeddings", 2048),
		Hidden:        r.required("hidden_size"),
		Blocks:        r.required("num_hidden_layers"),
		FeedForward:   r.required("intermediate_size"),
		Heads:         r.required("num_attention_heads"),
		NormEps:       float32(r.float("rms_norm_eps", 1e-6)),
		Field:         FieldNone,
		Interval:      Exclusive,
		QKNorm:        NormNone,
		OutputGate:    GateNone,
		Activation:    llamaActivation(r),
	}
	if r.err != nil || c.Heads < 1 {
		return c // Validate names what is wrong
	}
	c.KVHeads = r.int("num_key_value_heads", c.Heads)
	c.KeyDim = r.int("head_dim", c.Hidden/c.Heads)
	c.ValDim = c.KeyDim
	c.Scale = defaultScale(c.KeyDim)
	if r.layerShape("self_attn.q_norm.weight") != nil {
		c.QKNorm, c.QKNormEps = NormShared, c.NormEps
	}
	llamaRope(r, &c)
	return c
}

// llamaActivation maps the names of activations in Hugging Face configurations.
func llamaActivation(r *configReader) Activation {
	switch name := r.string("hidden_act", "silu"); name {
	case "swish":
		return Silu
	case "gelu_pytorch_tanh", "gelu_new":
		return GeluTanh
	default:
		return Activation(name)
	}
}

// llamaRope reads the rotary embedding. Newer configurations keep everything in
// rope_parameters, older ones the base beside and the scaling in rope_scaling.
func llamaRope(r *configReader, c *Config) {
	base, scaling := r.c, read(r, func() (*hf.Config, error) { return r.c.Object("rope_scaling") })
	if r.c.Has("rope_parameters") {
		base = read(r, func() (*hf.Config, error) { return r.c.Object("rope_parameters") })
		scaling = base
	}
	if r.err != nil {
		return
	}
	number := func(from *hf.Config, key string, absent float64) float64 {
		return read(r, func() (float64, error) { return from.Float(key, absent) })
	}
	c.RopeBase = number(base, "rope_theta", 10000)
	c.RopeDim = int(number(base, "partial_rotary_factor", r.float("partial_rotary_factor", 1)) * float64(c.KeyDim))
	kind := read(r, func() (string, error) { return scaling.String("rope_type", "") })
	if kind == "" {
		kind = read(r, func() (string, error) { return scaling.String("type", "default") })
	}
	switch kind {
	case "default":
	case "linear":
		factor := number(scaling, "factor", 1)
		r.ropeFactors = slices.Repeat([]float32{float32(factor)}, c.RopeDim/2)
	case "llama3":
		r.ropeFactors = llama3Factors(c.RopeDim, c.RopeBase, number(scaling, "factor", 8), number(scaling, "low_freq_factor", 1),
			number(scaling, "high_freq_factor", 4), number(scaling, "original_max_position_embeddings", 8192))
	default:
		r.unsupported("rope_scaling", "type %q cannot be represented, expected default, linear or llama3", kind)
	}
}

// llama3Factors are the divisors of the rotary frequencies of Llama 3.1: waves
// shorter than context/high stay, those longer than context/low are slowed by
// factor, and between the two the frequency is blended linearly.
func llama3Factors(dim int, base, factor, low, high, context float64) []float32 {
	out := make([]float32, dim/2)
	for i := range out {
		wave := 2 * math.Pi * math.Pow(base, 2*float64(i)/float64(dim))
		smooth := min(max((context/wave-low)/(high-low), 0), 1)
		out[i] = float32(1 / ((1-smooth)/factor + smooth))
	}
	return out
}
