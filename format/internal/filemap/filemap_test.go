package filemap

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOpen(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{0, 1, 4095, 4096, 4097, 100_000} {
		want := make([]byte, size)
		for i := range want {
			want[i] = byte(rng.Uint32())
		}
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, want, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path)
		if err != nil {
			t.Fatalf("size %d: %v", size, err)
		}
		if f.Size() != int64(size) || !bytes.Equal(f.Bytes(), want) {
			t.Errorf("size %d: the mapping differs from the file", size)
		}
		// The name may go while the mapping stays (not so on Windows).
		if err := os.Remove(path); err == nil && !bytes.Equal(f.Bytes(), want) {
			t.Errorf("size %d: the mapping changed with the name", size)
		}
		for range 2 {
			if err := f.Close(); err != nil {
				t.Errorf("size %d: Close: %v", size, err)
			}
		}
		if f.Bytes() != nil {
			t.Errorf("size %d: bytes after Close", size)
		}
	}
}

func TestOpenSymlink(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "blob"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("blob", link); err != nil {
		t.Skip("no symbolic links here:", err)
	}
	f, err := Open(link)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if string(f.Bytes()) != "data" {
		t.Errorf("read %q through a link", f.Bytes())
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(filepath.Join(dir, "missing"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	_, err = Open(dir)
	if err == nil || !strings.Contains(err.Error(), "is a directory, expected a regular file") {
		t.Errorf("directory: %v", err)
	}
}
