//go:build !cgo

package xla

import (
	"errors"

	"github.com/gomlx/gomlx/backends"
)

// CanLoad says whether this build can load plugins.
const CanLoad = false

func load(Plugin) (backends.Backend, error) {
	return nil, errors.New("this program was built without cgo, which loading a plugin needs; the CPU engine (--backend cpu) needs neither")
}

func pluginVersion(backends.Backend) string { return "" }
