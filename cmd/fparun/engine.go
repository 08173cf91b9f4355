package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/cpu"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// The values of --activations.
const (
	activationsF32  = "f32"
	activationsInt8 = "int8"
)

// engineFlags are the flags of every verb that runs a model.
type engineFlags struct {
	model   string
	threads int
	batch   int
	backend string
	mode    string
	eps     float64
	keep    string
	typ     string // "" until check
	usual   string // typ where the command line gives none, but with --backend go
	audit   bool

	noRepack, mmap, noMmap bool
	mlock                  bool
	activations            string

	packed bool

	tensorParallel, dataParallel int // devices
}

// add declares the flags; mode and typ are the defaults of the cache's.
func (f *engineFlags) add(fl *pflag.FlagSet, mode cache.Mode, typ string) {
	fl.StringVarP(&f.model, "model", "m", "", "model `file` (.gguf, a checkpoint, or an ONNX model that fpaconv wrote)")
	fl.IntVarP(&f.threads, "threads", "t", 0, "threads (default: one a processor)")
	fl.IntVarP(&f.batch, "batch", "b", cpu.DefaultChunk, "tokens of the prompt that are run at a time")
	fl.BoolVar(&f.mmap, "mmap", false, "use weights that are not repacked where they lie in the mapped file (default: only\nthose of more than 1 GiB or a quarter of the memory; smaller ones are copied to large\npages, which are read faster; cpu only)")
	fl.BoolVar(&f.noMmap, "no-mmap", false, "copy all weights but the token embeddings to memory, however large (cpu only)")
	fl.BoolVar(&f.noRepack, "no-repack", false, "leave quantised weights as they lie in the file instead of copying them, at load, to\nan order that is read faster (less work at load, slower; cpu only)")
	fl.BoolVar(&f.mlock, "mlock", false, "keep the weights in memory, however little they are used; a warning if the system\nallows too little of that (cpu only)")
	fl.StringVar(&f.activations, "activations", activationsF32, "what weights of the types q4_0, q4_1 and q8_0 are multiplied with: f32, or int8\n(rounded to 8 bits in blocks of 32, as llama.cpp does: faster, but logits move, and\ngreedy text leaves that of f32 after a while; other types stay f32; cpu only)")
	fl.StringVar(&f.backend, "backend", backendAuto, "engine: cpu (this program's own), xla:cpu or xla:cuda (XLA by a plugin, see fparun\nbackends), go (the same graph without one, slow, to check it), auto (xla:cuda\nwhere there is a GPU and its plugin, else cpu)")
	fl.BoolVar(&f.packed, "packed-weights", false, "on an xla backend, keep Q8_0, Q4_0 and Q4_1 weights as they are and unpack them in each\nuse: less memory, more to compute (one device)")
	f.dataParallel = 1 // bench has a flag for it
	fl.IntVar(&f.tensorParallel, "tensor-parallel", 1, "split the model over `N` devices of an xla backend, each with a share of the heads,\nof their cache and of the matrices")
	fl.StringVar(&f.mode, "cache", string(mode), "which keys the cache drops: off (none), exact (those that cannot change the\noutput by more than float32 rounding), bounded (those whose weight stays within\n--cache-eps), measured (the same for the logits seen so far: no promise),\nbudget (the most penalised, to stay within --cache-keep)")
	fl.Float64Var(&f.eps, "cache-eps", 1e-3, "weight that --cache bounded and measured may remove in total, for each head and query")
	fl.StringVar(&f.keep, "cache-keep", "", "size for --cache budget: a `share` of the uncompressed cache (0.25, 25%), or bytes (64M);\na head always keeps 16 keys")
	f.usual = typ
	fl.StringVar(&f.typ, "cache-type", "", cacheTypeUsage("type of the cached keys and values: f16, q8_0, f32", typ))
	fl.BoolVar(&f.audit, "cache-audit", false, "keep dropped keys aside, run everything a second time without dropping, and\nreport the largest weight removed and the largest difference of a logit (slow)")
}

// policy is the eviction policy that the flags ask for.
func (f *engineFlags) policy() (cache.Policy, error) {
	p := cache.Policy{Mode: cache.Mode(f.mode), Eps: f.eps, Audit: f.audit}
	if p.Mode == cache.Budget || f.keep != "" {
		var err error
		if p.Keep, err = parseKeep(f.keep); err != nil {
			return p, cli.Usage("--cache-keep: %w", err)
		}
		if p.Mode != cache.Budget {
			return p, cli.Usage("--cache-keep is of use with --cache budget alone, this is --cache %s", f.mode)
		}
	}
	if err := p.Validate(); err != nil {
		return p, cli.Usage("--cache: %w", err)
	}
	return p, nil
}

