package onnxedit

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/onnxbody"
	"github.com/firstpassage/fpa/testmodels/onnxtest"
)

func TestParsePattern(t *testing.T) {
	whole := Pattern{Query: "q", Key: "k", Value: "v", Field: "f", Slopes: []float32{1, 0.5}, Output: "y", Scale: 0.25, Ignore: []string{"mask", "ids"}}
	tests := []struct {
		text string
		want []Pattern
		err  string
	}{
		{"query=q, key=k,value=v,field=f,slopes=1/0.5,output=y,scale=.25,ignore=mask,ignore=ids", []Pattern{whole}, ""},
		{`{"query":"q","key":"k","value":"v","field":"f","slopes":[1,0.5],"output":"y","scale":0.25,"ignore":["mask","ids"]}`, []Pattern{whole}, ""},
		{` [{"query":"q","key":"k","value":"v","field":"f","slope":"s","output":"y"}] `, []Pattern{{Query: "q", Key: "k", Value: "v", Field: "f", Slope: "s", Output: "y"}}, ""},
		{"", nil, "expected key=value"},
		{"query=q,key", nil, `the pattern has "key", expected key=value`},
		{"query=q,query=p", nil, `gives "query" twice`},
		{"query=q,kye=k", nil, `unknown field "kye"`},
		{"query=q,key=k,value=v,field=f,slope=s", nil, "lacks output"},
		{"query=q,key=k,value=v,output=y,slope=s", nil, "lacks field"},
		{"query=q,key=k,value=v,field=f,output=y", nil, "needs one of slope"},
		{"query=q,key=k,value=v,field=f,slope=s,slopes=1,output=y", nil, "needs one of slope"},
		{"query=q,key=k,value=v,field=f,slopes=1/x,output=y", nil, `slopes are "1/x", expected numbers`},
		{"query=q,key=k,value=v,field=f,slopes=-1,output=y", nil, "slopes have -1"},
		{"query=q,key=k,value=v,field=f,slopes=inf,output=y", nil, "Inf"},
		{"query=q,key=k,value=v,field=f,slope=s,output=y,scale=big", nil, `scale is "big"`},
		{"query=q,key=k,value=v,field=f,slope=s,output=y,interval=open", nil, `interval is "open"`},
		{`{"query":"q","key":"k","value":"v","field":"f","slopes":[],"output":"y"}`, nil, "slopes are empty"},
		{`{"query":"q"`, nil, "at byte"},
		{`{"query":1}`, nil, "cannot unmarshal number"},
		{`[{"query":"q","key":"k","value":"v","field":"f","slope":"s","output":"y"}]]`, nil, "something follows it"},
		{`{"mask":"m"}`, nil, `unknown field "mask"`},
	}
	for _, test := range tests {
		got, err := ParsePattern(test.text)
		switch {
		case test.err != "":
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: error %v, expected %q", test.text, err, test.err)
			}
		case err != nil || !reflect.DeepEqual(got, test.want):
			t.Errorf("%s: %+v, %v; expected %+v", test.text, got, err, test.want)
		}
	}
}

