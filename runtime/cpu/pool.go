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
//
// A round of tasks waits for those workers alone that have joined it. One that the
// system has put aside, or not yet woken, is not missed: the others do its share.
type pool struct {
	sleepers []*sleeper // one for each thread but the caller's

	work   work
	tasks  int
	shares []share // one for each thread

	// On a cache line of its own: workers that wait look at it all the time.
	_     line
	state atomic.Uint64 // number of the round << 32, open or not, workers in it
	_     line

	closed atomic.Bool
	fault  atomic.Pointer[Fault]
	done   sync.WaitGroup
}

// What state is made of.
const (
	oneRound = 1 << 32
	open     = 1 << 31 // the round may be joined
	joined   = open - 1
)

// work is what a round does; do computes the same for a task on whichever worker.
type work interface{ do(worker, task int) }

// workFunc is work as a function. A call of run allocates it.
type workFunc func(worker, task int)

func (f workFunc) do(worker, task int) { f(worker, task) }

// sleeper is how a worker sleeps.
type sleeper struct {
	asleep atomic.Bool
	wake   chan struct{}
	_      line
}

type line [64]byte

// share is an equal part of a round's tasks, that of one thread: it takes them in
// order, which are rows of a matrix that follow each other in memory, and then
// helps the others with theirs.
type share struct {
	taken atomic.Uint64 // number of the round << 32, tasks taken
	_     line
}

// spins is how often a worker looks for a new round before it sleeps, some 400 us
// in all: longer than anything that a token computes on one thread, so that it is
// awake when the next matrix comes. Sleeping and waking cost a third of the speed.
const spins = 10_000

// newPool makes a pool of n threads, the caller of run included.
func newPool(n int) *pool {
	p := &pool{shares: make([]share, n)}
	for i := 1; i < n; i++ {
		w := &sleeper{wake: make(chan struct{}, 1)}
		p.sleepers = append(p.sleepers, w)
		p.done.Add(1)
		go p.loop(w, i)
	}
	return p
}

// size is the number of threads.
func (p *pool) size() int { return len(p.sleepers) + 1 }

// close ends the workers. No run may be under way or follow.
func (p *pool) close() {
	p.closed.Store(true)
	p.begin(0)
	p.done.Wait()
}

// run does each task below n once, on any worker, and returns when all are done.
// Which worker takes which task is left open.
func (p *pool) run(n int, w work) {
	if n <= 1 || len(p.sleepers) == 0 {
		for t := range n {
			w.do(0, t)
		}
		return
	}
	p.work, p.tasks = w, n
	p.begin(open)
	p.drain(0)
	p.state.And(^uint64(open))
	for i := 0; p.state.Load()&joined > 0; i++ {
		if i > spins {
			runtime.Gosched()
		}
		kernels.Pause()
	}
	p.work = nil
	if f := p.fault.Swap(nil); f != nil {
		panic(f)
	}
}

// begin starts a round and wakes those that sleep.
func (p *pool) begin(how uint64) {
	p.state.Store(p.state.Load()&^(oneRound-1) + oneRound + how)
	for _, w := range p.sleepers {
		if w.asleep.Load() && w.asleep.CompareAndSwap(true, false) {
			w.wake <- struct{}{}
		}
	}
}

// drain takes tasks until none is left. A memory fault ends it, and run passes
// the fault on.
func (p *pool) drain(worker int) {
	defer catchFault(func(f *Fault) { p.fault.Store(f) })
	round := p.state.Load() / oneRound
	for i := range p.shares {
		share := worker + i
		if share >= len(p.shares) {
			share -= len(p.shares)
		}
		for task := p.take(round, share); task >= 0; task = p.take(round, share) {
			p.work.do(worker, task)
		}
	}
}

// take takes the next task of a share, -1 when none is left.
func (p *pool) take(round uint64, share int) int {
	first, end := share*p.tasks/len(p.shares), (share+1)*p.tasks/len(p.shares)
	taken := &p.shares[share].taken
	for {
		old := taken.Load()
		n := int(old % oneRound)
		if old/oneRound != round {
			n = 0 // of a round before
		}
		if first+n >= end {
			return -1
		}
		if taken.CompareAndSwap(old, round*oneRound+uint64(n)+1) {
			return first + n
		}
	}
}

// loop is the life of a worker.
func (p *pool) loop(w *sleeper, id int) {
	debug.SetPanicOnFault(true) // of this goroutine; a pass sets it for the caller's
	defer p.done.Done()
	seen := uint64(0) // number of the last round that it knows of
	for !p.closed.Load() {
		s := p.await(w, seen)
		for s&open != 0 && !p.state.CompareAndSwap(s, s+1) { // another one joined, or it is over
			s = p.state.Load()
		}
		seen = s / oneRound
		if s&open != 0 {
			p.drain(id)
			p.state.Add(^uint64(0))
		}
	}
}

// await waits for a round after the one seen, and returns the state then.
func (p *pool) await(w *sleeper, seen uint64) uint64 {
	for i := 0; ; i++ {
		if s := p.state.Load(); s/oneRound != seen {
			return s
		}
		if i < spins {
			kernels.Pause()
			continue
		}
		// Announce the sleep, then look once more: a round that began in between
		// either sees the announcement or is seen here.
		w.asleep.Store(true)
		if p.state.Load()/oneRound == seen || !w.asleep.CompareAndSwap(true, false) {
			<-w.wake
		}
	}
}
