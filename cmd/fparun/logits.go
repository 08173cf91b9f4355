package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
)

// logitsFlags are the flags of logits.
type logitsFlags struct {
	engineFlags
	ids, positions, output string
	force                  bool
}

func newLogits() *cobra.Command {
	var f logitsFlags
	c := &cobra.Command{
		Use:   "logits -m MODEL --ids-file FILE -o OUT.safetensors",
		Short: "Write the logits of given tokens, for checking",
		Long: `logits runs token ids through the model and writes a safetensors file with the
tensors "logits" (F32, [positions, vocabulary]) and "positions" (I64, [positions]).
The cache keeps every key in float32 unless the flags say otherwise.`,
		Example: `  fparun tokenize -m passkey.gguf -p "The red key is" --ids > ids.txt
  fparun logits -m passkey.gguf --ids-file ids.txt --positions 0,-1 -o logits.safetensors`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return runLogits(c.Context(), c.InOrStdin(), c.ErrOrStderr(), &f)
		},
	}
	fl := c.Flags()
	f.add(fl, cache.Off, "f32")
	fl.StringVar(&f.ids, "ids-file", "", "`file` of token ids, separated by blanks, commas or lines; - is stdin")
	fl.StringVar(&f.positions, "positions", "", "positions to write, such as 0,5,-1; negative ones count from the end (default: all)")
	fl.StringVarP(&f.output, "output", "o", "", "safetensors `file` to write")
	fl.BoolVar(&f.force, "force", false, "replace an existing file")
	return c
}

func runLogits(ctx context.Context, stdin io.Reader, stderr io.Writer, f *logitsFlags) error {
	if f.ids == "" || f.output == "" {
		return cli.Usage("--ids-file and --output are needed")
	}
	if err := f.check(); err != nil {
		return err
	}
	if err := cli.NotOneOf(f.output, "--output", f.model, f.ids); err != nil {
		return err
	}
	in := textFlags{file: f.ids, given: func() bool { return false }}
	text, err := in.read(stdin)
	if err != nil {
		return err
	}
	ids, err := parseIDs(text)
	if err != nil {
		return fmt.Errorf("%s: %w", f.ids, err)
	}
	if len(ids) == 0 {
		return errors.New(f.ids + ": holds no token id")
	}
	positions, err := parseIndices("--positions", f.positions, len(ids), "tokens")
	if err != nil {
		return &cli.UsageError{Err: err}
	}
	r, err := f.open()
	if err != nil {
		return err
	}
	defer r.close()

	wanted := make(map[int]bool, len(positions))
	for _, p := range positions {
		wanted[p] = true
	}
	vocab := r.model.VocabSize
	data := make([]byte, 0, 4*len(positions)*vocab)
	for len(ids) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(f.batch, len(ids))
		err := r.session.Feed(ids[:n], func(p int) bool { return wanted[p] }, func(_ int, logits []float32) error {
			for _, l := range logits {
				data = binary.LittleEndian.AppendUint32(data, math.Float32bits(l))
			}
			return nil
		})
		if err != nil {
			return err
		}
		ids = ids[n:]
	}
	var places []byte
	for _, p := range positions {
		places = binary.LittleEndian.AppendUint64(places, uint64(p))
	}
	n := int64(len(positions))
	if f.audit {
		printCache(stderr, r.session.CacheStats())
	}
	return safetensors.WriteFile(f.output, f.force, []safetensors.Tensor{
		{Name: "logits", DType: quant.F32, Shape: format.Shape{n, int64(vocab)}, Data: data},
		{Name: "positions", DType: quant.I64, Shape: format.Shape{n}, Data: places},
	}, nil)
}

// parseIndices reads a flag that lists some of n things, such as 0,5,-1; negative
// ones count from the end. The result is in ascending order without repetitions; an
// empty list means all.
func parseIndices(flag, s string, n int, things string) ([]int, error) {
	var out []int
	if s == "" {
		for i := range n {
			out = append(out, i)
		}
		return out, nil
	}
	seen := make(map[int]bool)
	for _, field := range strings.Split(s, ",") {
		p, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil {
			return nil, fmt.Errorf("%s: %q is no number", flag, field)
		}
		if p < 0 {
			p += n
		}
		if p < 0 || p >= n {
			return nil, fmt.Errorf("%s: %s is outside the %d %s", flag, strings.TrimSpace(field), n, things)
		}
		if !seen[p] {
			seen[p] = true
			out = append(out, p)
		}
	}
	sort.Ints(out)
	return out, nil
}
