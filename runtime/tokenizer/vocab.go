package tokenizer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Token types of GGUF, the elements of Vocab.Types.
const (
	typeNormal      = 1
	typeUnknown     = 2
	typeControl     = 3
	typeUserDefined = 4
	typeUnused      = 5
	typeByte        = 6
)

// metaMark stands for a blank in SentencePiece vocabularies: U+2581.
const metaMark = "▁"

// A Vocab is a tokenizer as GGUF tells it: the keys tokenizer.ggml.*.
// DefaultVocab gives the values of keys that a file does not have.
type Vocab struct {
	Model string // gpt2 (byte-level BPE), llama (SentencePiece BPE), t5 (Unigram), bert (WordPiece)
	Pre   string // how gpt2 splits text: gpt-2, llama-bpe, qwen2, smollm, …

	Tokens []string  // by id
	Types  []int32   // by id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; nil: not known
	Scores []float32 // by id, of llama and t5
	Merges []string  // "a b", of gpt2, in order

	// Ids of the tokens with a part of their own, -1 where there is none.
	BOS, EOS, UNK, PAD, SEP, CLS, MASK, EOT int

	AddBOS, AddEOS, AddSEP bool // what encoding puts around a text

	AddSpacePrefix    bool   // llama, t5: a blank in front of the text
	RemoveExtraSpaces bool   // t5: runs of blanks become one
	Charsmap          []byte // t5: SentencePiece's precompiled normalization

	// Inexact says why other tools that read these keys may tokenize some texts
	// differently; empty where they give the same ids. FromVocab ignores it. The
	// whole tokenizer.json, in the key tokenizer.huggingface.json, is exact.
	Inexact string
}

// DefaultVocab is a Vocab with the values that readers of GGUF assume for keys
// that a file does not have, which depend on the kind of tokenizer.
func DefaultVocab(model, pre string) Vocab {
	v := Vocab{Model: model, Pre: pre, BOS: -1, EOS: -1, UNK: -1, PAD: -1, SEP: -1, CLS: -1, MASK: -1, EOT: -1}
	switch model {
	case "gpt2":
		v.AddBOS = preSplits[pre].addBOS
	case "llama":
		v.BOS, v.EOS, v.UNK = 1, 2, 0
		v.AddBOS, v.AddSpacePrefix = true, true
	case "t5":
		v.EOS, v.UNK, v.PAD = 1, 2, 0
		v.AddEOS, v.AddSpacePrefix, v.RemoveExtraSpaces = true, true, true
	case "bert":
		v.BOS, v.CLS, v.SEP, v.UNK, v.PAD, v.MASK = 101, 101, 102, 100, 0, 103
		v.AddBOS, v.AddSEP = true, true
	}
	return v
}

// A preSplit is how a value of tokenizer.ggml.pre splits text.
type preSplit struct {
	stages       []preTokenizer // before ByteLevel
	gpt2Pattern  bool           // ByteLevel splits by the pattern of GPT-2
	ignoreMerges bool
	addBOS       bool // unless the file says something else
}

var (
	preGPT2   = preSplit{gpt2Pattern: true}
	preDigits = preSplit{stages: []preTokenizer{scanSplit{digitScanner{}}}, gpt2Pattern: true}
	preLlama3 = preSplit{stages: []preTokenizer{scanSplit{tiktokenScanner{3}}}, ignoreMerges: true, addBOS: true}
	preDBRX   = preSplit{stages: []preTokenizer{scanSplit{tiktokenScanner{3}}}}
	preQwen2  = preSplit{stages: []preTokenizer{scanSplit{tiktokenScanner{1}}}}
	// preDefault is what llama.cpp does where the file names no pattern.
	preDefault = preSplit{stages: []preTokenizer{
		patternSplit{characterPattern(isDefaultPunctuation), contiguous, false}, // [\p{P}\$\+<=>\^~\|]+
		scanSplit{gpt2Scanner{}},
		patternSplit{characterPattern(isNumeric), contiguous, false}, // \p{N}+
		patternSplit{threeDigits{}, isolated, false},                 // [0-9][0-9][0-9]
	}}
)

func isDefaultPunctuation(r rune) bool {
	return unicode.Is(unicode.P, r) || r < utf8.RuneSelf && strings.ContainsRune("$+<=>^~|", r)
}

// threeDigits is the pattern [0-9][0-9][0-9].
type threeDigits struct{}

