package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/generate"
	"github.com/firstpassage/fpa/runtime/sample"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// generateFlags are the flags of a generation.
type generateFlags struct {
	engineFlags
	session     sessionFlags
	text        textFlags
	predict     int
	params      sample.Params
	seed        int64
	stop        []string
	ignoreEnd   bool
	stats, json bool
	chat        bool
	system      string
}

func newRoot() *cobra.Command {
	var f generateFlags
	c := &cobra.Command{
		Use:   "fparun --model model.gguf --prompt TEXT",
		Short: "Run a model file",
		Long: `fparun generates text with a model whose key-value cache shrinks by the model's own
rule: keys that its field has proved dead are removed for good. The generated text
goes to stdout as it comes, everything else to stderr.

--session FILE keeps the compressed cache, the tokens and the messages of a chat:
where FILE exists the prompt is fed after what it holds, and without a prompt the
text goes on. Its settings of the cache hold. It is replaced at the end, in one step.

Settings that the model file carries (general.sampling.*) replace the defaults of
--temp, --top-k, --top-p and --min-p below; a flag on the command line comes first.
Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted.`,
		Example: `  fparun -m passkey.gguf -f testmodels/passkey/prompt-8x.txt --temp 0
  echo "The red key is 51387. What is the red key? The red key is" | fparun -m passkey.gguf -f -
  fparun -m model.gguf -f report.txt --session report.fpas -n 0
  fparun -m model.gguf -p "In short:" --session report.fpas --session-ro
  fparun bench -m passkey.gguf -d 0,4096`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q; give the prompt with -p", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			return runGenerate(c, &f)
		},
	}
	fl := c.Flags()
	f.add(fl, cache.Exact, "f16")
	f.text.add(fl, "prompt")
	d := sample.Defaults()
	fl.IntVarP(&f.predict, "predict", "n", 128, "generate at most so many tokens; -1: no limit")
	fl.Float64Var(&f.params.Temp, "temp", d.Temp, "temperature; 0: always the best token")
	fl.IntVar(&f.params.TopK, "top-k", d.TopK, "sample among the k best tokens; 0: all")
	fl.Float64Var(&f.params.TopP, "top-p", d.TopP, "sample among the best tokens that hold this probability together")
	fl.Float64Var(&f.params.MinP, "min-p", d.MinP, "leave out tokens below this share of the best one's probability")
	fl.Float64Var(&f.params.RepeatPenalty, "repeat-penalty", d.RepeatPenalty, "penalty for tokens of the last 64; 1: none")
	fl.Int64VarP(&f.seed, "seed", "s", -1, "seed of the sampler, which fixes the output for any number of threads; -1: random, and printed")
	fl.StringArrayVar(&f.stop, "stop", nil, "text that ends the generation; may be given several times")
	fl.BoolVar(&f.ignoreEnd, "ignore-eos", false, "do not stop at the model's end tokens")
	fl.BoolVar(&f.chat, "chat", false, "put the prompt into the model's chat template, as the user's message")
	fl.StringVar(&f.system, "system", "", "with --chat: a system message before it")
	f.session.add(fl)
	fl.BoolVar(&f.stats, "stats", false, "print timings and the state of the cache to stderr")
	fl.BoolVar(&f.json, "json", false, "print one JSON object with text, timings and cache on stdout, instead of the text")
	c.AddCommand(newLogits(), newTokenize(), newBench(), newEval(), newTrace(), newBackends())
	acceptAliases(c)
	return c
}

// outcome is what --json prints.
type outcome struct {
	generate.Result
	Model string      `json:"model"`
	Seed  int64       `json:"seed"`
	Load  int64       `json:"load_ns"`
	Cache cache.Stats `json:"cache"`

	Session *sessionReport `json:"session,omitempty"`
}

func runGenerate(c *cobra.Command, f *generateFlags) error {
	if err := f.params.Validate(); err != nil {
		return &cli.UsageError{Err: err}
	}
	if f.predict < -1 {
		return cli.Usage("--predict is %d, expected a number of tokens, or -1 for no limit", f.predict)
	}
	if f.seed < -1 {
		return cli.Usage("--seed is %d, expected a number of at least 0, or -1 for a random one", f.seed)
	}
	if slices.Contains(f.stop, "") {
		return cli.Usage("--stop is empty, which would end every generation at once")
	}
	keep, err := newKeeper(c, f)
	if err != nil {
		return err
	}
	defer keep.close()
	if err := f.check(); err != nil {
		return err
	}
	if f.system != "" && !f.chat {
		return cli.Usage("--system is of use with --chat alone")
	}
	// A session goes on without a prompt, too.
	var text string
	given := f.text.given() || f.text.file != ""
	if given || keep == nil || keep.old == nil {
		if text, err = f.text.read(c.InOrStdin()); err != nil {
			return err
		}
	}
	r, t, err := f.openText()
	if err != nil {
		return err
	}
	defer r.close()
	var prompt []int32
	if keep != nil {
		if err = keep.restore(f, r); err == nil {
			prompt, err = keep.prompt(f, r, t, text, given)
		}
	} else {
		prompt, err = f.encode(r, t, text)
	}
	if err != nil {
		return err
	}
	if m, n := r.model, r.session.Len()+len(prompt); m.RopeDim > 0 && n > m.ContextLength {
		fmt.Fprintf(c.ErrOrStderr(), "note: the prompt ends at %d tokens; the model was trained on %d, and its rotary embedding may fail beyond\n", n, m.ContextLength)
	}
	if why := r.model.KeepsAll(); why != "" && f.mode != string(cache.Off) && c.Flags().Changed("cache") {
		fmt.Fprintf(c.ErrOrStderr(), "note: --cache %s drops nothing for this model: %s\n", f.mode, why)
	}
	f.applyModelDefaults(c, r)
	if f.seed < 0 {
		f.seed = int64(rand.Uint32()) // small enough for every reader of JSON
		if f.params.Temp > 0 && !f.json {
			fmt.Fprintf(c.ErrOrStderr(), "seed: %d\n", f.seed)
		}
	}
	return generateText(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), f, r, t, prompt, keep)
}

