package convert

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/onnxbody"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
)

// The operator sets that can be asked for. Runtimes of the last years read
// DefaultOpset; the form attention needs its own.
const (
	DefaultOpset = onnxbody.MinOpset
	MaxOpset     = 24
)

// ONNXOptions steer a conversion to ONNX. Of Options, Type is F32 or F16, and
// SplitMaxBytes has no meaning.
type ONNXOptions struct {
	Options
	Op         string // one of ONNXOps; empty: ONNXFunction
	Opset      int64  // 0: DefaultOpset, or what Op needs
	External   bool   // the weights go into a file of their own whatever their size
	LastLogits bool   // logits of the last real position alone
	NoMask     bool   // no input attention_mask
	Packed     bool   // all states in those of keys and values
}

// Check fills in defaults and refuses what cannot be written. ToONNX calls it.
func (o *ONNXOptions) Check() error {
	if o.Op == "" {
		o.Op = ONNXFunction
	}
	if !slices.Contains(ONNXOps, o.Op) {
		return fmt.Errorf("the operator cannot be written as %q, expected one of %s", o.Op, strings.Join(ONNXOps, ", "))
	}
	least := int64(onnxbody.MinOpset)
	if o.Op == ONNXAttention {
		least = onnxbody.AttentionOpset
	}
	if o.Opset == 0 {
		o.Opset = max(DefaultOpset, least)
	}
	if o.Opset < least || o.Opset > MaxOpset {
		return fmt.Errorf("opset %d with the operator as %s, expected %d to %d", o.Opset, o.Op, least, MaxOpset)
	}
	if o.Type != quant.F32 && o.Type != quant.F16 {
		return fmt.Errorf("an ONNX model cannot be written with matrices of type %s, expected f32 or f16", o.Type)
	}
	if o.Threads == 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if o.Progress == nil {
		o.Progress = func(string, int64, int64) {}
	}
	return nil
}

// ToONNX writes a model as an ONNX file. Where Output does not end in .onnx, or is
// a folder, it is a folder that gets model.onnx, config.json,
// generation_config.json and the tokenizer, as pipelines of Hugging Face's
// libraries expect them.
//
// The written weights are read back and compared with the source, byte for byte,
// and both are run by the CPU engine as ToGGUF does. The graph itself is not run
// here: no runtime for it is built in. Nothing appears under its name before all
// is well. The error is a VerifyError when the written file gives other results
// than the source.
func ToONNX(ctx context.Context, src *model.File, o ONNXOptions) (*Report, error) {
	if err := o.Check(); err != nil {
		return &Report{}, err
	}
	c := &onnxConversion{ctx: ctx, src: src, o: o, start: time.Now(), generation: src.Generation}
	err := c.run()
	if c.temp != "" {
		os.RemoveAll(c.temp)
	}
	return &c.report, format.WithPath(err, src.Path)
}

// onnxConversion is the state of one run of ToONNX.
type onnxConversion struct {
	ctx        context.Context
	src        *model.File
	o          ONNXOptions
	start      time.Time
	model      *model.Model // of the source
	plans      []TensorPlan
	folder     bool // Output is a folder
	generation model.Generation
	temp       string // folder for everything until it is complete
	report     Report
}

func (c *onnxConversion) run() error {
	var err error
	if c.model, err = c.src.Build(); err != nil {
		return err
	}
	c.plans = order(&c.src.Parts)
	c.report = Report{
		Source: c.src.Path, SourceFormat: c.src.Format(), Version: c.o.Version, Type: c.o.Type.String(),
	}
	for i := range c.plans {
		c.chooseType(&c.plans[i])
		c.report.Parameters += elements(c.plans[i].Shape)
	}
	if c.o.Output == "" {
		c.o.Output = baseName(c.src.Path) + ".onnx"
	}
	c.report.Output = c.o.Output
	if err := c.place(); err != nil {
		return err
	}
	if !c.o.NoCheck || c.o.Measure {
		if c.report.SourceSHA256, err = hashFiles(c.ctx, c.src.DataFiles()); err != nil {
			return err
		}
	}
	if err := c.writeAll(); err != nil {
		return err
	}
	c.report.Tensors = c.plans
	for _, p := range c.plans {
		if p.Note != "" {
			c.report.Notes = append(c.report.Notes, fmt.Sprintf("%s is written as %s: %s", p.Name, p.Type, p.Note))
		}
	}
	if !c.o.NoCheck {
		if err := c.verify(); err != nil {
			return err
		}
	}
	if c.folder {
		if err := c.writeFolder(); err != nil {
			return err
		}
	}
	return c.finish()
}

