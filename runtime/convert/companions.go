package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/firstpassage/fpa/runtime/model"
)

// checkpointConfig is the config.json of an FPA checkpoint (docs/checkpoints.md), or
// beside an ONNX model, where libraries look for what the first, empty states are.
type checkpointConfig struct {
	ModelType     string   `json:"model_type"`
	Architectures []string `json:"architectures"`
	VocabSize     int      `json:"vocab_size"`
	Hidden        int      `json:"hidden_size"`
	FeedForward   int      `json:"intermediate_size"`
	Blocks        int      `json:"num_hidden_layers"`
	Heads         int      `json:"num_attention_heads"`
	KVHeads       int      `json:"num_key_value_heads"`
	KeyDim        int      `json:"head_dim"`
	ValDim        int      `json:"value_head_dim,omitempty"` // where it is another
	Activation    string   `json:"hidden_act"`
	NormEps       float32  `json:"rms_norm_eps"`
	Tied          bool     `json:"tie_word_embeddings"`
	Context       int      `json:"max_position_embeddings"`
	RopeTheta     *float64 `json:"rope_theta,omitempty"`
	RopeShare     float64  `json:"partial_rotary_factor,omitempty"`
	AttentionBias bool     `json:"attention_bias"`
	OutputBias    *bool    `json:"attention_output_bias,omitempty"` // where it differs
	MLPBias       bool     `json:"mlp_bias"`
	Scale         float32  `json:"attention_scale"`
	QKNorm        string   `json:"qk_norm"`
	QKNormEps     float32  `json:"qk_norm_eps,omitempty"`
	OutputGate    string   `json:"output_gate"`
	OutputNorm    bool     `json:"output_norm"`
	KeyShift      bool     `json:"key_shift"`
	ValueShift    bool     `json:"value_shift"`
	FieldKind     string   `json:"field_kind"`
	FieldAct      string   `json:"field_activation,omitempty"`
	FieldHeads    int      `json:"num_field_heads,omitempty"`
	Level         string   `json:"level_kind,omitempty"`
	Interval      string   `json:"field_interval"`
	BOS           *int     `json:"bos_token_id"`
	EOS           any      `json:"eos_token_id"` // a number, or several
	PAD           *int     `json:"pad_token_id"`
	UseCache      bool     `json:"use_cache"`

	FPA *checkpointConfig `json:"fpa_config,omitempty"` // of packed states
}

// packed is the configuration of a model whose states are packed: that of a Llama
// model with keys of that width, which unchanged pipelines know how to feed. What
// the model is stays under fpa_config.
func (j checkpointConfig) packed(width int) checkpointConfig {
	own := j
	j.ModelType, j.Architectures = "llama", []string{"LlamaForCausalLM"}
	j.KeyDim, j.ValDim = width, 0
	j.Hidden = j.Heads * width // some divide this by the heads
	j.FPA = &own
	return j
}

func (c *staged) config() checkpointConfig {
	m := &c.src.Parts.Config
	has := make(map[string]bool)
	for _, p := range c.plans {
		has[p.Name] = true
	}
	j := checkpointConfig{
		ModelType: "fpa", Architectures: []string{"FPAForCausalLM"},
		VocabSize: m.VocabSize, Hidden: m.Hidden, FeedForward: m.FeedForward, Blocks: m.Blocks,
		Heads: m.Heads, KVHeads: m.KVHeads, KeyDim: m.KeyDim,
		Activation: string(m.Activation), NormEps: m.NormEps, Tied: !has["output.weight"], Context: m.ContextLength,
		AttentionBias: has["blk.0.attn_q.bias"], MLPBias: has["blk.0.ffn_up.bias"],
		Scale: m.Scale, QKNorm: string(m.QKNorm), OutputGate: string(m.OutputGate), OutputNorm: m.OutputNorm,
		KeyShift: m.KeyShift, ValueShift: m.ValueShift,
		FieldKind: string(m.Field), Interval: string(m.Interval), UseCache: true,
	}
	if output := has["blk.0.attn_output.bias"]; output != j.AttentionBias {
		j.OutputBias = &output
	}
	if m.ValDim != m.KeyDim {
		j.ValDim = m.ValDim
	}
	if m.RopeDim > 0 {
		j.RopeTheta, j.RopeShare = &m.RopeBase, ropeShare(m.RopeDim, m.KeyDim)
	}
	if m.QKNorm != model.NormNone {
		j.QKNormEps = m.QKNormEps
	}
	if m.Field != model.FieldNone {
		j.FieldAct, j.FieldHeads, j.Level = string(m.FieldActivation), m.FieldHeads, string(m.Level)
	}
	g := &c.generation
	j.BOS, j.EOS, j.PAD = tokenID(g.BOS), endTokens(g.EOS), tokenID(g.PAD)
	return j
}

