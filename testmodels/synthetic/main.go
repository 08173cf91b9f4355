// Command synthetic writes models of random weights, for measuring speed and
// memory. They have the shape of a real decoder and say nothing of worth: what
// matters is how many keys their caches keep.
//
//	go run ./testmodels/synthetic --kind level-off -o synthetic-level-off
//	go run ./testmodels/synthetic --kind llama --gguf synthetic-llama.gguf
//
// The README of this folder describes the kinds and where their constants come
// from. The same flags give the same bytes.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"

	"github.com/firstpassage/fpa/format/atomicfile"
)

func main() {
	switch err := run(os.Args[1:], os.Stdout); {
	case err == nil, errors.Is(err, pflag.ErrHelp):
	default:
		atomicfile.RemoveAll()
		fmt.Fprintln(os.Stderr, "synthetic:", err)
		os.Exit(1)
	}
}

// run is the command: it writes what args ask for and says so on w.
func run(args []string, w io.Writer) error {
	s := spec110M()
	var folder, ggufFile string
	var force bool
	fl := pflag.NewFlagSet("synthetic", pflag.ContinueOnError)
	fl.SortFlags = false
	fl.Usage = func() {
		fmt.Fprintf(w, "Write a model of random weights, for measuring speed and memory.\n\nUsage:\n  go run ./testmodels/synthetic --kind KIND -o FOLDER\n\nFlags:\n%s", fl.FlagUsages())
	}
	fl.StringVar((*string)(&s.Kind), "kind", "", "level-off, share or llama; see testmodels/synthetic/README.md")
	fl.StringVarP(&folder, "output", "o", "", "`folder` of the checkpoint to write")
	fl.StringVar(&ggufFile, "gguf", "", "write a GGUF `file` of the architecture llama as well, or instead; kind llama only")
	fl.BoolVar(&force, "force", false, "replace existing files")
	fl.Uint64Var(&s.Seed, "seed", s.Seed, "of the random weights")
	fl.IntVar(&s.Hidden, "hidden", s.Hidden, "width")
	fl.IntVar(&s.Blocks, "blocks", s.Blocks, "blocks")
	fl.IntVar(&s.Heads, "heads", s.Heads, "query heads")
	fl.IntVar(&s.KVHeads, "kv-heads", 0, "key heads, and field heads (default: as many as query heads)")
	fl.IntVar(&s.FeedForward, "ffn", s.FeedForward, "width of the feed-forward blocks")
	fl.IntVar(&s.Vocab, "vocab", s.Vocab, "entries of the vocabulary")
	fl.IntVar(&s.Live, "live", s.Live, "kind level-off: keys that stay live a head")
	fl.Float64Var(&s.Share, "share", s.Share, "kind share: part of the keys that live for ever")
	if err := fl.Parse(args); err != nil {
		return err
	}
	if fl.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fl.Arg(0))
	}
	if s.KVHeads == 0 {
		s.KVHeads = s.Heads
	}
	if err := s.validate(); err != nil {
		return err
	}
	if folder == "" && ggufFile == "" {
		return errors.New("nothing to write; give a folder with -o, or a file with --gguf")
	}
	if ggufFile != "" && s.Kind != llama {
		return fmt.Errorf("--gguf goes with --kind llama only; write a folder and convert it with fpaconv")
	}
	if folder != "" {
		if err := writeCheckpoint(folder, force, s); err != nil {
			return err
		}
		fmt.Fprintf(w, "wrote %s, %s, %d parameters\n", folder, s.name(), s.parameters())
	}
	if ggufFile != "" {
		if err := writeGGUF(ggufFile, force, s); err != nil {
			return err
		}
		fmt.Fprintf(w, "wrote %s, %s, %d parameters\n", ggufFile, s.name(), s.parameters())
	}
	return nil
}
