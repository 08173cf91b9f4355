package convert

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// Options steer a conversion.
type Options struct {
	Output string      // path; empty: FileName in the current folder
	Type   quant.DType // of the matrices
	// SplitMaxBytes splits the model into files of at most so many bytes of
	// tensor data, named Output without .gguf, then -00001-of-0000N.gguf; 0: one file.
	SplitMaxBytes int64
	Version       string // of this program, for the provenance
	Force         bool   // replace an existing file
	Requantise    bool   // allow matrices that are quantised to be quantised as another type
	// KeepArchitecture leaves a GGUF file of the architecture llama one, with its
	// metadata, so that programs which know no other can run the result.
	KeepArchitecture bool
	NoCheck          bool    // do not verify the written file
	Atol             float64 // 0: by type
	Measure          bool    // measure the error of each tensor
	Threads          int     // 0: one a processor
	// Progress is told what is done, from any goroutine: bytes of the source for
	// "writing", tokens for "verifying". It may be nil.
	Progress func(stage string, done, total int64)
}

// Report says what a conversion did.
type Report struct {
	Source       string       `json:"source"`
	SourceFormat string       `json:"source_format"`
	SourceSHA256 string       `json:"source_sha256,omitempty"`
	Output       string       `json:"output"`
	Files        []string     `json:"files"`
	OutputSHA256 string       `json:"output_sha256,omitempty"`
	OutputBytes  int64        `json:"output_bytes"`
	Version      string       `json:"fpaconv_version"`
	Type         string       `json:"type"`
	Parameters   int64        `json:"parameters"`
	Tensors      []TensorPlan `json:"tensors"`
	Notes        []string     `json:"notes,omitempty"`
	// LogitBound is what the file stores: U of every layer and query head. Bounds
	// sums it up.
	LogitBound   []float32     `json:"logit_bound,omitempty"`
	Bounds       *BoundSummary `json:"bounds,omitempty"`
	Verification []Difference  `json:"verification,omitempty"`
	Seconds      float64       `json:"seconds"`
}

// VerifyError says that the written file does not give the source's results.
type VerifyError struct {
	Difference Difference
	Allowed    float64
}

func (e *VerifyError) Error() string {
	return fmt.Sprintf("verification failed: at %d tokens a logit differs by %.3g, allowed are %.3g; nothing was written",
		e.Difference.Tokens, e.Difference.MaxAbs, e.Allowed)
}

// ToGGUF writes a model as a GGUF file and verifies it. The file appears under
// its name when all is well, and not at all otherwise. The report says what was
// done so far, also with an error. The error is a
// VerifyError when the written file gives other results than the source.
func ToGGUF(ctx context.Context, src *model.File, o Options) (*Report, error) {
	c := &conversion{ctx: ctx, src: src, o: o, start: time.Now(), generation: src.Generation}
	if c.o.Threads == 0 {
		c.o.Threads = runtime.GOMAXPROCS(0)
	}
	if c.o.Progress == nil {
		c.o.Progress = func(string, int64, int64) {}
	}
	if err := c.run(); err != nil {
		return &c.report, format.WithPath(err, src.Path)
	}
	return &c.report, nil
}

// conversion is the state of one run of ToGGUF.
type conversion struct {
	ctx        context.Context
	src        *model.File
	o          Options
	start      time.Time
	model      *model.Model // of the source
	generation model.Generation
	mix        mix
	plans      []TensorPlan
	out        output
	kv         []gguf.KV
	report     Report
}

func (c *conversion) run() error {
	var err error
	if c.model, err = c.src.Build(); err != nil {
		return err
	}
	if err := c.plan(); err != nil {
		return err
	}
	if err := c.metadata(); err != nil {
		return err
	}
	// The source is hashed beside the writing; the header gets the hash when it is
	// known.
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	var sum <-chan hashed
	if c.hashes() {
		sum = startHash(ctx, c.src.DataFiles())
	}
	defer func() { c.out.abort() }()
	if err := c.writeAll(); err != nil {
		return err
	}
	if sum != nil {
		h := <-sum
		if h.err != nil {
			return h.err
		}
		c.report.SourceSHA256 = h.sum
		if err := c.out.writers[0].PatchString(gguf.KeySourceSHA256, h.sum); err != nil {
			return err
		}
	}
	return c.finish()
}

