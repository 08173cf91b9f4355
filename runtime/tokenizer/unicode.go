package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Classes of a character, as far as the scanners ask for them.
const (
	classLetter = 1 << iota // \p{L}
	classNumber             // \p{N}
	classSpace              // \s, the Unicode property White_Space
)

// classTable holds the classes of the code points below its length; above,
// characterClass asks the tables of package unicode.
var classTable = buildClassTable()

func buildClassTable() *[0x20000]uint8 {
	var table [0x20000]uint8
	mark := func(ranges *unicode.RangeTable, class uint8) {
		for _, r := range ranges.R16 {
			for c := uint32(r.Lo); c <= uint32(r.Hi); c += uint32(r.Stride) {
				table[c] |= class
			}
		}
		for _, r := range ranges.R32 {
			for c := r.Lo; c <= r.Hi && c < uint32(len(table)); c += r.Stride {
				table[c] |= class
			}
		}
	}
	mark(unicode.L, classLetter)
	mark(unicode.N, classNumber)
	mark(unicode.White_Space, classSpace)
	return &table
}

// characterClass is the class bits of a character; 0 is anything that is
// neither letter nor number nor white space.
func characterClass(r rune) uint8 {
	if uint32(r) < uint32(len(classTable)) {
		return classTable[r]
	}
	switch {
	case unicode.Is(unicode.L, r):
		return classLetter
	case unicode.Is(unicode.N, r):
		return classNumber
	}
	return 0
}

// classAt is the class and the size in bytes of the character at s[i].
func classAt(s string, i int) (class uint8, size int) {
	if c := s[i]; c < utf8.RuneSelf {
		return classTable[c], 1
	}
	r, size := utf8.DecodeRuneInString(s[i:])
	return characterClass(r), size
}

// isWord reports whether \w matches: Alphabetic, Mark, decimal digits,
// connector punctuation and the two joiners (UTS 18, annex C).
func isWord(r rune) bool {
	if r < utf8.RuneSelf {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_'
	}
	return unicode.In(r, unicode.L, unicode.Nl, unicode.Other_Alphabetic, unicode.M, unicode.Nd, unicode.Pc) ||
		r == 0x200c || r == 0x200d
}

// isPunctuation reports whether a character is ASCII punctuation (symbols
// such as $ and + included) or of a Unicode category P.
func isPunctuation(r rune) bool {
	if r < utf8.RuneSelf {
		return '!' <= r && r <= '/' || ':' <= r && r <= '@' || '[' <= r && r <= '`' || '{' <= r && r <= '~'
	}
	return unicode.Is(unicode.P, r)
}

// lower appends the lower case of one character, without context. U+0130 is
// the one character whose lower case is two.
func lower(dst []byte, r rune) []byte {
	if r == 0x130 {
		return append(dst, "i\u0307"...)
	}
	return utf8.AppendRune(dst, unicode.ToLower(r))
}

// utf8Step looks at the start of s, which must not be empty. n is the length of
// the character there, or of the longest ill-formed piece that one U+FFFD
// stands for (The Unicode Standard, table 3-7 and "maximal subparts"). short
// says that the piece is the beginning of a character that s cuts off.
func utf8Step(s []byte) (n int, valid, short bool) {
	if r, size := utf8.DecodeRune(s); r != utf8.RuneError || size > 1 {
		return size, true, false
	}
	want, low, high := 0, byte(0x80), byte(0xbf)
	switch c := s[0]; {
	case 0xc2 <= c && c <= 0xdf:
		want = 2
	case 0xe0 <= c && c <= 0xef:
		want = 3
		switch c {
		case 0xe0:
			low = 0xa0
		case 0xed:
			high = 0x9f
		}
	case 0xf0 <= c && c <= 0xf4:
		want = 4
		switch c {
		case 0xf0:
			low = 0x90
		case 0xf4:
			high = 0x8f
		}
	default:
		return 1, false, false
	}
	for n = 1; n < len(s) && low <= s[n] && s[n] <= high; n++ {
		low, high = 0x80, 0xbf
	}
	return n, false, n == len(s) && n < want
}

// appendValid appends text to dst with U+FFFD for each maximal ill-formed piece.
func appendValid(dst, text []byte) []byte {
	for len(text) > 0 {
		n, valid, _ := utf8Step(text)
		if valid {
			dst = append(dst, text[:n]...)
		} else {
			dst = append(dst, "\ufffd"...)
		}
		text = text[n:]
	}
	return dst
}

// toValid is s with U+FFFD for each maximal ill-formed piece.
func toValid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string(appendValid(make([]byte, 0, len(s)+16), []byte(s)))
}

// byteRune is the GPT-2 alphabet: a printable character for each byte. Printable
// Latin-1 stands for itself, the others are moved to U+0100 and up, in order.
var byteRune = func() (table [256]rune) {
	next := rune(0x100)
	for b := range table {
		r := rune(b)
		if '!' <= r && r <= '~' || 0xa1 <= r && r <= 0xac || 0xae <= r && r <= 0xff {
			table[b] = r
		} else {
			table[b] = next
			next++
		}
	}
	return table
}()

// runeByte is the reverse of byteRune; -1 is a character outside the alphabet.
var runeByte = func() (table [0x144]int16) {
	for r := range table {
		table[r] = -1
	}
	for b, r := range byteRune {
		table[r] = int16(b)
	}
	return table
}()

// toByteLevel writes each byte of s as its character of the GPT-2 alphabet.
func toByteLevel(s string) string {
	var b strings.Builder
	b.Grow(len(s) + len(s)/4)
	for i := range len(s) {
		b.WriteRune(byteRune[s[i]])
	}
	return b.String()
}

// appendByteLevel appends the bytes that token stands for, or its own bytes
// where it has a character outside the GPT-2 alphabet.
func appendByteLevel(dst []byte, token string) []byte {
	start := len(dst)
	for _, r := range token {
		if int(r) >= len(runeByte) || runeByte[r] < 0 {
			return append(dst[:start], token...)
		}
		dst = append(dst, byte(runeByte[r]))
	}
	return dst
}
