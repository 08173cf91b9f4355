package onnxgo

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/pkg/core/tensors"

	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/testmodels/onnxtest"
)

var update = flag.Bool("update", false, "write testdata/operators.json anew, by ONNX Runtime")

// operatorCase is a model around one operator.
type operatorCase struct {
	name   string
	opset  int64 // 0: 18
	inputs []any // values of gomlx tensors, named a, b, c, ...
	build  func(b *onnx.Builder, in []onnx.Value) []onnx.Value
}

// op is a case of one node with one output.
func op(name string, inputs []any, args ...onnx.Arg) operatorCase {
	return operatorCase{name: name, inputs: inputs, build: func(b *onnx.Builder, in []onnx.Value) []onnx.Value {
		operator, _, _ := strings.Cut(name, " ")
		return []onnx.Value{b.Op(operator, append([]onnx.Arg{onnx.Inputs(in...)}, args...)...)}
	}}
}

func (c operatorCase) at(opset int64) operatorCase { c.opset = opset; return c }

func in(values ...any) []any { return values }

// wave is a tensor of numbers between -2 and 2, none of them a special one.
func wave(dims ...int) *tensors.Tensor {
	n := 1
	for _, d := range dims {
		n *= d
	}
	flat := make([]float32, n)
	for i := range flat {
		flat[i] = float32(2 * math.Sin(1.7*float64(i)+0.3*float64(n)))
	}
	return tensors.FromFlatDataAndDimensions(flat, dims...)
}

func ints64(v ...int64) func(b *onnx.Builder) onnx.Value {
	return func(b *onnx.Builder) onnx.Value { return b.Int64s(v...) }
}

// with is a case whose last inputs are constants.
func with(name string, inputs []any, constants []func(b *onnx.Builder) onnx.Value, args ...onnx.Arg) operatorCase {
	return operatorCase{name: name, inputs: inputs, build: func(b *onnx.Builder, in []onnx.Value) []onnx.Value {
		operator, _, _ := strings.Cut(name, " ")
		for _, c := range constants {
			in = append(in, c(b))
		}
		return []onnx.Value{b.Op(operator, append([]onnx.Arg{onnx.Inputs(in...)}, args...)...)}
	}}
}

type constants = []func(b *onnx.Builder) onnx.Value

func scalar(v float64) func(b *onnx.Builder) onnx.Value {
	return func(b *onnx.Builder) onnx.Value { return b.Scalar(onnx.Float, v) }
}

func none(*onnx.Builder) onnx.Value { return onnx.None }

