package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/runtime/convert"
)

const passkey = "../../testmodels/passkey"

// command runs fpaconv and returns its output and exit code.
func command(ctx context.Context, args ...string) (stdout, stderr string, code int, err error) {
	root := cli.Prepare(newRoot())
	var out, errs bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(args)
	err = root.ExecuteContext(ctx)
	return out.String(), errs.String(), cli.ExitCode(err), err
}

// mustRun runs fpaconv and expects success.
func mustRun(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, _, err := command(context.Background(), args...)
	if err != nil {
		t.Fatalf("fpaconv %s: %v", strings.Join(args, " "), err)
	}
	return stdout, stderr
}

// mustFail runs fpaconv and expects an exit code and an error that says so.
func mustFail(t *testing.T, code int, says string, args ...string) {
	t.Helper()
	_, _, got, err := command(context.Background(), args...)
	if err == nil || got != code || !strings.Contains(err.Error(), says) {
		t.Errorf("fpaconv %s: exit code %d, error %v; expected %d and %q", strings.Join(args, " "), got, err, code, says)
	}
}

// onlyFile checks that a folder holds nothing but the files named.
func onlyFile(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(names, " ") {
		t.Errorf("the folder holds %v, expected %v", got, names)
	}
}

func TestConvert(t *testing.T) {
	dir := t.TempDir()
	for _, typ := range typeNames() {
		a, b := filepath.Join(dir, "a.gguf"), filepath.Join(dir, "b.gguf")
		stdout, stderr := mustRun(t, passkey, "-o", a, "--type", typ)
		if stdout != "" || !strings.Contains(stderr, "verified at 300 tokens") {
			t.Errorf("%s: stdout %q, stderr %q", typ, stdout, stderr)
		}
		mustRun(t, passkey, "-o", b, "--type", typ)
		first, err := os.ReadFile(a)
		if err != nil {
			t.Fatal(err)
		}
		second, err := os.ReadFile(b)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, second) {
			t.Errorf("%s: two conversions give different bytes", typ)
		}
		if out, _ := mustRun(t, "verify", passkey, a); !strings.HasSuffix(out, "passed\n") {
			t.Errorf("%s: verify prints %q", typ, out)
		}
		os.Remove(a)
		os.Remove(b)
	}
	onlyFile(t, dir)
}

// TestAgain converts the written file once more: the same tensors and bound.
func TestAgain(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.gguf"), filepath.Join(dir, "b.gguf")
	mustRun(t, passkey, "-o", a, "--type", "f32")
	mustRun(t, a, "-o", b, "--type", "f32")
	hashA, _ := mustRun(t, "hash", a, "--tensors")
	hashB, _ := mustRun(t, "hash", b, "--tensors")
	if hashA != hashB || strings.Count(hashA, "\n") < 20 {
		t.Errorf("tensors differ:\n%s\n%s", hashA, hashB)
	}
	metadata := func(path string) map[string]any {
		out, _ := mustRun(t, "inspect", path, "--json")
		var d struct {
			Runs     bool
			Metadata []struct {
				Key   string
				Value any
			}
		}
		if err := json.Unmarshal([]byte(out), &d); err != nil {
			t.Fatal(err)
		}
		if !d.Runs {
			t.Errorf("inspect says that %s does not run: %s", path, out)
		}
		m := map[string]any{}
		for _, e := range d.Metadata {
			if !strings.HasPrefix(e.Key, "fpaconv.") && e.Key != "general.name" {
				m[e.Key] = e.Value
			}
		}
		return m
	}
	ma, mb := metadata(a), metadata(b)
	ja, _ := json.Marshal(ma)
	jb, _ := json.Marshal(mb)
	if !bytes.Equal(ja, jb) {
		t.Errorf("metadata differ:\n%s\n%s", ja, jb)
	}
	for _, key := range []string{"fpa.attention.logit_bound", "tokenizer.huggingface.json", "tokenizer.ggml.merges", "tokenizer.ggml.eos_token_id"} {
		if ma[key] == nil {
			t.Errorf("the file lacks %s", key)
		}
	}
}

