package tokenizer

import (
	"encoding/json"
	"fmt"
	"math"
)

// A definition keeps of a tokenizer what Vocab needs.
type definition struct {
	model     string // BPE, Unigram, WordPiece or WordLevel
	modelSize int    // tokens of the model, without added ones
	added     []addedToken
	bpe       bpeConfig
	scores    []float64 // Unigram, and BPE of SentencePiece
	prefix    string    // WordPiece
}

// parseModel reads the model of a tokenizer.json.
func (t *Tokenizer) parseModel(raw json.RawMessage) error {
	o := readObject(raw, "model")
	var kind string
	if !o.get("type", &kind) && o.err == nil {
		// Files of before 2020 leave the type out.
		switch {
		case o.has("merges"):
			kind = "BPE"
		case o.has("unk_id"):
			kind = "Unigram"
		case o.has("max_input_chars_per_word"):
			kind = "WordPiece"
		default:
			return malformed("model", "the field \"type\" is missing")
		}
	}
	if o.err != nil {
		return o.err
	}
	t.definition.model = kind
	switch kind {
	case "BPE":
		return t.parseBPE(o)
	case "Unigram":
		return t.parseUnigram(o)
	case "WordPiece", "WordLevel":
		return t.parseWords(o, kind)
	}
	return unsupported("model.type", "the model %q is not supported", kind)
}

// vocabField reads the vocabulary of a model.
func (t *Tokenizer) vocabField(o *object) map[string]int32 {
	raw := o.take("vocab")
	if raw == nil && o.err == nil {
		o.err = malformed(o.where, "the field \"vocab\" is missing")
	}
	if o.err != nil {
		return nil
	}
	vocab, err := readVocab(raw, "model.vocab")
	if err == nil {
		err = t.setVocab(vocab, "model.vocab")
	}
	o.err = err
	return vocab
}

func (t *Tokenizer) parseBPE(o *object) error {
	var c bpeConfig
	var dropout float64
	if o.get("dropout", &dropout) && dropout != 0 {
		return unsupported("model.dropout", "found %g; random merges are not supported", dropout)
	}
	o.get("unk_token", &c.unk)
	o.get("continuing_subword_prefix", &c.prefix)
	o.get("end_of_word_suffix", &c.suffix)
	o.get("fuse_unk", &c.fuseUnk)
	o.get("byte_fallback", &c.byteFallback)
	o.get("ignore_merges", &c.ignoreMerges)
	merges := o.take("merges")
	c.vocab = t.vocabField(o)
	if err := o.finish(); err != nil {
		return err
	}
	if merges == nil {
		return malformed("model", "the field \"merges\" is missing")
	}
	var err error
	if c.merges, err = readMerges(merges, "model.merges"); err != nil {
		return err
	}
	return t.setBPE(c, "model.merges")
}

// setBPE makes the model, on bytes where the last pre-tokenizer is ByteLevel.
func (t *Tokenizer) setBPE(c bpeConfig, where string) error {
	if n := len(t.preTokenizers); n > 0 && c.prefix == "" && c.suffix == "" {
		if last, ok := t.preTokenizers[n-1].(byteLevel); ok {
			last.raw, c.raw = true, true
			t.preTokenizers[n-1] = last
		}
	}
	m, err := newBPE(c)
	if err != nil {
		return malformed(where, "%v", err)
	}
	t.model = m
	t.roles.unk = m.unk
	c.raw = m.raw
	t.definition.bpe = c
	return nil
}

func (t *Tokenizer) parseUnigram(o *object) error {
	unk := int64(-1)
	byteFallback := false
	o.get("unk_id", &unk)
	o.get("byte_fallback", &byteFallback)
	raw := o.take("vocab")
	if err := o.finish(); err != nil {
		return err
	}
	tokens, scores, err := readScores(raw, "model.vocab")
	if err != nil {
		return err
	}
	if unk < -1 || unk >= int64(len(tokens)) {
		return malformed("model.unk_id", "found %d, but there are %d tokens", unk, len(tokens))
	}
	t.setUnigram(tokens, scores, int32(unk), byteFallback)
	return nil
}

// readScores reads an array of pairs of a token and its score.
func readScores(raw json.RawMessage, where string) (tokens []string, scores []float64, err error) {
	err = elements(raw, where, func(i int, pair json.RawMessage) error {
		var text string
		var score float64
		good := true
		n := 0
		err := elements(pair, fmt.Sprintf("%s[%d]", where, i), func(k int, value json.RawMessage) error {
			switch n++; k {
			case 0:
				text, good = stringValue(value)
			case 1:
				good = good && string(value) != "null" && json.Unmarshal(value, &score) == nil
			}
			return nil
		})
		if err != nil {
			return err
		}
		if !good || n != 2 {
			return malformed(fmt.Sprintf("%s[%d]", where, i), "found %.40s, expected a token and its score", pair)
		}
		if err := checkLength(text, int32(i), where); err != nil {
			return err
		}
		tokens, scores = append(tokens, text), append(scores, score)
		return nil
	})
	return tokens, scores, err
}

// maxTokenLength bounds the length in bytes of the tokens of Unigram and
// WordPiece: the time to encode is proportional to it, in the worst case.
const maxTokenLength = 4096

func checkLength(token string, id int32, where string) error {
	if len(token) > maxTokenLength {
		return unsupported(where, "token %d has %d bytes; at most %d are supported", id, len(token), maxTokenLength)
	}
	return nil
}

// setUnigram enters tokens and scores, by id.
func (t *Tokenizer) setUnigram(tokens []string, scores []float64, unk int32, byteFallback bool) {
	m := newUnigram(tokens, scores, unk, byteFallback)
	t.model = m
	t.tokens = append([]string(nil), tokens...)
	t.known = make([]bool, len(tokens))
	for i := range t.known {
		t.known[i] = true
	}
	t.special = make([]bool, len(tokens))
	t.skipped = make([]bool, len(tokens))
	t.ids = make(map[string]int32, len(tokens))
	for token, id := range m.ids {
		t.ids[token] = id
	}
	t.roles.unk = unk
	t.definition.model = "Unigram"
	t.definition.modelSize = len(tokens)
	t.definition.scores = scores
	t.definition.bpe.byteFallback = byteFallback
}

func (t *Tokenizer) parseWords(o *object, kind string) error {
	unk, prefix, maxCharacters := "[UNK]", "##", 100
	o.must("unk_token", &unk)
	if kind == "WordPiece" {
		o.must("continuing_subword_prefix", &prefix)
		o.must("max_input_chars_per_word", &maxCharacters)
	}
	vocab := t.vocabField(o)
	if err := o.finish(); err != nil {
		return err
	}
	if maxCharacters < 0 || maxCharacters > math.MaxInt32 {
		return malformed("model.max_input_chars_per_word", "found %d", maxCharacters)
	}
	t.roles.unk = lookUp(vocab, unk)
	if kind == "WordLevel" {
		t.model = &wordLevel{vocab, t.roles.unk}
		return nil
	}
	for token, id := range vocab {
		if err := checkLength(token, id, "model.vocab"); err != nil {
			return err
		}
	}
	t.model = newWordPiece(vocab, unk, prefix, maxCharacters)
	t.definition.prefix = prefix
	return nil
}
