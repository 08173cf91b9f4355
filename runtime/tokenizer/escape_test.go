package tokenizer

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// escapeRow is a line of testdata/textescape/table.jsonl.
type escapeRow struct {
	Text    *string
	Escaped string
	Decoded *string
}

func escapeRows(t testing.TB) []escapeRow {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "textescape", "table.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var rows []escapeRow
	for dec := json.NewDecoder(f); dec.More(); {
		var r escapeRow
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
	}
	if len(rows) < 500 {
		t.Fatalf("%d rows, expected more", len(rows))
	}
	return rows
}

// checkUnescape holds a text against its unescaped form, at once and in parts.
func checkUnescape(t *testing.T, escaped, want string) {
	t.Helper()
	if got := unescapeJSON(escaped); got != want {
		t.Errorf("unescapeJSON(%q)\n got %q\nwant %q", escaped, got, want)
	}
	for _, size := range []int{1, 2, 3, 7} {
		if got, _ := unescapeParts(t, escaped, size); got != want {
			t.Errorf("%q in parts of %d characters\n got %q\nwant %q", escaped, size, got, want)
		}
	}
}

// unescapeParts unescapes a text that comes in parts of so many characters, and
// checks what is held back. first is what came before the end.
func unescapeParts(t *testing.T, text string, size int) (all, first string) {
	t.Helper()
	s := &unescapeStream{}
	var b strings.Builder
	out := func(text string) { b.WriteString(text) }
	runes := []rune(text)
	for len(runes) > 0 {
		n := min(size, len(runes))
		s.push(string(runes[:n]), out)
		runes = runes[n:]
		if len(s.held) > 11 || s.held != "" && s.held[0] != '\\' {
			t.Fatalf("%q in parts of %d: %q is held back", text, size, s.held)
		}
		if !utf8.ValidString(b.String()) {
			t.Fatalf("%q in parts of %d: %q ends inside a character", text, size, b.String())
		}
	}
	first = b.String()
	s.flush(out)
	return b.String(), first
}

func TestTextEscapeTable(t *testing.T) {
	for _, r := range escapeRows(t) {
		if r.Decoded != nil {
			checkUnescape(t, r.Escaped, *r.Decoded)
			continue
		}
		if got := escapeJSON(*r.Text); got != r.Escaped || escapedLen(*r.Text) != len(got) {
			t.Errorf("escapeJSON(%q)\n got %q\nwant %q", *r.Text, got, r.Escaped)
		}
		checkUnescape(t, r.Escaped, *r.Text)
	}
}

