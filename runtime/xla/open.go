package xla

import (
	"fmt"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/backends/simplego"

	"github.com/firstpassage/fpa/runtime/model"
)

// New makes an engine that runs on a plugin's first device. The engine needs the
// model's tensors until Close. It fails when the plugin cannot be loaded, or when the
// device has too little memory; in a build without cgo it always does.
func New(m *model.Model, p Plugin, o Options) (*Engine, error) {
	b, err := openPlugin(p)
	if err != nil {
		return nil, err
	}
	onHost := p.Device == CPU
	return newEngine(m, b, memory{shared: onHost && o.TensorParallel <= 1 && o.DataParallel <= 1, half: !onHost}, o)
}

// NewGo makes an engine on gomlx's pure-Go backend. It is slow: it is there to
// check the graph without a plugin.
func NewGo(m *model.Model, o Options) (*Engine, error) {
	b, err := openGo()
	if err != nil {
		return nil, err
	}
	return newEngine(m, b, memory{shared: true}, o)
}

// openGo opens the backend. Its operators run one after the other: in its parallel
// mode an error ends the process.
func openGo() (b backends.Backend, err error) {
	err = try(func() (err error) {
		b, err = simplego.New("ops_sequential")
		return err
	})
	return b, err
}

// Info is what a plugin says of itself.
type Info struct {
	Version string   // of the PJRT interface, and of the plugin where it names one
	Devices []string // one line a device
}

// Probe loads a plugin and asks what it is. It takes a moment, and memory that is
// not given back.
func (p Plugin) Probe() (Info, error) {
	var info Info
	b, err := openPlugin(p)
	if err != nil {
		return info, err
	}
	err = try(func() error {
		defer b.Finalize()
		info.Version = pluginVersion(b)
		for i := range b.NumDevices() {
			info.Devices = append(info.Devices, b.DeviceDescription(backends.DeviceNum(i)))
		}
		return nil
	})
	return info, err
}

// openPlugin loads a plugin.
func openPlugin(p Plugin) (b backends.Backend, err error) {
	err = try(func() (err error) {
		b, err = load(p)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("XLA plugin %s: %w", p.Path, err)
	}
	return b, nil
}
