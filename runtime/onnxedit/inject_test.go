package onnxedit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/x448/float16"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/onnxbody"
	"github.com/firstpassage/fpa/testmodels/onnxtest"
)

// feeds draws inputs of model for a batch of 2; some positions are skipped.
func feeds(rng *rand.Rand, past bool, steps, slots int) []onnxtest.Tensor {
	const batch = 2
	normals := func(name string, shape ...int64) onnxtest.Tensor {
		n := int64(1)
		for _, d := range shape {
			n *= d
		}
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
		return onnxtest.Float32(name, v, shape...)
	}
	t, p := int64(steps), int64(slots)
	levels := func(name string, n int64) onnxtest.Tensor {
		v := make([]float32, batch*keyHeads*n)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
			if rng.IntN(10) == 0 {
				v[i] = float32(math.Inf(1))
			}
		}
		return onnxtest.Float32(name, v, batch, keyHeads, n)
	}
	list := []onnxtest.Tensor{
		normals("query", batch, queryHeads, t, width), normals("key", batch, keyHeads, t, width), normals("value", batch, keyHeads, t, width),
		normals("field", batch, keyHeads, t), levels("level", t),
	}
	if past {
		list = append(list, normals("past_key", batch, keyHeads, p, width), normals("past_value", batch, keyHeads, p, width),
			levels("past_level", p), normals("past_low", batch, keyHeads, p))
	}
	return list
}

// same fails unless two runs gave the same within float32's rounding. Infinities must be
// the same.
func same(t *testing.T, what string, got, want []onnxtest.Tensor, within float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d outputs, expected %d", what, len(got), len(want))
	}
	for i := range got {
		if !slices.Equal(got[i].Shape, want[i].Shape) {
			t.Fatalf("%s: %s has shape %v, expected %v", what, got[i].Name, got[i].Shape, want[i].Shape)
		}
		a, b := floats(t, got[i]), floats(t, want[i])
		for j := range a {
			if !(math.Abs(a[j]-b[j]) <= within) && a[j] != b[j] {
				t.Errorf("%s: element %d of %s is %g, expected %g", what, j, got[i].Name, a[j], b[j])
				break
			}
		}
	}
}

// floats are the elements, of float16 too.
func floats(t *testing.T, x onnxtest.Tensor) []float64 {
	if x.Type != "float16" {
		return x.Floats(t)
	}
	var v []float64
	for i := 0; i < len(x.Data); i += 2 {
		v = append(v, float64(float16.Frombits(uint16(x.Data[i])|uint16(x.Data[i+1])<<8).Float32()))
	}
	return v
}

// runs checks a model and runs it.
func runs(t *testing.T, p *onnxtest.Python, m *onnx.Model, in ...[]onnxtest.Tensor) [][]onnxtest.Tensor {
	t.Helper()
	path := write(t, m)
	p.Check(t, path)
	s := p.Load(t, path, onnxtest.Runtime)
	var out [][]onnxtest.Tensor
	for _, x := range in {
		out = append(out, s.Run(t, x))
	}
	return out
}

// runForms changes a model from one form into each other and runs all.
func runForms(t *testing.T, p *onnxtest.Python) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, past := range []bool{false, true} {
		m := model(t, past, 23)
		short, long := feeds(rng, past, 3, 4), feeds(rng, past, 70, 9)
		want := runs(t, p, m, short, long)
		for _, form := range []string{Function, Inline, Attention} {
			got, r := inject(t, m, Options{Form: form})
			if r.Form != form || len(r.Replaced) != 1 {
				t.Errorf("%+v", r)
			}
			if form != Function && (len(got.Functions) > 0 || opsetOf(got.Opsets, onnxbody.Domain) != 0) {
				t.Errorf("%s: the function or the operator set is still there", form)
			}
			for i, out := range runs(t, p, got, short, long) {
				same(t, fmt.Sprintf("%s, past %v, input %d", form, past, i), out, want[i], 2e-6)
			}
		}
		// To the bare node and back again it is the same file.
		bare, _ := inject(t, m, Options{Form: Custom})
		if r := inspect(t, bare); r.Function != FunctionAbsent {
			t.Errorf("custom: the function is %s", r.Function)
		}
		back, _ := inject(t, bare, Options{})
		first, _ := inject(t, m, Options{})
		if string(encode(t, back)) != string(encode(t, first)) {
			t.Error("with the function again, the model is another one")
		}
	}
}

