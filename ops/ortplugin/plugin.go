package main

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Wno-parentheses
#include "call.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime/cgo"
	"sync"
	"unsafe"

	"github.com/firstpassage/fpa/ops/attention"
)

// kernel is a node of a session.
type kernel struct {
	options
	half bool
}

// fpaKernel makes a kernel of a node's attributes, and returns its handle, or 0 and
// the error.
//
//export fpaKernel
func fpaKernel(a *C.fpa_attributes, text *C.char) (id C.uintptr_t) {
	err := guard(func() error {
		at := attributes{
			scale: float32(a.scale), eps: float32(a.cache_eps),
			interval: C.GoString(&a.interval[0]), cache: C.GoString(&a.cache[0]),
			bound: append([]float32(nil), slice[float32](unsafe.Pointer(a.logit_bound), int(a.logit_bounds))...),
		}
		o, err := at.options()
		if err == nil {
			id = C.uintptr_t(cgo.NewHandle(&kernel{options: o, half: a.half != 0}))
		}
		return err
	})
	put(text, err)
	return id
}

// fpaRelease lets go of a kernel.
//
//export fpaRelease
func fpaRelease(id C.uintptr_t) { cgo.Handle(id).Delete() }

// fpaBegin checks the inputs of a call, and sets the outputs' shapes and the call's
// handle, or the error.
//
//export fpaBegin
func fpaBegin(id C.uintptr_t, c *C.fpa_call) {
	fail(c, guard(func() error {
		k := cgo.Handle(id).Value().(*kernel)
		if k.half {
			return begin(&calls16, k, c)
		}
		return begin(&calls32, k, c)
	}))
}

// fpaStart takes the outputs of a call and returns its number of units.
//
//export fpaStart
func fpaStart(c *C.fpa_call) C.size_t {
	units := 0
	fail(c, guard(func() error {
		units = jobOf(c).start(c)
		return nil
	}))
	return C.size_t(units)
}

// fpaRun runs a unit of a call, on any thread.
//
//export fpaRun
func fpaRun(id C.uintptr_t, unit C.size_t) {
	j := cgo.Handle(id).Value().(job)
	if err := guard(func() error {
		j.run(int(unit))
		return nil
	}); err != nil {
		j.failed(err)
	}
}

// fpaEnd ends a call, and sets the error if a unit failed.
//
//export fpaEnd
func fpaEnd(c *C.fpa_call) { fail(c, jobOf(c).end()) }

// panicked is the error of a call that panicked.
type panicked struct{ value any }

func (p panicked) Error() string {
	return fmt.Sprintf("internal error, please report it: %v", p.value)
}

// guard turns a panic into an error.
func guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = panicked{v}
		}
	}()
	return f()
}

// fail sets the error of a call, unless it has one.
func fail(c *C.fpa_call, err error) {
	if err == nil || c.error[0] != 0 {
		return
	}
	if errors.As(err, new(panicked)) {
		c.failed = 1
	}
	put(&c.error[0], err)
}

// put writes an error to a text of C.FPA_TEXT bytes.
func put(text *C.char, err error) {
	if err == nil {
		return
	}
	s := "FirstPassageAttention: " + err.Error()
	to := slice[byte](unsafe.Pointer(text), C.FPA_TEXT)
	to[copy(to[:len(to)-1], s)] = 0
}

// slice is n elements at a place in C's memory.
func slice[T any](at unsafe.Pointer, n int) []T {
	if n == 0 || at == nil {
		return nil
	}
	return unsafe.Slice((*T)(at), n)
}

// job is a call of either type.
type job interface {
	start(c *C.fpa_call) (units int)
	run(unit int)
	failed(err error)
	end() error
}

func jobOf(c *C.fpa_call) job { return cgo.Handle(c.id).Value().(job) }

// call is a running call. Calls are used again and never freed: there are as many as
// there ever were at the same time.
type call[E attention.Element] struct {
	attention.Call[E]
	id   cgo.Handle
	home *calls[E]
	mu   sync.Mutex
	err  error // of the first unit that failed
}

