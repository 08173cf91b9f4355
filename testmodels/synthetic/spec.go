package main

import (
	"fmt"
	"math"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/quant"
)

// kind is what becomes of the keys in a model's cache.
type kind string

const (
	levelOff kind = "level-off" // every key lives for about Live tokens
	share    kind = "share"     // the part Share of the keys lives for ever, the rest for one token
	llama    kind = "llama"     // plain softmax with rotary embedding: every key lives for ever
)

// spec is all that a model depends on.
type spec struct {
	Kind                   kind
	Seed                   uint64
	Vocab, Hidden          int
	Blocks, Heads, KVHeads int
	FeedForward            int
	Live                   int     // of levelOff
	Share                  float64 // of share
}

// spec110M is the shape that every figure of docs/benchmarks.md is measured on:
// 109.6 million parameters with tied embeddings.
func spec110M() spec {
	return spec{Seed: 1, Vocab: 32000, Hidden: 768, Blocks: 12, Heads: 12, KVHeads: 12, FeedForward: 2048, Live: 1000, Share: 0.15}
}

// validate checks that the sizes are possible and fit each other.
func (s spec) validate() error {
	if s.Kind != levelOff && s.Kind != share && s.Kind != llama {
		return fmt.Errorf("--kind %q is not known, expected level-off, share or llama", s.Kind)
	}
	for _, f := range []struct {
		flag             string
		value, low, high int
	}{
		{"hidden", s.Hidden, 2, 1 << 16}, {"blocks", s.Blocks, 1, 1 << 10}, {"heads", s.Heads, 1, 1 << 10}, {"kv-heads", s.KVHeads, 1, 1 << 10},
		{"ffn", s.FeedForward, 1, 1 << 18}, {"vocab", s.Vocab, 3, 1 << 20}, {"live", s.Live, 2, 1 << 20},
	} {
		if f.value < f.low || f.value > f.high {
			return fmt.Errorf("--%s is %d, expected %d to %d", f.flag, f.value, f.low, f.high)
		}
	}
	switch {
	case s.Hidden%(2*s.Heads) != 0:
		return fmt.Errorf("--hidden %d does not give each of %d heads an even width", s.Hidden, s.Heads)
	case s.Heads%s.KVHeads != 0:
		return fmt.Errorf("--kv-heads %d does not divide the %d query heads", s.KVHeads, s.Heads)
	case !(s.Share > 0 && s.Share < 1):
		return fmt.Errorf("--share is %g, expected a number between 0 and 1", s.Share)
	}
	return nil
}

// name is what the model is called wherever it is shown.
func (s spec) name() string {
	return fmt.Sprintf("synthetic-%s-%s", s.Kind, gguf.SizeLabel(s.parameters()))
}

func (s spec) headDim() int { return s.Hidden / s.Heads }

// parameters is the number of weights.
func (s spec) parameters() int64 {
	var n int64
	for _, t := range s.tensors() {
		n += t.elements()
	}
	return n
}

// contextLength is what the configuration calls the training length. Nothing was
// trained; it is long enough for every measurement.
const contextLength = 131072

const (
	ropeBase = 10000
	normEps  = 1e-6
)

// config is the content of config.json.
func (s spec) config() map[string]any {
	c := map[string]any{
		"_name_or_path":           s.name(),
		"vocab_size":              s.Vocab,
		"hidden_size":             s.Hidden,
		"intermediate_size":       s.FeedForward,
		"num_hidden_layers":       s.Blocks,
		"num_attention_heads":     s.Heads,
		"num_key_value_heads":     s.KVHeads,
		"head_dim":                s.headDim(),
		"hidden_act":              "silu",
		"rms_norm_eps":            normEps,
		"tie_word_embeddings":     true,
		"max_position_embeddings": contextLength,
		"torch_dtype":             "float16",
	}
	add := func(more map[string]any) {
		for k, v := range more {
			c[k] = v
		}
	}
	fpa := map[string]any{
		"model_type":       "fpa",
		"architectures":    []string{"FPAForCausalLM"},
		"qk_norm":          "shared",
		"num_field_heads":  s.KVHeads, // with one a query head, a key would live as long as any of its query heads asks
		"field_interval":   "exclusive",
		"attention_bias":   false,
		"mlp_bias":         false,
		"field_activation": "identity",
	}
	switch s.Kind {
	case levelOff:
		add(fpa)
		add(map[string]any{"field_kind": "walk", "field_activation": "log_sigmoid", "level_kind": "tied"})
	case share:
		add(fpa)
		add(map[string]any{"field_kind": "direct", "level_kind": "absolute"})
	case llama:
		add(map[string]any{"model_type": "llama", "architectures": []string{"LlamaForCausalLM"}, "rope_theta": ropeBase})
	}
	return c
}

// tensor is a tensor whose elements are mean + std times a random number of mean
// 0 and variance 1.
type tensor struct {
	name      string // in a checkpoint
	gguf      string // in a GGUF file
	shape     format.Shape
	dtype     quant.DType
	mean, std float64
}

func (t tensor) elements() int64 {
	n := int64(1)
	for _, d := range t.shape {
		n *= d
	}
	return n
}

// initStd is the deviation of the matrices' elements, the usual one at the start
// of a training. Matrices that add to the residual stream are smaller by the root
// of the number of additions, so that no block drowns those before it.
//
// attentionPart makes the output of attention smaller still. It is an average over
// hundreds of values and so nearly the same for all tokens, and what all tokens
// have in common moves the levels of a head up or down together: without this
// factor the heads of the last of 12 blocks keep from 0.1 to 87 % of the keys
// where 15 % are asked for.
const (
	initStd       = 0.02
	attentionPart = 1.0 / 8
)

