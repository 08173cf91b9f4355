package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/convert"
	"github.com/firstpassage/fpa/runtime/model"
)

const passkey = "../../testmodels/passkey"

// command runs fparun and returns its output and exit code.
func command(stdin string, args ...string) (stdout, stderr string, code int, err error) {
	if err := checkSingleDash(args); err != nil {
		return "", "", cli.ExitCode(err), err
	}
	root := cli.Prepare(newRoot())
	var out, errs bytes.Buffer
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(args)
	err = root.ExecuteContext(context.Background())
	return out.String(), errs.String(), cli.ExitCode(err), err
}

func mustRun(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, _, err := command("", args...)
	if err != nil {
		t.Fatalf("fparun %s: %v", strings.Join(args, " "), err)
	}
	return stdout, stderr
}

func mustFail(t *testing.T, code int, says string, args ...string) {
	t.Helper()
	_, _, got, err := command("", args...)
	if err == nil || got != code || !strings.Contains(err.Error(), says) {
		t.Errorf("fparun %s: exit code %d, error %v; expected %d and %q", strings.Join(args, " "), got, err, code, says)
	}
}

// gguf is the trained model as a file.
func gguf(t testing.TB) string {
	t.Helper()
	src, err := model.Open(passkey, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	path := filepath.Join(t.TempDir(), "passkey.gguf")
	_, err = convert.ToGGUF(context.Background(), src, convert.Options{Output: path, Type: quant.F16, Version: "test", NoCheck: true})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// answers are the prompts of the model's folder and what must come after them.
func answers(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(passkey, "prompts.json"))
	if err != nil {
		t.Fatal(err)
	}
	var p map[string]struct{ Answer string }
	if err := json.Unmarshal(data, &p); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for name, x := range p {
		out[name] = x.Answer
	}
	return out
}

// TestGenerate is the main job: the exact text on stdout, nothing else.
func TestGenerate(t *testing.T) {
	m := gguf(t)
	for name, answer := range answers(t) {
		for _, mode := range []string{"exact", "bounded"} {
			stdout, stderr := mustRun(t, "--model", m, "--file", filepath.Join(passkey, name), "--temp", "0", "--cache", mode)
			if stdout != answer+"\n" || stderr != "" {
				t.Errorf("%s, cache %s: stdout %q, stderr %q, expected %q and nothing", name, mode, stdout, stderr, answer+"\n")
			}
		}
	}
	// A checkpoint runs as it is.
	if stdout, _ := mustRun(t, "-m", passkey, "-f", filepath.Join(passkey, "prompt-1x.txt"), "--temp", "0"); stdout != answers(t)["prompt-1x.txt"]+"\n" {
		t.Errorf("the checkpoint prints %q", stdout)
	}
}

func TestGenerateOptions(t *testing.T) {
	m := gguf(t)
	file := filepath.Join(passkey, "prompt-1x.txt")
	answer := answers(t)["prompt-1x.txt"]

	stdout, stderr := mustRun(t, "-m", m, "-f", file, "--stats")
	if stdout != answer+"\n" { // generation_config.json asks for greedy
		t.Errorf("the model's own settings: %q", stdout)
	}
	for _, want := range []string{"prefill:", "decode:", "cache:", "layer 1: live keys"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("--stats does not print %q:\n%s", want, stderr)
		}
	}

	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if stdout, _ := mustRun(t, "-m", m, "-f", file, "--n-predict", "3", "--batch-size", "64", "--seed", "-1"); stdout != answer[:3]+"\n" {
		t.Errorf("with the long names of llama.cpp: %q", stdout)
	}
	if stdout, _, _, err := command(string(text)+"\n", "-m", m, "-f", "-"); err != nil || stdout != answer+"\n" {
		t.Errorf("from stdin: %q, %v", stdout, err)
	}
	if stdout, _ := mustRun(t, "-m", m, "-f", file, "-n", "3"); stdout != answer[:3]+"\n" {
		t.Errorf("three tokens are %q", stdout)
	}
	if stdout, _ := mustRun(t, "-m", m, "-f", file, "--stop", answer[3:5]); stdout != answer[:3]+"\n" {
		t.Errorf("stopped at %q: %q", answer[3:5], stdout)
	}
	if stdout, _ := mustRun(t, "-m", m, "-f", file, "--ignore-eos", "-n", "20"); len(stdout) < len(answer)+5 || !strings.HasPrefix(stdout, answer) {
		t.Errorf("--ignore-eos gives %q", stdout)
	}
	if stdout, _ := mustRun(t, "-m", m, "-f", file, "-n", "0"); stdout != "\n" {
		t.Errorf("no token gives %q", stdout)
	}

	var first string
	for _, threads := range []string{"1", "2", "3"} {
		stdout, _ := mustRun(t, "-m", m, "-p", "The old", "--temp", "1.5", "--seed", "7", "--top-k", "0", "-n", "40", "-t", threads)
		if first == "" {
			first = stdout
		}
		if stdout != first {
			t.Errorf("seed 7 gives other text with %s threads: %q, %q", threads, stdout, first)
		}
	}
	stdout, _ = mustRun(t, "-m", m, "-p", "The old", "--temp", "1.5", "--seed", "8", "--top-k", "0", "-n", "40")
	if stdout == first {
		t.Error("two seeds give one text")
	}
	if _, stderr := mustRun(t, "-m", m, "-p", "The", "--temp", "1", "-n", "1"); !strings.HasPrefix(stderr, "seed: ") {
		t.Errorf("a random seed is not printed: %q", stderr)
	}
}

