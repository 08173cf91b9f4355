package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/tokenizer"
	"github.com/firstpassage/fpa/runtime/xla"
)

// benchFlags are the flags of bench.
type benchFlags struct {
	engineFlags
	prefill, decode, depths []int
	parallel                []int
	repeat                  int
	text                    string
	output                  string
	json                    bool
}

func newBench() *cobra.Command {
	var f benchFlags
	c := &cobra.Command{
		Use:   "bench -m MODEL",
		Short: "Measure prefill and decode at several depths",
		Long: `bench measures how many tokens a second the model takes in (pp, prefill, --batch at
a time) and gives out (tg, decode, one by one), after a warm-up, as mean and standard
deviation of several runs. A depth is the number of tokens fed before the
measurement. The tokens are random, which is not what a trained model's fields
expect: with --file they are those of a text, over and over.

Filling a deep cache takes long, so it is not done for every run: the runs at one
depth follow each other in one cache, run i (from 0) beginning at depth + i * tokens,
and the next depth is reached by feeding the difference. Only where the depth is no
more than the tokens of a run, depth 0 above all, does each run get a cache of its
own. "fill" is the speed of that feeding, from the end of the runs before it.

With --parallel 8 eight sequences, of tokens of their own, share every pass over the
weights: tokens/s is that of all together, and "t/s each" that of one of them. Depths
and tokens of a run are those of each sequence. With --data-parallel 2 two devices,
each with the whole model, share the sequences. A run in which XLA compiles a program
is not counted; the next one follows it.

Live keys are those that a key head holds after the last run, least, median and most
of all heads and layers; "kept" is what the cache holds of the bytes of one that
drops nothing. "memory" is the largest resident size of the process so far, the
mapped weights included.`,
		Example: `  fparun bench -m passkey.gguf -p 512 -n 128 -d 0,4096
  fparun bench -m passkey.gguf -p 0 --parallel 1,2,4,8,16                what sequences gain by sharing the weights
  fparun bench -m passkey.gguf -f prompt.txt -p 8192,65536 -n 0 -r 1     the speed of whole prompts
  fparun bench -m passkey.gguf -f prompt.txt -p 0 -n 64 -d 1000,65536    one fill of 65,536 tokens in all`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return runBench(c.Context(), c.InOrStdin(), c.OutOrStdout(), &f)
		},
	}
	fl := c.Flags()
	f.add(fl, cache.Exact, "f16")
	fl.IntSliceVarP(&f.prefill, "n-prompt", "p", []int{512}, "tokens of a prefill; 0: none")
	fl.IntSliceVarP(&f.decode, "n-gen", "n", []int{128}, "tokens of a decode; 0: none")
	fl.IntSliceVarP(&f.depths, "depth", "d", []int{0}, "depths, such as 0,4096; they are measured in ascending order")
	fl.IntSliceVar(&f.parallel, "parallel", []int{1}, "numbers of sequences that are run at the same time, such as 1,2,8")
	fl.IntVar(&f.dataParallel, "data-parallel", 1, "share the sequences of --parallel out to `N` devices of an xla backend")
	fl.IntVarP(&f.repeat, "repetitions", "r", 5, "runs of each measurement")
	fl.StringVarP(&f.text, "file", "f", "", "feed the tokens of this text `file`, again and again, in place of random ones; - is stdin")
	fl.StringVarP(&f.output, "output", "o", "md", "form of the table: md, json")
	fl.BoolVar(&f.json, "json", false, "the same as -o json")
	return c
}

// benchTest is what is measured at each depth.
type benchTest struct {
	name      string // pp512, tg128
	sequences int    // at the same time
	tokens    int    // of one run, for each sequence
	step      int    // of these, tokens of one call of the engine
}

