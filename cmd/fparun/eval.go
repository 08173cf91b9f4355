package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/format/atomicfile"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/cpu"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/generate"
	"github.com/firstpassage/fpa/runtime/sample"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

func newEval() *cobra.Command {
	c := &cobra.Command{
		Use:   "eval",
		Short: "Measure what a model can do",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return cli.Usage("say what to measure; see fparun eval --help") },
	}
	c.AddCommand(newPasskey(), newPerplexity(), newKLD())
	return c
}

// passkeyFlags are the flags of eval passkey.
type passkeyFlags struct {
	engineFlags
	data, output, svg string
	maxLength, limit  int
	bins              int
	json, force       bool
}

func newPasskey() *cobra.Command {
	var f passkeyFlags
	c := &cobra.Command{
		Use:   "passkey -m MODEL --data FILE",
		Short: "Ask for keys hidden in long texts",
		Long: `passkey reads prompts and their answers from a file of JSON lines (gzip is read too),
generates greedily after each prompt, and prints for each length how many answers
are right and how much of the cache was kept; then the same by length and depth, the
place of the answer in the prompt from 0 (its start) to 1. An answer is right when the
text is exactly the expected one and an end token follows.

A line is {"prompt": "…", "answer": "…", "length": 2048, "depth": 0.5}; length groups
the lines of the tables. Lines without depth are in the table by length alone. Depths
are grouped into --depth-bins of equal width; without it there is a column for each
depth, or ten bins when there are more than eleven depths.

--svg draws the table by length and depth as a heat map: the colour and the first line
of a cell are the share of right answers, the second line is the share of the cache
that was kept. The keys of --json are those of the tables, and every answer.`,
		Example: `  fparun eval passkey -m passkey.gguf --data testmodels/passkey/eval-three.jsonl.gz
  fparun eval passkey -m passkey.gguf --data eval.jsonl --depth-bins 5 --svg passkey.svg`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return runPasskey(c.Context(), c.OutOrStdout(), &f)
		},
	}
	fl := c.Flags()
	f.add(fl, cache.Exact, "f16")
	fl.StringVar(&f.data, "data", "", "`file` of prompts and answers, .jsonl or .jsonl.gz")
	fl.IntVar(&f.maxLength, "max-length", 0, "leave out prompts whose length is larger; 0: none")
	fl.IntVar(&f.limit, "limit", 0, "at most so many prompts of each length, evenly spread over them; 0: all")
	fl.IntVar(&f.bins, "depth-bins", 0, "group depths into so many bins of equal width; 0: see above")
	fl.StringVar(&f.svg, "svg", "", "draw the table by length and depth into this `file`")
	fl.BoolVar(&f.force, "force", false, "replace an existing file")
	fl.StringVarP(&f.output, "output", "o", "md", "form of the result: md, json (with every answer)")
	fl.BoolVar(&f.json, "json", false, "the same as -o json")
	return c
}

// question is one line of the data.
type question struct {
	Prompt string   `json:"prompt"`
	Answer string   `json:"answer"`
	Length int      `json:"length"`
	Depth  *float64 `json:"depth"`
	number int      // in the file, from 1
}

// answer is what the model gave.
type answer struct {
	Length  int      `json:"length"`
	Depth   *float64 `json:"depth,omitempty"`
	Want    string   `json:"want"`
	Got     string   `json:"got"`
	Ended   bool     `json:"ended"` // an end token followed
	Right   bool     `json:"right"`
	Tokens  int      `json:"prompt_tokens"`
	Kept    float64  `json:"kept"`
	MaxLive int      `json:"max_live"` // keys of the fullest head
	costs
}

// lengthResult is a line of the table.
type lengthResult struct {
	Length int `json:"length"`
	tally
	Tokens   float64 `json:"mean_tokens"`
	MostKept float64 `json:"max_kept"`
	MaxLive  int     `json:"max_live"`
}

// cell is a group of prompts of one length and one range of depths.
type cell struct {
	Length int     `json:"length"`
	From   float64 `json:"depth_from"`
	To     float64 `json:"depth_to"`
	tally
}

// tally counts answers.
type tally struct {
	Prompts int     `json:"prompts"`
	Right   int     `json:"right"`
	Kept    float64 `json:"mean_kept"`
}

// report is the whole result.
type report struct {
	Model     string         `json:"model"`
	Data      string         `json:"data"`
	Cache     string         `json:"cache"`
	CacheType string         `json:"cache_type"`
	Lengths   []lengthResult `json:"lengths"`
	Cells     []cell         `json:"cells"` // those that hold a prompt
	costs
	Answers []answer `json:"answers"`
}

