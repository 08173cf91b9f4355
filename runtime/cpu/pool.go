package cpu

import (
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/firstpassage/fpa/ops/kernels"
)

// pool runs tasks on the calling goroutine and on workers that wait for work
// by spinning for a while, since the next step of a token comes within
// microseconds, and then sleep.
type pool struct {
	workers []*worker

	task    func(worker, task int)
	tasks   int64
	next    atomic.Int64 // the next task to take
	pending atomic.Int64 // workers still in this round
	round   atomic.Uint64
	closed  atomic.Bool
	fault   atomic.Pointer[Fault]
	done    sync.WaitGroup
}

type worker struct {
	asleep atomic.Bool
	wake   chan struct{}
}

// spins is how often a worker looks for a new round before it sleeps, some 400 us
// in all: longer than anything that a token computes on one thread, so that it is
// awake when the next matrix comes. Sleeping and waking cost a third of the speed.
const spins = 10_000

// newPool makes a pool of n threads, the caller of run included.
func newPool(n int) *pool {
	p := &pool{}
	for i := 1; i < n; i++ {
		w := &worker{wake: make(chan struct{}, 1)}
		p.workers = append(p.workers, w)
		p.done.Add(1)
		go p.work(w, i)
	}
	return p
}

// size is the number of threads.
func (p *pool) size() int { return len(p.workers) + 1 }

// close ends the workers. No run may be under way or follow.
func (p *pool) close() {
	p.closed.Store(true)
	p.wakeAll()
	p.done.Wait()
}

// run calls f once for each task below n, on any worker, and returns when all
// are done. Which worker takes which task is left open, so f must compute the
// same for a task wherever it runs.
func (p *pool) run(n int, f func(worker, task int)) {
	if n <= 1 || len(p.workers) == 0 {
		for t := range n {
			f(0, t)
		}
		return
	}
	p.task, p.tasks = f, int64(n)
	p.next.Store(0)
	p.pending.Store(int64(len(p.workers)))
	p.wakeAll()
	p.drain(0)
	for i := 0; p.pending.Load() > 0; i++ {
		if i > spins {
			runtime.Gosched()
		}
		kernels.Pause()
	}
	p.task = nil
	if f := p.fault.Swap(nil); f != nil {
		panic(f)
	}
}

// wakeAll starts a round.
func (p *pool) wakeAll() {
	p.round.Add(1)
	for _, w := range p.workers {
		if w.asleep.CompareAndSwap(true, false) {
			w.wake <- struct{}{}
		}
	}
}

// drain takes tasks until none is left. A memory fault ends it, and run passes
// the fault on.
func (p *pool) drain(worker int) {
	defer catchFault(func(f *Fault) { p.fault.Store(f) })
	for {
		t := p.next.Add(1) - 1
		if t >= p.tasks {
			return
		}
		p.task(worker, int(t))
	}
}

func (p *pool) work(w *worker, id int) {
	debug.SetPanicOnFault(true) // of this goroutine; Feed sets it for the caller's
	defer p.done.Done()
	seen := uint64(0)
	for {
		for i := 0; p.round.Load() == seen; i++ {
			if i < spins {
				kernels.Pause()
				continue
			}
			// Announce the sleep, then look once more: a round that began in
			// between either sees the announcement or is seen here.
			w.asleep.Store(true)
			if p.round.Load() != seen && w.asleep.CompareAndSwap(true, false) {
				break
			}
			<-w.wake
		}
		seen = p.round.Load()
		if p.closed.Load() {
			return
		}
		p.drain(id)
		p.pending.Add(-1)
	}
}