func TestGenerateJSON(t *testing.T) {
	m := gguf(t)
	stdout, stderr := mustRun(t, "-m", m, "-f", filepath.Join(passkey, "prompt-8x.txt"), "--json")
	var r struct {
		Text, Reason string
		PromptTokens int `json:"prompt_tokens"`
		Cache        struct {
			Kept float64
			Live [][]int
		}
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || stderr != "" {
		t.Fatalf("%v, stderr %q", err, stderr)
	}
	if r.Text != answers(t)["prompt-8x.txt"] || r.Reason != "end" || r.PromptTokens < 1900 || len(r.Cache.Live) != 2 {
		t.Errorf("%+v", r)
	}
	if r.Cache.Kept <= 0 || r.Cache.Kept > 0.02 {
		t.Errorf("%g of the cache are kept at 8 times the training length, expected at most 0.02", r.Cache.Kept)
	}
}

// TestPrompts feeds texts that are not what a model expects.
func TestPrompts(t *testing.T) {
	m := gguf(t)
	for _, text := range []string{"\xff\xfe broken \xc3", "\x00\x01", "日本語 🎉", "<|end|>", strings.Repeat("a", 20000), ""} {
		_, _, _, err := command(text, "-m", m, "-f", "-", "-n", "2")
		if err != nil {
			t.Errorf("prompt %.20q: %v", text, err)
		}
	}
}

func TestUsage(t *testing.T) {
	m := gguf(t)
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{2, "--model", []string{"-p", "x"}},
		{2, "no prompt", []string{"-m", m}},
		{2, "both", []string{"-m", m, "-p", "x", "-f", "y"}},
		{2, "temp", []string{"-m", m, "-p", "x", "--temp", "nan"}},
		{2, "temp", []string{"-m", m, "-p", "x", "--temp", "-1"}},
		{2, "--predict", []string{"-m", m, "-p", "x", "-n", "-2"}},
		{2, "seed", []string{"-m", m, "-p", "x", "--seed", "-2"}},
		{2, "--stop", []string{"-m", m, "-p", "x", "--stop", ""}},
		{2, "with -p", []string{"-m", m, "a prompt"}},
		{2, "-n", []string{"bench", "-m", m, "-p", "0", "-n", "0"}},
		{2, "no such option", []string{"-m", m, "-p", "x", "-ngl", "99"}},
		{2, "--temp", []string{"-m", m, "-p", "x", "-temp", "0"}},
		{2, "seed", []string{"-m", m, "-p", "x", "--seed", "99999999999999999999999"}},
		{2, "top-p", []string{"-m", m, "-p", "x", "--top-p", "2"}},
		{2, "--cache", []string{"-m", m, "-p", "x", "--cache", "some"}},
		{2, "--cache", []string{"-m", m, "-p", "x", "--cache", "bounded", "--cache-eps", "0"}},
		{2, "--cache-type", []string{"-m", m, "-p", "x", "--cache-type", "q4"}},
		{2, "--backend", []string{"-m", m, "-p", "x", "--backend", "tpu"}},
		{2, "expected f32 or int8", []string{"-m", m, "-p", "x", "--activations", "q8_0"}},
		{2, "--backend cpu", []string{"-m", m, "-p", "x", "--activations", "int8", "--backend", "go"}},
		{2, "--no-repack is of use", []string{"-m", m, "-p", "x", "--no-repack", "--backend", "xla:cpu"}},
		{2, "--no-mmap is of use", []string{"-m", m, "-p", "x", "--no-mmap", "--backend", "go"}},
		{2, "--mlock is of use", []string{"-m", m, "-p", "x", "--mlock", "--backend", "go"}},
		{2, "with one device", []string{"-m", m, "-p", "x", "--packed-weights", "--backend", "xla:cpu", "--tensor-parallel", "2"}},
		{2, "an XLA backend", []string{"-m", m, "-p", "x", "--packed-weights", "--backend", "cpu"}},
		{2, "xla:cuda", []string{"-m", m, "-p", "x", "--backend", "cpu", "--tensor-parallel", "2"}},
		{2, "1 or more", []string{"-m", m, "-p", "x", "--backend", "xla:cpu", "--tensor-parallel-size", "-1"}},
		{2, "exclude each other", []string{"-m", m, "-p", "x", "--mmap", "--no-mmap"}},
		{2, "--tensor-parallel is 0", []string{"-m", m, "-p", "x", "--tensor-parallel", "0"}},
		{2, "--data-parallel is 0", []string{"bench", "-m", m, "--data-parallel", "0"}},
		{2, "one of the two", []string{"bench", "-m", m, "--backend", "xla:cpu", "--tensor-parallel", "2", "--data-parallel", "2"}},
		{2, "--threads", []string{"-m", m, "-p", "x", "-t", "-1"}},
		{2, "--batch", []string{"-m", m, "-p", "x", "-b", "0"}},
		{2, "unknown", []string{"-m", m, "-p", "x", "--tempp", "1"}},
		{1, "no such file", []string{"-m", "missing.gguf", "-p", "x"}},
		{1, "no such file", []string{"-m", m, "-f", "missing.txt"}},
		{1, "", []string{"-m", "fparun_test.go", "-p", "x"}},
		{2, "--ids-file", []string{"logits", "-m", m}},
		{2, "--output", []string{"bench", "-m", m, "-o", "xml"}},
		{2, "--chat", []string{"-m", m, "-p", "x", "--system", "y"}},
		{1, "no chat template", []string{"-m", m, "-p", "x", "--chat"}},
		{2, "--window", []string{"eval", "perplexity", "-m", m, "-p", "x", "--window", "1"}},
		{1, "tokens", []string{"eval", "perplexity", "-m", m, "-p", "x", "--window", "10"}},
		{2, "data", []string{"eval", "passkey", "-m", m}},
	} {
		mustFail(t, c.code, c.says, c.args...)
	}
}