func operatorCases() []operatorCase {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	x := wave(2, 3)
	special := []float32{-inf, -2.5, -1.5, -0.5, 0, 0.5, 1.5, 2.5, 3.2, inf}
	whole := []int64{-7, -3, 0, 5, 9}
	var cases []operatorCase
	for _, n := range []string{"Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Exp", "Sin", "Cos", "Erf", "Tanh", "Sigmoid", "Reciprocal", "Softplus", "Relu", "Mish", "Softsign", "Elu", "LeakyRelu", "HardSigmoid"} {
		cases = append(cases, op(n, in(x)))
	}
	for _, n := range []string{"Round", "Relu", "Sigmoid", "Tanh", "Abs", "IsInf"} {
		cases = append(cases, op(n+" of special values", in(special)))
	}
	for _, n := range []string{"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean"} {
		cases = append(cases, op(n, in(x, wave(2, 3))), op(n+" broadcast", in(wave(2, 1, 3), wave(4, 1))))
	}
	for _, n := range []string{"Add", "Sub", "Mul", "Div"} {
		cases = append(cases, op(n+" of integers", in(whole, []int64{2})))
	}
	for _, n := range []string{"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"} {
		cases = append(cases, op(n, in(whole, []int64{0})))
	}
	for _, n := range []string{"And", "Or", "Xor"} {
		cases = append(cases, op(n, in([]bool{false, false, true, true}, []bool{false, true, false, true})))
	}
	image, stripes := wave(2, 4, 6, 5), wave(1, 2, 7)
	cases = append(cases,
		op("Sqrt", in([]float32{0, 1, 2.25, 1e-6})), op("Log", in([]float32{1, 2.25, 1e-6})),
		op("Not", in([]bool{true, false})), op("IsNaN", in([]float32{1, nan, inf})),
		op("IsInf positive", in(special), onnx.IntAttr("detect_negative", 0)),
		op("IsInf negative", in(special), onnx.IntAttr("detect_positive", 0)),
		op("Pow whole exponent", in(x, []int64{2}), onnx.As("y")),
		op("Max of three", in(x, wave(1, 3), wave(2, 1))),
		op("PRelu", in(x, wave(3))),
		op("Elu alpha", in(x), onnx.FloatAttr("alpha", 0.5)),
		op("LeakyRelu alpha", in(x), onnx.FloatAttr("alpha", 0.3)),
		op("Gelu", in(x)).at(20), op("Gelu tanh", in(x), onnx.StringAttr("approximate", "tanh")).at(20),
		with("Clip", in(x), constants{scalar(-1), scalar(1)}), with("Clip above", in(x), constants{none, scalar(0.5)}),
		op("Clip old", in(x), onnx.FloatAttr("min", -0.5)).at(10),
		op("Mod", in(whole, []int64{3})), op("Mod negative", in(whole, []int64{-4})),
		op("Mod fmod", in(x, wave(2, 3)), onnx.IntAttr("fmod", 1)),
		op("Cast to int", in(x), onnx.To(onnx.Int32)), op("Cast to bool", in(whole), onnx.To(onnx.Bool)),
		op("Cast from bool", in([]bool{true, false}), onnx.To(onnx.Double)), op("CastLike", in(whole, x)),
		op("Where", in([]bool{true, false, true}, wave(2, 3), wave(1, 1))),
		op("Identity", in(x)),

		op("MatMul", in(wave(2, 3), wave(3, 4))), op("MatMul batch", in(wave(2, 1, 2, 3), wave(5, 3, 4))),
		op("MatMul vector", in(wave(3), wave(2, 3, 4))), op("MatMul vectors", in(wave(3), wave(3))),
		op("MatMul by vector", in(wave(2, 3, 4), wave(4))), op("MatMul by matrix", in(wave(2, 3, 4), wave(4, 5))),
		op("Gemm", in(wave(2, 3), wave(3, 4), wave(4))),
		op("Gemm turned", in(wave(3, 2), wave(4, 3), wave(2, 1)), onnx.IntAttr("transA", 1), onnx.IntAttr("transB", 1), onnx.FloatAttr("alpha", 0.5), onnx.FloatAttr("beta", 2)),

		op("Softmax", in(wave(2, 3, 4))), op("Softmax axis", in(wave(2, 3, 4)), onnx.IntAttr("axis", 1)),
		op("Softmax old", in(wave(2, 3, 4))).at(11), op("LogSoftmax", in(wave(2, 3, 4))), op("LogSoftmax old", in(wave(2, 3, 4)), onnx.IntAttr("axis", 2)).at(11),
		op("ArgMax", in(x)), op("ArgMax flat", in([]float32{1, 3, 3, 2}), onnx.IntAttr("keepdims", 0)), op("ArgMin", in(x), onnx.IntAttr("axis", -1)),
		with("CumSum", in(x), constants{ints64(1)}), with("CumSum reverse", in(x), constants{ints64(-1)}, onnx.IntAttr("reverse", 1)),
		with("CumSum exclusive", in(x), constants{ints64(1)}, onnx.IntAttr("exclusive", 1)),
		with("CumSum both", in(x), constants{ints64(1)}, onnx.IntAttr("exclusive", 1), onnx.IntAttr("reverse", 1)),

		with("Reshape", in(wave(2, 3, 4)), constants{ints64(0, -1)}), with("Reshape scalar", in(wave(1, 1)), constants{ints64()}),
		op("Transpose", in(wave(2, 3, 4))), op("Transpose perm", in(wave(2, 3, 4)), onnx.IntsAttr("perm", 1, 2, 0)),
		op("Concat", in(wave(2, 3), wave(2, 1)), onnx.IntAttr("axis", -1)),
		with("Slice", in(wave(4, 5)), constants{ints64(1, -3), ints64(math.MaxInt64, 5), ints64(0, 1), ints64(2, 1)}),
		with("Slice backwards", in(wave(4, 5)), constants{ints64(-1, 10), ints64(math.MinInt64, 1), ints64(0, 1), ints64(-1, -2)}),
		with("Slice to nothing", in(wave(4, 5)), constants{ints64(3), ints64(3), ints64(1)}),
		op("Slice old", in(wave(4, 5)), onnx.IntsAttr("starts", 1, -2), onnx.IntsAttr("ends", 3, 100)).at(9),
		with("Squeeze", in(wave(2, 1, 3, 1)), constants{ints64(-1)}), op("Squeeze all", in(wave(2, 1, 3, 1))),
		op("Squeeze old", in(wave(2, 1, 3)), onnx.IntsAttr("axes", 1)).at(11),
		with("Unsqueeze", in(x), constants{ints64(0, -1)}), op("Unsqueeze old", in(x), onnx.IntsAttr("axes", 3, 0)).at(11),
		op("Flatten", in(wave(2, 3, 4)), onnx.IntAttr("axis", 2)), op("Flatten first", in(wave(2, 3)), onnx.IntAttr("axis", 0)),
		with("Expand", in(wave(3, 1)), constants{ints64(2, 1, 4)}), with("Tile", in(x), constants{ints64(2, 3)}),
		with("Pad", in(x), constants{ints64(0, 1, 2, -1), scalar(7)}), with("Pad default", in(x), constants{ints64(1, 0, 0, 1)}),
		with("Pad edge", in(x), constants{ints64(1, 2, 2, 0)}, onnx.StringAttr("mode", "edge")),
		with("Pad reflect", in(wave(3, 4)), constants{ints64(1, 2, 2, 3)}, onnx.StringAttr("mode", "reflect")),
		op("Pad old", in(x), onnx.IntsAttr("pads", 0, 1, 0, 0), onnx.FloatAttr("value", 3)).at(10),
		op("Trilu", in(wave(2, 3, 4))), with("Trilu lower", in(wave(4, 3)), constants{func(b *onnx.Builder) onnx.Value { return b.Scalar(onnx.Int64, -1) }}, onnx.IntAttr("upper", 0)),
		op("Gather", in(wave(4, 3), [][]int64{{0, -1}, {2, 2}})), op("Gather axis", in(wave(2, 4, 3), []int32{3, 0}), onnx.IntAttr("axis", 1)),
		with("Gather scalar", in(wave(4, 3)), constants{func(b *onnx.Builder) onnx.Value { return b.Scalar(onnx.Int64, -2) }}),
		op("GatherElements", in(wave(3, 3), [][]int64{{1, -1, 0}, {2, 0, 0}}), onnx.IntAttr("axis", 0)),
		op("GatherND", in(wave(2, 3, 4), [][]int64{{0, 1}, {1, -1}})), op("GatherND batch", in(wave(2, 3, 4), [][]int64{{2}, {0}}), onnx.IntAttr("batch_dims", 1)),
		op("ScatterElements", in(wave(3, 3), [][]int64{{1, 0, 2}, {0, 2, 1}}, wave(2, 3)), onnx.IntAttr("axis", 1)),
		with("OneHot", in([]int64{0, 2, -1}), constants{func(b *onnx.Builder) onnx.Value { return b.Scalar(onnx.Int64, 3) }, func(b *onnx.Builder) onnx.Value { return b.Floats(-1, 5) }}),
		op("Shape", in(wave(2, 3, 4)), onnx.IntAttr("start", 1)), op("Size", in(wave(2, 3))),
		operatorCase{name: "Range", inputs: in(x), build: func(b *onnx.Builder, v []onnx.Value) []onnx.Value {
			n := b.Op("Size", v[0])
			return []onnx.Value{b.Op("Range", b.Scalar(onnx.Int64, 1), n, b.Scalar(onnx.Int64, 2)), b.Op("Range", b.Scalar(onnx.Float, 1), b.Scalar(onnx.Float, 0), b.Scalar(onnx.Float, -0.3))}
		}},
		operatorCase{name: "ConstantOfShape", inputs: in(x), build: func(b *onnx.Builder, v []onnx.Value) []onnx.Value {
			return []onnx.Value{b.Op("ConstantOfShape", b.Op("Shape", v[0]), onnx.TensorAttr("value", onnx.Int64Tensor("", []int64{5}))), b.Op("ConstantOfShape", b.Op("Shape", v[0]))}
		}},
		operatorCase{name: "Split", inputs: in(wave(7, 2)), build: func(b *onnx.Builder, v []onnx.Value) []onnx.Value {
			return append(b.Ops(3, "Split", v[0], onnx.IntAttr("num_outputs", 3)), b.Ops(2, "Split", v[0], b.Int64s(1, 6))...)
		}},
		operatorCase{name: "Constant", inputs: in(x), build: func(b *onnx.Builder, v []onnx.Value) []onnx.Value {
			return []onnx.Value{
				b.Op("Constant", onnx.FloatAttr("value_float", 2)), b.Op("Constant", onnx.IntsAttr("value_ints", 2, 3)),
				b.Op("Constant", onnx.IntAttr("value_int", 4)), b.Op("Constant", onnx.FloatsAttr("value_floats", 1, 2)),
				b.Op("Constant", onnx.TensorAttr("value", onnx.FloatTensor("", []float32{1, 2}, 2, 1))), b.Op("Identity", v[0]),
			}
		}},
		op("Dropout", in(x)),

		operatorCase{name: "LayerNormalization", inputs: in(wave(2, 3, 4), wave(4), wave(4)), opset: 17, build: func(b *onnx.Builder, v []onnx.Value) []onnx.Value {
			return b.Ops(3, "LayerNormalization", onnx.Inputs(v...))
		}},
		op("LayerNormalization axis", in(wave(2, 3, 4), wave(3, 4)), onnx.IntAttr("axis", 1), onnx.FloatAttr("epsilon", 0.1)),
		op("RMSNormalization", in(wave(2, 3, 4), wave(4))).at(23),
		op("BatchNormalization", in(image, wave(4), wave(4), wave(4), []float32{1, 2, 0.5, 3})),
		op("Conv", in(image, wave(3, 4, 2, 3), wave(3))), op("Conv strides", in(image, wave(3, 4, 3, 2)), onnx.IntsAttr("strides", 2, 1), onnx.IntsAttr("pads", 1, 0, 2, 1)),
		op("Conv groups", in(image, wave(6, 2, 3, 3)), onnx.IntAttr("group", 2), onnx.IntsAttr("dilations", 2, 1)),
		op("Conv depthwise", in(image, wave(4, 1, 3, 3)), onnx.IntAttr("group", 4), onnx.StringAttr("auto_pad", "SAME_UPPER")),
		op("Conv line", in(stripes, wave(2, 2, 4)), onnx.StringAttr("auto_pad", "SAME_LOWER")),
		op("MaxPool", in(image), onnx.IntsAttr("kernel_shape", 2, 3)), op("MaxPool ceil", in(image), onnx.IntsAttr("kernel_shape", 3, 2), onnx.IntsAttr("strides", 2, 2), onnx.IntsAttr("pads", 1, 0, 0, 1), onnx.IntAttr("ceil_mode", 1)),
		op("AveragePool", in(image), onnx.IntsAttr("kernel_shape", 3, 3), onnx.IntsAttr("pads", 1, 1, 1, 1)),
		op("AveragePool padded", in(image), onnx.IntsAttr("kernel_shape", 3, 3), onnx.IntsAttr("pads", 1, 1, 1, 1), onnx.IntAttr("count_include_pad", 1)),
		op("GlobalAveragePool", in(image)), op("GlobalMaxPool", in(image)),
	)
	for _, n := range []string{"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare"} {
		cases = append(cases,
			with(n, in(wave(2, 3, 4)), constants{ints64(1, -1)}),
			with(n+" dropped", in(wave(2, 3, 4)), constants{ints64(0)}, onnx.IntAttr("keepdims", 0)),
			op(n+" all", in(wave(2, 3, 4))), op(n+" old", in(wave(2, 3, 4)), onnx.IntsAttr("axes", 1)).at(11))
	}
	cases = append(cases, op("ReduceSum noop", in(x), onnx.IntAttr("noop_with_empty_axes", 1)))
	cases = append(cases, controlCases()...)
	return append(cases, attentionCases()...)
}

