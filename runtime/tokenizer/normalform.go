package tokenizer

import (
	"slices"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// maxMarks is the number of marks on one character up to which package norm
// follows the Unicode standard. Where there are more it inserts U+034F, as the
// Stream-Safe Text Format says, which would change the text.
const maxMarks = 30

// normalForm is a Unicode normal form of s.
func normalForm(form norm.Form, s string) string {
	if form.IsNormalString(s) && !manyMarks(form, s) {
		return s
	}
	if manyMarks(form, s) {
		return slowNormalForm(form, s)
	}
	return form.String(s)
}

// manyMarks reports whether s may have more marks in a row than package norm
// takes. It counts what decomposes as marks too, which is on the safe side.
func manyMarks(form norm.Form, s string) bool {
	n := 0
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			n = 0
			i++
			continue
		}
		p := form.PropertiesString(s[i:])
		if p.CCC() == 0 && p.LeadCCC() == 0 && p.TrailCCC() == 0 {
			n = 0
		} else if n += max(1, len(p.Decomposition())/2); n > maxMarks-4 {
			return true
		}
		i += max(p.Size(), 1)
	}
	return false
}

// slowNormalForm follows the definition (The Unicode Standard, section 3.11):
// decompose, put marks in order of their class, compose.
func slowNormalForm(form norm.Form, s string) string {
	decompose := norm.NFD
	if form == norm.NFKC || form == norm.NFKD {
		decompose = norm.NFKD
	}
	type character struct {
		r     rune
		class uint8
	}
	var text []character
	for _, r := range s {
		for _, part := range decompose.String(string(r)) {
			text = append(text, character{part, norm.NFD.PropertiesString(string(part)).CCC()})
		}
	}
	for i := 0; i < len(text); {
		end := i
		for end < len(text) && text[end].class != 0 {
			end++
		}
		slices.SortStableFunc(text[i:end], func(a, b character) int { return int(a.class) - int(b.class) })
		i = end + 1
	}
	if form == norm.NFC || form == norm.NFKC {
		kept := text[:0]
		starter := -1 // place in kept of the character that marks compose with
		for _, c := range text {
			blocked := starter >= 0 && starter < len(kept)-1 && (kept[len(kept)-1].class >= c.class)
			if starter >= 0 && !blocked {
				pair := string(kept[starter].r) + string(c.r)
				if r, size := utf8.DecodeRuneInString(norm.NFC.String(pair)); r != kept[starter].r && size == len(norm.NFC.String(pair)) {
					kept[starter].r = r
					continue
				}
			}
			if c.class == 0 {
				starter = len(kept)
			}
			kept = append(kept, c)
		}
		text = kept
	}
	out := make([]byte, 0, len(s))
	for _, c := range text {
		out = utf8.AppendRune(out, c.r)
	}
	return string(out)
}
