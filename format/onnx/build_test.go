package onnx

import (
	"math"
	"reflect"
	"strings"
	"testing"
)

func TestBuilderNames(t *testing.T) {
	b := NewGraph("g")
	x := b.Input("x", TensorOf(Float, "n"))
	done := b.Scope("layer.0")
	inner := b.Scope("attn")
	first := b.Op("Add", x, b.Scalar(Float, 1))
	inner()
	second := b.Op("Add", x, first)
	sub := b.Sub("body")
	third := sub.Op("Add", x, sub.Scalar(Float, 2))
	done()
	b.Op("Add", x, x, As("Add_0"))
	fourth := b.Op("Add", x, x) // passes over the name that is taken
	got := []Value{first, second, third, fourth}
	want := []Value{"layer.0/attn/Add_0", "layer.0/Add_0", "layer.0/Add_1", "Add_1"}
	if !reflect.DeepEqual(got, want) || b.Err() != nil {
		t.Errorf("%q, %v, expected %q", got, b.Err(), want)
	}
	if g, err := b.Graph(); err != nil || g.Nodes[0].Name != "layer.0/attn/Add_0" {
		t.Errorf("%v, %v", g.Nodes[0], err)
	}
}

// TestBuilderConstants: equal constants are one, also those of a graph around.
func TestBuilderConstants(t *testing.T) {
	for _, b := range []*Builder{NewGraph("g"), NewFunction("d", "f")} {
		sub := b.Sub("body")
		own := sub.Scalar(Float, 3)
		one := b.Scalar(Float, 1)
		if b.Scalar(Float, 1) != one || sub.Scalar(Float, 1) != one {
			t.Error("two values for one constant")
		}
		// -0 is another bit pattern, 1-D another shape, F16 another type, and the
		// body's constant is not visible outside.
		for _, other := range []Value{b.Scalar(Float, 3), b.Scalar(Float16, 1), b.Floats(1), b.Scalar(Float, math.Copysign(0, -1)), b.Scalar(Float, 0)} {
			if other == one || other == own {
				t.Errorf("%q stands for two constants", other)
			}
		}
		if inits, nodes := len(b.graph.Initializers), len(b.graph.Nodes); inits+nodes != 6 || (inits == 0) != (b.fn != nil) {
			t.Errorf("%d initializers, %d nodes", inits, nodes)
		}
	}
}

func TestBuilderOptional(t *testing.T) {
	b := NewGraph("g")
	x := b.Input("x", TensorOf(Float))
	out := b.Ops(3, "d::Op", None, Inputs(x, None, x), None, None, As("", "y"))
	n := b.graph.Nodes[0]
	if n.Domain != "d" || n.OpType != "Op" || !reflect.DeepEqual(n.Inputs, []string{"", "x", "", "x"}) ||
		!reflect.DeepEqual(n.Outputs, []string{"", "y", "Op_0"}) || !reflect.DeepEqual(out, []Value{"", "y", "Op_0"}) {
		t.Errorf("%+v, %q", n, out)
	}
}

func TestBuilderMistakes(t *testing.T) {
	for want, fill := range map[string]func(b, f *Builder){
		`the name "x"`:             func(b, _ *Builder) { b.Input("x", nil); b.Input("x", nil) },
		`name "y"`:                 func(b, _ *Builder) { b.Op("A", As("y")); b.Sub("s").Op("A", As("y")) },
		"2 names for 1 outputs":    func(b, _ *Builder) { b.Op("A", As("y", "z")) },
		"no initializers":          func(_, f *Builder) { f.Initializer(FloatTensor("w", nil)) },
		"only a function declares": func(b, _ *Builder) { b.Attribute("a") },
		"only a function":          func(b, _ *Builder) { b.Default(IntAttr("a", 1)) },
		"does not fit":             func(b, _ *Builder) { b.Scalar(Uint8, 300) },
	} {
		b, f := NewGraph("g"), NewFunction("d", "f")
		fill(b, f)
		_, err := b.Graph()
		if err == nil {
			_, err = f.Function()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected an error with %q", err, want)
		}
	}
	if _, err := NewGraph("g").Function(); err == nil {
		t.Error("a function of a graph")
	}
	if _, err := NewFunction("d", "f").Graph(); err == nil {
		t.Error("a graph of a function")
	}
	defer func() {
		if recover() == nil {
			t.Error("a dimension of type float64")
		}
	}()
	TensorOf(Float, 1.5)
}