// chooseType settles the type of a tensor: F32 where F16 does not hold it.
func (c *onnxConversion) chooseType(p *TensorPlan) {
	p.chooseType(c.o.Type)
	if p.dtype != quant.F16 {
		p.dtype = quant.F32
	}
	p.Type = p.dtype.String()
}

// place finds out where the output goes, and makes the temporary folder beside
// it. Names that are taken are refused here, before the long part.
func (c *onnxConversion) place() error {
	info, err := os.Stat(c.o.Output)
	c.folder = !strings.EqualFold(filepath.Ext(c.o.Output), ".onnx") || err == nil && info.IsDir()
	parent := filepath.Dir(c.o.Output)
	if c.folder {
		parent = c.o.Output
		if err := os.MkdirAll(parent, 0o777); err != nil {
			return err
		}
	}
	if err := c.checkTaken(c.modelName()); err != nil {
		return err
	}
	c.temp, err = os.MkdirTemp(parent, ".fpaconv-onnx-*.tmp")
	return err
}

// modelName is the name of the model's file.
func (c *onnxConversion) modelName() string {
	if c.folder {
		return "model.onnx"
	}
	return filepath.Base(c.o.Output)
}

// target is where a file of the output goes in the end.
func (c *onnxConversion) target(name string) string {
	if c.folder {
		return filepath.Join(c.o.Output, name)
	}
	return filepath.Join(filepath.Dir(c.o.Output), name)
}

// checkTaken fails when there is something at a target that may not be replaced.
func (c *onnxConversion) checkTaken(name string) error {
	path := c.target(name)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return &fs.PathError{Op: "create", Path: path, Err: errors.New("this is a folder, expected a file")}
	case !c.o.Force:
		return &fs.PathError{Op: "create", Path: path, Err: errors.New("the file exists already; use --force to replace it")}
	}
	return nil
}

// writeAll writes the model into the temporary folder; a second time when a value
// turned up that the type chosen for its tensor cannot hold.
func (c *onnxConversion) writeAll() error {
	for {
		if err := c.write(); err != nil {
			return err
		}
		again := false
		for i := range c.plans {
			before := c.plans[i].dtype
			c.chooseType(&c.plans[i])
			again = again || c.plans[i].dtype != before
		}
		if !again {
			return nil
		}
	}
}

func (c *onnxConversion) write() error {
	total := int64(0)
	for _, p := range c.plans {
		total += int64(len(p.tensor.Data))
	}
	count := counter(func(done int64) { c.o.Progress("writing", done, total) })
	weights := make(map[string]*onnx.Tensor, len(c.plans))
	for i := range c.plans {
		p := &c.plans[i]
		elem, _ := onnx.DataTypeOf(p.dtype)
		weights[p.Name] = &onnx.Tensor{
			Name: p.Name, Type: elem, Dims: p.Shape,
			Source: func(w io.Writer) error { return p.write(c.ctx, w, c.o.Measure, count) },
		}
	}
	m, err := onnxModel(&c.src.Parts.Config, &c.o, weights)
	if err != nil {
		return err
	}
	if m.Metadata, err = c.metadata(); err != nil {
		return err
	}
	opt := onnx.WriteOptions{Force: true}
	if c.o.External {
		opt.External = onnx.ExternalAlways
	}
	return onnx.WriteFile(filepath.Join(c.temp, c.modelName()), m, opt)
}

// metadata is the provenance, and the configuration and generation settings under
// the names that they have in a GGUF file, each value as JSON; model.FromONNX reads
// them back.
func (c *onnxConversion) metadata() ([]onnx.Prop, error) {
	var props []onnx.Prop
	add := func(key, value string) { props = append(props, onnx.Prop{Key: key, Value: value}) }
	add(gguf.KeyArchitecture, gguf.ArchFPA)
	add(gguf.KeyName, baseName(c.src.Path))
	add(gguf.KeySourceFormat, c.src.Format())
	if c.report.SourceSHA256 != "" {
		add(gguf.KeySourceSHA256, c.report.SourceSHA256)
	}
	add(gguf.KeyConverterVersion, c.o.Version)
	add("fpaconv.onnx_op", c.o.Op)
	add("fpaconv.onnx_state", map[bool]string{false: "separate", true: "packed"}[c.o.Packed])
	config := c.src.Parts.Config
	config.LogitBound = c.logitBound()
	kvs := append(config.KV(), c.src.Generation.KV()...)
	kvs = append(kvs, gguf.KV{Key: model.KeyONNXTensors, Value: gguf.ValueOf(uint32(len(c.plans)))})
	for _, kv := range kvs {
		value, err := json.Marshal(kv.Value.Any())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kv.Key, err)
		}
		add(kv.Key, string(value))
	}
	return props, nil
}

