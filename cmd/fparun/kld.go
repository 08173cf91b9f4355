package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// kldFlags are the flags of eval kld.
type kldFlags struct {
	engineFlags
	text           textFlags
	spans          spanFlags
	base, baseType string
	noSpecial      bool
	json           bool
}

func newKLD() *cobra.Command {
	var f kldFlags
	c := &cobra.Command{
		Use:   "kld -m MODEL -f TEXT [--base MODEL]",
		Short: "Measure how far a model's predictions are from a base's",
		Long: `kld runs a model and a base side by side over a text and compares what they predict
for every token: the Kullback-Leibler divergence of the model from the base, in nats,
how often both put the same token first, how far the probability of the text's own
token moves, and both perplexities. Numbers after ± are standard errors of a mean of
independent tokens.

The base is the same model, or another of the same vocabulary with --base. It always
runs with --activations f32 and --cache off, its keys and values in --base-cache-type:
what is measured is all that --activations, the cache flags, and the other model,
change.

` + spanHelp,
		Example: `  fparun eval kld -m model.gguf -f text.txt --cache bounded --cache-eps 1e-3
  fparun eval kld -m model-q4_1.gguf -f text.txt --cache off --activations int8
  fparun eval kld -m model-q8_0.gguf --base model-f32.gguf -f text.txt --window 512`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return runKLD(c.Context(), c.InOrStdin(), c.OutOrStdout(), &f)
		},
	}
	fl := c.Flags()
	f.add(fl, cache.Exact, "f16")
	f.text.add(fl, "text")
	f.spans.add(fl)
	fl.StringVar(&f.base, "base", "", "compare with this model `file` (default: the same model)")
	fl.StringVar(&f.baseType, "base-cache-type", "", cacheTypeUsage("type of the base's cached keys and values", "f16"))
	fl.BoolVar(&f.noSpecial, "no-special", false, "add no token that begins the text")
	fl.BoolVar(&f.json, "json", false, "print the result as JSON")
	return c
}

// divergence is the result. Errors are standard errors.
type divergence struct {
	Model         string  `json:"model"`
	Cache         string  `json:"cache"`
	CacheType     string  `json:"cache_type"`
	Base          string  `json:"base"`
	BaseCacheType string  `json:"base_cache_type"`
	Tokens        int     `json:"tokens"`
	Scored        int     `json:"scored"`
	Windows       int     `json:"windows"`
	Kept          float64 `json:"mean_kept"` // of the model's cache, at the end of each window
	costs

	KL           klSummary    `json:"kl"`
	SameTop      float64      `json:"same_top"` // share of the tokens
	SameTopError float64      `json:"same_top_error,omitempty"`
	Change       probSummary  `json:"probability"`
	Perplexity   perplexities `json:"perplexity"`
}

// klSummary describes KL(base || model) over the tokens, in nats.
type klSummary struct {
	Mean   float64 `json:"mean"`
	Error  float64 `json:"standard_error,omitempty"`
	Median float64 `json:"median"`
	Q99    float64 `json:"quantile_99"`
	Q999   float64 `json:"quantile_99_9"`
	Max    float64 `json:"max"`
	MaxAt  int     `json:"max_at"` // the token of the text that is predicted there
}

// probSummary describes how the probability of the text's token changes from the
// base to the model.
type probSummary struct {
	Mean  float64 `json:"mean_change"`
	Error float64 `json:"standard_error,omitempty"`
	RMS   float64 `json:"rms_change"`
	Max   float64 `json:"max_abs_change"`
}

// perplexities are those of both, and the logarithm of the model's over the
// base's, whose error is that of the paired difference.
type perplexities struct {
	Model        float64 `json:"model"`
	ModelError   float64 `json:"model_error,omitempty"`
	Base         float64 `json:"base"`
	BaseError    float64 `json:"base_error,omitempty"`
	LnRatio      float64 `json:"ln_ratio"`
	LnRatioError float64 `json:"ln_ratio_error,omitempty"`
}