// tensors are the model's tensors in the order of its computation. Norms, and all
// that makes fields and levels, are float32.
func (s spec) tensors() []tensor {
	d, v, f := int64(s.Hidden), int64(s.Vocab), int64(s.FeedForward)
	dk, hq, hkv := int64(s.headDim()), int64(s.Heads), int64(s.KVHeads)
	residual := initStd / math.Sqrt(2*float64(s.Blocks))
	matrix := func(name, ggufName string, std float64, rows, cols int64) tensor {
		return tensor{name, ggufName, format.Shape{rows, cols}, quant.F16, 0, std}
	}
	ones := func(name, ggufName string, n int64) tensor {
		return tensor{name, ggufName, format.Shape{n}, quant.F32, 1, 0}
	}
	out := []tensor{matrix("model.embed_tokens.weight", "token_embd.weight", initStd, v, d)}
	for i := range s.Blocks {
		p, b := fmt.Sprintf("model.layers.%d.", i), fmt.Sprintf("blk.%d.", i)
		a := p + "self_attn."
		out = append(out,
			ones(p+"input_layernorm.weight", b+"attn_norm.weight", d),
			matrix(a+"q_proj.weight", b+"attn_q.weight", initStd, hq*dk, d),
			matrix(a+"k_proj.weight", b+"attn_k.weight", initStd, hkv*dk, d),
			matrix(a+"v_proj.weight", b+"attn_v.weight", initStd, hkv*dk, d))
		if s.Kind != llama {
			out = append(out, ones(a+"q_norm.weight", "", dk), ones(a+"k_norm.weight", "", dk))
			out = append(out, s.fieldTensors(a)...)
		}
		out = append(out,
			matrix(a+"o_proj.weight", b+"attn_output.weight", attentionPart*residual, d, hq*dk),
			ones(p+"post_attention_layernorm.weight", b+"ffn_norm.weight", d),
			matrix(p+"mlp.gate_proj.weight", b+"ffn_gate.weight", initStd, f, d),
			matrix(p+"mlp.up_proj.weight", b+"ffn_up.weight", initStd, f, d),
			matrix(p+"mlp.down_proj.weight", b+"ffn_down.weight", residual, d, f))
	}
	return append(out, ones("model.norm.weight", "output_norm.weight", d))
}

// fieldTensors are the tensors of a block's fields, levels and slopes. Their
// inputs are RMS-normalised, of length sqrt(Hidden) in a direction that a random
// row does not know, so a row whose elements have deviation sigma/sqrt(Hidden)
// gives values of deviation sigma.
func (s spec) fieldTensors(prefix string) []tensor {
	d, h := int64(s.Hidden), int64(s.KVHeads)
	row := func(name string, sigma float64) tensor {
		return tensor{prefix + name, "", format.Shape{h, d}, quant.F32, 0, sigma / math.Sqrt(float64(s.Hidden))}
	}
	constant := func(name string, x float64) tensor {
		return tensor{prefix + name, "", format.Shape{h}, quant.F32, x, 0}
	}
	if s.Kind == levelOff {
		return []tensor{
			row("field_proj.weight", gateSigma), constant("field_proj.bias", gateBias(s.fall())),
			constant("slope", 1),
		}
	}
	return []tensor{
		row("field_proj.weight", fieldSigma), constant("field_proj.bias", 0),
		row("level_proj.weight", 1), constant("level_proj.bias", levelBias(s.Share)),
		constant("slope", shareSlope),
	}
}

// gateSigma is the deviation of a gate before its log-sigmoid: falls differ by a
// quarter from token to token, and their sum over a key's life by 1 %.
const gateSigma = 0.25

// fall is how much the field of a level-off model falls a token, on average, for
// Live keys to stay live: the penalty at which a key goes, over Live.
//
// The cache mode exact lets the n-th key of a head go at the penalty
// 2U - ln(share), and U is sqrt(head dim), for query and key norms of weight 1.
// Where every key dies in small steps the share is what the budget
// C(n) = eps (1 - 0.5 / (1 + ln(1+n))), eps = 2^-25, grows by with one more key:
//
//	C'(n) = eps / (2 (1+n) (1 + ln(1+n))^2)
//
// That penalty grows by 2 for each factor of 4 in n, which is why "level off"
// holds within 10 % from 4 to 128 times Live, and not exactly. The middle, n of
// 16 times Live, is where Live is met.
func (s spec) fall() float64 {
	n := 16 * float64(s.Live)
	log := 1 + math.Log1p(n)
	penalty := 2*math.Sqrt(float64(s.headDim())) + 25*math.Ln2 + math.Log(2*(1+n)*log*log)
	return penalty / float64(s.Live)
}

// gateBias is the bias b at which the mean of -log sigmoid(b + gateSigma x), x
// normal, is fall. For small falls -log sigmoid(z) is nearly exp(-z), whose mean
// is larger by exp(gateSigma²/2) than its value at b.
func gateBias(fall float64) float64 {
	return -math.Log(math.Expm1(fall / math.Exp(gateSigma*gateSigma/2)))
}

// A share model's field is close to 0 at every token, and levels are normal with
// deviation 1. A key whose level lies below every field lives for ever; one above
// is penalised by shareSlope times the difference as soon as the next token
// comes. Between the two, in the width of the field's noise and of what shareSlope
// needs to kill a key (40/10,000), lie fewer than 1 in 500 keys.
const (
	fieldSigma = 0.001
	shareSlope = 10000
)

// levelBias is the mean of a normal variable of deviation 1 that is negative with
// probability p.
func levelBias(p float64) float64 { return -math.Sqrt2 * math.Erfinv(2*p-1) }
