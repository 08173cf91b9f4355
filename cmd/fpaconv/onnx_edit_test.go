package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/onnx"
)

// exported are models as PyTorch exports them, with placeholders and with attention
// of standard operators.
const (
	exported    = "../../runtime/onnxedit/testdata/torch-cached.onnx"
	exportedFox = "../../runtime/onnxedit/testdata/torch-fox.onnx"
)

func TestONNXCheck(t *testing.T) {
	out, _ := mustRun(t, "onnx", "check", exported)
	for _, want := range []string{
		"by pytorch 2", "ai.onnx 18, ai.firstpassage 1", "past_key_values.1.field", "double[batch, 2]",
		"2 of the operator; its function: absent", `node "node_attention__4"`, "with past, interval exclusive, scale 1/sqrt(D)",
		"10 inputs carry a past", "run `fpaconv onnx inject`", "nothing wrong found",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("check lacks %q:\n%s", want, out)
		}
	}
	var r struct {
		Path     string
		Nodes    []struct{ Place string }
		States   []struct{ Input, Output string }
		Problems []any
	}
	out, _ = mustRun(t, "onnx", "check", exported, "--json")
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Path != exported || len(r.Nodes) != 2 || r.States[4].Output != "present.0.field" || r.Problems == nil || len(r.Problems) > 0 {
		t.Errorf("%+v", r)
	}

	// What fpaconv writes itself has nothing wrong with it, in any form.
	path := filepath.Join(t.TempDir(), "model.onnx")
	for _, form := range []string{"function", "inline", "custom", "attention"} {
		mustRun(t, passkey, "-o", path, "--force", "--no-verify", "--onnx-op", form)
		out, _ := mustRun(t, "onnx", "check", path)
		if strings.Contains(out, "its function: current") != (form == "function") {
			t.Errorf("%s:\n%s", form, out)
		}
	}
}

