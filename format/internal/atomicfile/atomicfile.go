// Package atomicfile writes a file so that its name shows either what was
// there before or the complete new content, never a part of it.
package atomicfile

import (
	"bufio"
	"crypto/rand"
	"io"
	"os"
	"path/filepath"
)

// bufferSize keeps small writes, such as headers, off the system.
const bufferSize = 1 << 20

// Write gives content a writer to a new file in the folder of path, then
// syncs that file and renames it to path, replacing what is there. When
// content or anything else fails, path is as it was and the new file is gone.
func Write(path string, content func(w io.Writer) error) (err error) {
	// A name of our own instead of os.CreateTemp, so that the permissions
	// are those the user's umask gives to any new file.
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"."+rand.Text()[:8]+".tmp")
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(temp)
		}
	}()
	w := bufio.NewWriterSize(f, bufferSize)
	if err := content(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	// The rename itself lasts only once the folder is on disk. Not every
	// system can sync a folder, and the content is safe either way.
	if dir, err := os.Open(filepath.Dir(path)); err == nil {
		_ = dir.Sync()
		dir.Close()
	}
	return nil
}
