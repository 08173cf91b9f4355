package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// benchJSON runs bench and returns its lines.
func benchJSON(t *testing.T, args ...string) []measurement {
	t.Helper()
	out, _ := mustRun(t, append([]string{"bench", "-m", passkey, "-o", "json", "-t", "1"}, args...)...)
	var list []measurement
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// TestBench checks which runs there are, what each begins with, and how much is fed
// to get there: a fill is for all runs at a depth, and the next depth continues it.
func TestBench(t *testing.T) {
	list := benchJSON(t, "-p", "20,8", "-n", "4", "-d", "100,0,10,60", "-r", "2", "-b", "7", "--cache", "off")
	want := []struct {
		test   string
		depth  int
		starts []int
		fill   int
		keys   int // after the last run
	}{
		{"pp8", 0, []int{0, 0}, 0, 8},
		{"pp8", 10, []int{10, 18}, 2, 26}, // from the 8 tokens of the run before
		{"pp8", 60, []int{60, 68}, 34, 76},
		{"pp8", 100, []int{100, 108}, 24, 116},
		{"pp20", 0, []int{0, 0}, 0, 20},
		{"pp20", 10, []int{10, 10}, 20, 30}, // already past 10, and 10 < 20: two fills
		{"pp20", 60, []int{60, 80}, 30, 100},
		{"pp20", 100, []int{100, 120}, 0, 140},
		{"tg4", 0, []int{0, 0}, 0, 4},
		{"tg4", 10, []int{10, 14}, 6, 18},
		{"tg4", 60, []int{60, 64}, 42, 68},
		{"tg4", 100, []int{100, 104}, 32, 108},
	}
	if len(list) != len(want) {
		t.Fatalf("%d lines, expected %d", len(list), len(want))
	}
	for i, w := range want {
		m := list[i]
		if m.Test != w.test || m.Depth != w.depth || !slices.Equal(m.Starts, w.starts) || m.Fill.Tokens != w.fill {
			t.Errorf("line %d is %s at %d, runs from %d after a fill of %d; expected %+v", i, m.Test, m.Depth, m.Starts, m.Fill.Tokens, w)
		}
		if (m.Fill.Rate > 0) != (w.fill > 0) || (m.Fill.Seconds > 0) != (w.fill > 0) {
			t.Errorf("line %d: fill %+v", i, m.Fill)
		}
		if len(m.Rates) != 2 || !(m.Mean >= min(m.Rates[0], m.Rates[1]) && m.Mean <= max(m.Rates[0], m.Rates[1])) || m.Rates[0] <= 0 || m.Dev < 0 {
			t.Errorf("line %d: rates %v, mean %g ± %g", i, m.Rates, m.Mean, m.Dev)
		}
		if m.Kept != 1 || m.LiveKeys != (liveKeys{w.keys, w.keys, w.keys}) || m.BytesLive != m.BytesUncompressed || m.BytesPeak != m.BytesLive {
			t.Errorf("line %d: cache off keeps %g of %d keys: %+v, %d, %d and %d bytes", i, m.Kept, w.keys, m.LiveKeys, m.BytesLive, m.BytesPeak, m.BytesUncompressed)
		}
		if m.Model != "passkey" || m.Cache != "off f16" || m.Threads != 1 {
			t.Errorf("line %d is of %s, %s, %d threads", i, m.Model, m.Cache, m.Threads)
		}
		if runtime.GOOS == "linux" && m.MemoryPeak < 1<<20 {
			t.Errorf("line %d: %d bytes of memory", i, m.MemoryPeak)
		}
	}
}

// TestBenchLive compares the live keys with what the cache says of itself after
// the same number of tokens.
func TestBenchLive(t *testing.T) {
	m := benchJSON(t, "-p", "0", "-n", "1", "-d", "500", "-r", "1")[0]
	if !(m.Kept < 0.2 && m.LiveKeys.Least >= 1 && m.LiveKeys.Least < m.LiveKeys.Most && m.LiveKeys.Median <= m.LiveKeys.Most) {
		t.Errorf("%+v", m)
	}
	if m.BytesPeak < m.BytesLive || m.BytesUncompressed <= m.BytesPeak {
		t.Errorf("%d bytes live, %d at peak, %d uncompressed", m.BytesLive, m.BytesPeak, m.BytesUncompressed)
	}
	if got := liveSpread([][]int{{5, 1}, {9, 2}, {7, 7}}); got != (liveKeys{1, 7, 9}) {
		t.Errorf("%+v", got)
	}
}

// TestBenchText feeds a text in place of random tokens, whose keys the model drops
// sooner; a text shorter than the depth is repeated.
func TestBenchText(t *testing.T) {
	const prompt = passkey + "/prompt-1x.txt"
	m := benchJSON(t, "-p", "0", "-n", "1", "-d", "500", "-r", "1", "-f", prompt)[0]
	random := benchJSON(t, "-p", "0", "-n", "1", "-d", "500", "-r", "1")[0]
	if m.Text != prompt || m.Kept > random.Kept/2 {
		t.Errorf("of the text %s %g of the cache is kept, of random tokens %g", m.Text, m.Kept, random.Kept)
	}
	// In one piece, or reached in two, it is the same text.
	b := benchJSON(t, "-p", "0", "-n", "1", "-d", "100,500", "-r", "1", "-f", prompt)[1]
	if b.Fill.Tokens != 399 || b.LiveKeys != m.LiveKeys || b.BytesLive != m.BytesLive {
		t.Errorf("reached by a fill of %d: %+v, at once: %+v", b.Fill.Tokens, b.LiveKeys, m.LiveKeys)
	}
}

// TestBenchTable checks that every row of the table has the cells of its head.
func TestBenchTable(t *testing.T) {
	out, _ := mustRun(t, "bench", "-m", passkey, "-p", "20", "-n", "3", "-d", "0,30", "-r", "1")
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if len(lines) != 6 || !strings.Contains(lines[0], "tokens/s") || strings.Trim(lines[1], "|-: ") != "" {
		t.Fatalf("%s", out)
	}
	for _, line := range lines {
		if n := strings.Count(line, "|"); n != 12 || !strings.HasPrefix(line, "|") || !strings.HasSuffix(line, "|") {
			t.Errorf("%q has %d bars, expected 12", line, n)
		}
	}
	cells := strings.Split(lines[5], "|")
	for i, want := range map[int]string{1: "passkey", 3: "exact f16", 4: "tg3", 5: "30"} {
		if got := strings.TrimSpace(cells[i]); got != want {
			t.Errorf("cell %d is %q, expected %q", i, got, want)
		}
	}
	wide, _ := mustRun(t, "bench", "-m", passkey, "-p", "2", "-n", "0", "-r", "1", "--cache", "bounded", "--cache-eps", "0.015")
	if !strings.Contains(wide, "| bounded 0.015 f16 |") || !strings.Contains(wide, "| ----------------- |") {
		t.Errorf("%s", wide)
	}
	// A name that would break the table, or steer the terminal, does not.
	b := &bench{f: &benchFlags{engineFlags: engineFlags{model: "a/b|c\x1b.gguf"}}}
	if got := b.model(); got != `b/c\x1b` {
		t.Errorf("the model is called %q", got)
	}
}

// TestBenchParallel measures several sequences at a time.
func TestBenchParallel(t *testing.T) {
	list := benchJSON(t, "-p", "20", "-n", "4", "-d", "0,30", "-r", "1", "--parallel", "3,1", "--cache", "off", "-b", "8")
	want := []struct {
		test                        string
		parallel, depth, fill, keys int
	}{
		{"pp20", 1, 0, 0, 20}, {"pp20", 1, 30, 10, 50}, {"pp20", 3, 0, 0, 20}, {"pp20", 3, 30, 30, 50},
		{"tg4", 1, 0, 0, 4}, {"tg4", 1, 30, 26, 34}, {"tg4", 3, 0, 0, 4}, {"tg4", 3, 30, 78, 34},
	}
	if len(list) != len(want) {
		t.Fatalf("%d lines, expected %d", len(list), len(want))
	}
	for i, w := range want {
		m := list[i]
		if m.Test != w.test || m.Parallel != w.parallel || m.Depth != w.depth || m.Fill.Tokens != w.fill || m.LiveKeys != (liveKeys{w.keys, w.keys, w.keys}) {
			t.Errorf("line %d is %+v, expected %+v", i, m, w)
		}
		if one := list[i-i%4+i%2]; m.BytesLive != int64(m.Parallel)*one.BytesLive || m.Kept < 0.999 || m.Kept > 1.001 {
			t.Errorf("line %d: %d sequences hold %d bytes and keep %g, one holds %d", i, m.Parallel, m.BytesLive, m.Kept, one.BytesLive)
		}
		if d := m.Each*float64(m.Parallel)/m.Mean - 1; !(d > -1e-9 && d < 1e-9) {
			t.Errorf("line %d: %g tokens a second, %g each", i, m.Mean, m.Each)
		}
	}
	out, _ := mustRun(t, "bench", "-m", passkey, "-p", "0", "-n", "3", "-r", "1", "--parallel", "2")
	lines := strings.Split(out, "\n")
	if !strings.Contains(lines[0], "| parallel |") || !strings.Contains(lines[0], "| t/s each |") || !strings.Contains(lines[2], "|        2 |") {
		t.Errorf("%s", out)
	}
}

// TestBenchInterrupted: what was measured before an interruption is printed.
func TestBenchInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	f := &benchFlags{
		engineFlags: engineFlags{model: passkey, batch: 64, tensorParallel: 1, dataParallel: 1, threads: 1, backend: "cpu", activations: activationsF32, mode: "exact", typ: "f16"},
		prefill:     []int{16}, depths: []int{0, 64}, parallel: []int{1}, repeat: 1,
	}
	var out bytes.Buffer
	w := writerFunc(func(b []byte) (int, error) {
		if bytes.Contains(b, []byte("pp16")) {
			cancel() // after the first line
		}
		return out.Write(b)
	})
	f.output = "md"
	if err := runBench(ctx, strings.NewReader(""), w, f); !errors.Is(err, context.Canceled) || strings.Count(out.String(), "pp16") != 1 {
		t.Errorf("error %v, %s", err, out.String())
	}
	out.Reset()
	f.output = "json"
	var list []measurement
	if err := runBench(ctx, strings.NewReader(""), &out, f); !errors.Is(err, context.Canceled) || json.Unmarshal(out.Bytes(), &list) != nil || len(list) != 0 {
		t.Errorf("error %v, %s", err, out.String())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestBenchRefusals(t *testing.T) {
	for _, c := range []struct {
		says string
		args []string
	}{
		{"nothing to measure", []string{"-p", "0", "-n", "0"}},
		{"--repetitions", []string{"-r", "0"}},
		{"-1 tokens", []string{"-d", "-1"}},
		{"99999999 tokens", []string{"-p", "99999999"}},
		{"--output", []string{"-o", "xml"}},
		{"--parallel 0", []string{"--parallel", "1,0"}},
		{"--batch", []string{"-b", "0"}},
		{"--cache-audit", []string{"--cache-audit"}},
		{"depth", []string{"-d", "1,x"}},
	} {
		mustFail(t, 2, c.says, append([]string{"bench", "-m", passkey}, c.args...)...)
	}
	mustFail(t, 1, "no such file", "bench", "-m", passkey, "-f", "missing.txt")
	mustFail(t, 1, "is empty", "bench", "-m", passkey, "-f", "-") // nothing on stdin
}
