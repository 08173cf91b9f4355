package tokenizer

import (
	"slices"
	"strings"
)

// A byteTrie finds the tokens that a text starts with. The children of a node
// lie next to each other, in the order of their byte.
type byteTrie struct{ nodes []byteNode }

type byteNode struct {
	token    int32 // the token that ends here, or -1
	children int32 // the first child
	count    uint16
	label    byte
}

// build makes the trie of a vocabulary, whose empty token it leaves out.
func (t *byteTrie) build(vocab map[string]int32) {
	words := make([]string, 0, len(vocab))
	for word := range vocab {
		if word != "" {
			words = append(words, word)
		}
	}
	slices.SortFunc(words, strings.Compare)
	type job struct {
		low, high int // words below the node
		depth     int // bytes that they share
	}
	t.nodes = []byteNode{{token: -1}}
	jobs := []job{{0, len(words), 0}}
	for at := 0; at < len(jobs); at++ {
		j := jobs[at]
		if j.low < j.high && len(words[j.low]) == j.depth {
			t.nodes[at].token = vocab[words[j.low]]
			j.low++
		}
		t.nodes[at].children = int32(len(t.nodes))
		for low := j.low; low < j.high; {
			label := words[low][j.depth]
			high := low + 1
			for high < j.high && words[high][j.depth] == label {
				high++
			}
			t.nodes = append(t.nodes, byteNode{token: -1, label: label})
			t.nodes[at].count++
			jobs = append(jobs, job{low, high, j.depth + 1})
			low = high
		}
	}
}

// child is the node behind a byte, or -1.
func (t *byteTrie) child(node int32, label byte) int32 {
	n := &t.nodes[node]
	low, high := n.children, n.children+int32(n.count)
	for low < high {
		middle := (low + high) / 2
		if t.nodes[middle].label < label {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if low < n.children+int32(n.count) && t.nodes[low].label == label {
		return low
	}
	return -1
}

// longest is the longest token that text starts with, and its length; 0 where
// there is none.
func (t *byteTrie) longest(text string) (token int32, length int) {
	node := int32(0)
	for i := range len(text) {
		if node = t.child(node, text[i]); node < 0 {
			break
		}
		if id := t.nodes[node].token; id >= 0 {
			token, length = id, i+1
		}
	}
	return token, length
}
