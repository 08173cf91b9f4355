package largepage

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Advise asks for large pages for b, and for what shares its first and last small
// page. Only memory not touched yet gets them at once. It is a wish: where large pages
// are switched off or not to be had, nothing changes.
func Advise(b []byte) {
	if len(b) < Size {
		return
	}
	small := uintptr(os.Getpagesize())
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	before := start & (small - 1)
	length := (before + uintptr(len(b)) + small - 1) &^ (small - 1)
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, start-before, length, unix.MADV_HUGEPAGE)
}
