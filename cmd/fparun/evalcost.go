package main

import (
	"fmt"
	"io"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/runtime/cache"
)

// costs is what dropping keys cost over several sequences, where the cache tells:
// with --cache budget, and with --cache-audit.
type costs struct {
	Budget *cache.BudgetStats `json:"budget,omitempty"` // bytes are those of the largest sequence
	Audit  *cache.AuditStats  `json:"audit,omitempty"`
}

// costsOf are those of one sequence.
func costsOf(s cache.Stats) costs { return costs{s.Budget, s.Audit} }

// add adds those of others: numbers of keys add up, the largest of all stays, and a
// mean is one over all keys dropped.
func (c *costs) add(other costs) {
	if b := other.Budget; b != nil {
		if c.Budget == nil {
			c.Budget = &cache.BudgetStats{}
		}
		all := c.Budget
		if n := all.Dropped + b.Dropped; n > 0 {
			all.MeanWeight += (b.MeanWeight - all.MeanWeight) * float64(b.Dropped) / float64(n)
		}
		all.Dropped += b.Dropped
		all.Bytes = max(all.Bytes, b.Bytes)
		all.LargestWeight = max(all.LargestWeight, b.LargestWeight)
	}
	if a := other.Audit; a != nil {
		if c.Audit == nil {
			c.Audit = &cache.AuditStats{}
		}
		all := c.Audit
		all.Removed += a.Removed
		all.Positions += a.Positions
		all.LargestWeight = max(all.LargestWeight, a.LargestWeight)
		all.LargestLogitDifference = max(all.LargestLogitDifference, a.LargestLogitDifference)
	}
}

// print prints a line for each.
func (c *costs) print(w io.Writer) {
	if b := c.Budget; b != nil {
		fmt.Fprintf(w, "budget: %s at most; %d keys dropped that may be live, of weight %.2g at most, %.2g on average, when they were dropped\n",
			cli.Bytes(b.Bytes), b.Dropped, b.LargestWeight, b.MeanWeight)
	}
	if a := c.Audit; a != nil {
		fmt.Fprintf(w, "audit: %d keys dropped; largest weight removed %.2g, largest difference of a logit %.2g at %d positions\n",
			a.Removed, a.LargestWeight, a.LargestLogitDifference, a.Positions)
	}
}
