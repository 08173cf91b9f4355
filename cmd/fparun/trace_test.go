package main

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/ops/reference"
)

// randomWalk is a field and levels; small whole numbers, so that many are equal.
func randomWalk(rng *rand.Rand, n int) (field, level []float64) {
	at := 0.0
	for range n {
		at += float64(rng.IntN(5) - 2)
		field = append(field, at)
		level = append(level, at+float64(rng.IntN(7)-3))
	}
	return field, level
}

// TestLives holds fades and dies against the penalties of the operator's float64
// reference, token by token.
func TestLives(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 400 {
		n := rng.IntN(50)
		field, level := randomWalk(rng, n)
		slope, dead := []float64{0, 0.5, 1, 3}[rng.IntN(4)], []float64{2, 5, 9, math.Inf(1)}[rng.IntN(4)]
		if round%3 == 0 {
			level = field // tied
		}
		interval := reference.Interval(round % 2)
		l := newLives(field, level, slope, dead, interval == reference.Inclusive)
		live, kept := l.counts()
		s := reference.Stream{Slope: slope, Interval: interval}
		for i := range n {
			s.Append([]float64{1}, []float64{1}, field[i], level[i])
			wantLive, wantKept := 0, 0
			for j := range i + 1 {
				p := s.Penalty(j)
				if fading := i >= int(l.fades[j]); fading != (p > 0) {
					t.Fatalf("round %d, key %d, query %d, %s: fading is %v, the penalty %g", round, j, i, interval, fading, p)
				}
				if gone := i >= int(l.dies[j]); gone != (p >= dead) {
					t.Fatalf("round %d, key %d, query %d, %s: dead is %v, the penalty %g of %g", round, j, i, interval, gone, p, dead)
				}
				if p == 0 {
					wantLive++
				}
				if p < dead {
					wantKept++
				}
			}
			if live[i] != wantLive || kept[i] != wantKept {
				t.Fatalf("round %d, query %d: %d live and %d kept, expected %d and %d", round, i, live[i], kept[i], wantLive, wantKept)
			}
		}
	}
}

// TestLivesLong is quick on a long text in which nothing dies, and on one in which
// the stack of records is deep.
func TestLivesLong(t *testing.T) {
	const n = 1 << 18
	up, down := make([]float64, n), make([]float64, n)
	for i := range n {
		up[i], down[i] = float64(i), -float64(i)
	}
	if l := newLives(up, up, 1, 10, false); l.fades[0] != n || l.dies[n/2] != n {
		t.Errorf("a rising field: the first key fades at %d, the middle one dies at %d, expected never", l.fades[0], l.dies[n/2])
	}
	if l := newLives(down, down, 1, 10, false); l.fades[5] != 6 || l.dies[5] != 15 || l.dies[n-3] != n {
		t.Errorf("a falling field: key 5 fades at %d and dies at %d, expected 6 and 15", l.fades[5], l.dies[5])
	}
}

// TestSeries writes numbers so that none moves by more than 2^-30 of the largest.
func TestSeries(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, size := range []float64{0, 1e-300, 1e-3, 1, 20_000, 1e300} {
		v := make([]float64, 100)
		for i := range v {
			v[i] = size * (2*rng.Float64() - 1)
		}
		v[0] = size
		s := newSeries(v)
		for i, q := range decodeInts(t, s.Values) {
			if got := float64(q) * s.Step; math.Abs(got-v[i]) > size*0x1p-30 {
				t.Errorf("size %g: %g became %g", size, v[i], got)
			}
		}
	}
}

