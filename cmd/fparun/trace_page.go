package main

import (
	"bufio"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// The page is one file: a template with style, script and data inside. Its content
// security policy allows that style and that script by their hashes and nothing
// else, so that whatever a text or a model file holds stays text.

//go:embed trace.html
var traceHTML string

//go:embed trace.css
var traceCSS string

//go:embed trace.js
var traceJS string

var traceTemplate = template.Must(template.New("trace.html").Parse(traceHTML))

// maxPageBytes is the largest page that is written; browsers open it without effort.
const maxPageBytes = 20_000_000

// pageBytes is about how large a page gets: four numbers of 4 bytes a token and
// head in base64, and the tokens' text.
func pageBytes(tokens, heads int) int64 {
	return int64(tokens) * (int64(heads)*4*16/3 + 20)
}

// page is what the template shows.
type page struct {
	Policy                  string // the content security policy
	Style                   template.CSS
	Script                  template.JS
	Data                    template.JS // a traceData, as JSON
	Model                   string
	Facts                   []fact
	Layers                  []pageLayer
	Dies                    bool // some key can be proved dead
	SparkWidth, SparkHeight int
}

// fact is one line of the summary.
type fact struct{ Name, Value string }

// pageLayer is a row of the overview.
type pageLayer struct {
	Layer int
	Heads []pageHead
}

// pageHead is a head in the overview and in the table.
type pageHead struct {
	Index                  int // in traceData.Heads
	Layer, Head            int
	Queries                string // the query heads that read the field head
	Slope, Bound, DeadFrom string
	Live, Fading, Dead     int // at the last token
	Most                   int // kept at once
	Cached                 int // keys that the cache held at the end
	LivePath, KeptPath     string
}

// traceData is what the script reads.
type traceData struct {
	Tokens  []string   `json:"tokens"`  // as they are shown
	IDs     []int32    `json:"ids"`     // of the vocabulary
	Special []int      `json:"special"` // positions of tokens that are markup
	Heads   []dataHead `json:"heads"`
	Chosen  int        `json:"chosen"` // the head to begin with
}

// dataHead is a head; T numbers each.
type dataHead struct {
	Layer  int      `json:"layer"`
	Head   int      `json:"head"`
	Slope  float64  `json:"slope"`
	Field  series   `json:"field"`
	Level  *series  `json:"level,omitempty"`  // absent: the field
	Fades  string   `json:"fades"`            // see lives; int32 in base64
	Dies   string   `json:"dies,omitempty"`   // absent: never
	DeadAt *float64 `json:"deadAt,omitempty"` // the penalty; absent: none
}

// series are numbers as whole multiples of a step.
type series struct {
	Step   float64 `json:"step"`
	Values string  `json:"values"` // int32 in base64
}

// newSeries rounds numbers to 2^-30 of the largest: closer than float32 for the
// differences of a walk that has come far.
func newSeries(v []float64) series {
	most := 0.0
	for _, x := range v {
		most = max(most, math.Abs(x))
	}
	_, exp := math.Frexp(most)
	step := math.Ldexp(1, max(exp, -1040)-30)
	q := make([]int32, len(v))
	for i, x := range v {
		q[i] = int32(math.Round(x / step))
	}
	return series{step, encodeInts(q)}
}

// encodeInts is base64 of little-endian int32.
func encodeInts(v []int32) string {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	return base64.StdEncoding.EncodeToString(b)
}

// newPage puts the page of a traced text together.
func newPage(f *traceFlags, r *running, t *tokenizer.Tokenizer, ids []int32, heads []*headTrace) (*page, error) {
	m, stats := r.model, r.session.CacheStats()
	p := &page{
		Style: template.CSS(traceCSS), Script: template.JS(traceJS),
		Policy: fmt.Sprintf("default-src 'none'; style-src '%s'; script-src '%s'; base-uri 'none'; form-action 'none'", sourceHash(traceCSS), sourceHash(traceJS)),
		Model:  filepath.Base(f.model), Dies: m.Evictable(), SparkWidth: sparkWidth, SparkHeight: sparkHeight,
	}
	texts, err := tokenTexts(t, ids)
	if err != nil {
		return nil, err
	}
	data := traceData{Tokens: texts, IDs: ids, Special: []int{}}
	for i, id := range ids {
		if t.IsSpecial(id) {
			data.Special = append(data.Special, i)
		}
	}
	most := -1
	for i, x := range heads {
		h := newPageHead(x, i, m.Heads/m.FieldHeads)
		h.DeadFrom = number(deadPenalty(x.bound, traceEps(f)))
		groups := stats.Live[x.layer]
		h.Cached = groups[x.head*len(groups)/m.FieldHeads]
		if len(p.Layers) == 0 || p.Layers[len(p.Layers)-1].Layer != x.layer {
			p.Layers = append(p.Layers, pageLayer{Layer: x.layer})
		}
		l := &p.Layers[len(p.Layers)-1]
		l.Heads = append(l.Heads, h)
		d := dataHead{Layer: x.layer, Head: x.head, Slope: x.slope, Field: newSeries(x.field), Fades: encodeInts(x.fades)}
		if !slices.Equal(x.field, x.level) {
			level := newSeries(x.level)
			d.Level = &level
		}
		if dead := deadPenalty(x.bound, traceEps(f)); !math.IsInf(dead, 1) {
			d.Dies, d.DeadAt = encodeInts(x.dies), &dead
		}
		data.Heads = append(data.Heads, d)
		// The busiest of the heads that let keys go shows most.
		if kept := h.Live + h.Fading; h.Dead > 0 && kept > most {
			most, data.Chosen = kept, i
		}
	}
	p.Facts = []fact{
		{"Text", plural(len(ids), "token")},
		{"Model", fmt.Sprintf("%s of %d query, %d key and %d field heads; field %s, level %s, interval %s",
			plural(m.Blocks, "layer"), m.Heads, m.KVHeads, m.FieldHeads, m.Field, m.Level, m.Interval)},
		{"Cache", fmt.Sprintf("%s, %s: %s", f.mode, strings.ToLower(f.typ), strings.TrimPrefix(cacheLine(stats), "cache: "))},
		{"Dead", proof(f, m.KeepsAll())},
	}
	encoded, err := json.Marshal(data) // with <, > and & escaped
	if err != nil {
		return nil, err
	}
	p.Data = template.JS(encoded)
	return p, nil
}

// proof says when a key is dead; why is the reason for which none can be.
func proof(f *traceFlags, why string) string {
	if why != "" {
		return "no key of this model can be proved dead: " + why
	}
	eps := "2^-25, as --cache exact has it"
	if f.mode == string(cache.Bounded) {
		eps = fmt.Sprintf("%g, as --cache-eps says", f.eps)
	}
	return "a key whose penalty is at least 2U + ln(4/eps), where U bounds the head's logits; eps is " + eps
}

// newPageHead sums a head up; queries is the number of query heads that read it.
func newPageHead(x *headTrace, index, queries int) pageHead {
	live, kept := x.counts()
	last := len(live) - 1
	h := pageHead{
		Index: index, Layer: x.layer, Head: x.head, Queries: strconv.Itoa(x.head * queries),
		Slope: number(x.slope), Bound: number(x.bound),
		Live: live[last], Fading: kept[last] - live[last], Dead: len(live) - kept[last], Most: slices.Max(kept),
	}
	if queries > 1 {
		h.Queries += fmt.Sprintf("–%d", (x.head+1)*queries-1)
	}
	h.LivePath, h.KeptPath = sparkPath(live, h.Most), sparkPath(kept, h.Most)
	return h
}

// The size of an area that shows a count over time, in units of its own.
const sparkWidth, sparkHeight = 160, 36

// sparkPath is the outline of an area under counts of at most most, as SVG path
// data: a step for each unit of width, the largest count within it.
func sparkPath(counts []int, most int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "M0 %d", sparkHeight)
	steps := min(len(counts), sparkWidth)
	for k := range steps {
		c := slices.Max(counts[k*len(counts)/steps : (k+1)*len(counts)/steps])
		fmt.Fprintf(&b, "V%.1fH%.1f", sparkHeight*(1-float64(c)/float64(most)), float64((k+1)*sparkWidth)/float64(steps))
	}
	fmt.Fprintf(&b, "V%dZ", sparkHeight)
	return b.String()
}