func TestTokenize(t *testing.T) {
	m := gguf(t)
	const text = "The red key is 123. Caffè 🎉"
	ids, _ := mustRun(t, "tokenize", "-m", m, "-p", text, "--ids")
	if strings.Count(ids, " ") < 8 {
		t.Errorf("ids are %q", ids)
	}
	if back, _ := mustRun(t, "tokenize", "-m", m, "--decode", "--no-special", "-p", ids); back != text+"\n" {
		t.Errorf("decoded %q", back)
	}
	if plain, _ := mustRun(t, "tokenize", "-m", m, "-p", text, "--ids", "--no-special"); !strings.HasSuffix(ids, plain) || plain == ids {
		t.Errorf("with %q and without %q special tokens", ids, plain)
	}
	var list []struct {
		ID    int
		Token string
	}
	out, _ := mustRun(t, "tokenize", "-m", m, "-p", text, "--json")
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != strings.Count(ids, " ")+1 || list[0].Token != "<|bos|>" {
		t.Errorf("%v, %s", err, out)
	}
	mustFail(t, 1, "token id 2", "tokenize", "-m", m, "--decode", "-p", "1 x")
}

func TestLogits(t *testing.T) {
	m := gguf(t)
	dir := t.TempDir()
	ids, out := filepath.Join(dir, "ids"), filepath.Join(dir, "out.safetensors")
	if err := os.WriteFile(ids, []byte("[0, 5, 17,\n 200 3]"), 0o666); err != nil {
		t.Fatal(err)
	}
	read := func(args ...string) (logits []float32, shape string) {
		mustRun(t, append([]string{"logits", "-m", m, "--ids-file", ids, "-o", out, "--force"}, args...)...)
		f, err := safetensors.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		x, _ := f.Lookup("logits")
		logits = make([]float32, len(x.Data)/4)
		if err := quant.Decode(logits, x.DType, x.Data); err != nil {
			t.Fatal(err)
		}
		return logits, x.Shape.String()
	}
	all, shape := read()
	if !strings.HasPrefix(shape, "[5, ") {
		t.Fatalf("shape %s", shape)
	}
	some, shape := read("--positions", "1,-1")
	if !strings.HasPrefix(shape, "[2, ") {
		t.Fatalf("positions 1 and -1 have shape %s", shape)
	}
	row := len(all) / 5
	for i, want := range append(append([]float32(nil), all[row:2*row]...), all[4*row:]...) {
		if !(math.Abs(float64(some[i]-want)) < 1e-4) { // fewer rows are summed in another order
			t.Fatalf("logit %d of positions 1 and -1 is %g, among all it is %g", i, some[i], want)
		}
	}
	mustFail(t, 1, "--force", "logits", "-m", m, "--ids-file", ids, "-o", out)
	mustFail(t, 2, "destroy", "logits", "-m", m, "--ids-file", ids, "-o", m, "--force")
	mustFail(t, 2, "destroy", "logits", "-m", m, "--ids-file", ids, "-o", filepath.Join(dir, ".", "ids"), "--force")
	mustFail(t, 2, "outside", "logits", "-m", m, "--ids-file", ids, "-o", out, "--positions", "5")
	if err := os.WriteFile(ids, []byte("0 99999"), 0o666); err != nil {
		t.Fatal(err)
	}
	mustFail(t, 1, "vocabulary", "logits", "-m", m, "--ids-file", ids, "-o", out)
}

