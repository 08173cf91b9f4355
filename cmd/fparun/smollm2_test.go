package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// smolLM2 is the path of SmolLM2-135M-Instruct.Q4_1.gguf, from FPA_SMOLLM2, and
// the folder of its goldens. The model is not in the repository.
func smolLM2(t *testing.T) (path, goldens string) {
	t.Helper()
	path, shared := os.Getenv("FPA_SMOLLM2"), os.Getenv("FPA_SHARED")
	if os.Getenv("FPA_REQUIRE_ORACLES") == "1" && shared != "" && path == "" {
		t.Fatal("FPA_SMOLLM2 is not set; .ci/run installs the model")
	}
	if path == "" || shared == "" {
		t.Skip("FPA_SMOLLM2 or FPA_SHARED is not set: the 98 MB model and its goldens are not in the repository")
	}
	return path, filepath.Join(shared, "cases", "smollm2")
}

// smolCase is a case.json of the goldens.
type smolCase struct {
	Prompt       string `json:"prompt"`
	ParseSpecial bool   `json:"parse_special"`
	Messages     []struct{ Role, Content string }
	Perplexity   float64 `json:"perplexity_f32"`
	Second       struct {
		Perplexity float64 `json:"perplexity_f32"`
	} `json:"window256_second_half"`
}

func readCase(t *testing.T, dir string) (c smolCase) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "case.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// tensorOf reads a tensor as float32; integers too.
func tensorOf(t *testing.T, path, name string) []float32 {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, ok := f.Lookup(name)
	if !ok {
		t.Fatalf("%s has no tensor %s", path, name)
	}
	if x.DType == quant.I32 {
		v := make([]float32, len(x.Data)/4)
		for i := range v {
			v[i] = float32(int32(binary.LittleEndian.Uint32(x.Data[4*i:])))
		}
		return v
	}
	n, _ := x.Shape.Elements()
	v := make([]float32, n)
	if err := quant.Decode(v, x.DType, x.Data); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestSmolLM2 runs a real model of the llama architecture: ids, logits, greedy
// text, perplexity and chat template against transformers.
func TestSmolLM2(t *testing.T) {
	path, goldens := smolLM2(t)
	f, err := model.Open(path, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"english_100", "code", "chat"} {
		dir := filepath.Join(goldens, name)
		golden := filepath.Join(dir, "golden.safetensors")
		c := readCase(t, dir)
		ids, err := tok.Encode(c.Prompt, tokenizer.EncodeOptions{ParseSpecial: c.ParseSpecial})
		if err != nil {
			t.Fatal(err)
		}
		want := tensorOf(t, golden, "ids")
		if fmt.Sprint(asInts(want)) != fmt.Sprint(ids) {
			t.Errorf("%s: ids %v, expected %v", name, ids, want)
		}
		if len(c.Messages) == 1 {
			if text, err := renderChat(f, tok, chatMessages("", c.Messages[0].Content)); err != nil || text != c.Prompt {
				t.Errorf("%s: the chat template gives %q, %v; expected %q", name, text, err, c.Prompt)
			}
		}
		checkSmolLogits(t, path, name, golden, ids)
		checkSmolGreedy(t, path, name, golden, ids)
	}
	dir := filepath.Join(goldens, "ppl_2000")
	c := readCase(t, dir)
	for args, want := range map[string]float64{"": c.Perplexity, "--window 256 --second-half": c.Second.Perplexity} {
		all := append([]string{"eval", "perplexity", "-m", path, "-f", filepath.Join(dir, "text.txt"), "--json", "--cache", "off", "--cache-type", "f32"}, strings.Fields(args)...)
		out, _ := mustRun(t, all...)
		var p perplexity
		if err := json.Unmarshal([]byte(out), &p); err != nil {
			t.Fatal(err)
		}
		if !(math.Abs(p.Perplexity/want-1) < 1e-3) {
			t.Errorf("perplexity %s: %g, expected %g", args, p.Perplexity, want)
		}
	}
}

func asInts(v []float32) []int32 {
	out := make([]int32, len(v))
	for i, x := range v {
		out[i] = int32(x)
	}
	return out
}

func checkSmolLogits(t *testing.T, path, name, golden string, ids []int32) {
	t.Helper()
	dir := t.TempDir()
	file, out := filepath.Join(dir, "ids"), filepath.Join(dir, "out")
	if err := os.WriteFile(file, []byte(strings.Trim(fmt.Sprint(ids), "[]")), 0o666); err != nil {
		t.Fatal(err)
	}
	pos := strings.ReplaceAll(strings.Trim(fmt.Sprint(asInts(tensorOf(t, golden, "pos"))), "[]"), " ", ",")
	mustRun(t, "logits", "-m", path, "--ids-file", file, "--positions", pos, "-o", out)
	got, want := tensorOf(t, out, "logits"), tensorOf(t, golden, "logits")
	worst := 0.0
	for i := range want {
		worst = max(worst, math.Abs(float64(got[i]-want[i])))
	}
	t.Logf("%s: largest difference of a logit %.2e", name, worst)
	if len(got) != len(want) || !(worst <= 1e-3) {
		t.Errorf("%s: logits differ by %g", name, worst)
	}
}

// checkSmolGreedy generates greedily, through end tokens, and compares up to the
// first token at which the golden itself was nearly undecided.
func checkSmolGreedy(t *testing.T, path, name, golden string, ids []int32) {
	t.Helper()
	f := engineFlags{model: path, batch: 512, tensorParallel: 1, dataParallel: 1, backend: "cpu", activations: activationsF32, mode: "off", typ: "f32"}
	r, err := f.open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	best := int32(0)
	pick := func(_ int, logits []float32) error {
		best = 0
		for i, l := range logits {
			if l > logits[best] {
				best = int32(i)
			}
		}
		return nil
	}
	if err := r.session.Feed(ids, nil, pick); err != nil {
		t.Fatal(err)
	}
	gap := tensorOf(t, golden, "greedy_gap")
	for i, want := range asInts(tensorOf(t, golden, "greedy")) {
		if gap[i] < 1e-2 {
			return
		}
		if best != want {
			t.Errorf("%s: greedy token %d is %d, expected %d", name, i, best, want)
			return
		}
		if err := r.session.Feed([]int32{want}, nil, pick); err != nil {
			t.Fatal(err)
		}
	}
}
