// Package plot draws tables of measurements as SVG pictures that need nothing
// else: no script, no font, no style sheet. They follow the reader's light or dark
// theme, and every value is there as text too.
package plot

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"unicode"
	"unicode/utf8"
)

// HeatMap is a grid of coloured cells. Columns go along X from left to right, rows
// along Y from top to bottom.
type HeatMap struct {
	Title    string
	Subtitle string
	XLabel   string
	YLabel   string
	Legend   string // what the colour says
	X, Y     []string
	Cells    [][]*Cell // [len(Y)][len(X)]; nil where there is no value
}

// Cell is one value.
type Cell struct {
	Value float64  // 0 to 1, the colour
	Lines []string // text in the cell, at most two lines
	Tip   string   // shown when the pointer rests on the cell
}

// Sizes in user units.
const (
	cellW, cellH = 84, 44
	margin       = 20
	gap          = 2
	titleH       = 58 // title and subtitle
	axisH        = 54 // names of the columns and the label below them
	labelW       = 26 // the label beside the rows, written upwards
	charW        = 7  // of a letter of the 13 unit text, on the wide side
	legendW      = 160
	legendH      = 50 // what the colour says, the ramp and its numbers
)

// style holds what follows the theme. Cells have the same colours in both, so text
// in them does, too.
const style = `
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-size: 17px; font-weight: 600 }
  .note { font-size: 12px; fill: #57606a }
  .small { font-size: 11px }
  .page { fill: #ffffff }
  .none { fill: none; stroke: #afb8c1; stroke-dasharray: 3 3 }
  .ondark { fill: #ffffff }
  .onlight { fill: #000000 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .note { fill: #9198a1 }
    .page { fill: #0d1117 }
    .none { stroke: #6e7681 }
    .ondark { fill: #ffffff }
    .onlight { fill: #000000 }
  }
`

// check finds what cannot be drawn.
func (h *HeatMap) check() error {
	if len(h.X) == 0 || len(h.Y) == 0 {
		return fmt.Errorf("a heat map of %d columns and %d rows has no cell", len(h.X), len(h.Y))
	}
	if len(h.Cells) != len(h.Y) {
		return fmt.Errorf("a heat map has %d rows of cells, expected %d", len(h.Cells), len(h.Y))
	}
	for y, row := range h.Cells {
		if len(row) != len(h.X) {
			return fmt.Errorf("row %d of a heat map has %d cells, expected %d", y, len(row), len(h.X))
		}
		for x, c := range row {
			if c != nil && (!(c.Value >= 0 && c.Value <= 1) || len(c.Lines) > 2) {
				return fmt.Errorf("cell %d of row %d of a heat map has the value %g and %d lines, expected 0 to 1 and at most 2", x, y, c.Value, len(c.Lines))
			}
		}
	}
	return nil
}

// WriteSVG writes the picture.
func (h *HeatMap) WriteSVG(w io.Writer) error {
	if err := h.check(); err != nil {
		return err
	}
	rowNames := 0
	for _, name := range h.Y {
		rowNames = max(rowNames, charW*utf8.RuneCountInString(name))
	}
	left := margin + labelW + rowNames + 8
	top := margin + titleH
	right, bottom := left+cellW*len(h.X), top+cellH*len(h.Y)
	width := max(right, left+max(legendW+2*charW, charW*utf8.RuneCountInString(h.Legend)), 400) + margin
	height := bottom + axisH + legendH + margin

	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="title desc">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<title id="title">%s</title>`+"\n", escape(h.Title))
	fmt.Fprintf(&b, `<desc id="desc">%s. %s by %s; colour: %s.</desc>`+"\n", escape(h.Subtitle), escape(h.YLabel), escape(h.XLabel), escape(h.Legend))
	fmt.Fprintf(&b, "<style>%s</style>\n", style)
	fmt.Fprintf(&b, `<defs><linearGradient id="ramp">`)
	for i, c := range ramp {
		fmt.Fprintf(&b, `<stop offset="%g" stop-color="%s"/>`, float64(i)/float64(len(ramp)-1), c)
	}
	fmt.Fprint(&b, "</linearGradient></defs>\n")
	fmt.Fprintf(&b, `<rect class="page" width="%d" height="%d"/>`+"\n", width, height)

	room := width - 2*margin
	text(&b, "title", "start", margin, margin+17, shorten(h.Title, room/10))
	text(&b, "note", "start", margin, margin+37, shorten(h.Subtitle, room/charW))
	for y, row := range h.Cells {
		text(&b, "", "end", left-8, top+cellH*y+cellH/2+4, h.Y[y])
		for x, c := range row {
			h.cell(&b, c, left+cellW*x, top+cellH*y)
		}
	}
	for x, name := range h.X {
		text(&b, "", "middle", left+cellW*x+cellW/2, bottom+19, name)
	}
	text(&b, "note", "middle", (left+right)/2, bottom+40, h.XLabel)
	fmt.Fprintf(&b, `<text class="note" text-anchor="middle" transform="translate(%d %d) rotate(-90)">%s</text>`+"\n", margin+12, (top+bottom)/2, escape(h.YLabel))

	y := bottom + axisH
	text(&b, "note", "start", left, y+11, h.Legend)
	y += 19
	fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="12" fill="url(#ramp)"/>`+"\n", left, y, legendW)
	for i, name := range []string{"0 %", "50 %", "100 %"} {
		text(&b, "note small", "middle", left+legendW*i/2, y+26, name)
	}
	fmt.Fprint(&b, "</svg>\n")
	_, err := w.Write(b.Bytes())
	return err
}

