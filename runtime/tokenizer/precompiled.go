package tokenizer

import (
	"encoding/binary"
	"strings"
	"unicode"
	"unicode/utf8"
)

// precompiled is SentencePiece's normalization table. Its charsmap is, in little
// endian order:
//
//	uint32            size of the trie in bytes
//	[]uint32          the trie, a double array of Darts-clone
//	[]byte            the replacements, each ended by a zero byte
//
// The trie maps what is replaced to the offset of its replacement.
//
// https://github.com/google/sentencepiece/blob/master/src/normalizer.cc
type precompiled struct {
	charsmap     []byte
	trie         []uint32
	replacements string
}

func newPrecompiled(charsmap []byte, where string) (*precompiled, error) {
	p := &precompiled{charsmap: charsmap}
	if len(charsmap) == 0 { // no normalization
		return p, nil
	}
	if len(charsmap) < 4 {
		return nil, malformed(where, "the charsmap has %d bytes, expected at least 4", len(charsmap))
	}
	size, rest := binary.LittleEndian.Uint32(charsmap), charsmap[4:]
	if uint64(size) > uint64(len(rest)) || size%4 != 0 {
		return nil, malformed(where, "the charsmap says that its trie has %d bytes, but %d follow", size, len(rest))
	}
	p.trie = make([]uint32, size/4)
	for i := range p.trie {
		p.trie[i] = binary.LittleEndian.Uint32(rest[4*i:])
	}
	if p.replacements = string(rest[size:]); !utf8.ValidString(p.replacements) {
		return nil, malformed(where, "the replacements of the charsmap are not UTF-8")
	}
	return p, nil
}

// find is the replacement of the shortest key that s starts with.
func (p *precompiled) find(s string) (replacement string, ok bool) {
	unit := func(at uint32) (uint32, bool) {
		if uint64(at) >= uint64(len(p.trie)) {
			return 0, false
		}
		return p.trie[at], true
	}
	offset := func(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }
	u, ok := unit(0)
	at := offset(u)
	for i := 0; ok && i < len(s) && s[i] != 0; i++ {
		at ^= uint32(s[i])
		if u, ok = unit(at); !ok || u&(1<<31|0xff) != uint32(s[i]) {
			return "", false
		}
		at ^= offset(u)
		if u>>8&1 == 1 { // a key ends here
			value, ok := unit(at)
			value &= 1<<31 - 1
			if !ok || uint64(value) > uint64(len(p.replacements)) || int(value) < len(p.replacements) && !utf8.RuneStart(p.replacements[value]) {
				return "", false
			}
			replacement, _, _ := strings.Cut(p.replacements[value:], "\x00")
			return replacement, true
		}
	}
	return "", false
}

// maxCluster is the length in bytes from which a grapheme cluster is replaced
// character by character.
const maxCluster = 6

func (p *precompiled) normalize(in piece) (piece, error) {
	if len(p.trie) == 0 {
		return in, nil
	}
	var out strings.Builder
	out.Grow(len(in.text))
	replace := func(part string) bool {
		replacement, ok := p.find(part)
		if ok {
			out.WriteString(replacement)
			if in.first && replacement == "" && out.Len() == 0 {
				in.first = false
			}
		}
		return ok
	}
	for rest := in.text; rest != ""; {
		n := clusterLength(rest)
		if cluster := rest[:n]; n >= maxCluster || !replace(cluster) {
			for i, r := range cluster {
				if character := cluster[i : i+utf8.RuneLen(r)]; !replace(character) {
					out.WriteString(character)
				}
			}
		}
		rest = rest[n:]
		if err := in.budget.check(out.Len()); err != nil {
			return in, err
		}
	}
	in.text = out.String()
	return in, nil
}

// clusterLength is the length of the extended grapheme cluster at the start of
// s (UAX 29), or some length from maxCluster on where it is longer than that:
// rules that only make long clusters (flags, most emoji, Hangul, Indic
// conjuncts) are left out.
func clusterLength(s string) int {
	r, n := utf8.DecodeRuneInString(s)
	if r == '\r' && strings.HasPrefix(s[n:], "\n") {
		return 2
	}
	pictograph := r == '©' || r == '®' // the ones of two bytes
	for n < len(s) && n < 2*maxCluster {
		if isClusterControl(r) {
			break
		}
		next, size := utf8.DecodeRuneInString(s[n:])
		joins := isExtend(next) || isPrepend(r) && !isClusterControl(next) ||
			pictograph && r == 0x200d && (next == '©' || next == '®') || hangulJoins(r, next) ||
			unicode.Is(unicode.Regional_Indicator, r) && unicode.Is(unicode.Regional_Indicator, next)
		if !joins {
			break
		}
		n += size
		r = next
	}
	return n
}

func isClusterControl(r rune) bool {
	if r == 0x200c || r == 0x200d || isPrepend(r) || r >= 0xe0020 && r <= 0xe007f {
		return false
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// isExtend reports whether a character continues a cluster: Grapheme_Extend,
// emoji modifiers, the zero width joiner, and SpacingMark.
func isExtend(r rune) bool {
	if r < 0x300 {
		return false
	}
	return unicode.In(r, unicode.Mn, unicode.Me, unicode.Other_Grapheme_Extend) || r == 0x200d ||
		0x1f3fb <= r && r <= 0x1f3ff || r == 0xe33 || r == 0xeb3 ||
		unicode.Is(unicode.Mc, r) && !notSpacing(r)
}

// notSpacing reports whether a character of category Mc is no SpacingMark.
func notSpacing(r rune) bool {
	switch r {
	case 0x102b, 0x102c, 0x1038, 0x1083, 0x108f, 0x1a61, 0x1a63, 0x1a64, 0xaa7b, 0xaa7d, 0x11720, 0x11721:
		return true
	}
	return 0x1062 <= r && r <= 0x1064 || 0x1067 <= r && r <= 0x106d || 0x1087 <= r && r <= 0x108c ||
		0x109a <= r && r <= 0x109c
}

func isPrepend(r rune) bool {
	return unicode.Is(unicode.Prepended_Concatenation_Mark, r)
}

// hangulJoins reports whether two Hangul characters belong to one syllable.
func hangulJoins(a, b rune) bool {
	leading := func(r rune) bool { return 0x1100 <= r && r <= 0x115f || 0xa960 <= r && r <= 0xa97c }
	vowel := func(r rune) bool { return 0x1160 <= r && r <= 0x11a7 || 0xd7b0 <= r && r <= 0xd7c6 }
	trailing := func(r rune) bool { return 0x11a8 <= r && r <= 0x11ff || 0xd7cb <= r && r <= 0xd7fb }
	syllable := func(r rune) bool { return 0xac00 <= r && r <= 0xd7a3 }
	open := func(r rune) bool { return syllable(r) && (r-0xac00)%28 == 0 }
	switch {
	case leading(a):
		return leading(b) || vowel(b) || syllable(b)
	case open(a), vowel(a):
		return vowel(b) || trailing(b)
	case syllable(a), trailing(a):
		return trailing(b)
	}
	return false
}
