//go:build cgo

package xla

import (
	"strings"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/backends/xla"
)

// CanLoad says whether this build can load plugins.
const CanLoad = true

// load starts XLA with a plugin. By its absolute path nothing is searched for, and
// nothing is ever downloaded.
func load(p Plugin) (backends.Backend, error) {
	xla.EnableAutoInstall(false)
	config, options := p.Path+",noshared_buffers", pjrt.NamedValuesMap(nil)
	switch p.Device {
	case CPU:
		config = p.Path + ",shared_buffers"
	case CUDA:
		// Take memory as it is needed, not most of what the card has at once.
		options = pjrt.NamedValuesMap{"preallocate": false}
	}
	return xla.NewWithOptions(config, options)
}

// pluginVersion is in the description of the backend.
func pluginVersion(b backends.Backend) string {
	d := b.Description()
	if i := strings.LastIndex(d, " - "); i >= 0 {
		d = d[i+len(" - "):]
	}
	return strings.TrimSpace(d)
}
