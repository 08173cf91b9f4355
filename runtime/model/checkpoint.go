package model

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
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

// layout is a naming of tensors and a set of configuration keys.
type layout struct {
	name string
	// config reads config.json. It may look at the names and shapes of the
	// tensors, which tell more reliably than some keys.
	config func(*configReader) Config
	// place says what a tensor is, or parts of it are, under GGUF names; nil for
	// a name that the layout does not know.
	place func(r *configReader, name string) []piece
	// check refuses what the layout's configuration and tensors disagree on.
	check func(r *configReader, have map[string]bool) error
}

// configKeys are the names that config.json has for keys of a GGUF file.
var configKeys = map[string]string{
	"context_length": "max_position_embeddings", "embedding_length": "hidden_size", "block_count": "num_hidden_layers",
	"feed_forward_length": "intermediate_size", "head_count": "num_attention_heads", "head_count_kv": "num_key_value_heads",
	"key_length": "head_dim", "value_length": "value_head_dim", "layer_norm_rms_epsilon": "rms_norm_eps",
	"attention.scale": "attention_scale", "attention.field.kind": "field_kind", "attention.field.activation": "field_activation",
	"attention.field.head_count": "num_field_heads", "attention.level.kind": "level_kind", "attention.interval": "field_interval",
	"attention.qk_norm": "qk_norm", "attention.qk_norm_epsilon": "qk_norm_eps", "attention.output_gate": "output_gate",
	"feed_forward.activation": "hidden_act", "rope.dimension_count": "partial_rotary_factor", "rope.freq_base": "rope_theta",
}

// inConfig names the key of config.json in an error about a configuration.
func inConfig(err error) error {
	var f *format.FormatError
	if errors.As(err, &f) && configKeys[f.Where] != "" {
		f.Where = configKeys[f.Where]
	}
	var u *format.UnsupportedError
	if errors.As(err, &u) && configKeys[u.Where] != "" {
		u.Where = configKeys[u.Where]
	}
	return err
}

// piece is a tensor's name in a GGUF file, and which of how many equal parts of
// its rows it is.
type piece struct {
	name     string
	part, of int
}

func whole(name string) []piece { return []piece{{name, 0, 1}} }

// detect finds the layout by the names of the tensors; model_type is not
// trusted, since unlike models share one.
func detect(r *configReader) (layout, error) {
	switch {
	case r.has("model.embeddings.weight") && (r.hasAny(".attn.fgate_proj.", ".attn.fgate_bias", ".attn.k_proj.linear.") || !r.hasAny(".mlp.up_proj.")):
		return foxLayout, nil
	case r.has("model.embeddings.weight"):
		return flaLayout, nil
	case r.has("model.embed_tokens.weight") && (r.string("model_type", "") == "fpa" || r.hasAny(".self_attn.field_proj.", ".self_attn.slope")):
		return fpaLayout, nil
	case r.has("model.embed_tokens.weight") && r.hasAny(".self_attn.q_proj."):
		return llamaLayout, nil
	}
	return layout{}, &format.UnsupportedError{Path: r.c.Path(), Offset: -1, Msg: fmt.Sprintf(
		"no known layout has tensors of these names (model_type is %q): expected FPA (docs/checkpoints.md), FoX, FLA or Llama; fpaconv inspect prints a mapping to fill in for --map", r.string("model_type", ""))}
}

// FromCheckpoint reads the parts of a model from a checkpoint in one of the
// layouts that docs/checkpoints.md lists, or by a mapping, which may be nil.
// Matrices stay where they are; vectors are widened to F32. Errors name the file
// and the key or tensor.
func FromCheckpoint(c *hf.Checkpoint, m *Mapping) (Parts, error) {
	config, tensors := c.Config(), c.Tensors()
	var err error
	if m != nil {
		if config, err = m.config(config); err != nil {
			return Parts{}, err
		}
		if tensors, err = m.apply(tensors); err != nil {
			return Parts{}, err
		}
	}
	r := &configReader{c: config, shapes: make(map[string]format.Shape)}
	for _, t := range tensors {
		r.shapes[t.Name] = t.Shape
	}
	l, err := detect(r)
	if err != nil {
		return Parts{}, err
	}
	r.tied = r.bool("tie_word_embeddings")
	p := Parts{Config: l.config(r)}
	if r.err != nil {
		return Parts{}, r.err
	}
	if err := p.Config.Validate(); err != nil {
		return Parts{}, format.WithPath(inConfig(err), config.Path())
	}
	if err := p.addTensors(tensors, l, r); err != nil {
		return Parts{}, format.WithPath(err, c.Dir())
	}
	if f := r.ropeFactors; f != nil {
		t, err := ropeFactorTensor(len(f), f...)
		if err != nil {
			return Parts{}, err
		}
		p.Tensors = append(p.Tensors, t)
	}
	return p, nil
}