// cell draws one cell with its corner at x, y.
func (h *HeatMap) cell(b *bytes.Buffer, c *Cell, x, y int) {
	box := fmt.Sprintf(`x="%d" y="%d" width="%d" height="%d" rx="3"`, x+gap/2, y+gap/2, cellW-gap, cellH-gap)
	if c == nil {
		fmt.Fprintf(b, `<rect class="none" %s/>`+"\n", box)
		return
	}
	fill := shade(c.Value)
	ink := "onlight"
	if fill.contrast(black) < fill.contrast(white) {
		ink = "ondark"
	}
	fmt.Fprintf(b, `<g><title>%s</title><rect %s fill="%s"/>`, escape(c.Tip), box, fill)
	first := y + cellH/2 + 5
	if len(c.Lines) == 2 {
		first -= 8
	}
	for i, line := range c.Lines {
		class := ink
		if i > 0 {
			class += " small"
		}
		fmt.Fprintf(b, `<text class="%s" text-anchor="middle" x="%d" y="%d">%s</text>`, class, x+cellW/2, first+16*i, escape(line))
	}
	fmt.Fprint(b, "</g>\n")
}

// text writes a line of text.
func text(b *bytes.Buffer, class, anchor string, x, y int, s string) {
	if class != "" {
		class = fmt.Sprintf(` class="%s"`, class)
	}
	fmt.Fprintf(b, `<text%s text-anchor="%s" x="%d" y="%d">%s</text>`+"\n", class, anchor, x, y, escape(s))
}

// escape makes text fit for XML; what XML cannot hold becomes U+FFFD.
func escape(s string) string {
	var b bytes.Buffer
	xml.EscapeText(&b, []byte(s)) // a buffer takes everything
	return b.String()
}

// shorten cuts a text to n characters.
func shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	cut := r[:max(n-1, 0)]
	for len(cut) > 0 && unicode.IsSpace(cut[len(cut)-1]) {
		cut = cut[:len(cut)-1]
	}
	return string(cut) + "…"
}

// color is an sRGB colour.
type color [3]uint8

func (c color) String() string { return fmt.Sprintf("#%02x%02x%02x", c[0], c[1], c[2]) }

var black, white = color{}, color{255, 255, 255}

// ramp goes from low to high values: ever darker, so that it reads without colour
// vision and in grey, and pale at 0, so that failures stand out among full cells.
var ramp = []color{{0xf6, 0xe3, 0xbc}, {0x7f, 0xb8, 0xb5}, {0x1d, 0x5b, 0x8c}}

// shade is the colour of a value in 0 to 1.
func shade(v float64) color {
	at := v * float64(len(ramp)-1)
	i := min(int(at), len(ramp)-2)
	var c color
	for k := range c {
		a, b := float64(ramp[i][k]), float64(ramp[i+1][k])
		c[k] = uint8(math.Round(a + (b-a)*(at-float64(i))))
	}
	return c
}

// luminance and contrast are those of WCAG 2.2, which asks for a contrast of at
// least 4.5 between text and its ground.
func (c color) luminance() float64 {
	l := 0.0
	for k, weight := range []float64{0.2126, 0.7152, 0.0722} {
		v := float64(c[k]) / 255
		if v <= 0.04045 {
			v /= 12.92
		} else {
			v = math.Pow((v+0.055)/1.055, 2.4)
		}
		l += weight * v
	}
	return l
}

func (c color) contrast(other color) float64 {
	a, b := c.luminance(), other.luminance()
	return (max(a, b) + 0.05) / (min(a, b) + 0.05)
}
