package onnxedit

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/onnxbody"
)

// sizes of the model that the tests spoil.
const (
	queryHeads = 4
	keyHeads   = 2
	width      = 8
)

// model is a graph that is one node of the operator, with its function; slopes are
// constants.
func model(t testing.TB, past bool, opset int64) *onnx.Model {
	t.Helper()
	b := onnx.NewGraph("main")
	in := onnxbody.Inputs{
		Query: b.Input("query", onnx.TensorOf(onnx.Float, "batch", queryHeads, "time", width)),
		Key:   b.Input("key", onnx.TensorOf(onnx.Float, "batch", keyHeads, "time", width)),
		Value: b.Input("value", onnx.TensorOf(onnx.Float, "batch", keyHeads, "time", width)),
		Field: b.Input("field", onnx.TensorOf(onnx.Float, "batch", keyHeads, "time")),
		Level: b.Input("level", onnx.TensorOf(onnx.Float, "batch", keyHeads, "time")),
		Slope: b.Initializer(onnx.FloatTensor("slope", []float32{1, 0.5})),
	}
	if past {
		in.PastKey = b.Input("past_key", onnx.TensorOf(onnx.Float, "batch", keyHeads, "past", width))
		in.PastValue = b.Input("past_value", onnx.TensorOf(onnx.Float, "batch", keyHeads, "past", width))
		in.PastLevel = b.Input("past_level", onnx.TensorOf(onnx.Float, "batch", keyHeads, "past"))
		in.PastLow = b.Input("past_low", onnx.TensorOf(onnx.Float, "batch", keyHeads, "past"))
	}
	out, err := onnxbody.Node(b, in, onnxbody.Options{Names: onnxbody.OutputNames})
	if err != nil {
		t.Fatal(err)
	}
	b.Output(out.Output, onnx.TensorOf(onnx.Float, "batch", queryHeads, "time", width))
	if past {
		b.Output(out.PresentKey, onnx.TensorOf(onnx.Float, "batch", keyHeads, "total", width))
		b.Output(out.PresentValue, onnx.TensorOf(onnx.Float, "batch", keyHeads, "total", width))
		b.Output(out.PresentLevel, onnx.TensorOf(onnx.Float, "batch", keyHeads, "total"))
		b.Output(out.PresentLow, onnx.TensorOf(onnx.Float, "batch", keyHeads, "total"))
	}
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	f, err := onnxbody.Function(opset, past, onnxbody.Options{})
	if err != nil {
		t.Fatal(err)
	}
	version, err := onnx.IRVersionFor(opset)
	if err != nil {
		t.Fatal(err)
	}
	return &onnx.Model{
		IRVersion: version, Graph: g, Functions: []*onnx.Function{f},
		Opsets: []onnx.Opset{{Version: opset}, {Domain: onnxbody.Domain, Version: onnxbody.Version}},
	}
}

// the node of model.
func theNode(m *onnx.Model) *onnx.Node { return m.Graph.Nodes[0] }

