//go:build cgo

package onnxgo

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/backends/xla"
)

func init() { others["xla"] = openXLA }

// xlaBackend opens the PJRT CPU plugin that FPA_PJRT_CPU names, once a process.
var xlaBackend = sync.OnceValues(func() (backends.Backend, error) {
	plugin, err := filepath.Abs(os.Getenv("FPA_PJRT_CPU"))
	if err != nil {
		return nil, err
	}
	// With the path of a plugin, nothing is searched for and nothing fetched.
	return xla.New(plugin + ",shared_buffers")
})

func openXLA(t testing.TB) backends.Backend {
	t.Helper()
	if os.Getenv("FPA_PJRT_CPU") == "" {
		if os.Getenv("FPA_REQUIRE_ORACLES") == "1" {
			t.Fatal("FPA_PJRT_CPU does not name a PJRT CPU plugin, and FPA_REQUIRE_ORACLES is 1")
		}
		t.Skip("FPA_PJRT_CPU does not name a PJRT CPU plugin (a file like pjrt_c_api_cpu_plugin.so)")
	}
	b, err := xlaBackend()
	if err != nil {
		t.Fatal(err)
	}
	return b
}
