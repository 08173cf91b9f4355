package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// A model turns a piece of text into tokens, which it appends to dst.
type model interface {
	encode(dst []int32, text string, w *worker) ([]int32, error)
}

// errNoUnknown says that a text holds something outside the vocabulary.
var errNoUnknown = errors.New("the text has a character that is not in the vocabulary, and the tokenizer has no unknown token")

// bpe is byte pair encoding: a piece starts as characters (or bytes), and pairs
// merge in the order of their rank.
type bpe struct {
	vocab map[string]int32
	table *mergeTable

	unk          int32  // -1: none in the vocabulary
	unkName      string // what the file names as unknown token; empty: unknown characters are dropped
	fuseUnk      bool   // neighbouring unknown characters give one unknown token
	byteFallback bool   // unknown characters become the tokens <0x00> to <0xFF>
	ignoreMerges bool   // a piece that is a token is that token
	prefix       string // marks characters that do not begin the piece
	suffix       string // marks the last character of the piece

	// raw says that pieces are bytes, each of which stands for its character of
	// the GPT-2 alphabet.
	raw      bool
	alphabet [256]int32       // raw: the token of each byte
	whole    map[string]int32 // raw and ignoreMerges: tokens by the bytes they stand for

	characters runeTable  // tokens of one character
	fallback   [256]int32 // tokens <0x00> to <0xFF>, -1 where missing
	joints     jointSet
}

// bpeMerge is a merge as files have it: two tokens by name.
type bpeMerge struct{ left, right string }

// bpeConfig is what makes a bpe.
type bpeConfig struct {
	vocab          map[string]int32
	merges         []bpeMerge
	unk            string
	prefix, suffix string
	fuseUnk        bool
	byteFallback   bool
	ignoreMerges   bool
	raw            bool
}

// newBPE checks the merges against the vocabulary.
func newBPE(c bpeConfig) (*bpe, error) {
	m := newBareBPE(c)
	m.table = newMergeTable(len(c.merges))
	for rank, pair := range c.merges {
		left, ok := c.vocab[pair.left]
		if !ok {
			return nil, fmt.Errorf("merge %d is of %q and %q, but %q is not in the vocabulary", rank, pair.left, pair.right, pair.left)
		}
		right, ok := c.vocab[pair.right]
		if !ok {
			return nil, fmt.Errorf("merge %d is of %q and %q, but %q is not in the vocabulary", rank, pair.left, pair.right, pair.right)
		}
		if !strings.HasPrefix(pair.right, c.prefix) {
			return nil, fmt.Errorf("merge %d is of %q and %q, but the second does not begin with the continuing_subword_prefix %q", rank, pair.left, pair.right, c.prefix)
		}
		joined := pair.left + pair.right[len(c.prefix):]
		id, ok := c.vocab[joined]
		if !ok {
			return nil, fmt.Errorf("merge %d is of %q and %q, but %q is not in the vocabulary", rank, pair.left, pair.right, joined)
		}
		m.addMerge(left, right, pair, merge{int32(rank), id})
	}
	return m, nil
}

// newBareBPE is a bpe without merges; table is nil.
func newBareBPE(c bpeConfig) *bpe {
	m := &bpe{
		vocab: c.vocab, unk: -1, unkName: c.unk, fuseUnk: c.fuseUnk, byteFallback: c.byteFallback,
		ignoreMerges: c.ignoreMerges, prefix: c.prefix, suffix: c.suffix,
		raw: c.raw && c.prefix == "" && c.suffix == "",
	}
	m.joints.init()
	if id, ok := c.vocab[c.unk]; ok && c.unk != "" {
		m.unk = id
	}
	for b := range 256 {
		m.alphabet[b], m.fallback[b] = -1, -1
		if id, ok := c.vocab[string(byteRune[b])]; ok {
			m.alphabet[b] = id
		}
		if id, ok := c.vocab[fmt.Sprintf("<0x%02X>", b)]; ok {
			m.fallback[b] = id
		}
	}
	m.characters.init()
	for token, id := range c.vocab {
		if r, size := utf8.DecodeRuneInString(token); size == len(token) && size > 0 {
			m.characters.set(r, id)
		}
	}
	if m.raw && m.ignoreMerges {
		m.whole = make(map[string]int32, len(c.vocab))
		for token, id := range c.vocab {
			if text := appendByteLevel(nil, token); toByteLevel(string(text)) == token {
				m.whole[string(text)] = id
			}
		}
	}
	return m
}

