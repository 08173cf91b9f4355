package convert

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
)

// writeFolder writes a checkpoint folder.
func writeFolder(t *testing.T, tensors []safetensors.Tensor, config map[string]any) string {
	t.Helper()
	dir := t.TempDir()
	if err := safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), false, tensors, nil); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o666); err != nil {
		t.Fatal(err)
	}
	return dir
}

// foxCase is a folder of the cases in testdata: its tensors and configuration.
func foxCase(t *testing.T, name string) ([]safetensors.Tensor, map[string]any) {
	t.Helper()
	dir := filepath.Join("testdata", "fox", name, "f32")
	f, err := safetensors.Open(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(data, &config); err != nil {
		t.Fatal(err)
	}
	return append([]safetensors.Tensor(nil), f.Tensors()...), config
}

// TestOldFLA reads a checkpoint of the two days in which the forget gate of FLA
// had the output gate's name, and one of those that lost it.
func TestOldFLA(t *testing.T) {
	tensors, config := foxCase(t, "fla_mha_tied")
	for i := range tensors {
		tensors[i].Name = strings.Replace(tensors[i].Name, ".attn.f_proj.", ".attn.g_proj.", 1)
	}
	_, m := open(t, writeFolder(t, tensors, config))
	g := openGolden(t, filepath.Join("testdata", "fox", "fla_mha_tied", "golden_f32.safetensors"))
	if d := g.check(t, m, true); !(d <= 5e-5) {
		t.Errorf("logits differ by %g", d)
	}

	var gated []safetensors.Tensor
	for _, x := range tensors {
		switch {
		case strings.HasSuffix(x.Name, ".attn.g_proj.bias"):
			continue
		case strings.HasSuffix(x.Name, ".attn.g_proj.weight"):
			x.Shape = append(x.Shape[:0:0], 64, 64)
			x.Data = make([]byte, 4*64*64)
		}
		gated = append(gated, x)
	}
	config["use_output_gate"] = true
	if _, err := model.Open(writeFolder(t, gated, config), model.OpenOptions{}); err == nil || !strings.Contains(err.Error(), "forget gate") {
		t.Errorf("a checkpoint that lost its forget gate: error %v", err)
	}
}

// TestFoxRefusals names what a forgetting-attention checkpoint may have and
// cannot be represented.
func TestFoxRefusals(t *testing.T) {
	for _, c := range []struct {
		folder, key string
		value       any
	}{
		{"fla_mha_tied", "window_size", 512},
		{"fla_mha_tied", "attnres_block_size", 2},
		{"fla_mha_tied", "hidden_act", "powlu"},
		{"fox_odds_biasgate", "n_embd", 64},
		{"fox_odds_biasgate", "num_kv_heads", 2},
		{"fox_odds_biasgate", "fgate_type", "half"},
		{"fox_odds_biasgate", "hidden_ratio", -1},
	} {
		tensors, config := foxCase(t, c.folder)
		config[c.key] = c.value
		if c.key == "hidden_ratio" {
			delete(config, "intermediate_size")
		}
		_, err := model.Open(writeFolder(t, tensors, config), model.OpenOptions{})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprint(c.key)) && !strings.Contains(err.Error(), fmt.Sprint(c.value)) {
			t.Errorf("%s with %s = %v: error %v", c.folder, c.key, c.value, err)
		}
	}
}

