package main

import "github.com/spf13/pflag"

// add declares the flags of a text; what is what it is called in the help.
func (f *textFlags) add(fl *pflag.FlagSet, what string) {
	fl.StringVarP(&f.text, "prompt", "p", "", "the "+what)
	fl.StringVarP(&f.file, "file", "f", "", "read the "+what+" from this `file`; - is stdin")
	f.given = func() bool { return fl.Changed("prompt") }
}