func runKLD(ctx context.Context, stdin io.Reader, w io.Writer, f *kldFlags) error {
	if err := f.spans.check(); err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return err
	}
	base := f.engineFlags
	base.activations, base.mode, base.keep, base.audit = activationsF32, string(cache.Off), "", false
	base.typ, base.usual = f.baseType, "f16"
	if f.base != "" {
		base.model = f.base
	}
	if err := base.check(); err != nil {
		return fmt.Errorf("--base-cache-type: %w", err) // all else was checked above
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
	rb := r // the same weights serve both
	if f.base != "" || f.activations != base.activations {
		var tb *tokenizer.Tokenizer
		if rb, tb, err = base.openText(); err != nil {
			return err
		}
		defer rb.close()
		if err := sameVocabulary(r, rb, t, tb); err != nil {
			return fmt.Errorf("%s and %s cannot be compared: %w", f.model, base.model, err)
		}
	}
	ids, err := t.Encode(text, tokenizer.EncodeOptions{AddSpecial: !f.noSpecial})
	if err != nil {
		return err
	}
	d, err := compare(ctx, f, &base, r, rb, ids)
	if err != nil {
		return err
	}
	if f.json {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(d)
	}
	return d.print(w)
}

// sameVocabulary checks that an id means the same to both models.
func sameVocabulary(a, b *running, ta, tb *tokenizer.Tokenizer) error {
	if a.model.VocabSize != b.model.VocabSize {
		return fmt.Errorf("their vocabularies have %d and %d entries, expected the same", a.model.VocabSize, b.model.VocabSize)
	}
	for id := range int32(a.model.VocabSize) {
		// An id without a token is one that both models have and no text gives.
		x, inA := ta.Token(id)
		y, inB := tb.Token(id)
		if inA && inB && x != y {
			return fmt.Errorf("token %d is %q in one and %q in the other, expected the same vocabulary", id, x, y)
		}
	}
	return nil
}

// compare runs both over every window.
func compare(ctx context.Context, f *kldFlags, base *engineFlags, r, rb *running, ids []int32) (*divergence, error) {
	spans, err := f.spans.cut(len(ids))
	if err != nil {
		return nil, err
	}
	c := &comparison{ids: ids, vocab: r.model.VocabSize}
	d := &divergence{
		Model: f.model, Cache: f.mode, CacheType: f.typ, Base: base.model, BaseCacheType: base.typ,
		Tokens: len(ids), Windows: len(spans),
	}
	progress := cli.NewProgress(false)
	defer progress.Done()
	fed, total := 0, tokensOf(spans)
	for _, sp := range spans {
		s, err := f.newSession(r.engine)
		if err != nil {
			return nil, err
		}
		sb, err := base.newSession(rb.engine)
		if err != nil {
			return nil, err
		}
		for at := sp.from; at < sp.to; {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			n := min(f.batch, maxHeld/c.vocab+1, sp.to-at)
			if err := c.feed(sb, s, sp, ids[at:at+n]); err != nil {
				return nil, err
			}
			at += n
			fed += n
			progress.Tokens("comparing", int64(fed), int64(total))
		}
		stats := s.CacheStats()
		d.Kept += stats.Kept
		d.add(costsOf(stats))
	}
	d.Kept /= float64(len(spans))
	c.summarise(d)
	return d, nil
}

// maxHeld bounds the logits of the base that are held at a time (64 MiB), whatever
// the batch and the vocabulary.
const maxHeld = 1 << 24

// comparison gathers what is measured, token by token.
type comparison struct {
	ids   []int32
	vocab int
	held  []float32 // logits of the base, [tokens, vocab]

	kl         []float32 // a token; a relative error of 2^-24 is of no matter
	klMoments  moments
	maxKL      float64
	maxAt      int
	same       moments // 1 where both put the same token first
	change     moments // of the probability of the text's token
	square     float64 // sum of its squares
	maxChange  float64
	base, nlls moments // negative log likelihoods of base and model
	ratio      moments // of their differences, model less base
}

// feed runs the next tokens of a window through both sessions.
func (c *comparison) feed(base, model engine.Session, sp span, ids []int32) error {
	c.held = c.held[:0]
	err := base.Feed(ids, sp.scores, func(_ int, logits []float32) error {
		c.held = append(c.held, logits...)
		return nil
	})
	if err != nil {
		return fmt.Errorf("the base: %w", err)
	}
	row := 0
	return model.Feed(ids, sp.scores, func(pos int, logits []float32) error {
		c.add(c.held[row*c.vocab:(row+1)*c.vocab], logits, sp.from+pos+1)
		row++
		return nil
	})
}

