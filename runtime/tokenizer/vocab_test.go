package tokenizer

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"golang.org/x/text/unicode/norm"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/gguf"
)

// vocabOf reads the vocabulary of a GGUF file.
func vocabOf(t *testing.T, path string) Vocab {
	t.Helper()
	r, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	info, err := r.Stat()
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Read(r, info.Size(), format.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	model, _, err := f.Str(gguf.KeyTokenizerModel)
	must(err)
	pre, _, err := f.Str(gguf.KeyTokenizerPre)
	must(err)
	v := DefaultVocab(model, pre)
	v.Tokens, _, err = f.Strings(gguf.KeyTokens)
	must(err)
	v.Types, _, err = f.Int32s(gguf.KeyTokenType)
	must(err)
	v.Scores, _, err = f.Floats(gguf.KeyScores)
	must(err)
	v.Merges, _, err = f.Strings(gguf.KeyMerges)
	must(err)
	for key, id := range map[string]*int{
		gguf.KeyBOS: &v.BOS, gguf.KeyEOS: &v.EOS, gguf.KeyUnknown: &v.UNK, gguf.KeyPadding: &v.PAD,
	} {
		n, present, err := f.Uint32(key)
		must(err)
		if present {
			*id = int(n)
		}
	}
	for key, b := range map[string]*bool{
		gguf.KeyAddBOS: &v.AddBOS, gguf.KeyAddEOS: &v.AddEOS, gguf.KeyAddSpacePrefix: &v.AddSpacePrefix,
	} {
		value, present, err := f.Bool(key)
		must(err)
		if present {
			*b = value
		}
	}
	return v
}

// ggufFolders are the tokenizers with a vocab.gguf.
var ggufFolders = []string{"bbpe_gpt2", "bbpe_llama3", "bbpe_qwen2", "bbpe_smollm", "spm_bpe_llama2"}

func TestTablesFromGGUF(t *testing.T) {
	for _, name := range ggufFolders {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(tables(t), name)
			tok, err := FromVocab(vocabOf(t, filepath.Join(dir, "vocab.gguf")))
			if err != nil {
				t.Fatal(err)
			}
			checkVocabTables(t, tok, dir, name == "bbpe_qwen2")
		})
	}
}

// checkVocabTables is checkTables for a tokenizer that cannot normalize: text
// that is not in NFC is left out where nfc says so.
func checkVocabTables(t *testing.T, tok *Tokenizer, dir string, nfc bool) {
	t.Helper()
	good, all := 0, 0
	for _, r := range readRows(t, filepath.Join(dir, "encode.jsonl")) {
		if nfc && !norm.NFC.IsNormalString(*r.Text) {
			continue
		}
		all++
		if checkEncode(t, tok, r) && checkDecode(t, tok, r, r.Special) {
			good++
		}
	}
	for _, r := range readRows(t, filepath.Join(dir, "decode.jsonl")) {
		all++
		if checkDecode(t, tok, r, r.IDs) {
			good++
		}
	}
	t.Logf("%d of %d rows", good, all)
	if all < 20 {
		t.Errorf("%s has %d rows only", dir, all)
	}
}

// TestVocab checks the way from a tokenizer.json through Vocab and back.
func TestVocab(t *testing.T) {
	want := map[string]struct {
		model, pre, inexact string
		addBOS, addEOS      bool
	}{
		"bbpe_added_flags":        {"gpt2", "gpt-2", "white space", true, true},
		"bbpe_gpt2":               {"gpt2", "gpt-2", "", false, false},
		"bbpe_llama3":             {"gpt2", "llama-bpe", "", true, false},
		"bbpe_qwen2":              {"gpt2", "qwen2", "NFC", false, false},
		"bbpe_smollm":             {"gpt2", "smollm", "", false, false},
		"bert_wordpiece":          {"bert", "default", "", true, false},
		"spm_bpe_gemma":           {"llama", "default", "", true, false},
		"spm_bpe_llama2":          {"llama", "default", "", true, false},
		"spm_bpe_metaspace_first": {"llama", "default", "no blank in front", true, true},
		"unigram_metaspace":       {"t5", "default", "normalized", false, true},
	}
	for _, name := range jsonFolders {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(tables(t), name)
			v, err := load(t, filepath.Join(dir, "tokenizer.json")).Vocab()
			if err != nil {
				t.Fatal(err)
			}
			w := want[name]
			if v.Model != w.model || v.Pre != w.pre || v.AddBOS != w.addBOS || v.AddEOS != w.addEOS {
				t.Errorf("Vocab has model %q, pre %q, add BOS %v, add EOS %v; want %+v", v.Model, v.Pre, v.AddBOS, v.AddEOS, w)
			}
			if (v.Inexact == "") != (w.inexact == "") || !strings.Contains(v.Inexact, w.inexact) {
				t.Errorf("Inexact is %q, want %q in it", v.Inexact, w.inexact)
			}
			tok, err := FromVocab(v)
			if err != nil {
				t.Fatal(err)
			}
			if v.Inexact == "" || name == "bbpe_qwen2" {
				checkVocabTables(t, tok, dir, name == "bbpe_qwen2")
			}
			again, err := tok.Vocab()
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(again.Tokens, v.Tokens) || !slices.Equal(again.Types, v.Types) || !slices.Equal(again.Scores, v.Scores) || !slices.Equal(again.Merges, v.Merges) {
				t.Error("the vocabulary changes on the way")
			}
		})
	}
}