// runInlinePatternRound puts the node back in place of its own standard operators,
// with all inputs and outputs.
func runInlinePatternRound(t *testing.T, p *onnxtest.Python) {
	rng := rand.New(rand.NewPCG(3, 4))
	m := model(t, true, 21)
	in := feeds(rng, true, 70, 9)
	inline, _ := inject(t, m, Options{Form: Inline})
	want := runs(t, p, inline, in)
	pattern, err := ParsePattern("query=query,key=key,value=value,field=field,level=level,slope=slope," +
		"past_key=past_key,past_value=past_value,past_level=past_level,past_low=past_low," +
		"output=output,present_key=present_key,present_value=present_value,present_level=present_level,present_low=present_low")
	if err != nil {
		t.Fatal(err)
	}
	back, r := inject(t, inline, Options{Patterns: pattern})
	if len(back.Graph.Nodes) != 1 || !isOperator(theNode(back)) || r.Replaced[0].Removed["If"] != 1 {
		t.Errorf("%d nodes are left: %+v", len(back.Graph.Nodes), r)
	}
	same(t, "pattern", runs(t, p, back, in)[0], want[0], 2e-6)
}

// runMixedPast gives one function to nodes with and without a past.
func runMixedPast(t *testing.T, p *onnxtest.Python) {
	rng := rand.New(rand.NewPCG(5, 6))
	m := model(t, true, 21)
	n := theNode(m)
	m.Graph.Nodes = append(m.Graph.Nodes, &onnx.Node{
		Domain: onnxbody.Domain, OpType: onnxbody.Name, Name: "fresh", Inputs: slices.Clone(n.Inputs[:6]), Outputs: []string{"fresh"},
	})
	m.Graph.Outputs = append(m.Graph.Outputs, &onnx.ValueInfo{Name: "fresh", Type: m.Graph.Outputs[0].Type})
	if r := inspect(t, m); len(r.Problems) != 1 || !strings.Contains(r.Problems[0].Text, "the model's function takes the past") {
		t.Errorf("%+v", r.Problems)
	}
	in := feeds(rng, true, 5, 6)
	inline, _ := inject(t, m, Options{Form: Inline})
	function, _ := inject(t, m, Options{})
	same(t, "function", runs(t, p, function, in)[0], runs(t, p, inline, in)[0], 2e-6)
}

// runNested reaches nodes in the branches of an If and in functions.
func runNested(t *testing.T, p *onnxtest.Python) {
	rng := rand.New(rand.NewPCG(7, 8))
	in := feeds(rng, false, 5, 0)
	want := runs(t, p, model(t, false, 21), in)[0]
	for _, form := range []string{Function, Inline} {
		m, r := inject(t, wrapped(t), Options{Form: form})
		if len(r.Replaced) != 2 {
			t.Errorf("%+v", r)
		}
		for which := range 2 {
			x := append(slices.Clone(in), onnxtest.Tensor{Name: "which", Type: "bool", Shape: []int64{}, Data: []byte{byte(which)}})
			same(t, fmt.Sprintf("%s, which %d", form, which), runs(t, p, m, x)[0], want, 2e-6)
		}
	}
}

// runPlaceholders takes nodes of other operators.
func runPlaceholders(t *testing.T, p *onnxtest.Python) {
	rng := rand.New(rand.NewPCG(9, 10))
	in := feeds(rng, false, 5, 0)
	m := model(t, false, 21)
	want := runs(t, p, m, in)[0]
	n := theNode(m)
	n.Domain, n.OpType, n.Name, n.Attributes, n.Outputs = "mylib", "fpa", "layer 0, attention", nil, n.Outputs[:1]
	m.Opsets = []onnx.Opset{{Version: 21}, {Domain: "mylib", Version: 1}}
	m.Functions = nil
	for _, o := range []Options{{Placeholders: []string{"mylib::fpa"}}, {Nodes: []string{"layer 0, attention"}}} {
		got, r := inject(t, m, o)
		if r.Replaced[0].Was != "mylib::fpa" || opsetOf(got.Opsets, "mylib") != 0 {
			t.Errorf("%+v, %+v", r, got.Opsets)
		}
		same(t, "placeholder", runs(t, p, got, in)[0], want, 0)
	}
}

