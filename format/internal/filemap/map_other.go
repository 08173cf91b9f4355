//go:build !unix && !windows

package filemap

import (
	"fmt"
	"io"
	"os"
)

func mapFile(f *os.File, size int) ([]byte, error) {
	data := make([]byte, size)
	if n, err := f.ReadAt(data, 0); n < size {
		if err == io.EOF {
			err = fmt.Errorf("the file ended after %d of %d bytes", n, size)
		}
		return nil, err
	}
	return data, nil
}

func unmapFile([]byte) error { return nil }
