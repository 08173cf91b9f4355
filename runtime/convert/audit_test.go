package convert

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/cpu"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// audited runs ids through a model under a policy beside a run that drops nothing,
// in chunks of every kind, and returns what the audit and the cache say in the end.
func audited(t *testing.T, m *model.Model, typ quant.DType, p cache.Policy, ids []int32) cache.Stats {
	t.Helper()
	e, err := cpu.New(m, cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	p.Audit = true
	s, err := e.NewSession(typ, p)
	if err != nil {
		t.Fatal(err)
	}
	base, err := e.NewSession(typ, cache.Policy{Mode: cache.Off, Audit: true}) // token by token, as the other
	if err != nil {
		t.Fatal(err)
	}
	a := engine.NewAudit(s, base)
	for _, n := range []int{len(ids) - 20, 1, 1, 18} {
		if err := a.Feed(ids[:n], nil, func(int, []float32) error { return nil }); err != nil {
			t.Fatal(err)
		}
		ids = ids[n:]
	}
	return a.CacheStats()
}

// TestFoxCaches audits every public layout under every mode that promises
// something: the weight that was removed stays within the budget, and under exact
// no logit moves by more than 1e-5.
func TestFoxCaches(t *testing.T) {
	dropped := map[cache.Mode]int{}
	for _, dir := range caseFolders(t, "fox") {
		src := filepath.Join(dir, "f32")
		if _, err := os.Stat(src); err != nil {
			continue
		}
		_, m := open(t, src)
		ids := modeltest.Tokens(1500, m.VocabSize, 5)
		for _, c := range []struct {
			policy  cache.Policy
			allowed float64 // of a logit
		}{
			{cache.Policy{Mode: cache.Off}, 1e-5},
			{cache.Policy{Mode: cache.Exact}, 1e-5},
			{cache.Policy{Mode: cache.Bounded, Eps: 1e-3}, 2e-2},
			{cache.Policy{Mode: cache.Measured, Eps: 1e-3}, 2e-2},
		} {
			s := audited(t, m, quant.F32, c.policy, ids)
			a := s.Audit
			t.Logf("%s, %s: kept %.3f, largest weight removed %.2e, largest difference of a logit %.2e",
				filepath.Base(dir), c.policy.Mode, s.Kept, a.LargestWeight, a.LargestLogitDifference)
			eps := c.policy.Eps
			if c.policy.Mode == cache.Exact {
				eps = cache.ExactEps
			}
			if a.Positions != len(ids) || a.LargestWeight > eps || a.LargestLogitDifference > c.allowed {
				t.Errorf("%s, %s: %+v, allowed are a weight of %g and a difference of %g", filepath.Base(dir), c.policy.Mode, *a, eps, c.allowed)
			}
			dropped[c.policy.Mode] += a.Removed
		}
	}
	t.Logf("keys dropped: %v", dropped)
	if dropped[cache.Off] != 0 || dropped[cache.Exact] == 0 || dropped[cache.Bounded] <= dropped[cache.Exact] {
		t.Errorf("keys dropped: %v", dropped)
	}
}