// addMerge adds a merge of two tokens and the joint that it crosses.
func (m *bpe) addMerge(left, right int32, pair bpeMerge, result merge) {
	m.table.put(left, right, result)
	before, _ := utf8.DecodeLastRuneInString(pair.left)
	after, _ := utf8.DecodeRuneInString(pair.right)
	m.joints.add(before, after)
}

func (m *bpe) encode(dst []int32, text string, w *worker) ([]int32, error) {
	if m.ignoreMerges {
		tokens := m.vocab
		if m.raw {
			tokens = m.whole
		}
		if id, ok := tokens[text]; ok {
			return append(dst, id), nil
		}
	}
	if m.raw {
		return m.encodeBytes(dst, text, w)
	}
	return m.encodeCharacters(dst, text, w)
}

// encodeBytes encodes a piece of byte-level BPE. A long piece is cut where no
// merge can cross: the parts do not depend on each other, and most are short.
func (m *bpe) encodeBytes(dst []int32, text string, w *worker) ([]int32, error) {
	var err error
	for text != "" {
		n := len(text)
		if n > maxCachedWord {
			for n = 1; n < len(text); n++ {
				before, after := text[n-1], text[n]
				if m.alphabet[before] >= 0 && m.alphabet[after] >= 0 && !m.joints.has(byteRune[before], byteRune[after]) {
					break
				}
			}
		}
		if dst, err = m.encodeBytesPart(dst, text[:n], w); err != nil {
			return dst, err
		}
		text = text[n:]
	}
	return dst, nil
}

func (m *bpe) encodeBytesPart(dst []int32, text string, w *worker) ([]int32, error) {
	if ids, ok := w.cache.get(text); ok {
		return append(dst, ids...), nil
	}
	ids := w.ids[:0]
	for i := range len(text) {
		id := m.alphabet[text[i]]
		if id < 0 {
			return m.encodePart(dst, toByteLevel(text), w)
		}
		ids = append(ids, id)
	}
	w.ids = ids
	return m.finish(dst, text, ids, w), nil
}

// finish merges the first tokens of a part and remembers the result.
func (m *bpe) finish(dst []int32, text string, ids []int32, w *worker) []int32 {
	w.merger.table = m.table
	ids = w.merger.merge(ids)
	w.cache.put(text, ids)
	return append(dst, ids...)
}

// encodeCharacters encodes a piece of BPE on characters, cut as in encodeBytes.
func (m *bpe) encodeCharacters(dst []int32, text string, w *worker) ([]int32, error) {
	if m.prefix != "" || m.suffix != "" {
		return m.encodePart(dst, text, w)
	}
	start, before, known := 0, rune(-1), false
	for i, after := range text {
		nowKnown := m.characters.get(after) >= 0
		if known && nowKnown && !m.joints.has(before, after) {
			var err error
			if dst, err = m.encodePart(dst, text[start:i], w); err != nil {
				return dst, err
			}
			start = i
		}
		before, known = after, nowKnown
	}
	return m.encodePart(dst, text[start:], w)
}

