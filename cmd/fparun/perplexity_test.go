package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// scoredText is a text that the passkey model predicts well in part.
const scoredText = "The tall sailor worked beside the bridge before the storm. The red key is 48213. " +
	"A baker carried the letters and rested below the forest. There were 35887 boats in the river. " +
	"Then the king and the doctor slept before the storm. What is the red key? The red key is 48213."

// logitsFor are the logits of every position of ids, from the verb logits.
func logitsFor(t *testing.T, model string, ids []int32, args ...string) [][]float32 {
	t.Helper()
	dir := t.TempDir()
	file, out := filepath.Join(dir, "ids"), filepath.Join(dir, "out")
	if err := os.WriteFile(file, []byte(fmt.Sprint(ids)), 0o666); err != nil {
		t.Fatal(err)
	}
	mustRun(t, append([]string{"logits", "-m", model, "--ids-file", file, "-o", out}, args...)...)
	flat := tensorOf(t, out, "logits")
	return slices.Collect(slices.Chunk(flat, len(flat)/len(ids)))
}

// idsOf are the tokens of a text.
func idsOf(t *testing.T, path, text string) []int32 {
	t.Helper()
	f, err := model.Open(path, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	ids, err := tok.Encode(text, tokenizer.EncodeOptions{AddSpecial: true})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// softmax is the distribution of logits, by definition.
func softmax(logits []float32) []float64 {
	p := make([]float64, len(logits))
	sum := 0.0
	for i, l := range logits {
		p[i] = math.Exp(float64(l))
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

// strided is the sliding window of Hugging Face's guide to perplexity, step by
// step: labels of tokens that an earlier window has scored are masked, and the loss
// of a window is over labels shifted by one.
func strided(t *testing.T, model string, ids []int32, window, stride int) (losses []float64, windows int) {
	t.Helper()
	const masked = -100
	previous := 0
	for begin := 0; begin < len(ids); begin += stride {
		end := min(begin+window, len(ids))
		input := ids[begin:end]
		labels := slices.Clone(input)
		for i := range len(labels) - (end - previous) {
			labels[i] = masked
		}
		logits := logitsFor(t, model, input)
		for i, label := range labels[1:] {
			if label != masked {
				losses = append(losses, -math.Log(softmax(logits[i])[label]))
			}
		}
		if end-begin > 1 { // a single token is no window that scores one
			windows++
		}
		previous = end
		if end == len(ids) {
			break
		}
	}
	return losses, windows
}

// meanAndError are the mean and its standard error, by definition.
func meanAndError(x []float64) (mean, err float64) {
	for _, v := range x {
		mean += v / float64(len(x))
	}
	for _, v := range x {
		err += (v - mean) * (v - mean)
	}
	return mean, math.Sqrt(err / float64(len(x)-1) / float64(len(x)))
}

// checkStrided compares eval perplexity with strided.
func checkStrided(t *testing.T, model, text string, window, stride int) {
	t.Helper()
	out, _ := mustRun(t, "eval", "perplexity", "-m", model, "-p", text, "--json", "--cache", "off", "--cache-type", "f32",
		"--window", fmt.Sprint(window), "--stride", fmt.Sprint(stride))
	var got perplexity
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	losses, windows := strided(t, model, idsOf(t, model, text), window, stride)
	mean, sem := meanAndError(losses)
	if got.Scored != len(losses) || got.Windows != windows || !(math.Abs(got.NLL-mean) < 1e-5) || !(math.Abs(got.NLLError/sem-1) < 1e-4) {
		t.Errorf("window %d, stride %d: %+v; expected %d tokens in %d windows, mean %g ± %g", window, stride, got, len(losses), windows, mean, sem)
	}
	if !(math.Abs(got.Perplexity/math.Exp(mean)-1) < 1e-5) || !(math.Abs(got.PerplexityError/(math.Exp(mean)*sem)-1) < 1e-4) {
		t.Errorf("window %d, stride %d: perplexity %g ± %g, expected %g ± %g", window, stride, got.Perplexity, got.PerplexityError, math.Exp(mean), math.Exp(mean)*sem)
	}
}

func TestPerplexityStride(t *testing.T) {
	m := gguf(t)
	n := len(idsOf(t, m, scoredText))
	for _, c := range [][2]int{{20, 10}, {70, 1}, {20, 19}, {16, 16}, {n, n}, {n, 7}, {n + 50, 30}, {37, 37}} {
		checkStrided(t, m, scoredText, c[0], c[1])
	}
	out, _ := mustRun(t, "eval", "perplexity", "-m", m, "-p", scoredText, "--window", "20", "--stride", "10")
	if !strings.Contains(out, "perplexity ") || !strings.Contains(out, " ± ") {
		t.Errorf("%s", out)
	}
	for says, args := range map[string]string{
		"--stride is 5":  "--stride 5", // without a window
		"--stride is 30": "--window 20 --stride 30",
		"--stride is -1": "--window 20 --stride -1",
		"both given":     "--window 20 --stride 10 --second-half",
		"--window is -1": "--window -1",
	} {
		for _, verb := range []string{"perplexity", "kld"} {
			mustFail(t, 2, says, append([]string{"eval", verb, "-m", m, "-p", "x"}, strings.Fields(args)...)...)
		}
	}
	mustFail(t, 1, "at least 2", "eval", "perplexity", "-m", m, "-p", "", "--window", "20", "--stride", "10")
}

// TestSmolLM2Stride does the same with a real model.
func TestSmolLM2Stride(t *testing.T) {
	path, goldens := smolLM2(t)
	text, err := os.ReadFile(filepath.Join(goldens, "ppl_2000", "text.txt"))
	if err != nil {
		t.Fatal(err)
	}
	checkStrided(t, path, string(text[:700]), 80, 40)
}

// TestSpans checks for many sizes that every window is full where it must be, and
// that no token is scored twice or without one before it.
func TestSpans(t *testing.T) {
	for n := 2; n < 40; n++ {
		for window := 2; window < 45; window++ {
			for stride := 0; stride <= window; stride++ {
				f := spanFlags{window: window, stride: stride}
				spans, err := f.cut(n)
				if stride == 0 && n < window {
					if err == nil {
						t.Fatalf("%d tokens, window %d: no error", n, window)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				scored := make([]int, n)
				for i, s := range spans {
					if s.from < 0 || s.to > n || s.first <= s.from || s.first >= s.to || s.to-s.from > window {
						t.Fatalf("%d tokens, window %d, stride %d: span %+v", n, window, stride, s)
					}
					if stride > 0 && i > 0 && s.first < s.from+window-stride {
						t.Fatalf("%d tokens, window %d, stride %d: span %+v gives a token less context than promised", n, window, stride, s)
					}
					for pos := range s.to - s.from {
						if s.scores(pos) {
							scored[s.from+pos+1]++
						}
					}
				}
				for i, k := range scored {
					alone := stride == window && i%stride == 0 // begins a window
					dropped := stride == 0 && (i%window == 0 || i >= n/window*window)
					want := 1
					if i == 0 || alone || dropped {
						want = 0
					}
					if k != want {
						t.Fatalf("%d tokens, window %d, stride %d: token %d is scored %d times, expected %d", n, window, stride, i, k, want)
					}
				}
			}
		}
	}
}

// TestMoments is for numbers whose squares would lose the variance.
func TestMoments(t *testing.T) {
	var m moments
	x := []float64{1e9, 1e9 + 1, 1e9 + 2, 1e9 + 4}
	for _, v := range x {
		m.add(v)
	}
	mean, sem := meanAndError(x)
	if !(math.Abs(m.mean-mean) < 1e-6) || !(math.Abs(m.err()-sem) < 1e-6) {
		t.Errorf("%g ± %g, expected %g ± %g", m.mean, m.err(), mean, sem)
	}
	var one moments
	one.add(3)
	if one.err() != 0 {
		t.Errorf("one number has the error %g", one.err())
	}
}
