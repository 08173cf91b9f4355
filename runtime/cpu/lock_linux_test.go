package cpu

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// locked is the memory that the process has locked, in bytes.
func locked(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kib int
		if _, err := fmt.Sscanf(line, "VmLck: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatal("/proc/self/status does not say what is locked")
	return 0
}

// TestLock locks the weights of a model, repacked and not.
func TestLock(t *testing.T) {
	c := modeltest.Config()
	c.Hidden, c.FeedForward, c.KeyDim, c.ValDim = 256, 512, 16, 16
	m := quantised(t, c, quant.Q8_0, false)
	for _, o := range []Options{{Threads: 1}, {Threads: 1, NoRepack: true}} {
		e := engineOf(t, m, o)
		before := locked(t)
		if err := e.Lock(); err != nil {
			if !strings.Contains(err.Error(), "RLIMIT_MEMLOCK") {
				t.Errorf("%v; expected the name of the limit", err)
			}
			t.Skip(err)
		}
		// In whole pages, of which neighbours share some.
		if size := len(m.Layers[0].FFNUp.W.Data); locked(t)-before < 5*size/2 {
			t.Errorf("%+v: %d bytes locked, and one of seven matrices of a layer has %d", o, locked(t)-before, size)
		}
		unix.Munlockall()
	}
}

func TestLockError(t *testing.T) {
	cause := errors.New("cause")
	for _, c := range []struct {
		limit   uint64
		limited bool
		says    string // after the cause
	}{
		{8192, true, "the limit of the process is 8192 bytes (RLIMIT_MEMLOCK)"},
		{unix.RLIM_INFINITY, true, ""},
		{0, false, ""},
	} {
		err := lockError(cause, 1000, c.limit, c.limited)
		if !errors.Is(err, cause) || !strings.Contains(err.Error(), "1000 bytes") || !strings.Contains(err.Error(), c.says) ||
			(c.says == "") != strings.HasSuffix(err.Error(), "cause") {
			t.Errorf("limit %d, %v: %v", c.limit, c.limited, err)
		}
	}
}
