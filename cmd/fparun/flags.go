package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/firstpassage/fpa/cmd/internal/cli"
)

// add declares the flags of a text; what is what it is called in the help.
func (f *textFlags) add(fl *pflag.FlagSet, what string) {
	fl.StringVarP(&f.text, "prompt", "p", "", "the "+what)
	fl.StringVarP(&f.file, "file", "f", "", "read the "+what+" from this `file`, without a newline at its end; - is stdin")
	f.given = func() bool { return fl.Changed("prompt") }
}

// aliases are names that llama.cpp has for flags of ours.
var aliases = map[string]string{
	"n-predict": "predict", "batch-size": "batch", "n-depth": "depth", "reverse-prompt": "stop", "system-prompt": "system",
	"tensor-parallel-size": "tensor-parallel", "data-parallel-size": "data-parallel", "prompt-cache": "session", "prompt-cache-ro": "session-ro",
}

// acceptAliases lets every verb take them.
func acceptAliases(root *cobra.Command) {
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if ours, ok := aliases[name]; ok {
			name = ours
		}
		return pflag.NormalizedName(name)
	})
}

// checkSingleDash refuses options of llama.cpp that begin with one dash and have
// several letters. They would be read as a short flag with a value, and the error
// would name another flag than was typed.
func checkSingleDash(args []string) error {
	for _, a := range args {
		switch a {
		case "--":
			return nil
		case "-temp", "-seed":
			return cli.Usage("%s: long names have two dashes; write -%s", a, a)
		case "-ngl", "-cnv", "-no-cnv", "-sys", "-fa", "-ctk", "-ctv", "-mli", "-hf", "-hfr", "-hff", "-sm", "-ts", "-mg", "-dev", "-ub", "-tb":
			return cli.Usage("%s: there is no such option; see fparun --help", a)
		}
	}
	return nil
}
