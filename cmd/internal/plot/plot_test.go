package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

// sample is a heat map with an empty cell and hostile text.
func sample() *HeatMap {
	return &HeatMap{
		Title: `<script>&"'` + "\x00\xff", Subtitle: strings.Repeat("long ", 100), XLabel: "x", YLabel: "y", Legend: "colour",
		X: []string{"256", "512"}, Y: []string{"0", "0.5", "1"},
		Cells: [][]*Cell{
			{{Value: 0, Lines: []string{"0 %"}, Tip: "a < b"}, {Value: 1, Lines: []string{"100 %", "2 % kept"}}},
			{nil, {Value: 0.5}},
			{{Value: 0.25, Lines: []string{"25 %"}}, nil},
		},
	}
}

// TestSVG reads the picture back as XML and counts what is in it.
func TestSVG(t *testing.T) {
	var b bytes.Buffer
	h := sample()
	if err := h.WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	texts := map[string]bool{}
	d := xml.NewDecoder(&b)
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			count[tok.Name.Local]++
			for _, a := range tok.Attr {
				if a.Name.Local == "class" {
					count["."+a.Value]++
				}
				if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "href" {
					t.Errorf("attribute %s", a.Name.Local)
				}
			}
		case xml.CharData:
			texts[string(tok)] = true
		}
	}
	if count["script"] != 0 || count["g"] != 4 || count[".none"] != 2 || count["svg"] != 1 || count["stop"] != len(ramp) {
		t.Errorf("elements: %v", count)
	}
	for _, want := range []string{"<script>&\"'\ufffd\ufffd", "a < b", "2 % kept", "256", "0.5", "colour", "100 %"} {
		if !texts[want] {
			t.Errorf("the picture does not say %q", want)
		}
	}
	for s := range texts {
		if strings.HasPrefix(s, "long") && strings.HasSuffix(s, "…") && len(s) > 100 {
			t.Errorf("the subtitle is not cut: %d bytes", len(s))
		}
	}
}

// TestContrast holds the text of every shade to the contrast that WCAG asks for,
// and the ramp to darken steadily.
func TestContrast(t *testing.T) {
	last := 2.0
	for i := range 1001 {
		c := shade(float64(i) / 1000)
		if best := max(c.contrast(black), c.contrast(white)); best < 4.5 {
			t.Errorf("value %d/1000, %v: contrast %.2f", i, c, best)
		}
		if l := c.luminance(); l > last {
			t.Errorf("value %d/1000 is lighter than the one before", i)
		} else {
			last = l
		}
	}
	if shade(0) != ramp[0] || shade(1) != ramp[len(ramp)-1] {
		t.Errorf("the ends are %v and %v", shade(0), shade(1))
	}
	if got := black.contrast(white); got < 20.99 || got > 21.01 {
		t.Errorf("black on white has a contrast of %g, expected 21", got)
	}
}

func TestRefused(t *testing.T) {
	for name, break_ := range map[string]func(*HeatMap){
		"no column":      func(h *HeatMap) { h.X = nil },
		"rows missing":   func(h *HeatMap) { h.Cells = h.Cells[:2] },
		"cell missing":   func(h *HeatMap) { h.Cells[1] = h.Cells[1][:1] },
		"value too high": func(h *HeatMap) { h.Cells[0][0].Value = 1.01 },
		"three lines":    func(h *HeatMap) { h.Cells[0][0].Lines = make([]string, 3) },
	} {
		h := sample()
		break_(h)
		var b bytes.Buffer
		if err := h.WriteSVG(&b); err == nil || b.Len() != 0 {
			t.Errorf("%s: error %v, %d bytes written", name, err, b.Len())
		}
	}
}
