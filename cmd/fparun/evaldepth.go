package main

import (
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/firstpassage/fpa/cmd/internal/plot"
)

// bin is a range of depths, [from, to), or [from, to] at the end of all. One with
// from = to is a single depth.
type bin struct{ from, to float64 }

func (b bin) holds(depth float64) bool {
	return b.from <= depth && (depth < b.to || depth == b.to && (b.to == 1 || b.from == b.to))
}

func (b bin) String() string {
	from, to := short(b.from), short(b.to)
	if from == to {
		return from
	}
	return from + "–" + to
}

// short is a depth for people.
func short(x float64) string { return strconv.FormatFloat(math.Round(1000*x)/1000, 'g', -1, 64) }

// fewDepths is up to how many depths have a column each: as many as there are from 0
// to 1 in steps of a tenth. More go into manyBins.
const (
	fewDepths = 11
	manyBins  = 10
)

// maxBins bounds the number of bins that can be asked for; a table of more cannot
// be read.
const maxBins = 100

// depthBins groups the depths of the questions into count bins of equal width; or,
// when count is 0, one for every depth while there are few. It is empty when no
// question has a depth.
func depthBins(questions []question, count int) []bin {
	var depths []float64
	for _, q := range questions {
		if q.Depth != nil {
			depths = append(depths, *q.Depth)
		}
	}
	slices.Sort(depths)
	depths = slices.Compact(depths)
	if len(depths) == 0 {
		return nil
	}
	var out []bin
	if count == 0 && len(depths) <= fewDepths {
		for _, d := range depths {
			out = append(out, bin{d, d})
		}
		return out
	}
	if count == 0 {
		count = manyBins
	}
	for i := range count {
		out = append(out, bin{float64(i) / float64(count), float64(i+1) / float64(count)})
	}
	return out
}

// cellsOf groups the answers that have a depth by length and depth: in ascending
// order, and without cells that hold none.
func cellsOf(answers []answer, bins []bin) []cell {
	type place struct {
		length int
		bin    bin
	}
	at := make(map[place]*tally)
	for _, a := range answers {
		if a.Depth == nil {
			continue
		}
		i := slices.IndexFunc(bins, func(b bin) bool { return b.holds(*a.Depth) }) // every depth has its bin
		p := place{a.Length, bins[i]}
		if at[p] == nil {
			at[p] = &tally{}
		}
		at[p].add(a)
	}
	out := []cell{} // an empty array in JSON, not null
	for p, t := range at {
		out = append(out, cell{p.length, p.bin.from, p.bin.to, *t})
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].Length != out[j].Length {
			return out[i].Length < out[j].Length
		}
		return out[i].From < out[j].From
	})
	return out
}

// add counts an answer.
func (t *tally) add(a answer) {
	t.Prompts++
	if a.Right {
		t.Right++
	}
	t.Kept += (a.Kept - t.Kept) / float64(t.Prompts)
}

// accuracy is the share of right answers.
func (t tally) accuracy() float64 { return float64(t.Right) / float64(t.Prompts) }

// lookup finds cells by length and bin.
func lookup(cells []cell) map[int]map[bin]cell {
	out := make(map[int]map[bin]cell)
	for _, c := range cells {
		if out[c.Length] == nil {
			out[c.Length] = make(map[bin]cell)
		}
		out[c.Length][bin{c.From, c.To}] = c
	}
	return out
}

// print prints the tables as Markdown.
func (r *report) print(w io.Writer, bins []bin) error {
	var b strings.Builder
	fmt.Fprintf(&b, "model %s, cache %s %s, data %s\n\n", r.Model, r.Cache, r.CacheType, r.Data)
	fmt.Fprintln(&b, "| length | prompts | right | tokens | cache kept, mean | largest | live keys of the fullest head |")
	fmt.Fprintln(&b, "|---|---|---|---|---|---|---|")
	for _, l := range r.Lengths {
		fmt.Fprintf(&b, "| %d | %d | %.1f %% | %.0f | %.3f %% | %.3f %% | %d |\n",
			l.Length, l.Prompts, 100*l.accuracy(), l.Tokens, 100*l.Kept, 100*l.MostKept, l.MaxLive)
	}
	if len(r.Cells) > 0 {
		r.printDepths(&b, bins)
	}
	if r.costs != (costs{}) {
		b.WriteString("\n")
		r.costs.print(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printDepths prints the table by length and depth.
func (r *report) printDepths(b *strings.Builder, bins []bin) {
	b.WriteString("\nRight answers of those asked, and mean cache kept, by depth of the answer:\n\n| length |")
	for _, d := range bins {
		fmt.Fprintf(b, " %v |", d)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(bins)) + "\n")
	at := lookup(r.Cells)
	for _, l := range r.Lengths {
		if at[l.Length] == nil {
			continue // no depth among them
		}
		fmt.Fprintf(b, "| %d |", l.Length)
		for _, d := range bins {
			if c, ok := at[l.Length][d]; ok {
				fmt.Fprintf(b, " %d/%d, %s |", c.Right, c.Prompts, percent(c.Kept))
			} else {
				b.WriteString(" – |")
			}
		}
		b.WriteString("\n")
	}
}

// percent is a share in percent, of three significant digits at most.
func percent(x float64) string { return fmt.Sprintf("%.3g %%", 100*x) }

// heatMap is the picture of the table by length and depth: lengths go to the right,
// depths down.
func (r *report) heatMap(bins []bin) *plot.HeatMap {
	h := &plot.HeatMap{
		Title:    "Passkey: right answers and cache kept",
		Subtitle: fmt.Sprintf("%s, cache %s %s, %s", filepath.Base(r.Model), r.Cache, r.CacheType, filepath.Base(r.Data)),
		XLabel:   "length of prompt and answer, tokens", YLabel: "depth of the answer",
		Legend: "right answers (below: share of the cache kept)",
		Cells:  make([][]*plot.Cell, len(bins)),
	}
	for _, b := range bins {
		h.Y = append(h.Y, b.String())
	}
	at := lookup(r.Cells)
	for _, l := range r.Lengths {
		if at[l.Length] == nil {
			continue // no depth among them
		}
		h.X = append(h.X, strconv.Itoa(l.Length))
		for y, b := range bins {
			c, ok := at[l.Length][b]
			if !ok {
				h.Cells[y] = append(h.Cells[y], nil)
				continue
			}
			h.Cells[y] = append(h.Cells[y], &plot.Cell{
				Value: c.accuracy(),
				Lines: []string{fmt.Sprintf("%.4g %%", 100*c.accuracy()), percent(c.Kept)},
				Tip:   fmt.Sprintf("length %d, depth %v: %d of %d right, %s of the cache kept", c.Length, b, c.Right, c.Prompts, percent(c.Kept)),
			})
		}
	}
	return h
}
