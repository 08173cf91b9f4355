package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestReadOnlyFolder(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root writes into read-only folders")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "out")
	_, err := CreateAtomic(path, false)
	if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), ".tmp-") {
		t.Errorf("%v, expected a permission error that names %s", err, path)
	}
}

// A size limit of the process stands in for a full disk: it makes write fail
// half way, as a full disk does.
func TestFileTooLarge(t *testing.T) {
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Skip(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 16, Max: old.Max}); err != nil {
		t.Skip(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old)

	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	f := create(t, path, false, "begin")
	_, err := f.WriteAt(make([]byte, 1<<17), 0)
	if !errors.Is(err, syscall.EFBIG) || !strings.HasPrefix(err.Error(), "write "+path+": ") {
		t.Errorf("WriteAt: %v, expected EFBIG for %s", err, path)
	}
	f.Abort()
	if got := names(t, dir); got != "" {
		t.Errorf("the folder holds %s, expected nothing", got)
	}
}
