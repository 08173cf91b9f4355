package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/firstpassage/fpa/format"
)

// file is a tokenizer.json of a model and further fields.
func file(model, fields string) string {
	return `{"version":"1.0",` + fields + `"model":` + model + `}`
}

const (
	tinyBPE     = `{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}`
	tinyWords   = `{"type":"WordLevel","vocab":{"a":0,"[UNK]":1},"unk_token":"[UNK]"}`
	addedFields = `"id":%s,"content":%q,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true`
)

// TestRefused lists files that are wrong, or beyond what is supported, and what
// the error has to name.
func TestRefused(t *testing.T) {
	nested := func(n int, open, inner, end string) string {
		return strings.Repeat(open, n) + inner + strings.Repeat(end, n)
	}
	for _, c := range []struct {
		name, data, want string
		unsupported      bool
	}{
		{"empty", "", "JSON", false},
		{"not JSON", "{", "JSON", false},
		{"null", "null", "object", false},
		{"array", "[]", "object", false},
		{"trailing", file(tinyBPE, "") + "x", "JSON", false},
		{"not UTF-8", "{\"model\":\"\xff\"}", "UTF-8", false},
		{"half a pair", file(`{"type":"BPE","vocab":{"\ud83d":0},"merges":[]}`, ""), "surrogate", false},
		{"half a pair, twice", file(`{"type":"BPE","vocab":{"\\\ud83d\ud83d":0},"merges":[]}`, ""), "surrogate", false},
		{"deep", nested(200000, "[", "", "]"), "JSON", false},
		{"no model", `{"version":"1.0"}`, "model", false},
		{"model null", file("null", ""), "model", false},
		{"field twice", `{"model":1,"model":2}`, "twice", false},
		{"version", `{"version":"2.0"}`, "2.0", true},
		{"model type", file(`{"type":"Markov"}`, ""), "Markov", true},
		{"model without type", file(`{"vocab":{}}`, ""), "type", false},
		{"unknown model field", file(`{"type":"BPE","vocab":{"a":0},"merges":[],"temperature":1}`, ""), "temperature", true},
		{"dropout", file(`{"type":"BPE","vocab":{"a":0},"merges":[],"dropout":0.1}`, ""), "dropout", true},
		{"no vocab", file(`{"type":"BPE","merges":[]}`, ""), "vocab", false},
		{"no merges", file(`{"type":"BPE","vocab":{"a":0}}`, ""), "merges", false},
		{"vocab array", file(`{"type":"BPE","vocab":[],"merges":[]}`, ""), "object", false},
		{"negative id", file(`{"type":"BPE","vocab":{"a":-1},"merges":[]}`, ""), "-1", false},
		{"huge id", file(`{"type":"BPE","vocab":{"a":2000000000},"merges":[]}`, ""), "2000000000", false},
		{"id beyond int64", file(`{"type":"BPE","vocab":{"a":99999999999999999999},"merges":[]}`, ""), "99999999999999999999", false},
		{"id not whole", file(`{"type":"BPE","vocab":{"a":0.5},"merges":[]}`, ""), "0.5", false},
		{"id string", file(`{"type":"BPE","vocab":{"a":"0"},"merges":[]}`, ""), "number", false},
		{"id null", file(`{"type":"BPE","vocab":{"a":null},"merges":[]}`, ""), "number", false},
		{"same id", file(`{"type":"BPE","vocab":{"a":0,"b":0},"merges":[]}`, ""), "same id", false},
		{"token twice", file(`{"type":"BPE","vocab":{"a":0,"a":1},"merges":[]}`, ""), "twice", false},
		{"merge of unknown", file(`{"type":"BPE","vocab":{"a":0,"ab":1},"merges":["a b"]}`, ""), `"b"`, false},
		{"merge into unknown", file(`{"type":"BPE","vocab":{"a":0,"b":1},"merges":[["a","b"]]}`, ""), `"ab"`, false},
		{"merge of three", file(`{"type":"BPE","vocab":{"a":0},"merges":["a a a"]}`, ""), "merge 0", false},
		{"merge of numbers", file(`{"type":"BPE","vocab":{"a":0},"merges":[[1,2]]}`, ""), "merge 0", false},
		{"merge number", file(`{"type":"BPE","vocab":{"a":0},"merges":[1]}`, ""), "merge 0", false},
		{"merges object", file(`{"type":"BPE","vocab":{"a":0},"merges":{}}`, ""), "array", false},
		{"prefix", file(`{"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"],"continuing_subword_prefix":"##"}`, ""), "##", false},
		{"unk_id", file(`{"type":"Unigram","vocab":[["a",0]],"unk_id":1}`, ""), "unk_id", false},
		{"unk_id negative", file(`{"type":"Unigram","vocab":[["a",0]],"unk_id":-5}`, ""), "unk_id", false},
		{"score missing", file(`{"type":"Unigram","vocab":[["a"]]}`, ""), "vocab[0]", false},
		{"score string", file(`{"type":"Unigram","vocab":[["a","b"]]}`, ""), "vocab[0]", false},
		{"normalizer", file(tinyBPE, `"normalizer":{"type":"Rot13"},`), "Rot13", true},
		{"normalizer without type", file(tinyBPE, `"normalizer":{},`), "type", false},
		{"normalizer field", file(tinyBPE, `"normalizer":{"type":"NFC","fast":true},`), "fast", true},
		{"normalizer nested", file(tinyBPE, `"normalizer":`+nested(100, `{"type":"Sequence","normalizers":[`, `{"type":"NFC"}`, `]}`)+`,`), "nested", true},
		{"charsmap", file(tinyBPE, `"normalizer":{"type":"Precompiled","precompiled_charsmap":"AA=="},`), "charsmap", false},
		{"charsmap size", file(tinyBPE, `"normalizer":{"type":"Precompiled","precompiled_charsmap":"/////wAAAAA="},`), "charsmap", false},
		{"pre-tokenizer", file(tinyBPE, `"pre_tokenizer":{"type":"UnicodeScripts"},`), "UnicodeScripts", true},
		{"behavior", file(tinyBPE, `"pre_tokenizer":{"type":"Split","pattern":{"String":" "},"behavior":"Odd","invert":false},`), "Odd", true},
		{"pattern", file(tinyBPE, `"pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated","invert":false},`), "pattern", true},
		{"pattern kind", file(tinyBPE, `"pre_tokenizer":{"type":"Split","pattern":{"Glob":"*"},"behavior":"Isolated","invert":false},`), "pattern", true},
		{"pattern empty", file(tinyBPE, `"pre_tokenizer":{"type":"Split","pattern":{"String":""},"behavior":"Isolated","invert":false},`), "empty", true},
		{"pattern escape", file(tinyBPE, `"pre_tokenizer":{"type":"Split","pattern":{"Regex":"\\h"},"behavior":"Isolated","invert":false},`), `\\h`, true},
		{"pattern group", file(tinyBPE, `"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?<n>a)"},"behavior":"Isolated","invert":false},`), "group", true},
		{"pattern long", file(tinyBPE, `"pre_tokenizer":{"type":"Split","pattern":{"Regex":"`+strings.Repeat("a", 20000)+`"},"behavior":"Isolated","invert":false},`), "bytes", true},
		{"pattern deep", file(tinyBPE, `"pre_tokenizer":{"type":"Split","pattern":{"Regex":"`+nested(5000, "(", "a", ")")+`"},"behavior":"Isolated","invert":false},`), "nested", true},
		{"scheme", file(tinyBPE, `"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"last"},`), "last", true},
		{"replacement", file(tinyBPE, `"pre_tokenizer":{"type":"Metaspace","replacement":"ab"},`), "one character", false},
		{"length", file(tinyBPE, `"pre_tokenizer":{"type":"FixedLength","length":0},`), "length", false},
		{"decoder", file(tinyBPE, `"decoder":{"type":"CTC"},`), "CTC", true},
		{"decoder pattern", file(tinyBPE, `"decoder":{"type":"Replace","pattern":{"Regex":"a"},"content":"b"},`), "regular expression", true},
		{"decoder growth", file(tinyBPE, `"decoder":{"type":"Replace","pattern":{"String":"a"},"content":"`+strings.Repeat("a", 1000)+`"},`), "longer", true},
		{"two byte levels", file(tinyBPE, `"pre_tokenizer":{"type":"Sequence","pretokenizers":[`+strings.TrimSuffix(strings.Repeat(`{"type":"ByteLevel","add_prefix_space":false},`, 2), ",")+`]},`), "ByteLevel", true},
		{"stages", file(tinyBPE, `"normalizer":{"type":"Sequence","normalizers":[`+strings.TrimSuffix(strings.Repeat(`{"type":"NFC"},`, 65), ",")+`]},`), "64", true},
		{"prepend", file(tinyBPE, `"normalizer":{"type":"Prepend","prepend":"`+strings.Repeat("a", 65)+`"},`), "65", true},
		{"long token", file(`{"type":"Unigram","unk_id":0,"vocab":[["`+strings.Repeat("a", 5000)+`",0]]}`, ""), "5000", true},
		{"post-processor", file(tinyBPE, `"post_processor":{"type":"Other"},`), "Other", true},
		{"template id", file(tinyBPE, `"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"x":{"id":"x","ids":[7],"tokens":["x"]}}},`), "7", false},
		{"template token", file(tinyBPE, `"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x","type_id":0}}],"pair":[],"special_tokens":{}},`), `"x"`, false},
		{"template without text", file(tinyBPE, `"post_processor":{"type":"TemplateProcessing","single":[],"pair":[],"special_tokens":{}},`), "once", true},
		{"template sequence B", file(tinyBPE, `"post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"B","type_id":0}}],"pair":[],"special_tokens":{}},`), "piece 0", true},
		{"cls negative", file(tinyBPE, `"post_processor":{"type":"BertProcessing","cls":["a",-1],"sep":["b",1]},`), "-1", false},
		{"added id", file(tinyBPE, `"added_tokens":[{`+fmt.Sprintf(addedFields, "-1", "x")+`}],`), "-1", false},
		{"added id huge", file(tinyBPE, `"added_tokens":[{`+fmt.Sprintf(addedFields, "4294967296", "x")+`}],`), "4294967296", false},
		{"added field", file(tinyBPE, `"added_tokens":[{"id":3}],`), "content", false},
		{"added long", file(tinyBPE, `"added_tokens":[{`+fmt.Sprintf(addedFields, "3", strings.Repeat("x", 5000))+`}],`), "5000", true},
		{"added on a hole", file(`{"type":"BPE","vocab":{"a":0,"b":5},"merges":[]}`, `"added_tokens":[`+strings.TrimSuffix(strings.Repeat(`{`+fmt.Sprintf(addedFields, "2", "x")+`},`, 1), ",")+`,{`+fmt.Sprintf(addedFields, "3", "y")+`},{`+fmt.Sprintf(addedFields, "4", "z")+`},{`+fmt.Sprintf(addedFields, "5", "w")+`}],`), "hole", false},
	} {
		_, err := FromJSON([]byte(c.data))
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		var wrong *format.FormatError
		var unsupported *format.UnsupportedError
		if !errors.As(err, &wrong) && !errors.As(err, &unsupported) || (unsupported != nil) != c.unsupported {
			t.Errorf("%s: the error is a %T: %v", c.name, err, err)
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error does not name %q: %v", c.name, c.want, err)
		}
	}
}

