package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/runtime/onnxedit"
)

func newONNX() *cobra.Command {
	c := &cobra.Command{
		Use:   "onnx",
		Short: "Check ONNX models, and put the operator into them",
		Long: `onnx works on ONNX models that other programs made: check looks at their nodes of
the operator ai.firstpassage::FirstPassageAttention, inject puts such nodes in.`,
		Example: `  fpaconv onnx check model.onnx
  fpaconv onnx inject exported.onnx -o model.onnx`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown verb %q, expected check or inject", args[0])
			}
			return errors.New("no verb given, expected check or inject")
		},
		RunE: func(*cobra.Command, []string) error { return nil }, // Args has failed before
	}
	c.AddCommand(newONNXCheck(), newONNXInject())
	return c
}

func newONNXCheck() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a model's nodes of the operator",
		Long: `check reads an ONNX model with its external data, checks it against the rules of the
format, and then each node of ai.firstpassage::FirstPassageAttention: operator set,
inputs and outputs, attributes, types and shapes as far as the file tells them,
slopes that are constant, and whether the node fits the function that defines it.
It does not run the model, and does not check the standard's operators, which
onnx.checker does.

Exit code 1 when something is wrong.`,
		Example: `  fpaconv onnx check model.onnx
  fpaconv onnx check model.onnx --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return runONNXCheck(args[0], asJSON, c.OutOrStdout())
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print everything as JSON")
	return c
}

// checkReport is what check prints as JSON.
type checkReport struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	*onnxedit.Report
}

func runONNXCheck(path string, asJSON bool, w io.Writer) error {
	f, err := onnx.Open(path, format.Limits{})
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := onnxedit.Inspect(f.Model)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if asJSON {
		err = encodeJSON(w, checkReport{path, f.Size(), r})
	} else {
		err = printCheck(w, path, f.Size(), r)
	}
	if n := len(r.Problems); err == nil && n > 0 {
		err = fmt.Errorf("%s: problems found: %d", path, n)
	}
	return err
}

// printCheck prints the report for people.
func printCheck(out io.Writer, path string, size int64, r *onnxedit.Report) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "%s: ONNX, ir_version %d, %s", cli.Clean(path), r.IRVersion, cli.Bytes(size))
	if r.Producer != "" {
		fmt.Fprintf(w, ", by %s", cli.Clean(r.Producer))
	}
	fmt.Fprint(w, "\noperator sets: ")
	for i, o := range r.Opsets {
		if i > 0 {
			fmt.Fprint(w, ", ")
		}
		domain := o.Domain
		if domain == "" {
			domain = "ai.onnx"
		}
		fmt.Fprintf(w, "%s %d", cli.Clean(domain), o.Version)
	}
	fmt.Fprintln(w)
	values := func(name string, list []onnxedit.Value) {
		fmt.Fprintf(w, "%s:\n", name)
		for _, v := range list {
			fmt.Fprintf(w, "  %-32s %s\n", cli.Clean(v.Name), cli.Clean(v.Type))
		}
	}
	values("inputs", r.Inputs)
	values("outputs", r.Outputs)
	fmt.Fprintf(w, "%d nodes, of which %d of the operator; its function: %s\n", r.AllNodes, len(r.Nodes), r.Function)
	for _, n := range r.Nodes {
		past := "without past"
		if n.Past {
			past = "with past"
		}
		fmt.Fprintf(w, "  %s: %s, interval %s, scale %s\n", cli.Clean(n.Place), past, cli.Clean(n.Interval), scaleName(n.Scale))
	}
	if len(r.States) > 0 {
		fmt.Fprintf(w, "%d inputs carry a past:\n", len(r.States))
		for _, s := range r.States {
			fmt.Fprintf(w, "  %-32s next: %s\n", cli.Clean(s.Input), cli.Clean(s.Output))
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", cli.Clean(n.String()))
	}
	for _, p := range r.Problems {
		fmt.Fprintf(w, "problem: %s\n", cli.Clean(p.String()))
	}
	if len(r.Problems) == 0 {
		fmt.Fprintln(w, "nothing wrong found")
	}
	return w.Flush()
}

func scaleName(v float32) string {
	if v == 0 {
		return "1/sqrt(D)"
	}
	return fmt.Sprintf("%g", v)
}

// injectFlags are the flags of inject.
type injectFlags struct {
	output, form          string
	patterns              []string
	placeholders, nodes   []string
	external, placed      bool // placed: external was given
	force, asJSON, silent bool
}

func newONNXInject() *cobra.Command {
	var f injectFlags
	c := &cobra.Command{
		Use:   "inject IN.onnx -o OUT.onnx",
		Short: "Put the operator into a model, in place of placeholders or of a part of it",
		Long: `inject writes the operator ai.firstpassage::FirstPassageAttention into a model that
another program made, in place of

  - nodes of that name, as torch.onnx.export leaves them by a translation of
    one's own (docs/onnx-export.md), and those of --placeholder and --nodes;
  - parts of the graph that compute attention by other operators, --pattern.

By default the nodes stay, and a function of the model defines them by standard
operators, so that ONNX Runtime and others run the file as it is. Everything else
in the model is kept. The same input gives the same bytes.

