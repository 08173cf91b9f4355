package model

import (
	"fmt"

	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// endKeys are the keys of a GGUF file that name a token which ends a text.
var endKeys = []string{gguf.KeyEOS, gguf.KeyEOT, gguf.KeyEOM}

// MaxEndTokens is the number of end tokens that a GGUF file can name.
var MaxEndTokens = len(endKeys)

// KV are the generation settings as GGUF metadata. End tokens beyond
// MaxEndTokens are left out.
func (g *Generation) KV() []gguf.KV {
	var kv []gguf.KV
	float := func(key string, v *float32) {
		if v != nil {
			kv = append(kv, gguf.KV{Key: key, Value: gguf.ValueOf(*v)})
		}
	}
	id := func(key string, v int) {
		if v >= 0 {
			kv = append(kv, gguf.KV{Key: key, Value: gguf.ValueOf(uint32(v))})
		}
	}
	float(gguf.KeySamplingTemp, g.Temperature)
	if g.TopK != nil {
		kv = append(kv, gguf.KV{Key: gguf.KeySamplingTopK, Value: gguf.ValueOf(int32(*g.TopK))})
	}
	float(gguf.KeySamplingTopP, g.TopP)
	float(gguf.KeySamplingMinP, g.MinP)
	id(gguf.KeyBOS, g.BOS)
	for i, end := range g.EOS[:min(len(g.EOS), MaxEndTokens)] {
		id(endKeys[i], end)
	}
	id(gguf.KeyPadding, g.PAD)
	return kv
}

// generationOfKV reads the settings back.
func generationOfKV(f keyValues) (Generation, error) {
	g := Generation{BOS: -1, PAD: -1}
	var first error
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	id := func(key string) int {
		n, present, err := f.Uint32(key)
		note(err)
		if !present {
			return -1
		}
		return int(n)
	}
	float := func(key string) *float32 {
		x, present, err := f.Float32(key)
		note(err)
		if !present {
			return nil
		}
		return &x
	}
	g.BOS, g.PAD = id(gguf.KeyBOS), id(gguf.KeyPadding)
	for _, key := range endKeys {
		if end := id(key); end >= 0 {
			g.EOS = append(g.EOS, end)
		}
	}
	g.Temperature, g.TopP, g.MinP = float(gguf.KeySamplingTemp), float(gguf.KeySamplingTopP), float(gguf.KeySamplingMinP)
	k, present, err := f.Int64(gguf.KeySamplingTopK)
	note(err)
	if present {
		n := int(k)
		g.TopK = &n
	}
	return g, first
}

// Validate checks that the ids are inside the vocabulary.
func (g *Generation) Validate(vocab int) error {
	ids := append([]int{g.BOS, g.PAD}, g.EOS...)
	for _, id := range ids {
		if id < -1 || id >= vocab {
			return bad("generation", "token id %d of bos, eos or pad is outside the vocabulary of %d entries", id, vocab)
		}
	}
	return nil
}

// VocabKV is a vocabulary as GGUF metadata, padded to the rows of the embedding
// with unused tokens. Ids of special tokens are written by Generation.KV.
func VocabKV(v tokenizer.Vocab, rows int) ([]gguf.KV, error) {
	if len(v.Tokens) > rows {
		return nil, fmt.Errorf("the tokenizer has %d tokens, the embedding has %d rows", len(v.Tokens), rows)
	}
	tokens := append(make([]string, 0, rows), v.Tokens...)
	types := append(make([]int32, 0, rows), v.Types...)
	scores := v.Scores
	for i := len(tokens); i < rows; i++ {
		tokens = append(tokens, fmt.Sprintf("[PAD%d]", i))
		types = append(types, int32(gguf.TokenUnused))
		if scores != nil {
			scores = append(scores, 0)
		}
	}
	kv := []gguf.KV{
		{Key: gguf.KeyTokenizerModel, Value: gguf.ValueOf(v.Model)},
	}
	if v.Pre != "" {
		kv = append(kv, gguf.KV{Key: gguf.KeyTokenizerPre, Value: gguf.ValueOf(v.Pre)})
	}
	kv = append(kv, gguf.KV{Key: gguf.KeyTokens, Value: gguf.ValueOf(tokens)},
		gguf.KV{Key: gguf.KeyTokenType, Value: gguf.ValueOf(types)})
	if scores != nil {
		kv = append(kv, gguf.KV{Key: gguf.KeyScores, Value: gguf.ValueOf(scores)})
	}
	if v.Merges != nil {
		kv = append(kv, gguf.KV{Key: gguf.KeyMerges, Value: gguf.ValueOf(v.Merges)})
	}
	bool := func(key string, v bool) { kv = append(kv, gguf.KV{Key: key, Value: gguf.ValueOf(v)}) }
	bool(gguf.KeyAddBOS, v.AddBOS)
	bool(gguf.KeyAddEOS, v.AddEOS)
	bool(gguf.KeyAddSeparator, v.AddSEP)
	bool(gguf.KeyAddSpacePrefix, v.AddSpacePrefix)
	if v.RemoveExtraSpaces {
		bool(gguf.KeyRemoveExtraSpaces, true)
	}
	if v.Charsmap != nil {
		kv = append(kv, gguf.KV{Key: gguf.KeyPrecompiledCharmap, Value: gguf.ValueOf(v.Charsmap)})
	}
	id := func(key string, v int) {
		if v >= 0 {
			kv = append(kv, gguf.KV{Key: key, Value: gguf.ValueOf(uint32(v))})
		}
	}
	id(gguf.KeyUnknown, v.UNK)
	id(gguf.KeySeparator, v.SEP)
	id(gguf.KeyMask, v.MASK)
	return kv, nil
}

// vocabOfGGUF reads the tokenizer that every GGUF tool knows.
func vocabOfGGUF(f *gguf.File) (tokenizer.Vocab, error) {
	var first error
	kind := readKey(&first, gguf.KeyTokenizerModel, f.Str, "")
	if kind == "" && first == nil {
		return tokenizer.Vocab{}, ErrNoTokenizer
	}
	v := tokenizer.DefaultVocab(kind, readKey(&first, gguf.KeyTokenizerPre, f.Str, ""))
	v.Tokens = readKey(&first, gguf.KeyTokens, f.Strings, nil)
	v.Types = readKey(&first, gguf.KeyTokenType, f.Int32s, nil)
	v.Scores = readKey(&first, gguf.KeyScores, f.Floats, nil)
	v.Merges = readKey(&first, gguf.KeyMerges, f.Strings, nil)
	for key, id := range map[string]*int{
		gguf.KeyBOS: &v.BOS, gguf.KeyEOS: &v.EOS, gguf.KeyEOT: &v.EOT, gguf.KeyUnknown: &v.UNK,
		gguf.KeySeparator: &v.SEP, gguf.KeyPadding: &v.PAD, gguf.KeyMask: &v.MASK,
	} {
		if n := readKey(&first, key, f.Int64, int64(*id)); n >= -1 && n < int64(len(v.Tokens)) {
			*id = int(n)
		} else if first == nil {
			first = fmt.Errorf("%s is %d, the vocabulary has %d tokens", key, n, len(v.Tokens))
		}
	}
	v.AddBOS = readKey(&first, gguf.KeyAddBOS, f.Bool, v.AddBOS)
	v.AddEOS = readKey(&first, gguf.KeyAddEOS, f.Bool, v.AddEOS)
	v.AddSEP = readKey(&first, gguf.KeyAddSeparator, f.Bool, v.AddSEP)
	v.AddSpacePrefix = readKey(&first, gguf.KeyAddSpacePrefix, f.Bool, v.AddSpacePrefix)
	v.RemoveExtraSpaces = readKey(&first, gguf.KeyRemoveExtraSpaces, f.Bool, v.RemoveExtraSpaces)
	if c, ok := f.Lookup(gguf.KeyPrecompiledCharmap); ok {
		bytes, ok := c.Any().([]uint8)
		if !ok && first == nil {
			first = fmt.Errorf("%s has type %s, expected an array of u8", gguf.KeyPrecompiledCharmap, c.TypeName())
		}
		v.Charsmap = bytes
	}
	return v, first
}

// readKey reads a key; absent is its value when the file has none. It keeps the
// first error.
func readKey[T any](first *error, key string, get func(string) (T, bool, error), absent T) T {
	v, present, err := get(key)
	if err != nil && *first == nil {
		*first = err
	}
	if err != nil || !present {
		return absent
	}
	return v
}
