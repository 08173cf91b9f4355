package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// claimed is a line of the results behind docs/claims.md: a checkpoint measured by this
// program, by cache mode, task and multiple of the training length.
type claimed struct {
	Settings map[string]any `json:"settings"`
	Result   map[string]struct {
		Right, Kept map[string]map[string]float64
	} `json:"result"`
}

// TestClaims measures the published passkey models again, up to 1,024 tokens, and
// expects what docs/claims.md is made of.
func TestClaims(t *testing.T) {
	data, err := os.ReadFile("../../testmodels/train/results/tool.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	recorded := map[string]claimed{}
	for line := range strings.Lines(string(data)) {
		var c claimed
		// The language models' results have another shape.
		if strings.Contains(line, `"experiment":"passkey"`) {
			if err := json.Unmarshal([]byte(line), &c); err != nil {
				t.Fatal(err)
			}
			recorded[fmt.Sprint(c.Settings)] = c
		}
	}
	runs, err := filepath.Glob("../../testmodels/claims/passkey-*/run.json")
	if err != nil || len(runs) == 0 {
		t.Fatalf("no models: %v", err)
	}
	for _, path := range runs {
		folder := filepath.Dir(path)
		t.Run(filepath.Base(folder), func(t *testing.T) {
			told, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var settings map[string]any
			if err := json.Unmarshal(told, &settings); err != nil {
				t.Fatal(err)
			}
			c, ok := recorded[fmt.Sprint(settings)]
			if !ok {
				t.Fatalf("no result of %v", settings)
			}
			mode := "exact"
			if settings["method"] == "softmax-rope" {
				mode = "off"
			}
			task := settings["task"].(string)
			out, _ := mustRun(t, "eval", "passkey", "-m", folder, "--data", "../../testmodels/passkey/eval-"+task+".jsonl.gz",
				"--cache", mode, "--cache-type", "f32", "--max-length", "1024", "--json")
			var r report
			if err := json.Unmarshal([]byte(out), &r); err != nil {
				t.Fatal(err)
			}
			if len(r.Lengths) != 3 {
				t.Fatalf("%d lengths", len(r.Lengths))
			}
			for _, l := range r.Lengths {
				factor := fmt.Sprint(l.Length / 256)
				right, kept := c.Result[mode].Right[task][factor], c.Result[mode].Kept[task][factor]
				// Another processor adds in another order: a prompt in doubt may go either way.
				if got := float64(l.Right) / float64(l.Prompts); math.Abs(got-right) > 1.5/float64(l.Prompts) {
					t.Errorf("%sx: %g right, docs/claims.md has %g", factor, got, right)
				}
				if math.Abs(l.Kept-kept) > 0.01*kept {
					t.Errorf("%sx: %g kept, docs/claims.md has %g", factor, l.Kept, kept)
				}
			}
		})
	}
}