A pattern names the values at the boundary of a part of the main graph: query, key,
value, field, level (else the field), slope, output; slopes gives them as numbers
instead. {} stands for a number, and the part is replaced for each that there is.
More keys: past_key, past_value, past_level, past_low, present_key, present_value,
present_level, present_low, scale (default 1/sqrt of the keys' width), interval,
and ignore, a value that the part uses and the operator does without (a causal
mask is its own). Whether the part computes the operator, nobody can tell by looking:
run both models on the same input.`,
		Example: `  fpaconv onnx inject exported.onnx -o model.onnx
  fpaconv onnx inject exported.onnx -o model.onnx --placeholder mylib::fpa
  fpaconv onnx inject fox.onnx -o model.onnx \
      --pattern 'query=q.{},key=k.{},value=v.{},field=cumsum.{},slopes=1,output=attn.{}'
  fpaconv onnx inject model.onnx -o plain.onnx --onnx-op inline`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("expected one model, found %d arguments; fpaconv onnx inject IN.onnx -o OUT.onnx", len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			f.placed = c.Flags().Changed("onnx-external")
			return runONNXInject(args[0], &f, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	fl := c.Flags()
	fl.StringVarP(&f.output, "output", "o", "", "path of the model to write")
	fl.StringVar(&f.form, "onnx-op", onnxedit.Function, "form of the operator: "+strings.Join(onnxedit.Forms, ", "))
	fl.StringArrayVar(&f.patterns, "pattern", nil, "part to replace: key=value,..., or a `file` with JSON of the same keys, one object or an array of them; may be given several times")
	fl.StringSliceVar(&f.placeholders, "placeholder", nil, "`operator` whose nodes stand for this one, as domain::name")
	fl.StringSliceVar(&f.nodes, "nodes", nil, "`names` of nodes that stand for this operator")
	fl.BoolVar(&f.external, "onnx-external", false, "put the weights into a file of their own, OUT.onnx.data; =false: into the model (default: as the input has them, of their own above 1.5 GiB)")
	fl.BoolVar(&f.force, "force", false, "replace existing files")
	fl.BoolVarP(&f.silent, "quiet", "q", false, "print nothing but errors")
	fl.BoolVar(&f.asJSON, "json", false, "print what was done as JSON on stdout")
	return c
}

func runONNXInject(path string, f *injectFlags, stdout, stderr io.Writer) error {
	if f.output == "" {
		return cli.Usage("no --output given; fpaconv onnx inject IN.onnx -o OUT.onnx")
	}
	if !slices.Contains(onnxedit.Forms, f.form) {
		return cli.Usage("--onnx-op %q is not known, expected one of %s", f.form, strings.Join(onnxedit.Forms, ", "))
	}
	o := onnxedit.Options{Form: f.form, Placeholders: f.placeholders, Nodes: f.nodes}
	for _, p := range f.patterns {
		list, err := readPatterns(p)
		if err != nil {
			return err
		}
		o.Patterns = append(o.Patterns, list...)
	}
	in, err := onnx.Open(path, format.Limits{})
	if err != nil {
		return err
	}
	defer in.Close()
	sources := in.Paths()
	for _, name := range []string{f.output, onnx.DataPath(f.output)} {
		if err := cli.NotOneOf(name, "--output", sources...); err != nil {
			return err
		}
	}
	r, err := onnxedit.Inject(in.Model, o)
	if err != nil {
		return withPath(err, path)
	}
	opt := onnx.WriteOptions{Force: f.force}
	switch {
	case f.external, !f.placed && len(sources) > 1:
		opt.External = onnx.ExternalAlways
	case f.placed:
		opt.External = onnx.ExternalNever
	}
	if err := onnx.WriteFile(f.output, in.Model, opt); err != nil {
		return err
	}
	switch {
	case f.asJSON:
		return encodeJSON(stdout, r)
	case !f.silent:
		printInject(stderr, f.output, r)
	}
	return nil
}

// withPath puts the file's name before each line of an error, once.
func withPath(err error, path string) error {
	var lines []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		lines = append(lines, path+": "+line)
	}
	return errors.New(strings.Join(lines, "\n"))
}

// readPatterns reads the patterns of an argument: pairs, or the name of a file.
func readPatterns(arg string) ([]onnxedit.Pattern, error) {
	if strings.Contains(arg, "=") {
		list, err := onnxedit.ParsePattern(arg)
		if err != nil {
			return nil, cli.Usage("--pattern: %w", err)
		}
		return list, nil
	}
	const most = 16 << 20
	file, err := os.Open(arg)
	if err != nil {
		return nil, fmt.Errorf("--pattern: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, most+1))
	if err != nil {
		return nil, err
	}
	if len(data) > most {
		return nil, fmt.Errorf("%s: larger than %s, expected patterns in JSON", arg, cli.Bytes(most))
	}
	list, err := onnxedit.ParsePattern(string(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", arg, err)
	}
	return list, nil
}

// printInject says in a few lines what was done.
func printInject(w io.Writer, path string, r *onnxedit.Result) {
	fmt.Fprintf(w, "%s: the operator in %d places, as %s\n", path, len(r.Replaced), r.Form)
	for _, p := range r.Replaced {
		fmt.Fprintf(w, "  %s: was %s%s\n", cli.Clean(p.Place), cli.Clean(p.Was), removedNodes(p.Removed))
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", cli.Clean(n.String()))
	}
}

// removedNodes is the nodes of a pattern that went, the most frequent first.
func removedNodes(counts map[string]int) string {
	if len(counts) == 0 {
		return ""
	}
	total := 0
	var names []string
	for name, n := range counts {
		total += n
		names = append(names, name)
	}
	sort.Slice(names, func(i, j int) bool {
		if a, b := counts[names[i]], counts[names[j]]; a != b {
			return a > b
		}
		return names[i] < names[j]
	})
	var parts []string
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%d %s", counts[name], cli.Clean(name)))
	}
	return fmt.Sprintf(" of %d nodes: %s", total, strings.Join(parts, ", "))
}