func TestReport(t *testing.T) {
	dir := t.TempDir()
	report := filepath.Join(dir, "report.json")
	mustRun(t, passkey, "-o", filepath.Join(dir, "m.gguf"), "--type", "q8_0", "--report", report)
	data, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		SourceSHA256 string `json:"source_sha256"`
		OutputSHA256 string `json:"output_sha256"`
		Tensors      []struct {
			Name, Source, Type, Note string
			MaxError                 *float64 `json:"max_error"`
		}
		Verification []struct{ Tokens int }
		LogitBound   []float32             `json:"logit_bound"`
		Bounds       *convert.BoundSummary `json:"bounds"`
	}
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	if b := r.Bounds; b == nil || b.From != convert.FromQKNorm || b.Largest != slices.Max(r.LogitBound) || b.ExactPenalty < 18.7 || b.TokensToDrop == nil {
		t.Errorf("the report sums the bounds %v up as %+v", r.LogitBound, b)
	}
	out, _ := mustRun(t, "hash", filepath.Join(dir, "m.gguf"))
	if !strings.HasPrefix(out, r.OutputSHA256+"  ") || len(r.OutputSHA256) != 64 {
		t.Errorf("the report gives SHA-256 %s, hash prints %s", r.OutputSHA256, out)
	}
	if len(r.Verification) != 4 || len(r.SourceSHA256) != 64 {
		t.Errorf("report: %d lengths verified, source SHA-256 %q", len(r.Verification), r.SourceSHA256)
	}
	quantised := 0
	for _, x := range r.Tensors {
		if x.MaxError == nil || x.Source == "" {
			t.Errorf("tensor %s: no error or no source in the report", x.Name)
		}
		if x.Type == "Q8_0" {
			quantised++
			if *x.MaxError == 0 {
				t.Errorf("tensor %s: Q8_0 without any error", x.Name)
			}
		}
	}
	if quantised == 0 {
		t.Error("no tensor was quantised")
	}
}

// TestSplit writes several files and finds the same model in them.
func TestSplit(t *testing.T) {
	dir := t.TempDir()
	whole, stem := filepath.Join(dir, "whole.gguf"), filepath.Join(dir, "m.gguf")
	mustRun(t, passkey, "-o", whole)
	_, stderr := mustRun(t, passkey, "-o", stem, "--split-max-size", "250K")
	if !strings.Contains(stderr, "m-00001-of-00003.gguf and 2 more") {
		t.Errorf("prints %q", stderr)
	}
	onlyFile(t, dir, "m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf", "whole.gguf")
	first := filepath.Join(dir, "m-00001-of-00003.gguf")
	a, _ := mustRun(t, "hash", whole, "--tensors")
	b, _ := mustRun(t, "hash", first, "--tensors")
	if a != b {
		t.Errorf("the tensors differ:\n%s\n%s", a, b)
	}
	mustFail(t, 1, "--force", passkey, "-o", stem, "--split-max-size", "250K")
	mustFail(t, 2, "--split-max-size", passkey, "-o", stem, "--split-max-size", "many")
	if err := os.Remove(filepath.Join(dir, "m-00002-of-00003.gguf")); err != nil {
		t.Fatal(err)
	}
	mustFail(t, 1, "missing", "verify", whole, first)
}

// TestReportTarget keeps --report from destroying what is read or written.
func TestReportTarget(t *testing.T) {
	dir := t.TempDir()
	out, copied := filepath.Join(dir, "m.gguf"), broken(t, nil, nil)
	mustFail(t, 2, "destroy", copied, "-o", out, "--report", out, "--force")
	mustFail(t, 2, "destroy", copied, "-o", out, "--report", filepath.Join(copied, "model.safetensors"), "--force")
	mustRun(t, copied, "-o", out, "--report", filepath.Join(dir, "r.json"))
	mustFail(t, 1, "--force", copied, "-o", filepath.Join(dir, "n.gguf"), "--report", filepath.Join(dir, "r.json"))
	onlyFile(t, dir, "m.gguf", "r.json")
}

