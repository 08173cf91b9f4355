package xla

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/distributed"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"

	"github.com/firstpassage/fpa/runtime/model"
)

// mesh is the devices that a model runs on where they are several; a nil mesh is one
// device.
//
// Either the model is split over them (tensor parallel): each has a share of the heads
// with their part of the cache, of the columns of the feed-forward block, and of the
// vocabulary. The graph is that of one device. What its inputs and outputs are cut
// along is declared, and XLA's partitioner (Shardy) finds what each device computes,
// and where they add up what they have: after the output projection of the attention
// and after that of the feed-forward block.
//
// Or the sequences of a batch are (data parallel): each device has all of the weights
// and runs the graph on sequences of its own (SPMD). Nothing is exchanged.
type mesh struct {
	devices *distributed.DeviceMesh
	n       int
	data    bool
}

// meshAxis is the name of the one axis of a mesh.
const meshAxis = "devices"

// whole stands for an axis where every device has all of a value.
const whole = -1

// axes says which axis of a value are the sequences and which one the heads, or what
// else each device has a share of where the model is split; whole: none.
type axes struct{ lanes, heads int }

var (
	onAll   = axes{whole, whole}
	byHead  = axes{whole, 0} // weights [outputs, ..], [heads, ..]
	byInput = axes{whole, 1} // weights [outputs, inputs]
	byRow   = axes{0, whole} // [B], [B*N, ..]
	byLane  = axes{0, 1}     // [B, heads, ..], [B, V]
	byLayer = axes{1, 2}     // [L, B, heads, ..]
	byVocab = axes{whole, 1} // [R, V]
)

// pieces is a value on the devices of a mesh. It takes the place of a backend's
// buffer.
type pieces struct {
	on    []backends.Buffer // a piece for each device
	axis  int               // along which the value is cut, or whole
	shape shapes.Shape      // of the whole value
}

// newMesh is the mesh that the options ask for.
func newMesh(m *model.Model, b backends.Backend, o Options) (*mesh, error) {
	n := max(o.TensorParallel, o.DataParallel)
	switch {
	case o.TensorParallel < 0 || o.DataParallel < 0:
		return nil, fmt.Errorf("a number of devices of %d, expected at least 1", min(o.TensorParallel, o.DataParallel))
	case o.TensorParallel > 1 && o.DataParallel > 1:
		return nil, fmt.Errorf("a model split over %d devices with batches split over %d: one engine does one of the two; run several processes, each with devices of its own", o.TensorParallel, o.DataParallel)
	case n <= 1:
		return nil, nil
	}
	if have := b.NumDevices(); n > have {
		return nil, fmt.Errorf("%d devices are asked for, the plugin has %d", n, have)
	}
	if o.TensorParallel > 1 {
		for _, x := range shared(m) {
			if x.n%n != 0 {
				return nil, fmt.Errorf("%d %s cannot be shared evenly by %d devices; this model can be split over %s", x.n, x.what, n, splits(m, b.NumDevices()))
			}
		}
	}
	devices, err := distributed.NewDeviceMesh([]int{n}, []string{meshAxis})
	if err != nil {
		return nil, err
	}
	return &mesh{devices, n, o.DataParallel > 1}, nil
}

// share is something of which each device must have as much.
type share struct {
	what string
	n    int
}

func shared(m *model.Model) []share {
	return []share{{"query heads", m.Heads}, {"key-value heads", m.KVHeads}, {"columns of the feed-forward block", m.FeedForward}}
}

// splits lists the numbers of devices, at most most, that a model can be split over.
func splits(m *model.Model, most int) string {
	var list []string
next:
	for n := 1; n <= most; n++ {
		for _, x := range shared(m) {
			if x.n%n != 0 {
				continue next
			}
		}
		list = append(list, fmt.Sprint(n))
	}
	return strings.Join(list, " or ")
}

// weightAxes are those of the weights of which each device has a share, by the last
// word of their names; the others are small.
var weightAxes = map[string]axes{
	nameOutput: byHead, nameProject: byHead, nameSmall: byHead, nameQNorm: byHead, nameKNorm: byHead,
	nameOutputNorm: byHead, nameO: byInput, nameFFNIn: byHead, nameFFNOut: byInput,
}

// axesOf are the axes of a weight.
func axesOf(name string) axes {
	if a, ok := weightAxes[name[strings.LastIndexByte(name, ' ')+1:]]; ok {
		return a
	}
	return onAll
}

// cut is the axis along which the devices share a value, or whole. Of what is counted
// in heads, only the vocabulary, fields and levels may be of a size that they cannot
// share.
func (e *Engine) cut(a axes, shape shapes.Shape) int {
	switch {
	case e.mesh == nil:
		return whole
	case e.mesh.data:
		return a.lanes
	case a.heads != whole && shape.Dimensions[a.heads]%e.mesh.n != 0:
		return whole
	}
	return a.heads
}

// splitOver is the number of devices that the model is split over.
func (e *Engine) splitOver() int {
	if e.mesh == nil || e.mesh.data {
		return 1
	}
	return e.mesh.n
}

// lanesOver is the number of devices that share the sequences of a batch.
func (e *Engine) lanesOver() int {
	if e.mesh == nil || !e.mesh.data {
		return 1
	}
	return e.mesh.n
}

