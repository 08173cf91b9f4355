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
	"sort"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/cmd/internal/cli"
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
	c.AddCommand(newPasskey(), newPerplexity())
	return c
}

// passkeyFlags are the flags of eval passkey.
type passkeyFlags struct {
	engineFlags
	data, output string
	maxLength    int
	limit        int
	json         bool
}

func newPasskey() *cobra.Command {
	var f passkeyFlags
	c := &cobra.Command{
		Use:   "passkey -m MODEL --data FILE",
		Short: "Ask for keys hidden in long texts",
		Long: `passkey reads prompts and their answers from a file of JSON lines (gzip is read too),
generates greedily after each prompt, and prints for each length how many answers
are right and how much of the cache was kept. An answer is right when the text is
exactly the expected one and an end token follows.

A line is {"prompt": "…", "answer": "…", "length": 2048, "depth": 0.5}; length groups
the lines of the table, depth is optional.`,
		Example: "  fparun eval passkey -m passkey.gguf --data testmodels/passkey/eval-three.jsonl.gz",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return runPasskey(c.Context(), c.OutOrStdout(), &f)
		},
	}
	fl := c.Flags()
	f.add(fl, cache.Exact, "f16")
	fl.StringVar(&f.data, "data", "", "`file` of prompts and answers, .jsonl or .jsonl.gz")
	fl.IntVar(&f.maxLength, "max-length", 0, "leave out prompts whose length is larger; 0: none")
	fl.IntVar(&f.limit, "limit", 0, "at most so many prompts of each length; 0: all")
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
}

// lengthResult is a line of the table.
type lengthResult struct {
	Length   int     `json:"length"`
	Prompts  int     `json:"prompts"`
	Right    int     `json:"right"`
	Tokens   float64 `json:"mean_tokens"`
	Kept     float64 `json:"mean_kept"`
	MostKept float64 `json:"max_kept"`
	MaxLive  int     `json:"max_live"`
}

func runPasskey(ctx context.Context, w io.Writer, f *passkeyFlags) error {
	if f.data == "" {
		return cli.Usage("no data given; use --data FILE")
	}
	if f.limit < 0 || f.maxLength < 0 {
		return cli.Usage("--limit and --max-length are numbers of at least 0")
	}
	if f.json {
		f.output = "json"
	}
	if f.output != "md" && f.output != "json" {
		return cli.Usage("--output %q is not known, expected md or json", f.output)
	}
	if err := f.check(); err != nil {
		return err
	}
	questions, err := readQuestions(f)
	if err != nil {
		return err
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
	table := summarise(answers)
	if f.output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(map[string]any{"model": f.model, "data": f.data, "cache": f.mode, "cache_type": f.typ, "lengths": table, "answers": answers})
	}
	return printPasskey(w, f, table)
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
	count := make(map[int]int)
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
		if f.maxLength > 0 && q.Length > f.maxLength || f.limit > 0 && count[q.Length] == f.limit {
			continue
		}
		count[q.Length]++
		out = append(out, q)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: holds no question to ask", f.data)
	}
	return out, nil
}

// askAll asks every question, several at a time, each on an engine of one
// thread: prompts are independent, and small models gain little from more
// threads.
func askAll(ctx context.Context, f *passkeyFlags, r *running, t *tokenizer.Tokenizer, questions []question) ([]answer, error) {
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
	done := 0
	for range min(threads, len(questions)) {
		e, err := cpu.New(r.model, cpu.Options{Threads: 1, Chunk: f.batch})
		if err != nil {
			return nil, err
		}
		group.Go(func() {
			defer e.Close()
			for i := range next {
				a, err := ask(ctx, f, e, r, t, questions[i])
				mu.Lock()
				answers[i] = a
				if err != nil && first == nil {
					first = fmt.Errorf("question %d: %w", i+1, err)
					cancel()
				}
				done++
				progress.Count("asking", int64(done), int64(len(questions)))
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

// ask generates greedily after one prompt.
func ask(ctx context.Context, f *passkeyFlags, e engine.Engine, r *running, t *tokenizer.Tokenizer, q question) (answer, error) {
	a := answer{Length: q.Length, Depth: q.Depth, Want: q.Answer}
	prompt, err := t.Encode(q.Prompt, tokenizer.EncodeOptions{AddSpecial: true, ParseSpecial: true})
	if err != nil {
		return a, err
	}
	want, err := t.Encode(q.Answer, tokenizer.EncodeOptions{})
	if err != nil {
		return a, err
	}
	s, err := f.newSession(e)
	if err != nil {
		return a, err
	}
	p := sample.Defaults()
	p.Temp = 0
	res, err := generate.Run(ctx, s, t, sample.New(p, 0), prompt, generate.Options{
		Predict: len(want) + 8, End: r.file.EndTokens(), Chunk: f.batch,
	}, nil)
	if err != nil {
		return a, err
	}
	a.Got, a.Ended, a.Tokens = res.Text, res.Reason == generate.ByEnd, len(prompt)
	a.Right = a.Ended && a.Got == a.Want
	stats := s.CacheStats()
	a.Kept = stats.Kept
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
		l.Prompts++
		if a.Right {
			l.Right++
		}
		l.Tokens += float64(a.Tokens)
		l.Kept += a.Kept
		l.MostKept = max(l.MostKept, a.Kept)
		l.MaxLive = max(l.MaxLive, a.MaxLive)
	}
	var out []lengthResult
	for _, l := range byLength {
		l.Tokens /= float64(l.Prompts)
		l.Kept /= float64(l.Prompts)
		out = append(out, *l)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Length < out[j].Length })
	return out
}

func printPasskey(w io.Writer, f *passkeyFlags, table []lengthResult) error {
	fmt.Fprintf(w, "model %s, cache %s %s, data %s\n\n", f.model, f.mode, f.typ, f.data)
	fmt.Fprintln(w, "| length | prompts | right | tokens | cache kept, mean | largest | live keys of the fullest head |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|")
	for _, l := range table {
		_, err := fmt.Fprintf(w, "| %d | %d | %.1f %% | %.0f | %.3f %% | %.3f %% | %d |\n",
			l.Length, l.Prompts, 100*float64(l.Right)/float64(l.Prompts), l.Tokens, 100*l.Kept, 100*l.MostKept, l.MaxLive)
		if err != nil {
			return err
		}
	}
	return nil
}
