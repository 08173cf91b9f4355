package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/ops/onnxbody"
	"github.com/firstpassage/fpa/runtime/convert"
)

// onnxFlags are the flags of a conversion to ONNX.
type onnxFlags struct {
	op         string
	opset      int64
	external   bool
	lastLogits bool
	noMask     bool
	state      string
	cache      string
	cacheEps   float32
	all        *pflag.FlagSet
}

func (f *onnxFlags) add(fl *pflag.FlagSet) {
	f.all = fl
	fl.StringVar(&f.op, "onnx-op", convert.ONNXFunction, "how an ONNX model holds the operator: "+strings.Join(convert.ONNXOps, ", ")+" (docs/onnx.md)")
	fl.Int64Var(&f.opset, "opset", 0, fmt.Sprintf("operator set of an ONNX model, %d to %d (default: %d, or what --onnx-op needs)", convert.DefaultOpset, convert.MaxOpset, convert.DefaultOpset))
	fl.BoolVar(&f.external, "onnx-external", false, "put the weights of an ONNX model into a file of their own, as is always done above 1.5 GiB")
	fl.BoolVar(&f.lastLogits, "onnx-last-logits", false, "an ONNX model that gives the logits of the last position alone")
	fl.StringVar(&f.state, "onnx-state", "separate", "how an ONNX model carries its states: separate, or packed into those of keys and values, for pipelines that feed no others")
	fl.StringVar(&f.cache, "onnx-cache", "off", "which dead keys the plugin for ONNX Runtime drops (docs/onnx-plugin.md): "+strings.Join(convert.ONNXCaches, ", "))
	fl.Float32Var(&f.cacheEps, "onnx-cache-eps", convert.DefaultCacheEps, "with --onnx-cache bounded, the most that all dropped keys weigh together, for each head and query")
	fl.BoolVar(&f.noMask, "onnx-no-mask", false, "an ONNX model without the input attention_mask, which cannot take padded batches")
}

// options checks the flags.
func (f *onnxFlags) options(o convert.Options) (convert.ONNXOptions, error) {
	x := convert.ONNXOptions{
		Options: o, Op: f.op, Opset: f.opset, External: f.external, LastLogits: f.lastLogits, NoMask: f.noMask,
		Cache: f.cache,
	}
	if f.cache == onnxbody.CacheBounded {
		if !(f.cacheEps > 0) {
			return x, cli.Usage("--onnx-cache-eps is %g, expected a number above 0 and below 1", f.cacheEps)
		}
		x.CacheEps = f.cacheEps
	} else if f.all.Changed("onnx-cache-eps") {
		return x, cli.Usage("--onnx-cache-eps: only with --onnx-cache bounded")
	}
	if o.SplitMaxBytes > 0 {
		return x, cli.Usage("--split-max-size splits GGUF files; --onnx-external puts the weights of an ONNX model into one file of their own")
	}
	switch f.state {
	case "separate", "packed":
		x.Packed = f.state == "packed"
	default:
		return x, cli.Usage("--onnx-state %q is not known, expected separate or packed", f.state)
	}
	if err := x.Check(); err != nil {
		return x, cli.Usage("%w", err)
	}
	return x, nil
}

// refuseONNXFlags refuses flags of ONNX for an output of another kind.
func refuseONNXFlags(fl *pflag.FlagSet) error {
	var given []string
	fl.Visit(func(f *pflag.Flag) {
		if f.Name == "opset" || strings.HasPrefix(f.Name, "onnx-") {
			given = append(given, "--"+f.Name)
		}
	})
	if len(given) > 0 {
		slices.Sort(given)
		return cli.Usage("%s: only for ONNX models, expected an output that ends in .onnx, or --to onnx", strings.Join(given, ", "))
	}
	return nil
}

// printONNXReport says in a few lines what was done.
func printONNXReport(w io.Writer, r *convert.Report, o convert.ONNXOptions) {
	printReport(w, r, o.Options)
	if len(r.Verification) > 0 {
		fmt.Fprintln(w, "compared were the written weights, on this program's own engine; the graph is run by ONNX Runtime or another runtime (docs/onnx.md)")
	}
	if o.Op == convert.ONNXCustom {
		fmt.Fprintln(w, "the file has no function for the operator: ONNX Runtime needs the plugin to run it (docs/onnx-plugin.md)")
	}
}