func decodeInts(t *testing.T, s string) []int32 {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil || len(b)%4 != 0 {
		t.Fatalf("%d bytes of base64, %v", len(b), err)
	}
	v := make([]int32, len(b)/4)
	for i := range v {
		v[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		" the": " the", "a\nb": "a\nb", "\t\x00": "‹U+0009›‹U+0000›", "\x7f": "‹U+007F›", "a\u202eb": "a‹U+202E›b",
		"\u00a0": "‹U+00A0›", "\u200b": "‹U+200B›", "é漢😀": "é漢😀", "\xff": "\ufffd", "<b>&": "<b>&",
	} {
		if got := visible(in); got != want {
			t.Errorf("%q is shown as %q, expected %q", in, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 16384: "16,384", 1234567: "1,234,567"} {
		if got := count(n); got != want {
			t.Errorf("%d is written %s, expected %s", n, got, want)
		}
	}
}

// trace makes a page and returns its path, its text and its data.
func trace(t *testing.T, args ...string) (path, html string, data traceData) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "trace.html")
	mustRun(t, append([]string{"trace", "-o", path}, args...)...)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	html = string(b)
	m := regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`).FindStringSubmatch(html)
	if m == nil {
		t.Fatal("the page holds no data")
	}
	if err := json.Unmarshal([]byte(m[1]), &data); err != nil {
		t.Fatal(err)
	}
	return path, html, data
}

// variant is the trained model with another configuration and some tensors left out.
func variant(t *testing.T, change map[string]any, without ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "generation_config.json"} {
		b, err := os.ReadFile(filepath.Join(passkey, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(filepath.Join(passkey, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(b, &config); err != nil {
		t.Fatal(err)
	}
	for k, v := range change {
		config[k] = v
	}
	if b, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o666); err != nil {
		t.Fatal(err)
	}
	in, err := safetensors.Open(filepath.Join(passkey, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	tensors := slices.DeleteFunc(slices.Clone(in.Tensors()), func(x safetensors.Tensor) bool {
		return slices.ContainsFunc(without, func(part string) bool { return strings.Contains(x.Name, part) })
	})
	if err := safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), false, tensors, in.Metadata()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTrace holds a page's numbers against each other, by the definition, and
// against the keys that the real cache held.
func TestTrace(t *testing.T) {
	file := filepath.Join(passkey, "prompt-1x.txt")
	for _, args := range [][]string{{}, {"--cache", "bounded", "--cache-eps", "1e-2"}, {"--cache", "off"}, {"--batch", "7"}} {
		_, html, data := trace(t, append([]string{"-m", gguf(t), "-f", file}, args...)...)
		n := len(data.Tokens)
		if n != 248 || len(data.IDs) != n || len(data.Heads) != 8 || data.Heads[7].Layer != 1 || data.Heads[7].Head != 3 {
			t.Fatalf("%d tokens, %d ids, %d heads", n, len(data.IDs), len(data.Heads))
		}
		if text, err := os.ReadFile(file); err != nil || strings.Join(data.Tokens[1:], "") != string(text) {
			t.Errorf("the tokens spell %q, %v", strings.Join(data.Tokens[1:], ""), err)
		}
		if !slices.Equal(data.Special, []int{0}) {
			t.Errorf("special tokens at %v, expected 0", data.Special)
		}
		rows := tableRows(t, html)
		for k, h := range data.Heads {
			field, level := decodeInts(t, h.Field.Values), decodeInts(t, h.Level.Values)
			fades, dies := decodeInts(t, h.Fades), decodeInts(t, h.Dies)
			var live, fading, dead, most int
			for i := range n {
				live, fading, dead = 0, 0, 0
				low := math.Inf(1)
				for j := i; j >= 0; j-- {
					p := h.Slope * max(0, float64(level[j])*h.Level.Step-low)
					switch {
					case i >= int(dies[j]):
						dead++
					case i >= int(fades[j]):
						fading++
					default:
						live++
					}
					if p > 1e-4 && i < int(fades[j]) || p == 0 && i >= int(fades[j]) {
						t.Fatalf("%v, head %d: key %d at query %d has penalty %g and fades at %d", args, k, j, i, p, fades[j])
					}
					low = math.Min(low, float64(field[j])*h.Field.Step)
				}
				most = max(most, live+fading)
			}
			r := rows[k]
			want := []string{fmt.Sprint(h.Layer), fmt.Sprint(h.Head), fmt.Sprint(h.Head), fmt.Sprint(live), fmt.Sprint(fading), fmt.Sprint(dead), fmt.Sprint(most)}
			if got := append(slices.Clone(r[:3]), r[6:10]...); !slices.Equal(got, want) {
				t.Errorf("%v: the table says %v, expected %v", args, got, want)
			}
			// No live key has left the real cache.
			var cached int
			fmt.Sscan(r[10], &cached)
			if off := slices.Contains(args, "off"); cached < live || (cached == n) != off {
				t.Errorf("%v, head %d: the cache held %d keys, live %d, fading %d", args, k, cached, live, fading)
			}
		}
	}
}

// tableRows are the cells of the table of all heads.
func tableRows(t *testing.T, html string) [][]string {
	t.Helper()
	var rows [][]string
	for _, row := range regexp.MustCompile(`(?m)^<tr>(<td>.*</td>)</tr>$`).FindAllStringSubmatch(html, -1) {
		rows = append(rows, strings.Split(strings.TrimSuffix(strings.ReplaceAll(row[1], "<td>", ""), "</td>"), "</td>"))
	}
	if len(rows) == 0 || len(rows[0]) != 11 {
		t.Fatalf("the table has rows %v", rows)
	}
	return rows
}

// TestTracePolicy: the page allows exactly the style and the script that it has, and
// what a text says stays text.
func TestTracePolicy(t *testing.T) {
	hostile := "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>\u2028'\"`${x}{{.}}"
	m := filepath.Join(t.TempDir(), "<img src=x>&.gguf")
	b, err := os.ReadFile(gguf(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m, b, 0o666); err != nil {
		t.Skipf("this system has no such file names: %v", err)
	}
	_, html, data := trace(t, "-m", m, "-p", hostile)
	if got := strings.Join(data.Tokens[1:], ""); got != strings.ReplaceAll(hostile, "\u2028", "‹U+2028›") {
		t.Errorf("the tokens spell %q", got)
	}
	for what, want := range map[string]int{"<script": 2, "</script": 2, "<style": 1, "<img": 0, "<!--": 0} {
		if got := strings.Count(html, what); got != want {
			t.Errorf("the page has %q %d times, expected %d", what, got, want)
		}
	}
	policy := regexp.MustCompile(`http-equiv="Content-Security-Policy" content="([^"]*)"`).FindStringSubmatch(html)
	style := regexp.MustCompile(`(?s)<style>(.*?)</style>`).FindStringSubmatch(html)
	script := regexp.MustCompile(`(?s)<script>(.*?)</script>`).FindStringSubmatch(html)
	if policy == nil || style == nil || script == nil {
		t.Fatal("the page lacks policy, style or script")
	}
	got := strings.NewReplacer("&#39;", "'", "&#43;", "+").Replace(policy[1])
	want := fmt.Sprintf("default-src 'none'; style-src '%s'; script-src '%s'; base-uri 'none'; form-action 'none'", sourceHash(style[1]), sourceHash(script[1]))
	if got != want {
		t.Errorf("the policy is\n%s, expected\n%s", got, want)
	}
	if found := regexp.MustCompile(`https?:|url\(|@import|<link`).FindString(html); found != "" {
		t.Errorf("the page refers to something outside: %q", found)
	}
}

// TestTraceWithoutProof claims no dead keys where none are proved.
func TestTraceWithoutProof(t *testing.T) {
	dir := variant(t, map[string]any{"field_interval": "inclusive"})
	_, html, data := trace(t, "-m", dir, "-f", filepath.Join(passkey, "prompt-1x.txt"))
	if !strings.Contains(html, "no key of this model can be proved dead") || strings.Contains(html, `class="dead"`) {
		t.Error("the page does not say that no key can be proved dead")
	}
	for k, r := range tableRows(t, html) {
		if data.Heads[k].Dies != "" || r[4] != "–" || r[5] != "–" || r[8] != "0" || r[10] != "248" {
			t.Errorf("head %d: %v", k, r)
		}
	}
}

// TestTraceTied leaves out levels that are the field.
func TestTraceTied(t *testing.T) {
	_, _, data := trace(t, "-m", variant(t, map[string]any{"level_kind": "tied"}, "level_proj"), "-p", "The red key is 123.")
	for k, h := range data.Heads {
		if h.Level != nil || h.Dies == "" {
			t.Errorf("head %d has levels of its own, or no deaths", k)
		}
	}
}

// TestTraceBudget: the cache may be small, and the page still tells the proved deaths.
func TestTraceBudget(t *testing.T) {
	m, file := gguf(t), filepath.Join(passkey, "prompt-1x.txt")
	_, _, exact := trace(t, "-m", m, "-f", file)
	_, html, data := trace(t, "-m", m, "-f", file, "--cache", "budget", "--cache-keep", "1%")
	for k, h := range data.Heads {
		// What the first layer drops changes what the second one sees.
		if h.Dies == "" || h.Layer == 0 && h.Dies != exact.Heads[k].Dies {
			t.Errorf("head %d: no deaths, or others than with exact", k)
		}
	}
	if !strings.Contains(html, "<dd>budget, f16: ") {
		t.Error("the page does not tell the mode of the cache")
	}
}

func TestTraceLayers(t *testing.T) {
	_, _, data := trace(t, "-m", gguf(t), "-p", "The red key is 123.", "--layers", "-1", "--no-special")
	if len(data.Heads) != 4 || data.Heads[0].Layer != 1 || len(data.Special) != 0 {
		t.Errorf("%d heads, from layer %d on, special tokens %v", len(data.Heads), data.Heads[0].Layer, data.Special)
	}
}

func TestTraceFails(t *testing.T) {
	m := gguf(t)
	out := filepath.Join(t.TempDir(), "trace.html")
	mustFail(t, 2, "--output", "trace", "-m", m, "-p", "x")
	mustFail(t, 2, "no prompt", "trace", "-m", m, "-o", out)
	mustFail(t, 2, "no model", "trace", "-p", "x", "-o", out)
	mustFail(t, 2, "which it would destroy", "trace", "-m", m, "-p", "x", "-o", m)
	mustFail(t, 2, "--layers: 2 is outside the 2 layers", "trace", "-m", m, "-p", "x", "-o", out, "--layers", "0,2")
	mustFail(t, 2, `--layers: "a" is no number`, "trace", "-m", m, "-p", "x", "-o", out, "--layers", "a")
	mustFail(t, 2, "--cache-audit", "trace", "-m", m, "-p", "x", "-o", out, "--cache-audit")
	mustFail(t, 1, "no tokens", "trace", "-m", m, "-p", "", "-o", out, "--no-special")
	mustFail(t, 1, "at most 20 MB", "trace", "-m", m, "-p", strings.Repeat("The barn. ", 50_000), "-o", out)
	mustFail(t, 1, "nothing to trace", "trace", "-m", variant(t, map[string]any{"field_kind": "none"}, "field_proj", "level_proj", "slope"), "-p", "x", "-o", out)
	if _, err := os.Stat(out); err == nil {
		t.Error("a command that failed left a file")
	}
	mustRun(t, "trace", "-m", m, "-p", "x", "-o", out)
	mustFail(t, 1, "--force", "trace", "-m", m, "-p", "x", "-o", out)
	mustRun(t, "trace", "-m", m, "-p", "x", "-o", out, "--force")
}

// TestTraceSize holds the estimate of a page's size, by which long texts are
// refused, against the size.
func TestTraceSize(t *testing.T) {
	path, _, data := trace(t, "-m", gguf(t), "-f", filepath.Join(passkey, "prompt-64x.txt"))
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	estimate := pageBytes(len(data.Tokens), len(data.Heads))
	if rest := info.Size() - estimate; rest < -100_000 || rest > 200_000 {
		t.Errorf("%d tokens: the page has %d bytes, the estimate is %d", len(data.Tokens), info.Size(), estimate)
	}
}