// plan settles, as far as that is possible before the values are seen, what is
// written.
func (c *conversion) plan() error {
	c.plans = order(&c.src.Parts)
	if f := c.keptFile(); f != nil {
		c.plans = asInFile(c.plans, f)
	}
	c.mix = newMix(c.o.Type, &c.src.Parts)
	c.report = Report{
		Source: c.src.Path, SourceFormat: c.src.Format(), Version: c.o.Version, Type: c.o.Type.String(),
	}
	for i := range c.plans {
		p := &c.plans[i]
		p.chooseType(c.mix.of(p.Name))
		c.report.Parameters += elements(p.Shape)
	}
	if c.o.Output == "" {
		c.o.Output = c.fileName()
	}
	c.report.Output = c.o.Output
	if c.o.Requantise {
		return nil
	}
	return checkRequantise(c.src.Path, c.plans)
}

// Plan says what ToGGUF would write, as far as that can be known without looking at
// the values: the tensors with their types, and their bytes as OutputBytes. Nothing
// is written.
func Plan(src *model.File, o Options) (*Report, error) {
	c := &conversion{src: src, o: o}
	if _, err := src.Build(); err != nil {
		return nil, format.WithPath(err, src.Path)
	}
	if err := c.plan(); err != nil {
		return nil, format.WithPath(err, src.Path)
	}
	for i := range c.plans {
		c.report.OutputBytes += int64(bytesOf(c.plans[i].dtype, int(elements(c.plans[i].Shape))))
	}
	c.report.Tensors, c.report.Notes = c.plans, typeNotes(c.plans)
	return &c.report, nil
}

// hashes says whether the source is hashed. That takes longer than all the rest
// of an unverified conversion, which is for those in a hurry.
func (c *conversion) hashes() bool { return !c.o.NoCheck || c.o.Measure }

// hashed is the result of startHash.
type hashed struct {
	sum string
	err error
}

// startHash hashes files on a goroutine of its own.
func startHash(ctx context.Context, paths []string) <-chan hashed {
	sum := make(chan hashed, 1)
	go func() {
		s, err := hashFiles(ctx, paths)
		sum <- hashed{s, err}
	}()
	return sum
}

// writeAll writes the file, and then the bounds on its logits into the header. It
// writes it a second time when a value turned up that the type chosen for its tensor
// cannot hold, or when there are no bounds.
func (c *conversion) writeAll() error {
	for {
		if err := c.write(); err != nil {
			return err
		}
		again := false
		for i := range c.plans {
			p := &c.plans[i]
			before := p.dtype
			p.chooseType(c.mix.of(p.Name))
			again = again || p.dtype != before
		}
		if !again {
			proved, err := c.bounds()
			if proved || err != nil {
				return err
			}
		}
		c.out.abort()
		c.out = output{}
	}
}

// bounds computes the bounds on the logits from what was written, and fills them
// in. If it proves none it takes their key out of the metadata and returns false: the
// file must be written again.
func (c *conversion) bounds() (bool, error) {
	key := gguf.ArchKey(gguf.ArchFPA, gguf.LogitBound)
	at := slices.IndexFunc(c.kv, func(e gguf.KV) bool { return e.Key == key })
	if at < 0 {
		return true, nil
	}
	written, m, err := c.reopen()
	if err != nil {
		return false, err
	}
	defer written.Close()
	m.LogitBound = m.LogitBounds(quant.F16)
	if m.LogitBound == nil {
		c.kv = slices.Delete(c.kv, at, at+1)
		c.report.Notes = append(c.report.Notes, "the cache will keep every key: "+m.KeepsAll())
		return false, nil
	}
	c.report.LogitBound, c.report.Bounds = m.LogitBound, SummariseBounds(m)
	return true, c.out.writers[0].PatchFloat32s(key, m.LogitBound)
}

// reopen builds the model that was written. The file must be closed after use.
func (c *conversion) reopen() (*gguf.File, *model.Model, error) {
	written, err := c.out.open()
	if err != nil {
		return nil, nil, err
	}
	parts, err := model.FromGGUF(written)
	if err == nil {
		var m *model.Model
		if m, err = model.Build(parts.Config, parts.Tensors); err == nil {
			return written, m, nil
		}
	}
	written.Close()
	return nil, nil, fmt.Errorf("the written file cannot be read back: %w", err)
}

// finish verifies what was written and gives it its name.
func (c *conversion) finish() (err error) {
	c.report.Tensors = c.plans
	c.report.Notes = append(c.report.Notes, typeNotes(c.plans)...)
	if !c.o.NoCheck {
		if err := c.verify(); err != nil {
			return err
		}
	}
	if c.o.Measure {
		if c.report.OutputSHA256, err = c.out.hash(c.ctx); err != nil {
			return err
		}
	}
	if err := c.out.commit(); err != nil {
		return err
	}
	for _, f := range c.out.files {
		c.report.Files = append(c.report.Files, f.Path())
	}
	c.report.Seconds = time.Since(c.start).Seconds()
	return nil
}

func elements(s format.Shape) int64 {
	n, _ := s.Elements() // checked by model.Build
	return n
}

