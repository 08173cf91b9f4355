package engine

import (
	"math"

	"github.com/firstpassage/fpa/runtime/cache"
)

// Audit is a session that runs everything twice, as it is and with every key
// kept, and compares the logits of all positions. It is the strict form of a
// check of what dropping keys costs; use it with a cache whose policy has Audit
// set, which measures the removed weights.
type Audit struct {
	Session
	base      Session
	want      []float32 // [auditStep, V], logits of the base
	largest   float64
	positions int
}

// auditStep is the number of tokens whose logits are compared at a time.
const auditStep = 32

// NewAudit makes a session of two empty ones of the same engine; base drops
// nothing. The policies of both should have Audit set, so that both compute in the
// same way and no difference of rounding hides that of dropping.
func NewAudit(s, base Session) *Audit { return &Audit{Session: s, base: base} }

// Feed is Session.Feed, on both.
func (a *Audit) Feed(ids []int32, want func(position int) bool, each func(position int, logits []float32) error) error {
	if want == nil {
		last := a.Len() + len(ids) - 1
		want = func(position int) bool { return position == last }
	}
	all := func(int) bool { return true }
	for len(ids) > 0 {
		n := min(auditStep, len(ids))
		a.want = a.want[:0]
		err := a.base.Feed(ids[:n], all, func(_ int, logits []float32) error {
			a.want = append(a.want, logits...)
			return nil
		})
		if err != nil {
			return err
		}
		base := a.want
		err = a.Session.Feed(ids[:n], all, func(position int, logits []float32) error {
			for i, l := range logits {
				a.largest = max(a.largest, math.Abs(float64(l)-float64(base[i])))
			}
			base = base[len(logits):]
			a.positions++
			if !want(position) {
				return nil
			}
			return each(position, logits)
		})
		if err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// CacheStats measures the cache, with the result of the comparison.
func (a *Audit) CacheStats() cache.Stats {
	s := a.Session.CacheStats()
	if s.Audit == nil {
		s.Audit = &cache.AuditStats{}
	}
	s.Audit.LargestLogitDifference, s.Audit.Positions = a.largest, a.positions
	return s
}