// number is a number for people; a dash for one that is not there.
func number(x float64) string {
	if math.IsInf(x, 1) {
		return "–"
	}
	return strconv.FormatFloat(x, 'g', 5, 64)
}

// count is a whole number with its thousands set off: 16,384.
func count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// plural is a number of things.
func plural(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return count(n) + " " + thing
}

// tokenTexts is what the page shows for each token: its text, or nothing where a
// token is only the beginning of a character, which the token that completes it has.
func tokenTexts(t *tokenizer.Tokenizer, ids []int32) ([]string, error) {
	s := t.NewStream(false)
	texts := make([]string, len(ids))
	length := 0
	for i, id := range ids {
		text, err := s.Add(id)
		if err != nil {
			return nil, err
		}
		texts[i] = visible(text)
		length += len(text)
	}
	rest := s.Flush()
	texts[len(texts)-1] += visible(rest)
	if length == 0 && rest != "" {
		// A tokenizer that decodes only whole texts: the vocabulary's spelling is
		// what there is.
		for i, id := range ids {
			token, _ := t.Token(id)
			texts[i] = visible(token)
		}
	}
	return texts, nil
}

// visible writes characters out that are not seen or that change how others are
// shown, such as control characters and marks of writing direction. Line feeds stay.
func visible(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == ' ', r == '\n', unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, "‹U+%04X›", r)
		}
	}
	return b.String()
}

// sourceHash names a style or script in a content security policy.
func sourceHash(source string) string {
	sum := sha256.Sum256([]byte(source))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// write writes the page.
func (p *page) write(w io.Writer) error {
	b := bufio.NewWriterSize(w, 1<<16)
	if err := traceTemplate.Execute(b, p); err != nil {
		return err
	}
	return b.Flush()
}
