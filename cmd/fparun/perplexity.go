package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// perplexityFlags are the flags of eval perplexity.
type perplexityFlags struct {
	engineFlags
	text      textFlags
	spans     spanFlags
	noSpecial bool
	json      bool
}

func newPerplexity() *cobra.Command {
	var f perplexityFlags
	c := &cobra.Command{
		Use:   "perplexity -m MODEL -f TEXT",
		Short: "Measure how well a model predicts a text",
		Long: `perplexity scores every token of a text given those before it and prints the
perplexity, exp of the mean negative log likelihood, with its standard error. The
error is that of a mean of independent tokens, as llama-perplexity prints it.

` + spanHelp,
		Example: `  fparun eval perplexity -m model.gguf -f text.txt --window 512 --second-half
  fparun eval perplexity -m model.gguf -f text.txt --window 1024 --stride 512`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return runPerplexity(c.Context(), c.InOrStdin(), c.OutOrStdout(), &f)
		},
	}
	fl := c.Flags()
	f.add(fl, cache.Exact, "f16")
	f.text.add(fl, "text")
	f.spans.add(fl)
	fl.BoolVar(&f.noSpecial, "no-special", false, "add no token that begins the text")
	fl.BoolVar(&f.json, "json", false, "print the result as JSON")
	return c
}

// perplexity is the result.
type perplexity struct {
	Model           string  `json:"model"`
	Cache           string  `json:"cache"`
	CacheType       string  `json:"cache_type"`
	Tokens          int     `json:"tokens"`
	Scored          int     `json:"scored"`
	Windows         int     `json:"windows"`
	NLL             float64 `json:"mean_nll"`                 // nats a scored token
	NLLError        float64 `json:"standard_error,omitempty"` // of the mean; none for a single token
	Perplexity      float64 `json:"perplexity"`
	PerplexityError float64 `json:"perplexity_error,omitempty"`
	Kept            float64 `json:"mean_kept"` // of the cache, at the end of each window
	costs
}

func runPerplexity(ctx context.Context, stdin io.Reader, w io.Writer, f *perplexityFlags) error {
	if err := f.spans.check(); err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return err
	}
	text, err := f.text.read(stdin)
	if err != nil {
		return err
	}
	r, t, err := f.openText()
	if err != nil {
		return err
	}
	defer r.close()
	ids, err := t.Encode(text, tokenizer.EncodeOptions{AddSpecial: !f.noSpecial})
	if err != nil {
		return err
	}
	p, err := score(ctx, f, r, ids)
	if err != nil {
		return err
	}
	if f.json {
		return json.NewEncoder(w).Encode(p)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "perplexity %.4f ± %.4f, %.5f ± %.5f nats a token, %d of %d tokens scored in %d windows, cache kept %.2f %%\n",
		p.Perplexity, p.PerplexityError, p.NLL, p.NLLError, p.Scored, p.Tokens, p.Windows, 100*p.Kept)
	p.print(&b)
	_, err = io.WriteString(w, b.String())
	return err
}

// score runs every window through the model.
func score(ctx context.Context, f *perplexityFlags, r *running, ids []int32) (perplexity, error) {
	p := perplexity{Model: f.model, Cache: f.mode, CacheType: f.typ, Tokens: len(ids)}
	spans, err := f.spans.cut(len(ids))
	if err != nil {
		return p, err
	}
	progress := cli.NewProgress(false)
	defer progress.Done()
	fed, total := 0, tokensOf(spans)
	var nll moments
	// As many windows at a time as fill a batch: a pass of few tokens costs nearly as
	// much as one of many.
	together := max(1, f.batch/max(1, spans[0].to-spans[0].from))
	for rest := spans; len(rest) > 0; {
		parts := make([]engine.Part, min(together, len(rest)))
		for i := range parts {
			s, err := f.newSession(r.engine)
			if err != nil {
				return p, err
			}
			sp := rest[i]
			parts[i] = engine.Part{Session: s, Want: sp.scores, Each: func(pos int, logits []float32) error {
				nll.add(logSumExp(logits) - float64(logits[ids[sp.from+pos+1]]))
				return nil
			}}
		}
		for at := 0; at < rest[0].to-rest[0].from; at += f.batch { // the first window is the longest
			if err := ctx.Err(); err != nil {
				return p, err
			}
			for i := range parts {
				window := ids[rest[i].from:rest[i].to]
				parts[i].IDs = window[min(at, len(window)):min(at+f.batch, len(window))]
				fed += len(parts[i].IDs)
			}
			if err := engine.FeedBatch(r.engine, parts); err != nil {
				return p, err
			}
			progress.Tokens("scoring", int64(fed), int64(total))
		}
		for _, part := range parts {
			stats := part.Session.CacheStats()
			p.Kept += stats.Kept
			p.add(costsOf(stats))
		}
		rest = rest[len(parts):]
	}
	p.Windows, p.Scored = len(spans), nll.n
	p.Kept /= float64(len(spans))
	p.NLL, p.NLLError = nll.mean, nll.err()
	p.Perplexity, p.PerplexityError = expOf(nll)
	return p, nil
}

