package largepage

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestAdvise checks with the kernel that memory is marked from its first small page to
// its last, and that less than a large page is left alone.
func TestAdvise(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		t.Skip("this kernel has no large pages to give")
	}
	small := os.Getpagesize()
	for _, c := range []struct {
		from, to int
		want     bool
	}{{0, 4 * Size, true}, {100, 4*Size - 100, true}, {0, Size - 1, false}} {
		b, err := unix.Mmap(-1, 0, 4*Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		Advise(b[c.from:c.to])
		for _, at := range []int{0, 2 * Size, 4*Size - small} {
			if got := marked(t, uintptr(unsafe.Pointer(&b[at]))); got != c.want {
				t.Errorf("bytes %d to %d: the page at %d is marked %v, expected %v", c.from, c.to, at, got, c.want)
			}
		}
		if err := unix.Munmap(b); err != nil {
			t.Fatal(err)
		}
	}
}

// marked is whether large pages are asked for at an address.
func marked(t *testing.T, address uintptr) bool {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	inside := false
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = from <= address && address < to
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			return strings.Contains(flags+" ", " hg ")
		}
	}
	t.Fatalf("no mapping holds %#x", address)
	return false
}