func (threeDigits) matches(s string, _ *budget, f func(start, end int) error) error {
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			n = 0
		} else if n++; n == 3 {
			n = 0
			if err := f(i-2, i+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// preSplits are the values of tokenizer.ggml.pre that are supported.
var preSplits = map[string]preSplit{
	"": preDefault, "default": preDefault,
	"gpt-2": preGPT2, "phi-2": preGPT2, "mpt": preGPT2, "olmo": preGPT2, "jais": preGPT2, "trillion": preGPT2,
	"granite-docling": preGPT2, "gigachat": preGPT2, "exaone4": preGPT2, "mellum": preGPT2, "modern-bert": preGPT2,
	"smollm": preDigits, "starcoder": preDigits, "refact": preDigits, "command-r": preDigits, "codeshell": preDigits,
	"exaone": preDigits, "minerva-7b": preDigits, "mellum2": preDigits,
	"llama-bpe": preLlama3, "llama3": preLlama3, "llama-v3": preLlama3, "falcon3": preLlama3, "falcon-h1": preLlama3,
	"pixtral": preLlama3, "midm-2.0": preLlama3, "lfm2": preLlama3,
	"dbrx": preDBRX, "smaug-bpe": preDBRX, "glm4": preDBRX, "chatglm-bpe": preDBRX,
	"qwen2": preQwen2, "deepseek-r1-qwen": preQwen2, "stablelm2": preQwen2, "megrez": preQwen2, "kormo": preQwen2,
	"hunyuan": preQwen2, "solar-open": preQwen2, "grok-2": preQwen2,
}

// FromVocab makes a tokenizer from the vocabulary of a GGUF file. Errors are
// *format.FormatError or *format.UnsupportedError.
func FromVocab(v Vocab) (*Tokenizer, error) {
	if err := v.check(); err != nil {
		return nil, err
	}
	t := &Tokenizer{roles: roles{
		bos: int32(v.BOS), eos: int32(v.EOS), unk: int32(v.UNK), pad: int32(v.PAD),
		sep: int32(v.SEP), cls: int32(v.CLS), mask: int32(v.MASK), eot: int32(v.EOT),
	}}
	roles := t.roles
	var err error
	switch v.Model {
	case "gpt2":
		err = t.fromGPT2(v)
	case "llama":
		err = t.fromLlama(v)
	case "t5":
		err = t.fromT5(v)
	case "bert":
		err = t.fromBERT(v)
	default:
		err = unsupported("tokenizer.ggml.model", "found %q, can read gpt2, llama, t5 and bert", v.Model)
	}
	if err != nil {
		return nil, err
	}
	t.roles = roles
	t.findEOT(&v)
	if err := t.addTokens(v.added()); err != nil {
		return nil, err
	}
	if v.AddBOS {
		t.prefix = []int32{int32(v.BOS)}
	}
	if v.AddSEP {
		t.suffix = append(t.suffix, int32(v.SEP))
	}
	if v.AddEOS {
		t.suffix = append(t.suffix, int32(v.EOS))
	}
	return t, nil
}

// turnEnds are names of control tokens that end a turn of a conversation, for
// files that do not say which token does.
var turnEnds = []string{"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<EOT>", "<end_of_utterance>"}

func (t *Tokenizer) findEOT(v *Vocab) {
	for _, name := range turnEnds {
		if id, ok := t.ids[name]; ok && t.roles.eot < 0 && v.kind(int(id)) == typeControl {
			t.roles.eot = id
		}
	}
}

// check checks what does not depend on the model.
func (v *Vocab) check() error {
	n := len(v.Tokens)
	switch {
	case n == 0:
		return malformed("tokenizer.ggml.tokens", "found no tokens")
	case n > maxID:
		return malformed("tokenizer.ggml.tokens", "found %d tokens", n)
	case v.Types != nil && len(v.Types) != n:
		return malformed("tokenizer.ggml.token_type", "found %d elements, expected one for each of the %d tokens", len(v.Types), n)
	case v.Scores != nil && len(v.Scores) != n:
		return malformed("tokenizer.ggml.scores", "found %d elements, expected one for each of the %d tokens", len(v.Scores), n)
	}
	for id, token := range v.Tokens {
		if !utf8.ValidString(token) {
			return malformed("tokenizer.ggml.tokens", "token %d is %q, which is not UTF-8", id, token)
		}
		if v.Types == nil {
			continue
		}
		if kind := v.Types[id]; kind == typeByte && v.Model != "gpt2" {
			if b, ok := fallbackByte(token); !ok || token != byteToken(b) {
				return malformed("tokenizer.ggml.tokens", "token %d is %q, expected a byte token from <0x00> to <0xFF>", id, token)
			}
		} else if kind < 0 || kind > typeByte {
			return malformed("tokenizer.ggml.token_type", "token %d has type %d, expected 0 to %d", id, kind, typeByte)
		}
	}
	for _, r := range []struct {
		name string
		id   int
		used bool
	}{
		{"bos", v.BOS, v.AddBOS}, {"eos", v.EOS, v.AddEOS}, {"unknown", v.UNK, false}, {"padding", v.PAD, false},
		{"seperator", v.SEP, v.AddSEP}, {"cls", v.CLS, false}, {"mask", v.MASK, false}, {"eot", v.EOT, false},
	} {
		key := "tokenizer.ggml." + r.name + "_token_id"
		if r.id < -1 || r.id >= n {
			return malformed(key, "found %d, but there are %d tokens", r.id, n)
		}
		if r.used && r.id < 0 {
			return malformed(key, "the key is missing, but the token is to be added to each text")
		}
	}
	return nil
}

// byteToken is the token of a byte.
func byteToken(b byte) string { return fmt.Sprintf("<0x%02X>", b) }

// kind is the type of a token. Without types, the tokens with a part of their
// own are control tokens.
func (v *Vocab) kind(id int) int32 {
	if v.Types != nil {
		return v.Types[id]
	}
	switch id {
	case v.UNK:
		return typeUnknown
	case v.BOS, v.EOS, v.PAD, v.SEP, v.CLS, v.MASK, v.EOT:
		return typeControl
	}
	return typeNormal
}

// added are the tokens that are cut out of the text.
func (v *Vocab) added() []addedToken {
	var tokens []addedToken
	for id, token := range v.Tokens {
		kind := v.kind(id)
		special := kind == typeControl || kind == typeUnknown
		if token != "" && (special || kind == typeUserDefined) && len(token) <= maxAddedToken {
			tokens = append(tokens, addedToken{content: token, id: int32(id), special: special})
		}
	}
	return tokens
}

// vocabulary is the tokens by name.
func (v *Vocab) vocabulary() (map[string]int32, error) {
	vocab := make(map[string]int32, len(v.Tokens))
	for id, token := range v.Tokens {
		if token == "" {
			token = fmt.Sprintf("[EMPTY_%d]", id)
		}
		if other, double := vocab[token]; double {
			return nil, malformed("tokenizer.ggml.tokens", "the tokens %d and %d are both %q", other, id, token)
		}
		vocab[token] = int32(id)
	}
	return vocab, nil
}

func (t *Tokenizer) fromGPT2(v Vocab) error {
	split, ok := preSplits[v.Pre]
	if !ok {
		return unsupported("tokenizer.ggml.pre", "the pre-tokenizer %q is not supported; a file that carries tokenizer.huggingface.json does not need it", v.Pre)
	}
	vocab, err := v.vocabulary()
	if err != nil {
		return err
	}
	if err := t.setVocab(vocab, "tokenizer.ggml.tokens"); err != nil {
		return err
	}
	c := bpeConfig{vocab: vocab, ignoreMerges: split.ignoreMerges}
	for i, line := range v.Merges {
		left, right, ok := strings.Cut(line, " ")
		if !ok || left == "" {
			return malformed("tokenizer.ggml.merges", "merge %d is %q, expected two tokens and a blank between them", i, line)
		}
		c.merges = append(c.merges, bpeMerge{left, right})
	}
	t.preTokenizers = append(slices.Clone(split.stages), byteLevel{pattern: split.gpt2Pattern})
	t.decoder = []decodeStep{byteLevelDecoder{}}
	t.definition.model = "BPE"
	return t.setBPE(c, "tokenizer.ggml.merges")
}

// maxMergeToken bounds the length in bytes of the tokens whose parts fromLlama
// looks for.
const maxMergeToken = 512

func (t *Tokenizer) fromLlama(v Vocab) error {
	if v.Scores == nil {
		return malformed("tokenizer.ggml.scores", "the key is missing, but the tokenizer llama needs it")
	}
	vocab, err := v.vocabulary()
	if err != nil {
		return err
	}
	if err := t.setVocab(vocab, "tokenizer.ggml.tokens"); err != nil {
		return err
	}
	c := bpeConfig{vocab: vocab, byteFallback: true, fuseUnk: true}
	if v.UNK >= 0 {
		c.unk = v.Tokens[v.UNK]
	}
	t.definition.model = "BPE"
	t.definition.bpe = c
	t.definition.scores = widen(v.Scores)
	m := newBareBPE(c)
	merges := scoreMerges(&v, vocab)
	m.table = newMergeTable(len(merges))
	for _, one := range merges {
		m.addMerge(one.left, one.right, bpeMerge{v.Tokens[one.left], v.Tokens[one.right]}, one.merge)
	}
	t.model = m
	var n sequence
	if v.AddSpacePrefix {
		n = append(n, prepend(metaMark))
	}
	t.normalizer = append(n, replaceLiteral{" ", metaMark})
	t.decoder = []decodeStep{replaceDecoder{old: metaMark, new: " "}, byteFallbackDecoder{}, fuse{}}
	if v.AddSpacePrefix {
		t.decoder = append(t.decoder, stripDecoder{" ", 1, 0})
	}
	return nil
}

// A scoreMerge is a pair of tokens that SentencePiece joins.
type scoreMerge struct {
	left, right int32
	merge
}

// scoreMerges are the merges of SentencePiece's BPE: any two tokens whose texts
// together are a token, those with the highest score first. Equal scores have
// equal ranks.
func scoreMerges(v *Vocab, vocab map[string]int32) []scoreMerge {
	order := make([]int32, 0, len(v.Tokens))
	for id := range v.Tokens {
		if kind := v.kind(id); kind == typeNormal || kind == typeUserDefined || kind == typeUnused {
			order = append(order, int32(id))
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(v.Scores[b], v.Scores[a]) })
	var merges []scoreMerge
	rank := int32(0)
	for i, id := range order {
		if i > 0 && v.Scores[id] != v.Scores[order[i-1]] {
			rank++
		}
		token := v.Tokens[id]
		if len(token) > maxMergeToken {
			continue
		}
		for at := range token {
			if at == 0 {
				continue
			}
			left, ok := vocab[token[:at]]
			if !ok {
				continue
			}
			if right, ok := vocab[token[at:]]; ok {
				merges = append(merges, scoreMerge{left, right, merge{rank, id}})
			}
		}
	}
	return merges
}

func (t *Tokenizer) fromT5(v Vocab) error {
	if v.Scores == nil {
		return malformed("tokenizer.ggml.scores", "the key is missing, but the tokenizer t5 needs it")
	}
	if v.UNK < 0 {
		return malformed("tokenizer.ggml.unknown_token_id", "the key is missing, but the tokenizer t5 needs it")
	}
	if _, err := v.vocabulary(); err != nil {
		return err
	}
	for id, token := range v.Tokens {
		if err := checkLength(token, int32(id), "tokenizer.ggml.tokens"); err != nil {
			return err
		}
	}
	var n sequence
	if len(v.Charsmap) > 0 {
		p, err := newPrecompiled(v.Charsmap, "tokenizer.ggml.precompiled_charsmap")
		if err != nil {
			return err
		}
		n = append(n, p)
	}
	if v.RemoveExtraSpaces {
		n = append(n, strip{true, true}, squeezeBlanks{})
	}
	if n != nil {
		t.normalizer = n
	}
	t.setUnigram(v.Tokens, widen(v.Scores), int32(v.UNK), false)
	scheme := prependNever
	if v.AddSpacePrefix {
		scheme = prependAlways
	}
	t.preTokenizers = []preTokenizer{metaspace{metaMark, scheme, !innerMark(v.Tokens)}}
	t.decoder = []decodeStep{metaspaceDecoder(metaMark, v.AddSpacePrefix)}
	return nil
}

func widen(scores []float32) []float64 {
	wide := make([]float64, len(scores))
	for id, score := range scores {
		wide[id] = float64(score)
	}
	return wide
}

// innerMark reports whether a token has a mark after something else, so that
// splitting the text before marks would change its tokens.
func innerMark(tokens []string) bool {
	return slices.ContainsFunc(tokens, func(token string) bool {
		return strings.Contains(strings.TrimLeft(token, metaMark), metaMark)
	})
}

// continuation marks the WordPiece tokens that continue a word. GGUF leaves it
// out and marks the others, with metaMark.
const continuation = "##"

func (t *Tokenizer) fromBERT(v Vocab) error {
	vocab := make(map[string]int32, len(v.Tokens))
	for id, token := range v.Tokens {
		if start, ok := strings.CutPrefix(token, metaMark); ok {
			token = start
		} else if kind := v.kind(id); kind == typeNormal {
			token = continuation + token
		}
		if other, double := vocab[token]; double {
			return malformed("tokenizer.ggml.tokens", "the tokens %d and %d are both %q", other, id, token)
		}
		if err := checkLength(token, int32(id), "tokenizer.ggml.tokens"); err != nil {
			return err
		}
		vocab[token] = int32(id)
	}
	if err := t.setVocab(vocab, "tokenizer.ggml.tokens"); err != nil {
		return err
	}
	unk := ""
	if v.UNK >= 0 {
		unk = t.tokens[v.UNK]
	}
	t.normalizer = uncased
	t.preTokenizers = bertStages
	t.model = newWordPiece(vocab, unk, continuation, 100)
	t.decoder = []decodeStep{wordPieceDecoder(continuation, true)}
	t.definition.model = "WordPiece"
	t.definition.prefix = continuation
	return nil
}
