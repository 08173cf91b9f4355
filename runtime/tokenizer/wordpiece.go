package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// wordPiece takes the longest token that a word begins with, again and again.
type wordPiece struct {
	first         byteTrie // tokens that begin a word
	later         byteTrie // tokens that continue one, without their prefix
	unk           int32    // -1: none
	maxCharacters int      // longer words are unknown
}

func newWordPiece(vocab map[string]int32, unk, prefix string, maxCharacters int) *wordPiece {
	m := &wordPiece{unk: lookUp(vocab, unk), maxCharacters: maxCharacters}
	later := make(map[string]int32)
	for token, id := range vocab {
		if rest, ok := strings.CutPrefix(token, prefix); ok {
			later[rest] = id
		}
	}
	m.first.build(vocab)
	m.later.build(later)
	return m
}

// lookUp is the id of a token, or -1.
func lookUp(vocab map[string]int32, token string) int32 {
	if id, ok := vocab[token]; ok {
		return id
	}
	return -1
}

func (m *wordPiece) encode(dst []int32, text string, w *worker) ([]int32, error) {
	if ids, ok := w.cache.get(text); ok {
		return append(dst, ids...), nil
	}
	before := len(dst)
	bad := utf8.RuneCountInString(text) > m.maxCharacters
	trie := &m.first
	for rest := text; rest != "" && !bad; trie = &m.later {
		id, length := trie.longest(rest)
		bad = length == 0
		dst = append(dst, id)
		rest = rest[length:]
	}
	if bad {
		if m.unk < 0 {
			return dst, errNoUnknown
		}
		dst = append(dst[:before], m.unk)
	}
	w.cache.put(text, dst[before:])
	return dst, nil
}

// wordLevel has a token for each word.
type wordLevel struct {
	vocab map[string]int32
	unk   int32 // -1: none
}

func (m *wordLevel) encode(dst []int32, text string, _ *worker) ([]int32, error) {
	id, ok := m.vocab[text]
	if !ok {
		id = m.unk
	}
	if id < 0 {
		return dst, errNoUnknown
	}
	return append(dst, id), nil
}
