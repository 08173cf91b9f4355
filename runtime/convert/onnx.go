package convert

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"

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

	// Cache is what the nodes ask the plugin for ONNX Runtime to drop, one of
	// ONNXCaches; empty: nothing. CacheEps is, of the cache bounded, what all dropped
	// keys may weigh together for a query; 0: DefaultCacheEps.
	Cache    string
	CacheEps float32
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
	if err := o.checkCache(); err != nil {
		return err
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
	c := &onnxConversion{x: &o, staged: staged{ctx: ctx, src: src, parts: &src.Parts, o: &o.Options}}
	if n := len(src.Generation.EOS); n > model.MaxEndTokens {
		c.report.Notes = append(c.report.Notes, fmt.Sprintf("of %d end tokens the metadata, for reading the model back, name %d", n, model.MaxEndTokens))
	}
	err := c.run(".onnx", c)
	return &c.report, err
}

// onnxConversion is the state of one run of ToONNX.
type onnxConversion struct {
	staged
	x *ONNXOptions
}

// chooseType settles the type of a tensor: F32 where F16 does not hold it.
func (c *onnxConversion) chooseType(p *TensorPlan) {
	p.chooseType(c.o.Type)
	if p.dtype != quant.F16 {
		p.dtype = quant.F32
	}
	p.Type = p.dtype.String()
}

// writeWith writes the model's file with bounds that are known.
func (c *onnxConversion) writeWith(path string, bounds onnxBounds) error {
	count := c.progress()
	weights := make(map[string]*onnx.Tensor, len(c.plans))
	for i := range c.plans {
		p := &c.plans[i]
		elem, _ := onnx.DataTypeOf(p.dtype)
		weights[p.Name] = &onnx.Tensor{
			Name: p.Name, Type: elem, Dims: p.Shape,
			Source: func(w io.Writer) error { return p.write(c.ctx, w, c.o.Measure, count) },
		}
	}
	m, err := onnxModel(&c.src.Parts.Config, c.x, bounds.node, weights)
	if err != nil {
		return err
	}
	if m.Metadata, err = c.metadata(bounds.stored); err != nil {
		return err
	}
	opt := onnx.WriteOptions{Force: true}
	if c.x.External {
		opt.External = onnx.ExternalAlways
	}
	return onnx.WriteFile(path, m, opt)
}

// companions are what pipelines look for beside the model, in a folder.
func (c *onnxConversion) companions() (map[string]any, error) {
	if !c.stage.folder {
		return nil, nil
	}
	files, config, err := c.checkpointFiles()
	if err == nil && c.x.Packed {
		files["config.json"] = config.packed(packedWidth(&c.src.Parts.Config))
	}
	return files, err
}

// metadata is the provenance, and the configuration and generation settings under
// the names that they have in a GGUF file, each value as JSON; model.FromONNX reads
// them back.
func (c *onnxConversion) metadata(bounds []float32) ([]onnx.Prop, error) {
	var props []onnx.Prop
	add := func(key, value string) { props = append(props, onnx.Prop{Key: key, Value: value}) }
	add(gguf.KeyArchitecture, gguf.ArchFPA)
	add(gguf.KeyName, baseName(c.src.Path))
	add(gguf.KeySourceFormat, c.src.Format())
	if c.report.SourceSHA256 != "" {
		add(gguf.KeySourceSHA256, c.report.SourceSHA256)
	}
	add(gguf.KeyConverterVersion, c.o.Version)
	add("fpaconv.onnx_op", c.x.Op)
	add("fpaconv.onnx_state", map[bool]string{false: "separate", true: "packed"}[c.x.Packed])
	config := c.src.Parts.Config
	config.LogitBound = bounds
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

// float64Tensor is a tensor [len(v)].
func float64Tensor(v []float64) *onnx.Tensor {
	var raw []byte
	for _, x := range v {
		raw = binary.LittleEndian.AppendUint64(raw, math.Float64bits(x))
	}
	return &onnx.Tensor{Type: onnx.Double, Dims: []int64{int64(len(v))}, Raw: raw}
}
