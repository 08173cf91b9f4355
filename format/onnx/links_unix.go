//go:build unix

package onnx

import (
	"io/fs"
	"syscall"
)

// linkCount is the number of names of a file, 0 where it is not known.
func linkCount(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(s.Nlink)
	}
	return 0
}
