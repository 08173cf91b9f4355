package onnx_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/onnx"
)

// A linear layer, written to a file and read back.
func Example() {
	b := onnx.NewGraph("main")
	x := b.Input("x", onnx.TensorOf(onnx.Float, "batch", 2))
	w := b.Initializer(onnx.FloatTensor("w", []float32{1, 2, 3, 4, 5, 6}, 2, 3))
	y := b.Op("MatMul", x, w)
	y = b.Op("Add", y, b.Scalar(onnx.Float, 0.5), onnx.As("y"))
	b.Output(y, onnx.TensorOf(onnx.Float, "batch", 3))
	g, err := b.Graph()
	if err != nil {
		log.Fatal(err)
	}
	m := &onnx.Model{
		IRVersion:    8,
		ProducerName: "example",
		Opsets:       []onnx.Opset{{Version: 17}},
		Metadata:     []onnx.Prop{{Key: "made from", Value: "nothing"}},
		Graph:        g,
	}

	dir, err := os.MkdirTemp("", "onnx")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "linear.onnx")
	if err := onnx.WriteFile(path, m, onnx.WriteOptions{}); err != nil {
		log.Fatal(err)
	}

	f, err := onnx.Open(path, format.Limits{})
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	if err := f.Check(); err != nil {
		log.Fatal(err)
	}
	for _, n := range f.Model.Graph.Nodes {
		fmt.Println(n.OpType, n.Inputs, n.Outputs)
	}
	values, err := f.Model.Graph.Initializer("w").Float32s()
	fmt.Println(values, err)
	// Output:
	// MatMul [x w] [MatMul_0]
	// Add [MatMul_0 const_0] [y]
	// [1 2 3 4 5 6] <nil>
}

// The body of a Scan that reads a value of the graph around it: a running sum
// of x along its first axis, times factor.
func ExampleBuilder_Sub() {
	b := onnx.NewGraph("main")
	x := b.Input("x", onnx.TensorOf(onnx.Float, "time", "width"))
	factor := b.Input("factor", onnx.TensorOf(onnx.Float))
	start := b.Input("start", onnx.TensorOf(onnx.Float, "width"))

	step := b.Sub("step")
	sum := step.Input("sum", onnx.TensorOf(onnx.Float, "width"))
	row := step.Input("row", onnx.TensorOf(onnx.Float, "width"))
	next := step.Op("Add", sum, row)
	step.Output(next, nil)
	step.Output(step.Op("Mul", next, factor), nil)

	out := b.Ops(2, "Scan", start, x, onnx.Body("body", step), onnx.IntAttr("num_scan_inputs", 1))
	b.Output(out[0], onnx.TensorOf(onnx.Float, "width"))
	b.Output(out[1], onnx.TensorOf(onnx.Float, "time", "width"))
	g, err := b.Graph()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(onnx.Check(&onnx.Model{IRVersion: 8, Opsets: []onnx.Opset{{Version: 17}}, Graph: g}))
	// Output:
	// <nil>
}

// An operator of one's own, and the function that defines it where a program
// does not know it.
func ExampleNewFunction() {
	f := onnx.NewFunction("com.example", "ScaledSoftmax")
	x := f.Input("x", nil)
	f.Attribute("scale")
	scale := f.Op("Constant", onnx.Ref("value_float", "scale", onnx.KindFloat))
	f.Output(f.Op("Softmax", f.Op("Mul", x, scale), onnx.IntAttr("axis", -1)), nil)
	function, err := f.Function(onnx.Opset{Version: 17})
	if err != nil {
		log.Fatal(err)
	}

	b := onnx.NewGraph("main")
	in := b.Input("x", onnx.TensorOf(onnx.Float, "n"))
	b.Output(b.Op("com.example::ScaledSoftmax", in, onnx.FloatAttr("scale", 2)), onnx.TensorOf(onnx.Float, "n"))
	g, err := b.Graph()
	if err != nil {
		log.Fatal(err)
	}
	m := &onnx.Model{
		IRVersion: 8,
		Opsets:    []onnx.Opset{{Version: 17}, {Domain: "com.example", Version: 1}},
		Graph:     g,
		Functions: []*onnx.Function{function},
	}
	fmt.Println(onnx.Check(m))
	m.Opsets = m.Opsets[:1]
	fmt.Println(onnx.Check(m))
	// Output:
	// <nil>
	// node "ScaledSoftmax_0" (com.example::ScaledSoftmax): no opset_import for domain "com.example"; add one with the version of its operators
}
