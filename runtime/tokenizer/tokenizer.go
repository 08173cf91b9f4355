// Package tokenizer turns text into token ids and back.
//
// A tokenizer is read from the tokenizer.json of Hugging Face's tokenizers
// library, from the vocabulary in a GGUF file (the tokenizer.ggml keys), or from
// the vocab.json and merges.txt of GPT-2's older tokenizer (VocabMerges):
//
//   - https://huggingface.co/docs/tokenizers/components
//   - https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer
//
// Text passes a pipeline: added tokens are cut out, the rest is normalized, cut
// into pieces by the pre-tokenizers, and each piece is turned into tokens by the
// model (BPE, Unigram, WordPiece or WordLevel); the post-processor adds tokens
// such as the beginning of the sequence. A TextEscape comes before all. Ids are those that the library gives.
// What the library can do and this package cannot is refused by name when the
// file is read; a file is never read in part.
//
// A Tokenizer may be used by several goroutines at once.
//
// # Security
//
// Files and texts are not trusted. Nothing is allocated by what a file claims:
// memory stays within a small multiple of the file's size, and encoding within a
// small multiple of the text's. A pattern of a file that backtracks without end
// makes Encode fail after a time that depends on the length of the text.
package tokenizer

import (
	"fmt"
	"math"
	"sync"
)

// A Tokenizer turns text into token ids and back. FromJSON and FromVocab make one.
type Tokenizer struct {
	escape        TextEscape
	normalizer    normalizer // nil: none
	preTokenizers []preTokenizer
	model         model
	decoder       []decodeStep

	raw        addedSet // added tokens that are looked for before normalization
	normalized addedSet // and after

	prefix, suffix []int32 // what the post-processor adds

	tokens  []string // by id, as the decoder takes them
	known   []bool   // by id: false is a hole
	special []bool   // by id
	skipped []bool   // by id: left out when decoding without special tokens
	ids     map[string]int32

	definition definition // for Vocab

	roles   roles
	workers sync.Pool // of *worker
}

// roles are the tokens with a part of their own; -1 is none.
type roles struct{ bos, eos, unk, pad, sep, cls, mask, eot int32 }

var noRoles = roles{-1, -1, -1, -1, -1, -1, -1, -1}

// EncodeOptions says how Encode treats special tokens.
type EncodeOptions struct {
	// AddSpecial adds what the tokenizer's post-processor puts around a text:
	// the token for the beginning of the sequence and the like.
	AddSpecial bool
	// ParseSpecial takes the text of special tokens inside the prompt as these
	// tokens. Without it, a prompt cannot contain special tokens; added tokens
	// that are not special are recognised all the same.
	ParseSpecial bool
}

// A worker is the memory of one Encode call, kept for the next.
type worker struct {
	t      *Tokenizer
	out    []int32
	ids    []int32 // tokens of the part at hand
	cache  wordCache
	merger merger
	best   []bestPath // unigram
	enter  emitter    // first stage of the pre-tokenizers
}

func (t *Tokenizer) newWorker() *worker {
	w := &worker{t: t}
	w.enter = func(p piece) (err error) {
		w.out, err = t.model.encode(w.out, p.text, w)
		return err
	}
	for i := len(t.preTokenizers) - 1; i >= 0; i-- {
		stage, next := t.preTokenizers[i], w.enter
		w.enter = func(p piece) error { return stage.split(p, next) }
	}
	return w
}

// maxKeptTokens bounds the buffers that a worker keeps between two texts.
const maxKeptTokens = 1 << 20

// release returns a worker to the pool, without the buffers of a very long text.
func (t *Tokenizer) release(w *worker) {
	w.out = nil
	if cap(w.ids) > maxKeptTokens {
		w.ids = nil
	}
	if cap(w.merger.pairs) > maxKeptTokens {
		w.merger = merger{}
	}
	if cap(w.best) > maxKeptTokens {
		w.best = nil
	}
	t.workers.Put(w)
}

// maxText is the longest text in bytes: places in it are 32 bit numbers.
const maxText = math.MaxInt32 / 4

