package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/format/atomicfile"
	"github.com/firstpassage/fpa/runtime/convert"
	"github.com/firstpassage/fpa/runtime/model"
)

// convertFlags are the flags of a conversion.
type convertFlags struct {
	output, to, typ            string
	config, tokenizer, report  string
	splitMax, mapping          string
	verify, noVerify           bool
	dryRun, force, quiet, json bool
	requantise                 bool
	quantize                   bool // the command quantize: only types change, and a dry run says what would be written
	atol                       float64
	atolGiven                  bool
	threads                    int
	onnx                       onnxFlags
	all                        *pflag.FlagSet
}

func newRoot() *cobra.Command {
	var f convertFlags
	c := &cobra.Command{
		Use:   "fpaconv CHECKPOINT [-o model.gguf | model.onnx | model.safetensors]",
		Short: "Convert a trained checkpoint to a model file",
		Long: `fpaconv reads a trained checkpoint and writes a GGUF file that holds all a
program needs to run it: weights, configuration, tokenizer. The checkpoint is a
folder in Hugging Face layout, a .safetensors file, the index of a sharded
checkpoint, a PyTorch file (.pt, .pth, .bin; read without running anything in it),
a .gguf file of the architecture fpa or llama, or an ONNX model that fpaconv wrote.

Other outputs:

  -o model.onnx             an ONNX model (docs/onnx.md)
  --to onnx -o FOLDER       the same with its configuration and tokenizer
  -o FOLDER/NAME.safetensors, or --to safetensors -o FOLDER
                            an FPA checkpoint (docs/checkpoints.md)

After writing, the checkpoint's own weights and the written file are run on the
same tokens, and the largest difference of a logit is printed; a file that fails
the check is not kept (exit code 3). Other exit codes: 1 failed, 2 usage, 130
interrupted.`,
		Example: `  fpaconv testmodels/passkey -o passkey.gguf
  fpaconv checkpoint/model.safetensors --type q8_0 -o model-q8.gguf
  fpaconv testmodels/passkey --to onnx -o passkey-onnx
  fpaconv passkey-onnx --to safetensors -o passkey-again
  fpaconv inspect passkey.gguf --tensors`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return errors.New("no checkpoint given; fpaconv CHECKPOINT -o model.gguf")
			case len(args) > 1:
				return fmt.Errorf("expected one checkpoint, found %d arguments: %s", len(args), strings.Join(args, ", "))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			f.atolGiven, f.all = c.Flags().Changed("atol"), c.Flags()
			return runConvert(c.Context(), args[0], &f, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.to, "to", "", "kind of file to write: gguf, onnx, safetensors (default: by the extension of --output)")
	fl.StringVar(&f.typ, "type", "f16", "type of the matrices: "+strings.Join(typeNames(), ", ")+"; norms, biases and fields stay f32")
	fl.StringVar(&f.config, "config", "", "config.json, when it is not beside the checkpoint")
	fl.StringVar(&f.tokenizer, "tokenizer", "", "tokenizer.json, or the folder of a tokenizer, when it is not beside the checkpoint")
	fl.StringVar(&f.mapping, "map", "", "`file` that says how to read a checkpoint of unknown naming (docs/mapping.md; fpaconv inspect prints one to fill in)")
	f.add(fl)
	f.onnx.add(fl)
	c.AddCommand(newInspect(), newVerify(), newHash(), newQuantize())
	c.AddCommand(newONNX())
	return c
}

// add adds the flags that a conversion and quantize have in common.
func (f *convertFlags) add(fl *pflag.FlagSet) {
	fl.StringVarP(&f.output, "output", "o", "", "path of the file to write (default: a name by the GGUF naming convention)")
	fl.BoolVar(&f.verify, "verify", true, "run source and file and compare their logits")
	fl.BoolVar(&f.noVerify, "no-verify", false, "do not verify, nor hash the source for the file's provenance: about as fast as copying")
	fl.Float64Var(&f.atol, "atol", 0, "largest difference of a logit that passes (default: by --type, printed)")
	fl.BoolVar(&f.requantise, "allow-requantize", false, "quantise a model that is quantised already, although its errors add up")
	fl.StringVar(&f.report, "report", "", "write a JSON report to this `file`: hashes, tensors with their errors, verification")
	fl.StringVar(&f.splitMax, "split-max-size", "", "split into files of at most this `size` of tensor data, such as 500M or 4G")
	fl.BoolVar(&f.dryRun, "dry-run", false, "read and check the source, write nothing")
	fl.BoolVar(&f.force, "force", false, "replace an existing file")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "print nothing but errors")
	fl.BoolVar(&f.json, "json", false, "print the report as JSON on stdout")
	fl.IntVarP(&f.threads, "threads", "t", 0, "threads (default: one a processor)")
}

