package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/runtime/convert"
	"github.com/firstpassage/fpa/runtime/model"
)

func errorsIsNoTokenizer(err error) bool { return errors.Is(err, model.ErrNoTokenizer) }

// verifyFlags are the flags of verify.
type verifyFlags struct {
	atol    float64
	threads int
	json    bool
}

func newVerify() *cobra.Command {
	var f verifyFlags
	c := &cobra.Command{
		Use:   "verify A B",
		Short: "Compare two models: tensors, then logits",
		Long: `verify compares two models in any formats: their configuration, every tensor, then
the logits on the same tokens at several lengths, with a float32 cache that keeps
every key. It ends with exit code 3 when a logit of B is farther from that of A
than --atol allows.`,
		Example: "  fpaconv verify testmodels/passkey passkey.gguf",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if math.IsNaN(f.atol) || f.atol < 0 {
				return cli.Usage("--atol is %g, expected a number of at least 0", f.atol)
			}
			if f.threads < 0 || f.threads > 1024 {
				return cli.Usage("--threads is %d, expected 1 to 1024", f.threads)
			}
			return runVerify(c.Context(), args[0], args[1], f, c.OutOrStdout())
		},
	}
	c.Flags().Float64Var(&f.atol, "atol", 0, "largest difference of a logit that passes (default: by the types of B)")
	c.Flags().IntVarP(&f.threads, "threads", "t", 0, "threads (default: one a processor)")
	c.Flags().BoolVar(&f.json, "json", false, "print the result as JSON")
	return c
}

// verification is the result of verify.
type verification struct {
	A       string                     `json:"a"`
	B       string                     `json:"b"`
	Tensors []convert.TensorDifference `json:"tensors"`
	Logits  []convert.Difference       `json:"logits"`
	Allowed []float64                  `json:"allowed"`
	Passed  bool                       `json:"passed"`
}

func runVerify(ctx context.Context, pathA, pathB string, f verifyFlags, w io.Writer) error {
	a, modelA, err := openModel(pathA)
	if err != nil {
		return err
	}
	defer a.Close()
	b, modelB, err := openModel(pathB)
	if err != nil {
		return err
	}
	defer b.Close()
	v := verification{A: pathA, B: pathB, Passed: true}
	if v.Tensors, err = convert.CompareTensors(ctx, &a.Parts, &b.Parts); err != nil {
		return err
	}
	coarsest := convert.CoarsestType(&b.Parts)
	for _, n := range convert.Lengths {
		d, err := convert.Compare(ctx, modelA, modelB, n, f.threads)
		if err != nil {
			return err
		}
		allowed := d.Allowed(coarsest, f.atol)
		v.Logits, v.Allowed = append(v.Logits, d), append(v.Allowed, allowed)
		v.Passed = v.Passed && d.MaxAbs <= allowed
	}
	if f.json {
		err = encodeJSON(w, v)
	} else {
		err = v.print(w)
	}
	if err == nil && !v.Passed {
		return &cli.VerificationError{Err: fmt.Errorf("%s does not give the results of %s", pathB, pathA)}
	}
	return err
}

func openModel(path string) (*model.File, *model.Model, error) {
	f, err := model.Open(path, model.OpenOptions{})
	if err != nil {
		return nil, nil, err
	}
	m, err := f.Build()
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, m, nil
}

func (v *verification) print(w io.Writer) error {
	equal := 0
	for _, t := range v.Tensors {
		if t.Problem == "" && t.MaxAbs == 0 {
			equal++
			continue
		}
		if t.Problem != "" {
			fmt.Fprintf(w, "%-40s %s\n", t.Name, t.Problem)
			continue
		}
		fmt.Fprintf(w, "%-40s %s and %s: largest difference %.3e, RMSE %.3e\n", t.Name, t.TypeA, t.TypeB, t.MaxAbs, t.RMSE)
	}
	fmt.Fprintf(w, "%d of %d tensors hold the same values\n", equal, len(v.Tensors))
	for i, d := range v.Logits {
		fmt.Fprintf(w, "%3d tokens: largest difference of a logit %.2e (allowed %.2e), KL %.2e nats, same best token at %.1f %%\n",
			d.Tokens, d.MaxAbs, v.Allowed[i], d.KL, 100*d.SameTop)
	}
	_, err := fmt.Fprintln(w, map[bool]string{true: "passed", false: "FAILED"}[v.Passed])
	return err
}