// runPassedScale has the node in a function of the model, with the scale as that one's
// attribute.
func runPassedScale(t *testing.T, p *onnxtest.Python) {
	rng := rand.New(rand.NewPCG(19, 20))
	in := feeds(rng, false, 5, 0)
	m := model(t, false, 21)
	theNode(m).Attributes = []*onnx.Attribute{onnx.FloatAttr("scale", 0.7)}
	want, _ := inject(t, m, Options{})
	inner := theNode(clone(t, m))
	inner.Attributes = []*onnx.Attribute{onnx.Ref("scale", "factor", onnx.KindFloat)}
	m.Functions = []*onnx.Function{{
		Domain: "mylib", Name: "block", Inputs: inner.Inputs, Outputs: inner.Outputs[:1], Attributes: []string{"factor"},
		Opsets: []onnx.Opset{{Domain: onnxbody.Domain, Version: onnxbody.Version}}, Nodes: []*onnx.Node{inner},
	}}
	m.Graph.Nodes = []*onnx.Node{{
		Domain: "mylib", OpType: "block", Name: "call", Inputs: inner.Inputs, Outputs: []string{"output"},
		Attributes: []*onnx.Attribute{onnx.FloatAttr("factor", 0.7)},
	}}
	m.Opsets = []onnx.Opset{{Version: 21}, {Domain: "mylib", Version: 1}}
	got, _ := inject(t, m, Options{})
	same(t, "in a function", runs(t, p, got, in)[0], runs(t, p, want, in)[0], 0)
	_, err := Inject(clone(t, m), Options{Form: Inline})
	if err == nil || !strings.Contains(err.Error(), `attribute "scale" is that of the function around it`) {
		t.Errorf("inline: error %v", err)
	}
}

// runHalf runs a model of float16 in the forms that take one.
func runHalf(t *testing.T, p *onnxtest.Python) {
	rng := rand.New(rand.NewPCG(11, 12))
	m := model(t, false, 21)
	for i := range 3 {
		m.Graph.Inputs[i].Type.Elem = onnx.Float16
	}
	m.Graph.Outputs[0].Type.Elem = onnx.Float16
	in := feeds(rng, false, 70, 0)
	for i := range 3 {
		var half []byte
		for _, v := range in[i].Floats(t) {
			b := float16.Fromfloat32(float32(v)).Bits()
			half = append(half, byte(b), byte(b>>8))
		}
		in[i].Type, in[i].Data = "float16", half
	}
	function, _ := inject(t, m, Options{})
	inline, _ := inject(t, m, Options{Form: Inline})
	same(t, "inline", runs(t, p, inline, in)[0], runs(t, p, function, in)[0], 1e-3)
}

