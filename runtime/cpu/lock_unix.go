//go:build linux || darwin || freebsd || netbsd || openbsd

package cpu

import "golang.org/x/sys/unix"

// lockPages locks the pages that hold b.
func lockPages(b []byte) error { return unix.Mlock(b) }

// lockLimit is how many bytes the process may lock.
func lockLimit() (limit uint64, limited bool) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return 0, false
	}
	return uint64(l.Cur), true
}