// controlCases have nested graphs.
func controlCases() []operatorCase {
	branches := func(b *onnx.Builder, condition, x onnx.Value) onnx.Value {
		yes, no := b.Sub("yes"), b.Sub("no")
		yes.Output(yes.Op("Neg", x), nil)
		no.Output(no.Op("Mul", x, x), nil)
		return b.Op("If", condition, onnx.Body("then_branch", yes), onnx.Body("else_branch", no))
	}
	return []operatorCase{
		{name: "If known", inputs: in(wave(2, 3)), build: func(b *onnx.Builder, v []onnx.Value) []onnx.Value {
			n := b.Op("Size", v[0])
			return []onnx.Value{branches(b, b.Op("Greater", n, b.Scalar(onnx.Int64, 5)), v[0]), branches(b, b.Op("Greater", n, b.Scalar(onnx.Int64, 6)), v[0])}
		}},
		{name: "If unknown", inputs: in(wave(2, 3), true), build: func(b *onnx.Builder, v []onnx.Value) []onnx.Value {
			return []onnx.Value{branches(b, v[1], v[0]), branches(b, b.Op("Not", v[1]), v[0])}
		}},
		{name: "Loop", inputs: in(wave(2, 3)), build: func(b *onnx.Builder, v []onnx.Value) []onnx.Value {
			body := b.Sub("body")
			n, more, x := body.Input("n", onnx.TensorOf(onnx.Int64)), body.Input("more", onnx.TensorOf(onnx.Bool)), body.Input("x", onnx.TensorOf(onnx.Float, 2, 3))
			body.Output(body.Op("And", more, body.Op("Less", n, body.Scalar(onnx.Int64, 2))), onnx.TensorOf(onnx.Bool))
			y := body.Op("Add", x, body.Op("Cast", n, onnx.To(onnx.Float)))
			body.Output(y, onnx.TensorOf(onnx.Float, 2, 3))
			body.Output(body.Op("Mul", y, v[0]), onnx.TensorOf(onnx.Float, 2, 3))
			return b.Ops(2, "Loop", b.Op("Size", v[0]), b.Scalar(onnx.Bool, 1), v[0], onnx.Body("body", body))
		}},
		{name: "Scan", inputs: in(wave(2, 3), wave(2)), build: func(b *onnx.Builder, v []onnx.Value) []onnx.Value {
			body := b.Sub("body")
			sum, row := body.Input("sum", onnx.TensorOf(onnx.Float, 2)), body.Input("row", onnx.TensorOf(onnx.Float, 2))
			next := body.Op("Add", sum, row)
			body.Output(next, onnx.TensorOf(onnx.Float, 2))
			body.Output(body.Op("Mul", next, v[1]), onnx.TensorOf(onnx.Float, 2))
			return b.Ops(2, "Scan", v[1], v[0], onnx.Body("body", body), onnx.IntAttr("num_scan_inputs", 1), onnx.IntsAttr("scan_input_axes", 1),
				onnx.IntsAttr("scan_output_axes", 1), onnx.IntsAttr("scan_input_directions", 1))
		}},
	}
}

