package convert

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/quant"
)

// TestKeepArchitecture: a llama file whose types alone change gives the very logits of
// the same file converted to the architecture fpa, and keeps its metadata.
func TestKeepArchitecture(t *testing.T) {
	for _, dir := range caseFolders(t, "llama_tiny") {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			src, _ := open(t, filepath.Join(dir, "model.gguf"))
			for _, typ := range []quant.DType{quant.F32, quant.Q8_0} {
				out := filepath.Join(t.TempDir(), "kept.gguf")
				o := Options{Output: out, Type: typ, Version: "test", Requantise: true, KeepArchitecture: true}
				if _, err := ToGGUF(context.Background(), src, o); err != nil {
					t.Fatal(err)
				}
				kept, m := open(t, out)
				o.Output, o.KeepArchitecture = filepath.Join(t.TempDir(), "fpa.gguf"), false
				if _, err := ToGGUF(context.Background(), src, o); err != nil {
					t.Fatal(err)
				}
				_, same := open(t, o.Output)
				d, err := Compare(context.Background(), same, m, 64, 1)
				if err != nil || d.MaxAbs != 0 {
					t.Errorf("%s: logits differ by %g, error %v", typ, d.MaxAbs, err)
				}
				checkKept(t, src.GGUF, kept.GGUF, typ)
			}
		})
	}
}

// TestKeepSplit: of a file in parts one is made, which says nothing of parts.
func TestKeepSplit(t *testing.T) {
	dir := t.TempDir()
	src, want := open(t, filepath.Join("testdata", "llama_tiny", "untied_gqa_f16", "model.gguf"))
	o := Options{Output: filepath.Join(dir, "parts.gguf"), Type: quant.F32, Version: "test", SplitMaxBytes: 20000, KeepArchitecture: true}
	report, err := ToGGUF(context.Background(), src, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Files) < 2 {
		t.Fatalf("%d files", len(report.Files))
	}
	parts, _ := open(t, report.Files[0])
	o.Output, o.SplitMaxBytes = filepath.Join(dir, "whole.gguf"), 0
	if _, err := ToGGUF(context.Background(), parts, o); err != nil {
		t.Fatal(err)
	}
	whole, m := open(t, o.Output)
	for _, e := range whole.GGUF.KV() {
		if strings.HasPrefix(e.Key, "split.") {
			t.Errorf("%s is %v", e.Key, e.Value)
		}
	}
	if d, err := Compare(context.Background(), want, m, 64, 1); err != nil || d.MaxAbs != 0 {
		t.Errorf("logits differ by %g, error %v", d.MaxAbs, err)
	}
}

// checkKept compares what is the file's own: metadata but for how it was written, and
// the tensors' names and shapes, with the vectors bit for bit.
func checkKept(t *testing.T, src, kept *gguf.File, typ quant.DType) {
	t.Helper()
	for _, e := range src.KV() {
		switch e.Key {
		case gguf.KeyFileType, gguf.KeyQuantizationVersion, gguf.KeyAlignment:
			continue
		}
		if v, ok := kept.Lookup(e.Key); !ok || v.String() != e.Value.String() {
			t.Errorf("%s: %s is %v, was %v", typ, e.Key, v, e.Value)
		}
	}
	if len(kept.Tensors()) != len(src.Tensors()) {
		t.Errorf("%s: %d tensors, were %d", typ, len(kept.Tensors()), len(src.Tensors()))
	}
	for _, s := range src.Tensors() {
		k, ok := kept.Tensor(s.Name)
		if !ok || !slices.Equal(k.Shape, s.Shape) {
			t.Errorf("%s: %s has shape %v, was %v", typ, s.Name, k.Shape, s.Shape)
		} else if k.DType == s.DType && !bytes.Equal(kept.Data(k), src.Data(s)) {
			t.Errorf("%s: %s of the same type has other bytes", typ, s.Name)
		}
	}
}