// TestKept compares all that Inject has no business with.
func TestKept(t *testing.T) {
	m := load(t, "torch-cached.onnx")
	m.Doc, m.Domain = "a model", "org.example"
	m.Metadata = []onnx.Prop{{Key: "k", Value: "v"}}
	data := encode(t, m)
	// Fields that the schema does not have, of model and graph.
	data = append(data, 0xf2, 0x3f, 3, 'x', 'y', 'z') // field 1022
	m, err := onnx.Parse(data, format.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	rest := func(m *onnx.Model) string {
		m = clone(t, m)
		m.Functions = nil
		m.Graph.Nodes = slices.DeleteFunc(m.Graph.Nodes, isOperator)
		return string(encode(t, m))
	}
	for _, form := range []string{Function, Custom} {
		got, _ := inject(t, m, Options{Form: form})
		if rest(got) != rest(m) {
			t.Errorf("%s: something else of the model has changed", form)
		}
		if !strings.HasSuffix(rest(got), "\xf2\x3f\x03xyz") {
			t.Errorf("%s: the unknown field is gone", form)
		}
	}
	inline, _ := inject(t, m, Options{Form: Inline})
	if got, want := len(inline.Graph.Initializers), len(m.Graph.Initializers); got != want {
		t.Errorf("inline: %d initializers, expected %d", got, want)
	}
	for _, n := range m.Graph.Nodes {
		if !isOperator(n) && !slices.ContainsFunc(inline.Graph.Nodes, func(o *onnx.Node) bool { return o.Name == n.Name }) {
			t.Errorf("inline: node %s is gone", n.Name)
		}
	}
}

func TestInjectErrors(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(m *onnx.Model)
		o     Options
		want  string
	}{
		{"form", nil, Options{Form: "magic"}, `cannot be written as "magic"`},
		{"nothing there", func(m *onnx.Model) {
			*theNode(m) = onnx.Node{OpType: "Identity", Inputs: []string{"query"}, Outputs: []string{"output"}}
		}, Options{}, "no node of ai.firstpassage::FirstPassageAttention, and none of any domain but the standard's; name what stands for it by --placeholder"},
		{"no such placeholder", nil, Options{Placeholders: []string{"mylib::fpa"}}, `no node of "mylib::fpa"`},
		{"no such node", nil, Options{Nodes: []string{"fpa"}}, `no node named "fpa"`},
		{"a value for a node", func(m *onnx.Model) { theNode(m).Name = "fpa" }, Options{Nodes: []string{"output"}},
			`no node named "output"; it is a value, made by node "fpa"`},
		{"two nodes of a name", func(m *onnx.Model) {
			n := *theNode(m)
			n.Outputs = []string{"other"}
			m.Graph.Nodes = append(m.Graph.Nodes, &n)
		}, Options{Nodes: []string{"output"}}, `2 nodes are named "output"`},
		{"old operators", func(m *onnx.Model) { m.Opsets[0].Version = 16 }, Options{}, "the operator set of the standard is 16, the form function needs 17 or later"},
		{"too old for Attention", nil, Options{Form: Attention}, "is 21, the form attention needs 23 or later"},
		{"shapes not known", func(m *onnx.Model) {
			m.Opsets[0].Version, m.IRVersion = 23, 11
			m.Graph.Inputs[3].Type.Dims[1] = onnx.Dim{Param: "heads"}
		}, Options{Form: Attention}, `the field "field" is float[batch, heads, time]; run onnx.shape_inference first`},
		{"types", func(m *onnx.Model) { m.Graph.Inputs[3].Type.Elem = onnx.Float16 }, Options{}, `node "output" (ai.firstpassage::FirstPassageAttention): field "field" is of type FLOAT16, expected FLOAT`},
		{"seven inputs", func(m *onnx.Model) { theNode(m).Inputs = append(theNode(m).Inputs, "query") }, Options{}, "1 of the inputs past_key"},
		{"no outputs", func(m *onnx.Model) { theNode(m).Outputs = nil }, Options{}, "0 outputs, expected 1 to 5"},
		{"attribute", func(m *onnx.Model) {
			theNode(m).Attributes = append(theNode(m).Attributes, onnx.IntAttr("heads", 3))
		}, Options{}, `attribute "heads" is none of the operator's`},
		{"both intervals", func(m *onnx.Model) {
			n := *theNode(m)
			n.Name, n.Outputs, n.Attributes = "second", []string{"other"}, []*onnx.Attribute{onnx.StringAttr("interval", "inclusive")}
			m.Graph.Nodes = append(m.Graph.Nodes, &n)
		}, Options{}, `node "second" (ai.firstpassage::FirstPassageAttention) "inclusive"; a function can have one of them, use --onnx-op inline`},
		{"a model that is none", func(m *onnx.Model) { m.Graph.Outputs[0].Name = "nobody" }, Options{}, `output "nobody": no node of the graph makes it`},
		{"no graph", func(m *onnx.Model) { m.Graph = nil }, Options{}, "no graph"},
	}
	for _, test := range tests {
		m := model(t, false, 21)
		if test.spoil != nil {
			test.spoil(m)
		}
		if _, err := Inject(m, test.o); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, expected %q", test.name, err, test.want)
		}
	}
}

// runBothIntervals is what a function cannot have, inline.
func runBothIntervals(t *testing.T, p *onnxtest.Python) {
	rng := rand.New(rand.NewPCG(13, 14))
	in := feeds(rng, false, 9, 0)
	m := model(t, false, 21)
	n := *theNode(m)
	n.Name, n.Outputs, n.Attributes = "second", []string{"other"}, []*onnx.Attribute{onnx.StringAttr("interval", "inclusive")}
	m.Graph.Nodes = append(m.Graph.Nodes, &n)
	m.Graph.Outputs = append(m.Graph.Outputs, &onnx.ValueInfo{Name: "other", Type: m.Graph.Outputs[0].Type})
	both, _ := inject(t, m, Options{Form: Inline})
	got := runs(t, p, both, in)[0]
	for i, interval := range []string{onnxbody.Exclusive, onnxbody.Inclusive} {
		one := model(t, false, 21)
		theNode(one).Attributes = []*onnx.Attribute{onnx.StringAttr("interval", interval)}
		one, _ = inject(t, one, Options{})
		same(t, interval, got[i:i+1], runs(t, p, one, in)[0], 2e-6)
	}
}