// attentionCases are of the standard's Attention.
func attentionCases() []operatorCase {
	q, k, v := wave(2, 4, 3, 5), wave(2, 2, 3, 5), wave(2, 2, 3, 6)
	return []operatorCase{
		op("Attention", in(q, k, v)).at(23),
		op("Attention causal", in(q, k, v), onnx.IntAttr("is_causal", 1), onnx.FloatAttr("scale", 0.3)).at(23),
		op("Attention mask", in(q, k, v, wave(2, 1, 3, 3))).at(23),
		op("Attention bool mask", in(q, k, v, [][]bool{{true, false, false}, {true, true, false}, {false, true, true}})).at(23),
		op("Attention softcap", in(q, k, v), onnx.FloatAttr("softcap", 0.7)).at(23),
		op("Attention three dimensions", in(wave(2, 3, 8), wave(2, 4, 4), wave(2, 4, 6)), onnx.IntAttr("q_num_heads", 4), onnx.IntAttr("kv_num_heads", 2)).at(23),
		{name: "Attention past", opset: 23, inputs: in(q, k, v, wave(3, 5), wave(2, 2, 2, 5), wave(2, 2, 2, 6)), build: func(b *onnx.Builder, in []onnx.Value) []onnx.Value {
			return b.Ops(3, "Attention", onnx.Inputs(in...))
		}},
	}
}