// Encode is the token ids of a text. In a text that is not UTF-8, each longest
// piece that could begin a character, and each other wrong byte, is read as
// U+FFFD. An error means that the text has a character that the tokenizer
// cannot represent, is longer than 512 MiB (with its TextEscape too), or that a
// pattern in the tokenizer's file takes too long on it.
func (t *Tokenizer) Encode(text string, o EncodeOptions) ([]int32, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("tokenizer: text of %d bytes; at most %d can be encoded at once", len(text), maxText)
	}
	text = toValid(text)
	if t.escape == EscapeJSON {
		if n := escapedLen(text); n > maxText {
			return nil, fmt.Errorf("tokenizer: text of %d bytes when escaped as JSON; at most %d can be encoded at once", n, maxText)
		}
		text = escapeJSON(text)
	}
	w, ok := t.workers.Get().(*worker)
	if !ok {
		w = t.newWorker()
	}
	w.out = make([]int32, 0, len(text)/4+8)
	if o.AddSpecial {
		w.out = append(w.out, t.prefix...)
	}
	budget := newBudget(len(text))
	token := func(id int32) { w.out = append(w.out, id) }
	err := t.raw.split(text, o.ParseSpecial, func(start, end int) error {
		p := piece{text[start:end], start == 0, budget}
		if t.normalizer != nil {
			var err error
			if p, err = t.normalizer.normalize(p); err != nil {
				return err
			}
		}
		return t.normalized.split(p.text, o.ParseSpecial, func(start, end int) error {
			return emitRange(p, start, end, w.enter)
		}, token)
	}, token)
	if o.AddSpecial {
		w.out = append(w.out, t.suffix...)
	}
	out := w.out
	t.release(w)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return out, nil
}

// Decode is the text of token ids; with skipSpecial, special tokens are left
// out. Bytes that are not UTF-8 become U+FFFD. It fails on an id that is not in
// the vocabulary.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) (string, error) {
	tokens := make([]string, 0, len(ids))
	for _, id := range ids {
		token, ok := t.Token(id)
		if !ok {
			return "", t.unknownID(id)
		}
		if !skipSpecial || !t.skipped[id] {
			tokens = append(tokens, token)
		}
	}
	text := decodeAll(t.decoder, tokens)
	if t.escape == EscapeJSON {
		text = unescapeJSON(text)
	}
	return text, nil
}

func (t *Tokenizer) unknownID(id int32) error {
	return fmt.Errorf("tokenizer: token id %d is not in the vocabulary, whose ids are 0 to %d", id, len(t.tokens)-1)
}

// VocabSize is the highest token id plus one. The embedding of a model has at
// least so many rows, and may have more.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// Token is the token with an id, as the vocabulary writes it: "Ġthe", "▁the",
// "##ing", "<0x0A>". It is false for an id that is not in the vocabulary.
func (t *Tokenizer) Token(id int32) (string, bool) {
	if id < 0 || int(id) >= len(t.tokens) || !t.known[id] {
		return "", false
	}
	return t.tokens[id], true
}

// ID is the id of a token, spelled as Token does.
func (t *Tokenizer) ID(token string) (int32, bool) {
	id, ok := t.ids[token]
	return id, ok
}

// IsSpecial reports whether a token is markup rather than text, such as the end
// of the sequence. It is false for an id that is not in the vocabulary.
func (t *Tokenizer) IsSpecial(id int32) bool {
	return id >= 0 && int(id) < len(t.special) && t.special[id]
}

func role(id int32) (int32, bool) { return id, id >= 0 }

// BOS is the token that begins a sequence, where it is known: from the GGUF key,
// or because the post-processor adds it.
func (t *Tokenizer) BOS() (int32, bool) { return role(t.roles.bos) }

// EOS is the token that ends a sequence, where it is known; see BOS.
func (t *Tokenizer) EOS() (int32, bool) { return role(t.roles.eos) }

// UNK is the token for what the vocabulary does not have, where there is one.
func (t *Tokenizer) UNK() (int32, bool) { return role(t.roles.unk) }

// PAD is the token that fills sequences, where it is known.
func (t *Tokenizer) PAD() (int32, bool) { return role(t.roles.pad) }

// EOT is the token that ends a turn of a conversation, where it is known.
func (t *Tokenizer) EOT() (int32, bool) { return role(t.roles.eot) }
