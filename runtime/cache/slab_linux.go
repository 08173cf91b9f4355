package cache

import "golang.org/x/sys/unix"

// adviseHuge asks for large pages. It is a wish: where they are switched off or
// not to be had, nothing changes.
func adviseHuge(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) }
