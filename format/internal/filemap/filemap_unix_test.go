//go:build unix

package filemap

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A FIFO without a writer must be refused at once, not waited for.
func TestOpenRefusesSpecialFiles(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Skip("no FIFO here:", err)
	}
	for path, what := range map[string]string{fifo: "a FIFO", "/dev/null": "a device"} {
		_, err := Open(path)
		if err == nil || !strings.Contains(err.Error(), "is "+what) {
			t.Errorf("%s: %v, expected a refusal naming %s", path, err, what)
		}
	}
}
