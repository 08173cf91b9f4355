package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// steady runs a stage of the given length, a step a second, and returns what is
// shown. columns of 0 stand for no terminal.
func steady(seconds int, columns int) string {
	var out bytes.Buffer
	clock := time.Unix(0, 0)
	p := &Progress{out: &out, now: func() time.Time { return clock }}
	if columns > 0 {
		p.width = func() int { return columns }
	}
	for i := range seconds + 1 {
		p.Tokens("scoring", int64(10*i), int64(10*seconds))
		clock = clock.Add(time.Second)
	}
	p.Done()
	return out.String()
}

func TestProgressPlain(t *testing.T) {
	if got := steady(9, 0); got != "" {
		t.Errorf("a step of 9 s shows %q", got)
	}
	// Plain lines: a tenth each, at least 10 s and at most a minute apart.
	for seconds, want := range map[int]int{50: 5, 100: 10, 300: 10, 3600: 60} {
		lines := strings.Split(strings.TrimSuffix(steady(seconds, 0), "\n"), "\n")
		if len(lines) != want {
			t.Errorf("a step of %d s shows %d lines, expected %d:\n%s", seconds, len(lines), want, strings.Join(lines, "\n"))
		}
	}
	lines := strings.Split(steady(100, 0), "\n")
	if want := "scoring  10%  100 of 1000 tokens, 10 tokens/s, 1m30s left"; lines[0] != want {
		t.Errorf("the first line is %q, expected %q", lines[0], want)
	}
	if want := "scoring 100%  1000 of 1000 tokens, 10 tokens/s"; lines[9] != want {
		t.Errorf("the last line is %q, expected %q", lines[9], want)
	}
}

func TestProgressTerminal(t *testing.T) {
	const start = "\r\x1b[K"
	draws := strings.Split(steady(10, 100), start)
	if len(draws) != 12 || draws[0] != "" || draws[11] != "" {
		t.Fatalf("%q: expected ten drawings, and a cleared line", draws)
	}
	if want := "[##########----------] scoring  50%  50 of 100 tokens, 10 tokens/s, 5s left"; draws[5] != want {
		t.Errorf("half way: %q, expected %q", draws[5], want)
	}
	for _, columns := range []int{1, 2, 40} {
		for _, line := range strings.Split(steady(10, columns), start) {
			if len(line) >= columns {
				t.Errorf("%d columns: %q would wrap", columns, line)
			}
		}
	}
}

// TestProgressOdd is for totals that are unknown or overshot, and a quiet one.
func TestProgressOdd(t *testing.T) {
	var out bytes.Buffer
	clock := time.Unix(0, 0)
	p := &Progress{out: &out, now: func() time.Time { return clock }, width: func() int { return 80 }}
	for _, c := range []struct {
		done, total int64
		want        string
	}{
		{0, 0, ""}, // the first call of a stage starts its clock
		{0, 0, "[--------------------] step   0%  0 of 0, 0/s"},
		{5, 0, "[--------------------] step   0%  5 of 0, 0/s"},
		{7, 5, "[####################] step 100%  7 of 5, 1.67/s"},
		{-1, 5, "[--------------------] step   0%  -1 of 5, 0/s"},
	} {
		out.Reset()
		p.Count("step", c.done, c.total)
		if got := strings.TrimPrefix(out.String(), "\r\x1b[K"); got != c.want {
			t.Errorf("%d of %d: %q, expected %q", c.done, c.total, got, c.want)
		}
		clock = clock.Add(time.Second)
	}
	NewProgress(true).Count("step", 1, 2) // shows nothing, and needs no stderr
}