func (f *passkeyFlags) checkPasskey() error {
	switch {
	case f.data == "":
		return cli.Usage("no data given; use --data FILE")
	case f.limit < 0 || f.maxLength < 0:
		return cli.Usage("--limit and --max-length are numbers of at least 0")
	case f.bins < 0 || f.bins > maxBins:
		return cli.Usage("--depth-bins is %d, expected 1 to %d, or 0 for as many as fit", f.bins, maxBins)
	}
	if f.json {
		f.output = "json"
	}
	if f.output != "md" && f.output != "json" {
		return cli.Usage("--output %q is not known, expected md or json", f.output)
	}
	if f.svg != "" {
		if err := cli.NotOneOf(f.svg, "--svg", f.model, f.data); err != nil {
			return err
		}
	}
	return f.check()
}

func runPasskey(ctx context.Context, w io.Writer, f *passkeyFlags) error {
	if err := f.checkPasskey(); err != nil {
		return err
	}
	questions, err := readQuestions(f)
	if err != nil {
		return err
	}
	depths := depthBins(questions, f.bins)
	var picture *atomicfile.File
	if f.svg != "" { // what cannot be written is found before hours of work
		if len(depths) == 0 {
			return fmt.Errorf("%s: no question has a depth, which --svg needs", f.data)
		}
		if picture, err = atomicfile.CreateAtomic(f.svg, f.force); err != nil {
			return err
		}
		defer picture.Abort()
	}
	r, t, err := f.openText()
	if err != nil {
		return err
	}
	defer r.close()
	answers, err := askAll(ctx, f, r, t, questions)
	if err != nil {
		return err
	}
	res := &report{
		Model: f.model, Data: f.data, Cache: f.mode, CacheType: f.typ,
		Lengths: summarise(answers), Cells: cellsOf(answers, depths), Answers: answers,
	}
	for _, a := range answers {
		res.add(a.costs)
	}
	if picture != nil {
		if err := res.heatMap(depths).WriteSVG(picture); err != nil {
			return err
		}
		if err := picture.Commit(); err != nil {
			return err
		}
	}
	if f.output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(res)
	}
	return res.print(w, depths)
}

// maxDataBytes bounds the text of an evaluation, which is held in memory: a small
// gzip file can hold very much.
const maxDataBytes = 256_000_000

// readQuestions reads the data and checks every line.
func readQuestions(f *passkeyFlags) ([]question, error) {
	file, err := os.Open(f.data)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var r io.Reader = file
	if strings.HasSuffix(f.data, ".gz") {
		z, err := gzip.NewReader(bufio.NewReader(file))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.data, err)
		}
		r = z
	}
	limited := &io.LimitedReader{R: r, N: maxDataBytes}
	var out []question
	d := json.NewDecoder(bufio.NewReader(limited))
	for line := 1; ; line++ {
		var q question
		if err := d.Decode(&q); err == io.EOF {
			break
		} else if limited.N <= 0 {
			return nil, fmt.Errorf("%s: holds more than %d MB of text; split it", f.data, maxDataBytes/1_000_000)
		} else if err != nil {
			return nil, fmt.Errorf("%s: question %d: %w", f.data, line, err)
		}
		if q.Prompt == "" || q.Answer == "" {
			return nil, fmt.Errorf("%s: question %d lacks a prompt or an answer", f.data, line)
		}
		if q.Length < 0 || q.Depth != nil && !(*q.Depth >= 0 && *q.Depth <= 1) {
			return nil, fmt.Errorf("%s: question %d has a length or a depth that is not one, expected a length of at least 0 and a depth of 0 to 1", f.data, line)
		}
		if f.maxLength > 0 && q.Length > f.maxLength {
			continue
		}
		q.number = line
		out = append(out, q)
	}
	out = thin(out, f.limit)
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: holds no question to ask", f.data)
	}
	return out, nil
}

// thin picks at most limit questions of each length, evenly over them from the
// first to the last, since data goes by depth; 0 picks all.
func thin(questions []question, limit int) []question {
	if limit == 0 {
		return questions
	}
	byLength := make(map[int][]int)
	for i, q := range questions {
		byLength[q.Length] = append(byLength[q.Length], i)
	}
	var picked []int
	for _, all := range byLength {
		n := min(limit, len(all))
		for k := range n {
			picked = append(picked, all[k*(len(all)-1)/max(n-1, 1)])
		}
	}
	slices.Sort(picked)
	out := make([]question, len(picked))
	for i, at := range picked {
		out[i] = questions[at]
	}
	return out
}

