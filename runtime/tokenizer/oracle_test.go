package tokenizer

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// An oracle is Hugging Face's tokenizers behind a pipe.
type oracle struct {
	in  io.Writer
	out *bufio.Reader
}

// newOracle starts the oracle, or skips the test where Python or the package is
// missing.
func newOracle(t *testing.T) *oracle {
	t.Helper()
	python := os.Getenv("FPA_PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import tokenizers").CombinedOutput(); err != nil {
		message := fmt.Sprintf("no oracle: %s cannot import tokenizers: %v %s", python, err, out)
		if os.Getenv("FPA_REQUIRE_ORACLES") == "1" {
			t.Fatal(message)
		}
		t.Skip(message)
	}
	cmd := exec.Command(python, filepath.Join("testdata", "oracle.py"))
	cmd.Env = append(os.Environ(), "TOKENIZERS_PARALLELISM=false", "RAYON_NUM_THREADS=1", "PYTHONUTF8=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return &oracle{in, bufio.NewReaderSize(out, 1<<20)}
}

// ask sends a request and reads the results into one value for each item; an
// item that failed leaves a nil.
func ask[Item, Result any](t *testing.T, o *oracle, tokenizer []byte, operation string, items []Item) []*Result {
	t.Helper()
	line, err := json.Marshal(map[string]any{"tokenizer": string(tokenizer), "operation": operation, "items": items})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.in.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	answer, err := o.out.ReadBytes('\n')
	if err != nil {
		t.Fatalf("%s: %v", operation, err)
	}
	var a struct {
		Error   string
		Results []*Result
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		t.Fatal(err)
	}
	if a.Error != "" {
		t.Fatalf("the library refuses the tokenizer: %s\n%.300s", a.Error, tokenizer)
	}
	return a.Results
}

// soup is a random text: words, blanks, digits, marks, scripts, emoji, and
// whatever pieces the caller adds.
func soup(rng *rand.Rand, pieces []string) string {
	words := []string{"the", "The", "don't", "I'LL", "we've", "it's", "can't", "'re", "'D", "hello", "naïve", "straße", "ĐÀ", "İstanbul",
		"Ωμέγα", "привет", "日本語", "漢字かな", "안녕하세요", "עברית", "عربي", "हिन्दी", "ไทย", "x", "foo_bar", "A1", "3.14", "1234567", "①②", "Ⅷ", "½", "٣٤", "²",
		"e\u0301", "a\u0308\u0323", "ﬁ", "ﬀ", "Å", "ſ", "K", "👩‍👧", "🇩🇪", "👍🏽", "☃", "…", "—", "“x”", "«»", "$", "€5", "+", "<=>", "...", "!?", "#", "@",
		"▁", "Ġ", "Ċ", "\u200d", "\u200b", "\u00ad", "\ufeff", "\ufffd", "\u034f", "\u0000", "\u0007", "\u007f", "\u0085", "\u2028", "\ufe0f", "\U000e0041", "\u1680"}
	spaces := []string{" ", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u3000", "\v", "\f", "\u2003", ""}
	var b strings.Builder
	for range rng.IntN(12) {
		switch n := rng.IntN(20); {
		case n < 9:
			b.WriteString(words[rng.IntN(len(words))])
		case n < 16:
			b.WriteString(spaces[rng.IntN(len(spaces))])
		case n < 18 && len(pieces) > 0:
			b.WriteString(pieces[rng.IntN(len(pieces))])
		case n < 19:
			b.WriteRune(assigned(rng, 0x10000))
		default:
			b.WriteRune(assigned(rng, 0x20000))
		}
	}
	return b.String()
}

// assigned is a random character that has been in Unicode for long: newer ones
// and private ones are classed differently by different versions.
func assigned(rng *rand.Rand, limit int) rune {
	for {
		r := rune(rng.IntN(limit))
		if unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S, unicode.Z) && !recent(r) {
			return r
		}
	}
}

// recent reports whether a character is in a block with additions after
// Unicode 8, for which the library's tables for categories are too old.
func recent(r rune) bool {
	return r >= 0x10000 && !(0x1f300 <= r && r <= 0x1f64f) || 0x860 <= r && r <= 0x8a0 || 0x8b0 <= r && r <= 0x8ff ||
		0x1c80 <= r && r <= 0x1c8f || 0x2b00 <= r && r <= 0x2bff || 0x2e00 <= r && r <= 0x2e7f || 0xa700 <= r && r <= 0xa7ff ||
		0xab60 <= r && r <= 0xab6f || 0x9fb0 <= r && r <= 0x9fff || r == 0x32ff || 0x1ab0 <= r && r <= 0x1aff || 0x1dc0 <= r && r <= 0x1dff
}

func soups(seed uint64, n int, pieces ...string) []string {
	rng := rand.New(rand.NewPCG(seed, 1))
	texts := make([]string, n)
	for i := range texts {
		texts[i] = soup(rng, pieces)
	}
	return texts
}

// wrap is a tokenizer.json with one component and a model that is not used.
func wrap(key, component string) []byte {
	return fmt.Appendf(nil, `{"version":"1.0","added_tokens":[],%q:%s,"model":{"type":"WordLevel","vocab":{"[UNK]":0},"unk_token":"[UNK]"}}`, key, component)
}

// oracleNormalizers are one of each kind, and usual sequences.
var oracleNormalizers = []string{
	`{"type":"NFC"}`, `{"type":"NFD"}`, `{"type":"NFKC"}`, `{"type":"NFKD"}`,
	`{"type":"Lowercase"}`, `{"type":"StripAccents"}`, `{"type":"Nmt"}`, `{"type":"ByteLevel"}`,
	`{"type":"Strip","strip_left":true,"strip_right":false}`, `{"type":"Strip","strip_left":false,"strip_right":true}`,
	`{"type":"Strip","strip_left":true,"strip_right":true}`,
	`{"type":"Prepend","prepend":"▁"}`,
	`{"type":"Replace","pattern":{"String":" "},"content":"▁"}`,
	`{"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "}`,
	`{"type":"Replace","pattern":{"Regex":"[\\s]+"},"content":"<>"}`,
	`{"type":"Replace","pattern":{"Regex":"\\w+"},"content":"w"}`,
	`{"type":"Replace","pattern":{"Regex":"(?<=e)\\p{M}*|\\d{2}$"},"content":"_"}`,
	`{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true}`,
	`{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":false,"strip_accents":true,"lowercase":false}`,
	`{"type":"BertNormalizer","clean_text":false,"handle_chinese_chars":true,"strip_accents":false,"lowercase":true}`,
	`{"type":"Sequence","normalizers":[{"type":"NFD"},{"type":"StripAccents"},{"type":"Lowercase"},{"type":"NFC"}]}`,
}

func TestOracleNormalizers(t *testing.T) {
	o := newOracle(t)
	for i, component := range oracleNormalizers {
		tok, err := FromJSON(wrap("normalizer", component))
		if err != nil {
			t.Errorf("%s: %v", component, err)
			continue
		}
		texts := append(soups(uint64(i), 200), strings.Repeat("e\u0301\u0323", 40), "a"+strings.Repeat("\u0301", 70)+"b\u0323\u0301")
		for j, want := range ask[string, string](t, o, wrap("normalizer", component), "normalize", texts) {
			got, err := tok.normalizer.normalize(piece{text: texts[j], budget: newBudget(len(texts[j]))})
			if want == nil || err != nil || got.text != *want {
				t.Errorf("%s: %q\n got %q, %v\nwant %q", component, texts[j], got.text, err, deref(want))
				break
			}
		}
	}
}

// clusters are grapheme clusters of all lengths, and what is around them in
// testdata/charsmap.b64.
var clusters = []string{"A", "B", "À", "A\u0300", "e\u0301", "e\u0301\u0301", "e\u0301\u0301\u0301", "\u0645\u062f", "\u0645\u062f\u064b", "\u0600\u0645", "\u0600A", "©\u200d©", "A\u200d",
	"A\u200dB", "\r\n", "\r", "ﬁ\u0301", "가", "각", "①\u20dd", "😀", "😀\u200d😀", "a\u0308\u0323", "क्षि", "A\ufe0f", "\u0d4eക", "กำ", "b\u0903"}

// TestOraclePrecompiled compares a charsmap that SentencePiece made of a few
// rules, on clusters of all lengths. FPA_CHARSMAP may name another one.
func TestOraclePrecompiled(t *testing.T) {
	o := newOracle(t)
	path := os.Getenv("FPA_CHARSMAP")
	if path == "" {
		path = filepath.Join("testdata", "charsmap.b64")
	}
	charsmap, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data := wrap("normalizer", fmt.Sprintf(`{"type":"Precompiled","precompiled_charsmap":%q}`, charsmap))
	tok, err := FromJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	texts := soups(1, 300, clusters...)
	for i, want := range ask[string, string](t, o, data, "normalize", texts) {
		got, err := tok.normalizer.normalize(piece{text: texts[i], budget: newBudget(len(texts[i]))})
		if want == nil || err != nil || got.text != *want {
			t.Errorf("%+q\n got %+q, %v\nwant %+q", texts[i], got.text, err, deref(want))
		}
	}
}

func deref(s *string) string {
	if s == nil {
		return "<failed>"
	}
	return *s
}

// preTokenizers of published models, and one of each kind.
var oraclePreTokenizers = []string{
	`{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}`,
	`{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`,
	`{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}`,
	`{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}]}`,
	`{"type":"Digits","individual_digits":false}`, `{"type":"Whitespace"}`, `{"type":"WhitespaceSplit"}`,
	`{"type":"Punctuation","behavior":"Isolated"}`, `{"type":"Punctuation","behavior":"Contiguous"}`, `{"type":"Punctuation","behavior":"Removed"}`,
	`{"type":"Punctuation","behavior":"MergedWithPrevious"}`, `{"type":"Punctuation","behavior":"MergedWithNext"}`,
	`{"type":"BertPreTokenizer"}`, `{"type":"CharDelimiterSplit","delimiter":"e"}`, `{"type":"FixedLength","length":3}`,
	`{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}`,
	`{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":true}`,
	`{"type":"Metaspace","replacement":"_","prepend_scheme":"never","split":true}`,
	`{"type":"Metaspace","replacement":"▁","add_prefix_space":true}`,
	`{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}]}`,
	`{"type":"Sequence","pretokenizers":[{"type":"Punctuation"},{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":true}]}`,
}

// splitPatterns are patterns of published models, and hard ones.
var splitPatterns = []string{
	`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`,
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`,
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	`[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_` + "`" + `{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	`[一-龥\u3040-ゟ゠-ヿ]+`,
	` ?[^(\s|[.,!?…。，、।۔،])]+`,
	`\d{1,3}(?=(?:\d{3})*\b)`,
	`\s?\p{P}+|\s+$|^.`,
	`\w+|[^\w\s]+`, `\W`, `[\w-]+`, `[^\d\D]|\S+`, `(?=[A-Z])|x*`, `\p{^L}+`, `\P{L}{1,2}+a?`, `(?i:[a-eſ]+|straße|k)x?`, `\B.`, `(?i)istanbul|(?-i:ĐÀ)`,
}

// preTokenizerComponents are oraclePreTokenizers, and splits by splitPatterns.
func preTokenizerComponents(t *testing.T) []string {
	t.Helper()
	components := slices.Clone(oraclePreTokenizers)
	names := slices.Sorted(maps.Keys(behaviors))
	for i, source := range splitPatterns {
		quoted, err := json.Marshal(source)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if b := behaviors[name]; i < 3 || b == isolated || b == removed {
				components = append(components, fmt.Sprintf(`{"type":"Split","pattern":{"Regex":%s},"behavior":%q,"invert":false}`, quoted, name),
					fmt.Sprintf(`{"type":"Split","pattern":{"Regex":%s},"behavior":%q,"invert":true}`, quoted, name))
			}
		}
	}
	for _, name := range names {
		for _, invert := range []string{"true", "false"} {
			components = append(components, fmt.Sprintf(`{"type":"Split","pattern":{"String":" "},"behavior":%q,"invert":%s}`, name, invert))
		}
	}
	return components
}

func TestOraclePreTokenizers(t *testing.T) {
	o := newOracle(t)
	for i, component := range preTokenizerComponents(t) {
		tok, err := FromJSON(wrap("pre_tokenizer", component))
		if err != nil {
			t.Errorf("refused: %v", err)
			continue
		}
		texts := soups(uint64(i), 100)
		for j, want := range ask[string, []string](t, o, wrap("pre_tokenizer", component), "pretokenize", texts) {
			var got []string
			err := preTokenize(tok, texts[j], func(s string) { got = append(got, s) })
			if want == nil || err != nil || !slices.Equal(got, *want) {
				t.Errorf("%s: %q\n got %q, %v\nwant %q", component, texts[j], got, err, want)
				break
			}
		}
	}
}

// TestOraclePre compares the ways to split of tokenizer.ggml.pre with patterns.
func TestOraclePre(t *testing.T) {
	o := newOracle(t)
	gpt2 := splitPatterns[0]
	for name, patterns := range map[string][]string{
		"gpt-2": {gpt2}, "smollm": {`\p{N}`, gpt2}, "llama-bpe": {splitPatterns[1]}, "dbrx": {splitPatterns[1]}, "qwen2": {splitPatterns[2]},
		"default": {`[\p{P}\$\+<=>\^~\|]+`, gpt2, `\p{N}+`, `[0-9][0-9][0-9]`},
	} {
		var stages []string
		for _, p := range patterns {
			quoted, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			stages = append(stages, fmt.Sprintf(`{"type":"Split","pattern":{"Regex":%s},"behavior":"Isolated","invert":false}`, quoted))
		}
		component := `{"type":"Sequence","pretokenizers":[` + strings.Join(stages, ",") + `,{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]}`
		v := DefaultVocab("gpt2", name)
		v.Tokens, v.AddBOS = []string{"a"}, false
		tok, err := FromVocab(v)
		if err != nil {
			t.Fatal(err)
		}
		texts := soups(11, 300)
		for j, want := range ask[string, []string](t, o, wrap("pre_tokenizer", component), "pretokenize", texts) {
			var got []string
			err := preTokenize(tok, texts[j], func(s string) { got = append(got, s) })
			if want == nil || err != nil || !slices.Equal(got, *want) {
				t.Errorf("%s: %q\n got %q, %v\nwant %q", name, texts[j], got, err, want)
				break
			}
		}
	}
}

// preTokenize calls f with the pieces of a text.
func preTokenize(tok *Tokenizer, text string, f func(string)) error {
	emit := func(p piece) error { f(p.text); return nil }
	for i := len(tok.preTokenizers) - 1; i >= 0; i-- {
		stage, next := tok.preTokenizers[i], emit
		if b, ok := stage.(byteLevel); ok {
			b.raw = false
			stage = b
		}
		emit = func(p piece) error { return stage.split(p, next) }
	}
	if text == "" {
		return nil
	}
	return emit(piece{text, true, newBudget(len(text))})
}

// templates to encode and decode with: a model of testdata, and what is put in
// the place of its parts.
var oracleTokenizers = []struct{ name, base, parts string }{
	{"gpt2", "bbpe_gpt2", `{}`},
	{"added flags", "bbpe_added_flags", `{}`},
	{"llama3", "bbpe_llama3", `{}`},
	{"qwen2", "bbpe_qwen2", `{}`},
	{"smollm", "bbpe_smollm", `{}`},
	{"bert", "bert_wordpiece", `{}`},
	{"gemma", "spm_bpe_gemma", `{}`},
	{"llama2", "spm_bpe_llama2", `{}`},
	{"metaspace", "spm_bpe_metaspace_first", `{}`},
	{"unigram", "unigram_metaspace", `{}`},
	{"roberta", "bbpe_gpt2", `{"post_processor":{"type":"RobertaProcessing","sep":["a",64],"cls":["!",0],"trim_offsets":true,"add_prefix_space":true},
		"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}}`},
	{"bert processing", "bert_wordpiece", `{"post_processor":{"type":"BertProcessing","sep":["[SEP]",3],"cls":["[CLS]",2]},"decoder":{"type":"WordPiece","prefix":"##","cleanup":false}}`},
	{"no decoder", "bert_wordpiece", `{"decoder":null,"pre_tokenizer":{"type":"Whitespace"}}`},
	{"byte level normalizer", "bbpe_gpt2", `{"normalizer":{"type":"ByteLevel"},"pre_tokenizer":null}`},
	{"no pre-tokenizer", "spm_bpe_llama2", `{"normalizer":{"type":"Replace","pattern":{"String":" "},"content":"▁"}}`},
	{"metaspace split", "spm_bpe_metaspace_first", `{"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true},"decoder":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}}`},
	{"strip first", "spm_bpe_metaspace_first", `{"normalizer":{"type":"Strip","strip_left":true,"strip_right":true}}`},
	{"decoder", "spm_bpe_llama2", `{"decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"},{"type":"Strip","content":"e","start":1,"stop":2},{"type":"Fuse"},{"type":"Replace","pattern":{"String":"th"},"content":"<TH>"}]}}`},
	{"suffix decoder", "spm_bpe_llama2", `{"decoder":{"type":"BPEDecoder","suffix":"e"}}`},
	{"two strips", "spm_bpe_llama2", `{"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"a"},"content":"*"},{"type":"Fuse"},{"type":"Strip","content":"▁","start":2,"stop":0}]}}`},
}

// variant is a tokenizer.json with other parts, and changes inside the model.
func variant(t *testing.T, base, parts, model string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", base, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file, inner map[string]json.RawMessage
	for _, step := range []struct {
		data string
		into *map[string]json.RawMessage
	}{{string(data), &file}, {parts, &file}} {
		if err := json.Unmarshal([]byte(step.data), step.into); err != nil {
			t.Fatal(err)
		}
	}
	if err := json.Unmarshal(file["model"], &inner); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(model), &inner); err != nil {
		t.Fatal(err)
	}
	if file["model"], err = json.Marshal(inner); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestOracleTokenizers(t *testing.T) {
	o := newOracle(t)
	for i, c := range oracleTokenizers {
		t.Run(c.name, func(t *testing.T) { compare(t, o, variant(t, c.base, c.parts, `{}`), uint64(i)) })
	}
	for i, c := range []struct{ base, model string }{
		{"spm_bpe_llama2", `{"byte_fallback":false}`},
		{"spm_bpe_llama2", `{"byte_fallback":false,"fuse_unk":false}`},
		{"spm_bpe_llama2", `{"byte_fallback":false,"unk_token":null}`},
		{"spm_bpe_llama2", `{"ignore_merges":true}`},
		{"spm_bpe_llama2", `{"byte_fallback":false,"continuing_subword_prefix":"","end_of_word_suffix":"e"}`},
		{"bbpe_gpt2", `{"ignore_merges":true}`},
		{"bbpe_llama3", `{"ignore_merges":false}`},
		{"unigram_metaspace", `{"byte_fallback":true}`},
		{"bert_wordpiece", `{"max_input_chars_per_word":4}`},
	} {
		t.Run(c.base+c.model, func(t *testing.T) { compare(t, o, variant(t, c.base, `{}`, c.model), uint64(100+i)) })
	}
}

// compare encodes random texts and decodes random ids.
func compare(t *testing.T, o *oracle, data []byte, seed uint64) {
	t.Helper()
	tok, err := FromJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	var pieces []string
	for _, token := range tok.definition.added {
		pieces = append(pieces, token.content, strings.ToLower(token.content), token.content[:len(token.content)/2])
	}
	texts := soups(seed, 150, pieces...)
	for i, text := range texts {
		texts[i] = strings.ToValidUTF8(text, "")
	}
	compareTexts(t, o, tok, data, texts)
	rng := rand.New(rand.NewPCG(seed, 2))
	var sequences [][]int32
	for range 150 {
		ids := []int32{}
		for range rng.IntN(10) {
			if id := rng.Int32N(int32(tok.VocabSize())); tok.known[id] {
				ids = append(ids, id)
			}
		}
		sequences = append(sequences, ids)
	}
	for i, want := range ask[[]int32, [2]string](t, o, data, "decode", sequences) {
		if want == nil {
			continue // the library panics: Strip on a token shorter than stop, an empty list
		}
		for k, skip := range []bool{false, true} {
			got, err := tok.Decode(sequences[i], skip)
			if err != nil || got != want[k] {
				t.Errorf("Decode(%v, %v): %v\n got %q\nwant %q", sequences[i], skip, err, got, want)
				return
			}
			if streamed := stream(t, tok, sequences[i], skip); streamed != want[k] && !strings.Contains(want[k], "\ufffd") {
				t.Errorf("stream of %v, %v:\n got %q\nwant %q", sequences[i], skip, streamed, want)
				return
			}
		}
	}
}

// compareTexts encodes texts in each way.
func compareTexts(t *testing.T, o *oracle, tok *Tokenizer, data []byte, texts []string) {
	t.Helper()
	bad := 0
	for i, want := range ask[string, [3][]int32](t, o, data, "encode", texts) {
		for k, opt := range []EncodeOptions{{ParseSpecial: true}, {AddSpecial: true, ParseSpecial: true}, {}} {
			got, err := tok.Encode(texts[i], opt)
			if want == nil || err != nil || !slices.Equal(got, want[k]) {
				t.Errorf("Encode(%q, %+v): %v\n got %v\nwant %v", texts[i], opt, err, got, want)
				bad++
				break
			}
		}
		if bad > 3 {
			return
		}
	}
}

const splitAtBlanks = `"pre_tokenizer":{"type":"WhitespaceSplit"},`

// handmadeModels have the rarer options.
var handmadeModels = []string{
	file(`{"type":"BPE","vocab":{"a":0,"##a":1,"##b":2,"ab":3,"##ab":4,"b":5,"##c":6,"##bc":7,"abc":8,"abab":9,"u":10},"merges":["##b ##c","a ##b","a ##bc","##a ##b","ab ##ab"],
		"continuing_subword_prefix":"##","unk_token":"u"}`, splitAtBlanks),
	file(`{"type":"BPE","vocab":{"a":0,"a</w>":1,"b":2,"b</w>":3,"ab</w>":4,"ab":5,"abab</w>":6,"c":7,"u":8},"merges":["a b</w>","a b","ab ab</w>"],"end_of_word_suffix":"</w>","unk_token":"u","fuse_unk":true}`, splitAtBlanks),
	file(`{"type":"BPE","vocab":{"a":0,"##a":1,"##b</w>":2,"ab</w>":3,"c</w>":4,"<0x23>":5,"<0x62>":6,"<0x63>":7},"merges":["a ##b</w>"],"continuing_subword_prefix":"##","end_of_word_suffix":"</w>","byte_fallback":true}`, splitAtBlanks),
	file(`{"type":"BPE","vocab":{"a":0,"b":1,"aa":2,"aaa":3,"aaaa":4,"ab":5,"ba":6,"aba":7},"merges":["aa a","a a","aa aa","a b","b a","ab a","a ba"]}`, ""),
	file(`{"type":"BPE","vocab":{"a":0,"b":1,"u":2,"ua":3,"uu":4},"merges":["u u","u a"],"unk_token":"u"}`, ""),
	file(`{"type":"Unigram","unk_id":0,"vocab":[["<u>",0],["a",-1],["b",-1.5],["ab",-2.5],["aba",-3.5],["ca",-1],["<",-3]]}`, ""),
	file(`{"type":"Unigram","unk_id":2,"vocab":[["a",-1],["abc",-1],["c",-9],["ab",-0.25],["bc",-1.75]],"byte_fallback":true}`, ""),
	file(`{"type":"WordPiece","vocab":{"u":0,"a":1,"ab":2,"##c":3,"##ca":4,"##a":5,"b":6},"unk_token":"u","continuing_subword_prefix":"##","max_input_chars_per_word":6}`, splitAtBlanks),
	file(`{"type":"WordLevel","vocab":{"u":0,"a":1,"ab":2,"ca":3},"unk_token":"u"}`, splitAtBlanks),
}

// fewLetters are texts for handmadeModels.
func fewLetters(n, length int) []string {
	rng := rand.New(rand.NewPCG(7, 7))
	texts := make([]string, n)
	for i := range texts {
		for range rng.IntN(length) {
			texts[i] += string("aaaabbbcc d"[rng.IntN(11)])
		}
	}
	return texts
}

// TestOracleHandmade compares small models, on texts of few letters.
func TestOracleHandmade(t *testing.T) {
	o := newOracle(t)
	for _, data := range handmadeModels {
		tok, err := FromJSON([]byte(data))
		if err != nil {
			t.Errorf("%v\n%s", err, data)
			continue
		}
		compareTexts(t, o, tok, []byte(data), fewLetters(300, 150))
	}
}

func stream(t *testing.T, tok *Tokenizer, ids []int32, skip bool) string {
	t.Helper()
	s := tok.NewStream(skip)
	text := ""
	for _, id := range ids {
		part, err := s.Add(id)
		if err != nil {
			t.Fatal(err)
		}
		text += part
	}
	return text + s.Flush()
}