// addTensors names the checkpoint's tensors and checks what config.json says
// about those that may be absent.
func (p *Parts) addTensors(tensors []safetensors.Tensor, l layout, r *configReader) error {
	if p.Config.Blocks > len(tensors) {
		return bad("num_hidden_layers", "is %d, but the checkpoint has %d tensors in all", p.Config.Blocks, len(tensors))
	}
	specs := make(map[string]Spec)
	for _, s := range p.Config.Tensors() {
		specs[s.Name] = s
	}
	have := make(map[string]bool)
	for _, t := range tensors {
		pieces := l.place(r, t.Name)
		if pieces == nil {
			return &format.UnsupportedError{Offset: -1, Where: t.Name, Msg: fmt.Sprintf("no tensor of the layout %s has this name; see docs/checkpoints.md", l.name)}
		}
		if r.tied && pieces[0].name == nameOutput {
			if err := checkTied(tensors, l, r, t); err != nil {
				return err
			}
			continue
		}
		for _, piece := range pieces {
			tensor, err := toTensor(t, piece, specs[piece.name])
			if err != nil {
				return err
			}
			p.Tensors = append(p.Tensors, tensor)
			have[piece.name] = true
		}
	}
	if !r.tied && !have[nameOutput] {
		return bad("lm_head.weight", "the tensor is missing; config.json does not say tie_word_embeddings")
	}
	if l.check == nil {
		return nil
	}
	return l.check(r, have)
}

// checkTied refuses an output matrix that differs from the embedding although
// the configuration ties them.
func checkTied(tensors []safetensors.Tensor, l layout, r *configReader, output safetensors.Tensor) error {
	for _, t := range tensors {
		if p := l.place(r, t.Name); p != nil && p[0].name == nameEmbed && bytes.Equal(t.Data, output.Data) {
			return nil
		}
	}
	return bad(output.Name, "differs from the embedding, but config.json says tie_word_embeddings; set it to false to use both")
}

// toTensor is a piece of a tensor under its new name. A vector is widened to
// F32, and a norm stored as one row for all heads gets its two dimensions.
func toTensor(t safetensors.Tensor, p piece, spec Spec) (Tensor, error) {
	out := Tensor{Name: p.name, Source: t.Name, DType: t.DType, Shape: t.Shape, Data: t.Data}
	if p.of > 1 {
		if len(t.Shape) == 0 || t.Shape[0]%int64(p.of) != 0 {
			return out, bad(t.Name, "has shape %v, expected rows that divide into %d parts", t.Shape, p.of)
		}
		size := len(t.Data) / p.of
		out.Source = fmt.Sprintf("%s (part %d of %d)", t.Name, p.part+1, p.of)
		out.Shape = append(format.Shape{t.Shape[0] / int64(p.of)}, t.Shape[1:]...)
		out.Data = t.Data[p.part*size : (p.part+1)*size]
	}
	if len(out.Shape) == 1 && len(spec.Shape) == 2 && out.Shape[0] == spec.Shape[0]*spec.Shape[1] {
		out.Shape = spec.Shape
	}
	if spec.Role != Vector || t.DType == quant.F32 {
		return out, nil
	}
	n, err := out.Shape.Elements()
	if err != nil {
		return out, bad(t.Name, "%v", err)
	}
	data := make([]byte, 4*n)
	if err := quant.Convert(data, quant.F32, out.Data, t.DType, int(n)); err != nil {
		return out, bad(t.Name, "%v", err)
	}
	out.DType, out.Data = quant.F32, data
	return out, nil
}