// llamaFolder writes the tensors of a llama GGUF file as a Hugging Face folder.
func llamaFolder(t *testing.T, dir string, change func(map[string]any)) string {
	t.Helper()
	f, err := model.Open(filepath.Join(dir, "model.gguf"), model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	names := map[string]string{
		"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
		"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
		"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
	}
	var tensors []safetensors.Tensor
	for _, x := range f.Parts.Tensors {
		name := map[string]string{"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}[x.Name]
		var layer int
		var rest string
		if n, _ := fmt.Sscanf(x.Name, "blk.%d.%s", &layer, &rest); n == 2 {
			base, kind, _ := strings.Cut(rest, ".")
			name = fmt.Sprintf("model.layers.%d.%s.%s", layer, names[base], kind)
		}
		tensors = append(tensors, safetensors.Tensor{Name: name, DType: x.DType, Shape: x.Shape, Data: x.Data})
	}
	c := f.Parts.Config
	config := map[string]any{
		"model_type": "llama", "vocab_size": c.VocabSize, "hidden_size": c.Hidden, "intermediate_size": c.FeedForward,
		"num_hidden_layers": c.Blocks, "num_attention_heads": c.Heads, "num_key_value_heads": c.KVHeads,
		"rms_norm_eps": c.NormEps, "rope_theta": c.RopeBase, "max_position_embeddings": 512, "hidden_act": "silu",
	}
	if change != nil {
		change(config)
	}
	return writeFolder(t, tensors, config)
}

// TestLlamaFolder reads a Llama model in Hugging Face layout, in the forms that
// configurations have had.
func TestLlamaFolder(t *testing.T) {
	const dir = "testdata/llama_tiny/untied_gqa_f16"
	g := openGolden(t, filepath.Join(dir, "golden.safetensors"))
	for name, change := range map[string]func(map[string]any){
		"plain":   nil,
		"mistral": func(c map[string]any) { c["model_type"], c["sliding_window"] = "mistral", nil },
		"window not used": func(c map[string]any) {
			c["model_type"], c["sliding_window"], c["use_sliding_window"] = "qwen2", 64, false
		},
		"rope_parameters": func(c map[string]any) {
			c["rope_parameters"] = map[string]any{"rope_type": "default", "rope_theta": c["rope_theta"]}
			delete(c, "rope_theta")
		},
		"linear, factor 1": func(c map[string]any) { c["rope_scaling"] = map[string]any{"type": "linear", "factor": 1.0} },
	} {
		_, m := open(t, llamaFolder(t, dir, change))
		if d := g.check(t, m, true); !(d <= 1e-4) {
			t.Errorf("%s: logits differ by %g", name, d)
		}
	}
	for name, change := range map[string]func(map[string]any){
		"sliding_window": func(c map[string]any) { c["sliding_window"] = 64 },
		"yarn":           func(c map[string]any) { c["rope_scaling"] = map[string]any{"rope_type": "yarn", "factor": 4.0} },
		"gemma":          func(c map[string]any) { c["model_type"] = "gemma" },
	} {
		_, err := model.Open(llamaFolder(t, dir, change), model.OpenOptions{})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestTrainingCheckpoint reads the file that a training run left, with its
// optimiser, beside a configuration.
func TestTrainingCheckpoint(t *testing.T) {
	const dir = "testdata/fox/fox_odds_biasgate"
	f, err := model.Open(filepath.Join(dir, "step-12345.pt"), model.OpenOptions{ConfigPath: filepath.Join(dir, "f32", "config.json")})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := f.Build()
	if err != nil {
		t.Fatal(err)
	}
	if d := openGolden(t, filepath.Join(dir, "golden_f32.safetensors")).check(t, m, true); !(d <= 5e-5) {
		t.Errorf("logits differ by %g", d)
	}
	if _, err := model.Open(filepath.Join(dir, "step-12345.pt"), model.OpenOptions{}); err == nil || !strings.Contains(err.Error(), "config") {
		t.Errorf("without a configuration: error %v", err)
	}
}

// TestForgetGates reads the kinds of gate that official checkpoints have beside
// the full one: a fixed gate is stored as a learned constant is, and none is plain
// softmax.
func TestForgetGates(t *testing.T) {
	tensors, config := foxCase(t, "fox_odds_biasgate")
	config["fgate_type"] = "fixed"
	_, m := open(t, writeFolder(t, tensors, config))
	if d := openGolden(t, filepath.Join("testdata", "fox", "fox_odds_biasgate", "golden_f32.safetensors")).check(t, m, false); !(d <= 5e-5) {
		t.Errorf("fixed: logits differ by %g", d)
	}
	var plain []safetensors.Tensor
	for _, x := range tensors {
		if !strings.HasSuffix(x.Name, ".fgate_bias") {
			plain = append(plain, x)
		}
	}
	config["fgate_type"] = "none"
	f, m := open(t, writeFolder(t, plain, config))
	if m.Field != model.FieldNone {
		t.Errorf("none: the field is %s", m.Field)
	}
	checkReference(t, m, openGolden(t, filepath.Join("testdata", "fox", "fox_odds_biasgate", "golden_f32.safetensors")))
	_, again := converted(t, f, m.Embed.Type)
	if again.Field != model.FieldNone || again.KeyShift != m.KeyShift {
		t.Error("none: the written file has another configuration")
	}
	config["fgate_type"] = "full" // but the weights of a full gate are not there
	if _, err := model.Open(writeFolder(t, tensors, config), model.OpenOptions{}); err == nil || !strings.Contains(err.Error(), "fgate_type") {
		t.Errorf("full without weights: error %v", err)
	}
}

// TestLinearRope slows every frequency by the factor, in a folder and in a GGUF file.
func TestLinearRope(t *testing.T) {
	const dir = "testdata/llama_tiny/untied_gqa_f16"
	_, plain := open(t, filepath.Join(dir, "model.gguf"))
	f, slow := open(t, llamaFolder(t, dir, func(c map[string]any) {
		c["rope_scaling"] = map[string]any{"rope_type": "linear", "factor": 4.0}
	}))
	_, file := converted(t, f, quant.F16)
	for i, want := range plain.InvFreq {
		for _, m := range []*model.Model{slow, file} {
			if got := m.InvFreq[i] * 4; got < want*0.999999 || got > want*1.000001 {
				t.Errorf("frequency %d is %g, expected a quarter of %g", i, m.InvFreq[i], want)
			}
		}
	}
}