func TestExpand(t *testing.T) {
	p := Pattern{Query: "l.{}.q", Key: "l.{}.k", Value: "v", Output: "l.{}.y.{}", Ignore: []string{"m{}"}}
	values := map[string]bool{"l.0.y.0": true, "l.10.y.10": true, "l.2.y.2": true, "l.3.y.4": true, "l.01.y.01": true, "l.-1.y.-1": true, "l..y.": true}
	list, err := p.expand(values)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, q := range list {
		got = append(got, q.Output+" "+q.Query+" "+q.Value+" "+q.Ignore[0])
	}
	if want := []string{"l.0.y.0 l.0.q v m0", "l.2.y.2 l.2.q v m2", "l.10.y.10 l.10.q v m10"}; !slices.Equal(got, want) {
		t.Errorf("%q, expected %q", got, want)
	}
	if p.Ignore[0] != "m{}" {
		t.Error("the pattern itself was changed")
	}
	for _, bad := range []Pattern{{Output: "none.{}"}, {Query: "q{}", Output: "y"}} {
		if _, err := bad.expand(values); err == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
}

// TestPatternErrors names wrong boundaries in a model of two layers.
func TestPatternErrors(t *testing.T) {
	const good = "query=getitem,key=getitem_1,value=getitem_2,field=transpose,slopes=1,output=matmul_1"
	tests := []struct {
		name, old, new string
		spoil          func(m *onnx.Model)
		want           string
	}{
		{"no such value", "query=getitem,", "query=q,", nil, `pattern with output "matmul_1": the main graph has no value "q"`},
		{"a node", "query=getitem,", "query=node_matmul,", nil, `"node_matmul" is the name of a node, expected that of a value; the node (number 27, MatMul) makes "matmul"`},
		{"in a nested graph", "query=getitem,", "query=hidden,", func(m *onnx.Model) {
			m.Functions = []*onnx.Function{{Name: "f", Domain: "d", Opsets: []onnx.Opset{{Version: 18}}, Inputs: []string{"x"}, Outputs: []string{"hidden"},
				Nodes: []*onnx.Node{{OpType: "Identity", Inputs: []string{"x"}, Outputs: []string{"hidden"}}}}}
		}, `the value "hidden" is not in the main graph`},
		{"output before the softmax", "output=matmul_1", "output=masked_fill", nil, `the output does not depend on the value "getitem_2"`},
		{"output behind the residual", "output=matmul_1", "output=add_1", nil, `it also depends on the input "input_ids" of the model, by way of "input_ids" -> "embedding" -> "add_1"`},
		{"query of the other layer", "query=getitem,", "query=getitem_3,", nil, `by way of "input_ids" -> "embedding" -> "layer_norm"`},
		{"an input as output", "output=matmul_1", "output=input_ids", nil, `"input_ids" is an input or a constant of the model`},
		{"the query as output", "output=matmul_1", "output=getitem", nil, `"getitem" is named as an input and as an output`},
		{"twice the same", "output=matmul_1", "output=matmul_1,present_key=matmul_1", nil, `"matmul_1" is named twice`},
		{"weights used elsewhere", "", "", func(m *onnx.Model) {
			m.Graph.Nodes = append(m.Graph.Nodes, &onnx.Node{Name: "spy", OpType: "Identity", Inputs: []string{"softmax"}, Outputs: []string{"weights"}})
			m.Graph.Outputs = append(m.Graph.Outputs, &onnx.ValueInfo{Name: "weights", Type: onnx.TensorOf(onnx.Float, "b", 4, "t", "t")})
		}, `"softmax", inside the part, is also used by node "spy" (Identity)`},
		{"weights as output", "", "", func(m *onnx.Model) {
			m.Graph.Outputs = append(m.Graph.Outputs, &onnx.ValueInfo{Name: "softmax", Type: onnx.TensorOf(onnx.Float, "b", 4, "t", "t")})
		}, `"softmax", inside the part, is also an output of the model`},
		{"half a past", "output=", "past_key=getitem_1,output=", nil, "1 of the inputs past_key"},
		{"field in another layout", "field=transpose,", "field=cumsum,", nil, `field "cumsum" has shape [batch, sequence, 4], expected [B, Hf, T]; dimension 1 is not of heads, but of positions; transpose it`},
		{"level of another layout", "output=", "level=unsqueeze,output=", nil, `level "unsqueeze" has shape`},
		{"slopes", "slopes=1", "slopes=1/1/1", nil, "has shape [3], expected [Hf] with Hf = 4 as in field"},
		{"input behind the output", "output=", "level=transpose_3,output=", nil, "one of a pattern's inputs depends on its output"},
	}
	for _, test := range tests {
		m := load(t, "torch-fox.onnx")
		if test.spoil != nil {
			test.spoil(m)
		}
		text := strings.Replace(good, test.old, test.new, 1)
		p, err := ParsePattern(text)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if _, err = Inject(m, Options{Patterns: p}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, expected %q", test.name, err, test.want)
		}
	}
	// The boundary that the others spoil is right.
	p, err := ParsePattern(good)
	if err != nil {
		t.Fatal(err)
	}
	inject(t, load(t, "torch-fox.onnx"), Options{Patterns: p})
}

// TestPatternNotes warns of what is likely a mistake, but may be meant.
func TestPatternNotes(t *testing.T) {
	m := model(t, false, 21)
	b := onnx.NewGraph("main")
	q, f := b.Input("q", onnx.TensorOf(onnx.Float, 1, 1, "t", 4)), b.Input("f", onnx.TensorOf(onnx.Float, 1, 1, "t"))
	x := b.Op("Mul", b.Op("Identity", q, onnx.As("k")), b.Op("Identity", q, onnx.As("v")))
	b.Output(b.Op("Add", q, x, onnx.As("y")), onnx.TensorOf(onnx.Float, 1, 1, "t", 4))
	b.Output(b.Op("Identity", f, onnx.As("g")), onnx.TensorOf(onnx.Float, 1, 1, "t"))
	var err error
	if m.Graph, err = b.Graph(); err != nil {
		t.Fatal(err)
	}
	p, err := ParsePattern("query=q,key=k,value=v,field=f,slopes=1,output=y")
	if err != nil {
		t.Fatal(err)
	}
	_, r := inject(t, m, Options{Patterns: p})
	if len(r.Notes) != 2 || !strings.Contains(r.Notes[0].Text, "no Softmax") || !strings.Contains(r.Notes[1].Text, "did not use the field") {
		t.Errorf("%+v", r.Notes)
	}
}

// helperModel is a Python program that writes to argv[1] two layers of ALiBi, of which
// the second also takes a mask, by onnx.helper; nodes carry numbers in their names.
const helperModel = `
import sys
import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save

nodes, constants = [], []

def node(op, inputs, output, **attributes):
    nodes.append(helper.make_node(op, inputs, [output], name="n_" + output, **attributes))
    return output

def constant(name, value):
    constants.append(numpy_helper.from_array(np.array(value), name))
    return name

heads, width = 2, 4
x = "x"
for l in range(2):
    rng = np.random.default_rng(l)
    for part in "qkv":
        w = constant(f"w{part}.{l}", rng.normal(size=(8, 8)).astype(np.float32) / 3)
        h = node("Reshape", [node("MatMul", [x, w], f"p{part}.{l}"), constant(f"s{part}.{l}", np.array([0, 0, heads, width]))], f"r{part}.{l}")
        node("Transpose", [h], f"{part}.{l}", perm=[0, 2, 1, 3])
    scores = node("MatMul", [f"q.{l}", node("Transpose", [f"k.{l}"], f"kt.{l}", perm=[0, 1, 3, 2])], f"s.{l}")
    scores = node("Mul", [scores, constant(f"scale.{l}", np.float32(0.4))], f"scaled.{l}")
    if l == 0:
        # field[t] = -t of each head, and the bias slope * (field[i] - field[j]).
        size = node("Shape", ["x"], "size")
        t = node("Gather", [size, constant("one", np.int64(1))], "time")
        at = node("Cast", [node("Range", [constant("zero", np.int64(0)), t, "one"], "range")], "at", to=TensorProto.FLOAT)
        batch = node("Gather", [size, "zero"], "batch")
        shape = [node("Unsqueeze", [v, constant(n, np.array([0]))], n + "_") for v, n in ((batch, "ub"), (t, "ut"))]
        full = node("Concat", [shape[0], constant("hs", np.array([heads])), shape[1]], "full", axis=0)
        node("Expand", [node("Neg", [at], "neg"), full], "field")
        column = node("Unsqueeze", ["field", constant("last", np.array([-1]))], "column")
        row = node("Unsqueeze", ["field", constant("before", np.array([-2]))], "row")
        fall = node("Sub", [column, row], "fall")
        slopes = constant("slopes", np.array([0.5, 0.0625], np.float32))
        bias = node("Mul", [fall, node("Reshape", [slopes, constant("hs2", np.array([heads, 1, 1]))], "slopes3")], "bias")
        later = node("Greater", [row, column], "earlier_is_greater")
        hide = node("Where", [node("Less", [row, column], "later"), constant("ninf", np.float32(-1e30)), constant("nothing", np.float32(0))], "causal")
    scores = node("Add", [node("Add", [scores, "bias"], f"biased.{l}"), "causal"], f"hidden.{l}")
    if l == 1:
        scores = node("Add", [scores, "mask"], f"masked.{l}")
    y = node("MatMul", [node("Softmax", [scores], f"weights.{l}", axis=-1), f"v.{l}"], f"attention.{l}")
    y = node("Reshape", [node("Transpose", [y], f"back.{l}", perm=[0, 2, 1, 3]), constant(f"so.{l}", np.array([0, 0, 8]))], f"joined.{l}")
    x = node("Add", [x, y], f"x.{l}")
f32 = TensorProto.FLOAT
graph = helper.make_graph(
    nodes, "helper",
    [helper.make_tensor_value_info("x", f32, ["b", "t", 8]), helper.make_tensor_value_info("mask", f32, ["b", 1, 1, "t"])],
    [helper.make_tensor_value_info(x, f32, ["b", "t", 8])], constants,
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="helper")
checker.check_model(model, full_check=True)
save(model, sys.argv[1])
`

// runHelperPattern replaces both layers of a model that Python's onnx.helper made by
// one pattern with a number.
func runHelperPattern(t *testing.T, p *onnxtest.Python) {
	python := os.Getenv("FPA_PYTHON")
	if python == "" {
		python = "python3"
	}
	path := filepath.Join(t.TempDir(), "helper.onnx")
	if out, err := exec.Command(python, "-c", helperModel, path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f, err := onnx.Open(path, format.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text := "query=q.{},key=k.{},value=v.{},field=field,slope=slopes,scale=0.4,output=attention.{}"
	patterns, err := ParsePattern(text)
	if err != nil {
		t.Fatal(err)
	}
	// The second layer's mask is not silently dropped.
	_, err = Inject(clone(t, f.Model), Options{Patterns: patterns})
	if err == nil || !strings.Contains(err.Error(), `pattern with output "attention.1": it also depends on the input "mask" of the model, by way of "mask" -> "masked.1"`) {
		t.Errorf("error %v", err)
	}
	if patterns, err = ParsePattern(text + ",ignore=mask"); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(15, 16))
	before := p.Load(t, path, onnxtest.Runtime)
	for _, form := range []string{Function, Inline} {
		m, r := inject(t, f.Model, Options{Form: form, Patterns: patterns})
		if len(r.Replaced) != 2 || r.Replaced[0].Removed["Softmax"] != 1 || r.Replaced[0].Removed["Where"] != 1 {
			t.Errorf("%+v", r)
		}
		for _, name := range []string{"ninf", "hs2", "scale.0"} {
			if m.Graph.Initializer(name) != nil {
				t.Errorf("the constant %s of the old attention is still there", name)
			}
		}
		written := write(t, m)
		p.Check(t, written)
		after := p.Load(t, written, onnxtest.Runtime)
		for _, steps := range []int64{1, 9, 70} {
			x := make([]float32, 2*steps*8)
			for i := range x {
				x[i] = float32(rng.NormFloat64())
			}
			in := []onnxtest.Tensor{
				onnxtest.Float32("x", x, 2, steps, 8), onnxtest.Zeros("mask", "float32", 4, 2, 1, 1, steps),
			}
			same(t, fmt.Sprintf("%s, %d positions", form, steps), after.Run(t, in), before.Run(t, in), 5e-6)
		}
	}
}

// TestSortNodes shuffles random graphs.
func TestSortNodes(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 18))
	for range 200 {
		n := 1 + rng.IntN(30)
		var nodes []*onnx.Node
		for i := range n {
			node := &onnx.Node{OpType: "Op", Name: fmt.Sprint(i), Outputs: []string{fmt.Sprint("v", i)}, Inputs: []string{"outside", ""}}
			for range min(i, rng.IntN(4)) {
				name := fmt.Sprint("v", rng.IntN(i))
				if rng.IntN(3) == 0 { // used by a nested graph
					inner := &onnx.Graph{Name: "g", Nodes: []*onnx.Node{{OpType: "Op", Inputs: []string{name}, Outputs: []string{"inner"}}}}
					node.Attributes = append(node.Attributes, &onnx.Attribute{Name: fmt.Sprint(len(node.Attributes)), Kind: onnx.KindGraph, Value: inner})
				} else {
					node.Inputs = append(node.Inputs, name)
				}
			}
			nodes = append(nodes, node)
		}
		sorted := slices.Clone(nodes)
		if err := sortNodes(sorted); err != nil || !slices.Equal(sorted, nodes) {
			t.Fatalf("a sorted list was changed, or %v", err)
		}
		rng.Shuffle(n, func(i, j int) { sorted[i], sorted[j] = sorted[j], sorted[i] })
		if err := sortNodes(sorted); err != nil {
			t.Fatal(err)
		}
		made := map[string]bool{"outside": true}
		for _, node := range sorted {
			uses(node, func(name string) {
				if !made[name] {
					t.Fatalf("node %s comes before %s", node.Name, name)
				}
			})
			made[node.Outputs[0]] = true
		}
		if n > 1 {
			nodes[0].Inputs = append(nodes[0].Inputs, nodes[n-1].Outputs[0])
			nodes[n-1].Inputs = append(nodes[n-1].Inputs, nodes[0].Outputs[0])
			if err := sortNodes(sorted); err == nil {
				t.Fatal("no error for a cycle")
			}
		}
	}
}