// TestControlCharacters shows a file's escape sequences, and does not send them.
func TestControlCharacters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := safetensors.WriteFile(path, false, nil, map[string]string{"a": "\x1b]0;owned\x07\r\n"}); err != nil {
		t.Fatal(err)
	}
	out, _ := mustRun(t, "inspect", path)
	if strings.ContainsAny(out, "\x1b\x07\r") || !strings.Contains(out, `\x1b]0;owned\x07\x0d\n`) {
		t.Errorf("inspect prints %q", out)
	}
}

// TestMaliciousPickle refuses a file that would run a command, and names it.
func TestMaliciousPickle(t *testing.T) {
	files, err := filepath.Glob("../../format/torch/testdata/shared/*evil*/*")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, f := range files {
		if ext := filepath.Ext(f); ext == ".pt" || ext == ".bin" || ext == ".pth" {
			out := t.TempDir()
			mustFail(t, 1, "system", f, "-o", filepath.Join(out, "m.gguf"), "--config", filepath.Join(passkey, "config.json"))
			onlyFile(t, out)
			tried++
		}
	}
	if tried == 0 {
		t.Error("found no malicious file to try")
	}
}

func TestExisting(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.gguf")
	if err := os.WriteFile(path, []byte("mine"), 0o666); err != nil {
		t.Fatal(err)
	}
	mustFail(t, 1, "--force", passkey, "-o", path)
	if data, _ := os.ReadFile(path); string(data) != "mine" {
		t.Errorf("the file holds %q", data)
	}
	mustRun(t, passkey, "-o", path, "--force")
	onlyFile(t, dir, "m.gguf")
}

func TestFailedVerification(t *testing.T) {
	dir := t.TempDir()
	report := filepath.Join(t.TempDir(), "r.json")
	mustFail(t, 3, "verification failed", passkey, "-o", filepath.Join(dir, "m.gguf"), "--type", "q8_0", "--atol", "1e-6", "--report", report)
	if data, err := os.ReadFile(report); err != nil || !strings.Contains(string(data), `"verification"`) || !strings.Contains(string(data), "ffn_down") {
		t.Errorf("the report of a failed verification: %v, %s", err, data)
	}
	mustFail(t, 3, "verification failed", passkey, "-o", filepath.Join(dir, "m.gguf"), "--type", "q8_0", "--atol", "1e-6")
	onlyFile(t, dir)
	q := filepath.Join(dir, "q.gguf")
	mustRun(t, passkey, "-o", q, "--type", "q8_0")
	mustFail(t, 3, "does not give the results", "verify", passkey, q, "--atol", "1e-6")
}

func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, _, code, err := command(ctx, passkey, "-o", filepath.Join(dir, "m.gguf"))
	if code != 130 || err == nil {
		t.Errorf("exit code %d, error %v", code, err)
	}
	onlyFile(t, dir)
}

func TestUsage(t *testing.T) {
	mustFail(t, 2, "no checkpoint")
	mustFail(t, 2, "2 arguments", "convert", passkey)
	mustFail(t, 3, "verification failed", passkey, "-o", filepath.Join(t.TempDir(), "x.gguf"), "--type", "q8_0", "--atol", "0")
	mustFail(t, 1, "no such file", passkey, "-o", filepath.Join(t.TempDir(), "x.gguf"), "--report", filepath.Join(t.TempDir(), "none", "r.json"))
	mustFail(t, 2, "--type", passkey, "--type", "q3")
	mustFail(t, 2, "--atol", passkey, "--atol", "-1")
	mustFail(t, 2, "--atol", passkey, "--atol", "nan")
	mustFail(t, 2, ".gguf, .onnx or .safetensors", passkey, "-o", "model.pt")
	mustFail(t, 2, "--to", passkey, "--to", "torch")
	mustFail(t, 2, "unknown flag", passkey, "--tpye", "f16")
	mustFail(t, 2, "arg", "verify", passkey)
	mustFail(t, 1, "no such file", "missing.safetensors", "-o", "x.gguf")
	mustFail(t, 1, "no such file", passkey, "-o", filepath.Join(t.TempDir(), "none", "x.gguf"))
}