func (m *bpe) encodePart(dst []int32, text string, w *worker) ([]int32, error) {
	if ids, ok := w.cache.get(text); ok {
		return append(dst, ids...), nil
	}
	ids := w.ids[:0]
	unknown := 0 // unknown tokens to add before the next known one
	for i, r := range text {
		id := int32(-1)
		size := utf8.RuneLen(r)
		first, last := i == 0, i+size == len(text)
		decorated := text[i : i+size]
		if !first && m.prefix != "" || last && m.suffix != "" {
			if !first {
				decorated = m.prefix + decorated
			}
			if last {
				decorated += m.suffix
			}
			if known, ok := m.vocab[decorated]; ok {
				id = known
			}
		} else {
			id = m.characters.get(r)
		}
		if id >= 0 {
			for ; unknown > 0; unknown-- {
				ids = append(ids, m.unk)
			}
			ids = append(ids, id)
			continue
		}
		if m.byteFallback {
			n := len(ids)
			for j := range len(decorated) {
				if m.fallback[decorated[j]] < 0 {
					ids = ids[:n]
					break
				}
				ids = append(ids, m.fallback[decorated[j]])
			}
			if len(ids) > n {
				continue
			}
		}
		if m.unkName == "" {
			continue // the reference drops the character
		}
		if m.unk < 0 {
			return dst, errNoUnknown
		}
		if unknown == 0 || !m.fuseUnk {
			unknown++
		}
	}
	for ; unknown > 0; unknown-- {
		ids = append(ids, m.unk)
	}
	w.ids = ids
	return m.finish(dst, text, ids, w), nil
}

// A runeTable maps characters to tokens.
type runeTable struct {
	low  []int32 // below lowRunes; -1 is no token
	high map[rune]int32
}

// lowRunes covers the alphabets of most languages and U+2581.
const lowRunes = 0x3000

func (t *runeTable) init() {
	t.low = make([]int32, lowRunes)
	for i := range t.low {
		t.low[i] = -1
	}
	t.high = make(map[rune]int32)
}

func (t *runeTable) set(r rune, id int32) {
	if r < lowRunes {
		t.low[r] = id
	} else {
		t.high[r] = id
	}
}

// get is the token of a character, or -1.
func (t *runeTable) get(r rune) int32 {
	if r < lowRunes {
		return t.low[r]
	}
	if id, ok := t.high[r]; ok {
		return id
	}
	return -1
}

// A jointSet holds the pairs of characters between which some merge joins two
// tokens. Between any other two characters, no token ever crosses.
type jointSet struct {
	low  []uint64 // a bit for each pair of the characters below jointRunes, and U+2581
	high map[uint64]struct{}
}

// jointRunes covers the GPT-2 alphabet; U+2581 takes the place after it.
const jointRunes = len(runeByte)

func (s *jointSet) init() {
	s.low = make([]uint64, (jointRunes+1)*(jointRunes+1)/64+1)
	s.high = make(map[uint64]struct{})
}

// bit is the place of a pair in low, or negative.
func (s *jointSet) bit(before, after rune) int {
	index := func(r rune) int {
		switch {
		case r < rune(jointRunes):
			return int(r)
		case r == '\u2581':
			return jointRunes
		}
		return -1 << 20
	}
	return index(before)*(jointRunes+1) + index(after)
}

func (s *jointSet) add(before, after rune) {
	if bit := s.bit(before, after); bit >= 0 {
		s.low[bit/64] |= 1 << (bit % 64)
	} else {
		s.high[uint64(before)<<32|uint64(after)] = struct{}{}
	}
}

func (s *jointSet) has(before, after rune) bool {
	if bit := s.bit(before, after); bit >= 0 {
		return s.low[bit/64]&(1<<(bit%64)) != 0
	}
	_, ok := s.high[uint64(before)<<32|uint64(after)]
	return ok
}

// Bounds of a wordCache.
const (
	maxCachedWord  = 64      // bytes of a word
	maxCacheWords  = 1 << 16 // words
	maxCacheTokens = 1 << 19 // tokens of all words
)

// A wordCache remembers the tokens of words. When it is full it starts anew.
type wordCache struct {
	words map[string]span
	ids   []int32
}

// A span is a range of wordCache.ids.
type span struct{ start, end int32 }

func (c *wordCache) get(word string) ([]int32, bool) {
	if len(word) > maxCachedWord {
		return nil, false
	}
	s, ok := c.words[word]
	return c.ids[s.start:s.end], ok
}

func (c *wordCache) put(word string, ids []int32) {
	if len(word) > maxCachedWord {
		return
	}
	if len(c.words) >= maxCacheWords || len(c.ids) > maxCacheTokens || c.words == nil {
		c.words = make(map[string]span)
		c.ids = nil
	}
	start := len(c.ids)
	c.ids = append(c.ids, ids...)
	c.words[strings.Clone(word)] = span{int32(start), int32(len(c.ids))}
}
