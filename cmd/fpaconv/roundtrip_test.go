package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format/gguf"
)

// metadataOf is the metadata of a GGUF file but for what says where it came from.
func metadataOf(t *testing.T, path string) map[string]any {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m := make(map[string]any)
	for _, e := range f.KV() {
		switch e.Key {
		case gguf.KeyName, gguf.KeySourceFormat, gguf.KeySourceSHA256:
		default:
			m[e.Key] = e.Value.Any()
		}
	}
	return m
}

// TestRoundTrip converts a model from kind to kind. Tensors, configuration,
// tokenizer, chat template and the ids that begin and end a text stay.
func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	source := at("source")
	if err := os.CopyFS(source, os.DirFS(passkey)); err != nil {
		t.Fatal(err)
	}
	// A tokenizer that escapes text, and a template in a file of its own.
	var config map[string]any
	data, err := os.ReadFile(filepath.Join(source, "tokenizer_config.json"))
	if err == nil {
		err = json.Unmarshal(data, &config)
	}
	if err != nil {
		t.Fatal(err)
	}
	config["tokenizer_class"] = "JSONGPT2Tokenizer"
	if data, err = json.Marshal(config); err == nil {
		err = os.WriteFile(filepath.Join(source, "tokenizer_config.json"), data, 0o666)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(source, "chat_template.jinja"), []byte("{{ messages[0].content }} <&>"), 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}

	mustRun(t, source, "-o", at("direct.gguf"))
	want := metadataOf(t, at("direct.gguf"))
	if want[gguf.KeyTextEscape] == nil || want[gguf.KeyChatTemplate] == nil {
		t.Fatalf("the file lacks %s or %s", gguf.KeyTextEscape, gguf.KeyChatTemplate)
	}
	tensors, _ := mustRun(t, "hash", "--tensors", at("direct.gguf"))
	check := func(path string) {
		t.Helper()
		if got, _ := mustRun(t, "hash", "--tensors", path); got != tensors {
			t.Errorf("%s: the tensors are\n%s\nexpected\n%s", filepath.Base(path), got, tensors)
		}
		if !strings.HasSuffix(path, ".gguf") {
			return
		}
		got := metadataOf(t, path)
		for key, w := range want {
			if !reflect.DeepEqual(got[key], w) {
				t.Errorf("%s: %s is %.80v, expected %.80v", filepath.Base(path), key, got[key], w)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d keys, expected %d", filepath.Base(path), len(got), len(want))
		}
	}
	mustRun(t, source, "--to", "onnx", "-o", at("onnx"))
	check(at("onnx"))
	mustRun(t, at("onnx"), "-o", at("onnx.gguf"))
	check(at("onnx.gguf"))
	mustRun(t, at("direct.gguf"), "--to", "onnx", "-o", at("packed"), "--onnx-state", "packed", "--onnx-external")
	check(at("packed"))
	_, report := mustRun(t, filepath.Join(at("packed"), "model.onnx"), "--to", "safetensors", "-o", at("checkpoint"))
	if !strings.Contains(report, "model.safetensors and 4 more") || !strings.Contains(report, "verified at 300 tokens") {
		t.Errorf("the report is\n%s", report)
	}
	onlyFile(t, at("checkpoint"), "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
	mustRun(t, at("checkpoint"), "-o", at("checkpoint.gguf"))
	check(at("checkpoint.gguf"))

	// One file has no tokenizer beside it, unless told.
	alone := at("alone")
	if err := os.Mkdir(alone, 0o777); err != nil {
		t.Fatal(err)
	}
	mustRun(t, source, "-o", filepath.Join(alone, "x.onnx"))
	_, report = mustRun(t, filepath.Join(alone, "x.onnx"), "-o", at("without.gguf"))
	if !strings.Contains(report, "carries no tokenizer") {
		t.Errorf("the report is\n%s", report)
	}
	mustRun(t, filepath.Join(alone, "x.onnx"), "--tokenizer", source, "-o", at("told.gguf"))
	check(at("told.gguf"))

	out, _ := mustRun(t, "verify", source, at("onnx"))
	if !strings.Contains(out, "passed") {
		t.Errorf("verify prints\n%s", out)
	}
	out, _ = mustRun(t, "inspect", at("packed"), "--tensors")
	for _, s := range []string{"onnx, opset 17", "parts:      2", "300,888", "runs here:  yes", "596 tokens", "fpa.attention.qk_norm", "blk.1.attn_slope.weight"} {
		if !strings.Contains(out, s) {
			t.Errorf("inspect does not show %q:\n%s", s, out)
		}
	}
}

// TestForeignONNX has a model that another program exported.
func TestForeignONNX(t *testing.T) {
	const foreign = "../../runtime/onnxedit/testdata/torch-plain.onnx"
	out, _ := mustRun(t, "inspect", foreign, "--tensors")
	if !strings.Contains(out, "runs here:  no") || !strings.Contains(out, "not an ONNX model that fpaconv wrote") {
		t.Errorf("inspect prints\n%s", out)
	}
	if out, _ = mustRun(t, "hash", "--tensors", foreign); out == "" {
		t.Error("no hashes")
	}
	mustFail(t, 1, "convert the checkpoint that it was exported from", foreign, "-o", filepath.Join(t.TempDir(), "x.gguf"))
}

// TestCheckpointUsage lists flags that do not go together.
func TestCheckpointUsage(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.safetensors")
	mustFail(t, 2, "expected f32, f16, bf16", passkey, "-o", file, "--type", "q8_0")
	mustFail(t, 2, "--split-max-size", passkey, "-o", file, "--split-max-size", "1M")
	mustFail(t, 2, "--onnx-op", passkey, "-o", file, "--onnx-op", "inline")
	onlyFile(t, dir)
	mustRun(t, passkey, "-o", file, "--type", "bf16")
	onlyFile(t, dir, "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "x.safetensors")
	mustFail(t, 1, "exists", passkey, "-o", file)
	mustRun(t, passkey, "-o", file, "--force")
}
