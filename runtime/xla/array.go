package xla

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/shapes"

	"github.com/firstpassage/fpa/runtime/internal/largepage"
)

// array is a tensor that the host writes and programs read. Where the host can
// write to the memory of the device it is that memory; elsewhere the host has a
// copy, and send uploads it.
type array struct {
	e      *Engine
	shape  shapes.Shape
	axis   int // along which devices share it, or whole
	shared bool
	buffer backends.Buffer
	flat   any // a slice of the shape's type
}

// newArray makes an array of zeros with the given axes.
func (e *Engine) newArray(shape shapes.Shape, x axes) (*array, error) {
	a := &array{e: e, shape: shape, axis: e.cut(x, shape), shared: e.memory.shared}
	if !a.shared {
		a.flat = a.makeFlat()
		return a, nil
	}
	var err error
	a.buffer, a.flat, err = e.backend.NewSharedBuffer(0, shape)
	if err != nil {
		return nil, fmt.Errorf("no memory for %v: %w", shape, err)
	}
	if e.pureGo() { // XLA's come cleared
		reflect.ValueOf(a.flat).Clear()
	} else { // before the host touches them
		largepage.Advise(unsafe.Slice((*byte)(reflect.ValueOf(a.flat).UnsafePointer()), shape.Memory()))
	}
	return a, nil
}

// makeFlat makes a slice for the host.
func (a *array) makeFlat() any {
	n := a.shape.Size()
	return reflect.MakeSlice(reflect.SliceOf(a.shape.DType.GoType()), n, n).Interface()
}

// floats is the host's view of a float32 array.
func (a *array) floats() []float32 { return a.flat.([]float32) }

// doubles is the host's view of a float64 array.
func (a *array) doubles() []float64 { return a.flat.([]float64) }

// ints is the host's view of an int32 array.
func (a *array) ints() []int32 { return a.flat.([]int32) }

// send returns the buffer with what the host wrote.
func (a *array) send() (backends.Buffer, error) {
	if a.shared {
		return a.buffer, nil
	}
	a.free()
	var err error
	a.buffer, err = a.e.put(a.flat, a.shape, a.axis)
	return a.buffer, err
}

// free gives the device's memory back.
func (a *array) free() {
	if a.buffer != nil {
		a.e.release(a.buffer)
		a.buffer = nil
	}
}
