package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/onnx"
)

// TestONNX writes one file, and one with its weights outside.
func TestONNX(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model.onnx")
	_, report := mustRun(t, passkey, "-o", path)
	for _, want := range []string{"300,888 parameters", "verified at 300 tokens", "graph is run by ONNX Runtime"} {
		if !strings.Contains(report, want) {
			t.Errorf("the report lacks %q:\n%s", want, report)
		}
	}
	f, err := onnx.Open(path, format.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if len(f.Model.Functions) != 1 || f.Model.Opsets[0].Version != 17 || f.Model.Graph.Inputs[0].Name != "input_ids" {
		t.Errorf("functions %d, opsets %v", len(f.Model.Functions), f.Model.Opsets)
	}
	onlyFile(t, dir, "model.onnx")

	mustFail(t, 1, "exists", passkey, "-o", path)
	_, report = mustRun(t, passkey, "-o", path, "--force", "--onnx-cache", "bounded", "--onnx-cache-eps", "0.01")
	if !strings.Contains(report, "in the median head") {
		t.Errorf("the report does not say what the bounds are worth:\n%s", report)
	}
	if _, report = mustRun(t, passkey, "-o", filepath.Join(t.TempDir(), "custom.onnx"), "--onnx-op", "custom"); !strings.Contains(report, "needs the plugin") {
		t.Errorf("the report does not say that the plugin is needed:\n%s", report)
	}
	if checked, _ := mustRun(t, "onnx", "check", path); strings.Contains(checked, "problem") {
		t.Errorf("onnx check prints %s", checked)
	}
	mustRun(t, passkey, "-o", path, "--force", "--onnx-external", "--onnx-op", "attention", "--opset", "24", "--onnx-no-mask", "--onnx-last-logits")
	onlyFile(t, dir, "model.onnx", "model.onnx.data")
	g, err := onnx.Open(path, format.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if g.Model.Opsets[0].Version != 24 || g.Model.Graph.Inputs[1].Name == "attention_mask" || g.Model.Graph.Outputs[0].Type.Dims[1].Size != 1 {
		t.Errorf("opsets %v, second input %s, logits %v", g.Model.Opsets, g.Model.Graph.Inputs[1].Name, g.Model.Graph.Outputs[0].Type.Dims)
	}
}

// TestONNXFolder writes what pipelines look for beside the model.
func TestONNXFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	mustRun(t, passkey, "--to", "onnx", "-o", dir)
	onlyFile(t, dir, "config.json", "generation_config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json")
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Heads int    `json:"num_attention_heads"`
		Field string `json:"field_kind"`
		EOS   int    `json:"eos_token_id"`
	}
	if err := json.Unmarshal(data, &c); err != nil || c.Heads != 4 || c.Field != "walk" || c.EOS != 1 {
		t.Errorf("%v: %s", err, data)
	}
	mustFail(t, 1, "exists", passkey, "--to", "onnx", "-o", dir)
	mustRun(t, passkey, "--to", "onnx", "-o", dir, "--force", "--onnx-state", "packed")
	if data, err = os.ReadFile(filepath.Join(dir, "config.json")); err != nil {
		t.Fatal(err)
	}
	var packed struct {
		Type  string `json:"model_type"`
		Width int    `json:"head_dim"`
		FPA   struct {
			Width int `json:"head_dim"`
		} `json:"fpa_config"`
	}
	// A key head of 24 channels has level, low and the two parts of the field.
	if err := json.Unmarshal(data, &packed); err != nil || packed.Type != "llama" || packed.Width != 28 || packed.FPA.Width != 24 {
		t.Errorf("%v: %s", err, data)
	}
}

// TestONNXUsage lists flags that do not go together.
func TestONNXUsage(t *testing.T) {
	dir := t.TempDir()
	file, gguf := filepath.Join(dir, "x.onnx"), filepath.Join(dir, "x.gguf")
	mustFail(t, 2, "--opset", passkey, "-o", gguf, "--opset", "17")
	mustFail(t, 2, "--onnx-external, --onnx-no-mask", passkey, "-o", gguf, "--onnx-no-mask", "--onnx-external")
	mustFail(t, 2, "opset 16", passkey, "-o", file, "--opset", "16")
	mustFail(t, 2, "23", passkey, "-o", file, "--opset", "18", "--onnx-op", "attention")
	mustFail(t, 2, "expected one of function", passkey, "-o", file, "--onnx-op", "native")
	mustFail(t, 2, "separate or packed", passkey, "-o", file, "--onnx-state", "one")
	mustFail(t, 2, "f32 or f16", passkey, "-o", file, "--type", "q8_0")
	mustFail(t, 2, "--split-max-size", passkey, "-o", file, "--split-max-size", "1M")
	mustFail(t, 2, "one of off, exact, bounded", passkey, "-o", file, "--onnx-cache", "budget")
	mustFail(t, 2, "only with --onnx-cache bounded", passkey, "-o", file, "--onnx-cache", "exact", "--onnx-cache-eps", "0.1")
	mustFail(t, 2, "above 0", passkey, "-o", file, "--onnx-cache", "bounded", "--onnx-cache-eps", "0")
	mustFail(t, 2, "packed states", passkey, "-o", file, "--onnx-cache", "exact", "--onnx-state", "packed")
	onlyFile(t, dir)
}
