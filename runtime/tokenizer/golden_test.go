package tokenizer

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/components.jsonl anew, with the reference library (see newOracle)")

// A golden is what the reference library makes of some texts, or lists of
// tokens, with one component.
type golden struct {
	Operation string            `json:"operation"` // of oracle.py
	Tokenizer string            `json:"tokenizer"`
	Items     []json.RawMessage `json:"items"`
	Results   []json.RawMessage `json:"results"`
}

// TestGoldens checks components, as the tests with the oracle do on more texts,
// without the oracle.
func TestGoldens(t *testing.T) {
	path := filepath.Join("testdata", "components.jsonl")
	if *update {
		if err := os.WriteFile(path, makeGoldens(t), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range bytes.Lines(data) {
		var g golden
		if err := json.Unmarshal(line, &g); err != nil {
			t.Fatal(err)
		}
		tok, err := FromJSON([]byte(g.Tokenizer))
		if err != nil {
			t.Errorf("%v\n%s", err, g.Tokenizer)
			continue
		}
		for i, item := range g.Items {
			n++
			if got := operate(t, tok, g.Operation, item); string(g.Results[i]) != "null" && got != string(g.Results[i]) {
				t.Errorf("%s: %s of %s\n got %s\nwant %s", g.Tokenizer, g.Operation, item, got, g.Results[i])
			}
		}
	}
	if n < 1000 {
		t.Errorf("%s has %d items only", path, n)
	}
}

// operate does an operation of oracle.py, and gives its result as JSON.
func operate(t *testing.T, tok *Tokenizer, operation string, item json.RawMessage) string {
	t.Helper()
	var text string
	var tokens []string
	into := any(&text)
	if operation == "join" {
		into = &tokens
	}
	if err := json.Unmarshal(item, into); err != nil {
		t.Fatal(err)
	}
	var result any
	var err error
	switch operation {
	case "normalize":
		var p piece
		p, err = tok.normalizer.normalize(piece{text: text, budget: newBudget(len(text))})
		result = p.text
	case "pretokenize":
		pieces := []string{}
		err = preTokenize(tok, text, func(s string) { pieces = append(pieces, s) })
		result = pieces
	case "encode":
		all := [][]int32{}
		for _, o := range []EncodeOptions{{ParseSpecial: true}, {AddSpecial: true, ParseSpecial: true}, {}} {
			var ids []int32
			if ids, err = tok.Encode(text, o); err != nil {
				break
			}
			all = append(all, ids)
		}
		result = all
	case "join":
		text := decodeAll(tok.decoder, slices.Clone(tokens))
		s, streamed := tok.NewStream(false), ""
		for _, token := range tokens {
			s.in(token)
			streamed += s.take()
		}
		if streamed += s.Flush(); streamed != text && !strings.Contains(text, "\ufffd") {
			t.Errorf("%q: the stream gives %q, all at once is %q", tokens, streamed, text)
		}
		result = text
	}
	if err != nil {
		t.Errorf("%s of %s: %v", operation, item, err)
	}
	return compact(t, result)
}

// compact is a value as JSON, spelled as in components.jsonl.
func compact(t *testing.T, value any) string {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		t.Fatal(err)
	}
	return string(bytes.TrimSpace(b.Bytes()))
}

// makeGoldens asks the oracle.
func makeGoldens(t *testing.T) []byte {
	t.Helper()
	o := newOracle(t)
	var out bytes.Buffer
	add := func(operation string, data []byte, items any) {
		var raw []json.RawMessage
		if err := json.Unmarshal([]byte(compact(t, items)), &raw); err != nil {
			t.Fatal(err)
		}
		g := golden{Operation: operation, Tokenizer: string(data), Items: raw}
		for _, result := range ask[json.RawMessage, any](t, o, data, operation, raw) {
			g.Results = append(g.Results, json.RawMessage(compact(t, result)))
		}
		fmt.Fprintln(&out, compact(t, g))
	}
	for i, component := range oracleNormalizers {
		add("normalize", wrap("normalizer", component), soups(uint64(50+i), 16))
	}
	charsmap, err := os.ReadFile(filepath.Join("testdata", "charsmap.b64"))
	if err != nil {
		t.Fatal(err)
	}
	add("normalize", wrap("normalizer", fmt.Sprintf(`{"type":"Precompiled","precompiled_charsmap":%q}`, charsmap)), soups(3, 60, clusters...))
	for i, component := range preTokenizerComponents(t) {
		add("pretokenize", wrap("pre_tokenizer", component), soups(uint64(50+i), 8))
	}
	for _, data := range handmadeModels {
		add("encode", []byte(data), fewLetters(12, 40))
	}
	added := func(more string) string {
		return `{` + fmt.Sprintf(addedFields, "4", "ab") + `},{` + fmt.Sprintf(addedFields, "5", "<x>") + `},` + more
	}
	word := `{"id":6,"content":"ca","single_word":true,"lstrip":true,"rstrip":true,"normalized":true,"special":false}`
	add("encode", []byte(file(`{"type":"WordLevel","vocab":{"u":0,"a":1,"ca":2,"b":3},"unk_token":"u"}`, splitAtBlanks+`"added_tokens":[`+added(word)+`],`)),
		[]string{"ca", " ca ", "a ca b", "aca", "ca.", "_ca", "ca1", "caca", "ca ca  ca", "ab<x>ca", "<x> ca", "<x", "ab ab", "éca", "ca\u0301"})
	tokens := [][]string{{}, {"▁a"}, {"▁a", "▁b▁c"}, {"a</w>", "b", "c</w>"}, {"a</w>b</w>", "</w>"}, {"th", "##e", "##", ".", "do", "not"}, {"n't", " do not", "'s", "a ' b"},
		{"<0xC3>", "<0xA9>", "x", "<0xC3>", "<0x+1>", "<0x-1>"}, {"Ġa", "Ã", "©", "é", "Ċ"}, {"eeTHee", "e", "the"}, {"<0xE2>", "<0x82>"}, {"Ģ", "ģ"}}
	for _, component := range []string{
		`{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`, `{"type":"ByteFallback"}`, `{"type":"Fuse"}`, `{"type":"BPEDecoder","suffix":"</w>"}`,
		`{"type":"WordPiece","prefix":"##","cleanup":true}`, `{"type":"WordPiece","prefix":"##","cleanup":false}`,
		`{"type":"Metaspace","replacement":"▁","prepend_scheme":"always"}`, `{"type":"Metaspace","replacement":"▁","prepend_scheme":"never"}`,
		`{"type":"Replace","pattern":{"String":"▁"},"content":" "}`, `{"type":"Strip","content":"e","start":2,"stop":0}`, `{"type":"Strip","content":"e","start":1,"stop":1}`,
		`{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Replace","pattern":{"String":"th"},"content":"T"}]}`,
		`{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"},{"type":"Fuse"}]}`,
		`{"type":"Sequence","decoders":[{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},{"type":"Replace","pattern":{"String":"é"},"content":"E"}]}`,
	} {
		add("join", wrap("decoder", component), tokens)
	}
	return out.Bytes()
}