// encode is the tokens of a prompt, in the chat template where one is asked for.
func (f *generateFlags) encode(r *running, t *tokenizer.Tokenizer, text string) ([]int32, error) {
	if f.chat {
		var err error
		if text, err = renderChat(r.file, t, chatMessages(f.system, text)); err != nil {
			return nil, err
		}
	}
	// A template writes the tokens that begin a text itself.
	return t.Encode(text, tokenizer.EncodeOptions{AddSpecial: !f.chat, ParseSpecial: true})
}

// applyModelDefaults takes sampling settings from the model where the command
// line gives none.
func (f *generateFlags) applyModelDefaults(c *cobra.Command, r *running) {
	g := r.file.Generation
	set := func(flag string, from *float32, to *float64) {
		if from != nil && !c.Flags().Changed(flag) {
			*to = float64(*from)
		}
	}
	set("temp", g.Temperature, &f.params.Temp)
	set("top-p", g.TopP, &f.params.TopP)
	set("min-p", g.MinP, &f.params.MinP)
	if g.TopK != nil && !c.Flags().Changed("top-k") {
		f.params.TopK = *g.TopK
	}
}

// generateText generates after a prompt, and keeps the session unless keep is nil.
func generateText(ctx context.Context, stdout, stderr io.Writer, f *generateFlags, r *running, t *tokenizer.Tokenizer, prompt []int32, keep *keeper) error {
	if err := f.params.Validate(); err != nil {
		return fmt.Errorf("%s: sampling settings of the file: %w", f.model, err)
	}
	out := bufio.NewWriter(stdout)
	emit := func(piece string) error {
		if _, err := out.WriteString(piece); err != nil {
			return err
		}
		return out.Flush()
	}
	if f.json {
		emit = nil
	}
	progress := cli.NewProgress(f.json)
	sampler := sample.New(f.params, uint64(f.seed))
	if keep != nil {
		keep.accept(sampler)
	}
	res, err := generate.Run(ctx, r.session, t, sampler, prompt, generate.Options{
		Predict: f.predict, Stop: f.stop, End: r.file.EndTokens(), IgnoreEnd: f.ignoreEnd, Chunk: f.batch,
		Progress: func(fed int) {
			progress.Tokens("prompt", int64(fed), int64(len(prompt)))
			if fed == len(prompt) {
				progress.Done()
			}
		},
	}, emit)
	progress.Done()
	if err != nil {
		return err
	}
	if !f.json {
		if _, err := fmt.Fprintln(stdout); err != nil {
			return err
		}
	}
	var report *sessionReport
	var unsaved error // told last: what was generated comes out in any case
	if keep != nil {
		unsaved = keep.save(r, t, prompt, res)
		report = &keep.report
	}
	if f.json {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		if err := e.Encode(outcome{res, f.model, f.seed, int64(r.load), r.session.CacheStats(), report}); err != nil {
			return errors.Join(err, unsaved)
		}
	} else if f.stats {
		printStats(stderr, r, res)
		if report != nil {
			report.print(stderr)
		}
	} else if f.audit {
		printCache(stderr, r.session.CacheStats())
	}
	if unsaved != nil {
		return unsaved
	}
	return ctx.Err() // interrupted: what was generated is out, and the exit code tells
}

// printStats prints timings and cache.
func printStats(w io.Writer, r *running, res generate.Result) {
	rate := func(n int, d time.Duration) string {
		if n <= 0 || d <= 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f tokens/s", float64(n)/d.Seconds())
	}
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
	fmt.Fprintf(w, "load:    %s\n", ms(r.load))
	fmt.Fprintf(w, "prefill: %d tokens in %s, %s\n", res.PromptTokens, ms(res.Prefill), rate(res.PromptTokens, res.Prefill))
	fmt.Fprintf(w, "decode:  %d tokens in %s, %s; ended by %s\n", len(res.Tokens), ms(res.Decode), rate(len(res.Tokens)-1, res.Decode), res.Reason)
	printCache(w, r.session.CacheStats())
}

// textFlags are the flags that give a text.
type textFlags struct {
	text, file string
	given      func() bool
}

// maxPromptBytes bounds a prompt file: far above any context that runs, and so
// small that a wrong file name does not fill the memory.
const maxPromptBytes = 1 << 28

// read is the text that the flags name; of a file without a newline at its end.
func (f *textFlags) read(stdin io.Reader) (string, error) {
	switch {
	case f.given() && f.file != "":
		return "", cli.Usage("--prompt and --file are both given; use one")
	case f.given():
		return f.text, nil
	case f.file == "":
		return "", cli.Usage("no prompt given; use --prompt TEXT or --file FILE")
	}
	r := stdin
	if f.file != "-" {
		file, err := os.Open(f.file)
		if err != nil {
			return "", err
		}
		defer file.Close()
		r = file
	}
	data, err := io.ReadAll(io.LimitReader(r, maxPromptBytes+1))
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.file, err)
	}
	if len(data) > maxPromptBytes {
		return "", errors.New(f.file + ": the prompt is longer than 256 MiB")
	}
	// An editor or echo ends a file with a newline that is not meant.
	text := strings.TrimSuffix(string(data), "\n")
	return strings.TrimSuffix(text, "\r"), nil
}