// add compares the logits of base and model for one token of the text.
func (c *comparison) add(base, model []float32, token int) {
	zb, zm := logSumExp(base), logSumExp(model)
	topB, topM, kl := 0, 0, 0.0
	for i, b := range base {
		m := model[i]
		if b > base[topB] {
			topB = i
		}
		if m > model[topM] {
			topM = i
		}
		logB := float64(b) - zb
		kl += math.Exp(logB) * (logB - (float64(m) - zm))
	}
	kl = max(kl, 0) // it is not negative but by rounding
	c.kl = append(c.kl, float32(kl))
	c.klMoments.add(kl)
	if kl > c.maxKL || len(c.kl) == 1 {
		c.maxKL, c.maxAt = kl, token
	}
	same := 0.0
	if topB == topM {
		same = 1
	}
	c.same.add(same)

	id := c.ids[token]
	nb, nm := zb-float64(base[id]), zm-float64(model[id])
	change := math.Exp(-nm) - math.Exp(-nb)
	c.change.add(change)
	c.square += change * change
	c.maxChange = max(c.maxChange, math.Abs(change))
	c.base.add(nb)
	c.nlls.add(nm)
	c.ratio.add(nm - nb)
}

// summarise fills in the result.
func (c *comparison) summarise(d *divergence) {
	slices.Sort(c.kl)
	d.Scored = len(c.kl)
	d.KL = klSummary{
		Mean: c.klMoments.mean, Error: c.klMoments.err(),
		Median: quantile(c.kl, 0.5), Q99: quantile(c.kl, 0.99), Q999: quantile(c.kl, 0.999),
		Max: c.maxKL, MaxAt: c.maxAt,
	}
	d.SameTop, d.SameTopError = c.same.mean, c.same.err()
	d.Change = probSummary{
		Mean: c.change.mean, Error: c.change.err(),
		RMS: math.Sqrt(c.square / float64(d.Scored)), Max: c.maxChange,
	}
	p := &d.Perplexity
	p.Model, p.ModelError = expOf(c.nlls)
	p.Base, p.BaseError = expOf(c.base)
	p.LnRatio, p.LnRatioError = c.ratio.mean, c.ratio.err()
}

// quantile is a quantile of sorted numbers, interpolated between the two nearest.
func quantile(sorted []float32, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := min(int(at), len(sorted)-1)
	j := min(i+1, len(sorted)-1)
	a, b := float64(sorted[i]), float64(sorted[j])
	return a + (b-a)*(at-float64(i))
}

func (d *divergence) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "model %s, cache %s %s; base %s, cache off %s\n", d.Model, d.Cache, d.CacheType, d.Base, d.BaseCacheType)
	fmt.Fprintf(&b, "%d of %d tokens compared in %d windows, cache kept %.2f %%\n\n", d.Scored, d.Tokens, d.Windows, 100*d.Kept)
	fmt.Fprintf(&b, "KL(base, model)  mean %.6g ± %.2g, median %.3g, 99 %% %.3g, 99.9 %% %.3g, largest %.3g at token %d\n",
		d.KL.Mean, d.KL.Error, d.KL.Median, d.KL.Q99, d.KL.Q999, d.KL.Max, d.KL.MaxAt)
	fmt.Fprintf(&b, "same top token   %.3f %% ± %.3f %%\n", 100*d.SameTop, 100*d.SameTopError)
	fmt.Fprintf(&b, "p of the token   mean change %.4g %% ± %.2g %%, root mean square %.4g %%, largest %.4g %%\n",
		100*d.Change.Mean, 100*d.Change.Error, 100*d.Change.RMS, 100*d.Change.Max)
	p := d.Perplexity
	fmt.Fprintf(&b, "perplexity       model %.4f ± %.4f, base %.4f ± %.4f, ln of the ratio %.6g ± %.2g\n",
		p.Model, p.ModelError, p.Base, p.BaseError, p.LnRatio, p.LnRatioError)
	d.costs.print(&b)
	_, err := io.WriteString(w, b.String())
	return err
}
