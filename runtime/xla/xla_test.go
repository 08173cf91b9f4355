//go:build cgo

package xla

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/gomlx/gomlx/backends"
)

func init() {
	kinds = append(kinds,
		kind{name: "xla", open: openTestPlugin, shared: true, compiles: true},
		kind{name: "xla, nothing shared", open: openTestPlugin, compiles: true},
		kind{name: "xla, half precision", open: openTestPlugin, compiles: true, half: true},
	)
	if path := os.Getenv("FPA_XLA_CUDA"); path != "" {
		open := func(bool) (backends.Backend, error) { return openPlugin(Plugin{Device: CUDA, Path: path}) }
		kinds = append(kinds, kind{name: "xla:cuda", open: open, compiles: true, gpu: true})
	}
}

// openTestPlugin opens the PJRT CPU plugin that FPA_PJRT_CPU names; nil without
// one.
func openTestPlugin(shared bool) (backends.Backend, error) {
	path := os.Getenv("FPA_PJRT_CPU")
	if path == "" {
		if os.Getenv("FPA_REQUIRE_ORACLES") == "1" {
			return nil, errors.New("FPA_PJRT_CPU does not name a PJRT CPU plugin, and FPA_REQUIRE_ORACLES is 1")
		}
		return nil, nil
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if !shared {
		// What a device has that is none of the processor's.
		return openPlugin(Plugin{Device: "test", Path: path})
	}
	return openPlugin(Plugin{Device: CPU, Path: path})
}
