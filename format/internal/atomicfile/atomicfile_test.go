package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// write calls Write with a text, in many small pieces.
func write(path, text string) error {
	return Write(path, func(w io.Writer) error {
		for _, c := range []byte(text) {
			if _, err := w.Write([]byte{c}); err != nil {
				return err
			}
		}
		return nil
	})
}

// holds fails unless path has the text and is the only file of its folder.
func holds(t *testing.T, path, text string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != text {
		t.Errorf("file has %q (%v), expected %q", got, err, text)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files in the folder (%v), expected 1", len(entries), err)
	}
}

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	long := strings.Repeat("0123456789", bufferSize/8)
	for _, text := range []string{"first", "", "second", long} {
		if err := write(path, text); err != nil {
			t.Fatal(err)
		}
		holds(t, path, text)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if want, err := os.Stat(plain); err != nil || info.Mode() != want.Mode() {
		t.Errorf("mode %v, expected that of any new file, %v (%v)", info.Mode(), want.Mode(), err)
	}
}

func TestWriteFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := write(path, "old"); err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	err := Write(path, func(w io.Writer) error {
		if _, err := io.WriteString(w, "half of the n"); err != nil {
			return err
		}
		return stop
	})
	if err != stop {
		t.Errorf("error %v, expected %v", err, stop)
	}
	holds(t, path, "old")
	if err := os.Mkdir(filepath.Join(filepath.Dir(path), "dir"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := write(filepath.Join(filepath.Dir(path), "dir"), "x"); err == nil {
		t.Error("a folder was replaced by a file")
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 2 {
		t.Errorf("%d files left, expected 2", len(entries))
	}
}
