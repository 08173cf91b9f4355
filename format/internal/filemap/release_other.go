//go:build !linux

package filemap

func releasePages([]byte) {}
