package cpu

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/firstpassage/fpa/runtime/internal/largepage"
)

// arena is memory outside Go's heap, which would otherwise grow to twice the size
// before garbage is collected.
type arena struct{ bytes, mapped []byte }

// newArena takes zeroed memory for n bytes, n > 0, in large pages where there are any.
func newArena(n int) (*arena, error) {
	mapped, err := unix.Mmap(-1, 0, n+largepage.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("no memory for %d bytes of weights (%w); with --no-repack and --mmap they stay in the file", n, err)
	}
	skip := int(-uintptr(unsafe.Pointer(&mapped[0])) & (largepage.Size - 1))
	a := &arena{bytes: mapped[skip : skip+n], mapped: mapped}
	largepage.Advise(a.bytes)
	return a, nil
}

// largePageMemory is how much memory can be had without pressing others, 0 where the
// system has no large pages to give.
func largePageMemory() int {
	if modes, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled"); err != nil || bytes.Contains(modes, []byte("[never]")) {
		return 0
	}
	available := 0
	info, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(info)) {
		if kilobytes, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kilobytes), "kB")))
			available = n << 10
		}
	}
	// A container may have less.
	if limit, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(limit))); err == nil {
			available = min(available, n)
		}
	}
	return available
}

// free gives the memory back.
func (a *arena) free() { _ = unix.Munmap(a.mapped) }
