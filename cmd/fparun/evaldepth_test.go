package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestDepthBins checks that every depth falls into exactly one bin.
func TestDepthBins(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	at := func(depths ...float64) (out []question) {
		for i := range depths {
			out = append(out, question{Depth: &depths[i]})
		}
		return append(out, question{}) // one without
	}
	var many []float64
	for range 1000 {
		many = append(many, rng.Float64())
	}
	for i := range 101 {
		many = append(many, float64(i)/100)
	}
	for _, c := range []struct {
		depths []float64
		count  int
		bins   string
	}{
		{nil, 0, "[]"},
		{nil, 5, "[]"},
		{[]float64{0.5, 0, 0.5, 1}, 0, "[0 0.5 1]"},
		{[]float64{0.3333333, 1}, 0, "[0.333 1]"},
		{[]float64{0.5, 0, 1}, 2, "[0–0.5 0.5–1]"},
		{many, 1, "[0–1]"},
		{many, 0, "[0–0.1 0.1–0.2 0.2–0.3 0.3–0.4 0.4–0.5 0.5–0.6 0.6–0.7 0.7–0.8 0.8–0.9 0.9–1]"},
		{many, 3, "[0–0.333 0.333–0.667 0.667–1]"},
	} {
		bins := depthBins(at(c.depths...), c.count)
		if fmt.Sprint(bins) != c.bins {
			t.Errorf("%d bins of %d depths are %v, expected %s", c.count, len(c.depths), bins, c.bins)
		}
		for _, d := range c.depths {
			n := 0
			for _, b := range bins {
				if b.holds(d) {
					n++
				}
			}
			if n != 1 {
				t.Errorf("depth %g is in %d of the bins %v", d, n, bins)
			}
		}
	}
}

// TestThin checks that the picks are spread over the questions of each length.
func TestThin(t *testing.T) {
	var all []question
	for i := range 50 {
		all = append(all, question{Length: 1, number: i}, question{Length: 2, number: i})
	}
	all = append(all, question{Length: 3, number: 7})
	for limit, want := range map[int][]int{1: {0}, 2: {0, 49}, 3: {0, 24, 49}, 8: {0, 7, 14, 21, 28, 35, 42, 49}} {
		got := map[int][]int{}
		for _, q := range thin(all, limit) {
			got[q.Length] = append(got[q.Length], q.number)
		}
		if !slices.Equal(got[1], want) || !slices.Equal(got[2], want) || !slices.Equal(got[3], []int{7}) {
			t.Errorf("at most %d: %v, expected %v", limit, got, want)
		}
	}
	if n := len(thin(all, 60)); n != len(all) {
		t.Errorf("at most 60 of each keeps %d of %d", n, len(all))
	}
}