// TestRefusedVocab is TestRefused for the vocabularies of GGUF files.
func TestRefusedVocab(t *testing.T) {
	gpt2 := func(change func(*Vocab)) Vocab {
		v := DefaultVocab("gpt2", "gpt-2")
		v.Tokens = []string{"a", "b", "ab", "<end>"}
		v.Types = []int32{1, 1, 1, 3}
		v.Merges = []string{"a b"}
		change(&v)
		return v
	}
	llama := func(change func(*Vocab)) Vocab {
		v := DefaultVocab("llama", "default")
		v.Tokens = []string{"<unk>", "<s>", "</s>", "<0x0A>", "a"}
		v.Types = []int32{2, 3, 3, 6, 1}
		v.Scores = make([]float32, 5)
		change(&v)
		return v
	}
	for _, c := range []struct {
		name string
		v    Vocab
		want string
	}{
		{"model", gpt2(func(v *Vocab) { v.Model = "rwkv" }), "rwkv"},
		{"pre", gpt2(func(v *Vocab) { v.Pre = "tekken" }), "tekken"},
		{"no tokens", gpt2(func(v *Vocab) { v.Tokens = nil }), "no tokens"},
		{"types", gpt2(func(v *Vocab) { v.Types = v.Types[:2] }), "token_type"},
		{"type", gpt2(func(v *Vocab) { v.Types[0] = 9 }), "type 9"},
		{"scores", llama(func(v *Vocab) { v.Scores = v.Scores[:2] }), "scores"},
		{"no scores", llama(func(v *Vocab) { v.Scores = nil }), "scores"},
		{"same token", gpt2(func(v *Vocab) { v.Tokens[1] = "a" }), "both"},
		{"not UTF-8", gpt2(func(v *Vocab) { v.Tokens[1] = "\xff" }), "UTF-8"},
		{"merge", gpt2(func(v *Vocab) { v.Merges[0] = "a c" }), `"c"`},
		{"merge without blank", gpt2(func(v *Vocab) { v.Merges[0] = "ab" }), "merge 0"},
		{"bos", gpt2(func(v *Vocab) { v.BOS = 4 }), "bos"},
		{"eos negative", gpt2(func(v *Vocab) { v.EOS = -2 }), "eos"},
		{"eos huge", gpt2(func(v *Vocab) { v.EOS = 1 << 30 }), "eos"},
		{"add bos", gpt2(func(v *Vocab) { v.AddBOS = true }), "bos"},
		{"byte token", llama(func(v *Vocab) { v.Tokens[3] = "<0x-1>" }), "<0x-1>"},
		{"byte token digits", llama(func(v *Vocab) { v.Tokens[3] = "<0xZZ>" }), "<0xZZ>"},
		{"byte token sign", llama(func(v *Vocab) { v.Tokens[3] = "<0x+A>" }), "<0x+A>"},
		{"charsmap", func() Vocab {
			v := llama(func(*Vocab) {})
			v.Model, v.Charsmap = "t5", []byte{1}
			return v
		}(), "charsmap"},
	} {
		if _, err := FromVocab(c.v); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error does not name %q: %v", c.name, c.want, err)
		}
	}
}

