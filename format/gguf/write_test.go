package gguf

import (
	"io"
	"os"
	"testing"
)

// memory is a file in memory.
type memory struct{ b []byte }

func (m *memory) WriteAt(b []byte, offset int64) (int, error) {
	if end := offset + int64(len(b)); end > int64(len(m.b)) {
		m.b = append(m.b, make([]byte, end-int64(len(m.b)))...)
	}
	return copy(m.b[offset:], b), nil
}

// encode writes a model again.
func encode(t testing.TB, f *File) []byte {
	t.Helper()
	var m memory
	w, err := NewWriter(&m, f.KV(), f.Tensors())
	if err != nil {
		t.Fatal(err)
	}
	for i := range f.Tensors() {
		if _, err := io.Copy(w.Tensor(i), f.TensorReader(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	return m.b
}

// content is the data that the tests give a tensor: bytes that depend on its
// name and on their place.
func content(t TensorInfo) []byte {
	b := make([]byte, t.Size)
	h := uint32(2166136261)
	for _, c := range []byte(t.Name) {
		h = (h ^ uint32(c)) * 16777619
	}
	for i := range b {
		h = h*1664525 + 1013904223
		b[i] = byte(h >> 24)
	}
	return b
}

// writeFile writes a model whose tensors hold content.
func writeFile(t *testing.T, path string, kv []KV, tensors []TensorInfo) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w, err := NewWriter(file, kv, tensors)
	if err != nil {
		t.Fatal(err)
	}
	for i, info := range w.Tensors() {
		if _, err := w.Tensor(i).Write(content(info)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
}
