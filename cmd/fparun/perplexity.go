package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// perplexityFlags are the flags of eval perplexity.
type perplexityFlags struct {
	engineFlags
	text                  textFlags
	window                int
	secondHalf, noSpecial bool
	json                  bool
}

func newPerplexity() *cobra.Command {
	var f perplexityFlags
	c := &cobra.Command{
		Use:   "perplexity -m MODEL -f TEXT",
		Short: "Measure how well a model predicts a text",
		Long: `perplexity scores every token of a text given those before it and prints the
perplexity, exp of the mean negative log likelihood. The first token of the text is
not scored. With --window the text is cut into windows that are scored each on its
own, a last window that is not full left out; --second-half scores the second half
of each window alone, as llama-perplexity does.`,
		Example: "  fparun eval perplexity -m model.gguf -f text.txt --window 512 --second-half",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return runPerplexity(c.Context(), c.InOrStdin(), c.OutOrStdout(), &f)
		},
	}
	fl := c.Flags()
	f.add(fl, cache.Exact, "f16")
	f.text.add(fl, "text")
	fl.IntVar(&f.window, "window", 0, "tokens of a window; 0: the whole text")
	fl.BoolVar(&f.secondHalf, "second-half", false, "score the second half of each window alone")
	fl.BoolVar(&f.noSpecial, "no-special", false, "add no token that begins the text")
	fl.BoolVar(&f.json, "json", false, "print the result as JSON")
	return c
}

// perplexity is the result.
type perplexity struct {
	Tokens     int     `json:"tokens"`
	Scored     int     `json:"scored"`
	Windows    int     `json:"windows"`
	NLL        float64 `json:"mean_nll"` // nats a scored token
	Perplexity float64 `json:"perplexity"`
	Kept       float64 `json:"mean_kept"` // of the cache, at the end of each window
}

func runPerplexity(ctx context.Context, stdin io.Reader, w io.Writer, f *perplexityFlags) error {
	if f.window < 0 || f.window == 1 {
		return cli.Usage("--window is %d, expected at least 2 tokens, or 0 for the whole text", f.window)
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
	_, err = fmt.Fprintf(w, "perplexity %.4f, %.5f nats a token, %d of %d tokens scored in %d windows, cache kept %.2f %%\n",
		p.Perplexity, p.NLL, p.Scored, p.Tokens, p.Windows, 100*p.Kept)
	return err
}

// score runs every window through the model.
func score(ctx context.Context, f *perplexityFlags, r *running, ids []int32) (perplexity, error) {
	window := f.window
	if window == 0 {
		window = len(ids)
	}
	if window < 2 || len(ids) < window {
		return perplexity{}, fmt.Errorf("the text has %d tokens, expected at least %d", len(ids), max(window, 2))
	}
	p := perplexity{Tokens: len(ids)}
	progress := cli.NewProgress(f.json)
	defer progress.Done()
	sum := 0.0
	for from := 0; from+window <= len(ids); from += window {
		here := ids[from : from+window]
		first := 1 // position of the first token that is scored
		if f.secondHalf {
			first = window / 2
		}
		s, err := f.newSession(r.engine)
		if err != nil {
			return p, err
		}
		// The logits of a position score the token after it.
		want := func(pos int) bool { return pos+1 >= first && pos+1 < window }
		for fed := 0; fed < window; fed += f.batch {
			if err := ctx.Err(); err != nil {
				return p, err
			}
			err := s.Feed(here[fed:min(fed+f.batch, window)], want, func(pos int, logits []float32) error {
				sum += nll(logits, here[pos+1])
				p.Scored++
				return nil
			})
			if err != nil {
				return p, err
			}
			progress.Tokens("scoring", int64(from+fed), int64(len(ids)))
		}
		p.Windows++
		p.Kept += s.CacheStats().Kept
	}
	p.Kept /= float64(p.Windows)
	p.NLL = sum / float64(p.Scored)
	p.Perplexity = math.Exp(p.NLL)
	return p, nil
}

// nll is the negative log likelihood of a token, in nats.
func nll(logits []float32, id int32) float64 {
	top := logits[0]
	for _, l := range logits {
		top = max(top, l)
	}
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l - top))
	}
	return math.Log(sum) - float64(logits[id]-top)
}
