// Command bench measures an engine on demand: it opens a model and answers questions,
// one JSON object a line, so that a script can measure something else in alternation
// with it in the same minutes.
//
//	{"do": "prefill", "tokens": 512}
//	{"do": "decode", "tokens": 64, "sequences": 32, "depth": 128}
//
// A prefill takes in the tokens of one sequence and fetches the logits of the last. A
// decode fetches the logits of every token of every sequence and feeds the likeliest.
// The README of this folder describes the scripts.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/cpu"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/runtime/xla"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// question is one line of input.
type question struct {
	Do        string `json:"do"`        // prefill, decode
	Tokens    int    `json:"tokens"`    // of each sequence
	Sequences int    `json:"sequences"` // that decode side by side; 0: one
	Depth     int    `json:"depth"`     // tokens that each sequence is fed before
	Logits    bool   `json:"logits"`    // put the last logits of the first sequence out
}

// answer is one line of output; the first one, without a question, tells of the start.
type answer struct {
	Seconds        float64   `json:"seconds"` // of the work alone, or of opening the model
	Compilations   int       `json:"compilations"`
	CompileSeconds float64   `json:"compile_seconds"`   // of all so far
	Kept           float64   `json:"kept"`              // share of the cache's bytes, of the first sequence
	CacheBytes     int64     `json:"cache"`             // that all sequences hold on the device
	WeightBytes    int64     `json:"weights,omitempty"` // on the device
	Engine         string    `json:"engine,omitempty"`  // what it runs on
	Logits         []float32 `json:"logits,omitempty"`
}

// bench is an open model.
type bench struct {
	model  *model.Model
	engine engine.Engine
	xla    *xla.Engine // the engine, if it is that
	typ    quant.DType
	policy cache.Policy
}

// limit bounds what a question may ask for.
const limit = 1 << 20

func run(args []string, in io.Reader, out io.Writer) error {
	b := &bench{typ: quant.F16}
	var path, backend, mode string
	var o xla.Options
	fl := pflag.NewFlagSet("bench", pflag.ContinueOnError)
	fl.StringVarP(&path, "model", "m", "", "a GGUF `file` or the folder of a checkpoint")
	fl.StringVar(&backend, "backend", "cpu", "cpu, xla:cpu, xla:cuda, go")
	fl.StringVar(&mode, "cache", string(cache.Exact), "off, exact")
	fl.BoolVar(&o.Packed, "packed", false, "keep quantised weights packed on the device")
	fl.IntVar(&o.Chunk, "batch", xla.DefaultChunk, "tokens fed at a time in prefill")
	if err := fl.Parse(args); err != nil {
		return err
	}
	b.policy.Mode = cache.Mode(mode)
	start := time.Now()
	f, err := model.Open(path, model.OpenOptions{})
	if err != nil {
		return err
	}
	defer f.Close()
	if b.model, err = f.Build(); err != nil {
		return err
	}
	if err := b.open(backend, o); err != nil {
		return err
	}
	defer b.engine.Close()
	first := answer{Seconds: time.Since(start).Seconds(), Engine: backend}
	if b.xla != nil {
		first.Engine, first.WeightBytes = b.xla.Description(), b.xla.Stats().WeightBytes
	}
	e := json.NewEncoder(out)
	if err := e.Encode(first); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var q question
		d := json.NewDecoder(strings.NewReader(lines.Text()))
		d.DisallowUnknownFields()
		if err := d.Decode(&q); err != nil {
			return fmt.Errorf("the question %s: %w", lines.Text(), err)
		}
		a, err := b.answer(&q)
		if err != nil {
			return fmt.Errorf("the question %s: %w", lines.Text(), err)
		}
		if err := e.Encode(a); err != nil {
			return err
		}
	}
	return lines.Err()
}

// open makes the engine.
func (b *bench) open(backend string, o xla.Options) (err error) {
	device, isXLA := strings.CutPrefix(backend, "xla:")
	switch {
	case backend == "cpu":
		b.engine, err = cpu.New(b.model, cpu.Options{Chunk: o.Chunk})
		return err
	case backend == "go":
		b.typ = quant.F32 // it has no other
		b.xla, err = xla.NewGo(b.model, o)
	case !isXLA:
		return fmt.Errorf("backend %q, expected cpu, xla:cpu, xla:cuda or go", backend)
	default:
		err = fmt.Errorf("no XLA plugin for %s is installed; fparun backends install %s installs one", device, device)
		for _, p := range xla.Plugins() {
			if string(p.Device) == device {
				b.xla, err = xla.New(b.model, p, o)
				break
			}
		}
	}
	b.engine = b.xla
	return err
}

// sequences are sessions that go side by side.
type sequences struct {
	engine engine.Engine
	parts  []engine.Part
}

// sequences starts n empty sequences.
func (b *bench) sequences(n int) (*sequences, error) {
	s := &sequences{b.engine, make([]engine.Part, n)}
	for i := range s.parts {
		one, err := b.engine.NewSession(b.typ, b.policy)
		if err != nil {
			return nil, err
		}
		s.parts[i].Session = one
	}
	return s, nil
}

// feed feeds ids[i] to sequence i, and passes on the logits of the last of them.
func (s *sequences) feed(ids [][]int32, each func(sequence int, logits []float32) error) error {
	for i := range s.parts {
		s.parts[i].IDs = ids[i]
		s.parts[i].Each = func(_ int, logits []float32) error { return each(i, logits) }
	}
	return engine.FeedBatch(s.engine, s.parts)
}

// answer measures.
func (b *bench) answer(q *question) (answer, error) {
	n := max(1, q.Sequences)
	if q.Tokens < 1 || q.Tokens > limit || q.Depth < 0 || q.Depth > limit || n > 1024 {
		return answer{}, fmt.Errorf("%d tokens at depth %d in %d sequences, expected 1 to %d at 0 to %d in 1 to 1024", q.Tokens, q.Depth, n, limit, limit)
	}
	s, err := b.sequences(n)
	if err != nil {
		return answer{}, err
	}
	ids := make([][]int32, n)
	prompt := func(count int) { // any text will do; compare.py has the same
		for i := range ids {
			ids[i] = make([]int32, count)
			for t := range ids[i] {
				ids[i][t] = int32((7919*(t+1) + 104729*i) % b.model.VocabSize)
			}
		}
	}
	var last []float32
	greedy := func(i int, logits []float32) error {
		if i == 0 && q.Logits {
			last = append(last[:0], logits...)
		}
		best := 0
		for id, l := range logits {
			if l > logits[best] {
				best = id
			}
		}
		ids[i] = []int32{int32(best)}
		return nil
	}
	if q.Depth > 0 {
		prompt(q.Depth)
		if err := s.feed(ids, greedy); err != nil {
			return answer{}, err
		}
	}
	var start time.Time
	switch q.Do {
	case "prefill":
		prompt(q.Tokens)
		start = time.Now()
		err = s.feed(ids, greedy)
	case "decode":
		if q.Depth == 0 {
			prompt(1)
		}
		start = time.Now()
		for t := 0; t < q.Tokens && err == nil; t++ {
			err = s.feed(ids, greedy)
		}
	default:
		err = fmt.Errorf("%q is not known, expected prefill or decode", q.Do)
	}
	stats := s.parts[0].Session.CacheStats()
	a := answer{Seconds: time.Since(start).Seconds(), Kept: stats.Kept, CacheBytes: stats.BytesAllocated * int64(n), Logits: last}
	if b.xla != nil {
		a.Compilations, a.CompileSeconds = b.xla.Stats().Compilations, b.xla.Stats().CompileSeconds
	}
	return a, err
}
