package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// ask runs the command on a model and decodes its answers.
func ask(t *testing.T, backend, questions string) []answer {
	t.Helper()
	var out bytes.Buffer
	if err := run([]string{"-m", filepath.Join("..", "passkey"), "--backend", backend, "--cache", "off"}, strings.NewReader(questions), &out); err != nil {
		t.Fatal(err)
	}
	var answers []answer
	for d := json.NewDecoder(&out); d.More(); {
		var a answer
		if err := d.Decode(&a); err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	return answers
}

// TestAnswers asks the CPU engine and gomlx's Go backend the same.
func TestAnswers(t *testing.T) {
	prefill := `{"do": "prefill", "tokens": 20, "logits": true}` + "\n"
	decode := `{"do": "decode", "tokens": 3, "depth": 20, "logits": true}` + "\n"
	batch := `{"do": "decode", "tokens": 3, "sequences": 3, "depth": 20, "logits": true}` + "\n"
	ours, graph := ask(t, "cpu", prefill+decode+batch), ask(t, "go", prefill+decode+batch)
	if len(ours) != 4 || len(graph) != 4 {
		t.Fatalf("%d and %d answers, expected 4", len(ours), len(graph))
	}
	near := func(a, b answer) {
		t.Helper()
		if len(a.Logits) == 0 || len(a.Logits) != len(b.Logits) {
			t.Fatalf("%d and %d logits", len(a.Logits), len(b.Logits))
		}
		for i := range a.Logits {
			// The CPU engine's cache is F16, the Go backend's F32.
			if d := math.Abs(float64(a.Logits[i] - b.Logits[i])); !(d < 0.05) {
				t.Fatalf("logit %d differs by %g", i, d)
			}
		}
	}
	near(ours[1], graph[1])
	near(ours[2], graph[2])
	near(ours[2], graph[3]) // the first of the three is the same sequence
	near(ours[2], ours[3])
	if a := graph[3]; a.Seconds <= 0 || a.Kept != 1 || a.CacheBytes <= graph[2].CacheBytes || a.Compilations == 0 {
		t.Errorf("%+v", a)
	}
}

// TestMistakes asks what has no answer.
func TestMistakes(t *testing.T) {
	for question, want := range map[string]string{
		`{"do": "sing", "tokens": 1}`:                     "not known",
		`{"do": "decode", "tokens": 0}`:                   "expected 1 to",
		`{"do": "decode", "tokens": 1, "sequences": 9e9}`: "cannot unmarshal",
		`decode`: "the question decode",
		`{"do": "decode", "tokens": 1, "speed": "high"}`: "speed",
	} {
		err := run([]string{"-m", filepath.Join("..", "passkey")}, strings.NewReader(question), new(bytes.Buffer))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected an error with %q", question, err, want)
		}
	}
	if err := run([]string{"-m", filepath.Join("..", "passkey"), "--backend", "tpu"}, nil, nil); err == nil {
		t.Error("an unknown backend was opened")
	}
}

// TestScript runs the script for GPUs on XLA's CPU plugin, with small models.
func TestScript(t *testing.T) {
	python, plugin := os.Getenv("FPA_PYTHON"), os.Getenv("FPA_PJRT_CPU")
	if python == "" || plugin == "" {
		if os.Getenv("FPA_REQUIRE_ORACLES") == "1" {
			t.Fatal("FPA_PYTHON or FPA_PJRT_CPU is not set, and FPA_REQUIRE_ORACLES is 1")
		}
		t.Skip("FPA_PYTHON and FPA_PJRT_CPU do not name a Python with gguf and numpy, and a PJRT CPU plugin")
	}
	c := exec.Command("bash", "gpu.sh", "--cpu", "--no-install")
	c.Env = append(os.Environ(), "PJRT_PLUGIN_LIBRARY_PATH="+filepath.Dir(plugin))
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"synthetic-llama.gguf; tokens/s", "synthetic-level-off.gguf; tokens/s",
		"prefill 64", "decode 4 x 4", "programs compiled in", "MB resident", "100.0%",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the script's output lacks %q", want)
		}
	}
	t.Logf("%s", out)
}
