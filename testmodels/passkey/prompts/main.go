// Command prompts writes passkey prompts of any length, as JSON lines that fparun
// eval passkey reads:
//
//	go run ./testmodels/passkey/prompts --lengths 32768,65536 --count 10 > long.jsonl
//
// The same flags give the same prompts as the training code's evaluation_sample
// (testmodels/train/fpatrain/data.py), to the byte: eval-one.jsonl.gz and
// eval-three.jsonl.gz are what it writes for their lengths with --count 50.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"

	"github.com/firstpassage/fpa/runtime/model"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "prompts:", err)
		os.Exit(1)
	}
}

// maxTokens bounds a prompt, and maxCount the number of each length.
const (
	maxTokens = 1 << 22
	maxCount  = 10_000
)

// run is the command: it writes the prompts to w.
func run(args []string, w, stderr io.Writer) error {
	fl := pflag.NewFlagSet("prompts", pflag.ContinueOnError)
	fl.SortFlags = false
	fl.Usage = func() {
		fmt.Fprintf(stderr, "Write passkey prompts of any length as JSON lines.\n\nUsage:\n  go run ./testmodels/passkey/prompts --lengths 32768,65536 > long.jsonl\n\nFlags:\n%s", fl.FlagUsages())
	}
	lengths := fl.IntSlice("lengths", nil, "tokens of prompt and answer, such as 32768,65536")
	count := fl.Int("count", 10, "prompts of each length, at even depths")
	task := fl.String("task", "one", "one: the pass key alone; three: three keys named by colours, one asked for")
	seed := fl.Int("seed", 0, "of the text")
	from := fl.StringP("model", "m", "testmodels/passkey", "`model` whose tokenizer counts the tokens")
	if err := fl.Parse(args); err != nil {
		return err
	}
	switch {
	case fl.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", fl.Arg(0))
	case len(*lengths) == 0:
		return errors.New("no length given; use --lengths")
	case *task != "one" && *task != "three":
		return fmt.Errorf("--task %q is not known, expected one or three", *task)
	case *count < 1 || *count > maxCount:
		return fmt.Errorf("--count is %d, expected 1 to %d", *count, maxCount)
	}
	for _, n := range *lengths {
		if n < 1 || n > maxTokens {
			return fmt.Errorf("--lengths: %d tokens, expected up to %d", n, maxTokens)
		}
	}
	file, err := model.Open(*from, model.OpenOptions{})
	if err != nil {
		return err
	}
	defer file.Close()
	t, err := file.Tokenizer()
	if err != nil {
		return err
	}
	m := &maker{tokenizer: t, words: make(map[string]int)}
	out := bufio.NewWriter(w)
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	for _, length := range *lengths {
		for i := range *count {
			l, err := m.make(*seed, *task, length, i, *count)
			if err != nil {
				return err
			}
			if err := e.Encode(l); err != nil {
				return err
			}
		}
	}
	return out.Flush()
}