// fileName is the name by the naming convention of GGUF.
func (c *conversion) fileName() string {
	encoding := c.o.Type.String()
	if t, ok := fileType(c.o.Type); ok && c.o.Type.Quantised() {
		encoding = t.String()
	}
	return gguf.FileName{
		BaseName: baseName(c.src.Path), SizeLabel: gguf.SizeLabel(c.report.Parameters), Version: "v1.0",
		Encoding: encoding,
	}.String()
}

// baseName is the folder's or file's name, without what every checkpoint is
// called.
func baseName(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		abs = path
	}
	name := filepath.Base(abs)
	if info, err := os.Stat(abs); err == nil && !info.IsDir() {
		name = strings.TrimSuffix(name, ".index.json")
		name = strings.TrimSuffix(name, filepath.Ext(name))
		if name == "model" {
			name = filepath.Base(filepath.Dir(abs))
		}
	}
	return name
}

// counter adds up what it is told, from any goroutine, and passes the sum on.
func counter(f func(int64)) func(int64) {
	deltas := make(chan int64, 1)
	deltas <- 0
	return func(n int64) {
		sum := <-deltas + n
		f(sum)
		deltas <- sum
	}
}

// hashFiles is the SHA-256 of a file, or of the contents of several in order.
func hashFiles(ctx context.Context, paths []string) (string, error) {
	h := sha256.New()
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		// In pieces that stay in the cache: hashing straight from memory is half
		// as fast.
		_, err = io.CopyBuffer(h, &cancelReader{ctx, f}, make([]byte, 128<<10))
		f.Close()
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// cancelReader reads until its context is cancelled.
type cancelReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *cancelReader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}

// add adds an entry to the header.
func (c *conversion) add(key string, v gguf.Value) {
	c.kv = append(c.kv, gguf.KV{Key: key, Value: v})
}

// metadata makes the header's entries: what the model is, how it was written, and
// what it was made from.
func (c *conversion) metadata() error {
	kept := c.keptFile()
	if kept != nil {
		c.kv = keptMetadata(kept)
	} else {
		c.add(gguf.KeyArchitecture, gguf.ValueOf(gguf.ArchFPA))
		c.add(gguf.KeyType, gguf.ValueOf("model"))
		c.add(gguf.KeyName, gguf.ValueOf(baseName(c.src.Path)))
		c.add(gguf.KeySizeLabel, gguf.ValueOf(gguf.SizeLabel(c.report.Parameters)))
	}
	number, ok := fileType(c.o.Type)
	if !ok {
		return fmt.Errorf("type %s has no number as a file type", c.o.Type)
	}
	c.add(gguf.KeyFileType, gguf.ValueOf(uint32(number)))
	for _, p := range c.plans {
		if p.dtype.Quantised() {
			c.add(gguf.KeyQuantizationVersion, gguf.ValueOf(uint32(gguf.QuantizationVersion)))
			break
		}
	}
	if kept == nil {
		if err := c.describe(); err != nil {
			return err
		}
	}
	c.add(gguf.KeySourceFormat, gguf.ValueOf(c.src.Format()))
	if c.hashes() {
		c.add(gguf.KeySourceSHA256, gguf.ValueOf(strings.Repeat("0", 2*sha256.Size))) // filled in by run
	}
	c.add(gguf.KeyConverterVersion, gguf.ValueOf(c.o.Version))
	if !c.o.NoCheck {
		c.add(gguf.KeyVerifiedMaxAbsError, gguf.ValueOf(float32(math.NaN()))) // filled in by verify
	}
	return nil
}

// describe adds the configuration, the tokenizer and the generation settings.
func (c *conversion) describe() error {
	config := c.src.Parts.Config
	config.LogitBound = nil
	if config.Field != model.FieldNone {
		// What is written first drops nothing; bounds puts the numbers in its place.
		config.LogitBound = slices.Repeat([]float32{math.MaxFloat32}, config.Blocks*config.Heads)
		if why := config.KeepsAll(); why != "" {
			config.LogitBound = nil
			c.report.Notes = append(c.report.Notes, "the cache will keep every key: "+why)
		}
	}
	c.kv = append(c.kv, config.KV()...)
	if n := len(c.src.Generation.EOS); n > model.MaxEndTokens {
		c.report.Notes = append(c.report.Notes, fmt.Sprintf("of %d end tokens a GGUF file names %d; the others are left out", n, model.MaxEndTokens))
	}
	if err := c.tokenizer(); err != nil {
		return err
	}
	c.kv = append(c.kv, c.generation.KV()...)
	return nil
}

