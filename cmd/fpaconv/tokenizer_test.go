package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// gpt2Files are the tokenizer files of a small GPT-2: the bytes in the order of
// its alphabet, "00", " a" and the end of a text.
func gpt2Files(t *testing.T, class string) map[string]string {
	t.Helper()
	vocab := make(map[string]int)
	printable := func(b int) bool { return b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae }
	moved := 0x100
	for b := range 256 {
		r := rune(b)
		if !printable(b) {
			r = rune(moved)
			moved++
		}
		vocab[string(r)] = b
	}
	vocab["00"], vocab["Ġa"], vocab["<|endoftext|>"] = 256, 257, 258
	data, err := json.Marshal(vocab)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"vocab.json": string(data), "merges.txt": "#version: 0.2\n0 0\nĠ a\n",
		"tokenizer_config.json":   `{"tokenizer_class":"` + class + `","add_bos_token":true,"added_tokens_decoder":{"258":{"content":"<|endoftext|>","special":true}}}`,
		"special_tokens_map.json": `{"bos_token":"<|endoftext|>"}`,
	}
}

// withTokenizer is a folder with passkey's weights and other files.
func withTokenizer(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors"} {
		data, err := os.ReadFile(filepath.Join(passkey, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return write(t, dir, files)
}

func write(t *testing.T, dir string, files map[string]string) string {
	t.Helper()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// checkTokenizer opens a model and holds its tokenizer against ids.
func checkTokenizer(t *testing.T, path string, o model.OpenOptions, text string, want ...int32) {
	t.Helper()
	f, err := model.Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	got, err := tok.Encode(text, tokenizer.EncodeOptions{AddSpecial: true, ParseSpecial: true})
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%s: Encode(%q) = %v, %v; expected %v", path, text, got, err, want)
	}
	if back, err := tok.Decode(want, true); err != nil || back != text {
		t.Errorf("%s: Decode(%v) = %q, %v; expected %q", path, want, back, err, text)
	}
}

// TestVocabMerges converts folders without a tokenizer.json.
func TestVocabMerges(t *testing.T) {
	const text = "a a\né"
	plain := []int32{258, 'a', 257, '\n', 0xc3, 0xa9}
	escaped := []int32{258, 'a', 257, '\\', 'n', '\\', 'u', 256, 'e', '9'}
	for class, want := range map[string][]int32{"GPT2Tokenizer": plain, "JSONGPT2Tokenizer": escaped} {
		files := gpt2Files(t, class)
		dir := withTokenizer(t, files)
		checkTokenizer(t, dir, model.OpenOptions{}, text, want...)
		path := filepath.Join(t.TempDir(), "x.gguf")
		_, stderr := mustRun(t, dir, "-o", path)
		checkTokenizer(t, path, model.OpenOptions{}, text, want...)

		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		escape, present, err := f.Str(gguf.KeyTextEscape)
		f.Close()
		isJSON := class == "JSONGPT2Tokenizer"
		if err != nil || present != isJSON || isJSON && escape != "json" {
			t.Errorf("%s: %s is %q, %v, %v", class, gguf.KeyTextEscape, escape, present, err)
		}
		if says := strings.Contains(stderr, "other GGUF tools may give some texts other token ids: text is escaped as JSON first"); says != isJSON {
			t.Errorf("%s: stderr %q", class, stderr)
		}

		if isJSON {
			checkUnknownEscape(t, path)
		}

		// The converted file again, and the tokenizer from another folder.
		again := filepath.Join(t.TempDir(), "y.gguf")
		mustRun(t, path, "-o", again)
		checkTokenizer(t, again, model.OpenOptions{}, text, want...)
		elsewhere := write(t, t.TempDir(), files)
		checkTokenizer(t, passkey, model.OpenOptions{TokenizerPath: elsewhere}, text, want...)
	}
}

// checkUnknownEscape: a file with another escape is refused.
func checkUnknownEscape(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, after, ok := strings.Cut(string(data), gguf.KeyTextEscape)
	if !ok {
		t.Fatalf("%s has no %s", path, gguf.KeyTextEscape)
	}
	other := filepath.Join(t.TempDir(), "other.gguf")
	write(t, filepath.Dir(other), map[string]string{"other.gguf": before + gguf.KeyTextEscape + strings.Replace(after, "json", "yaml", 1)})
	f, err := model.Open(other, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Tokenizer(); err == nil || !strings.Contains(err.Error(), `text escape: found "yaml", can do "json"`) {
		t.Errorf("error %v", err)
	}
}

// TestEscapedTokenizerJSON: the class counts where there is a tokenizer.json too.
func TestEscapedTokenizerJSON(t *testing.T) {
	files := gpt2Files(t, "JSONGPT2Tokenizer")
	v := tokenizer.VocabMerges{Vocab: []byte(files["vocab.json"]), Merges: []byte(files["merges.txt"])}
	data, err := v.JSON()
	if err != nil {
		t.Fatal(err)
	}
	dir := withTokenizer(t, map[string]string{"tokenizer.json": string(data), "tokenizer_config.json": files["tokenizer_config.json"]})
	checkTokenizer(t, dir, model.OpenOptions{}, "\n\"", '\\', 'n', '\\', '"')
}

func TestBadVocabMerges(t *testing.T) {
	good := gpt2Files(t, "JSONGPT2Tokenizer")
	for _, c := range []struct{ name, content, says string }{
		{"vocab.json", "", "tokenizer: found merges.txt but no vocab.json"},
		{"merges.txt", "", "tokenizer: found vocab.json but no merges.txt"},
		{"merges.txt", "a b\n", `tokenizer: merges.txt: line 1: the merge of "a" and "b" needs the token "ab"`},
		{"vocab.json", `{"a":-1}`, `tokenizer: vocab.json: the id of "a" is -1`},
		{"vocab.json", strings.Replace(good["vocab.json"], ":258", ":700", 1), `the token "<|endoftext|>" has the id 258, expected 700`},
		{"tokenizer_config.json", `{"tokenizer_class":"CTRLTokenizer"}`, `tokenizer: tokenizer_config.json: tokenizer_class: found "CTRLTokenizer"`},
	} {
		files := gpt2Files(t, "JSONGPT2Tokenizer")
		files[c.name] = c.content
		if c.content == "" {
			delete(files, c.name)
		}
		mustFail(t, 1, c.says, withTokenizer(t, files), "-o", filepath.Join(t.TempDir(), "x.gguf"))
	}
	empty := t.TempDir()
	mustFail(t, 1, empty+": found no tokenizer, expected tokenizer.json, or vocab.json and merges.txt", passkey, "--tokenizer", empty, "-o", filepath.Join(t.TempDir(), "x.gguf"))
}
