package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/runtime/cache"
)

// benchFlags are the flags of bench.
type benchFlags struct {
	engineFlags
	prefill, decode, repeat int
	depths                  []int
	output                  string
	json                    bool
}

func newBench() *cobra.Command {
	var f benchFlags
	c := &cobra.Command{
		Use:   "bench -m MODEL",
		Short: "Measure prefill and decode at several depths",
		Long: `bench measures how many tokens a second the model takes in (pp, prefill) and gives
out (tg, decode) on random tokens, after a warm-up, as mean and standard deviation
of several runs. A depth is the number of tokens fed before the measurement.`,
		Example: "  fparun bench -m passkey.gguf -p 512 -n 128 -d 0,4096",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return runBench(c.Context(), c.OutOrStdout(), &f)
		},
	}
	fl := c.Flags()
	f.add(fl, cache.Exact, "f16")
	fl.IntVarP(&f.prefill, "n-prompt", "p", 512, "tokens of a prefill; 0: none")
	fl.IntVarP(&f.decode, "n-gen", "n", 128, "tokens of a decode; 0: none")
	fl.IntSliceVarP(&f.depths, "depth", "d", []int{0}, "depths, such as 0,4096")
	fl.IntVarP(&f.repeat, "repetitions", "r", 5, "runs of each measurement")
	fl.StringVarP(&f.output, "output", "o", "md", "form of the table: md, json")
	fl.BoolVar(&f.json, "json", false, "the same as -o json")
	return c
}

// measurement is one line of the table.
type measurement struct {
	Test     string    `json:"test"` // pp512, tg128
	Depth    int       `json:"depth"`
	Rates    []float64 `json:"tokens_per_second"`
	Mean     float64   `json:"mean"`
	Dev      float64   `json:"stddev"`
	Kept     float64   `json:"kept"` // of the cache, at the end
	Threads  int       `json:"threads"`
	LiveByte int64     `json:"cache_bytes_live"`
}

const maxBenchTokens = 1 << 24

func runBench(ctx context.Context, w io.Writer, f *benchFlags) error {
	if f.json {
		f.output = "json"
	}
	if f.output != "md" && f.output != "json" {
		return cli.Usage("--output %q is not known, expected md or json", f.output)
	}
	if f.prefill == 0 && f.decode == 0 {
		return cli.Usage("-p and -n are both 0: nothing to measure")
	}
	if f.repeat < 1 || f.repeat > 1000 {
		return cli.Usage("--repetitions is %d, expected 1 to 1000", f.repeat)
	}
	for _, n := range append([]int{f.prefill, f.decode}, f.depths...) {
		if n < 0 || n > maxBenchTokens {
			return cli.Usage("%d tokens, expected 0 to %d", n, maxBenchTokens)
		}
	}
	r, err := f.open()
	if err != nil {
		return err
	}
	defer r.close()
	b := &bench{f: f, r: r, rng: rand.New(rand.NewPCG(1, 1))}
	if err := b.warmUp(); err != nil {
		return err
	}
	var all []measurement
	for _, depth := range f.depths {
		for _, test := range []struct {
			name   string
			tokens int
			step   int // tokens of one call
		}{{"pp", f.prefill, f.prefill}, {"tg", f.decode, 1}} {
			if test.tokens == 0 {
				continue
			}
			m := measurement{Test: fmt.Sprint(test.name, test.tokens), Depth: depth, Threads: r.engine.Threads()}
			if err := b.measure(ctx, &m, depth, test.tokens, test.step); err != nil {
				return err
			}
			all = append(all, m)
		}
	}
	if f.output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	return printBench(w, f, all)
}

// bench runs measurements.
type bench struct {
	f   *benchFlags
	r   *running
	rng *rand.Rand
}

func (b *bench) tokens(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(b.rng.IntN(b.r.model.VocabSize))
	}
	return ids
}

// warmUp touches all weights and code once.
func (b *bench) warmUp() error {
	s, err := b.f.newSession(b.r.engine)
	if err != nil {
		return err
	}
	if err := s.Feed(b.tokens(min(b.f.batch, 64)), nil, ignore); err != nil {
		return err
	}
	return s.Feed(b.tokens(1), nil, ignore)
}

func ignore(int, []float32) error { return nil }

// measure fills a cache to the depth and times n tokens after it, step at a
// time, in a new session each run.
func (b *bench) measure(ctx context.Context, m *measurement, depth, n, step int) error {
	for range b.f.repeat {
		s, err := b.f.newSession(b.r.engine)
		if err != nil {
			return err
		}
		fill, ids := b.tokens(depth), b.tokens(n)
		for len(fill) > 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			k := min(len(fill), b.f.batch)
			if err := s.Feed(fill[:k], nil, ignore); err != nil {
				return err
			}
			fill = fill[k:]
		}
		start := time.Now()
		for len(ids) > 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			k := min(len(ids), step)
			if err := s.Feed(ids[:k], nil, ignore); err != nil {
				return err
			}
			ids = ids[k:]
		}
		m.Rates = append(m.Rates, float64(n)/time.Since(start).Seconds())
		stats := s.CacheStats()
		m.Kept, m.LiveByte = stats.Kept, stats.BytesLive
	}
	m.Mean, m.Dev = meanDev(m.Rates)
	return nil
}

func meanDev(x []float64) (mean, dev float64) {
	for _, v := range x {
		mean += v / float64(len(x))
	}
	if len(x) < 2 {
		return mean, 0
	}
	for _, v := range x {
		dev += (v - mean) * (v - mean) / float64(len(x)-1)
	}
	return mean, math.Sqrt(dev)
}

func printBench(w io.Writer, f *benchFlags, all []measurement) error {
	fmt.Fprintf(w, "model %s, cache %s %s\n\n", f.model, f.mode, f.typ)
	fmt.Fprintln(w, "| test | depth | threads | tokens/s | cache kept | cache live |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|")
	for _, m := range all {
		_, err := fmt.Fprintf(w, "| %s | %d | %d | %.1f ± %.1f | %.2f %% | %s |\n", m.Test, m.Depth, m.Threads, m.Mean, m.Dev, 100*m.Kept, cli.Bytes(m.LiveByte))
		if err != nil {
			return err
		}
	}
	return nil
}
