package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/format/atomicfile"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// traceFlags are the flags of trace.
type traceFlags struct {
	engineFlags
	text           textFlags
	layers, output string
	noSpecial      bool
	force          bool
}

func newTrace() *cobra.Command {
	var f traceFlags
	c := &cobra.Command{
		Use:   "trace -m MODEL -p TEXT -o trace.html",
		Short: "Draw which keys of a text live, fade and die",
		Long: `trace runs a text through the model and writes one HTML page, which needs nothing
else and opens in any browser: the field of every head along the text, the level of
every key, and how long each key lives. For the query at a position, a key is

  live    while the field has not fallen below its level since: its penalty is 0,
  fading  once it has: the penalty grows, and the key's weight shrinks,
  dead    once the penalty is at least 2U + ln(4/eps), where the bound U on the
          logits proves that the key's weight is negligible for every later query;
          eps is --cache-eps with --cache bounded, else 2^-25 as exact has it.

Without a bound, no key is called dead. The page also says how many keys the cache
really held at the end.`,
		Example: "  fparun trace -m passkey.gguf -f testmodels/passkey/prompt-8x.txt -o trace.html",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return runTrace(c.Context(), c.InOrStdin(), c.ErrOrStderr(), &f)
		},
	}
	fl := c.Flags()
	f.add(fl, cache.Exact, "f16")
	f.text.add(fl, "text")
	fl.StringVar(&f.layers, "layers", "", "layers to show, such as 0,5,-1; negative ones count from the end (default: all)")
	fl.BoolVar(&f.noSpecial, "no-special", false, "add no token that begins the text")
	fl.StringVarP(&f.output, "output", "o", "", "HTML `file` to write")
	fl.BoolVar(&f.force, "force", false, "replace an existing file")
	return c
}

func runTrace(ctx context.Context, stdin io.Reader, stderr io.Writer, f *traceFlags) error {
	if f.output == "" {
		return cli.Usage("--output is needed")
	}
	if err := f.check(); err != nil {
		return err
	}
	if f.audit {
		return cli.Usage("--cache-audit says what dropping costs, which the page does not show; use it with fparun eval")
	}
	if err := cli.NotOneOf(f.output, "--output", f.model, f.text.file); err != nil {
		return err
	}
	text, err := f.text.read(stdin)
	if err != nil {
		return err
	}
	if f.backend == "auto" {
		f.backend = "cpu" // it tells its fields
	}
	proving := f.engineFlags
	proving.mode, proving.keep = string(cache.Exact), "" // the page needs the bound on the logits even with --cache off
	r, t, err := proving.openText()
	if err != nil {
		return err
	}
	defer r.close()
	if r.session, err = f.newSession(r.engine); err != nil {
		return err
	}
	if r.model.Field == model.FieldNone {
		return fmt.Errorf("%s: the model has no field, its heads are plain softmax: there is nothing to trace", f.model)
	}
	layers, err := parseIndices("--layers", f.layers, r.model.Blocks, "layers")
	if err != nil {
		return &cli.UsageError{Err: err}
	}
	ids, err := t.Encode(text, tokenizer.EncodeOptions{AddSpecial: !f.noSpecial, ParseSpecial: true})
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return errors.New("the text has no tokens")
	}
	if size := pageBytes(len(ids), len(layers)*r.model.FieldHeads); size > maxPageBytes {
		return fmt.Errorf("the page would take about %s for %d tokens and %d heads, at most %s are written; trace a shorter text, or fewer layers with --layers",
			cli.Bytes(size), len(ids), len(layers)*r.model.FieldHeads, cli.Bytes(maxPageBytes))
	}
	// Before the work, and not only at its end.
	out, err := atomicfile.CreateAtomic(f.output, f.force)
	if err != nil {
		return err
	}
	defer out.Abort()
	heads, err := record(ctx, f, r, layers, ids)
	if err != nil {
		return err
	}
	page, err := newPage(f, r, t, ids, heads)
	if err != nil {
		return err
	}
	if err := page.write(out); err != nil {
		return err
	}
	if err := out.Commit(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stderr, "%s: %d tokens, %d heads\n", f.output, len(ids), len(heads))
	return err
}

// headTrace is what one field head did.
type headTrace struct {
	layer, head  int
	slope, bound float64   // U, the largest of its query heads; +Inf where nothing is proved
	field, level []float64 // [T], on one zero
	lives
}

// record runs the text and returns the heads of the layers, in order.
func record(ctx context.Context, f *traceFlags, r *running, layers []int, ids []int32) ([]*headTrace, error) {
	s, ok := r.session.(interface {
		SetProbe(report func(layer, first int, field, level []float64))
	})
	if !ok {
		return nil, fmt.Errorf("--backend %s does not tell its fields; use --backend cpu", f.backend)
	}
	hf := r.model.FieldHeads
	byLayer := make([][]*headTrace, r.model.Blocks)
	var heads []*headTrace
	for _, l := range layers {
		for h := range hf {
			x := &headTrace{layer: l, head: h, slope: float64(r.model.Layers[l].Slope[h])}
			byLayer[l] = append(byLayer[l], x)
			heads = append(heads, x)
		}
	}
	s.SetProbe(func(layer, _ int, field, level []float64) {
		for h, x := range byLayer[layer] {
			for i := h; i < len(field); i += hf {
				x.field = append(x.field, field[i])
				x.level = append(x.level, level[i])
			}
		}
	})
	progress := cli.NewProgress(false)
	defer progress.Done()
	for fed := 0; fed < len(ids); fed += f.batch {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		next := min(fed+f.batch, len(ids))
		if err := r.session.Feed(ids[fed:next], nil, func(int, []float32) error { return nil }); err != nil {
			return nil, err
		}
		progress.Tokens("tracing", int64(next), int64(len(ids)))
	}
	for _, x := range heads {
		if err := x.finite(); err != nil {
			return nil, err
		}
		x.bound = fieldBound(r.model, x.layer, x.head)
		x.lives = newLives(x.field, x.level, x.slope, deadPenalty(x.bound, traceEps(f)), r.model.Interval == model.Inclusive)
	}
	return heads, nil
}

// finite says where a field or level is NaN or infinite, which no page can show.
func (x *headTrace) finite() error {
	for i := range x.field {
		if d := x.field[i] - x.field[i] + x.level[i] - x.level[i]; d != 0 {
			return fmt.Errorf("layer %d, field head %d: at token %d the field is %g and the level %g: the weights are damaged, or overflow",
				x.layer, x.head, i, x.field[i], x.level[i])
		}
	}
	return nil
}

// traceEps is the eps by which a key counts as dead.
func traceEps(f *traceFlags) float64 {
	if f.mode == string(cache.Bounded) {
		return f.eps
	}
	return cache.ExactEps
}

// fieldBound is the largest logit bound U of the query heads that read a field
// head; +Inf where none is proved, or where a proved one does not help.
func fieldBound(m *model.Model, layer, head int) float64 {
	if !m.Evictable() {
		return math.Inf(1)
	}
	each := m.Heads / m.FieldHeads
	first := layer*m.Heads + head*each
	u := 0.0
	for _, b := range m.LogitBound[first : first+each] {
		u = max(u, float64(b))
	}
	return u
}

// deadPenalty is the penalty at which a key is dead to tolerance eps: where the
// cache's ledger begins (see package cache).
func deadPenalty(bound, eps float64) float64 { return 2*bound + math.Log(4/eps) }
