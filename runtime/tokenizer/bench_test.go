package tokenizer

import (
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkEncode measures encoding on the text that FPA_BENCH_TEXT names, with
// the tokenizers of testdata and the one that FPA_BENCH_TOKENIZER names.
func BenchmarkEncode(b *testing.B) {
	path := os.Getenv("FPA_BENCH_TEXT")
	if path == "" {
		b.Skip("FPA_BENCH_TEXT does not name a text")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	files := map[string]string{}
	for _, name := range jsonFolders {
		files[name] = filepath.Join("testdata", name, "tokenizer.json")
	}
	if extra := os.Getenv("FPA_BENCH_TOKENIZER"); extra != "" {
		files["extra"] = extra
	}
	for name, file := range files {
		b.Run(name, func(b *testing.B) {
			tok := load(b, file)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tok.Encode(string(text), EncodeOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
