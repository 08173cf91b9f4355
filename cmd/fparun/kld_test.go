package main

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/convert"
	"github.com/firstpassage/fpa/runtime/model"
)

// kld runs eval kld.
func kld(t *testing.T, args ...string) (d divergence) {
	t.Helper()
	out, _ := mustRun(t, append([]string{"eval", "kld", "--json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// q8 is the trained model with its matrices in Q8_0 or as near as their rows allow.
func q8(t *testing.T) string {
	t.Helper()
	src, err := model.Open(passkey, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	path := filepath.Join(t.TempDir(), "q8.gguf")
	if _, err := convert.ToGGUF(context.Background(), src, convert.Options{Output: path, Type: quant.Q8_0, Version: "test", NoCheck: true}); err != nil {
		t.Fatal(err)
	}
	return path
}

// checkKLD compares a result with the definitions of what it says, computed from
// the logits of each window.
func checkKLD(t *testing.T, got divergence, base, model [][]float32, ids []int32, window int) {
	t.Helper()
	var kl, same, change, lossB, lossM, ratio []float64
	most, at := -1.0, 0
	for i := range base {
		if (i+1)%window == 0 || i+1 >= len(ids) { // the last of a window scores nothing
			continue
		}
		p, q := softmax(base[i]), softmax(model[i])
		sum := 0.0
		for k := range p {
			sum += p[k] * math.Log(p[k]/q[k])
		}
		if sum > most {
			most, at = sum, i+1
		}
		kl = append(kl, sum)
		same = append(same, 0)
		if slices.Index(p, slices.Max(p)) == slices.Index(q, slices.Max(q)) {
			same[len(same)-1] = 1
		}
		id := ids[i+1]
		change = append(change, q[id]-p[id])
		lossB, lossM = append(lossB, -math.Log(p[id])), append(lossM, -math.Log(q[id]))
		ratio = append(ratio, math.Log(p[id]/q[id]))
	}
	near := func(what string, got, want, tolerance float64) {
		t.Helper()
		if !(math.Abs(got-want) <= tolerance*max(math.Abs(want), 1e-6)) {
			t.Errorf("%s is %g, expected %g", what, got, want)
		}
	}
	pair := func(what string, got, gotErr float64, x []float64) {
		t.Helper()
		mean, sem := meanAndError(x)
		near(what, got, mean, 1e-3)
		near("the error of "+what, gotErr, sem, 1e-3)
	}
	if got.Scored != len(kl) || got.KL.MaxAt != at {
		t.Errorf("%d tokens, the largest at %d; expected %d and %d", got.Scored, got.KL.MaxAt, len(kl), at)
	}
	pair("the divergence", got.KL.Mean, got.KL.Error, kl)
	pair("same top", got.SameTop, got.SameTopError, same)
	pair("the change", got.Change.Mean, got.Change.Error, change)
	pair("ln of the ratio", got.Perplexity.LnRatio, got.Perplexity.LnRatioError, ratio)
	meanB, errB := meanAndError(lossB)
	meanM, errM := meanAndError(lossM)
	near("the base's perplexity", got.Perplexity.Base, math.Exp(meanB), 1e-4)
	near("the base's error", got.Perplexity.BaseError, math.Exp(meanB)*errB, 1e-3)
	near("the model's perplexity", got.Perplexity.Model, math.Exp(meanM), 1e-4)
	near("the model's error", got.Perplexity.ModelError, math.Exp(meanM)*errM, 1e-3)
	square, largest := 0.0, 0.0
	for _, c := range change {
		square += c * c / float64(len(change))
		largest = max(largest, math.Abs(c))
	}
	near("the root mean square", got.Change.RMS, math.Sqrt(square), 1e-3)
	near("the largest change", got.Change.Max, largest, 1e-3)
	near("the largest divergence", got.KL.Max, most, 1e-3)
	slices.Sort(kl)
	// The k-th of n sorted numbers is the quantile (k-1)/(n-1).
	for q, have := range map[float64]float64{0.5: got.KL.Median, 0.99: got.KL.Q99, 0.999: got.KL.Q999} {
		low := kl[int(math.Floor(q*float64(len(kl)-1)))]
		high := kl[int(math.Ceil(q*float64(len(kl)-1)))]
		if !(have >= low*(1-1e-3) && have <= high*(1+1e-3)) {
			t.Errorf("the quantile %g is %g, expected %g to %g", q, have, low, high)
		}
	}
}

// TestKLD compares two models that differ enough to see, in windows and in chunks.
func TestKLD(t *testing.T) {
	base, m := gguf(t), q8(t)
	ids := idsOf(t, m, scoredText)
	const window = 24
	var of, from [][]float32
	for at := 0; at+window <= len(ids); at += window {
		of = append(of, logitsFor(t, m, ids[at:at+window])...)
		from = append(from, logitsFor(t, base, ids[at:at+window])...)
	}
	args := []string{"-m", m, "--base", base, "-p", scoredText, "--cache", "off", "--cache-type", "f32", "--base-cache-type", "f32", "--window", "24"}
	got := kld(t, args...)
	if got.KL.Mean < 1e-6 || got.Windows != len(ids)/window || got.Tokens != len(ids) || got.Base != base || got.BaseCacheType != "f32" {
		t.Errorf("%+v", got)
	}
	checkKLD(t, got, from, of, ids, window)
	checkKLD(t, kld(t, append(args, "-b", "5")...), from, of, ids, window)

	out, _ := mustRun(t, append([]string{"eval", "kld"}, args...)...)
	for _, want := range []string{
		`KL\(base, model\) +mean \S+ ± \S+, median \S+, 99 % \S+, 99\.9 % \S+, largest \S+ at token \d+`,
		`same top token +\S+ % ± \S+ %`,
		`perplexity +model \S+ ± \S+, base \S+ ± \S+, ln of the ratio \S+ ± \S+`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no line %q in\n%s", want, out)
		}
	}
}

// TestKLDSame compares a model with itself.
func TestKLDSame(t *testing.T) {
	m := gguf(t)
	text := strings.Repeat(scoredText+" ", 5)
	off := kld(t, "-m", m, "-p", text, "--cache", "off")
	if off.KL.Mean != 0 || off.KL.Max != 0 || off.SameTop != 1 || off.Change.Max != 0 || off.Perplexity.LnRatio != 0 || off.Kept != 1 {
		t.Errorf("with --cache off: %+v", off)
	}
	// Exact: no more than rounding, while most keys are gone.
	exact := kld(t, "-m", m, "-p", text)
	if exact.KL.Max > 1e-9 || exact.SameTop != 1 || exact.Kept > 0.1 || exact.Cache != "exact" || exact.Base != m {
		t.Errorf("with --cache exact: %+v", exact)
	}
	// Float16 keys and values differ from float32 ones by more than that.
	typ := kld(t, "-m", m, "-p", text, "--cache-type", "f32", "--cache", "off")
	if typ.KL.Mean < 100*exact.KL.Mean || typ.KL.Max > 1e-4 {
		t.Errorf("f32 against f16: %+v", typ.KL)
	}
	whole := off.Perplexity
	out, _ := mustRun(t, "eval", "perplexity", "-m", m, "-p", text, "--cache", "off", "--json")
	var p perplexity
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatal(err)
	}
	if !(math.Abs(p.Perplexity/whole.Model-1) < 1e-6) || !(math.Abs(p.PerplexityError/whole.ModelError-1) < 1e-5) {
		t.Errorf("eval perplexity gives %g ± %g, eval kld %g ± %g", p.Perplexity, p.PerplexityError, whole.Model, whole.ModelError)
	}
}

func TestKLDRefused(t *testing.T) {
	m := gguf(t)
	mustFail(t, 2, "--base-cache-type", "eval", "kld", "-m", m, "-p", "x", "--base-cache-type", "f64")
	mustFail(t, 1, "no such file", "eval", "kld", "-m", m, "-p", "x", "--base", "missing.gguf")
	mustFail(t, 1, "tokens", "eval", "kld", "-m", m, "-p", "x", "--window", "30")
	mustFail(t, 2, "--model", "eval", "kld", "-p", "x")

	// The same number of tokens, two of them exchanged.
	other := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors", "tokenizer.json"} {
		data, err := os.ReadFile(filepath.Join(passkey, name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "tokenizer.json" {
			data = exchange(t, data, "Ġred", "Ġblue")
		}
		if err := os.WriteFile(filepath.Join(other, name), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	mustFail(t, 1, "cannot be compared: token ", "eval", "kld", "-m", m, "-p", "x", "--base", other)
	if d := kld(t, "-m", m, "-p", scoredText, "--base", passkey); d.KL.Max > 1e-3 || d.Base != passkey {
		t.Errorf("against the checkpoint: %+v", d.KL)
	}
	a, b := &running{model: &model.Model{}}, &running{model: &model.Model{}}
	a.model.VocabSize, b.model.VocabSize = 10, 20
	if err := sameVocabulary(a, b, nil, nil); err == nil || !strings.Contains(err.Error(), "10 and 20") {
		t.Errorf("vocabularies of 10 and 20: error %v", err)
	}
}

// exchange exchanges the ids of two tokens of a tokenizer.json.
func exchange(t *testing.T, data []byte, a, b string) []byte {
	t.Helper()
	var top map[string]any
	if err := json.Unmarshal(data, &top); err != nil {
		t.Fatal(err)
	}
	vocab := top["model"].(map[string]any)["vocab"].(map[string]any)
	if vocab[a] == nil || vocab[b] == nil {
		t.Fatalf("%s or %s is no token", a, b)
	}
	vocab[a], vocab[b] = vocab[b], vocab[a]
	data, err := json.Marshal(top)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestQuantile compares with numpy.quantile.
func TestQuantile(t *testing.T) {
	x := []float32{1, 2, 4, 8}
	for q, want := range map[float64]float64{0: 1, 0.5: 3, 0.99: 7.88, 1: 8} {
		if got := quantile(x, q); !(math.Abs(got-want) < 1e-9) {
			t.Errorf("the quantile %g is %g, expected %g", q, got, want)
		}
	}
	if got := quantile([]float32{3}, 0.999); got != 3 {
		t.Errorf("of one number: %g", got)
	}
}
