package cpu

import (
	"sync/atomic"
	"testing"
)

// counted counts how often each task is done.
type counted []atomic.Int32

func (c counted) do(_, task int) { c[task].Add(1) }

// TestPool does every task of every round once, with more and fewer tasks than
// threads, and with workers that are asleep.
func TestPool(t *testing.T) {
	for _, threads := range []int{1, 2, 3, 8} {
		p := newPool(threads)
		for round := range 3000 {
			c := make(counted, round%23)
			p.run(len(c), c)
			for i := range c {
				if n := c[i].Load(); n != 1 {
					t.Fatalf("%d threads, round %d: task %d of %d was done %d times", threads, round, i, len(c), n)
				}
			}
		}
		p.close()
	}
}

// idle has nothing to do.
type idle struct{}

func (idle) do(int, int) {}

// BenchmarkRound is what a round of tasks costs beside them.
func BenchmarkRound(b *testing.B) {
	p := newPool(2)
	defer p.close()
	for range b.N {
		p.run(8, idle{})
	}
}