// typeNames are the types that matrices can be written in, widest first.
func typeNames() []string {
	return []string{"f32", "f16", "bf16", "q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0"}
}

func runConvert(ctx context.Context, path string, f *convertFlags, stdout, stderr io.Writer) error {
	o, err := f.options()
	if err != nil {
		return err
	}
	var x convert.ONNXOptions
	kind := f.kind()
	if kind == "onnx" {
		x, err = f.onnx.options(o)
	} else {
		err = refuseONNXFlags(f.all)
	}
	if err == nil && kind == "safetensors" {
		err = checkCheckpointOptions(o)
	}
	if err != nil {
		return err
	}
	src, err := model.Open(path, model.OpenOptions{ConfigPath: f.config, TokenizerPath: f.tokenizer, MappingPath: f.mapping})
	if err != nil {
		return err
	}
	defer src.Close()
	if f.dryRun {
		if f.quantize {
			return printPlan(src, o, stdout)
		}
		return dryRun(src, stdout)
	}
	report, err := f.createReport(src) // before the long part, in case it cannot be written
	if err != nil {
		return err
	}
	defer report.Abort()
	progress := cli.NewProgress(f.quiet)
	o.Progress = func(stage string, done, total int64) {
		if stage == "verifying" {
			progress.Tokens(stage, done, total)
			return
		}
		progress.Bytes(stage, done, total)
	}
	var r *convert.Report
	switch kind {
	case "onnx":
		x.Progress = o.Progress
		r, err = convert.ToONNX(ctx, src, x)
	case "safetensors":
		r, err = convert.ToCheckpoint(ctx, src, o)
	default:
		r, err = convert.ToGGUF(ctx, src, o)
	}
	progress.Done()
	var failed *convert.VerifyError
	if err != nil && !errors.As(err, &failed) {
		return err
	}
	// A report is written after a failed verification too: that is when it is needed.
	if f.report != "" {
		if err := encodeJSON(report, r); err != nil {
			return err
		}
		if err := report.Commit(); err != nil {
			return err
		}
	}
	switch {
	case failed != nil:
		return &cli.VerificationError{Err: err}
	case f.json:
		return encodeJSON(stdout, r)
	case !f.quiet && kind == "onnx":
		printONNXReport(stderr, r, x)
	case !f.quiet:
		printReport(stderr, r, o)
	}
	return nil
}

// options checks the flags.
func (f *convertFlags) options() (convert.Options, error) {
	typ, ok := convert.Types[strings.ToLower(f.typ)]
	if !ok {
		return convert.Options{}, cli.Usage("--type %q is not known, expected one of %s", f.typ, strings.Join(typeNames(), ", "))
	}
	if math.IsNaN(f.atol) || f.atol < 0 {
		return convert.Options{}, cli.Usage("--atol is %g, expected a number of at least 0", f.atol)
	}
	if f.atolGiven && f.atol == 0 {
		f.atol = math.SmallestNonzeroFloat64 // 0 means by type to convert; here it means equal
	}
	if f.threads < 0 || f.threads > 1024 {
		return convert.Options{}, cli.Usage("--threads is %d, expected 1 to 1024", f.threads)
	}
	splitMax, err := splitSize(f.splitMax)
	if err != nil {
		return convert.Options{}, cli.Usage("--split-max-size: %w", err)
	}
	return convert.Options{
		Output: f.output, Type: typ, SplitMaxBytes: splitMax, Version: cli.Version(), Force: f.force,
		NoCheck: f.noVerify || !f.verify, Atol: f.atol, Measure: f.report != "" || f.json, Threads: f.threads,
		Requantise: f.requantise, KeepArchitecture: f.quantize,
	}, f.checkKind()
}

