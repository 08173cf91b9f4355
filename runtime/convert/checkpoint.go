package convert

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/atomicfile"
	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
)

// CheckpointTypes are the names of the types that the matrices of a checkpoint can
// have.
var CheckpointTypes = []string{"f32", "f16", "bf16"}

// ToCheckpoint writes a model as an FPA checkpoint (docs/checkpoints.md). Where
// Output does not end in .safetensors, or is a folder, it is a folder that gets
// model.safetensors; config.json, generation_config.json and the tokenizer go beside
// the weights in any case. Type is F32, F16 or BF16, and SplitMaxBytes has no meaning.
//
// The checkpoint is read back and compared with the source, configuration and bytes,
// and both are run as ToGGUF does. Nothing appears under its name before all is well.
// The error is a VerifyError when the checkpoint gives other results than the source.
func ToCheckpoint(ctx context.Context, src *model.File, o Options) (*Report, error) {
	if !slices.Contains(CheckpointTypes, strings.ToLower(o.Type.String())) {
		return &Report{}, fmt.Errorf("a checkpoint cannot be written with matrices of type %s, expected %s", o.Type, strings.Join(CheckpointTypes, ", "))
	}
	parts := src.Parts
	c := &checkpointConversion{staged{ctx: ctx, src: src, parts: &parts, o: &o}}
	c.fillBiases("attn_q", "attn_k", "attn_v")
	c.fillBiases("attn_output")
	c.fillBiases("ffn_gate", "ffn_up", "ffn_down")
	err := c.run(".safetensors", c)
	return &c.report, err
}

// checkpointConversion is the state of one run of ToCheckpoint.
type checkpointConversion struct{ staged }

// fillBiases adds zeros for the biases that some of the projections lack, in any
// layer, when others have theirs: a checkpoint has all of them or none.
func (c *checkpointConversion) fillBiases(projections ...string) {
	have := make(map[string]bool, len(c.parts.Tensors))
	for _, t := range c.parts.Tensors {
		have[t.Name] = true
	}
	var missing []model.Tensor
	found := false
	if c.parts.Config.Validate() != nil || c.parts.Config.Blocks > len(have) {
		return // what is wrong, Build says
	}
	for _, s := range c.parts.Config.Tensors() {
		name, isBias := strings.CutSuffix(s.Name, ".bias")
		if !isBias || !slices.Contains(projections, name[strings.LastIndexByte(name, '.')+1:]) {
			continue
		}
		if have[s.Name] {
			found = true
			continue
		}
		n, _ := s.Shape.Elements() // Validate bounds the sizes
		missing = append(missing, model.Tensor{Name: s.Name, Source: "zeros", DType: quant.F32, Shape: s.Shape, Data: make([]byte, 4*n)})
	}
	if found && len(missing) > 0 {
		c.parts.Tensors = slices.Concat(c.parts.Tensors, missing)
		c.report.Notes = append(c.report.Notes, fmt.Sprintf("%d biases that the model lacks are written as zeros, %s first: a checkpoint has all or none", len(missing), missing[0].Name))
	}
}

func (c *checkpointConversion) chooseType(p *TensorPlan) { p.chooseType(c.o.Type) }

func (c *checkpointConversion) write(path string) error {
	f, err := atomicfile.CreateAtomic(path, true)
	if err != nil {
		return err
	}
	defer f.Abort()
	count := c.progress()
	tensors := make([]safetensors.Tensor, len(c.plans))
	for i := range c.plans {
		p := &c.plans[i]
		tensors[i] = safetensors.Tensor{
			Name: c.parts.Config.CheckpointName(p.Name), DType: p.dtype, Shape: format.Shape(p.Shape),
			Source: func(w io.Writer) error { return p.write(c.ctx, w, c.o.Measure, count) },
		}
	}
	metadata := map[string]string{
		"format":                 "pt", // what loaders of PyTorch ask for
		gguf.KeySourceFormat:     c.src.Format(),
		gguf.KeyConverterVersion: c.o.Version,
	}
	if c.report.SourceSHA256 != "" {
		metadata[gguf.KeySourceSHA256] = c.report.SourceSHA256
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if err := safetensors.Write(w, tensors, metadata); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Commit()
}

func (c *checkpointConversion) companions() (map[string]any, error) {
	files, _, err := c.checkpointFiles()
	return files, err
}
