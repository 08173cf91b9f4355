package filemap

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestRelease looks at which pages of a mapping the process holds, and expects that
// content stays, that neighbours of the part stay, and that memory of another kind is
// left alone.
func TestRelease(t *testing.T) {
	page := os.Getpagesize()
	want := bytes.Repeat([]byte("0123456789abcdef"), 64*page/16)
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !bytes.Equal(f.Bytes(), want) { // reads all pages
		t.Fatal("the mapping differs from the file")
	}
	held := residentFile(t)
	Release(f.Bytes()[3*page+1 : 60*page+5]) // 56 whole pages
	if now := residentFile(t); held-now < 50 {
		t.Errorf("%d pages held before, %d after 56 were released", held, now)
	}
	if !bytes.Equal(f.Bytes(), want) {
		t.Error("the content changed")
	}
	heap := bytes.Clone(want)
	Release(heap)
	Release(heap[:0])
	Release(nil)
	if !bytes.Equal(heap, want) {
		t.Error("memory that is no mapping changed")
	}
	data := f.Bytes()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	Release(data) // nothing is there, or something else
	if len(mappings.open) != 0 {
		t.Errorf("%d mappings are still known", len(mappings.open))
	}
}

// residentFile is the number of pages of files that the process holds.
func residentFile(t *testing.T) int {
	var all, resident, shared int
	statm, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(statm), &all, &resident, &shared)
	}
	if err != nil {
		t.Skip("cannot tell what is held:", err)
	}
	return shared
}
