package tokenizer

import "unicode/utf8"

// wordPiece takes the longest token that a word begins with, again and again.
type wordPiece struct {
	vocab         map[string]int32
	unk           int32  // -1: none
	prefix        string // marks tokens that continue a word
	maxCharacters int    // longer words are unknown
	longest       int    // bytes of the longest token
}

func newWordPiece(vocab map[string]int32, unk, prefix string, maxCharacters int) *wordPiece {
	m := &wordPiece{vocab: vocab, unk: -1, prefix: prefix, maxCharacters: maxCharacters}
	if id, ok := vocab[unk]; ok {
		m.unk = id
	}
	for token := range vocab {
		m.longest = max(m.longest, len(token))
	}
	return m
}

func (m *wordPiece) encode(dst []int32, text string, w *worker) ([]int32, error) {
	if ids, ok := w.cache.get(text); ok {
		return append(dst, ids...), nil
	}
	before := len(dst)
	bad := utf8.RuneCountInString(text) > m.maxCharacters
	key := make([]byte, 0, 64)
	for start := 0; start < len(text) && !bad; {
		key = key[:0]
		if start > 0 {
			key = append(key, m.prefix...)
		}
		n := len(key)
		end := min(len(text), start+m.longest)
		for end < len(text) && !utf8.RuneStart(text[end]) {
			end++
		}
		key = append(key, text[start:end]...)
		id, found := int32(0), false
		for len(key) > n {
			if id, found = m.vocab[string(key)]; found {
				break
			}
			_, size := utf8.DecodeLastRune(key)
			key = key[:len(key)-size]
		}
		dst = append(dst, id)
		start += len(key) - n
		bad = !found
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

func (m *wordLevel) encode(dst []int32, text string, w *worker) ([]int32, error) {
	id, ok := m.vocab[text]
	if !ok {
		id = m.unk
	}
	if id < 0 {
		return dst, errNoUnknown
	}
	return append(dst, id), nil
}
