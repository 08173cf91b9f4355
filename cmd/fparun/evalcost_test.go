package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/runtime/cache"
)

func TestCosts(t *testing.T) {
	var c costs
	c.add(costs{})
	if c.Budget != nil || c.Audit != nil {
		t.Errorf("nothing adds up to %+v", c)
	}
	c.add(costs{Budget: &cache.BudgetStats{Bytes: 10}}) // nothing dropped
	c.add(costs{
		Budget: &cache.BudgetStats{Bytes: 30, Dropped: 1, LargestWeight: 0.5, MeanWeight: 0.5},
		Audit:  &cache.AuditStats{Removed: 5, LargestWeight: 0.1, LargestLogitDifference: 2, Positions: 3},
	})
	c.add(costs{
		Budget: &cache.BudgetStats{Bytes: 20, Dropped: 3, LargestWeight: 0.25, MeanWeight: 0.25},
		Audit:  &cache.AuditStats{Removed: 1, LargestWeight: 0.3, LargestLogitDifference: 1, Positions: 4},
	})
	if want := (cache.BudgetStats{Bytes: 30, Dropped: 4, LargestWeight: 0.5, MeanWeight: 0.3125}); *c.Budget != want {
		t.Errorf("budget %+v, expected %+v", *c.Budget, want)
	}
	if want := (cache.AuditStats{Removed: 6, LargestWeight: 0.3, LargestLogitDifference: 2, Positions: 7}); *c.Audit != want {
		t.Errorf("audit %+v, expected %+v", *c.Audit, want)
	}
}

// TestEvalCosts checks that every verb tells what a budget and an audit say.
func TestEvalCosts(t *testing.T) {
	m := gguf(t)
	for _, verb := range [][]string{
		{"passkey", "--data", passkeyData(t)},
		{"perplexity", "-p", scoredText, "--window", "30"},
		{"kld", "-p", scoredText, "--window", "30"},
	} {
		args := append([]string{"eval", verb[0], "-m", m, "--cache-audit"}, verb[1:]...)
		out, _ := mustRun(t, append(args, "--json")...)
		var c costs
		if err := json.Unmarshal([]byte(out), &c); err != nil {
			t.Fatal(err)
		}
		if c.Audit == nil || c.Audit.Removed == 0 || c.Audit.Positions < 60 || c.Audit.LargestWeight > cache.ExactEps || c.Budget != nil {
			t.Errorf("%s: audit %+v, budget %+v", verb[0], c.Audit, c.Budget)
		}
		args = append(args, "--cache", "budget", "--cache-keep", "2%")
		out, _ = mustRun(t, args...)
		if !strings.Contains(out, "\nbudget: ") || !strings.Contains(out, "\naudit: ") {
			t.Errorf("%s does not tell what the budget cost:\n%s", verb[0], out)
		}
		out, _ = mustRun(t, append(args, "--json")...)
		if err := json.Unmarshal([]byte(out), &c); err != nil || c.Budget == nil || c.Budget.Bytes == 0 {
			t.Errorf("%s: budget %+v, error %v", verb[0], c.Budget, err)
		}
	}
}