// TestVocabAsPublished compares with the vocabularies that others wrote.
func TestVocabAsPublished(t *testing.T) {
	for _, name := range ggufFolders {
		dir := filepath.Join(tables(t), name)
		v, err := load(t, filepath.Join(dir, "tokenizer.json")).Vocab()
		if err != nil {
			t.Fatal(err)
		}
		w := vocabOf(t, filepath.Join(dir, "vocab.gguf"))
		if v.Model != w.Model || v.Pre != w.Pre || !slices.Equal(v.Tokens, w.Tokens) || !slices.Equal(v.Types, w.Types) ||
			!slices.Equal(v.Merges, w.Merges) || v.AddBOS != w.AddBOS {
			t.Errorf("%s: Vocab differs from vocab.gguf", name)
		}
	}
}

// TestVocabUnigram goes from a tokenizer.json like that of T5 through Vocab, and
// compares ids.
func TestVocabUnigram(t *testing.T) {
	charsmap, err := os.ReadFile(filepath.Join("testdata", "charsmap.b64"))
	if err != nil {
		t.Fatal(err)
	}
	precompiled := `{"type":"Precompiled","precompiled_charsmap":"` + string(charsmap) + `"}`
	metaspace := `{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}`
	for _, parts := range []string{
		`{"normalizer":` + precompiled + `,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},` + metaspace + `]}}`,
		`{"normalizer":{"type":"Sequence","normalizers":[` + precompiled + `,{"type":"Strip","strip_left":true,"strip_right":true},
			{"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "}]},"pre_tokenizer":` + metaspace + `}`,
		`{"normalizer":` + precompiled + `}`,
	} {
		tok, err := FromJSON(variant(t, "unigram_metaspace", parts, `{}`))
		if err != nil {
			t.Fatal(err)
		}
		v, err := tok.Vocab()
		if err != nil || v.Model != "t5" || v.Inexact != "" || !v.AddEOS {
			t.Fatalf("Vocab: %q, inexact %q, add EOS %v, %v", v.Model, v.Inexact, v.AddEOS, err)
		}
		back, err := FromVocab(v)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range soups(5, 200, "A", "ﬁ", "A\u0300") {
			// WhitespaceSplit splits at other white space too, which the charsmap
			// of a published model makes blanks.
			text = strings.Map(func(r rune) rune {
				if unicode.IsSpace(r) {
					return ' '
				}
				return r
			}, text)
			o := EncodeOptions{AddSpecial: true}
			want, err1 := tok.Encode(text, o)
			got, err2 := back.Encode(text, o)
			if err1 != nil || err2 != nil || !slices.Equal(got, want) {
				t.Fatalf("Encode(%q) is %v, %v; want %v, %v", text, got, err2, want, err1)
			}
		}
	}
}

// TestVocabInexact looks at what Vocab says of tokenizers that GGUF cannot tell.
func TestVocabInexact(t *testing.T) {
	for _, c := range []struct{ base, parts, model, want, fails string }{
		{"bbpe_gpt2", `{"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"ByteLevel","add_prefix_space":false}]}}`, `{}`, "no name", ""},
		{"bbpe_gpt2", `{"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true}}`, `{}`, "blank", ""},
		{"bbpe_gpt2", `{"normalizer":{"type":"Lowercase"}}`, `{}`, "normalized", ""},
		{"bbpe_gpt2", `{}`, `{"ignore_merges":true}`, "no name", ""},
		{"bbpe_gpt2", `{"pre_tokenizer":null}`, `{}`, "", "byte_fallback"},
		{"bbpe_gpt2", `{}`, `{"end_of_word_suffix":"</w>"}`, "", "end_of_word_suffix"},
		{"spm_bpe_llama2", `{}`, `{"ignore_merges":true}`, "not merged", ""},
		{"spm_bpe_llama2", `{}`, `{"merges":[]}`, "order of the merges", ""},
		{"spm_bpe_llama2", `{"normalizer":{"type":"NFC"}}`, `{}`, "no name", ""},
		{"spm_bpe_llama2", `{"pre_tokenizer":{"type":"Whitespace"}}`, `{}`, "no name", ""},
		{"unigram_metaspace", `{}`, `{"byte_fallback":true}`, "bytes", ""},
		{"unigram_metaspace", `{"pre_tokenizer":null}`, `{}`, "no name", ""},
		{"bert_wordpiece", `{"normalizer":null}`, `{}`, "normalized", ""},
		{"bert_wordpiece", `{"pre_tokenizer":{"type":"Whitespace"}}`, `{}`, "split", ""},
		{"bert_wordpiece", `{}`, `{"continuing_subword_prefix":"@@"}`, "", "@@"},
	} {
		tok, err := FromJSON(variant(t, c.base, c.parts, c.model))
		if err != nil {
			t.Fatal(err)
		}
		v, err := tok.Vocab()
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s %s %s: the error does not name %s: %v", c.base, c.parts, c.model, c.fails, err)
			}
		} else if err != nil || !strings.Contains(v.Inexact, c.want) {
			t.Errorf("%s %s %s: inexact is %q, want %q in it; %v", c.base, c.parts, c.model, v.Inexact, c.want, err)
		}
	}
}
