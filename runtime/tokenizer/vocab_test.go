package tokenizer

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