// model makes the case's model and inputs.
func (c operatorCase) model(t testing.TB) (*onnx.Model, map[string]*tensors.Tensor) {
	t.Helper()
	opset := c.opset
	if opset == 0 {
		opset = 18
	}
	b := onnx.NewGraph("main")
	given := make(map[string]*tensors.Tensor)
	var values []onnx.Value
	for i, v := range c.inputs {
		x, ok := v.(*tensors.Tensor)
		if !ok {
			x = tensors.FromAnyValue(v)
		}
		var dims []any
		for _, d := range x.Shape().Dimensions {
			dims = append(dims, d)
		}
		name := string(rune('a' + i))
		values = append(values, b.Input(name, onnx.TensorOf(onnxType(t, x), dims...)))
		given[name] = x
	}
	for i, v := range c.build(b, values) {
		b.Output(b.Op("Identity", v, onnx.As(fmt.Sprintf("y%d", i))), &onnx.Type{Kind: onnx.TypeTensor, Elem: onnx.Float})
	}
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	ir, err := onnx.IRVersionFor(opset)
	if err != nil {
		t.Fatal(err)
	}
	return &onnx.Model{IRVersion: ir, Opsets: []onnx.Opset{{Version: opset}}, Graph: g}, given
}

func onnxType(t testing.TB, x *tensors.Tensor) onnx.DataType {
	t.Helper()
	for o, d := range elementTypes {
		if d == x.DType() {
			return o
		}
	}
	t.Fatalf("no type for %v", x.Shape())
	return 0
}

