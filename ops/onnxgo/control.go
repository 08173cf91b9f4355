package onnxgo

import (
	"math"
	"slices"

	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/tensors"

	"github.com/firstpassage/fpa/format/onnx"
)

// Control flow. What is known beforehand decides; loops are unrolled.

func subgraph(c *call, name string) func(in []*value) []*value {
	g, ok := attribute[*onnx.Graph](c, name)
	if !ok {
		fail("attribute %q is missing", name)
	}
	return func(in []*value) []*value { return c.graph(c.scope, g, in) }
}

// ifElse takes the branch of a condition that is known, and selects from the
// results of both otherwise.
func ifElse(c *call) []*value {
	yes, no := subgraph(c, "then_branch"), subgraph(c, "else_branch")
	if is, ok := knownBool(c.in[0]); ok {
		if is {
			return yes(nil)
		}
		return no(nil)
	}
	a, b := yes(nil), no(nil)
	if len(a) != len(b) {
		fail("the branches have %d and %d outputs", len(a), len(b))
	}
	condition := gx.Reshape(c.x(0))
	var out []*value
	for i := range a {
		if !a[i].shape.Equal(b[i].shape) {
			fail("output %d is %v in one branch and %v in the other, and the condition is known only when the model runs", i, a[i].shape, b[i].shape)
		}
		out = append(out, c.value(gx.Where(spread(condition, a[i].shape.Dimensions), c.node(a[i]), c.node(b[i]))))
	}
	return out
}

func loop(c *call) []*value {
	body := subgraph(c, "body")
	trips := math.MaxInt
	if c.has(0) {
		list := c.ints(0)
		if len(list) != 1 {
			fail("the number of iterations is %v, expected one number", c.shape(0))
		}
		trips = list[0]
	}
	known := func(v *value) bool {
		is, ok := knownBool(v)
		if !ok {
			fail("whether the loop goes on depends on values that are known only when the model runs; gomlx needs to know before")
		}
		return is
	}
	state := append([]*value{nil}, c.in[min(2, len(c.in)):]...) // the condition first, as the body has it
	if c.has(1) {
		state[0] = c.in[1]
	} else {
		state[0] = knownValue(tensors.FromScalar(true))
	}
	var stacked [][]*gx.Node
	for i := 0; i < trips && known(state[0]); i++ {
		out := body(append([]*value{knownValue(tensors.FromScalar(int64(i)))}, state...))
		if len(out) < len(state) {
			fail("the body has %d outputs, expected %d or more", len(out), len(state))
		}
		copy(state, out)
		for k, v := range out[len(state):] {
			if k >= len(stacked) {
				stacked = append(stacked, nil)
			}
			stacked[k] = append(stacked[k], gx.InsertAxes(c.node(v), 0))
		}
	}
	out := state[1:]
	if len(stacked) == 0 && len(c.n.Outputs) > len(out) {
		fail("a loop of no iterations, whose outputs have an unknown shape")
	}
	for _, rows := range stacked {
		out = append(out, c.value(join(rows, 0)))
	}
	return out
}

func scan(c *call) []*value {
	body := subgraph(c, "body")
	inputs, ok := attribute[int64](c, "num_scan_inputs")
	states := len(c.in) - int(inputs)
	if !ok || inputs < 1 || states < 0 {
		fail("num_scan_inputs is %d, and there are %d inputs", inputs, len(c.in))
	}
	if c.scope.opset() < 9 {
		fail("the form of Scan before opset 9 is not supported")
	}
	// setting is one number of a list that may be absent.
	setting := func(name string, i int) int {
		list := c.integers(name)
		if list == nil {
			return 0
		}
		if i >= len(list) {
			fail("attribute %q has %d numbers, expected %d or more", name, len(list), i+1)
		}
		return list[i]
	}
	length := -1
	axes := make([]int, inputs)
	for i := range axes {
		s := c.shape(states + i)
		axes[i] = axis(setting("scan_input_axes", i), s.Rank())
		n := s.Dimensions[axes[i]]
		if length >= 0 && n != length {
			fail("the inputs are of lengths %d and %d", length, n)
		}
		length = n
	}
	state := slices.Clone(c.in[:states])
	var stacked [][]*gx.Node
	for t := range length {
		in := slices.Clone(state)
		for i, a := range axes {
			x, at := c.in[states+i], t
			if setting("scan_input_directions", i) == 1 {
				at = length - 1 - t
			}
			in = append(in, c.element(x, a, at))
		}
		out := body(in)
		if len(out) < states {
			fail("the body has %d outputs, expected %d or more", len(out), states)
		}
		copy(state, out)
		for k, v := range out[states:] {
			if k >= len(stacked) {
				stacked = append(stacked, nil)
			}
			stacked[k] = append(stacked[k], c.node(v))
		}
	}
	if length == 0 && len(c.n.Outputs) > states {
		fail("a scan over nothing, whose outputs have an unknown shape")
	}
	out := state
	for k, rows := range stacked {
		a := axis(setting("scan_output_axes", k), rows[0].Rank()+1)
		if setting("scan_output_directions", k) == 1 {
			slices.Reverse(rows)
		}
		for i := range rows {
			rows[i] = gx.InsertAxes(rows[i], a)
		}
		out = append(out, c.value(join(rows, a)))
	}
	return out
}

// element is one element of a value along an axis; known where the value is.
func (c *call) element(v *value, a, at int) *value {
	one := &call{builder: c.builder, scope: c.scope, n: c.n, in: []*value{v}}
	o := operator{run: func(c *call) []*value {
		x := gx.SliceAxis(c.x(0), a, gx.AxisRange(at, at+1))
		d := slices.Delete(slices.Clone(x.Shape().Dimensions), a, a+1)
		return []*value{c.value(gx.Reshape(x, d...))}
	}}
	if out := one.fold(o); out != nil {
		return out[0]
	}
	return o.run(one)[0]
}
