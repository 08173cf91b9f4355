package tokenizer

import (
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// unknownPenalty is how much less than the worst token an unknown character
// scores.
const unknownPenalty = 10

// unigram splits a piece into the tokens with the highest sum of scores
// (logarithms of probabilities).
type unigram struct {
	ids          map[string]int32
	scores       []float64 // by id
	trie         byteTrie
	unk          int32 // -1: none
	unkScore     float64
	byteFallback bool
	fallback     [256]int32 // tokens <0x00> to <0xFF>, -1 where missing
}

// newUnigram makes the model of tokens and scores, by id.
func newUnigram(tokens []string, scores []float64, unk int32, byteFallback bool) *unigram {
	m := &unigram{ids: make(map[string]int32, len(tokens)), scores: scores, unk: unk, byteFallback: byteFallback}
	lowest := math.Inf(1)
	for id, token := range tokens {
		m.ids[token] = int32(id) // of equal tokens the last, as in the reference
		lowest = min(lowest, scores[id])
	}
	m.unkScore = lowest - unknownPenalty
	for b := range 256 {
		m.fallback[b] = -1
		if id, ok := m.ids[fmt.Sprintf("<0x%02X>", b)]; ok {
			m.fallback[b] = id
		}
	}
	m.trie.build(m.ids)
	return m
}

// A bestPath is the best way to split a text up to some place.
type bestPath struct {
	score float64
	start int32 // where its last token starts; -1: no way found yet
	id    int32 // its last token
}

func (m *unigram) encode(dst []int32, text string, w *worker) ([]int32, error) {
	if ids, ok := w.cache.get(text); ok {
		return append(dst, ids...), nil
	}
	best := append(w.best[:0], make([]bestPath, len(text)+1)...)
	w.best = best
	for i := 1; i < len(best); i++ {
		best[i].start = -1
	}
	offer := func(start, end int, id int32, score float64) {
		score += best[start].score
		if p := &best[end]; p.start < 0 || score > p.score {
			*p = bestPath{score, int32(start), id}
		}
	}
	for start := 0; start < len(text); {
		_, size := utf8.DecodeRuneInString(text[start:])
		single := false // a token is just this character
		node := int32(0)
		for end := start; end < len(text); {
			if node = m.trie.child(node, text[end]); node < 0 {
				break
			}
			end++
			if id := m.trie.nodes[node].token; id >= 0 {
				offer(start, end, id, m.scores[id])
				single = single || end == start+size
			}
		}
		if !single {
			if m.unk < 0 {
				return dst, errNoUnknown
			}
			offer(start, start+size, m.unk, m.unkScore)
		}
		start += size
	}
	// Walk back, and join neighbouring unknown tokens.
	ids := w.ids[:0]
	for end := len(text); end > 0; {
		p := best[end]
		start := int(p.start)
		if p.id == m.unk {
			for start > 0 && best[start].id == m.unk {
				start = int(best[start].start)
			}
			ids = m.appendUnknown(ids, text[start:end])
		} else {
			ids = append(ids, p.id)
		}
		end = start
	}
	slices.Reverse(ids)
	w.ids = ids
	w.cache.put(text, ids)
	return append(dst, ids...), nil
}

// appendUnknown appends the tokens of a stretch of unknown characters, the last
// first.
func (m *unigram) appendUnknown(ids []int32, text string) []int32 {
	if id, ok := m.ids[text]; ok {
		return append(ids, id)
	}
	if m.byteFallback {
		n := len(ids)
		for i := len(text) - 1; i >= 0 && m.fallback[text[i]] >= 0; i-- {
			ids = append(ids, m.fallback[text[i]])
		}
		if len(ids)-n == len(text) {
			return ids
		}
		ids = ids[:n]
	}
	return append(ids, m.unk)
}
