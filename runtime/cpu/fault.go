package cpu

import (
	"fmt"
	"runtime/debug"
)

// Fault is the error of a memory fault while weights were read: the mapped model
// file was cut short, or its disk failed, while the engine ran.
type Fault struct{ Addr uintptr }

func (f *Fault) Error() string {
	return fmt.Sprintf("the model file could not be read at address %#x: it was changed or cut short while it was in use; load it again", f.Addr)
}

// catchFault is deferred: it turns the panic of a memory fault into a Fault and
// lets every other panic go on.
func catchFault(caught func(*Fault)) {
	r := recover()
	if r == nil {
		return
	}
	if f, ok := r.(*Fault); ok {
		caught(f)
		return
	}
	if f, ok := r.(interface{ Addr() uintptr }); ok {
		caught(&Fault{f.Addr()})
		return
	}
	panic(r)
}

// guard runs f and returns a memory fault in it as an error.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer catchFault(func(f *Fault) { err = f })
	return f()
}
