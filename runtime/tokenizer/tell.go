package tokenizer

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// Vocab is the tokenizer as GGUF tells it; Inexact says where that falls short.
// Ids that the tokenizer does not use are unused tokens. It fails for tokenizers
// that GGUF has no words for.
func (t *Tokenizer) Vocab() (Vocab, error) {
	r := t.roles
	v := Vocab{
		BOS: int(r.bos), EOS: int(r.eos), UNK: int(r.unk), PAD: int(r.pad),
		SEP: int(r.sep), CLS: int(r.cls), MASK: int(r.mask), EOT: int(r.eot),
	}
	var reasons []string
	inexact := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	v.Tokens = slices.Clone(t.tokens)
	v.Types = make([]int32, len(v.Tokens))
	byteFallback := t.definition.bpe.byteFallback
	for id := range v.Tokens {
		v.Types[id] = typeNormal
		if !t.known[id] {
			v.Tokens[id] = fmt.Sprintf("[PAD%d]", id)
			v.Types[id] = typeUnused
		}
		if b, ok := fallbackByte(v.Tokens[id]); ok && byteFallback && v.Tokens[id] == byteToken(b) {
			v.Types[id] = typeByte
		}
	}
	unknown := v.UNK >= 0 && !t.definition.bpe.raw // byte-level BPE knows every text
	if unknown {
		v.Types[v.UNK] = typeUnknown
	}
	for _, token := range t.definition.added {
		v.Tokens[token.id] = token.content
		switch {
		case unknown && int(token.id) == v.UNK:
		case token.special:
			v.Types[token.id] = typeControl
		default:
			v.Types[token.id] = typeUserDefined
		}
		if token.singleWord || token.stripLeft || token.stripRight {
			inexact("the added token %q takes white space or matches whole words only", token.content)
		} else if token.normalized && t.tokens[token.id] != token.content {
			inexact("the added token %q is looked for after normalization", token.content)
		}
	}
	switch t.definition.model {
	case "BPE":
		if err := t.tellBPE(&v, inexact); err != nil {
			return Vocab{}, err
		}
	case "Unigram":
		t.tellUnigram(&v, inexact)
	case "WordPiece":
		if err := t.tellWordPiece(&v, inexact); err != nil {
			return Vocab{}, err
		}
	default:
		return Vocab{}, unsupported("", "GGUF has no words for the model %s", t.definition.model)
	}
	t.tellTemplate(&v, inexact)
	if t.escape != EscapeNone {
		inexact("text is escaped as %s first", strings.ToUpper(string(t.escape)))
	}
	v.Inexact = strings.Join(reasons, "; ")
	return v, nil
}

// tellTemplate tells what goes around a text.
func (t *Tokenizer) tellTemplate(v *Vocab, inexact func(string, ...any)) {
	switch len(t.prefix) {
	case 0:
	case 1:
		v.AddBOS, v.BOS = true, int(t.prefix[0])
	default:
		inexact("%d tokens go in front of a text", len(t.prefix))
	}
	switch {
	case len(t.suffix) == 0:
	case len(t.suffix) > 1:
		inexact("%d tokens go behind a text", len(t.suffix))
	case v.Model == "bert":
		v.AddSEP, v.SEP, v.CLS = true, int(t.suffix[0]), v.BOS
	default:
		v.AddEOS, v.EOS = true, int(t.suffix[0])
	}
}

// preNames are the names to write for the ways to split that they mean.
var preNames = []string{"gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2"}

func (t *Tokenizer) tellBPE(v *Vocab, inexact func(string, ...any)) error {
	c := &t.definition.bpe
	if c.prefix != "" || c.suffix != "" {
		return unsupported("model", "GGUF has no words for BPE with continuing_subword_prefix or end_of_word_suffix")
	}
	if !c.raw {
		return t.tellSentencePiece(v, inexact)
	}
	v.Model = "gpt2"
	for _, pair := range c.merges {
		v.Merges = append(v.Merges, pair.left+" "+pair.right)
	}
	if v.Merges == nil {
		v.Merges = []string{}
	}
	if t.normalizer == unicodeForm(norm.NFC) {
		inexact("text that is not in the Unicode normal form NFC is normalized")
	} else if t.normalizer != nil {
		inexact("text is normalized")
	}
	last := t.preTokenizers[len(t.preTokenizers)-1].(byteLevel)
	if last.prefixSpace {
		inexact("a blank goes in front of the text")
	}
	stages := t.preTokenizers[:len(t.preTokenizers)-1]
	for _, name := range preNames {
		p := preSplits[name]
		if p.gpt2Pattern == last.pattern && p.ignoreMerges == c.ignoreMerges && sameScanners(p.stages, stages) {
			v.Pre = name
			return nil
		}
	}
	v.Pre = "default"
	inexact("the way in which the text is split has no name in GGUF")
	return nil
}

// sameScanners reports whether two lists of stages are the same scanners.
func sameScanners(a, b []preTokenizer) bool {
	return slices.EqualFunc(a, b, func(a, b preTokenizer) bool {
		x, ok := a.(scanSplit)
		y, same := b.(scanSplit)
		return ok && same && x == y
	})
}