// put uploads a value.
func (e *Engine) put(flat any, shape shapes.Shape, axis int) (backends.Buffer, error) {
	if e.mesh == nil {
		return e.backend.BufferFromFlatData(0, flat, shape)
	}
	p := &pieces{axis: axis, shape: shape}
	for d := range e.mesh.n {
		piece := flat
		if axis != whole {
			all := reflect.ValueOf(flat)
			part := reflect.MakeSlice(all.Type(), all.Len()/e.mesh.n, all.Len()/e.mesh.n)
			p.runs(d, e.mesh.n, func(at, of, width int) {
				reflect.Copy(part.Slice(of, of+width), all.Slice(at, at+width))
			})
			piece = part.Interface()
		}
		b, err := e.backend.BufferFromFlatData(backends.DeviceNum(d), piece, p.each(e.mesh.n))
		if err != nil {
			e.release(p)
			return nil, err
		}
		p.on = append(p.on, b)
	}
	return p, nil
}

// get copies a value to the host.
func (e *Engine) get(b backends.Buffer, to any) error {
	p, ok := b.(*pieces)
	if !ok {
		return e.backend.BufferToFlatData(b, to)
	}
	if p.axis == whole {
		return e.backend.BufferToFlatData(p.on[0], to)
	}
	all := reflect.ValueOf(to)
	n := p.shape.Size() / len(p.on)
	part := reflect.MakeSlice(all.Type(), n, n)
	for d, b := range p.on {
		if err := e.backend.BufferToFlatData(b, part.Interface()); err != nil {
			return err
		}
		p.runs(d, len(p.on), func(at, of, width int) {
			reflect.Copy(all.Slice(at, at+width), part.Slice(of, of+width))
		})
	}
	return nil
}

// onDevice is the output of a program as device d has it, of devices that share the
// sequences.
func (e *Engine) onDevice(b backends.Buffer, d int) backends.Buffer {
	if e.lanesOver() == 1 {
		return b
	}
	return b.(*pieces).on[d]
}

// each is the shape of what each of n devices has.
func (p *pieces) each(n int) shapes.Shape {
	s := p.shape.Clone()
	if p.axis != whole {
		s.Dimensions[p.axis] /= n
	}
	return s
}

// runs calls f for every stretch of numbers of the whole value that is in the piece
// of device d of n: where it begins in the value and in the piece, and its length.
func (p *pieces) runs(d, n int, f func(at, of, width int)) {
	width := 1
	for _, dim := range p.shape.Dimensions[p.axis:] {
		width *= dim
	}
	width /= n
	for i := range p.shape.Size() / width / n {
		f((i*n+d)*width, i*width, width)
	}
}

// project applies several projections that are one matrix, as uploader.linear lays
// them out, and hands out the columns of each.
func (c *chunk) project(x *gx.Node, name string) func(width int) *gx.Node {
	x = c.linear(x, name)
	if n := c.e.splitOver(); n > 1 && c.e.weights[name].axis != whole {
		rows := x.Shape().Dimensions[0]
		columns := gx.Reshape(x, rows, n, -1)
		at := 0
		return func(width int) *gx.Node {
			at += width / n
			return gx.Reshape(gx.SliceAxis(columns, 2, gx.AxisRange(at-width/n, at)), rows, width)
		}
	}
	return split(x)
}

// begin makes a graph one of the mesh.
func (m *mesh) begin(g *gx.Graph) {
	var err error
	switch {
	case m == nil:
	case m.data:
		err = g.SetSPMD(m.devices)
	default:
		err = g.SetAutoSharding(m.devices)
	}
	if err != nil {
		panic(err)
	}
}

// parameter declares an input that is cut along an axis. Where devices share the
// sequences the shape is that of what each has.
func (b *builder) parameter(name string, axis int, shape shapes.Shape) *gx.Node {
	if b.e.splitOver() > 1 {
		return gx.ShardedParameter(b.g, name, shape, b.e.mesh.spec(axis))
	}
	return gx.Parameter(b.g, name, shape)
}

// spec is how gomlx says that a value is cut along an axis.
func (m *mesh) spec(axis int) *distributed.ShardingSpec {
	s := distributed.NewReplicatedShardingSpec(m.devices)
	if axis != whole {
		s.Axes = make([]distributed.AxisSpec, axis+1)
		s.Axes[axis] = distributed.AxisSpec{meshAxis}
	}
	return s
}

// compile ends a graph and returns its outputs, without their buffers.
func (m *mesh) compile(b *builder) (outputs []pieces) {
	if m == nil {
		b.g.Compile(b.out...)
		return nil
	}
	var specs []*distributed.ShardingSpec
	for i, x := range b.out {
		p := pieces{axis: b.e.cut(b.outAxes[i], x.Shape()), shape: x.Shape().Clone()}
		if !m.data {
			specs = append(specs, m.spec(p.axis))
		} else if p.axis != whole {
			p.shape.Dimensions[p.axis] *= m.n
		}
		outputs = append(outputs, p)
	}
	b.g.CompileWithSharding(b.out, specs)
	return outputs
}

// run runs a program on the devices; all are the inputs in their places.
func (m *mesh) run(e *Engine, p *program, all []backends.Buffer) ([]backends.Buffer, error) {
	var in []backends.Buffer
	for d := range m.n {
		for _, b := range all {
			in = append(in, b.(*pieces).on[d])
		}
	}
	var out []backends.Buffer
	for _, x := range p.outputs {
		out = append(out, &x)
	}
	for i, t := range p.graph.RunWithBuffers(in, make([]bool, len(in)), 0) {
		b, err := t.DonateBuffer(e.backend, backends.DeviceNum(i/len(out)))
		if err != nil {
			return nil, err
		}
		x := out[i%len(out)].(*pieces)
		x.on = append(x.on, b)
	}
	return out, nil
}