// tokenizer adds the tokenizer: the keys that other tools read, and the whole
// tokenizer.json that is exact.
func (c *conversion) tokenizer() error {
	t, err := c.src.Tokenizer()
	if errors.Is(err, model.ErrNoTokenizer) {
		c.report.Notes = append(c.report.Notes, "the source carries no tokenizer; the file takes and gives token ids alone")
		return nil
	}
	if err != nil {
		return err
	}
	data, err := c.src.TokenizerJSON()
	if err != nil {
		return err
	}
	v, err := t.Vocab()
	if err != nil {
		if data == nil {
			return err
		}
		c.report.Notes = append(c.report.Notes, fmt.Sprintf("other GGUF tools will see no tokenizer: %v", err))
	} else {
		kv, err := model.VocabKV(v, c.src.Parts.Config.VocabSize)
		if err != nil {
			return err
		}
		c.kv = append(c.kv, kv...)
		fillGeneration(&c.generation, v)
		if v.Inexact != "" {
			c.report.Notes = append(c.report.Notes, "other GGUF tools may give some texts other token ids: "+v.Inexact)
		}
	}
	if e := t.TextEscape(); e != tokenizer.EscapeNone {
		c.add(gguf.KeyTextEscape, gguf.ValueOf(string(e)))
	}
	if data != nil {
		var small bytes.Buffer
		if err := json.Compact(&small, data); err != nil {
			return fmt.Errorf("tokenizer.json: %w", err)
		}
		if small.Len() <= gguf.MaxHFTokenizerBytes {
			c.add(gguf.KeyHFTokenizer, gguf.ValueOf(small.String()))
		} else {
			c.report.Notes = append(c.report.Notes, fmt.Sprintf("tokenizer.json has %d bytes; above %d it is left out, since other readers refuse the file", small.Len(), gguf.MaxHFTokenizerBytes))
		}
	}
	template, err := c.src.ChatTemplate()
	if template != "" {
		c.add(gguf.KeyChatTemplate, gguf.ValueOf(template))
	}
	return err
}

// fillGeneration takes the tokens that begin, end and pad a text from the
// tokenizer where the model names none.
func fillGeneration(g *model.Generation, v tokenizer.Vocab) {
	if g.BOS < 0 {
		g.BOS = v.BOS
	}
	if g.PAD < 0 {
		g.PAD = v.PAD
	}
	if len(g.EOS) == 0 && v.EOS >= 0 {
		g.EOS = []int{v.EOS}
	}
}

// write writes header and data.
func (c *conversion) write() error {
	if c.o.SplitMaxBytes <= 0 {
		if err := c.out.create(c.o.Output, c.o.Force); err != nil {
			return err
		}
	}
	infos := make([]gguf.TensorInfo, len(c.plans))
	total := int64(0)
	for i, p := range c.plans {
		infos[i] = gguf.TensorInfo{Name: p.Name, DType: p.dtype, Shape: p.Shape, Size: int64(bytesOf(p.dtype, int(elements(p.Shape))))}
		total += int64(len(p.tensor.Data))
	}
	if err := c.out.begin(c.o.Output, c.o.Force, c.o.SplitMaxBytes, c.kv, infos); err != nil {
		return err
	}
	count := counter(func(done int64) { c.o.Progress("writing", done, total) })
	err := writeTensors(c.ctx, c.out.tensors, c.plans, c.o.Measure, c.o.Threads, count)
	if err != nil {
		return err
	}
	c.report.OutputBytes, err = c.out.finish()
	return err
}

// verify runs the written file beside its source, and notes the result in the
// file. The note is rounded up to 1, 2 or 5 times a power of ten, so that
// machines whose kernels sum in another order write the same file.
func (c *conversion) verify() error {
	written, m, err := c.reopen()
	if err != nil {
		return err
	}
	defer written.Close()
	total, done, worst := int64(0), int64(0), 0.0
	for _, n := range Lengths {
		total += int64(n)
	}
	for _, n := range Lengths {
		d, err := Compare(c.ctx, c.model, m, n, c.o.Threads)
		if err != nil {
			return err
		}
		c.report.Verification = append(c.report.Verification, d)
		if allowed := d.Allowed(c.o.Type, c.o.Atol); !(d.MaxAbs <= allowed) {
			return &VerifyError{d, allowed}
		}
		worst = max(worst, d.MaxAbs)
		done += int64(n)
		c.o.Progress("verifying", done, total)
	}
	return c.out.writers[0].PatchFloat32(gguf.KeyVerifiedMaxAbsError, float32(roundUp(worst)))
}

// roundUp rounds to the next 1, 2 or 5 times a power of ten.
func roundUp(x float64) float64 {
	if x <= 0 {
		return 0
	}
	power := math.Pow(10, math.Floor(math.Log10(x)))
	for _, step := range []float64{1, 2, 5} {
		if x <= step*power {
			return step * power
		}
	}
	return 10 * power
}