// TestSurrogatePair reads a character that is written as two escapes.
func TestSurrogatePair(t *testing.T) {
	tok, err := FromJSON([]byte(file(`{"type":"BPE","vocab":{"\\ud83d":0,"\ud83d\ude00":1},"merges":[]}`, "")))
	if err != nil {
		t.Fatal(err)
	}
	if id, ok := tok.ID("\U0001f600"); !ok || id != 1 {
		t.Errorf("the id is %d, %v", id, ok)
	}
}

// TestOddByteTokens decodes tokens that look like byte tokens as text.
func TestOddByteTokens(t *testing.T) {
	tok, err := FromJSON([]byte(file(`{"type":"BPE","byte_fallback":true,"vocab":{"<0x-1>":0,"<0xZZ>":1,"<0x41>":2,"<0x4>":3,"<0x100>":4},"merges":[]}`,
		`"decoder":{"type":"ByteFallback"},`)))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tok.Decode([]int32{0, 1, 2, 3, 4}, false); err != nil || got != "<0x-1><0xZZ>A<0x4><0x100>" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestUnknownIDs(t *testing.T) {
	tok, err := FromJSON([]byte(file(`{"type":"BPE","vocab":{"a":0,"b":3},"merges":[]}`, "")))
	if err != nil {
		t.Fatal(err)
	}
	if n := tok.VocabSize(); n != 4 {
		t.Errorf("VocabSize is %d, want 4", n)
	}
	for _, id := range []int32{-1, 1, 4, 1 << 30, -1 << 31} {
		if _, err := tok.Decode([]int32{0, id}, false); err == nil || !strings.Contains(err.Error(), fmt.Sprint(id)) {
			t.Errorf("Decode of id %d: %v", id, err)
		}
		if _, err := tok.NewStream(false).Add(id); err == nil {
			t.Errorf("Add of id %d: no error", id)
		}
		if _, ok := tok.Token(id); ok || tok.IsSpecial(id) {
			t.Errorf("id %d is known", id)
		}
	}
}

// TestUnknownCharacter wants an error where there is no token for a text.
func TestUnknownCharacter(t *testing.T) {
	for _, model := range []string{
		`{"type":"WordLevel","vocab":{"a":0},"unk_token":"[UNK]"}`,
		`{"type":"WordPiece","vocab":{"a":0},"unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100}`,
		`{"type":"Unigram","vocab":[["a",0]]}`,
		`{"type":"BPE","vocab":{"a":0},"merges":[],"unk_token":"[UNK]"}`,
	} {
		tok, err := FromJSON([]byte(file(model, "")))
		if err != nil {
			t.Fatal(err)
		}
		if ids, err := tok.Encode("b", EncodeOptions{}); err == nil {
			t.Errorf("%s: Encode(b) is %v", model, ids)
		}
		if ids, err := tok.Encode("a", EncodeOptions{}); err != nil || !slices.Equal(ids, []int32{0}) {
			t.Errorf("%s: Encode(a) is %v, %v", model, ids, err)
		}
	}
}

// TestGrowth stops normalizers that make a text longer and longer.
func TestGrowth(t *testing.T) {
	double := `{"type":"Replace","pattern":{"String":"a"},"content":"aa"},`
	for _, normalizer := range []string{
		`{"type":"Sequence","normalizers":[` + strings.TrimSuffix(strings.Repeat(double, 60), ",") + `]}`,
		`{"type":"Sequence","normalizers":[` + strings.TrimSuffix(strings.Repeat(strings.Replace(double, "String", "Regex", 1), 60), ",") + `]}`,
		`{"type":"Replace","pattern":{"Regex":""},"content":"` + strings.Repeat("a", 1000) + `"}`,
		`{"type":"Replace","pattern":{"String":"a"},"content":"` + strings.Repeat("a", 1000) + `"}`,
	} {
		tok, err := FromJSON([]byte(file(tinyWords, `"normalizer":`+normalizer+`,`)))
		if err != nil {
			if !strings.Contains(err.Error(), "empty") {
				t.Error(err)
			}
			continue
		}
		if _, err := tok.Encode(strings.Repeat("a", 10000), EncodeOptions{}); !errors.Is(err, errTooLong) {
			t.Errorf("%.60s: the error is %v", normalizer, err)
		}
	}
}

// TestCatastrophicPattern stops a pattern that backtracks exponentially.
func TestCatastrophicPattern(t *testing.T) {
	if os.Getenv("FPA_LONG_TESTS") != "1" {
		t.Skip("waits for a time limit of seconds; set FPA_LONG_TESTS=1")
	}
	tok, err := FromJSON([]byte(file(tinyWords, `"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a+)+$"},"behavior":"Isolated","invert":false},`)))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, err = tok.Encode(strings.Repeat("a", 64)+"b", EncodeOptions{})
	if !errors.Is(err, errSlowPattern) {
		t.Errorf("the error is %v", err)
	}
	if took := time.Since(start); took > 4*matchTimeout {
		t.Errorf("it took %v", took)
	}
}

// TestLongTexts encodes texts that make naive algorithms quadratic. They take
// milliseconds; the time allowed is for machines that are busy.
func TestLongTexts(t *testing.T) {
	const size = 1 << 18
	texts := map[string]string{
		"one letter": strings.Repeat("a", size), "blanks": strings.Repeat(" ", size), "lines": strings.Repeat("\n", size),
		"the": strings.Repeat("the", size/3), "digits": strings.Repeat("1", size), "marks": "e" + strings.Repeat("\u0301", size/2),
		"wide": strings.Repeat("橋", size/3), "invalid": strings.Repeat("\xff", size/3), "cut": strings.Repeat("\xf0\x9f", size/4),
		"added": strings.Repeat("<|im_start|", size/11), "meta": strings.Repeat("▁", size/3), "apostrophes": strings.Repeat("'", size),
	}
	for _, name := range jsonFolders {
		tok := load(t, filepath.Join("testdata", name, "tokenizer.json"))
		for what, text := range texts {
			start := time.Now()
			ids, err := tok.Encode(text, EncodeOptions{ParseSpecial: true})
			if err != nil {
				t.Errorf("%s, %s: %v", name, what, err)
			}
			if took := time.Since(start); took > time.Minute {
				t.Errorf("%s, %s: %d ids took %v", name, what, len(ids), took)
			}
		}
	}
}

// TestMemory reads a file that claims much, and looks at what is allocated.
func TestMemory(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, data := range []string{
		file(`{"type":"BPE","vocab":{"a":2147483646},"merges":[]}`, ""),
		file(tinyBPE, `"added_tokens":[{`+fmt.Sprintf(addedFields, "2147483646", "x")+`}],`),
		file(`{"type":"WordPiece","vocab":{"a":0,"[UNK]":1},"unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":9223372036854775807}`, ""),
		file(`{"type":"Unigram","vocab":[["a",0]],"unk_id":9223372036854775807}`, ""),
	} {
		if tok, err := FromJSON([]byte(data)); err == nil {
			if _, err := tok.Encode("aa", EncodeOptions{}); err != nil {
				t.Error(err)
			}
		}
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 4<<20 {
		t.Errorf("small files made the tokenizer allocate %d bytes", grown)
	}
}

// TestConcurrent uses one tokenizer in several goroutines; for the race detector.
func TestConcurrent(t *testing.T) {
	tok := load(t, filepath.Join("testdata", "bbpe_llama3", "tokenizer.json"))
	texts := soups(9, 50)
	want := make([][]int32, len(texts))
	for i, text := range texts {
		want[i], _ = tok.Encode(text, EncodeOptions{AddSpecial: true})
	}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for i, text := range texts {
				got, err := tok.Encode(text, EncodeOptions{AddSpecial: true})
				if err != nil || !slices.Equal(got, want[i]) {
					t.Errorf("Encode(%q) is %v, %v; want %v", text, got, err, want[i])
				}
				if _, err := tok.Decode(got, false); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

// TestRoles checks the tokens with a part of their own, and the reverse look-up.
func TestRoles(t *testing.T) {
	tok := load(t, filepath.Join("testdata", "spm_bpe_metaspace_first", "tokenizer.json"))
	for name, f := range map[string]func() (int32, bool){"<s>": tok.BOS, "</s>": tok.EOS, "<unk>": tok.UNK} {
		id, ok := f()
		token, _ := tok.Token(id)
		back, _ := tok.ID(name)
		if !ok || token != name || back != id || !tok.IsSpecial(id) {
			t.Errorf("the role of %s has id %d, token %q, special %v", name, id, token, tok.IsSpecial(id))
		}
	}
	if _, ok := tok.PAD(); ok {
		t.Error("there is a token for padding")
	}
	if _, ok := tok.EOT(); ok {
		t.Error("there is a token for the end of a turn")
	}
	chat := DefaultVocab("gpt2", "gpt-2")
	chat.Tokens, chat.Types, chat.Merges = []string{"a", "<|im_end|>", "<|end|>"}, []int32{1, 3, 1}, nil
	talk, err := FromVocab(chat)
	if err != nil {
		t.Fatal(err)
	}
	if id, ok := talk.EOT(); !ok || id != 1 {
		t.Errorf("the end of a turn is %d, %v; want 1", id, ok)
	}
	if _, ok := tok.ID("no such token"); ok {
		t.Error("an unknown token has an id")
	}
}

// seeds are the files of testdata for fuzzing.
func seeds(f *testing.F) {
	for _, name := range jsonFolders {
		data, err := os.ReadFile(filepath.Join("testdata", name, "tokenizer.json"))
		if err != nil {
			f.Fatal(err)
		}
		// Short vocabularies keep the fuzzer fast: the structure counts.
		var file map[string]json.RawMessage
		if err := json.Unmarshal(data, &file); err != nil {
			f.Fatal(err)
		}
		model := tinyBPE
		if bytes.Contains(file["model"], []byte(`"Unigram"`)) {
			model = `{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-1],["▁",-2]],"byte_fallback":false}`
		} else if bytes.Contains(file["model"], []byte(`"WordPiece"`)) {
			model = `{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{"[UNK]":0,"a":1,"##b":2}}`
		}
		file["model"] = json.RawMessage(model)
		delete(file, "added_tokens")
		delete(file, "post_processor")
		short, err := json.Marshal(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(short, "a b\nab ▁a")
	}
	f.Add([]byte(file(tinyWords, `"added_tokens":[{`+fmt.Sprintf(addedFields, "2", "<x>")+`}],"post_processor":{"type":"BertProcessing","cls":["a",0],"sep":["a",0]},`)), "<x> a")
}

// FuzzFromJSON wants no panic, whatever the file, and ids inside the vocabulary.
func FuzzFromJSON(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		tok, err := FromJSON(data)
		if err != nil || len(text) > 1000 {
			return
		}
		ids, err := tok.Encode(text, EncodeOptions{AddSpecial: true, ParseSpecial: true})
		if err != nil {
			return
		}
		if _, err := tok.Decode(ids, true); err != nil {
			t.Errorf("Encode gave an id outside the vocabulary: %v", err)
		}
		stream(t, tok, ids, false)
		if v, err := tok.Vocab(); err == nil {
			FromVocab(v) // may fail, must not panic
		}
	})
}

// FuzzEncodeDecode wants byte-level BPE to give every text back.
func FuzzEncodeDecode(f *testing.F) {
	toks := []*Tokenizer{}
	for _, name := range []string{"bbpe_gpt2", "bbpe_llama3", "bbpe_smollm"} {
		toks = append(toks, load(f, filepath.Join("testdata", name, "tokenizer.json")))
	}
	for _, text := range soups(3, 40) {
		f.Add(text)
	}
	f.Add("\xff\xf0\x9f\x98a\xed\xa0\x80")
	f.Fuzz(func(t *testing.T, text string) {
		for _, tok := range toks {
			for _, o := range []EncodeOptions{{}, {ParseSpecial: true}} {
				ids, err := tok.Encode(text, o)
				if err != nil {
					t.Fatal(err)
				}
				back, err := tok.Decode(ids, false)
				if want := toValid(text); err != nil || back != want {
					t.Errorf("%q comes back as %q, %v", want, back, err)
				}
				if streamed := stream(t, tok, ids, false); streamed != back {
					t.Errorf("the stream gives %q, Decode %q", streamed, back)
				}
			}
		}
	})
}
