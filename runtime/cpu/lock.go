package cpu

import (
	"fmt"
	"math"
)

// Lock keeps the weights in memory: the system reads them at once, and does not take
// their pages away as long as the engine runs, however little it reads them. Of
// repacked matrices that is the engine's own form. It fails where the system has no
// such thing, or allows the process less memory of this kind; some of the weights may
// be locked then, which does no harm.
func (e *Engine) Lock() error {
	all := e.weights()
	total := 0
	for _, b := range all {
		total += len(b)
	}
	for _, b := range all {
		if len(b) == 0 {
			continue
		}
		if err := lockPages(b); err != nil {
			limit, limited := lockLimit()
			return lockError(err, total, limit, limited)
		}
	}
	return nil
}

// weights are the pieces of memory that hold the weights, each once, but for an
// embedding that is the output matrix, too.
func (e *Engine) weights() [][]byte {
	var all [][]byte
	if e.memory != nil {
		all = append(all, e.memory.bytes)
	}
	for _, w := range matrices(e.model) {
		if e.memory == nil || w.PackedBytes() == 0 && !e.memory.holds(w.Data) {
			all = append(all, w.Data)
		}
	}
	return append(all, e.model.Embed.Data)
}

// lockError says why some bytes could not be locked, and what to do.
func lockError(err error, total int, limit uint64, limited bool) error {
	if !limited || limit >= math.MaxInt64 {
		return fmt.Errorf("%d bytes of weights cannot be kept in memory: %w", total, err)
	}
	return fmt.Errorf("%d bytes of weights cannot be kept in memory: %w; the limit of the process is %d bytes (RLIMIT_MEMLOCK): raise it with \"ulimit -l unlimited\", in /etc/security/limits.conf, or by LimitMEMLOCK= of a systemd unit", total, err, limit)
}