// golden is an output as testdata has it. JSON has no infinities, so numbers
// are texts.
type golden struct {
	Type   string   `json:"type"`
	Shape  []int    `json:"shape"`
	Values []string `json:"values"`
}

// asGolden writes a tensor down.
func asGolden(t testing.TB, x *tensors.Tensor) golden {
	t.Helper()
	g := golden{Type: strings.ToLower(x.DType().String()), Shape: append([]int{}, x.Shape().Dimensions...), Values: []string{}}
	if x.Shape().IsZeroSize() {
		return g
	}
	err := x.ConstFlatData(func(flat any) {
		switch f := flat.(type) {
		case []float32:
			for _, v := range f {
				g.Values = append(g.Values, fmt.Sprint(v))
			}
		case []float64:
			for _, v := range f {
				g.Values = append(g.Values, fmt.Sprint(v))
			}
		case []int64:
			for _, v := range f {
				g.Values = append(g.Values, fmt.Sprint(v))
			}
		case []int32:
			for _, v := range f {
				g.Values = append(g.Values, fmt.Sprint(v))
			}
		case []bool:
			for _, v := range f {
				g.Values = append(g.Values, map[bool]string{true: "1", false: "0"}[v])
			}
		default:
			t.Fatalf("%v", x.Shape())
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// differs says how two outputs differ; integers must be equal.
func (g golden) differs(want golden) string {
	if g.Type != want.Type || !slices.Equal(g.Shape, want.Shape) || len(g.Values) != len(want.Values) {
		return fmt.Sprintf("%s %v, want %s %v", g.Type, g.Shape, want.Type, want.Shape)
	}
	for i := range g.Values {
		var a, b float64
		fmt.Sscan(g.Values[i], &a)
		fmt.Sscan(want.Values[i], &b)
		same := a == b || a != a && b != b
		if strings.HasPrefix(g.Type, "float") {
			same = same || math.Abs(a-b) <= 2e-5*max(1, math.Abs(b))
		}
		if !same {
			return fmt.Sprintf("element %d is %s, want %s", i, g.Values[i], want.Values[i])
		}
	}
	return ""
}

const goldenFile = "testdata/operators.json"

func readGoldens(t testing.TB) map[string][]golden {
	t.Helper()
	data, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string][]golden
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestGoldens holds testdata/operators.json against ONNX Runtime, or makes it.
func TestGoldens(t *testing.T) {
	python := onnxtest.Start(t)
	got := make(map[string][]golden)
	for _, c := range operatorCases() {
		m, given := c.model(t)
		path := filepath.Join(t.TempDir(), "model.onnx")
		// A file must give the types of its outputs. A wrong one is refused by ONNX
		// Runtime.
		for name, x := range runModel(t, m, given) {
			for _, o := range m.Graph.Outputs {
				if o.Name == name {
					o.Type = &onnx.Type{Kind: onnx.TypeTensor, Elem: onnxType(t, x)}
				}
			}
		}
		if err := onnx.WriteFile(path, m, onnx.WriteOptions{}); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		s, err := python.TryLoad(t, path, onnxtest.Runtime)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var in []onnxtest.Tensor
		for _, k := range slices.Sorted(maps.Keys(given)) {
			in = append(in, toPython(t, k, given[k]))
		}
		out, err := s.TryRun(t, in)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, o := range out {
			got[c.name] = append(got[c.name], asGolden(t, fromPython(t, o)))
		}
	}
	if *update {
		data, err := json.MarshalIndent(got, "", "")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(goldenFile, append(data, '\n'), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	want := readGoldens(t)
	if len(got) != len(want) {
		t.Errorf("%d cases, the file has %d; write it anew by -update", len(got), len(want))
	}
	for name, outputs := range got {
		for i := range outputs {
			if i >= len(want[name]) {
				t.Errorf("%s: the file has no output %d", name, i)
			} else if d := outputs[i].differs(want[name][i]); d != "" {
				t.Errorf("%s: output %d: %s", name, i, d)
			}
		}
	}
}

func toPython(t testing.TB, name string, x *tensors.Tensor) onnxtest.Tensor {
	t.Helper()
	out := onnxtest.Tensor{Name: name, Type: strings.ToLower(x.DType().String())}
	for _, d := range x.Shape().Dimensions {
		out.Shape = append(out.Shape, int64(d))
	}
	if x.Shape().IsZeroSize() {
		return out
	}
	if err := x.ConstBytes(func(data []byte) { out.Data = slices.Clone(data) }); err != nil {
		t.Fatal(err)
	}
	return out
}

func fromPython(t testing.TB, x onnxtest.Tensor) *tensors.Tensor {
	t.Helper()
	for o := range elementTypes {
		if strings.EqualFold(elementTypes[o].String(), x.Type) {
			y, err := tensorOf(&onnx.Tensor{Type: o, Dims: x.Shape, Raw: x.Data}, elementTypes[o])
			if err != nil {
				t.Fatal(err)
			}
			return y
		}
	}
	t.Fatalf("%s is of type %s", x.Name, x.Type)
	return nil
}

// TestOperators runs every operator on gomlx's pure-Go backend, as a graph of
// inputs and, where the inputs become constants, as values that are known, against
// what ONNX Runtime gave.
func TestOperators(t *testing.T) {
	goldens := readGoldens(t)
	used := make(map[string]bool)
	for _, c := range operatorCases() {
		t.Run(c.name, func(t *testing.T) {
			m, given := c.model(t)
			err := m.Walk(func(_ *onnx.Graph, nodes *[]*onnx.Node) error {
				for _, n := range *nodes {
					used[nameOf(n).String()] = true
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			check := func(how string, m *onnx.Model, given map[string]*tensors.Tensor) {
				out := runModel(t, m, given)
				want := goldens[c.name]
				if len(want) == 0 || len(out) != len(want) {
					t.Fatalf("%d outputs, want %d", len(out), len(want))
				}
				for i := range want {
					if d := asGolden(t, out[fmt.Sprintf("y%d", i)]).differs(want[i]); d != "" {
						t.Errorf("%s: output %d: %s", how, i, d)
					}
				}
			}
			check("inputs", m, given)
			own := slices.Clone(m.Graph.Initializers)
			for _, v := range m.Graph.Inputs {
				x := toPython(t, v.Name, given[v.Name])
				m.Graph.Initializers = append(m.Graph.Initializers, &onnx.Tensor{Name: v.Name, Type: v.Type.Elem, Dims: x.Shape, Raw: x.Data})
			}
			check("weights", m, nil)
			m.Graph.Inputs, m.Graph.Initializers = nil, own
			var nodes []*onnx.Node
			for k, x := range given {
				p := toPython(t, k, x)
				raw := &onnx.Tensor{Type: onnxType(t, x), Dims: p.Shape, Raw: p.Data}
				nodes = append(nodes, &onnx.Node{OpType: "Constant", Outputs: []string{k}, Attributes: []*onnx.Attribute{onnx.TensorAttr("value", raw)}})
			}
			m.Graph.Nodes = append(nodes, m.Graph.Nodes...)
			check("constants", m, nil)
		})
	}
	list, err := os.ReadFile("../../docs/onnx-go.md")
	if err != nil {
		t.Fatal(err)
	}
	for n := range operators {
		if !regexp.MustCompile(`[| ]` + n.String() + `[,; ]`).Match(list) {
			t.Errorf("docs/onnx-go.md does not list the operator %s", n)
		}
		if !used[n.String()] && n.domain == "" {
			t.Errorf("no case has the operator %s", n)
		}
	}
}

// runModel converts and runs a model on the pure-Go backend.
func runModel(t testing.TB, m *onnx.Model, inputs map[string]*tensors.Tensor) map[string]*tensors.Tensor {
	t.Helper()
	p, err := Convert(m)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSession(nil, p)
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.Run(inputs)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
