package convert

import (
	"fmt"
	"slices"
	"strings"

	"github.com/firstpassage/fpa/ops/onnxbody"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
)

// ONNXCaches are what the nodes of an ONNX model can ask the plugin for ONNX Runtime
// (ops/ortplugin) to drop. Other runtimes keep every key.
var ONNXCaches = []string{onnxbody.CacheOff, onnxbody.CacheExact, onnxbody.CacheBounded}

// DefaultCacheEps is what the keys that a cache "bounded" drops may weigh together,
// where no number is given.
const DefaultCacheEps = 1e-3

// checkCache fills in defaults and refuses caches that no node can ask for.
func (o *ONNXOptions) checkCache() error {
	if o.Cache == "" {
		o.Cache = onnxbody.CacheOff
	}
	if !slices.Contains(ONNXCaches, o.Cache) {
		return fmt.Errorf("the cache of an ONNX model cannot be %q, expected one of %s", o.Cache, strings.Join(ONNXCaches, ", "))
	}
	switch {
	case o.Cache != onnxbody.CacheBounded && o.CacheEps != 0:
		return fmt.Errorf("what dropped keys may weigh is only for the cache %s, not %s", onnxbody.CacheBounded, o.Cache)
	case o.Cache == onnxbody.CacheBounded && o.CacheEps == 0:
		o.CacheEps = DefaultCacheEps
	}
	if !(o.CacheEps >= 0 && o.CacheEps < 1) {
		return fmt.Errorf("dropped keys may weigh %g, expected a number above 0 and below 1", o.CacheEps)
	}
	if o.Cache == onnxbody.CacheOff {
		return nil
	}
	if o.Op != ONNXFunction && o.Op != ONNXCustom {
		return fmt.Errorf("cache %s with the operator as %s: only the plugin drops keys, and it needs a node; write the operator as %s or %s",
			o.Cache, o.Op, ONNXFunction, ONNXCustom)
	}
	if o.Packed {
		return fmt.Errorf("cache %s with packed states: the pipelines that those are for count tokens by the slots of the past", o.Cache)
	}
	return nil
}

// onnxBounds are the proved bounds on a model's logits, of every layer and query
// head; nil where there are none.
type onnxBounds struct {
	stored []float32 // for keys cached as F16, which hold for F32 too
	node   []float32 // for F32, as the graph's keys are; nil unless nodes need them
}

// bounds computes the bounds for a model that has the weights of the file.
func (c *onnxConversion) bounds(written *model.Model) (onnxBounds, error) {
	m := *written
	m.LogitBound = m.LogitBounds(quant.F16)
	b := onnxBounds{stored: m.LogitBound}
	c.report.LogitBound, c.report.Bounds = b.stored, nil
	if c.x.Cache == onnxbody.CacheOff {
		return b, nil
	}
	if why := m.KeepsAll(); why != "" {
		return b, fmt.Errorf("cache %s: no key of this model can be proved dead: %s; leave the cache %s", c.x.Cache, why, onnxbody.CacheOff)
	}
	c.report.Bounds = SummariseBounds(&m)
	b.node = m.LogitBounds(quant.F32)
	return b, nil
}

// write writes the model's file. Where matrices are rounded, and no QK-norm makes
// them immaterial to the bounds, it does so twice: bounds are of weights as they are
// written, and the graph, with the bounds in it, is at the head of the file.
func (c *onnxConversion) write(path string) error {
	if c.model.Field == model.FieldNone || c.model.QKNorm != model.NormNone || !c.rounded() {
		b, err := c.bounds(c.model)
		if err != nil {
			return err
		}
		return c.writeWith(path, b)
	}
	if err := c.writeWith(path, onnxBounds{}); err != nil {
		return err
	}
	for _, p := range c.plans {
		before := p.dtype
		if c.chooseType(&p); p.dtype != before {
			return nil // to be written again, with another type
		}
	}
	b, err := c.boundsOf(path)
	if err != nil || b.stored == nil {
		return err
	}
	return c.writeWith(path, b)
}

// rounded says whether a matrix is written with less than it has.
func (c *onnxConversion) rounded() bool {
	return slices.ContainsFunc(c.plans, func(p TensorPlan) bool { return p.matrix && p.dtype != p.tensor.DType })
}

// boundsOf computes the bounds of a file that was written.
func (c *onnxConversion) boundsOf(path string) (onnxBounds, error) {
	f, err := model.Open(path, model.OpenOptions{})
	if err != nil {
		return onnxBounds{}, fmt.Errorf("the written file cannot be read back: %w", err)
	}
	defer f.Close()
	m, err := f.Build()
	if err != nil {
		return onnxBounds{}, fmt.Errorf("the written file cannot be read back: %w", err)
	}
	return c.bounds(m)
}