// checkCheckpointOptions refuses what a checkpoint cannot be written with.
func checkCheckpointOptions(o convert.Options) error {
	if o.SplitMaxBytes > 0 {
		return cli.Usage("--split-max-size splits GGUF files; a checkpoint is written as one file of weights")
	}
	if typ := strings.ToLower(o.Type.String()); !slices.Contains(convert.CheckpointTypes, typ) {
		return cli.Usage("a checkpoint cannot be written with --type %s, expected %s", typ, strings.Join(convert.CheckpointTypes, ", "))
	}
	return nil
}

// createReport starts the report's file; without --report there is none, and the
// result is of no use but for Abort.
func (f *convertFlags) createReport(src *model.File) (*atomicfile.File, error) {
	if f.report == "" {
		return &atomicfile.File{}, nil
	}
	taken := slices.Concat(src.DataFiles(), []string{f.output, f.config, f.tokenizer, f.mapping})
	if err := cli.NotOneOf(f.report, "--report", taken...); err != nil {
		return nil, err
	}
	return atomicfile.CreateAtomic(f.report, f.force)
}

// splitSize is the size that --split-max-size gives; 0 without one.
func splitSize(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	return cli.ParseBytes(s)
}

// kind is the kind of output: what --to says, or else the extension of --output.
func (f *convertFlags) kind() string {
	if f.to == "" {
		return strings.ToLower(strings.TrimPrefix(filepath.Ext(f.output), "."))
	}
	return strings.ToLower(f.to)
}

// checkKind refuses kinds of output that cannot be written.
func (f *convertFlags) checkKind() error {
	switch kind := f.kind(); {
	case kind == "gguf", kind == "onnx", kind == "safetensors", f.to == "" && f.output == "":
		return nil
	case f.to != "":
		return cli.Usage("--to %q is not known, expected gguf, onnx or safetensors", f.to)
	}
	return cli.Usage("cannot write %q, expected a name that ends in .gguf, .onnx or .safetensors, or --to", f.output)
}

func dryRun(src *model.File, w io.Writer) error {
	if _, err := src.Build(); err != nil {
		return err
	}
	if _, err := src.Tokenizer(); err != nil && !errors.Is(err, model.ErrNoTokenizer) {
		return err
	}
	_, err := fmt.Fprintf(w, "%s: %d tensors, all that the configuration asks for; nothing was written\n", src.Path, len(src.Parts.Tensors))
	return err
}

// printReport says in a few lines what was done.
func printReport(w io.Writer, r *convert.Report, o convert.Options) {
	name := r.Files[0]
	if n := len(r.Files); n > 1 {
		name = fmt.Sprintf("%s and %d more", name, n-1)
	}
	fmt.Fprintf(w, "%s: %s parameters, %d tensors, %s, %s, %.2f s\n", name, count(r.Parameters), len(r.Tensors), o.Type, cli.Bytes(r.OutputBytes), r.Seconds)
	if o.Type.Quantised() {
		fmt.Fprintf(w, "tensors: %s; %.2f bits a parameter\n", typeCounts(r.Tensors), 8*float64(r.OutputBytes)/float64(r.Parameters))
	}
	if r.Bounds != nil {
		fmt.Fprintln(w, r.Bounds)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	for _, d := range r.Verification {
		fmt.Fprintf(w, "verified at %3d tokens: largest difference of a logit %.2e of %.3g (allowed %.2e), KL %.1e nats, same best token at %.1f %%\n",
			d.Tokens, d.MaxAbs, d.Largest, d.Allowed(o.Type, o.Atol), d.KL, 100*d.SameTop)
	}
}

// count is a number of parameters for people: 300,888.
func count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func encodeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