// broken copies the checkpoint with one change to its tensors or configuration.
func broken(t *testing.T, tensors func([]safetensors.Tensor) []safetensors.Tensor, config func(map[string]any)) string {
	t.Helper()
	dir := t.TempDir()
	f, err := safetensors.Open(filepath.Join(passkey, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list := append([]safetensors.Tensor(nil), f.Tensors()...)
	if tensors != nil {
		list = tensors(list)
	}
	if err := safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), false, list, nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"config.json", "tokenizer.json", "generation_config.json"} {
		data, err := os.ReadFile(filepath.Join(passkey, name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "config.json" && config != nil {
			var c map[string]any
			if err := json.Unmarshal(data, &c); err != nil {
				t.Fatal(err)
			}
			config(c)
			if data, err = json.Marshal(c); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestBadCheckpoints wants one clear error for each, and no output file.
func TestBadCheckpoints(t *testing.T) {
	const q = "model.layers.0.self_attn.q_proj.weight"
	edit := func(name string, change func(*safetensors.Tensor)) func([]safetensors.Tensor) []safetensors.Tensor {
		return func(list []safetensors.Tensor) []safetensors.Tensor {
			for i := range list {
				if list[i].Name == name {
					list[i].Data = append([]byte(nil), list[i].Data...)
					change(&list[i])
				}
			}
			return list
		}
	}
	value := func(v float32) func(*safetensors.Tensor) {
		return func(x *safetensors.Tensor) { binary.LittleEndian.PutUint32(x.Data[40:], math.Float32bits(v)) }
	}
	set := func(key string, v any) func(map[string]any) { return func(c map[string]any) { c[key] = v } }
	for name, c := range map[string]struct {
		tensors func([]safetensors.Tensor) []safetensors.Tensor
		config  func(map[string]any)
		says    string
	}{
		"NaN weight":       {tensors: edit(q, value(float32(math.NaN()))), says: "NaN"},
		"infinite weight":  {tensors: edit(q, value(float32(math.Inf(1)))), says: "infinite"},
		"NaN norm":         {tensors: edit("model.norm.weight", value(float32(math.NaN()))), says: "NaN"},
		"negative slope":   {tensors: edit("model.layers.0.self_attn.slope", func(x *safetensors.Tensor) { binary.LittleEndian.PutUint32(x.Data, math.Float32bits(-1)) }), says: "slope"},
		"missing tensor":   {tensors: func(l []safetensors.Tensor) []safetensors.Tensor { return l[1:] }, says: "missing"},
		"unknown tensor":   {tensors: edit(q, func(x *safetensors.Tensor) { x.Name = "model.layers.0.self_attn.qq_proj.weight" }), says: "qq_proj"},
		"misshapen tensor": {tensors: edit(q, func(x *safetensors.Tensor) { x.Shape = format.Shape{x.Shape[0] * 2, x.Shape[1] / 2} }), says: "shape"},
		"one layer more":   {config: set("num_hidden_layers", 3), says: "missing"},
		"many layers":      {config: set("num_hidden_layers", 100_000_000), says: "num_hidden_layers"},
		"no heads":         {config: set("num_attention_heads", 0), says: "num_attention_heads"},
		"misspelt key":     {config: set("field_activaton", "log_sigmoid"), says: "field_activation"},
		"unknown own key":  {config: set("level_of_detail", 3), says: "level_of_detail"},
		"wrong heads":      {config: set("num_key_value_heads", 3), says: "head"},
		"string for size":  {config: set("hidden_size", "96"), says: "hidden_size"},
		"absent size":      {config: func(c map[string]any) { delete(c, "vocab_size") }, says: "vocab_size"},
		"other model type": {config: set("model_type", "llama"), says: "model_type"},
		"rope scaling":     {config: set("rope_scaling", map[string]any{"type": "yarn"}), says: "rope_scaling"},
		"unknown field":    {config: set("field_kind", "jump"), says: "jump"},
		"absolute level":   {config: set("level_kind", "absolute"), says: "absolute"},
		"end token":        {config: set("eos_token_id", 1e6), says: "token"},
		"bias promised":    {config: set("attention_bias", true), says: "attention_bias"},
		"vocab too small":  {config: set("vocab_size", 10), says: "shape"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := broken(t, c.tensors, c.config)
			if name == "end token" { // generation_config.json would come first
				os.Remove(filepath.Join(dir, "generation_config.json"))
			}
			out := t.TempDir()
			mustFail(t, 1, c.says, dir, "-o", filepath.Join(out, "m.gguf"))
			onlyFile(t, out)
		})
	}
}

func TestInspect(t *testing.T) {
	out, _ := mustRun(t, "inspect", passkey, "--tensors")
	for _, want := range []string{"safetensors checkpoint", "runs here:  yes", "bounds:     |logit| is at most U = 6.0", "from the QK-norm's weights", "config.hidden_size                            96", `config.model_type                             "fpa"`, "model.layers.1.mlp.down_proj.weight"} {
		if !strings.Contains(out, want) {
			t.Errorf("inspect does not show %q:\n%s", want, out)
		}
	}
	// Tensors without a configuration are shown too.
	lone := filepath.Join(t.TempDir(), "x.safetensors")
	if err := safetensors.WriteFile(lone, false, nil, map[string]string{"made": "here"}); err != nil {
		t.Fatal(err)
	}
	out, _ = mustRun(t, "inspect", lone)
	if !strings.Contains(out, "runs here:  no") || !strings.Contains(out, "made") {
		t.Errorf("inspect prints\n%s", out)
	}
	mustFail(t, 1, "expected a folder", "inspect", "convert_test.go")
}

// TestInspectUnknown prints a mapping to fill in for tensors of unknown names, and
// names those that have no place.
func TestInspectUnknown(t *testing.T) {
	dir := broken(t, func(list []safetensors.Tensor) []safetensors.Tensor {
		for i := range list {
			list[i].Name = strings.Replace(list[i].Name, "self_attn.q_proj", "attn.query", 1)
		}
		return list
	}, nil)
	out, _ := mustRun(t, "inspect", dir)
	for _, want := range []string{"1 names without a place", "model.layers.{}.attn.query.weight", "[96, 96] F32", `"from": "model.layers.{}.attn.query.weight"`, "--map"} {
		if !strings.Contains(out, want) {
			t.Errorf("inspect does not print %q:\n%s", want, out)
		}
	}
	var d struct {
		Mapping json.RawMessage `json:"mapping"`
	}
	out, _ = mustRun(t, "inspect", dir, "--json")
	if err := json.Unmarshal([]byte(out), &d); err != nil || !strings.Contains(string(d.Mapping), "attn.query") {
		t.Errorf("%v: the JSON has the mapping %s", err, d.Mapping)
	}
	mustFail(t, 1, "attn.query", dir, "-o", filepath.Join(t.TempDir(), "m.gguf"))
}

func TestDryRun(t *testing.T) {
	dir := t.TempDir()
	out, _ := mustRun(t, passkey, "-o", filepath.Join(dir, "m.gguf"), "--dry-run")
	if !strings.Contains(out, "nothing was written") {
		t.Errorf("prints %q", out)
	}
	onlyFile(t, dir)
}

// TestBoundsTold has a forgetting-attention checkpoint without QK-norm, whose bounds
// are loose: inspect and the conversion say so, and agree.
func TestBoundsTold(t *testing.T) {
	const dir = "../../runtime/convert/testdata/fox/fox_odds_biasgate"
	file := filepath.Join(t.TempDir(), "m.gguf")
	source, _ := mustRun(t, "inspect", filepath.Join(dir, "f32"))
	_, converted := mustRun(t, filepath.Join(dir, "f32"), "-o", file, "--type", "f32")
	written, _ := mustRun(t, "inspect", file)
	for _, want := range []string{"median", "the projections' weights", "tokens of average fall", "out of reach within the training length of 2048 tokens: 4 of 8 groups"} {
		for name, text := range map[string]string{"inspect of the checkpoint": source, "conversion": converted, "inspect of the file": written} {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not say %q:\n%s", name, want, text)
			}
		}
	}
}
