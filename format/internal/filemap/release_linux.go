package filemap

import "golang.org/x/sys/unix"

// releasePages drops pages of a mapping, whose content is that of the file.
func releasePages(b []byte) { _ = unix.Madvise(b, unix.MADV_DONTNEED) }