// prompt is a question in tokens.
type prompt struct {
	ids  []int32
	want int // tokens of the answer
}

// tokenize turns all questions into tokens, so that it is known how much there is
// to do, and a question that cannot be asked is found before any is.
func tokenize(t *tokenizer.Tokenizer, questions []question) ([]prompt, error) {
	prompts := make([]prompt, len(questions))
	for i, q := range questions {
		ids, err := t.Encode(q.Prompt, tokenizer.EncodeOptions{AddSpecial: true, ParseSpecial: true})
		if err != nil {
			return nil, fmt.Errorf("question %d: %w", q.number, err)
		}
		want, err := t.Encode(q.Answer, tokenizer.EncodeOptions{})
		if err != nil {
			return nil, fmt.Errorf("question %d: %w", q.number, err)
		}
		prompts[i] = prompt{ids, len(want)}
	}
	return prompts, nil
}

// askAll asks every question, several at a time, each on an engine of one
// thread: prompts are independent, and small models gain little from more
// threads.
func askAll(ctx context.Context, f *passkeyFlags, r *running, t *tokenizer.Tokenizer, questions []question) ([]answer, error) {
	prompts, err := tokenize(t, questions)
	if err != nil {
		return nil, err
	}
	total := 0
	for _, p := range prompts {
		total += len(p.ids)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	threads := f.threads
	if threads == 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	answers := make([]answer, len(questions))
	next := make(chan int)
	var mu sync.Mutex
	var first error
	var group sync.WaitGroup
	progress := cli.NewProgress(false)
	fed := 0
	count := func(tokens int) {
		mu.Lock()
		defer mu.Unlock()
		fed += tokens
		progress.Tokens("asking", int64(fed), int64(total))
	}
	shared, own := r.engine.(*cpu.Engine)
	if !own {
		threads = 1 // XLA takes all that the machine has for one prompt
	}
	for range min(threads, len(questions)) {
		e := r.engine
		if own {
			e = shared.Share(1)
		}
		group.Go(func() {
			if own {
				defer e.Close()
			}
			for i := range next {
				a, err := ask(ctx, f, e, r, t, questions[i], prompts[i], count)
				mu.Lock()
				answers[i] = a
				if err != nil && first == nil {
					first = fmt.Errorf("question %d: %w", questions[i].number, err)
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	for i := range questions {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	group.Wait()
	progress.Done()
	if first == nil {
		first = ctx.Err()
	}
	return answers, first
}

// ask generates greedily after one prompt. count is told of its tokens as they are
// fed.
func ask(ctx context.Context, f *passkeyFlags, e engine.Engine, r *running, t *tokenizer.Tokenizer, q question, in prompt, count func(int)) (answer, error) {
	a := answer{Length: q.Length, Depth: q.Depth, Want: q.Answer, Tokens: len(in.ids)}
	s, err := f.newSession(e)
	if err != nil {
		return a, err
	}
	p := sample.Defaults()
	p.Temp = 0
	last := 0
	res, err := generate.Run(ctx, s, t, sample.New(p, 0), in.ids, generate.Options{
		Predict: in.want + 8, End: r.file.EndTokens(), Chunk: f.batch,
		Progress: func(fed int) { count(fed - last); last = fed },
	}, nil)
	if err != nil {
		return a, err
	}
	a.Got, a.Ended = res.Text, res.Reason == generate.ByEnd
	a.Right = a.Ended && a.Got == a.Want
	stats := s.CacheStats()
	a.Kept, a.costs = stats.Kept, costsOf(stats)
	for _, layer := range stats.Live {
		for _, n := range layer {
			a.MaxLive = max(a.MaxLive, n)
		}
	}
	return a, ctx.Err()
}

// summarise groups the answers by length.
func summarise(answers []answer) []lengthResult {
	byLength := make(map[int]*lengthResult)
	for _, a := range answers {
		l := byLength[a.Length]
		if l == nil {
			l = &lengthResult{Length: a.Length}
			byLength[a.Length] = l
		}
		l.add(a)
		l.Tokens += float64(a.Tokens)
		l.MostKept = max(l.MostKept, a.Kept)
		l.MaxLive = max(l.MaxLive, a.MaxLive)
	}
	var out []lengthResult
	for _, l := range byLength {
		l.Tokens /= float64(l.Prompts)
		out = append(out, *l)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Length < out[j].Length })
	return out
}