// passkeyData writes questions that the model answers at two lengths, one that it
// answers wrongly, and one without depth.
func passkeyData(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	ask := func(length int, depth any, key string, right bool) {
		want := " " + key + "."
		if !right {
			want = " 1."
		}
		line := map[string]any{"prompt": "The red key is " + key + ". A baker carried the letters and rested below the forest. What is the red key? The red key is", "answer": want, "length": length}
		if depth != nil {
			line["depth"] = depth
		}
		data, err := json.Marshal(line)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(data, '\n'))
	}
	ask(10, 0, "48213", true)
	ask(10, 0, "59127", true)
	ask(10, 1, "31586", false)
	ask(20, 0.5, "70492", true)
	ask(20, 0, "18364", false)
	ask(20, 0, "92715", true)
	ask(30, nil, "64038", true)
	path := filepath.Join(t.TempDir(), "data.jsonl")
	if err := os.WriteFile(path, b.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestPasskeyDepths checks the cells against the answers, and the table and the
// picture against the cells.
func TestPasskeyDepths(t *testing.T) {
	m, data := gguf(t), passkeyData(t)
	svg := filepath.Join(t.TempDir(), "map.svg")
	out, _ := mustRun(t, "eval", "passkey", "-m", m, "--data", data, "--json", "--svg", svg)
	var r report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Answers) != 7 || len(r.Lengths) != 3 || r.Lengths[2].Right != 1 || r.Cache != "exact" {
		t.Fatalf("%s", out)
	}
	want := []struct {
		length        int
		depth         float64
		right, prompt int
	}{{10, 0, 2, 2}, {10, 1, 0, 1}, {20, 0, 1, 2}, {20, 0.5, 1, 1}}
	if len(r.Cells) != len(want) {
		t.Fatalf("cells %+v", r.Cells)
	}
	for i, w := range want {
		c := r.Cells[i]
		kept := 0.0
		for _, a := range r.Answers {
			if a.Length == w.length && a.Depth != nil && *a.Depth == w.depth {
				kept += a.Kept / float64(w.prompt)
			}
		}
		if c.Length != w.length || c.From != w.depth || c.To != w.depth || c.Right != w.right || c.Prompts != w.prompt || !(math.Abs(c.Kept-kept) < 1e-12) || kept == 0 {
			t.Errorf("cell %+v, expected %+v with %g kept", c, w, kept)
		}
	}

	// The picture says what the cells say.
	tips, texts := readSVG(t, svg)
	if len(tips) != len(r.Cells) {
		t.Errorf("the picture has %d cells, expected %d", len(tips), len(r.Cells))
	}
	for _, c := range r.Cells {
		tip := fmt.Sprintf("length %d, depth %g: %d of %d right, %.3g %% of the cache kept", c.Length, c.From, c.Right, c.Prompts, 100*c.Kept)
		shows := []string{fmt.Sprintf("%.4g %%", 100*float64(c.Right)/float64(c.Prompts)), fmt.Sprintf("%.3g %%", 100*c.Kept)}
		if !slices.Equal(tips[tip], shows) {
			t.Errorf("the cell %q shows %q, expected %q", tip, tips[tip], shows)
		}
	}
	for _, w := range []string{"10", "20", "0", "0.5", "1", "Passkey: right answers and cache kept", "length of prompt and answer, tokens", "depth of the answer", "50 %"} {
		if !texts[w] {
			t.Errorf("the picture does not say %q", w)
		}
	}
	if texts["30"] {
		t.Error("the picture has a column for a length without depths")
	}

	// So does the table; bins that hold nothing are shown as such.
	out, _ = mustRun(t, "eval", "passkey", "-m", m, "--data", data, "--depth-bins", "4")
	kept := func(i int) string { return fmt.Sprintf("%.3g %%", 100*r.Cells[i].Kept) }
	for _, line := range []string{
		"| 30 | 1 | 100.0 % | ",
		"| length | 0–0.25 | 0.25–0.5 | 0.5–0.75 | 0.75–1 |",
		"| 10 | 2/2, " + kept(0) + " | – | – | 0/1, " + kept(1) + " |",
		"| 20 | 1/2, " + kept(2) + " | – | 1/1, " + kept(3) + " | – |",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("no line %q in\n%s", line, out)
		}
	}
	if strings.Count(out, "| 30 |") != 1 {
		t.Errorf("a length without depths is in the second table:\n%s", out)
	}

	mustFail(t, 1, "--force", "eval", "passkey", "-m", m, "--data", data, "--svg", svg)
	mustRun(t, "eval", "passkey", "-m", m, "--data", data, "--svg", svg, "--force")
	mustFail(t, 2, "destroy", "eval", "passkey", "-m", m, "--data", data, "--svg", data, "--force")
	mustFail(t, 2, "--depth-bins", "eval", "passkey", "-m", m, "--data", data, "--depth-bins", "-1")
	for says, line := range map[string]string{
		"no question has a depth": `{"prompt": "x", "answer": "y", "length": 3}`,
		"question 1 has a length": `{"prompt": "x", "answer": "y", "length": 3, "depth": 1.5}`,
	} {
		if err := os.WriteFile(data, []byte(line), 0o666); err != nil {
			t.Fatal(err)
		}
		mustFail(t, 1, says, "eval", "passkey", "-m", m, "--data", data, "--svg", filepath.Join(t.TempDir(), "none.svg"))
	}
}

// readSVG reads a heat map: the texts of each cell by its tip, and all texts.
func readSVG(t *testing.T, path string) (cells map[string][]string, texts map[string]bool) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cells, texts = map[string][]string{}, map[string]bool{}
	d := xml.NewDecoder(bytes.NewReader(data))
	inCell, element, tip := false, "", ""
	for {
		tok, err := d.Token()
		if err == io.EOF {
			return cells, texts
		}
		if err != nil {
			t.Fatal(err)
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			element = tok.Name.Local
			inCell = inCell || element == "g"
		case xml.EndElement:
			inCell = inCell && tok.Name.Local != "g"
			element = ""
		case xml.CharData:
			switch {
			case inCell && element == "title":
				tip = string(tok)
			case inCell && element == "text":
				cells[tip] = append(cells[tip], string(tok))
			case element == "text":
				texts[string(tok)] = true
			}
		}
	}
}
