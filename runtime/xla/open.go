package xla

import (
	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/backends/simplego"

	"github.com/firstpassage/fpa/runtime/model"
)

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
