//go:build unix

package onnx

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/firstpassage/fpa/format"
)

// A FIFO without a writer must be refused at once, not waited for.
func TestExternalFIFO(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Skip("no FIFO here:", err)
	}
	path := filepath.Join(dir, "m.onnx")
	if err := os.WriteFile(path, modelMsg(tensorMsg(elem(Float), dims(4), external("location", "fifo"))), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, format.Limits{}); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("%v, expected a refusal", err)
	}
}
