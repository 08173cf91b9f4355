package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A normalizer changes the text before it is cut into pieces.
type normalizer interface {
	// normalize may return an empty piece. It clears first where it removes
	// the character that was first.
	normalize(p piece) (piece, error)
}

// sequence is several normalizers, one after the other.
type sequence []normalizer

func (n sequence) normalize(p piece) (piece, error) {
	var err error
	for _, one := range n {
		if p, err = one.normalize(p); err != nil {
			break
		}
		if err = p.budget.check(len(p.text)); err != nil {
			break
		}
	}
	return p, err
}

// unicodeForm is NFC, NFD, NFKC or NFKD.
type unicodeForm norm.Form

func (n unicodeForm) normalize(p piece) (piece, error) {
	p.text = normalForm(norm.Form(n), p.text)
	return p, nil
}

// mapCharacters replaces each character; a negative result removes it.
type mapCharacters func(rune) rune

func (n mapCharacters) normalize(p piece) (piece, error) {
	if p.first && p.text != "" {
		r, _ := utf8.DecodeRuneInString(p.text)
		p.first = n(r) >= 0
	}
	p.text = strings.Map(n, p.text)
	return p, nil
}

// lowercase maps each character to lower case.
type lowercase struct{}

func (lowercase) normalize(p piece) (piece, error) {
	for i := range len(p.text) {
		if c := p.text[i]; c >= utf8.RuneSelf || 'A' <= c && c <= 'Z' {
			b := make([]byte, 0, len(p.text)+8)
			for _, r := range p.text {
				b = lower(b, r)
			}
			p.text = string(b)
			break
		}
	}
	return p, nil
}

// strip removes white space at the ends.
type strip struct{ left, right bool }

func (n strip) normalize(p piece) (piece, error) {
	if n.left {
		text := strings.TrimLeftFunc(p.text, unicode.IsSpace)
		p.first = p.first && len(text) == len(p.text)
		p.text = text
	}
	if n.right {
		p.text = strings.TrimRightFunc(p.text, unicode.IsSpace)
	}
	return p, nil
}

// prepend puts a string in front of a text that is not empty.
type prepend string

func (n prepend) normalize(p piece) (piece, error) {
	if p.text != "" {
		p.text = string(n) + p.text
	}
	return p, nil
}

// replaceLiteral replaces a string, which must not be empty.
type replaceLiteral struct{ old, new string }

func (n replaceLiteral) normalize(p piece) (piece, error) {
	if more := len(n.new) - len(n.old); more > 0 {
		if err := p.budget.check(len(p.text) + strings.Count(p.text, n.old)*more); err != nil {
			return p, err
		}
	}
	p.text = strings.ReplaceAll(p.text, n.old, n.new)
	return p, nil
}

// squeezeBlanks makes one blank of several.
type squeezeBlanks struct{}

func (squeezeBlanks) normalize(p piece) (piece, error) {
	for strings.Contains(p.text, "  ") {
		p.text = strings.ReplaceAll(p.text, "  ", " ")
	}
	return p, nil
}

// byteLevelForm writes bytes as characters of the GPT-2 alphabet.
type byteLevelForm struct{}

func (byteLevelForm) normalize(p piece) (piece, error) {
	p.text = toByteLevel(p.text)
	return p, nil
}

// nmtCharacter is the normalization of the Nmt normalizer: some controls are
// removed, other white space becomes a blank.
func nmtCharacter(r rune) rune {
	switch {
	case 0x01 <= r && r <= 0x08, r == 0x0b, 0x0e <= r && r <= 0x1f, r == 0x7f, r == 0x8f, r == 0x9f:
		return -1
	case r == 0x09, r == 0x0a, r == 0x0c, r == 0x0d, r == 0x1680, 0x200b <= r && r <= 0x200f,
		r == 0x2028, r == 0x2029, r == 0x2581, r == 0xfeff, r == 0xfffd:
		return ' '
	}
	return r
}

// stripMark removes combining marks.
func stripMark(r rune) rune {
	if unicode.Is(unicode.M, r) {
		return -1
	}
	return r
}

// stripNonspacing removes the nonspacing ones alone.
func stripNonspacing(r rune) rune {
	if unicode.Is(unicode.Mn, r) {
		return -1
	}
	return r
}

// cleanCharacter is what BERT does to control characters and white space.
func cleanCharacter(r rune) rune {
	switch {
	case r == '\t', r == '\n', r == '\r':
		return ' '
	case r == 0xfffd, unicode.In(r, unicode.Cc, unicode.Cf, unicode.Cs, unicode.Co):
		return -1
	case unicode.IsSpace(r):
		return ' '
	}
	return r
}

// isHan reports whether BERT puts blanks around a character: the blocks of CJK
// ideographs, not the script Han.
func isHan(r rune) bool {
	return 0x4e00 <= r && r <= 0x9fff || 0x3400 <= r && r <= 0x4dbf ||
		0x20000 <= r && r <= 0x2a6df || 0x2a700 <= r && r <= 0x2b73f ||
		0x2b740 <= r && r <= 0x2b81f || 0x2b920 <= r && r <= 0x2ceaf ||
		0xf900 <= r && r <= 0xfaff || 0x2f800 <= r && r <= 0x2fa1f
}

// spaceHan puts blanks around ideographs.
type spaceHan struct{}

func (spaceHan) normalize(p piece) (piece, error) {
	if strings.IndexFunc(p.text, isHan) < 0 {
		return p, nil
	}
	b := make([]byte, 0, len(p.text)+len(p.text)/2)
	for _, r := range p.text {
		if isHan(r) {
			b = append(b, ' ')
			b = utf8.AppendRune(b, r)
			b = append(b, ' ')
		} else {
			b = utf8.AppendRune(b, r)
		}
	}
	p.text = string(b)
	return p, nil
}

// bertNormalizer is what BERT does to text, as far as its switches say.
type bertNormalizer struct {
	clean        bool // controls are removed, white space becomes a blank
	spaceHan     bool // blanks around ideographs
	stripAccents bool
	lowercase    bool
}

// uncased is the normalizer of uncased BERT.
var uncased = bertNormalizer{true, true, true, true}

func (n bertNormalizer) normalize(p piece) (piece, error) {
	var stages sequence
	if n.clean {
		stages = append(stages, mapCharacters(cleanCharacter))
	}
	if n.spaceHan {
		stages = append(stages, spaceHan{})
	}
	if n.stripAccents {
		stages = append(stages, unicodeForm(norm.NFD), mapCharacters(stripNonspacing))
	}
	if n.lowercase {
		stages = append(stages, lowercase{})
	}
	return stages.normalize(p)
}

// replaceRegex replaces the matches of a regular expression.
type replaceRegex struct {
	pattern *regexPattern
	new     string
}

func (n replaceRegex) normalize(p piece) (piece, error) {
	text, err := n.pattern.replace(p.text, n.new, p.budget)
	p.text = text
	return p, err
}