// measurement is one line of the table.
type measurement struct {
	Model   string    `json:"model"`
	Threads int       `json:"threads"`
	Cache   string    `json:"cache"`          // mode and type
	Text    string    `json:"text,omitempty"` // the file of --file
	Test    string    `json:"test"`
	Depth   int       `json:"depth"`
	Starts  []int     `json:"starts"`            // tokens fed before each run
	Rates   []float64 `json:"tokens_per_second"` // of all sequences
	Mean    float64   `json:"mean"`
	Dev     float64   `json:"stddev"`
	Fill    fill      `json:"fill"`

	Parallel int     `json:"parallel"` // sequences
	Each     float64 `json:"mean_each"`

	// After the last run, of all sequences.
	Kept              float64  `json:"kept"`
	LiveKeys          liveKeys `json:"live_keys"`
	BytesLive         int64    `json:"cache_bytes_live"`
	BytesPeak         int64    `json:"cache_bytes_peak"`
	BytesUncompressed int64    `json:"cache_bytes_uncompressed"`
	MemoryPeak        int64    `json:"memory_peak_bytes,omitempty"` // absent where the system does not tell
}

// fill is what it took to reach a depth.
type fill struct {
	Tokens  int     `json:"tokens"` // of all sequences
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"tokens_per_second"` // 0 when there was nothing to feed
}

// liveKeys are keys held by a key head, over all heads and layers.
type liveKeys struct {
	Least  int `json:"least"`
	Median int `json:"median"`
	Most   int `json:"most"`
}

func (l liveKeys) String() string {
	if l.Least == l.Most {
		return strconv.Itoa(l.Most)
	}
	return fmt.Sprintf("%d / %d / %d", l.Least, l.Median, l.Most)
}

// maxBenchTokens bounds a depth and a run, maxParallel the sequences.
const (
	maxBenchTokens = 1 << 24
	maxParallel    = 1024
)

// check finds mistakes in the flags and puts the lists in order.
func (f *benchFlags) check() error {
	if err := f.engineFlags.check(); err != nil {
		return err
	}
	if f.json {
		f.output = "json"
	}
	if f.output != "md" && f.output != "json" {
		return cli.Usage("--output %q is not known, expected md or json", f.output)
	}
	if f.repeat < 1 || f.repeat > 1000 {
		return cli.Usage("--repetitions is %d, expected 1 to 1000", f.repeat)
	}
	for _, list := range []*[]int{&f.prefill, &f.decode, &f.depths} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
		for _, n := range *list {
			if n < 0 || n > maxBenchTokens {
				return cli.Usage("%d tokens, expected 0 to %d", n, maxBenchTokens)
			}
		}
	}
	slices.Sort(f.parallel)
	f.parallel = slices.Compact(f.parallel)
	for _, n := range f.parallel {
		if n < 1 || n > maxParallel {
			return cli.Usage("--parallel %d, expected 1 to %d sequences", n, maxParallel)
		}
	}
	if len(f.parallel) == 0 {
		return cli.Usage("--parallel is empty; expected numbers of sequences")
	}
	if len(f.tests()) == 0 || len(f.depths) == 0 {
		return cli.Usage("-p and -n are both 0, or -d is empty: nothing to measure")
	}
	return nil
}

// tests are the measurements that the flags ask for.
func (f *benchFlags) tests() []benchTest {
	var out []benchTest
	for _, kind := range []struct {
		name   string
		tokens []int
		step   int
	}{{"pp", f.prefill, f.batch}, {"tg", f.decode, 1}} {
		for _, n := range kind.tokens {
			for _, sequences := range f.parallel {
				if n > 0 {
					out = append(out, benchTest{fmt.Sprint(kind.name, n), sequences, n, kind.step})
				}
			}
		}
	}
	return out
}

func runBench(ctx context.Context, stdin io.Reader, w io.Writer, f *benchFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	if f.audit {
		return cli.Usage("--cache-audit runs everything twice, which makes no speed worth measuring; use it with fparun eval")
	}
	b := &bench{f: f, progress: cli.NewProgress(false)}
	if err := b.open(stdin); err != nil {
		return err
	}
	defer b.r.close()
	if err := b.warmUp(); err != nil {
		return err
	}
	if f.output == "json" {
		all := []measurement{}
		err := b.run(ctx, func(m measurement) error {
			all = append(all, m)
			return nil
		})
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return errors.Join(e.Encode(all), err) // what was measured before an interruption is worth having
	}
	table, err := newBenchTable(w, b.model(), b.cache(), !slices.Equal(f.parallel, []int{1}))
	if err != nil {
		return err
	}
	return b.run(ctx, table.line)
}

// bench runs measurements.
type bench struct {
	f        *benchFlags
	r        *running
	progress *cli.Progress
	parts    []engine.Part // the sequences, all of the same length
	text     []int32       // what every session is fed, again and again; empty: random tokens
	rng      *rand.Rand    // of the random tokens
}

// open opens the model and the text.
func (b *bench) open(stdin io.Reader) (err error) {
	if b.f.text == "" {
		b.r, err = b.f.open()
		return err
	}
	in := textFlags{file: b.f.text, given: func() bool { return false }}
	text, err := in.read(stdin)
	if err != nil {
		return err
	}
	r, t, err := b.f.openText()
	if err != nil {
		return err
	}
	b.text, err = t.Encode(text, tokenizer.EncodeOptions{AddSpecial: true, ParseSpecial: true})
	if err == nil && (text == "" || len(b.text) == 0) { // a token that begins every text is no text
		err = errors.New(b.f.text + ": the text is empty")
	}
	if err != nil {
		r.close()
		return err
	}
	b.r = r
	return nil
}

// model is the name that the table shows: the file's, without what would end a cell
// of the table.
func (b *bench) model() string {
	name := strings.TrimSuffix(filepath.Base(filepath.Clean(b.f.model)), ".gguf")
	return cli.Clean(strings.ReplaceAll(name, "|", "/"))
}

// cache is what the table calls the cache: its mode, what that mode is set to, and
// its type.
func (b *bench) cache() string {
	name := b.f.mode
	if name == string(cache.Bounded) {
		name += fmt.Sprintf(" %g", b.f.eps)
	}
	return name + " " + strings.ToLower(b.f.typ)
}

// run measures every test at every depth and gives each line out as it is done.
func (b *bench) run(ctx context.Context, each func(measurement) error) error {
	defer b.progress.Done()
	for _, test := range b.f.tests() {
		b.parts = nil // a line of depths begins anew
		for _, depth := range b.f.depths {
			m, err := b.measure(ctx, test, depth)
			if err != nil {
				return err
			}
			b.progress.Done()
			if err := each(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// start begins so many empty sequences. They get the same tokens at every start.
func (b *bench) start(sequences int) error {
	b.parts = nil
	runtime.GC() // the caches of the last ones are free before the next ones grow
	b.rng = rand.New(rand.NewPCG(1, 1))
	parts := make([]engine.Part, sequences)
	for i := range parts {
		s, err := b.f.newSession(b.r.engine)
		if err != nil {
			return err
		}
		parts[i] = engine.Part{Session: s, Each: ignore}
	}
	b.parts = parts
	return nil
}

// length is the number of tokens that each sequence was fed.
func (b *bench) length() int { return b.parts[0].Session.Len() }

// warmUp touches all weights and code once.
func (b *bench) warmUp() error {
	if err := b.start(1); err != nil {
		return err
	}
	for _, n := range []int{min(b.f.batch, 64), 1} {
		if err := b.parts[0].Session.Feed(b.tokens(n)[0], nil, ignore); err != nil {
			return err
		}
	}
	return nil
}

// tokens are the next n tokens for each sequence. Of a text each begins at a place of
// its own, the first one at the start.
func (b *bench) tokens(n int) [][]int32 {
	all := make([][]int32, len(b.parts))
	for i := range all {
		ids := make([]int32, n)
		for t := range ids {
			if len(b.text) > 0 {
				ids[t] = b.text[(b.length()+t+i*len(b.text)/len(all))%len(b.text)]
			} else {
				ids[t] = int32(b.rng.IntN(b.r.model.VocabSize))
			}
		}
		all[i] = ids
	}
	return all
}

func ignore(int, []float32) error { return nil }

// compilations is the number of programs that the engine has compiled. A run with one
// among them is not counted.
func (b *bench) compilations() int {
	if e, ok := b.r.engine.(*xla.Engine); ok {
		return e.Stats().Compilations
	}
	return 0
}

// none asks for no logits.
func none(int) bool { return false }

// measure runs a test at a depth.
func (b *bench) measure(ctx context.Context, test benchTest, depth int) (measurement, error) {
	m := measurement{
		Model: b.model(), Threads: b.r.engine.Threads(), Cache: b.cache(),
		Text: b.f.text, Test: test.name, Depth: depth, Parallel: test.sequences,
	}
	anew := depth <= test.tokens // filling costs less than the runs themselves
	for i := 0; len(m.Rates) < b.f.repeat; i++ {
		if b.parts == nil || i == 0 && b.length() > depth || i > 0 && anew {
			if err := b.start(test.sequences); err != nil {
				return m, err
			}
		}
		if missing := depth - b.length(); missing > 0 {
			took, err := b.feed(ctx, fmt.Sprintf("fill to %d", depth), missing, b.f.batch, false)
			if err != nil {
				return m, err
			}
			m.Fill.Tokens += missing * test.sequences
			m.Fill.Seconds += took.Seconds()
		}
		start, compiled := b.length(), b.compilations()
		stage := fmt.Sprintf("%s at %d, run %d of %d", test.name, start, len(m.Rates)+1, b.f.repeat)
		if test.sequences > 1 {
			stage = fmt.Sprintf("%d x %s", test.sequences, stage)
		}
		took, err := b.feed(ctx, stage, test.tokens, test.step, true)
		if err != nil {
			return m, err
		}
		if b.compilations() > compiled {
			continue
		}
		m.Starts = append(m.Starts, start)
		m.Rates = append(m.Rates, float64(test.tokens*test.sequences)/took.Seconds())
	}
	m.Mean, m.Dev = meanDev(m.Rates)
	m.Each = m.Mean / float64(test.sequences)
	if m.Fill.Tokens > 0 {
		m.Fill.Rate = float64(m.Fill.Tokens) / m.Fill.Seconds
	}
	var live [][]int
	for _, p := range b.parts {
		s := p.Session.CacheStats()
		m.Kept += s.Kept / float64(len(b.parts))
		m.BytesLive += s.BytesLive
		m.BytesPeak += s.BytesPeak
		m.BytesUncompressed += s.BytesUncompressed
		live = append(live, s.Live...)
	}
	m.LiveKeys = liveSpread(live)
	m.MemoryPeak = peakMemory()
	return m, nil
}

// feed feeds n tokens to each sequence, step at a time, and says how long it took.
// With logits set each decoded token's logits are computed, and those of the last
// token of a prefill.
func (b *bench) feed(ctx context.Context, stage string, n, step int, logits bool) (time.Duration, error) {
	ids := b.tokens(n)
	start := time.Now()
	for fed := 0; fed < n; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		k := min(n-fed, step)
		want := none
		if logits && (step == 1 || fed+k == n) {
			want = nil
		}
		for i := range b.parts {
			b.parts[i].IDs, b.parts[i].Want = ids[i][fed:fed+k], want
		}
		if err := engine.FeedBatch(b.r.engine, b.parts); err != nil {
			return 0, err
		}
		fed += k
		b.progress.Tokens(stage, int64(fed), int64(n))
	}
	return time.Since(start), nil
}

// liveSpread is the spread of the live keys of all layers and heads.
func liveSpread(live [][]int) liveKeys {
	all := slices.Sorted(slices.Values(slices.Concat(live...)))
	if len(all) == 0 {
		return liveKeys{}
	}
	return liveKeys{all[0], all[len(all)/2], all[len(all)-1]}
}

// peakMemory is the largest resident size of the process so far in bytes, 0 where
// the system does not tell; Linux does.
func peakMemory() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
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

// benchColumn is a column of the table with its width, in characters.
type benchColumn struct {
	name   string
	width  int
	number bool // aligned to the right
	cell   func(m *measurement) string
}

// benchColumns are the columns of the table for a model and a cache of these names;
// the number of sequences is told where it is not always one.
func benchColumns(model, cache string, parallel bool) []benchColumn {
	orDash := func(known bool, s string) string {
		if !known {
			return "-"
		}
		return s
	}
	all := []benchColumn{
		{"model", max(5, utf8.RuneCountInString(model)), false, func(m *measurement) string { return m.Model }},
		{"threads", 7, true, func(m *measurement) string { return strconv.Itoa(m.Threads) }},
		{"cache", max(11, utf8.RuneCountInString(cache)), false, func(m *measurement) string { return m.Cache }},
		{"test", 7, false, func(m *measurement) string { return m.Test }},
		{"depth", 6, true, func(m *measurement) string { return strconv.Itoa(m.Depth) }},
		{"parallel", 8, true, func(m *measurement) string { return strconv.Itoa(m.Parallel) }},
		{"tokens/s", 15, true, func(m *measurement) string { return fmt.Sprintf("%.1f ± %.1f", m.Mean, m.Dev) }},
		{"t/s each", 8, true, func(m *measurement) string { return fmt.Sprintf("%.1f", m.Each) }},
		{"fill t/s", 8, true, func(m *measurement) string { return orDash(m.Fill.Tokens > 0, fmt.Sprintf("%.1f", m.Fill.Rate)) }},
		{"live keys a head", 18, true, func(m *measurement) string { return m.LiveKeys.String() }},
		{"kept", 8, true, func(m *measurement) string { return fmt.Sprintf("%.2f %%", 100*m.Kept) }},
		{"cache size", 10, true, func(m *measurement) string { return cli.Bytes(m.BytesLive) }},
		{"memory", 7, true, func(m *measurement) string { return orDash(m.MemoryPeak > 0, cli.Bytes(m.MemoryPeak)) }},
	}
	return slices.DeleteFunc(all, func(c benchColumn) bool { return !parallel && (c.name == "parallel" || c.name == "t/s each") })
}

// benchTable prints the table a line at a time; it reads well as it is, too.
type benchTable struct {
	w       io.Writer
	columns []benchColumn
}

// newBenchTable prints the head of a table; see benchColumns.
func newBenchTable(w io.Writer, model, cache string, parallel bool) (*benchTable, error) {
	t := &benchTable{w, benchColumns(model, cache, parallel)}
	names, rules := make([]string, len(t.columns)), make([]string, len(t.columns))
	for i, c := range t.columns {
		names[i], rules[i] = c.name, strings.Repeat("-", c.width)
		if c.number {
			rules[i] = rules[i][1:] + ":"
		}
	}
	if err := t.row(names); err != nil {
		return nil, err
	}
	return t, t.row(rules)
}

// line prints a measurement.
func (t *benchTable) line(m measurement) error {
	cells := make([]string, len(t.columns))
	for i, c := range t.columns {
		cells[i] = c.cell(&m)
	}
	return t.row(cells)
}

func (t *benchTable) row(cells []string) error {
	var b strings.Builder
	for i, cell := range cells {
		width := t.columns[i].width
		if !t.columns[i].number {
			width = -width
		}
		fmt.Fprintf(&b, "| %*s ", width, cell)
	}
	b.WriteString("|\n")
	_, err := io.WriteString(t.w, b.String())
	return err
}
