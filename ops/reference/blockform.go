package reference

import (
	"fmt"
	"math"
)

// BlockOptions steer [Block].
type BlockOptions struct {
	// Size is the number of positions in a block, at least 1. The last block
	// may be shorter.
	Size int
	// Dead is nil, or holds a threshold for each query head, [Hq]: a pair of a
	// query block and an earlier key block is skipped when every penalty in it
	// is at least the threshold. With logits bounded by U, a threshold of
	// 2U + 104 cannot change a float32 result, and 2U + 746 not a float64 one
	// (exp is 0 there), under the exclusive interval.
	Dead []float64
}

// BlockStats counts the block pairs of a call to [Block], over all batch
// entries and heads. Diagonal pairs count and are never skipped.
type BlockStats struct {
	Pairs, Skipped int
}

// Block computes the operator block by block, with a running softmax. For
// queries of block I and keys of an earlier block J,
//
//	low[i,j] = min(min field over (j, end of J],
//	               min field over the blocks between,
//	               min field over [start of I, i])
//
// so a pair of different blocks needs a suffix minimum, a number and a prefix
// minimum. Only the diagonal pairs need a minimum of two indices. Past slots
// take part as blocks that stand before the first one, their lows as suffix
// minima.
func Block(x Operands, o BlockOptions) (Result, BlockStats, error) {
	var stats BlockStats
	if err := x.Check(); err != nil {
		return Result{}, stats, err
	}
	if o.Size < 1 {
		return Result{}, stats, fmt.Errorf("reference: block size %d, want at least 1", o.Size)
	}
	if o.Dead != nil && len(o.Dead) != x.QueryHeads {
		return Result{}, stats, fmt.Errorf("reference: Dead has %d elements for %d query heads", len(o.Dead), x.QueryHeads)
	}
	r := x.present()
	r.Output = make([]float64, x.Batch*x.QueryHeads*x.New*x.ValueDim)
	for b := range x.Batch {
		for h := range x.QueryHeads {
			dead := math.Inf(1)
			if o.Dead != nil {
				dead = o.Dead[h]
			}
			hd := x.head(b, h, r.Output)
			hd.blocks(o.Size, dead, &stats)
		}
	}
	return r, stats, nil
}

// blocks computes one head.
func (hd *head) blocks(size int, dead float64, stats *BlockStats) {
	t, p := len(hd.field), len(hd.pastLevel)
	suffix := make([]float64, t)             // min field from j to the end of its block
	smallest := make([]float64, 0, t/size+1) // min field of each block
	for start := 0; start < t; start += size {
		end := min(start+size, t)
		low := math.Inf(1)
		for j := end - 1; j >= start; j-- {
			before := low
			low = math.Min(low, hd.entering(j))
			suffix[j] = before
			if hd.interval == Inclusive {
				suffix[j] = low
			}
		}
		smallest = append(smallest, low)
	}
	for block := range smallest {
		start := block * size
		end := min(start+size, t)
		sums := make([]runningSum, end-start)
		prefix := make([]float64, end-start) // min field over [start, i]
		low := math.Inf(1)
		for i := range sums {
			sums[i] = runningSum{max: math.Inf(-1), out: hd.output[start+i]}
			low = math.Min(low, hd.entering(start+i))
			prefix[i] = low
		}
		stats.Pairs++
		hd.diagonal(start, end, sums)

		between := math.Inf(1)
		pair := func(key, value [][]float64, level, suffix []float64) {
			stats.Pairs++
			// The penalty of a key only grows with i: the first row has the
			// smallest of the pair.
			least := math.Inf(1)
			for j := range level {
				if !skipped(level[j]) {
					least = math.Min(least, penalty(hd.slope, level[j], math.Min(suffix[j], math.Min(between, prefix[0]))))
				}
			}
			if least >= dead {
				stats.Skipped++
				return
			}
			for i := range sums {
				for j := range level {
					if skipped(level[j]) {
						continue
					}
					low := math.Min(suffix[j], math.Min(between, prefix[i]))
					sums[i].add(hd.scale*dot(hd.query[start+i], key[j])-penalty(hd.slope, level[j], low), value[j])
				}
			}
		}
		for earlier := block - 1; earlier >= 0; earlier-- {
			from, to := earlier*size, (earlier+1)*size
			pair(hd.key[from:to], hd.value[from:to], hd.level[from:to], suffix[from:to])
			between = math.Min(between, smallest[earlier])
		}
		for from := 0; from < p; from += size {
			to := min(from+size, p)
			pair(hd.pastKey[from:to], hd.pastValue[from:to], hd.pastLevel[from:to], hd.pastLow[from:to])
		}
		for i := range sums {
			sums[i].finish()
		}
	}
}

// entering is the field of a position as it enters a minimum: +inf for a
// skipped one.
func (hd *head) entering(t int) float64 {
	if skipped(hd.level[t]) {
		return math.Inf(1)
	}
	return hd.field[t]
}

// diagonal adds the keys of the block [start, end) to its own queries. The
// lows form a table of two indices, built row by row.
func (hd *head) diagonal(start, end int, sums []runningSum) {
	low := make([]float64, end-start) // low[i, start:i+1] of the row at hand
	for i := start; i < end; i++ {
		field := hd.entering(i)
		for j := start; j < i; j++ {
			low[j-start] = math.Min(low[j-start], field)
		}
		low[i-start] = math.Inf(1)
		if hd.interval == Inclusive {
			low[i-start] = field
		}
		for j := start; j <= i; j++ {
			if !skipped(hd.level[j]) {
				logit := hd.scale*dot(hd.query[i], hd.key[j]) - penalty(hd.slope, hd.level[j], low[j-start])
				sums[i-start].add(logit, hd.value[j])
			}
		}
	}
}

// runningSum is a softmax-weighted sum whose terms arrive one by one: sum and
// out are relative to exp(max), the largest logit so far.
type runningSum struct {
	max, sum float64
	out      []float64
}

func (s *runningSum) add(logit float64, value []float64) {
	if math.IsInf(logit, -1) { // a penalty beyond the range of float64
		return
	}
	if logit > s.max {
		shrink := math.Exp(s.max - logit) // 0 for the first term
		s.sum *= shrink
		for c := range s.out {
			s.out[c] *= shrink
		}
		s.max = logit
	}
	w := math.Exp(logit - s.max)
	s.sum += w
	for c := range s.out {
		s.out[c] += w * value[c]
	}
}

// finish divides by the sum; without any term the output stays zero.
func (s *runningSum) finish() {
	if s.sum == 0 {
		return
	}
	for c := range s.out {
		s.out[c] /= s.sum
	}
}
