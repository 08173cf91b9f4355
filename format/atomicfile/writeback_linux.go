package atomicfile

import (
	"os"

	"golang.org/x/sys/unix"
)

// startWriteback asks the system to begin bringing a part of the file to the
// disk, so that the sync in Commit finds little left to do. It is a hint: what
// goes wrong with the disk shows in Commit.
func startWriteback(f *os.File, offset, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), offset, n, unix.SYNC_FILE_RANGE_WRITE)
}