// TestONNXCheckFails spoils an exported model.
func TestONNXCheckFails(t *testing.T) {
	dir := t.TempDir()
	f, err := onnx.Open(exported, format.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, v := range f.Model.Graph.ValueInfo {
		if v.Name == "transpose_3" { // the field
			v.Type.Elem = onnx.Float16
		}
	}
	f.Model.Opsets[1].Version = 2
	path := filepath.Join(dir, "bad.onnx")
	if err := onnx.WriteFile(path, f.Model, onnx.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	out, _, code, err := command(t.Context(), "onnx", "check", path)
	if code != 1 || err == nil || !strings.Contains(err.Error(), "problems found: 3") {
		t.Errorf("exit code %d, error %v", code, err)
	}
	for _, want := range []string{
		`problem: node "node_attention__4" (ai.firstpassage::FirstPassageAttention): field "transpose_3" is of type FLOAT16, expected FLOAT; take the running sum in DOUBLE`,
		"imports version 2 of domain ai.firstpassage, expected 1",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("check lacks %q:\n%s", want, out)
		}
	}
	if out, _, code, _ = command(t.Context(), "onnx", "check", path, "--json"); code != 1 || !json.Valid([]byte(out)) {
		t.Errorf("--json: exit code %d\n%s", code, out)
	}
	mustFail(t, 1, "field \"transpose_3\" is of type FLOAT16", "onnx", "inject", path, "-o", filepath.Join(dir, "out.onnx"))
	mustFail(t, 1, "no such file", "onnx", "check", filepath.Join(dir, "none.onnx"))
	mustFail(t, 1, "config.json", "onnx", "check", passkey+"/config.json")
	mustFail(t, 2, "onnx check", "onnx", "check")
	mustFail(t, 2, "expected check or inject", "onnx")
	mustFail(t, 2, `unknown verb "chekc"`, "onnx", "chekc", path)
	onlyFile(t, dir, "bad.onnx")
}

func TestONNXInject(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out.onnx")
	stdout, stderr := mustRun(t, "onnx", "inject", exported, "-o", out)
	if stdout != "" || !strings.Contains(stderr, "the operator in 2 places, as function") {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
	first, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	mustFail(t, 1, "exists", "onnx", "inject", exported, "-o", out)
	stdout, stderr = mustRun(t, "onnx", "inject", exported, "-o", out, "--force", "--json")
	if stderr != "" || !strings.Contains(stdout, `"was": "ai.firstpassage::FirstPassageAttention"`) {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
	again, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, again) {
		t.Error("two runs gave different bytes")
	}
	report, _ := mustRun(t, "onnx", "check", out)
	if !strings.Contains(report, "its function: current") {
		t.Errorf("%s", report)
	}

	// From a file with a pattern for each layer, and one layer from the command line.
	patterns := filepath.Join(dir, "patterns.json")
	layers := `[{"query": "getitem", "key": "getitem_1", "value": "getitem_2", "field": "transpose", "slopes": [1], "output": "matmul_1"},
		{"query": "getitem_3", "key": "getitem_4", "value": "getitem_5", "field": "transpose_3", "slopes": [1], "output": "matmul_3"}]`
	if err := os.WriteFile(patterns, []byte(layers), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stderr = mustRun(t, "onnx", "inject", exportedFox, "-o", out, "--force", "--pattern", patterns)
	if !strings.Contains(stderr, "the operator in 2 places") || !strings.Contains(stderr, "was pattern of 13 nodes: 2 MatMul, 2 Unsqueeze, 1 Add, 1 Concat") {
		t.Errorf("stderr %q", stderr)
	}
	one := "query=getitem,key=getitem_1,value=getitem_2,field=transpose,slopes=1,output=matmul_1"
	_, stderr = mustRun(t, "onnx", "inject", exportedFox, "-o", out, "--force", "--pattern", one, "--onnx-op", "inline")
	if !strings.Contains(stderr, "the operator in 1 place, as inline") {
		t.Errorf("stderr %q", stderr)
	}
	stdout, stderr = mustRun(t, "onnx", "inject", exportedFox, "-o", out, "--force", "--pattern", one, "--quiet")
	if stdout+stderr != "" {
		t.Errorf("--quiet prints %q, %q", stdout, stderr)
	}
	os.Remove(out)

	fail := func(code int, says string, args ...string) {
		t.Helper()
		mustFail(t, code, says, append([]string{"onnx", "inject"}, args...)...)
	}
	fail(2, "no --output", exported)
	fail(2, "expected one model", "-o", out)
	fail(2, `--onnx-op "magic"`, exported, "-o", out, "--onnx-op", "magic")
	fail(2, "lacks key", exported, "-o", out, "--pattern", "query=q")
	fail(2, "which it would destroy", exported, "-o", exported, "--force")
	fail(1, "torch-fox.onnx: the model has no node of ai.firstpassage::FirstPassageAttention", exportedFox, "-o", out)
	fail(1, `no node named "n"`, exportedFox, "-o", out, "--nodes", "n")
	fail(1, `no node of "a::b"`, exportedFox, "-o", out, "--placeholder", "a::b")
	fail(1, "no such file", exportedFox, "-o", out, "--pattern", filepath.Join(dir, "none.json"))
	fail(1, "onnx.version_converter", exported, "-o", out, "--onnx-op", "attention")
	fail(1, "also depends on the input", exportedFox, "-o", out, "--pattern", strings.Replace(one, "=getitem,", "=getitem_3,", 1))
	if err := os.WriteFile(patterns, []byte(`{"query": }`), 0o600); err != nil {
		t.Fatal(err)
	}
	fail(1, "patterns.json: the pattern at byte", exportedFox, "-o", out, "--pattern", patterns)
	onlyFile(t, dir, "patterns.json")
}

// TestONNXInjectExternal keeps weights that lie in a file of their own there, unless
// told otherwise.
func TestONNXInjectExternal(t *testing.T) {
	f, err := onnx.Open(exported, format.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in.onnx"), filepath.Join(dir, "out.onnx")
	if err := onnx.WriteFile(in, f.Model, onnx.WriteOptions{External: onnx.ExternalAlways}); err != nil {
		t.Fatal(err)
	}
	same := func() {
		t.Helper()
		g, err := onnx.Open(out, format.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		for _, want := range f.Model.Graph.Initializers {
			got := g.Model.Graph.Initializer(want.Name)
			if got == nil || !bytes.Equal(got.Raw, want.Raw) || !slices.Equal(got.Dims, want.Dims) {
				t.Fatalf("tensor %s is gone or another", want.Name)
			}
		}
	}
	mustRun(t, "onnx", "inject", in, "-o", out)
	onlyFile(t, dir, "in.onnx", "in.onnx.data", "out.onnx", "out.onnx.data")
	same()
	os.Remove(out + ".data")
	mustRun(t, "onnx", "inject", in, "-o", out, "--onnx-external=false", "--force")
	onlyFile(t, dir, "in.onnx", "in.onnx.data", "out.onnx")
	same()
	// The input's data must not be replaced by the output's.
	if err := os.Rename(in, filepath.Join(dir, "moved.onnx")); err != nil {
		t.Fatal(err)
	}
	mustFail(t, 2, "which it would destroy", "onnx", "inject", filepath.Join(dir, "moved.onnx"), "-o", in, "--force")
	mustFail(t, 2, "which it would destroy", "onnx", "inject", filepath.Join(dir, "moved.onnx"), "-o", in+".data", "--force")
}
