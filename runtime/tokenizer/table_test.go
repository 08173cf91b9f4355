package tokenizer

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// row is a line of encode.jsonl or decode.jsonl; see testdata/README.md.
type row struct {
	Cat           string
	Text          *string
	IDs           []int32
	Special       []int32 `json:"ids_special"`
	AsText        []int32 `json:"ids_special_as_text"`
	Decoded       string
	DecodedSkip   string `json:"decoded_skip"`
	Stream        []*string
	Undefined     bool `json:"stream_undefined"`
	Lenient       string
	HasStream     bool `json:"-"`
	WithoutAsText bool `json:"-"`
}

// tables is the folder of the tables: the whole ones where FPA_SHARED says where
// they are, else the copies in testdata.
func tables(t *testing.T) string {
	if shared := os.Getenv("FPA_SHARED"); shared != "" {
		dir := filepath.Join(shared, "cases", "tokenizers")
		if _, err := os.Stat(dir); err != nil {
			t.Fatalf("FPA_SHARED is set, but: %v", err)
		}
		return dir
	}
	return "testdata"
}

func readRows(t *testing.T, path string) []row {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var rows []row
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r row
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if err := json.Unmarshal(lines.Bytes(), &fields); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		_, r.HasStream = fields["stream"]
		_, ok := fields["ids_special_as_text"]
		r.WithoutAsText = !ok
		rows = append(rows, r)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}

func load(t testing.TB, path string) *Tokenizer {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := FromJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// jsonFolders are the tokenizers with a tokenizer.json.
var jsonFolders = []string{
	"bbpe_added_flags", "bbpe_gpt2", "bbpe_llama3", "bbpe_qwen2", "bbpe_smollm", "bert_wordpiece",
	"spm_bpe_gemma", "spm_bpe_llama2", "spm_bpe_metaspace_first", "unigram_metaspace",
}

func TestTables(t *testing.T) {
	for _, name := range jsonFolders {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(tables(t), name)
			checkTables(t, load(t, filepath.Join(dir, "tokenizer.json")), dir)
		})
	}
}

// checkTables runs all rows of a folder.
func checkTables(t *testing.T, tok *Tokenizer, dir string) {
	t.Helper()
	good, all := 0, 0
	for _, r := range readRows(t, filepath.Join(dir, "encode.jsonl")) {
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

func checkEncode(t *testing.T, tok *Tokenizer, r row) bool {
	t.Helper()
	good := true
	check := func(what string, o EncodeOptions, want []int32) {
		got, err := tok.Encode(*r.Text, o)
		if err != nil {
			t.Errorf("%s: Encode(%.80q, %+v): %v", r.Cat, *r.Text, o, err)
			good = false
		} else if !slices.Equal(got, want) && r.Lenient == "" {
			t.Errorf("%s: %s of %.80q:\n got %v\nwant %v", r.Cat, what, *r.Text, got, want)
			good = false
		}
	}
	check("ids", EncodeOptions{ParseSpecial: true}, r.IDs)
	check("ids_special", EncodeOptions{AddSpecial: true, ParseSpecial: true}, r.Special)
	asText := r.AsText
	if r.WithoutAsText {
		asText = r.IDs
	}
	check("ids_special_as_text", EncodeOptions{}, asText)
	return good
}

func checkDecode(t *testing.T, tok *Tokenizer, r row, ids []int32) bool {
	t.Helper()
	good := true
	fail := func(format string, args ...any) {
		t.Helper()
		good = false
		t.Errorf(format, args...)
	}
	for _, skip := range []bool{false, true} {
		want := r.Decoded
		if skip {
			want = r.DecodedSkip
		}
		got, err := tok.Decode(ids, skip)
		if err != nil || got != want {
			fail("%s: Decode(%v, %v): %v\n got %q\nwant %q", r.Cat, ids, skip, err, got, want)
		}
	}
	// The stream: a prefix of decoded at each step, whole characters, nothing
	// held back longer than the library does.
	s := tok.NewStream(false)
	text, shown := "", ""
	for i, id := range ids {
		part, err := s.Add(id)
		if err != nil {
			fail("Add(%d): %v", id, err)
			return false
		}
		text += part
		if !utf8.ValidString(text) {
			fail("stream of %v: %q ends inside a character", ids, text)
		}
		if r.Undefined || !r.HasStream {
			continue
		}
		if !strings.HasPrefix(r.Decoded, text) {
			fail("stream of %v, step %d: %q is no prefix of %q", ids, i, text, r.Decoded)
		}
		if r.Stream[i] != nil {
			shown += *r.Stream[i]
		}
		if len(text) < len(shown) {
			fail("stream of %v, step %d: %q, the library has %q", ids, i, text, shown)
		}
	}
	text += s.Flush()
	if text != r.Decoded && !r.Undefined {
		fail("stream of %v:\n got %q\nwant %q", ids, text, r.Decoded)
	}
	return good
}