func inspect(t testing.TB, m *onnx.Model) *Report {
	t.Helper()
	r, err := Inspect(m)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestInspect(t *testing.T) {
	for _, past := range []bool{false, true} {
		for _, opset := range []int64{17, 21, 24} {
			r := inspect(t, clone(t, model(t, past, opset)))
			if len(r.Problems)+len(r.Notes) > 0 || r.Function != FunctionCurrent || len(r.Nodes) != 1 || r.Nodes[0].Past != past {
				t.Errorf("past %v, opset %d: %+v", past, opset, r)
			}
			if want := map[bool]int{true: 4}[past]; len(r.States) != want {
				t.Errorf("past %v: %d states, expected %d", past, len(r.States), want)
			}
		}
	}
	m := model(t, true, 21)
	r := inspect(t, m)
	if r.Inputs[0] != (Value{"query", "float[batch, 4, time, 8]"}) || r.States[3] != (State{"past_low", "present_low"}) {
		t.Errorf("%+v", r)
	}
}

// TestInspectProblems spoils a model in many ways; each must be found, and nothing
// else.
func TestInspectProblems(t *testing.T) {
	input := func(m *onnx.Model, name string) *onnx.Type {
		for _, v := range m.Graph.Inputs {
			if v.Name == name {
				return v.Type
			}
		}
		t.Fatalf("no input %s", name)
		return nil
	}
	set := func(m *onnx.Model, a *onnx.Attribute) {
		n := theNode(m)
		for i, old := range n.Attributes {
			if old.Name == a.Name {
				n.Attributes[i] = a
				return
			}
		}
		n.Attributes = append(n.Attributes, a)
	}
	slope := func(v ...float32) func(m *onnx.Model) {
		return func(m *onnx.Model) { m.Graph.Initializers[0] = onnx.FloatTensor("slope", v) }
	}
	tests := []struct {
		name  string
		past  bool
		opset int64 // 0: 21
		spoil func(m *onnx.Model)
		want  []string // in the problem
	}{
		{"no import", false, 0, func(m *onnx.Model) { m.Opsets = m.Opsets[:1] },
			[]string{`node "output" (ai.firstpassage::FirstPassageAttention)`, "no opset_import for domain ai.firstpassage", "fpaconv onnx inject"}},
		{"import of version 2", false, 0, func(m *onnx.Model) { m.Opsets[1].Version = 2 }, []string{"imports version 2 of domain ai.firstpassage, expected 1"}},
		{"other domain", false, 0, func(m *onnx.Model) {
			theNode(m).Domain = "mylib"
			m.Opsets = append(m.Opsets, onnx.Opset{Domain: "mylib", Version: 1})
		}, []string{`domain "mylib", expected ai.firstpassage`, "--placeholder mylib::FirstPassageAttention"}},
		{"other operator", false, 0, func(m *onnx.Model) { theNode(m).OpType = "FirstPassage" }, []string{"no such operator, expected FirstPassageAttention"}},
		{"five inputs", false, 0, func(m *onnx.Model) { theNode(m).Inputs = theNode(m).Inputs[:5] }, []string{"the input slope is missing"}},
		{"no key", false, 0, func(m *onnx.Model) { theNode(m).Inputs[1] = "" }, []string{"the input key is missing"}},
		{"eleven inputs", true, 0, func(m *onnx.Model) { theNode(m).Inputs = append(theNode(m).Inputs, "query") }, []string{"11 inputs, expected 6, or 10"}},
		{"half a past", true, 0, func(m *onnx.Model) { theNode(m).Inputs = theNode(m).Inputs[:8] }, []string{"2 of the inputs past_key", "expected all or none"}},
		{"a hole in the past", true, 0, func(m *onnx.Model) { theNode(m).Inputs[8] = "" }, []string{"3 of the inputs past_key", "expected all or none"}},
		{"six outputs", false, 0, func(m *onnx.Model) { theNode(m).Outputs = append(theNode(m).Outputs, "more") }, []string{"6 outputs, expected at most 5"}},
		{"unknown attribute", false, 0, func(m *onnx.Model) { set(m, onnx.IntAttr("heads", 4)) }, []string{`attribute "heads" is none of the operator's`, "remove it"}},
		{"scale as integer", false, 0, func(m *onnx.Model) { set(m, onnx.IntAttr("scale", 1)) }, []string{"attribute scale is of kind INT, expected FLOAT"}},
		{"scale NaN", false, 0, func(m *onnx.Model) { set(m, onnx.FloatAttr("scale", float32(math.NaN()))) }, []string{"attribute scale is NaN"}},
		{"interval", false, 0, func(m *onnx.Model) { set(m, onnx.StringAttr("interval", "open")) },
			[]string{`attribute interval is "open", expected "exclusive" or "inclusive"`}},
		{"interval of another function", false, 0, func(m *onnx.Model) { set(m, onnx.StringAttr("interval", "inclusive")) },
			[]string{`attribute interval is "inclusive", the model's function is for "exclusive"`}},
		{"cache", false, 0, func(m *onnx.Model) { set(m, onnx.StringAttr("cache", "some")) }, []string{`attribute cache is "some"`}},
		{"cache without bound", false, 0, func(m *onnx.Model) { set(m, onnx.StringAttr("cache", "exact")) }, []string{"without logit_bound"}},
		{"cache without eps", false, 0, func(m *onnx.Model) {
			set(m, onnx.StringAttr("cache", "bounded"))
			set(m, onnx.FloatsAttr("logit_bound", 1, 1, 1, 1))
		}, []string{"attribute cache_eps is <nil>, expected a number above 0"}},
		{"too few bounds", false, 0, func(m *onnx.Model) {
			set(m, onnx.StringAttr("cache", "exact"))
			set(m, onnx.FloatsAttr("logit_bound", 1, 1))
		}, []string{"logit_bound has 2 bounds, expected one for each of the 4 query heads"}},
		{"negative bound", false, 0, func(m *onnx.Model) {
			set(m, onnx.StringAttr("cache", "exact"))
			set(m, onnx.FloatsAttr("logit_bound", 1, 1, 1, -1))
		}, []string{"logit_bound[3] is -1"}},
		{"query of doubles", false, 0, func(m *onnx.Model) { input(m, "query").Elem = onnx.Double }, []string{`query "query" is of type DOUBLE, expected FLOAT, FLOAT16 or BFLOAT16`}},
		{"mixed types", false, 0, func(m *onnx.Model) { input(m, "key").Elem = onnx.Float16 }, []string{`key "key" is of type FLOAT16, the query of type FLOAT`}},
		{"half field", false, 0, func(m *onnx.Model) { input(m, "field").Elem = onnx.Float16 },
			[]string{`field "field" is of type FLOAT16, expected FLOAT`, "running sum in DOUBLE"}},
		{"double slope", false, 0, func(m *onnx.Model) {
			m.Graph.Initializers[0].Type, m.Graph.Initializers[0].Raw = onnx.Double, make([]byte, 16)
		},
			[]string{`slope "slope" is of type DOUBLE, expected FLOAT`}},
		{"half low", true, 0, func(m *onnx.Model) { input(m, "past_low").Elem = onnx.Float16 }, []string{`past_low "past_low" is of type FLOAT16`}},
		{"rank of field", false, 0, func(m *onnx.Model) { *input(m, "field") = *onnx.TensorOf(onnx.Float, "batch", "time") },
			[]string{`field "field" has shape [batch, time], expected 3 dimensions: [B, Hf, T]`}},
		{"positions before heads", false, 0, func(m *onnx.Model) { *input(m, "level") = *onnx.TensorOf(onnx.Float, "batch", 5, keyHeads) },
			[]string{`level "level" has shape [batch, 5, 2], expected [B, Hf, T] with Hf = 2 as in field`}},
		{"key heads", false, 0, func(m *onnx.Model) {
			input(m, "key").Dims[1].Size, input(m, "value").Dims[1].Size = 3, 3
		}, []string{"4 query heads over 3 key heads, expected a multiple", "2 field heads, expected 4 as the query, 3 as the key, or 1"}},
		{"value heads", false, 0, func(m *onnx.Model) { input(m, "value").Dims[1].Size = 4 }, []string{`value "value" has shape [batch, 4, time, 8]`, "Hkv = 2 as in key"}},
		{"past heads", true, 0, func(m *onnx.Model) { input(m, "past_key").Dims[1].Size = 4 }, []string{`past_key "past_key" has shape [batch, 4, past, 8]`}},
		{"key width", false, 0, func(m *onnx.Model) { input(m, "key").Dims[3].Size = 7 }, []string{"D = 8 as in query"}},
		{"field heads", false, 0, func(m *onnx.Model) {
			input(m, "field").Dims[1].Size, input(m, "level").Dims[1].Size = 8, 8
			slope(1, 1, 1, 1, 1, 1, 1, 1)(m)
		}, []string{"8 field heads, expected 4 as the query, 2 as the key, or 1"}},
		{"no heads", false, 0, func(m *onnx.Model) { input(m, "query").Dims[1].Size = 0 }, []string{"a number of heads is 0: query 0"}},
		{"slopes", false, 0, slope(1, 2, 3), []string{`slope "slope" has shape [3], expected [Hf] with Hf = 2 as in field`}},
		{"negative slope", false, 0, slope(1, -2), []string{`slope "slope" of head 1 is -2, expected a finite number of at least 0`}},
		{"infinite slope", false, 0, slope(float32(math.Inf(1)), 2), []string{`slope "slope" of head 0 is +Inf`}},
		{"declared output", false, 0, func(m *onnx.Model) { m.Graph.Outputs[0].Type.Elem = onnx.Float16 },
			[]string{`output "output" is declared as FLOAT16, expected FLOAT`}},
		{"shape of output", false, 0, func(m *onnx.Model) { m.Graph.Outputs[0].Type.Dims[1].Size = 2 }, []string{`output "output" has shape [batch, 2, time, 8]`}},
		{"function without past", true, 0, func(m *onnx.Model) { *m.Functions[0] = *model(t, false, 21).Functions[0] }, []string{"the model's function takes no past"}},
		{"function with past", false, 0, func(m *onnx.Model) { *m.Functions[0] = *model(t, true, 21).Functions[0] }, []string{"the model's function takes the past"}},
		{"attributes left out", false, 17, func(m *onnx.Model) { theNode(m).Attributes = theNode(m).Attributes[:1] },
			[]string{`attribute "interval" is missing, for which the model's function has no default`}},
		{"defaults in an old version", false, 0, func(m *onnx.Model) { m.IRVersion = 8 }, []string{"found 8"}},
		{"function of seven inputs", false, 0, func(m *onnx.Model) { m.Functions[0].Inputs = append(m.Functions[0].Inputs, "more") }, []string{"it takes 7 inputs, expected 6"}},
		{"function of one output", false, 0, func(m *onnx.Model) { m.Functions[0].Outputs = m.Functions[0].Outputs[:1] }, []string{"it gives 1 outputs, expected 5"}},
		{"a rule of the format", false, 0, func(m *onnx.Model) { m.Graph.Outputs[0].Name = "nobody" }, []string{`output "nobody": no node of the graph makes it`}},
		{"a cycle", false, 0, func(m *onnx.Model) { theNode(m).Inputs[0] = "output" }, []string{"cycle"}},
	}
	for _, test := range tests {
		opset := test.opset
		if opset == 0 {
			opset = 21
		}
		m := model(t, test.past, opset)
		test.spoil(m)
		r := inspect(t, m)
		var found []string
		for _, p := range r.Problems {
			found = append(found, p.String())
		}
		text := strings.Join(found, "\n")
		for _, want := range test.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: found\n%s\nexpected %q", test.name, text, want)
			}
		}
		if len(found) == 0 {
			t.Errorf("%s: nothing found", test.name)
		}
		if len(found) > 2 {
			t.Errorf("%s: one mistake gave %d problems:\n%s", test.name, len(found), text)
		}
	}
}