// TestUnescapeChoices lists what EscapeJSON defines for texts that Python's two
// decoders read differently, or not as UTF-8.
func TestUnescapeChoices(t *testing.T) {
	for _, c := range []struct{ escaped, want string }{
		{`\ud83d\ude00`, "😀"},
		{`\ud83d`, "\ufffd"},
		{`\ude00`, "\ufffd"},
		{`\ud83dx`, "\ufffdx"},
		{`\ud83d\n`, "\ufffd\n"},
		{`\ud83d\u0041`, "\ufffdA"},
		{`\ud83d\ud83d\ude00`, "\ufffd😀"},
		{`\ude00\ud83d`, "\ufffd\ufffd"},
		{`\ud83d\`, "\ufffd"},
		{`\ud83d\u`, "\ufffd"},
		{`\ud83d\ude0`, "\ufffd"},
		{`\ud83d\ude0g`, "\ufffdg"},
		{`\U0000d83d\ude00`, "\ufffd\ufffd"},
		{`\ud83d\U0000de00`, "\ufffd\ufffd"},
		{`é\q\u00`, `é\q`},
		{`日\x41"`, `日A"`},
		{`\/ " \/`, `/ " /`},
		{`\é`, `\é`},
		{`\N{BULLET}\N`, `\N{BULLET}\N`},
	} {
		checkUnescape(t, c.escaped, c.want)
	}
}

// TestUnescapeStreamIsPrompt: nothing is held back that is certain.
func TestUnescapeStreamIsPrompt(t *testing.T) {
	for _, c := range []struct{ text, before string }{
		{`a\u00e9`, "aé"}, {`\n`, "\n"}, {`\ud83d\ude00`, "😀"}, {`\ud83dx`, "\ufffdx"}, {`\ud83d\u0041`, "\ufffdA"}, {`\777`, "\u01ff"}, {`\18`, "\x018"},
		{`\`, ""}, {`\u00e`, ""}, {`\ud83d`, ""}, {`\ud83d\`, ""}, {`\ud83d\ude0`, ""}, {`\77`, ""}, {`x\x4`, "x"}, {`\\`, `\`}, {`\\u`, `\u`}, {`\q`, `\q`},
	} {
		for _, size := range []int{1, 2, 100} {
			if _, first := unescapeParts(t, c.text, size); first != c.before {
				t.Errorf("%q in parts of %d: %q before the end, expected %q", c.text, size, first, c.before)
			}
		}
	}
}

// TestTextEscapeOracle compares random texts with Python's json.
func TestTextEscapeOracle(t *testing.T) {
	python := os.Getenv("FPA_PYTHON")
	if python == "" {
		python = "python3"
	}
	rng := rand.New(rand.NewPCG(3, 4))
	var texts, escaped []string
	parts := []string{`\`, `\u`, `\ud83d`, `\uDE00`, `\u00`, `\x`, `\12`, `\n`, `\q`, `\\`, `\"`, `"`, "a", "0", "7", "f", "z", " ", "\n", "é", "日"}
	for range 5000 {
		var b strings.Builder
		for range rng.IntN(10) {
			b.WriteRune(rune(rng.IntN([]int{0x80, 0x300, 0x10000, 0x110000}[rng.IntN(4)])))
		}
		texts = append(texts, strings.ToValidUTF8(b.String(), "\ufffd"))
		b.Reset()
		for range rng.IntN(9) {
			b.WriteString(parts[rng.IntN(len(parts))])
		}
		escaped = append(escaped, b.String())
	}
	var in strings.Builder
	for _, request := range []map[string][]string{{"escape": texts}, {"unescape": escaped}} {
		line, err := json.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		in.Write(append(line, '\n'))
	}
	cmd := exec.Command(python, filepath.Join("testdata", "textescape", "escape.py"))
	cmd.Env = append(os.Environ(), "PYTHONUTF8=1", "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stdin = strings.NewReader(in.String())
	out, err := cmd.Output()
	if err != nil {
		message := fmt.Sprintf("no oracle: %s (FPA_PYTHON names another Python): %v", python, err)
		if os.Getenv("FPA_REQUIRE_ORACLES") == "1" {
			t.Fatal(message)
		}
		t.Skip(message)
	}
	answers := bufio.NewReader(strings.NewReader(string(out)))
	answer := func(n int) []*string {
		line, err := answers.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		var results []*string
		if err := json.Unmarshal(line, &results); err != nil {
			t.Fatal(err)
		}
		if len(results) != n {
			t.Fatalf("%d answers, expected %d", len(results), n)
		}
		return results
	}
	for i, want := range answer(len(texts)) {
		if got := escapeJSON(texts[i]); got != *want {
			t.Errorf("escapeJSON(%q)\n got %q\nwant %q", texts[i], got, *want)
		}
		checkUnescape(t, *want, texts[i])
	}
	compared := 0
	for i, want := range answer(len(escaped)) {
		if want != nil {
			compared++
			checkUnescape(t, escaped[i], *want)
		}
	}
	if compared < 2000 {
		t.Errorf("only %d texts compared", compared)
	}
}

// escaping is the tokenizer of a folder that escapes text.
func escaping(t testing.TB, folder string) *Tokenizer {
	t.Helper()
	tok := load(t, filepath.Join("testdata", folder, "tokenizer.json"))
	if err := tok.SetTextEscape(EscapeJSON); err != nil {
		t.Fatal(err)
	}
	if tok.TextEscape() != EscapeJSON {
		t.Fatalf("TextEscape is %q", tok.TextEscape())
	}
	if v, err := tok.Vocab(); err != nil || v.Inexact != "text is escaped as JSON first" {
		t.Fatalf("Vocab: %q, %v", v.Inexact, err)
	}
	return tok
}

func TestSetTextEscapeUnknown(t *testing.T) {
	tok := load(t, filepath.Join("testdata", "bbpe_gpt2", "tokenizer.json"))
	if err := tok.SetTextEscape("yaml"); err == nil || !strings.Contains(err.Error(), `found "yaml", can do "json"`) {
		t.Errorf("error %v", err)
	}
	if tok.TextEscape() != EscapeNone {
		t.Errorf("TextEscape is %q", tok.TextEscape())
	}
}

// TestEscapedPieces: what a stream gives of any ids is at each step valid, and
// in the end what Decode gives.
func TestEscapedPieces(t *testing.T) {
	tok := escaping(t, "bbpe_gpt2")
	rng := rand.New(rand.NewPCG(5, 6))
	var marks []int32
	for _, token := range []string{`\`, "u", "x", "d", "8", "3", "e", "0", "n", `"`} {
		id, ok := tok.ID(token)
		if !ok {
			t.Fatalf("no token %q", token)
		}
		marks = append(marks, id)
	}
	for range 3000 {
		var ids []int32
		for range rng.IntN(20) {
			if rng.IntN(4) > 0 {
				ids = append(ids, marks[rng.IntN(len(marks))])
			} else {
				ids = append(ids, rng.Int32N(int32(tok.VocabSize())))
			}
		}
		want, err := tok.Decode(ids, false)
		if err != nil {
			t.Fatal(err)
		}
		if got := stream(t, tok, ids, false); got != want {
			t.Fatalf("stream of %v\n got %q\nwant %q", ids, got, want)
		}
	}
}

// FuzzTextEscape: decoding an encoded text gives the text, at once and as a
// stream, and unescaping any text in any parts gives the same.
func FuzzTextEscape(f *testing.F) {
	tok := escaping(f, "bbpe_gpt2")
	for i, r := range escapeRows(f) {
		if i%10 == 0 {
			f.Add(r.Escaped, 1+i%7)
			if r.Text != nil {
				f.Add(*r.Text, 3)
			}
		}
	}
	f.Fuzz(func(t *testing.T, text string, size int) {
		text = strings.ToValidUTF8(text, "\ufffd")
		if size < 1 || size > 100 || len(text) > 10000 {
			t.Skip()
		}
		whole := unescapeJSON(text)
		if len(whole) > len(text) || !utf8.ValidString(whole) {
			t.Fatalf("unescapeJSON(%q) = %q", text, whole)
		}
		if parts, first := unescapeParts(t, text, size); parts != whole || !strings.HasPrefix(whole, first) {
			t.Fatalf("unescapeJSON(%q)\n whole %q\nparts %q", text, whole, parts)
		}
		escaped := escapeJSON(text)
		var decoded string
		if err := json.Unmarshal([]byte(`"`+escaped+`"`), &decoded); err != nil || decoded != text {
			t.Fatalf("%q escaped is %q, which JSON reads as %q: %v", text, escaped, decoded, err)
		}
		ids, err := tok.Encode(text, EncodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tok.Decode(ids, false); err != nil || got != text {
			t.Fatalf("Decode(Encode(%q)) = %q, %v", text, got, err)
		}
		if got := stream(t, tok, ids, false); got != text {
			t.Fatalf("stream of Encode(%q): %q", text, got)
		}
	})
}
