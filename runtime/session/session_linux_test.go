package session_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/session"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// TestFullDisk leaves the old file as it was. A size limit of the process stands
// in for the full disk.
func TestFullDisk(t *testing.T) {
	data, e, c, _ := example(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "session")
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	p := cache.Policy{Mode: cache.Off}
	s, err := e.NewSession(quant.F32, p)
	if err != nil {
		t.Fatal(err)
	}
	ids := modeltest.Tokens(300, c.VocabSize, 1)
	feed(t, s, ids, 64)

	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Skip(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 20000, Max: old.Max}); err != nil {
		t.Skip(err)
	}
	m := session.Meta{Model: identity, Engine: "cpu", CacheType: "f32", Cache: session.PolicyOf(p), Fed: 300}
	_, err = session.Write(path, m, ids, s)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if err == nil || !strings.HasPrefix(err.Error(), "write "+path+": ") {
		t.Errorf("%v, expected an error that names the file", err)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, data) {
		t.Errorf("%v: the old file has changed", err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("%v: the folder holds %v", err, list)
	}
}
