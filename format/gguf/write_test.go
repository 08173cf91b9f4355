package gguf

import (
	"io"
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