func TestInspectNotes(t *testing.T) {
	notes := func(m *onnx.Model) string {
		var list []string
		r := inspect(t, m)
		for _, p := range r.Problems {
			t.Errorf("problem: %s", p)
		}
		for _, n := range r.Notes {
			list = append(list, n.String())
		}
		return strings.Join(list, "\n")
	}
	m := model(t, false, 21)
	m.Functions = nil
	if got := notes(m); !strings.Contains(got, "it runs only where the operator is registered") {
		t.Errorf("without function: %q", got)
	}
	m = model(t, false, 21)
	f := m.Functions[0]
	f.Nodes = append([]*onnx.Node{{OpType: "Identity", Inputs: []string{"query"}, Outputs: []string{"unused"}}}, f.Nodes...)
	if got := notes(m); !strings.Contains(got, "its body is not the one that this version of fpaconv writes") || inspect(t, m).Function != FunctionOther {
		t.Errorf("another body: %q", got)
	}
	m = model(t, false, 21)
	m.Graph.Nodes[0] = &onnx.Node{Domain: "com.microsoft", OpType: "GroupQueryAttention", Inputs: []string{"query"}, Outputs: []string{"output"}}
	m.Opsets = append(m.Opsets, onnx.Opset{Domain: "com.microsoft", Version: 1})
	if got := notes(m); !strings.Contains(got, `no node of ai.firstpassage::FirstPassageAttention; its operators beside the standard's are "com.microsoft::GroupQueryAttention"`) {
		t.Errorf("no node: %q", got)
	}
	m = model(t, true, 21)
	m.Graph.Outputs = m.Graph.Outputs[:4]
	if got := notes(m); !strings.Contains(got, `the input "past_low" carries a past, but no output`) {
		t.Errorf("a state that ends: %q", got)
	}
}