// parseKeep reads a share, such as 0.25 or 25%, or a number of bytes, such as 64M.
func parseKeep(s string) (cache.Keep, error) {
	if s == "" {
		return cache.Keep{}, errors.New("no size given, expected a share such as 0.25 or 25%, or bytes such as 64M")
	}
	number, percent := strings.CutSuffix(s, "%")
	share, err := strconv.ParseFloat(number, 64)
	if percent {
		share /= 100
	}
	if err == nil && share > 0 && share <= 1 { // 1 is all of it: nobody means a byte
		return cache.Keep{Share: share}, nil
	}
	if bytes, err := cli.ParseBytes(s); err == nil {
		return cache.Keep{Bytes: bytes}, nil
	}
	return cache.Keep{}, fmt.Errorf("%q is neither a share above 0 and at most 1 (0.25, 25%%) nor a number of bytes (500K, 64M)", s)
}

// cacheType is the type of K and V.
func (f *engineFlags) cacheType() (quant.DType, error) {
	switch strings.ToLower(f.typ) {
	case "f16":
		return quant.F16, nil
	case "q8_0":
		return quant.Q8_0, nil
	case "f32":
		return quant.F32, nil
	}
	return quant.Invalid, cli.Usage("--cache-type %q is not known, expected f16, q8_0 or f32", f.typ)
}

// running is an open model with an engine and a session.
type running struct {
	file    *model.File
	model   *model.Model
	engine  engine.Engine
	session engine.Session
	load    time.Duration
}

// check finds mistakes in the flags before a model is opened.
func (f *engineFlags) check() error {
	if f.model == "" {
		return cli.Usage("no model given; use --model FILE")
	}
	if !slices.Contains(backends, f.backend) {
		return cli.Usage("--backend %q is not known, expected one of %s", f.backend, strings.Join(backends, ", "))
	}
	if f.threads < 0 || f.threads > 1024 {
		return cli.Usage("--threads is %d, expected 1 to 1024", f.threads)
	}
	if err := f.checkDevices(); err != nil {
		return err
	}
	if f.activations != activationsF32 && f.activations != activationsInt8 {
		return cli.Usage("--activations %q is not known, expected f32 or int8", f.activations)
	}
	for _, own := range []struct {
		flag  string
		given bool
	}{
		{"--activations int8", f.activations == activationsInt8},
		{"--no-repack", f.noRepack},
		{"--mmap", f.mmap},
		{"--no-mmap", f.noMmap},
		{"--mlock", f.mlock},
	} {
		if own.given && f.backend != backendCPU && f.backend != backendAuto {
			return cli.Usage("%s is of use with --backend cpu alone, this is --backend %s", own.flag, f.backend)
		}
	}
	if f.mmap && f.noMmap {
		return cli.Usage("--mmap and --no-mmap exclude each other")
	}
	if f.packed && f.backend == backendCPU {
		return cli.Usage("--packed-weights is of use with an XLA backend alone, this is --backend cpu")
	}
	if f.batch < 1 || f.batch > 1<<16 {
		return cli.Usage("--batch is %d, expected 1 to %d", f.batch, 1<<16)
	}
	if _, err := f.policy(); err != nil {
		return err
	}
	f.typ = usualType(f.typ, f.usual, f.backend)
	_, err := f.cacheType()
	return err
}

// copying is what --mmap and --no-mmap ask for.
func (f *engineFlags) copying() cpu.Copying {
	switch {
	case f.mmap:
		return cpu.CopyNever
	case f.noMmap:
		return cpu.CopyAlways
	}
	return cpu.CopyIfSmall
}

// cacheTypeUsage is the help of a flag for a type of cached keys with its default.
func cacheTypeUsage(usage, usual string) string {
	if usual == "f32" {
		return usage + " (default f32)"
	}
	return usage + " (default " + usual + "; f32\nwith --backend go, which has no half precision)"
}

// usualType is a type of cached keys, the default if it is empty.
func usualType(typ, usual, backend string) string {
	switch {
	case typ != "":
		return typ
	case backend == backendGo:
		return "f32"
	}
	return usual
}

// checkDevices finds mistakes in the numbers of devices.
func (f *engineFlags) checkDevices() error {
	for _, x := range []struct {
		flag string
		n    int
	}{{"--tensor-parallel", f.tensorParallel}, {"--data-parallel", f.dataParallel}} {
		switch {
		case x.n < 1 || x.n > 1<<16:
			return cli.Usage("%s is %d, expected 1 or more devices", x.flag, x.n)
		case x.n > 1 && (f.backend == backendCPU || f.backend == backendGo):
			return cli.Usage("%s is of use with --backend xla:cuda or xla:cpu alone, this is --backend %s", x.flag, f.backend)
		}
	}
	if f.tensorParallel > 1 && f.dataParallel > 1 {
		return cli.Usage("--tensor-parallel and --data-parallel: one process does one of the two; run several, each with devices of its own")
	}
	if f.packed && f.severalDevices() {
		return cli.Usage("--packed-weights is of use with one device, not with --tensor-parallel or --data-parallel")
	}
	return nil
}

