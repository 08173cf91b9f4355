// Package atomicfile writes a file so that its name only ever shows the whole
// of it: the content goes to a temporary file in the same folder, which is
// synced and renamed at the end. A program that fails, is interrupted or runs
// out of space leaves the old file, or none, behind.
//
// Errors name the file that was asked for, not the temporary one.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// File is a file being written. Use it like this:
//
//	f, err := atomicfile.CreateAtomic(path, force)
//	if err != nil {
//		return err
//	}
//	defer f.Abort()
//	... write to f ...
//	return f.Commit()
type File struct {
	f     *os.File // the temporary file; nil after Commit or Abort
	path  string   // the name asked for
	temp  string   // the name until Commit
	force bool
}

// CreateAtomic starts to write the file at path. When path exists already it
// fails unless force is set; then the old file stays until Commit. With or
// without force it fails when path is a folder, a device or anything else
// that is no regular file.
//
// A symbolic link at path is replaced, not followed; one that leads to a device, a
// pipe or a stream of the process, as /dev/stdout does, is refused like these.
func CreateAtomic(path string, force bool) (*File, error) {
	if err := checkTarget(path, force); err != nil {
		return nil, err
	}
	dir, name := filepath.Split(path)
	if name == "" || name == "." || name == ".." {
		return nil, &fs.PathError{Op: "create", Path: path, Err: errors.New("this names a folder, expected a file")}
	}
	for {
		temp := filepath.Join(dir, fmt.Sprintf(".%s.tmp-%08x", name, rand.Uint32()))
		// The mode is what the umask leaves, as for any new file.
		f, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, withPath("create", path, err)
		}
		remember(temp)
		return &File{f: f, path: path, temp: temp, force: force}, nil
	}
}

// checkTarget fails when the file at path must not be replaced.
func checkTarget(path string, force bool) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return withPath("create", path, err)
	}
	mode := info.Mode()
	switch {
	case mode.IsDir():
		return &fs.PathError{Op: "create", Path: path, Err: errors.New("this is a folder, expected a file name")}
	case !mode.IsRegular() && (mode&fs.ModeSymlink == 0 || leadsToStream(path)):
		return &fs.PathError{Op: "create", Path: path, Err: errors.New("this exists and is no regular file, which cannot be replaced")}
	case !force:
		return &fs.PathError{Op: "create", Path: path, Err: errExists{}}
	}
	return nil
}

// leadsToStream says whether a symbolic link leads to something that is neither a
// file nor a folder, or to what a process has open: that may be a file at the
// moment, but the link stands for the stream, and is the system's.
func leadsToStream(link string) bool {
	if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, "/proc/") {
		return true
	}
	info, err := os.Stat(link)
	return err == nil && !info.Mode().IsRegular() && !info.IsDir()
}

// errExists is fs.ErrExist with advice.
type errExists struct{}

func (errExists) Error() string        { return "the file exists already; use --force to replace it" }
func (errExists) Is(target error) bool { return target == fs.ErrExist }

// withPath puts the path the caller knows into an error of package os.
func withPath(op, path string, err error) error {
	var p *fs.PathError
	var l *os.LinkError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &p):
		err = p.Err
	case errors.As(err, &l):
		err = l.Err
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// Path is the name the file will have.
func (f *File) Path() string { return f.path }

// TempPath is the name that the file has until Commit or Abort, so that what
// was written can be opened and checked before it counts.
func (f *File) TempPath() string { return f.temp }

// Write appends to the file.
func (f *File) Write(b []byte) (int, error) {
	n, err := f.f.Write(b)
	return n, withPath("write", f.path, err)
}

// writebackBytes is the size of a write that is worth a request of its own to the
// disk.
const writebackBytes = 128 << 10

// WriteAt writes at an offset; several goroutines may write different places.
func (f *File) WriteAt(b []byte, offset int64) (int, error) {
	n, err := f.f.WriteAt(b, offset)
	if n >= writebackBytes {
		startWriteback(f.f, offset, int64(n))
	}
	return n, withPath("write", f.path, err)
}

// ReadAt reads what was written.
func (f *File) ReadAt(b []byte, offset int64) (int, error) { return f.f.ReadAt(b, offset) }

// Commit brings the data to the disk and gives the file its name. Without
// force it fails when a file of that name has appeared meanwhile. When it
// fails, the temporary file is removed.
func (f *File) Commit() error {
	if f.f == nil {
		return &fs.PathError{Op: "commit", Path: f.path, Err: fs.ErrClosed}
	}
	err := f.f.Sync()
	err = errors.Join(err, f.f.Close())
	f.f = nil
	if err == nil {
		err = f.place()
	}
	defer forget(f.temp)
	if err != nil {
		os.Remove(f.temp) // the first error is the one to tell
		var exists errExists
		if errors.As(err, &exists) {
			return err
		}
		return withPath("write", f.path, err)
	}
	syncDir(filepath.Dir(f.path))
	return nil
}

// place moves the temporary file to its name.
func (f *File) place() error {
	if !f.force {
		// A hard link never replaces a file, so nothing can slip in between
		// a check and the move.
		err := os.Link(f.temp, f.path)
		if err == nil {
			return os.Remove(f.temp)
		}
		// Either the name is taken, or the file system has no hard links.
		if err := checkTarget(f.path, false); err != nil {
			return err
		}
	}
	return os.Rename(f.temp, f.path)
}

// syncDir makes a rename in dir durable where the system allows it; not all
// do, and the file is complete in any case.
func syncDir(dir string) {
	d, err := os.Open(dir)
	if err != nil {
		return
	}
	d.Sync()
	d.Close()
}

// Abort gives the file up and removes the temporary file. After Commit or
// Abort it does nothing.
func (f *File) Abort() {
	if f.f == nil {
		return
	}
	f.f.Close()
	os.Remove(f.temp)
	forget(f.temp)
	f.f = nil
}

// temps are the temporary files of this process that are neither committed nor
// aborted.
var temps struct {
	sync.Mutex
	names map[string]bool
}

func remember(temp string) {
	temps.Lock()
	defer temps.Unlock()
	if temps.names == nil {
		temps.names = make(map[string]bool)
	}
	temps.names[temp] = true
}

func forget(temp string) {
	temps.Lock()
	defer temps.Unlock()
	delete(temps.names, temp)
}

// RemoveAll removes every temporary file of this process, for a program that
// must end without coming back to its Aborts. Files are not usable afterwards.
func RemoveAll() {
	temps.Lock()
	defer temps.Unlock()
	for temp := range temps.names {
		os.Remove(temp)
	}
}
