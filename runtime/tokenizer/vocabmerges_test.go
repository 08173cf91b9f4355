package tokenizer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
)

// splitGPT2 is bbpe_gpt2's vocabulary as vocab.json and merges.txt, with tokens
// dropped and added.
func splitGPT2(t testing.TB, dir string, drop []string, add map[string]int) VocabMerges {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "bbpe_gpt2", "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Model struct {
			Vocab  map[string]int
			Merges []string
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	vocab := file.Model.Vocab
	for _, token := range drop {
		delete(vocab, token)
	}
	for token, id := range add {
		vocab[token] = id
	}
	if drop != nil { // ids without gaps
		tokens := make([]string, 0, len(vocab))
		for token := range vocab {
			tokens = append(tokens, token)
		}
		slices.SortFunc(tokens, func(a, b string) int { return vocab[a] - vocab[b] })
		for id, token := range tokens {
			vocab[token] = id
		}
	}
	merges := "#version: 0.2\n"
	for _, m := range file.Model.Merges {
		left, right, _ := strings.Cut(m, " ")
		if !slices.Contains(drop, left) && !slices.Contains(drop, right) && !slices.Contains(drop, left+right) {
			merges += m + "\n"
		}
	}
	v := VocabMerges{Merges: []byte(merges)}
	if v.Vocab, err = json.Marshal(vocab); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestVocabMergesTable: the two files have the ids of the tokenizer.json.
func TestVocabMergesTable(t *testing.T) {
	dir := tables(t)
	v := splitGPT2(t, dir, nil, nil)
	for name, merges := range map[string][]byte{
		"plain": v.Merges, "CRLF": bytes.ReplaceAll(v.Merges, []byte("\n"), []byte("\r\n")),
		"no version": bytes.TrimPrefix(v.Merges, []byte("#version: 0.2\n")), "no last line end": bytes.TrimSuffix(v.Merges, []byte("\n")),
		"blank end": append(slices.Clone(v.Merges), "\n\r\n\n"...),
	} {
		t.Run(name, func(t *testing.T) {
			v := v
			v.Merges = merges
			tok, err := fromVocabMerges(&v)
			if err != nil {
				t.Fatal(err)
			}
			checkTables(t, tok, filepath.Join(dir, "bbpe_gpt2"))
		})
	}
}

// fromVocabMerges is the tokenizer, as a program would make it.
func fromVocabMerges(v *VocabMerges) (*Tokenizer, error) {
	data, err := v.JSON()
	if err != nil {
		return nil, err
	}
	tok, err := FromJSON(data)
	if err != nil {
		return nil, fmt.Errorf("FromJSON refuses what JSON wrote: %w", err)
	}
	escape, err := TextEscapeOf(v.Config)
	if err != nil {
		return nil, err
	}
	return tok, tok.SetTextEscape(escape)
}

// A vocabMergesCase is a line of testdata/vocabmerges/cases.jsonl, which make.py
// beside it explains.
type vocabMergesCase struct {
	Name    string
	Add     map[string]int
	Drop    []string
	Config  json.RawMessage
	Special json.RawMessage `json:"special_tokens_map"`
	Added   json.RawMessage `json:"added_tokens"`
	Rows    []struct {
		Text        *string
		IDs         []int32
		WithSpecial []int32 `json:"ids_special"`
		AsText      []int32 `json:"ids_special_as_text"`
		Decoded     string
		DecodedSkip string `json:"decoded_skip"`
	}
}

func vocabMergesCases(t testing.TB) []vocabMergesCase {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "vocabmerges", "cases.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var cases []vocabMergesCase
	for dec := json.NewDecoder(bufio.NewReader(f)); dec.More(); {
		var c vocabMergesCase
		if err := dec.Decode(&c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	return cases
}

func (c *vocabMergesCase) files(t testing.TB) VocabMerges {
	v := splitGPT2(t, "testdata", c.Drop, c.Add)
	v.Config, v.SpecialTokens, v.Added = c.Config, c.Special, c.Added
	return v
}

// TestVocabMergesCases compares with transformers.
func TestVocabMergesCases(t *testing.T) {
	rows := 0
	for _, c := range vocabMergesCases(t) {
		t.Run(c.Name, func(t *testing.T) {
			v := c.files(t)
			tok, err := fromVocabMerges(&v)
			if err != nil {
				t.Fatal(err)
			}
			if want := strings.HasPrefix(c.Name, "JSON"); want != (tok.TextEscape() == EscapeJSON) {
				t.Fatalf("the text escape is %q", tok.TextEscape())
			}
			for _, r := range c.Rows {
				rows++
				if r.Text == nil {
					for skip, want := range map[bool]string{false: r.Decoded, true: r.DecodedSkip} {
						got, err := tok.Decode(r.IDs, skip)
						if err != nil || got != want {
							t.Errorf("Decode(%v, %v): %v\n got %q\nwant %q", r.IDs, skip, err, got, want)
						}
						if got := stream(t, tok, r.IDs, skip); got != want {
							t.Errorf("stream of %v, %v\n got %q\nwant %q", r.IDs, skip, got, want)
						}
					}
					continue
				}
				check := func(o EncodeOptions, want []int32) {
					got, err := tok.Encode(*r.Text, o)
					if err != nil || !slices.Equal(got, want) {
						t.Errorf("Encode(%q, %+v): %v\n got %v\nwant %v", *r.Text, o, err, got, want)
					}
				}
				check(EncodeOptions{ParseSpecial: true}, r.IDs)
				check(EncodeOptions{ParseSpecial: true, AddSpecial: true}, r.WithSpecial)
				if r.AsText != nil {
					check(EncodeOptions{}, r.AsText)
				}
			}
		})
	}
	if rows < 1000 {
		t.Errorf("only %d rows", rows)
	}
}

// TestVocabMergesOracle: the library reads the tokenizer.json that JSON writes
// and gives the ids that this package does.
func TestVocabMergesOracle(t *testing.T) {
	o := newOracle(t)
	for i, c := range vocabMergesCases(t) {
		t.Run(c.Name, func(t *testing.T) {
			v := c.files(t)
			data, err := v.JSON()
			if err != nil {
				t.Fatal(err)
			}
			compare(t, o, data, uint64(300+i))
		})
	}
}

// TestVocabMergesRefused lists files that are wrong, and what the error names.
func TestVocabMergesRefused(t *testing.T) {
	const vocab, merges = `{"a":0,"b":1,"ab":2}`, "#version: 0.2\na b\n"
	config := func(s string) VocabMerges {
		return VocabMerges{Vocab: []byte(vocab), Merges: []byte(merges), Config: []byte(s)}
	}
	with := func(vocab, merges string) VocabMerges {
		return VocabMerges{Vocab: []byte(vocab), Merges: []byte(merges)}
	}
	special := func(s string) VocabMerges {
		v := with(vocab, merges)
		v.SpecialTokens = []byte(s)
		return v
	}
	added := func(s string) VocabMerges {
		v := with(vocab, merges)
		v.Added = []byte(s)
		return v
	}
	for _, c := range []struct {
		v           VocabMerges
		want        string
		unsupported bool
	}{
		{VocabMerges{Merges: []byte(merges)}, "vocab.json: at byte 0: not JSON", false},
		{with(``, merges), "vocab.json: at byte 0: not JSON", false},
		{with(`{`, merges), "vocab.json: at byte 1: not JSON", false},
		{with(`[]`, merges), "vocab.json: found \"[]\", expected an object", false},
		{with(`{}`, merges), "vocab.json: found no tokens", false},
		{with("{\"\xff\":0}", merges), "vocab.json: at byte 2: found a byte that is not UTF-8", false},
		{with(`{"a":0,"b":1,"a":2}`, merges), `vocab.json: the token "a" stands there twice`, false},
		{with(`{"a":0,"b":0}`, merges), `vocab.json: the tokens "a" and "b" have the same id 0`, false},
		{with(`{"a":-1}`, merges), `vocab.json: the id of "a" is -1`, false},
		{with(`{"a":1.5}`, merges), `vocab.json: the id of "a" is 1.5`, false},
		{with(`{"a":"0"}`, merges), `vocab.json: the id of "a" is "0"`, false},
		{with(`{"a":null}`, merges), `vocab.json: the id of "a" is null`, false},
		{with(`{"a":{"b":1}}`, merges), `vocab.json: the id of "a" is {`, false},
		{with(`{"a":99999999999999999999}`, merges), `vocab.json: the id of "a" is 9999`, false},
		{with(`{"a":2147483646}`, merges), "vocab.json: the highest id is 2147483646, but there are only 1 tokens", false},
		{with(vocab, ""), "merges.txt: the file is empty", false},
		{with(vocab, "\n\r\n"), "merges.txt: the file is empty", false},
		{with(vocab, "#version: 0.2\na b\nab\n"), `merges.txt: line 3: found "ab", expected two tokens`, false},
		{with(vocab, "a b c"), `merges.txt: line 1: found "a b c"`, false},
		{with(vocab, "a  b"), `merges.txt: line 1: found "a  b"`, false},
		{with(vocab, " b"), `merges.txt: line 1: found " b"`, false},
		{with(vocab, "a "), `merges.txt: line 1: found "a "`, false},
		{with(vocab, "a b\n\na b"), `merges.txt: line 2: found ""`, false},
		{with(vocab, "a b\r\na b\r\n"), `merges.txt: line 2: the merge of "a" and "b" stands in line 1 already`, false},
		{with(vocab, "a x"), `needs the token "x", which vocab.json does not have`, false},
		{with(vocab, "x a"), `needs the token "x", which`, false},
		{with(vocab, "b a"), `needs the token "ba", which`, false},
		{with(vocab, "a \xff"), `merges.txt: line 1: the merge of "a" and "\xff" needs`, false},
		{with(vocab, "\x00\x01"), `merges.txt: line 1: found "\x00\x01"`, false},
		{config(`{`), "tokenizer_config.json: at byte 1: not JSON", false},
		{config(`[]`), "tokenizer_config.json: found", false},
		{config(`{"a":1,"a":1}`), `tokenizer_config.json: the field "a" stands there twice`, false},
		{config(`{"tokenizer_class":7}`), "tokenizer_config.json: tokenizer_class: found 7", false},
		{config(`{"tokenizer_class":"Qwen2Tokenizer"}`), `tokenizer_config.json: tokenizer_class: found "Qwen2Tokenizer"`, true},
		{config(`{"auto_map":{"AutoTokenizer":["own.OwnTokenizer",null]}}`), `found "OwnTokenizer"`, true},
		{config(`{"auto_map":{"AutoTokenizer":7}}`), `auto_map.AutoTokenizer: found 7`, false},
		{config(`{"auto_map":7}`), `auto_map: found 7`, false},
		{config(`{"add_bos_token":"yes"}`), `add_bos_token: found "yes"`, false},
		{config(`{"add_prefix_space":1}`), `add_prefix_space: found 1`, false},
		{config(`{"add_prefix_space":true,"tokenizer_class":"JSONGPT2Tokenizer"}`), "add_prefix_space: found true; not supported with JSONGPT2Tokenizer", true},
		{config(`{"errors":"ignore"}`), `errors: found "ignore"`, true},
		{config(`{"add_bos_token":true,"bos_token":null}`), "tokenizer_config.json: add_bos_token: found true, but there is no bos_token", false},
		{config(`{"bos_token":7}`), "tokenizer_config.json: bos_token: found", false},
		{config(`{"bos_token":{"lstrip":true}}`), `bos_token: the field "content" is missing`, false},
		{config(`{"bos_token":{"content":"a","trim":true}}`), `bos_token: the field "trim" is not known`, true},
		{config(`{"bos_token":"` + strings.Repeat("x", 5000) + `"}`), "bos_token: an added token of 5000 bytes", true},
		{config(`{"additional_special_tokens":[null]}`), "additional_special_tokens[0]: found null", false},
		{config(`{"additional_special_tokens":{}}`), "additional_special_tokens: found {}", false},
		{config(`{"added_tokens_decoder":7}`), "tokenizer_config.json: added_tokens_decoder: found", false},
		{config(`{"added_tokens_decoder":{"x":{"content":"x"}}}`), `added_tokens_decoder["x"]: expected an id`, false},
		{config(`{"added_tokens_decoder":{"-1":{"content":"x"}}}`), `added_tokens_decoder["-1"]: expected an id`, false},
		{config(`{"added_tokens_decoder":{"9999999999":{"content":"x"}}}`), `added_tokens_decoder["9999999999"]: expected an id`, false},
		{config(`{"added_tokens_decoder":{"3":7}}`), `added_tokens_decoder["3"]: found`, false},
		{config(`{"added_tokens_decoder":{"2000000000":{"content":"x"}}}`), `tokenizer_config.json: the token "x" has the id 2000000000, expected 3`, false},
		{config(`{"added_tokens_decoder":{"1":{"content":"a"}}}`), `tokenizer_config.json: the token "a" has the id 1, expected 0`, false},
		{config(`{"added_tokens_decoder":{"3":{"content":"x"},"4":{"content":"x"}}}`), `the token "x" stands there twice`, false},
		{special(`{"bos_token":[]}`), "special_tokens_map.json: bos_token: found", false},
		{special(`"x"`), "special_tokens_map.json: found", false},
		{added(`{"x":7}`), `added_tokens.json: the token "x" has the id 7, expected 3`, false},
		{added(`{"x":"3"}`), `added_tokens.json: the id of "x" is "3"`, false},
		{added(`{"x":3,"y":3}`), `added_tokens.json: the token "y" has the id 3, expected 4`, false},
		{added(`{"x":3,"x":3}`), `added_tokens.json: the token "x" stands there twice`, false},
	} {
		_, err := c.v.JSON()
		var malformed *format.FormatError
		var unsupported *format.UnsupportedError
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.As(err, &unsupported) != c.unsupported || errors.As(err, &malformed) == c.unsupported {
			t.Errorf("%q %q %q %q %q:\n got %v\nwant %s", c.v.Vocab, c.v.Merges, c.v.Config, c.v.SpecialTokens, c.v.Added, err, c.want)
		}
	}
}

func TestTextEscapeOf(t *testing.T) {
	for config, want := range map[string]TextEscape{
		`{}`: EscapeNone, `{"tokenizer_class":"GPT2Tokenizer"}`: EscapeNone, `{"tokenizer_class":null}`: EscapeNone,
		`{"tokenizer_class":"JSONGPT2Tokenizer"}`:                                                                      EscapeJSON,
		`{"tokenizer_class":"GPT2Tokenizer","auto_map":{"AutoTokenizer":"tokenizer.JSONGPT2Tokenizer"}}`:               EscapeJSON,
		`{"auto_map":{"AutoTokenizer":["someone/repository--tokenizer.JSONGPT2Tokenizer",null]}}`:                      EscapeJSON,
		`{"tokenizer_class":"JSONGPT2Tokenizer","auto_map":{"AutoModel":"x.Y"}}`:                                       EscapeJSON,
		`{"tokenizer_class":"LlamaTokenizer","auto_map":{"AutoTokenizer":[null,null]},"added_tokens_decoder":"wrong"}`: EscapeNone,
	} {
		if got, err := TextEscapeOf([]byte(config)); err != nil || got != want {
			t.Errorf("TextEscapeOf(%s) = %q, %v; expected %q", config, got, err, want)
		}
	}
	for _, e := range []TextEscape{EscapeNone, EscapeJSON} {
		if got, err := TextEscapeOf([]byte(`{"tokenizer_class": "` + e.Class() + `"}`)); err != nil || got != e {
			t.Errorf("the class of %q gives %q, %v", e, got, err)
		}
	}
	if got, err := TextEscapeOf(nil); err != nil || got != EscapeNone {
		t.Errorf("without a file: %q, %v", got, err)
	}
	for config, want := range map[string]string{
		`{`: "tokenizer_config.json: at byte 1", `{"tokenizer_class":[]}`: "tokenizer_class: found []", "\xff": "UTF-8",
	} {
		if _, err := TextEscapeOf([]byte(config)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("TextEscapeOf(%q): %v; expected %q", config, err, want)
		}
	}
}

// FuzzVocabMerges: whatever JSON writes, FromJSON reads.
func FuzzVocabMerges(f *testing.F) {
	f.Add([]byte(`{"a":0,"b":1,"ab":2}`), []byte("#version: 0.2\na b\n"), []byte(`{}`), []byte(`{}`), []byte(`{"x":3}`))
	for _, c := range vocabMergesCases(f) {
		files := [3][]byte{c.Config, c.Special, c.Added}
		for i := range files {
			if files[i] == nil {
				files[i] = []byte(`{}`)
			}
		}
		f.Add([]byte(`{"a":0,"b":1,"ab":2,"<|endoftext|>":3}`), []byte("a b"), files[0], files[1], files[2])
	}
	f.Fuzz(func(t *testing.T, vocab, merges, config, special, added []byte) {
		v := VocabMerges{vocab, merges, config, special, added}
		data, err := v.JSON()
		if err != nil {
			return
		}
		tok, err := FromJSON(data)
		if err != nil {
			t.Fatalf("FromJSON refuses what JSON wrote: %v\n%s", err, data)
		}
		tok.Encode("ab <|endoftext|>", EncodeOptions{AddSpecial: true, ParseSpecial: true})
	})
}