// TestInspectPlaces looks at nodes in functions and nested graphs.
func TestInspectPlaces(t *testing.T) {
	m := wrapped(t)
	for _, n := range m.Functions[1].Nodes {
		if isOperator(n) {
			n.Inputs[1] = ""
		}
	}
	r := inspect(t, m)
	if len(r.Problems) == 0 || r.Problems[0].Place != `function "mylib::block": node "output" (ai.firstpassage::FirstPassageAttention)` {
		t.Errorf("%+v", r.Problems)
	}
	m = wrapped(t)
	branch := theNode(m).Attribute("then_branch").Value.(*onnx.Graph)
	i := slices.IndexFunc(branch.Nodes, isOperator)
	branch.Nodes[i].Inputs[1] = ""
	r = inspect(t, m)
	if len(r.Problems) == 0 || !strings.HasPrefix(r.Problems[0].Place, `node "output" (If): node `) {
		t.Errorf("%+v", r.Problems)
	}
}

func TestInspectWithoutGraph(t *testing.T) {
	if _, err := Inspect(&onnx.Model{IRVersion: 8}); err == nil {
		t.Error("no error for a model without graph")
	}
}

// wrapped is a model whose nodes of the operator, without their function, sit in the
// branches of an If and in a function of the model: if the scalar "which" is true,
// the node in place, else the function. Its main graph has one node.
func wrapped(t testing.TB) *onnx.Model {
	t.Helper()
	m := model(t, false, 21)
	call := theNode(m)
	f := &onnx.Function{
		Domain: "mylib", Name: "block", Inputs: []string{"query", "key", "value", "field", "level", "slope"}, Outputs: []string{"output"},
		Opsets: []onnx.Opset{{Domain: onnxbody.Domain, Version: 1}}, Nodes: []*onnx.Node{clone(t, m).Graph.Nodes[0]},
	}
	b := onnx.NewGraph("main")
	for _, v := range m.Graph.Inputs {
		b.Input(v.Name, v.Type)
	}
	which := b.Input("which", onnx.TensorOf(onnx.Bool))
	b.Initializer(m.Graph.Initializers[0])
	out := b.Op("If", which, onnx.As("output"))
	b.Output(out, m.Graph.Outputs[0].Type)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	branch := func(name string, n *onnx.Node) *onnx.Attribute {
		output := name + "_output"
		n.Outputs = []string{output}
		v := &onnx.ValueInfo{Name: output, Type: m.Graph.Outputs[0].Type}
		return &onnx.Attribute{Name: name, Kind: onnx.KindGraph, Value: &onnx.Graph{Name: name, Nodes: []*onnx.Node{n}, Outputs: []*onnx.ValueInfo{v}}}
	}
	call.Name = "inner"
	g.Nodes[0].Attributes = []*onnx.Attribute{
		branch("then_branch", call),
		branch("else_branch", &onnx.Node{Domain: "mylib", OpType: "block", Inputs: f.Inputs}),
	}
	m.Graph = g
	m.Functions = append(m.Functions, f)
	m.Opsets = append(m.Opsets, onnx.Opset{Domain: "mylib", Version: 1})
	return m
}
