// Package filemap maps a whole regular file into memory, read-only, so that
// weights are used where they lie: pages are read when they are touched, and
// several processes share them.
//
// Systems without such a call get the same interface over a copy in memory.
//
// # Security
//
// Only regular files (and symbolic links to them) are opened, so a FIFO or a
// device cannot block the reader. The size is the one the system reports when
// the file is opened. A file that is cut short by another process while it is
// mapped makes a later access fault: the operating system ends the program,
// or, under [runtime/debug.SetPanicOnFault], the access panics. Writers that
// put a new file in place by renaming it do no harm.
package filemap

import (
	"fmt"
	"io/fs"
	"math"
	"os"
)

// File is a mapped file.
type File struct {
	data []byte
	open bool
}

// Open maps the file at path. The error of a missing file, a directory or
// anything else that is no regular file is an [fs.PathError].
func Open(path string) (*File, error) {
	// Opening a FIFO waits for a writer, so ask what path is before opening.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := regular(path, info); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // a mapping outlives its descriptor
	return Map(f)
}

// Map maps a file that is open already, and may be closed afterwards.
func Map(f *os.File) (*File, error) {
	path := f.Name()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := regular(path, info); err != nil {
		return nil, err
	}
	size := info.Size()
	if size > math.MaxInt {
		return nil, &fs.PathError{Op: "map", Path: path, Err: fmt.Errorf("%d bytes are more than this machine can address", size)}
	}
	if size == 0 {
		return &File{open: true}, nil // an empty mapping is an error on most systems
	}
	data, err := mapFile(f, int(size))
	if err != nil {
		return nil, &fs.PathError{Op: "map", Path: path, Err: err}
	}
	m := &File{data: data, open: true}
	register(m)
	return m, nil
}

// regular fails unless info describes a regular file.
func regular(path string, info fs.FileInfo) error {
	var what string
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		what = "a directory"
	case mode&fs.ModeNamedPipe != 0:
		what = "a FIFO"
	case mode&fs.ModeSocket != 0:
		what = "a socket"
	case mode&fs.ModeDevice != 0:
		what = "a device"
	default:
		what = "a special file"
	}
	return &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("is %s, expected a regular file", what)}
}

// Bytes is the content of the file. It must not be written to, nor used after
// Close.
func (f *File) Bytes() []byte { return f.data }

// Size is the number of bytes of the file.
func (f *File) Size() int64 { return int64(len(f.data)) }

// Close ends the mapping. Slices of Bytes must not be touched afterwards.
// A second Close does nothing.
func (f *File) Close() error {
	if !f.open {
		return nil
	}
	unregister(f)
	data := f.data
	f.data, f.open = nil, false
	if len(data) == 0 {
		return nil
	}
	return unmapFile(data)
}
