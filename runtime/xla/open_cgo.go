//go:build cgo

package xla

import (
	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/backends/xla"
)

// openPlugin starts XLA with the plugin in a file. By its absolute path nothing is
// searched for, and nothing downloaded.
func openPlugin(path string, shared bool) (backends.Backend, error) {
	xla.EnableAutoInstall(false)
	option := ",noshared_buffers"
	if shared {
		option = ",shared_buffers"
	}
	return xla.New(path + option)
}
