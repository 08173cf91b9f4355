package model

import (
	"bytes"
	"fmt"
	"math"
	"strings"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/hf"
	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/quant"
)

// Parts are what a model is made of, before it is built: its configuration and
// its tensors under their GGUF names. The data of the tensors may be views into
// the file they came from.
type Parts struct {
	Config  Config
	Tensors []Tensor
}

// checkpointNames maps the names of an FPA checkpoint (docs/checkpoints.md) to
// those of a GGUF file; a name in a layer has the prefix model.layers.N.
var (
	checkpointNames = map[string]string{
		"model.embed_tokens.weight": nameEmbed,
		"model.norm.weight":         nameOutputNorm,
		"lm_head.weight":            nameOutput,
	}
	checkpointLayerNames = map[string]string{
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
)

const layerPrefix = "model.layers."

// ggufName is the GGUF name of a checkpoint's tensor.
func ggufName(name string) (string, bool) {
	if g, ok := checkpointNames[name]; ok {
		return g, true
	}
	rest, ok := strings.CutPrefix(name, layerPrefix)
	if !ok {
		return "", false
	}
	layer, rest, ok := strings.Cut(rest, ".")
	if !ok {
		return "", false
	}
	switch rest {
	case "self_attn.slope":
		return "blk." + layer + ".attn_slope.weight", true
	case "self_attn.level_offset":
		return "blk." + layer + ".attn_level.bias", true
	}
	dot := strings.LastIndexByte(rest, '.')
	if dot < 0 {
		return "", false
	}
	base, ok := checkpointLayerNames[rest[:dot]]
	if kind := rest[dot:]; !ok || kind != ".weight" && kind != ".bias" {
		return "", false
	}
	return "blk." + layer + "." + base + rest[dot:], true
}

// FromCheckpoint reads the parts of a model from an FPA checkpoint in the
// layout of docs/checkpoints.md. Matrices stay where they are; vectors are
// widened to F32. Errors name the file and the key or tensor.
func FromCheckpoint(c *hf.Checkpoint) (Parts, error) {
	r := &configReader{c: c.Config()}
	p := Parts{Config: r.config()}
	if r.err != nil {
		return Parts{}, r.err
	}
	if err := p.Config.Validate(); err != nil {
		return Parts{}, format.WithPath(err, c.ConfigPath())
	}
	if err := p.addTensors(c, r); err != nil {
		return Parts{}, format.WithPath(err, c.Dir())
	}
	return p, nil
}

// addTensors names the checkpoint's tensors and checks what config.json says
// about those that may be absent.
func (p *Parts) addTensors(c *hf.Checkpoint, r *configReader) error {
	if p.Config.Blocks > len(c.Tensors()) {
		return bad("num_hidden_layers", "is %d, but the checkpoint has %d tensors in all", p.Config.Blocks, len(c.Tensors()))
	}
	vectors := make(map[string]bool)
	for _, s := range p.Config.Tensors() {
		vectors[s.Name] = s.Role == Vector
	}
	have := make(map[string]bool)
	for _, t := range c.Tensors() {
		name, ok := ggufName(t.Name)
		if !ok {
			return &format.UnsupportedError{Offset: -1, Where: t.Name, Msg: "no tensor of an FPA checkpoint has this name; see docs/checkpoints.md"}
		}
		if r.tied && name == nameOutput {
			if embed, ok := c.Lookup("model.embed_tokens.weight"); !ok || !bytes.Equal(embed.Data, t.Data) {
				return bad(t.Name, "differs from model.embed_tokens.weight, but config.json says tie_word_embeddings; set it to false to use both")
			}
			continue
		}
		tensor, err := toTensor(t, name, vectors[name])
		if err != nil {
			return err
		}
		p.Tensors = append(p.Tensors, tensor)
		have[name] = true
	}
	if !r.tied && !have[nameOutput] {
		return bad("lm_head.weight", "the tensor is missing; config.json does not say tie_word_embeddings")
	}
	return p.checkBiases(have, r)
}

// toTensor is a tensor under its new name; a vector is widened to F32.
func toTensor(t safetensors.Tensor, name string, vector bool) (Tensor, error) {
	out := Tensor{Name: name, Source: t.Name, DType: t.DType, Shape: t.Shape, Data: t.Data}
	if !vector || t.DType == quant.F32 {
		return out, nil
	}
	n, err := t.Shape.Elements()
	if err != nil {
		return out, bad(t.Name, "%v", err)
	}
	out.DType, out.Data = quant.F32, make([]byte, 4*n)
	if err := quant.Convert(out.Data, quant.F32, t.Data, t.DType, int(n)); err != nil {
		return out, bad(t.Name, "%v", err)
	}
	return out, nil
}

// checkBiases holds the biases that are there against attention_bias and
// mlp_bias: a bias that was lost, or is not meant, changes every logit.
func (p *Parts) checkBiases(have map[string]bool, r *configReader) error {
	for i := range p.Config.Blocks {
		for _, b := range []struct {
			key   string
			want  bool
			names []string
		}{
			{"attention_bias", r.attentionBias, []string{"attn_q", "attn_k", "attn_v", "attn_output"}},
			{"mlp_bias", r.mlpBias, []string{"ffn_gate", "ffn_up", "ffn_down"}},
		} {
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
	return nil
}

// configReader reads keys of config.json and keeps the first error.
type configReader struct {
	c   *hf.Config
	err error

	tied, attentionBias, mlpBias bool
}

func read[T any](r *configReader, get func() (T, error)) T {
	v, err := get()
	r.fail(err)
	return v
}

func (r *configReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *configReader) unsupported(key, msg string, args ...any) {
	r.fail(&format.UnsupportedError{Path: r.c.Path(), Offset: -1, Where: key, Msg: fmt.Sprintf(msg, args...)})
}

func (r *configReader) required(key string) int {
	return int(read(r, func() (int64, error) { return r.c.RequiredInt(key) }))
}

func (r *configReader) int(key string, absent int) int {
	return int(read(r, func() (int64, error) { return r.c.Int(key, int64(absent)) }))
}

func (r *configReader) float(key string, absent float64) float64 {
	return read(r, func() (float64, error) { return r.c.Float(key, absent) })
}

func (r *configReader) bool(key string) bool {
	return read(r, func() (bool, error) { return r.c.Bool(key, false) })
}

func (r *configReader) string(key, absent string) string {
	return read(r, func() (string, error) { return r.c.String(key, absent) })
}

// config reads the configuration of an FPA model; the keys and what they mean
// when absent are those of docs/checkpoints.md.
func (r *configReader) config() Config {
	if kind := r.string("model_type", ""); kind != "fpa" {
		r.unsupported("model_type", "%q cannot be read, expected \"fpa\" (docs/checkpoints.md)", kind)
	}
	for _, key := range []string{"rope_scaling", "sliding_window"} {
		if r.c.Has(key) {
			r.unsupported(key, "is not part of an FPA checkpoint; remove the key or set it to null if the model does not use it")
		}
	}
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
	r.tied = r.bool("tie_word_embeddings")
	r.attentionBias, r.mlpBias = r.bool("attention_bias"), r.bool("mlp_bias")
	if r.err != nil || c.Heads < 1 {
		return c // Validate names what is wrong
	}
	c.KVHeads = r.int("num_key_value_heads", c.Heads)
	c.KeyDim = r.int("head_dim", c.Hidden/c.Heads)
	c.ValDim = c.KeyDim
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