// FuzzInject reads any bytes as a model, and tries all that can be done with one.
func FuzzInject(f *testing.F) {
	// Small models: with large ones the fuzzer does little but make them smaller.
	for _, m := range []*onnx.Model{model(f, true, 21), model(f, false, 23), wrapped(f)} {
		m.Functions = slices.DeleteFunc(m.Functions, func(f *onnx.Function) bool { return f.Domain == onnxbody.Domain })
		f.Add(encode(f, m))
	}
	b := onnx.NewGraph("main")
	q, k := b.Input("q", onnx.TensorOf(onnx.Float, 1, 1, "t", 4)), b.Input("k", onnx.TensorOf(onnx.Float, 1, 1, "t", 4))
	field := b.Input("f", onnx.TensorOf(onnx.Float, 1, 1, "t"))
	bias := b.Op("Sub", b.Op("Unsqueeze", field, b.Int64s(-1)), b.Op("Unsqueeze", field, b.Int64s(-2)))
	weights := b.Op("Softmax", b.Op("Add", b.Op("MatMul", q, b.Op("Transpose", k, onnx.IntsAttr("perm", 0, 1, 3, 2))), bias))
	b.Output(b.Op("MatMul", weights, k, onnx.As("y0")), onnx.TensorOf(onnx.Float, 1, 1, "t", 4))
	g, err := b.Graph()
	if err != nil {
		f.Fatal(err)
	}
	m := &onnx.Model{IRVersion: 8, Opsets: []onnx.Opset{{Version: 17}}, Graph: g}
	patterns, err := ParsePattern("query=q,key=k,value=k,field=f,slopes=1,output=y{}")
	if err != nil {
		f.Fatal(err)
	}
	if _, err := Inject(clone(f, m), Options{Patterns: patterns}); err != nil {
		f.Fatal(err)
	}
	f.Add(encode(f, m))
	f.Fuzz(func(t *testing.T, data []byte) {
		parse := func() *onnx.Model {
			m, err := onnx.Parse(data, format.Limits{HeaderBytes: 1 << 24})
			if err != nil {
				t.Skip()
			}
			return m
		}
		r, err := Inspect(parse())
		if err != nil {
			return // there is no graph
		}
		for _, o := range []Options{{}, {Form: Inline}, {Form: Attention}, {Form: Custom, Nodes: []string{"output"}}, {Patterns: patterns}} {
			m := parse()
			if _, err := Inject(m, o); err != nil {
				continue
			}
			again, err := Inspect(m)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Problems) == 0 && len(again.Problems) > 0 {
				t.Errorf("%+v: %s", o, again.Problems[0])
			}
		}
	})
}
