package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// names lists a folder, hidden files included.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return strings.Join(list, " ")
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o666); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, path string, force bool, content string) *File {
	t.Helper()
	f, err := CreateAtomic(path, force)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Abort)
	if _, err := f.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestCommit(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out.gguf")
	f := create(t, path, false, "hello")
	if _, err := f.WriteAt([]byte("J"), 0); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "Jello" {
		t.Errorf("ReadAt: %q, %v", b, err)
	}
	if got := names(t, dir); !strings.HasPrefix(got, ".out.gguf.tmp-") || strings.Contains(got, " ") {
		t.Errorf("before Commit the folder holds %s, expected the temporary file alone", got)
	}
	if got := read(t, f.TempPath()); got != "Jello" || f.Path() != path {
		t.Errorf("%s holds %q, Path is %s", f.TempPath(), got, f.Path())
	}
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	f.Abort() // as deferred by callers
	if got := names(t, dir); got != "out.gguf" {
		t.Errorf("the folder holds %s", got)
	}
	if got := read(t, path); got != "Jello" {
		t.Errorf("the file holds %q", got)
	}
	if err := f.Commit(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("second Commit: %v, expected ErrClosed", err)
	}
	if runtime.GOOS != "windows" {
		plain := filepath.Join(dir, "plain")
		write(t, plain, "")
		a, _ := os.Stat(path)
		b, _ := os.Stat(plain)
		if a.Mode() != b.Mode() {
			t.Errorf("mode %v, expected that of any new file, %v", a.Mode(), b.Mode())
		}
	}
}

func TestRelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := create(t, "out", false, "x").Commit(); err != nil {
		t.Fatal(err)
	}
	if got := names(t, "."); got != "out" {
		t.Errorf("the folder holds %s", got)
	}
}

func TestAbort(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	write(t, path, "old")
	f := create(t, path, true, "new")
	f.Abort()
	f.Abort()
	if got := names(t, dir); got != "out" || read(t, path) != "old" {
		t.Errorf("the folder holds %s, the file %q", got, read(t, path))
	}
}

func TestExisting(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	write(t, path, "old")
	_, err := CreateAtomic(path, false)
	if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "--force") || !strings.Contains(err.Error(), path) {
		t.Errorf("without force: %v, expected ErrExist that names %s and --force", err, path)
	}
	f := create(t, path, true, "new")
	if got := read(t, path); got != "old" {
		t.Errorf("before Commit the file holds %q", got)
	}
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); got != "out" || read(t, path) != "new" {
		t.Errorf("the folder holds %s, the file %q", got, read(t, path))
	}
}

func TestAppearsMeanwhile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	f := create(t, path, false, "ours")
	write(t, path, "theirs")
	err := f.Commit()
	if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "--force") {
		t.Errorf("Commit: %v, expected ErrExist that names --force", err)
	}
	if got := names(t, dir); got != "out" || read(t, path) != "theirs" {
		t.Errorf("the folder holds %s, the file %q", got, read(t, path))
	}

	path = filepath.Join(dir, "forced")
	f = create(t, path, true, "ours")
	write(t, path, "theirs")
	if err := f.Commit(); err != nil || read(t, path) != "ours" {
		t.Errorf("with force: %v, the file holds %q", err, read(t, path))
	}
}

func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, dir + string(filepath.Separator), filepath.Join(dir, "missing", "out"), os.DevNull, "", "..", filepath.Join(dir, strings.Repeat("n", 300))} {
		for _, force := range []bool{false, true} {
			f, err := CreateAtomic(path, force)
			if err == nil {
				f.Abort()
				t.Errorf("%q, force %v: no error", path, force)
				continue
			}
			if strings.Contains(err.Error(), ".tmp-") || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), path) {
				t.Errorf("%q: the error %q, expected one line that names the file and not the temporary one", path, err)
			}
		}
	}
	if got := names(t, dir); got != "" {
		t.Errorf("the folder holds %s, expected nothing", got)
	}
}

// A link to a file is replaced; one to a device or to an open stream is the
// system's, and stays.
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	path, old := filepath.Join(dir, "link"), filepath.Join(dir, "old")
	write(t, old, "old")
	link := func(to string) {
		os.Remove(path)
		if err := os.Symlink(to, path); err != nil {
			t.Skip("no symbolic links here: ", err)
		}
	}
	for _, to := range []string{os.DevNull, "/proc/self/fd/1"} {
		link(to)
		if f, err := CreateAtomic(path, true); err == nil {
			f.Abort()
			t.Errorf("a link to %s: no error", to)
		}
	}
	for _, to := range []string{old, filepath.Join(dir, "nowhere")} {
		link(to)
		if err := create(t, path, true, "new").Commit(); err != nil || read(t, path) != "new" || read(t, old) != "old" {
			t.Errorf("a link to %s: %v, %q and %q", to, err, read(t, path), read(t, old))
		}
	}
}

// A full disk, or any other failure of a write, is told with the name that
// was asked for, and leaves nothing behind. Closing the descriptor under the
// File provokes such a failure on every system.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	f := create(t, path, false, "begin")
	f.f.Close()
	if _, err := f.Write([]byte("x")); err == nil || !strings.Contains(err.Error(), "write "+path+": ") {
		t.Errorf("Write: %v", err)
	}
	if _, err := f.WriteAt([]byte("x"), 0); err == nil || !strings.Contains(err.Error(), "write "+path+": ") {
		t.Errorf("WriteAt: %v", err)
	}
	if err := f.Commit(); err == nil || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), ".tmp-") {
		t.Errorf("Commit: %v", err)
	}
	if got := names(t, dir); got != "" {
		t.Errorf("the folder holds %s, expected nothing", got)
	}
}