// spanFlags say how a text is cut into windows.
type spanFlags struct {
	window, stride int
	secondHalf     bool
}

// spanHelp describes them in the help of a verb.
const spanHelp = `The first token of the text is not scored. With --window the text is cut into windows
that are scored each on its own, a last window that is not full left out;
--second-half scores the second half of each window alone, in the manner of
llama-perplexity. With --stride the window moves by so many tokens and only those not
scored before are scored, so that each but the first has at least window less stride
tokens before it; the end of the text is scored, too. That is the sliding window of
Hugging Face's guide.`

func (f *spanFlags) add(fl *pflag.FlagSet) {
	fl.IntVar(&f.window, "window", 0, "tokens of a window; 0: the whole text")
	fl.IntVar(&f.stride, "stride", 0, "move the window by so many tokens, so that windows overlap; 0: by a whole window")
	fl.BoolVar(&f.secondHalf, "second-half", false, "score the second half of each window alone")
}

// check finds mistakes before a text is read.
func (f *spanFlags) check() error {
	switch {
	case f.window < 0 || f.window == 1:
		return cli.Usage("--window is %d, expected at least 2 tokens, or 0 for the whole text", f.window)
	case f.stride < 0 || f.stride > f.window:
		return cli.Usage("--stride is %d, expected 1 to --window (%d)", f.stride, f.window)
	case f.stride > 0 && f.secondHalf:
		return cli.Usage("--stride and --second-half are both given; use one")
	}
	return nil
}

// span is a window: the tokens from to to-1 of a text are fed to an empty cache,
// and those from first on are scored, each by the logits of the one before it.
type span struct{ from, to, first int }

// scores reports whether the logits of a position in the window score a token.
func (s span) scores(pos int) bool {
	next := s.from + pos + 1
	return next >= s.first && next < s.to
}

// cut cuts a text of n tokens.
func (f *spanFlags) cut(n int) ([]span, error) {
	window := f.window
	if window == 0 {
		window = n
	}
	least := max(window, 2)
	if f.stride > 0 {
		least = 2
	}
	if n < least {
		return nil, fmt.Errorf("the text has %d tokens, expected at least %d", n, least)
	}
	var out []span
	if f.stride > 0 {
		for from, done := 0, 0; done < n; from += f.stride {
			to := min(from+window, n)
			if first := max(done, from+1); first < to {
				out = append(out, span{from, to, first})
			}
			done = to
		}
		return out, nil
	}
	for from := 0; from+window <= n; from += window {
		first := from + 1
		if f.secondHalf {
			first = from + window/2
		}
		out = append(out, span{from, from + window, first})
	}
	return out, nil
}

// tokensOf is how many tokens are fed for all windows.
func tokensOf(spans []span) int {
	n := 0
	for _, s := range spans {
		n += s.to - s.from
	}
	return n
}

// moments gathers the mean and variance of numbers one at a time, by Welford's
// method, which loses nothing when the variance is small beside the mean.
type moments struct {
	n        int
	mean, m2 float64
}

func (m *moments) add(x float64) {
	m.n++
	d := x - m.mean
	m.mean += d / float64(m.n)
	m.m2 += d * (x - m.mean)
}

// err is the standard error of the mean, for independent numbers; 0 where one
// number alone says nothing of it.
func (m *moments) err() float64 {
	if m.n < 2 {
		return 0
	}
	return math.Sqrt(m.m2 / float64(m.n-1) / float64(m.n))
}

// expOf is exp of the mean and its standard error, to first order.
func expOf(m moments) (value, err float64) {
	value = math.Exp(m.mean)
	return value, value * m.err()
}

// logSumExp is the logarithm of the sum of exp of finite logits, of which there is
// at least one.
func logSumExp(logits []float32) float64 {
	top := float64(logits[0])
	for _, l := range logits {
		top = max(top, float64(l))
	}
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l) - top)
	}
	return top + math.Log(sum)
}