// calls is a free list.
type calls[E attention.Element] struct {
	mu   sync.Mutex
	free []*call[E]
}

var (
	calls32 calls[float32]
	calls16 calls[uint16]
	scratch attention.Pool
)

func (l *calls[E]) get() *call[E] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.free); n > 0 {
		c := l.free[n-1]
		l.free = l.free[:n-1]
		return c
	}
	c := &call[E]{home: l}
	c.id = cgo.NewHandle(job(c))
	return c
}

func (l *calls[E]) put(c *call[E]) {
	c.Operands, c.Results, c.err = attention.Operands[E]{}, attention.Results[E]{}, nil
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = append(l.free, c)
}

func begin[E attention.Element](l *calls[E], k *kernel, c *C.fpa_call) error {
	var in [len(inputs)]tensor
	for i := range in {
		t := &c.in[i]
		switch {
		case t.there == 0:
		case t.rank > C.FPA_RANK:
			return fmt.Errorf("%s has %d dimensions, expected %d", inputs[i].name, t.rank, len(inputs[i].dims))
		default:
			in[i] = slice[int64](unsafe.Pointer(&t.dims[0]), C.FPA_RANK)[:t.rank]
		}
	}
	s, err := shape(&in)
	if err != nil {
		return err
	}
	j := l.get()
	j.Operands = attention.Operands[E]{
		Shape: s, Scale: k.scale, Inclusive: k.inclusive, Threshold: k.threshold,
		Query: data[E](&c.in[0]), Key: data[E](&c.in[1]), Value: data[E](&c.in[2]),
		Field: data[float32](&c.in[3]), Level: data[float32](&c.in[4]), Slope: data[float32](&c.in[5]),
		PastKey: data[E](&c.in[6]), PastValue: data[E](&c.in[7]),
		PastLevel: data[float32](&c.in[8]), PastLow: data[float32](&c.in[9]),
	}
	slots, err := j.Plan()
	if err != nil {
		l.put(j)
		return err
	}
	b, hq, hkv, hf := C.int64_t(s.Batch), C.int64_t(s.QueryHeads), C.int64_t(s.KeyHeads), C.int64_t(s.FieldHeads)
	t, n, d, dv := C.int64_t(s.New), C.int64_t(slots), C.int64_t(s.KeyDim), C.int64_t(s.ValueDim)
	c.out[0].dims, c.out[0].rank = [C.FPA_RANK]C.int64_t{b, hq, t, dv}, 4
	c.out[1].dims, c.out[1].rank = [C.FPA_RANK]C.int64_t{b, hkv, n, d}, 4
	c.out[2].dims, c.out[2].rank = [C.FPA_RANK]C.int64_t{b, hkv, n, dv}, 4
	c.out[3].dims, c.out[3].rank = [C.FPA_RANK]C.int64_t{b, hf, n}, 3
	c.out[4].dims, c.out[4].rank = [C.FPA_RANK]C.int64_t{b, hf, n}, 3
	c.id = C.uintptr_t(j.id)
	return nil
}

// data is the elements of a tensor of up to C.FPA_RANK dimensions, nil where it is
// left out or empty.
func data[T any](t *C.fpa_tensor) []T {
	if t.there == 0 {
		return nil
	}
	n := 1
	for _, d := range t.dims[:t.rank] {
		n *= int(d)
	}
	return slice[T](t.data, n)
}

func (j *call[E]) start(c *C.fpa_call) int {
	j.Results = attention.Results[E]{
		Output: data[E](&c.out[0]), PresentKey: data[E](&c.out[1]), PresentValue: data[E](&c.out[2]),
		PresentLevel: data[float32](&c.out[3]), PresentLow: data[float32](&c.out[4]),
	}
	return j.Units()
}

func (j *call[E]) run(unit int) {
	s := scratch.Get()
	j.Run(unit, s)
	scratch.Put(s) // not after a panic
}

func (j *call[E]) failed(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil {
		j.err = err
	}
}

func (j *call[E]) end() error {
	err := j.err
	j.home.put(j)
	return err
}