// ropeShare is the partial_rotary_factor of n rotated elements of a head; readers
// multiply and cut off.
func ropeShare(n, dim int) float64 {
	share := float64(n) / float64(dim)
	if int(share*float64(dim)) < n {
		share = math.Nextafter(share, 2)
	}
	return share
}

// tokenID is an id, or nil for one that the model does not name.
func tokenID(id int) *int {
	if id < 0 {
		return nil
	}
	return &id
}

// endTokens is a number where there is one, a list where there are several.
func endTokens(ids []int) any {
	switch len(ids) {
	case 0:
		return nil
	case 1:
		return ids[0]
	}
	return ids
}

// generationConfig is the generation_config.json beside a model.
type generationConfig struct {
	BOS         *int     `json:"bos_token_id,omitempty"`
	EOS         any      `json:"eos_token_id,omitempty"`
	PAD         *int     `json:"pad_token_id,omitempty"`
	DoSample    *bool    `json:"do_sample,omitempty"`
	Temperature *float32 `json:"temperature,omitempty"`
	TopK        *int     `json:"top_k,omitempty"`
	TopP        *float32 `json:"top_p,omitempty"`
	MinP        *float32 `json:"min_p,omitempty"`
}

// checkpointFiles are the contents of the files beside the weights of a checkpoint
// by name, and that of config.json once more.
func (c *staged) checkpointFiles() (map[string]any, checkpointConfig, error) {
	tokenizer, err := c.tokenizerFiles()
	if err != nil {
		return nil, checkpointConfig{}, err
	}
	g := &c.generation
	generation := generationConfig{
		BOS: tokenID(g.BOS), EOS: endTokens(g.EOS), PAD: tokenID(g.PAD),
		TopK: g.TopK, TopP: g.TopP, MinP: g.MinP,
	}
	if g.Temperature != nil { // 0 is greedy
		sample := *g.Temperature > 0
		generation.DoSample = &sample
		if sample {
			generation.Temperature = g.Temperature
		}
	}
	config := c.config()
	files := map[string]any{"config.json": config, "generation_config.json": generation}
	for name, data := range tokenizer {
		files[name] = json.RawMessage(data)
	}
	return files, config, nil
}

// tokenizerFiles are tokenizer.json and tokenizer_config.json, and fill in the
// tokens that the model does not name.
func (c *staged) tokenizerFiles() (map[string][]byte, error) {
	t, err := c.src.Tokenizer()
	if errors.Is(err, model.ErrNoTokenizer) {
		c.report.Notes = append(c.report.Notes, "the source carries no tokenizer")
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	data, err := c.src.TokenizerJSON()
	if err != nil {
		return nil, err
	}
	if data == nil {
		c.report.Notes = append(c.report.Notes, "the source has a vocabulary but no tokenizer.json; none is written")
		return nil, nil
	}
	config := struct {
		Class    string `json:"tokenizer_class"`
		BOS      string `json:"bos_token,omitempty"`
		EOS      string `json:"eos_token,omitempty"`
		PAD      string `json:"pad_token,omitempty"`
		Template string `json:"chat_template,omitempty"`
		Clean    bool   `json:"clean_up_tokenization_spaces"`
	}{Class: t.TextEscape().Class()}
	if config.Template, err = c.src.ChatTemplate(); err != nil {
		return nil, err
	}
	g := &c.generation
	if v, err := t.Vocab(); err == nil { // a tokenizer that is no list of tokens names none
		fillGeneration(g, v)
		name := func(id int) string {
			if id < 0 || id >= len(v.Tokens) {
				return ""
			}
			return v.Tokens[id]
		}
		config.BOS, config.PAD = name(g.BOS), name(g.PAD)
		if len(g.EOS) > 0 {
			config.EOS = name(g.EOS[0])
		}
	}
	own, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	if from := c.src.TokenizerConfig(); from != nil {
		own = from
	}
	if own, err = completed(own, config.Template); err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	return map[string][]byte{"tokenizer.json": data, "tokenizer_config.json": own}, nil
}

// completed adds what a tokenizer_config.json may lack: the chat template, which may
// come from a file of its own, and model_input_names. Without the latter, libraries
// make token_type_ids, too, which the model does not take.
func completed(config []byte, template string) ([]byte, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(config, &keys); err != nil {
		return nil, err
	}
	if keys == nil {
		keys = make(map[string]json.RawMessage)
	}
	if keys["model_input_names"] == nil {
		keys["model_input_names"] = json.RawMessage(`["input_ids", "attention_mask"]`)
	}
	if keys["chat_template"] == nil && template != "" {
		var err error
		if keys["chat_template"], err = json.Marshal(template); err != nil {
			return nil, err
		}
	}
	return json.Marshal(keys)
}