// TestEvalPerplexity scores a text in one piece and in windows, and compares with
// logits of the model itself.
func TestEvalPerplexity(t *testing.T) {
	m := gguf(t)
	text := strings.Repeat("The tall sailor worked beside the bridge before the storm. ", 20)
	run := func(args ...string) (p perplexity) {
		out, _ := mustRun(t, append([]string{"eval", "perplexity", "-m", m, "-p", text, "--json"}, args...)...)
		if err := json.Unmarshal([]byte(out), &p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	whole := run("--cache", "off")
	if whole.Scored != whole.Tokens-1 || whole.Windows != 1 || whole.Perplexity < 1 || whole.Perplexity > 100 {
		t.Errorf("%+v", whole)
	}
	if p := run("--cache", "off", "-b", "7", "-t", "1"); !(math.Abs(p.NLL-whole.NLL) < 1e-5) {
		t.Errorf("in chunks of 7: %+v, whole: %+v", p, whole)
	}
	half := run("--window", "50", "--second-half")
	if half.Windows != whole.Tokens/50 || half.Scored != 25*half.Windows {
		t.Errorf("%+v", half)
	}
	// By hand, from the logits.
	dir := t.TempDir()
	ids, _ := mustRun(t, "tokenize", "-m", m, "-p", text, "--ids")
	file, out := filepath.Join(dir, "ids"), filepath.Join(dir, "logits")
	if err := os.WriteFile(file, []byte(ids), 0o666); err != nil {
		t.Fatal(err)
	}
	mustRun(t, "logits", "-m", m, "--ids-file", file, "-o", out)
	f, err := safetensors.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, _ := f.Lookup("logits")
	logits := make([]float32, len(x.Data)/4)
	if err := quant.Decode(logits, x.DType, x.Data); err != nil {
		t.Fatal(err)
	}
	list, err := parseIDs(ids)
	if err != nil {
		t.Fatal(err)
	}
	vocab, sum := int(x.Shape[1]), 0.0
	for i, id := range list[1:] {
		z := 0.0
		for _, l := range logits[i*vocab : (i+1)*vocab] {
			z += math.Exp(float64(l))
		}
		sum += math.Log(z) - float64(logits[i*vocab+int(id)])
	}
	if got := sum / float64(len(list)-1); !(math.Abs(got-whole.NLL) < 1e-3) {
		t.Errorf("by hand %g, eval perplexity gives %g", got, whole.NLL)
	}
}

func TestEvalPasskey(t *testing.T) {
	m := gguf(t)
	out, _ := mustRun(t, "eval", "passkey", "-m", m, "--data", filepath.Join(passkey, "eval-three.jsonl.gz"), "--max-length", "512", "--limit", "3", "-o", "json")
	var r struct {
		Lengths []lengthResult
		Answers []answer
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Lengths) != 2 || len(r.Answers) != 6 || r.Lengths[1].Length != 512 || r.Lengths[1].Right != 3 {
		t.Errorf("%+v", r)
	}
	// A wrong answer counts as wrong.
	data := filepath.Join(t.TempDir(), "data.jsonl.gz")
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	fmt.Fprintf(z, `{"prompt": %q, "answer": " 1.", "length": 9}`, "The red key is 123. What is the red key? The red key is")
	z.Close()
	if err := os.WriteFile(data, b.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	if out, _ := mustRun(t, "eval", "passkey", "-m", m, "--data", data); !strings.Contains(out, "| 9 | 1 | 0.0 % |") {
		t.Errorf("%s", out)
	}
	if err := os.WriteFile(data, []byte("this is no gzip file at all"), 0o666); err != nil {
		t.Fatal(err)
	}
	mustFail(t, 1, "gzip", "eval", "passkey", "-m", m, "--data", data)
	mustFail(t, 2, "--limit", "eval", "passkey", "-m", m, "--data", data, "--limit", "-1")
	mustFail(t, 2, "unknown command", "eval", "passkey", "-m", m, "extra")
	// A gzip file that holds far more than it says.
	b.Reset()
	z = gzip.NewWriter(&b)
	fmt.Fprint(z, `{"prompt": "`)
	for range maxDataBytes/1_000_000 + 1 {
		z.Write(bytes.Repeat([]byte{'a'}, 1_000_000))
	}
	z.Close()
	if err := os.WriteFile(data, b.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	mustFail(t, 1, "more than 256 MB", "eval", "passkey", "-m", m, "--data", data)
}

// TestInterrupted ends with the exit code that shells know; JSON comes out whole.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	m := gguf(t)
	for _, more := range [][]string{nil, {"--json"}} {
		root := cli.Prepare(newRoot())
		var out, errs bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&errs)
		root.SetArgs(append([]string{"-m", m, "-p", "The old", "-n", "-1", "--ignore-eos"}, more...))
		if err := root.ExecuteContext(ctx); cli.ExitCode(err) != 130 {
			t.Errorf("%v: error %v, exit code %d", more, err, cli.ExitCode(err))
		}
		if more == nil {
			continue
		}
		var got struct {
			Tokens *[]int32 // not null
			Reason string
		}
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Tokens == nil || len(*got.Tokens) != 0 || got.Reason != "cancel" {
			t.Errorf("error %v, %s", err, out.String())
		}
	}
}

// TestParseKeep reads shares and sizes.
func TestParseKeep(t *testing.T) {
	for s, want := range map[string]cache.Keep{
		"0.25": {Share: 0.25}, "25%": {Share: 0.25}, "1": {Share: 1}, "1.0": {Share: 1}, "100%": {Share: 1}, "2": {Bytes: 2}, "64M": {Bytes: 64e6},
	} {
		if got, err := parseKeep(s); err != nil || got != want {
			t.Errorf("%s: %+v, %v; expected %+v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "0", "-1", "101%", "1.5", "NaN", "x"} {
		if got, err := parseKeep(s); err == nil {
			t.Errorf("%q: %+v, expected an error", s, got)
		}
	}
}

// TestAuditIsTold: what was asked for comes out without further flags.
func TestAuditIsTold(t *testing.T) {
	m, dir := gguf(t), t.TempDir()
	ids := filepath.Join(dir, "ids")
	if err := os.WriteFile(ids, []byte("1 2 3 4 5 6 7 8 9 10"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"-m", m, "-p", "The red", "-n", "2", "--temp", "0"},
		{"logits", "-m", m, "--ids-file", ids, "-o", filepath.Join(dir, "logits"), "--cache", "exact"},
	} {
		if _, stderr := mustRun(t, append(args, "--cache-audit")...); strings.Count(stderr, "audit: ") != 1 {
			t.Errorf("%v: %q tells no audit", args, stderr)
		}
	}
}
