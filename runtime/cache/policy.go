package cache

import (
	"fmt"
	"math"
)

// Mode says when a key is dropped.
type Mode string

// The modes.
const (
	Off      Mode = "off"      // never
	Exact    Mode = "exact"    // removed weight at most 2^-25 in total a query head
	Bounded  Mode = "bounded"  // removed weight at most Eps in total a query head
	Measured Mode = "measured" // as Bounded, with the largest logit bound seen so far: no promise about later queries
	Budget   Mode = "budget"   // as Exact, and then the most penalised keys until the cache has the size Keep
)

// ExactEps is the budget of the mode Exact. At 2^-25 the output of a head moves
// by at most 2^-24 of the largest value, the rounding of float32.
const ExactEps = 1.0 / (1 << 25)

// Keep is the size of a cache of the mode Budget: a share of what an
// uncompressed cache would hold after as many tokens, or a number of bytes. A
// group of heads always keeps 16 keys, and a softmax head all.
type Keep struct {
	Share float64 // above 0, at most 1; 0 when Bytes is given
	Bytes int64
}

// Policy says what is dropped.
type Policy struct {
	Mode Mode
	Eps  float64 // of the modes Bounded and Measured, above 0 and below 1
	Keep Keep    // of the mode Budget
	// Bound[layer*QueryHeads+head] bounds the absolute logit, without penalty,
	// over all inputs. Nil: nothing can be proved.
	Bound []float32
	// SelfPenalised says that a query may see its own key with a penalty, so
	// that the rule of safe eviction does not hold.
	SelfPenalised bool
	// Audit keeps the dropped keys aside and measures the weight that they would
	// have had in every later query. Tokens are taken in one by one. It is slow, and
	// frees no memory.
	Audit bool
	// Positions has the cache remember which tokens its keys are of, for
	// Stats.Positions. Those of a restored session count as -1.
	Positions bool
}

// Validate checks that the mode is known and its numbers make sense.
func (p Policy) Validate() error {
	switch p.Mode {
	case Off, Exact:
		return nil
	case Bounded, Measured:
		if !(p.Eps > 0 && p.Eps < 1) {
			return fmt.Errorf("cache mode %s: the weight that may be removed is %g, expected a number above 0 and below 1", p.Mode, p.Eps)
		}
		return nil
	case Budget:
		if p.Keep.Bytes < 0 || p.Keep.Bytes == 0 && !(p.Keep.Share > 0 && p.Keep.Share <= 1) {
			return fmt.Errorf("cache mode budget: the size is neither a share above 0 and at most 1 nor a number of bytes")
		}
		return nil
	}
	return fmt.Errorf("cache mode %q is not known, expected off, exact, bounded, measured or budget", p.Mode)
}

// newLedger is the ledger of a group whose query heads begin at first, nil when
// none of its keys can be dropped safely.
func (p Policy) newLedger(first, heads int) *ledger {
	switch {
	case p.SelfPenalised || p.Mode == Off:
		return nil
	case p.Mode == Measured:
		return newLedger(p.Eps, make([]float32, heads))
	case p.Bound == nil:
		return nil
	case p.Mode == Bounded:
		return newLedger(p.Eps, p.Bound[first:first+heads])
	}
	return newLedger(ExactEps, p.Bound[first:first+heads])
}

// underflow is how far beyond 2U a penalty makes every weight of a key 0 in
// float32: exp(-104) is below the smallest float32.
const underflow = 104

// deadAt is the penalty from which a key of a field head weighs nothing at all in
// float32, whatever the mode; +Inf where nothing is proved.
func (p Policy) deadAt(first, heads, fieldHeads, f int) float32 {
	if p.Bound == nil || p.SelfPenalised {
		return posInf
	}
	largest := 0.0
	for h := range heads {
		if h*fieldHeads/heads == f {
			largest = max(largest, float64(p.Bound[first+h]))
		}
	}
	return math.Nextafter32(float32(2*largest+underflow), posInf)
}