// severalDevices says whether the model is to run on more than one device.
func (f *engineFlags) severalDevices() bool { return f.tensorParallel > 1 || f.dataParallel > 1 }

// open opens the model and starts an engine.
func (f *engineFlags) open() (*running, error) {
	return f.openBeside(func(*model.File) error { return nil })
}

// openBeside opens the model and starts an engine, while something else is made of
// the file.
func (f *engineFlags) openBeside(also func(*model.File) error) (*running, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	start := time.Now()
	file, err := model.Open(f.model, model.OpenOptions{})
	if err != nil {
		return nil, err
	}
	other := make(chan error, 1)
	go func() { other <- also(file) }()
	r := &running{file: file}
	if r.model, err = file.Build(); err == nil {
		if f.mode != string(cache.Off) && r.model.LogitBound == nil {
			r.model.LogitBound = r.model.LogitBounds(quant.F16) // a checkpoint carries none
		}
		r.engine, err = f.newEngine(r.model)
	}
	if err == nil {
		r.session, err = f.newSession(r.engine)
	}
	if err2 := <-other; err == nil {
		err = err2
	}
	if err != nil {
		r.close()
		return nil, err
	}
	if f.mlock {
		f.lock(r.engine)
	}
	r.load = time.Since(start)
	return r, nil
}

// lock keeps the weights in memory, or warns that it cannot.
func (f *engineFlags) lock(e engine.Engine) {
	err := errors.New("is of use with --backend cpu alone")
	if own, ok := e.(*cpu.Engine); ok {
		err = own.Lock()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "fparun: warning: --mlock: %v; going on without\n", err)
	}
}

// openText opens a model that takes text.
func (f *engineFlags) openText() (*running, *tokenizer.Tokenizer, error) {
	var t *tokenizer.Tokenizer
	r, err := f.openBeside(func(file *model.File) (err error) {
		t, err = file.Tokenizer()
		return err
	})
	return r, t, err
}

// newSession starts an empty sequence with the cache that the flags ask for.
func (f *engineFlags) newSession(e engine.Engine) (engine.Session, error) {
	policy, err := f.policy()
	if err != nil {
		return nil, err
	}
	typ, err := f.cacheType()
	if err != nil {
		return nil, err
	}
	s, err := e.NewSession(typ, policy)
	if err != nil || !f.audit {
		return s, err
	}
	base, err := e.NewSession(typ, cache.Policy{Mode: cache.Off, Audit: true}) // token by token, as the other
	if err != nil {
		return nil, err
	}
	return engine.NewAudit(s, base), nil
}

func (r *running) close() {
	if r.engine != nil {
		r.engine.Close()
	}
	r.file.Close()
}

// cacheLine says what the cache holds, in one line.
func cacheLine(s cache.Stats) string {
	line := fmt.Sprintf("cache: %.2f %% kept of an uncompressed one, %s live, %s at peak, %s uncompressed",
		100*s.Kept, cli.Bytes(s.BytesLive), cli.Bytes(s.BytesPeak), cli.Bytes(s.BytesUncompressed))
	if !s.Evictable {
		line += "; no key can be dropped"
	}
	if d := s.Device; d != nil {
		line += fmt.Sprintf("; %d slots a head on the device, %s as %s", d.Slots, cli.Bytes(s.BytesAllocated), d.Type)
	}
	return line
}

// printCache says what the cache holds, what dropping cost, and how many keys the
// heads of each layer hold.
func printCache(w io.Writer, s cache.Stats) {
	fmt.Fprintln(w, cacheLine(s))
	if b := s.Budget; b != nil {
		fmt.Fprintf(w, "budget: %s; %d keys dropped that may be live, of weight %.2g at most, %.2g on average, when they were dropped\n",
			cli.Bytes(b.Bytes), b.Dropped, b.LargestWeight, b.MeanWeight)
		if s.BytesLive > b.Bytes {
			fmt.Fprintln(w, "budget: exceeded; softmax heads keep every key, and every other head 16")
		}
	}
	if a := s.Audit; a != nil {
		fmt.Fprintf(w, "audit: %d keys dropped; largest weight removed %.2g, largest difference of a logit %.2g at %d positions\n",
			a.Removed, a.LargestWeight, a.LargestLogitDifference, a.Positions)
	}
	printLive(w, s.Live)
}

// printLive prints how many keys the heads of each layer hold; layers that hold
// the same share a line.
func printLive(w io.Writer, live [][]int) {
	for first := 0; first < len(live); {
		line, last := liveLine(live[first]), first
		for last+1 < len(live) && liveLine(live[last+1]) == line {
			last++
		}
		name := fmt.Sprintf("layer %d", first)
		if last > first {
			name = fmt.Sprintf("layers %d to %d", first, last)
		}
		fmt.Fprintf(w, "%s: live keys a head: %s\n", name, line)
		first = last + 1
	}
}

func liveLine(live []int) string {
	least, median, most := cache.LiveRange(live)
	return fmt.Sprintf("least %d, median %d, most %d", least, median, most)
}
