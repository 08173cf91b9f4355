package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/runtime/convert"
	"github.com/firstpassage/fpa/runtime/model"
)

func newQuantize() *cobra.Command {
	f := convertFlags{to: "gguf"}
	c := &cobra.Command{
		Use:   "quantize MODEL --type T [-o model.gguf]",
		Short: "Write a model with matrices of fewer bits",
		Long: `quantize writes a model file with its matrices in another type, as a conversion of a
GGUF file with --type does: bounds on the logits are proved anew from the tensors as
written, and model and file are run on the same tokens and compared. MODEL may be
anything that fpaconv reads.

A GGUF file of the architecture llama stays one, metadata included, and llama.cpp runs
the result; anything else becomes one of the architecture fpa.

Types of fewer than 8 bits are mixes, as llama.cpp's of the same names are: q4_k and
q5_k mean Q4_K_M and Q5_K_M. The output matrix (the embedding, where the two are tied)
becomes Q6_K, with q4_k and q5_k also attn_v and ffn_down in half of the layers. Where
rows do not fill blocks of 256, Q4_K becomes Q5_0, Q5_K Q5_1, and Q6_K Q8_0; where they
do not fill blocks of 32 the matrix becomes F16. Norms, biases, fields and levels stay
F32. See docs/quantize.md.

A model that is quantised already is refused, since the second rounding would add to
the first, unless --allow-requantize is given or its matrices keep their types. --type
f16 widens one.`,
		Example: `  fpaconv quantize model-f16.gguf -o model-q4_k.gguf --type q4_k
  fpaconv quantize model-f16.gguf --type q8_0 --dry-run
  fpaconv quantize model-f16.gguf -o model-q6_k.gguf --type q6_k --report report.json`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return errors.New("no model given; fpaconv quantize MODEL --type T -o model.gguf")
			case len(args) > 1:
				return fmt.Errorf("expected one model, found %d arguments: %s (types are given with --type)", len(args), strings.Join(args, ", "))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if f.typ == "" {
				return cli.Usage("no type given; --type takes one of %s", strings.Join(typeNames(), ", "))
			}
			if f.output != "" && !strings.EqualFold(filepath.Ext(f.output), ".gguf") {
				return cli.Usage("cannot write %q, expected a name that ends in .gguf", f.output)
			}
			f.atolGiven, f.all, f.quantize = c.Flags().Changed("atol"), c.Flags(), true
			return runConvert(c.Context(), args[0], &f, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.typ, "type", "", "type of the matrices: "+strings.Join(typeNames(), ", "))
	f.add(fl)
	return c
}

// printPlan says what a conversion would write.
func printPlan(src *model.File, o convert.Options, w io.Writer) error {
	r, err := convert.Plan(src, o)
	if err != nil {
		return err
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	_, err = fmt.Fprintf(w, "%s: %s parameters, %s of tensors as %s (%.2f bits a parameter): %s; nothing was written\n",
		src.Path, count(r.Parameters), cli.Bytes(r.OutputBytes), o.Type, 8*float64(r.OutputBytes)/float64(r.Parameters), typeCounts(r.Tensors))
	return err
}

// typeCounts is how many tensors have which type: 90 Q4_K, 31 Q6_K, 61 F32.
func typeCounts(plans []convert.TensorPlan) string {
	counts := make(map[string]int)
	for _, p := range plans {
		counts[p.Type]++
	}
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(counts[b]-counts[a], strings.Compare(a, b))
	})
	for i, n := range names {
		names[i] = fmt.Sprintf("%d %s", counts[n], n)
	}
	return strings.Join(names, ", ")
}