// tellSentencePiece tells BPE on characters as SentencePiece's.
func (t *Tokenizer) tellSentencePiece(v *Vocab, inexact func(string, ...any)) error {
	if !t.definition.bpe.byteFallback {
		return unsupported("model", "GGUF has no words for BPE on characters without byte_fallback")
	}
	v.Model = "llama"
	v.Pre = "default"
	known := true
	switch n := t.normalizer.(type) {
	case nil:
		m, ok := metaspace{}, false
		if len(t.preTokenizers) == 1 {
			m, ok = t.preTokenizers[0].(metaspace)
		}
		known = ok && m.mark == metaMark && !(m.cut && innerMark(t.tokens))
		v.AddSpacePrefix = m.prepend != prependNever
		if v.AddSpacePrefix {
			inexact("text gets no blank in front where it begins with one, or follows a special token")
		}
	case replaceLiteral:
		known = n == replaceLiteral{" ", metaMark}
	case sequence:
		v.AddSpacePrefix = len(n) == 2
		known = (len(n) == 1 || len(n) == 2 && n[0] == prepend(metaMark)) && n[len(n)-1] == replaceLiteral{" ", metaMark}
	default:
		known = false
	}
	// Gemma splits at blanks, of which the normalizer leaves none.
	if t.normalizer != nil && len(t.preTokenizers) > 0 {
		p, ok := t.preTokenizers[0].(patternSplit)
		known = known && ok && len(t.preTokenizers) == 1 && p.pattern == literal(" ")
	}
	if !known {
		inexact("the way in which the text is split has no name in GGUF")
	}
	if c := &t.definition.bpe; c.ignoreMerges {
		inexact("a whole piece that is a token is not merged")
	} else {
		v.Scores = t.scores(v, inexact)
	}
	if v.Scores == nil {
		v.Scores = make([]float32, len(v.Tokens))
	}
	return nil
}

// scores are scores that make SentencePiece merge in the order of the merges.
func (t *Tokenizer) scores(v *Vocab, inexact func(string, ...any)) []float32 {
	scores := make([]float32, len(v.Tokens))
	merges := t.definition.bpe.merges
	if t.definition.scores != nil { // a vocabulary of SentencePiece from the start
		for id, score := range t.definition.scores {
			scores[id] = float32(score)
		}
		return scores
	}
	for id := range scores {
		if v.Types[id] == typeNormal {
			scores[id] = -float32(len(merges)) - 1
		}
	}
	ordered := true
	last, next := int32(-1), 0
	seen := make(map[int32]bool)
	for _, pair := range merges {
		id := t.ids[pair.left+pair.right]
		if id == last {
			continue
		}
		// All merges into one token have to follow each other.
		ordered = ordered && !seen[id]
		if !seen[id] {
			scores[id] = -float32(next)
			next++
		}
		seen[id] = true
		last = id
	}
	// A pair that SentencePiece joins and the tokenizer does not is a difference.
	v.Scores = scores
	vocab := make(map[string]int32, len(v.Tokens))
	for id, token := range v.Tokens {
		vocab[token] = int32(id)
	}
	m := t.model.(*bpe)
	for _, one := range scoreMerges(v, vocab) {
		if m.table.get(one.left, one.right).rank == noRank {
			ordered = false
			break
		}
	}
	if !ordered {
		inexact("the order of the merges cannot be told by scores")
	}
	return scores
}

func (t *Tokenizer) tellUnigram(v *Vocab, inexact func(string, ...any)) {
	v.Model = "t5"
	v.Pre = "default"
	v.Scores = make([]float32, len(v.Tokens))
	for id, score := range t.definition.scores {
		v.Scores[id] = float32(score)
	}
	stages, _ := t.normalizer.(sequence)
	if t.normalizer != nil && stages == nil {
		stages = sequence{t.normalizer}
	}
	squeezes, strips, normalizes := false, false, false
	for _, stage := range stages {
		switch stage := stage.(type) {
		case *precompiled:
			v.Charsmap = stage.charsmap
		case squeezeBlanks:
			squeezes = true
		case strip:
			strips = strips || stage.left && stage.right
		default:
			normalizes = true
		}
	}
	pre := t.preTokenizers
	if len(pre) == 2 {
		// Splitting at white space first leaves no blank that could be superfluous.
		if white, ok := pre[0].(characterSplit); ok && white.remove {
			squeezes, strips = true, true
			pre = pre[1:]
		}
	}
	m, known := metaspace{}, false
	if len(pre) == 1 {
		m, known = pre[0].(metaspace)
	}
	v.RemoveExtraSpaces = squeezes
	v.AddSpacePrefix = m.prepend != prependNever
	if normalizes {
		inexact("text is normalized")
	}
	if strips != squeezes {
		inexact("blanks at the ends of the text and inside it are not treated alike")
	}
	if !known || m.mark != metaMark || m.prepend == prependFirst || m.cut && innerMark(t.tokens) {
		inexact("the way in which the text is split has no name in GGUF")
	}
	if t.definition.bpe.byteFallback {
		inexact("unknown characters become bytes")
	}
}

func (t *Tokenizer) tellWordPiece(v *Vocab, inexact func(string, ...any)) error {
	if t.definition.prefix != continuation {
		return unsupported("model", "GGUF has no words for WordPiece with the prefix %q", t.definition.prefix)
	}
	v.Model = "bert"
	v.Pre = "default"
	if n, ok := t.normalizer.(bertNormalizer); !ok || n != uncased {
		inexact("text is not normalized as for uncased BERT")
	}
	first, second := characterSplit{}, characterSplit{remove: true}
	if len(t.preTokenizers) == 2 {
		first, _ = t.preTokenizers[0].(characterSplit)
		second, _ = t.preTokenizers[1].(characterSplit)
	}
	if !first.remove || second.match == nil || second.remove {
		inexact("text is not split as for BERT")
	}
	for id, token := range v.Tokens {
		if rest, ok := strings.CutPrefix(token, continuation); ok && v.Types[id] == typeNormal {
			v.Tokens[id] = rest
		} else if v.Types[id] == typeNormal {
			v.Tokens[id] = metaMark + token
		}
	}
	return nil
}
