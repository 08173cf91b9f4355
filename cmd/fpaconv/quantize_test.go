package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestQuantize quantises the trained model, whose rows of 128 elements fill blocks of
// 32 alone.
func TestQuantize(t *testing.T) {
	dir := t.TempDir()
	f16, q4, report := filepath.Join(dir, "f16.gguf"), filepath.Join(dir, "q4.gguf"), filepath.Join(dir, "report.json")
	mustRun(t, passkey, "-o", f16)

	out, _ := mustRun(t, "quantize", f16, "--type", "q4_k", "--dry-run")
	if !strings.Contains(out, "nothing was written") || !strings.Contains(out, "Q5_0") || !strings.Contains(out, "bits a parameter") {
		t.Errorf("the plan is %q", out)
	}
	onlyFile(t, dir, "f16.gguf")

	_, stderr := mustRun(t, "quantize", f16, "--type", "Q4_K_M", "-o", q4, "--report", report)
	for _, says := range []string{"do not fill Q4_K blocks", "verified at 300 tokens", "|logit| is at most", "tensors: "} {
		if !strings.Contains(stderr, says) {
			t.Errorf("quantize does not say %q:\n%s", says, stderr)
		}
	}
	var r struct {
		Type       string
		LogitBound []float32 `json:"logit_bound"`
		Tensors    []struct {
			Name, Type string
			RMSE       *float64
			Relative   *float64 `json:"relative_error"`
		}
	}
	data, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	if r.Type != "Q4_K" || len(r.LogitBound) == 0 {
		t.Errorf("the report has type %s and %d bounds", r.Type, len(r.LogitBound))
	}
	for _, x := range r.Tensors {
		if x.RMSE == nil || x.Relative == nil {
			t.Errorf("tensor %s: no error in the report", x.Name)
			continue
		}
		low, high := 0.0, 0.0
		switch x.Type {
		case "Q5_0":
			low, high = 0.02, 0.08
		case "Q8_0":
			low, high = 0.002, 0.02
		}
		if *x.Relative < low || *x.Relative > high {
			t.Errorf("tensor %s: relative error %g as %s, expected %g to %g", x.Name, *x.Relative, x.Type, low, high)
		}
	}
	info := func(path string) int64 {
		i, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return i.Size()
	}
	if a, b := info(f16), info(q4); b*2 > a {
		t.Errorf("%d bytes become %d", a, b)
	}
	// The same as a conversion of that file.
	again := filepath.Join(dir, "again.gguf")
	mustRun(t, f16, "--type", "q4_k", "-o", again)
	a, _ := mustRun(t, "hash", q4)
	b, _ := mustRun(t, "hash", again)
	if a[:64] != b[:64] {
		t.Error("quantize and a conversion write different files")
	}

	mustFail(t, 1, "--force", "quantize", f16, "--type", "q4_k", "-o", q4)
	mustRun(t, "quantize", f16, "--type", "q4_0", "-o", q4, "--force", "-q", "--no-verify")
	mustFail(t, 1, "--allow-requantize", "quantize", q4, "--type", "q8_0", "-o", again, "--force")
	mustFail(t, 1, "--allow-requantize", "quantize", q4, "--type", "q8_0", "--dry-run")
	mustFail(t, 1, "--allow-requantize", q4, "--type", "q8_0", "-o", again, "--force")
	mustRun(t, "quantize", q4, "--type", "q8_0", "-o", again, "--force", "--allow-requantize")
	mustRun(t, "quantize", q4, "--type", "f16", "-o", again, "--force")
}

func TestQuantizeUsage(t *testing.T) {
	mustFail(t, 2, "no model given", "quantize")
	mustFail(t, 2, "--type takes one of f32", "quantize", passkey)
	mustFail(t, 2, "expected one of f32", "quantize", passkey, "--type", "q2_k")
	mustFail(t, 2, "types are given with --type", "quantize", passkey, "out.gguf", "q4_k")
	mustFail(t, 2, "ends in .gguf", "quantize", passkey, "--type", "q4_k", "-o", "m.onnx")
	mustFail(t, 3, "verification failed", "quantize", passkey, "--type", "q4_0", "-o", filepath.Join(t.TempDir(), "m.gguf"), "--atol", "1e-6")
	mustFail(t, 1, "", "quantize", filepath.Join(t.TempDir(), "none.gguf"), "--type", "q4_0")
}