// ropeFactorTensor holds the divisors of n rotary frequencies: one each, or one
// for all.
func ropeFactorTensor(n int, factors ...float32) (Tensor, error) {
	if len(factors) == 1 {
		factors = slices.Repeat(factors, n)
	}
	t := Tensor{Name: nameRopeFreqs, Source: "rope scaling", DType: quant.F32, Shape: format.Shape{int64(n)}, Data: make([]byte, 4*n)}
	return t, quant.Encode(t.Data, quant.F32, factors)
}

// placeLayer is the place function of a layout: global names, and for names in
// a layer the part between "model.layers.N." and ".weight" or ".bias".
func placeLayer(global, layer map[string]string) func(*configReader, string) []piece {
	return func(_ *configReader, name string) []piece {
		if g, ok := global[name]; ok {
			return whole(g)
		}
		n, rest, ok := cutLayer(name)
		if !ok {
			return nil
		}
		dot := strings.LastIndexByte(rest, '.')
		if dot < 0 {
			return nil
		}
		base, ok := layer[rest[:dot]]
		if kind := rest[dot:]; !ok || kind != ".weight" && kind != ".bias" {
			return nil
		}
		return whole("blk." + n + "." + base + rest[dot:])
	}
}

// cutLayer splits "model.layers.N.rest" into N and rest.
func cutLayer(name string) (layer, rest string, ok bool) {
	name, ok = strings.CutPrefix(name, "model.layers.")
	if !ok {
		return "", "", false
	}
	return strings.Cut(name, ".")
}

// configReader reads keys of config.json, knows the shapes of the tensors, and
// keeps the first error.
type configReader struct {
	c      *hf.Config
	shapes map[string]format.Shape // by the checkpoint's names
	err    error
	tied   bool

	ropeFactors []float32 // divisors of the rotary frequencies, nil for ones
}

func (r *configReader) has(tensor string) bool { return r.shapes[tensor] != nil }

// hasAny says whether any tensor's name holds one of the texts.
func (r *configReader) hasAny(texts ...string) bool {
	for name := range r.shapes {
		for _, t := range texts {
			if strings.Contains(name, t) {
				return true
			}
		}
	}
	return false
}

// layerShape is the shape of a tensor of the first layer, nil when it is absent.
func (r *configReader) layerShape(name string) format.Shape { return r.shapes["model.layers.0."+name] }

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

// refuse refuses keys that change a model in ways that it cannot represent.
func (r *configReader) refuse(why string, keys ...string) {
	for _, key := range keys {
		if r.c.Has(key) {
			r.unsupported(key, "%s", why)
		}
	}
}

// misspeltPrefixes begin the keys that are an FPA checkpoint's own; one that is
// not known is a mistake, not somebody's remark.
var misspeltPrefixes = []string{"field_", "level_", "qk_", "output_", "key_shift", "value_shift", "num_field", "attention_"}

// refuseMisspelt refuses keys that nobody reads and that look like one of the
// known: with a default in its place, the model would run and be another.
func (r *configReader) refuseMisspelt(known []string) {
	for _, key := range r.c.Keys() {
		if slices.Contains(known, key) || slices.Contains(silentKeys, key) {
			continue
		}
		own := slices.ContainsFunc(misspeltPrefixes, func(p string) bool { return strings.HasPrefix(key, p) })
		near := slices.IndexFunc(known, func(k string) bool { return distance(key, k) <= 2 })
		if near >= 0 {
			r.unsupported(key, "is not known; is it meant to be %q?", known[near])
		} else if own {
			r.unsupported(key, "is not known; docs/checkpoints.md lists the keys")
		}
	}
}

// silentKeys are keys of Hugging Face configurations that begin like ours and do
// not matter here.
var silentKeys = []string{"attention_dropout", "attention_probs_dropout_prob", "output_attentions", "output_hidden_states", "output_scores", "output_router_logits"}

// distance is the number of letters to insert, delete or replace to turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
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

func (r *configReader) bool(key string) bool { return r.boolOr(key, false) }

func (r *configReader) boolOr(key string, absent bool) bool {
	return read(r, func() (bool, error) { return r.c.Bool(key, absent) })
}

func (r *configReader) string(key, absent string) string {
	return read(r, func() (string, error) { return r.c.String(key, absent) })
}