// logitBound is the bound on the logits, where it is known before the weights are
// written: QK-norm weights stay as they are, matrices that are rounded do not.
func (c *onnxConversion) logitBound() []float32 {
	for _, p := range c.plans {
		if c.model.QKNorm == model.NormNone && p.matrix && p.dtype != p.tensor.DType {
			return nil
		}
	}
	bound := c.model.LogitBounds(quant.F16)
	c.report.LogitBound = bound
	return bound
}

// verify reads the written weights back: they must be those of the source,
// converted, byte for byte, and give the source's logits.
func (c *onnxConversion) verify() error {
	path := filepath.Join(c.temp, c.modelName())
	f, err := onnx.Open(path, format.Limits{})
	if err == nil {
		defer f.Close()
		err = f.Check()
	}
	if err != nil {
		return fmt.Errorf("the written file cannot be read back: %w", err)
	}
	byName := make(map[string]*onnx.Tensor)
	for _, t := range f.Model.Graph.Initializers {
		byName[t.Name] = t
	}
	tensors := make([]model.Tensor, len(c.plans))
	for i := range c.plans {
		p := &c.plans[i]
		t := byName[p.Name]
		if t == nil {
			return fmt.Errorf("the written file lacks the tensor %s", p.Name)
		}
		data, err := t.Data()
		if err != nil {
			return err
		}
		same := &comparer{want: data}
		if err := p.write(c.ctx, same, false, func(int64) {}); err != nil {
			return err
		}
		if len(same.want) > 0 {
			return fmt.Errorf("the tensor %s was written with other values than the source has", p.Name)
		}
		tensors[i] = model.Tensor{Name: p.Name, Source: p.Source, DType: p.dtype, Shape: p.Shape, Data: data}
	}
	written, err := model.Build(c.src.Parts.Config, tensors)
	if err != nil {
		return fmt.Errorf("the written file cannot be read back: %w", err)
	}
	return c.compare(written)
}

// comparer is a writer that takes the bytes it wants off, and fails on others.
type comparer struct{ want []byte }

func (c *comparer) Write(b []byte) (int, error) {
	if !bytes.HasPrefix(c.want, b) {
		return 0, errors.New("the written values are not those of the source")
	}
	c.want = c.want[len(b):]
	return len(b), nil
}

// compare runs the written weights beside the source's.
func (c *onnxConversion) compare(written *model.Model) error {
	total, done := int64(0), int64(0)
	for _, n := range Lengths {
		total += int64(n)
	}
	for _, n := range Lengths {
		d, err := Compare(c.ctx, c.model, written, n, c.o.Threads)
		if err != nil {
			return err
		}
		c.report.Verification = append(c.report.Verification, d)
		if allowed := d.Allowed(c.o.Type, c.o.Atol); !(d.MaxAbs <= allowed) {
			return &VerifyError{d, allowed}
		}
		done += int64(n)
		c.o.Progress("verifying", done, total)
	}
	return nil
}

// finish gives everything its place: the model last, since readers begin with it.
func (c *onnxConversion) finish() error {
	entries, err := os.ReadDir(c.temp)
	if err != nil {
		return err
	}
	names := []string{c.modelName()}
	for _, e := range entries {
		if e.Name() != names[0] {
			names = append(names, e.Name())
		}
	}
	var paths []string
	for _, name := range names {
		paths = append(paths, filepath.Join(c.temp, name))
		if err := c.checkTaken(name); err != nil {
			return err
		}
		c.report.Files = append(c.report.Files, c.target(name))
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		c.report.OutputBytes += info.Size()
	}
	if c.o.Measure {
		if c.report.OutputSHA256, err = hashFiles(c.ctx, paths[:1]); err != nil {
			return err
		}
	}
	for i := len(names) - 1; i >= 0; i-- {
		if err := os.Rename(paths[i], c.target(names[i])); err != nil {
			for _, name := range names[i+1:] {
				os.Remove(c.target(name))
			}
			return err
		}
	}
	c.report.Seconds = time.Since(c.start).Seconds()
	return nil
}

// float64Tensor is a tensor [len(v)].
func float64Tensor(v []float64) *onnx.Tensor {
	var raw []byte
	for _, x := range v {
		raw = binary.LittleEndian.AppendUint64(raw, math.Float64bits(x))
	}
	return &onnx.Tensor{Type: onnx.Double, Dims: []int64{int64(len(v))}, Raw: raw}
}
