package onnx

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
)

// oracle runs testdata/oracle.py, which asks the reference library, and
// returns its lines. Without the library the test is skipped, or fails when
// FPA_REQUIRE_ORACLES is 1.
func oracle(t *testing.T, args ...string) [][]byte {
	t.Helper()
	python := os.Getenv("FPA_PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import onnx").CombinedOutput(); err != nil {
		msg := fmt.Sprintf("%s cannot import onnx (FPA_PYTHON names another Python): %v %s", python, err, bytes.TrimSpace(out))
		if os.Getenv("FPA_REQUIRE_ORACLES") == "1" {
			t.Fatal(msg)
		}
		t.Skip(msg)
	}
	cmd := exec.Command(python, append([]string{"testdata/oracle.py"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	return bytes.Split(bytes.TrimSpace(out), []byte("\n"))
}

// fields is what oracle.py prints of a message: its fields that are set, by
// the names of the schema; floats by their bytes, integers as text.
type fields map[string]any

// The dumps of our messages in the same form.

func put[T comparable](f fields, name string, v T) {
	var zero T
	if v != zero {
		f[name] = text(v)
	}
}

func text(v any) string {
	switch v := v.(type) {
	case float32:
		b := math.Float32bits(v)
		return hex.EncodeToString([]byte{byte(b), byte(b >> 8), byte(b >> 16), byte(b >> 24)})
	case string:
		return v
	}
	return fmt.Sprintf("%d", v)
}

// each dumps a list, left out when it is empty.
func each[T any](f fields, name string, list []T, dump func(T) any) {
	if len(list) == 0 {
		return
	}
	out := make([]any, len(list))
	for i, x := range list {
		out[i] = dump(x)
	}
	f[name] = out
}

func same[T any](v T) any { return text(v) }

func hexed(s string) any { return hex.EncodeToString([]byte(s)) }

func dumpProp(p Prop) any {
	f := fields{}
	put(f, "key", p.Key)
	put(f, "value", p.Value)
	return f
}

func dumpOpset(o Opset) any {
	f := fields{"version": text(o.Version)}
	put(f, "domain", o.Domain)
	return f
}

func dumpModel(m *Model) any {
	f := fields{"graph": dumpGraph(m.Graph)}
	put(f, "ir_version", m.IRVersion)
	put(f, "producer_name", m.ProducerName)
	put(f, "producer_version", m.ProducerVersion)
	put(f, "domain", m.Domain)
	put(f, "model_version", m.ModelVersion)
	put(f, "doc_string", m.Doc)
	each(f, "opset_import", m.Opsets, dumpOpset)
	each(f, "metadata_props", m.Metadata, dumpProp)
	each(f, "functions", m.Functions, dumpFunction)
	return f
}

func dumpGraph(g *Graph) any {
	f := fields{}
	put(f, "name", g.Name)
	put(f, "doc_string", g.Doc)
	each(f, "node", g.Nodes, dumpNode)
	each(f, "initializer", g.Initializers, dumpTensor)
	each(f, "sparse_initializer", g.SparseInitializers, dumpSparse)
	each(f, "input", g.Inputs, dumpValue)
	each(f, "output", g.Outputs, dumpValue)
	each(f, "value_info", g.ValueInfo, dumpValue)
	each(f, "metadata_props", g.Metadata, dumpProp)
	return f
}

func dumpNode(n *Node) any {
	f := fields{}
	each(f, "input", n.Inputs, same)
	each(f, "output", n.Outputs, same)
	put(f, "name", n.Name)
	put(f, "op_type", n.OpType)
	put(f, "domain", n.Domain)
	put(f, "overload", n.Overload)
	put(f, "doc_string", n.Doc)
	each(f, "attribute", n.Attributes, dumpAttribute)
	each(f, "metadata_props", n.Metadata, dumpProp)
	return f
}

func dumpFunction(fn *Function) any {
	f := fields{}
	put(f, "name", fn.Name)
	put(f, "domain", fn.Domain)
	put(f, "overload", fn.Overload)
	put(f, "doc_string", fn.Doc)
	each(f, "input", fn.Inputs, same)
	each(f, "output", fn.Outputs, same)
	each(f, "attribute", fn.Attributes, same)
	each(f, "attribute_proto", fn.Defaults, dumpAttribute)
	each(f, "node", fn.Nodes, dumpNode)
	each(f, "opset_import", fn.Opsets, dumpOpset)
	each(f, "value_info", fn.ValueInfo, dumpValue)
	each(f, "metadata_props", fn.Metadata, dumpProp)
	return f
}

func dumpAttribute(a *Attribute) any {
	f := fields{"type": text(a.Kind)}
	put(f, "name", a.Name)
	put(f, "ref_attr_name", a.Ref)
	put(f, "doc_string", a.Doc)
	switch v := a.Value.(type) {
	case float32:
		f["f"] = text(v)
	case int64:
		f["i"] = text(v)
	case string:
		f["s"] = hexed(v)
	case *Tensor:
		f["t"] = dumpTensor(v)
	case *Graph:
		f["g"] = dumpGraph(v)
	case *SparseTensor:
		f["sparse_tensor"] = dumpSparse(v)
	case *Type:
		f["tp"] = dumpType(v)
	case []float32:
		each(f, "floats", v, same)
	case []int64:
		each(f, "ints", v, same)
	case []string:
		each(f, "strings", v, hexed)
	case []*Tensor:
		each(f, "tensors", v, dumpTensor)
	case []*Graph:
		each(f, "graphs", v, dumpGraph)
	case []*SparseTensor:
		each(f, "sparse_tensors", v, dumpSparse)
	case []*Type:
		each(f, "type_protos", v, dumpType)
	}
	return f
}

func dumpTensor(t *Tensor) any {
	f := fields{"data_type": text(t.Type)}
	put(f, "name", t.Name)
	put(f, "doc_string", t.Doc)
	each(f, "dims", t.Dims, same)
	each(f, "metadata_props", t.Metadata, dumpProp)
	if t.Type == String {
		each(f, "string_data", t.Strings, hexed)
		return f
	}
	data, err := t.Data()
	if err != nil {
		f["raw"] = err.Error()
		return f
	}
	f["raw"] = hex.EncodeToString(data)
	return f
}

func dumpSparse(s *SparseTensor) any {
	f := fields{"values": dumpTensor(s.Values), "indices": dumpTensor(s.Indices)}
	each(f, "dims", s.Dims, same)
	return f
}

func dumpValue(v *ValueInfo) any {
	f := fields{}
	put(f, "name", v.Name)
	put(f, "doc_string", v.Doc)
	each(f, "metadata_props", v.Metadata, dumpProp)
	if v.Type != nil {
		f["type"] = dumpType(v.Type)
	}
	return f
}

func dumpType(t *Type) any {
	f, in := fields{}, fields{}
	put(f, "denotation", t.Denotation)
	switch t.Kind {
	case TypeTensor, TypeSparseTensor:
		f[map[TypeKind]string{TypeTensor: "tensor_type", TypeSparseTensor: "sparse_tensor_type"}[t.Kind]] = in
		put(in, "elem_type", t.Elem)
		if t.Ranked {
			shape := fields{}
			each(shape, "dim", t.Dims, func(d Dim) any {
				f := fields{}
				put(f, "denotation", d.Denotation)
				put(f, "dim_param", d.Param)
				if d.Param == "" && d.Size >= 0 {
					f["dim_value"] = text(d.Size)
				}
				return f
			})
			in["shape"] = shape
		}
	case TypeSequence:
		f["sequence_type"] = in
		in["elem_type"] = dumpType(t.Of)
	case TypeOptional:
		f["optional_type"] = in
		in["elem_type"] = dumpType(t.Of)
	case TypeMap:
		f["map_type"] = in
		put(in, "key_type", t.Elem)
		in["value_type"] = dumpType(t.Of)
	case TypeOpaque:
		f["opaque_type"] = in
	}
	return f
}

// kept lists the fields that this package carries along without naming them.
var kept = map[string]bool{
	"unknown": true, "training_info": true, "quantization_annotation": true, "configuration": true, "device_configurations": true,
}

// named removes what this package does not name from a dump.
func named(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			if kept[k] {
				delete(v, k)
			} else if k == "opaque_type" {
				v[k] = map[string]any{}
			} else {
				named(v[k])
			}
		}
	case []any:
		for _, x := range v {
			named(x)
		}
	}
	return v
}

// parsed is a line of JSON, or of a value's JSON, with the types that package
// json gives.
func parsed(t *testing.T, v any) any {
	t.Helper()
	line, ok := v.([]byte)
	if !ok {
		var err error
		if line, err = json.Marshal(v); err != nil {
			t.Fatal(err)
		}
	}
	var out any
	if err := json.Unmarshal(line, &out); err != nil {
		t.Fatalf("%v in %.200q", err, line)
	}
	return out
}

// differ fails with the first places where two dumps differ.
func differ(t *testing.T, what string, got, want any) {
	t.Helper()
	var report func(path string, a, b any)
	left := 5
	report = func(path string, a, b any) {
		if reflect.DeepEqual(a, b) || left == 0 {
			return
		}
		ma, aok := a.(map[string]any)
		mb, bok := b.(map[string]any)
		if aok && bok {
			for k := range ma {
				report(path+"."+k, ma[k], mb[k])
			}
			for k := range mb {
				if _, both := ma[k]; !both {
					report(path+"."+k, nil, mb[k])
				}
			}
			return
		}
		la, aok := a.([]any)
		lb, bok := b.([]any)
		if aok && bok && len(la) == len(lb) {
			for i := range la {
				report(fmt.Sprintf("%s[%d]", path, i), la[i], lb[i])
			}
			return
		}
		left--
		t.Errorf("%s: %s is %.300v, expected %.300v", what, path, a, b)
	}
	report("", got, want)
}

// TestReadsReferenceFiles reads files of the reference library, with every
// element type in both forms, every kind of attribute and type, unknown fields
// and external data; and writes them so that the library sees no difference.
func TestReadsReferenceFiles(t *testing.T) {
	dir := t.TempDir()
	var names []string
	var want []any
	for _, line := range oracle(t, "make", dir) {
		pair := parsed(t, line).([]any)
		names = append(names, pair[0].(string))
		want = append(want, pair[1])
	}
	again := []string{"dump"}
	for i, name := range names {
		f, err := Open(filepath.Join(dir, name+".onnx"), format.Limits{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		defer f.Close()
		if err := f.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		differ(t, name+" read", parsed(t, dumpModel(f.Model)), named(parsed(t, want[i])))
		path := filepath.Join(dir, name+".again.onnx")
		if err := WriteFile(path, f.Model, WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		again = append(again, path)
	}
	if t.Failed() {
		return
	}
	for i, line := range oracle(t, again...) {
		differ(t, names[i]+" written again", parsed(t, line), want[i])
	}
}

// oracleModels are models made here that the reference checker accepts with
// full type inference.
func oracleModels(t *testing.T) map[string]*Model {
	t.Helper()
	opsets := []Opset{{Version: 17}, {Domain: "com.example", Version: 1}}
	build := func(fill func(b *Builder)) *Model {
		b := NewGraph("main")
		fill(b)
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		return &Model{IRVersion: 8, ProducerName: "test", Opsets: opsets, Graph: g}
	}

	linear := build(func(b *Builder) {
		x := b.Input("x", TensorOf(Float, "batch", "time", 16))
		w := make([]float32, 16*64)
		for i := range w {
			w[i] = float32(i) / 8
		}
		half := make([]byte, 2*64)
		for i := range half {
			half[i] = byte(i % 60)
		}
		y := b.Op("MatMul", x, b.Initializer(FloatTensor("w", w, 16, 64)))
		bias := b.Initializer(&Tensor{Name: "bias", Type: Float16, Dims: []int64{64}, Raw: half})
		y = b.Op("Add", y, b.Op("Cast", bias, To(Float)))
		y = b.Op("Softmax", y, IntAttr("axis", -1), As("y"))
		b.Describe("MatMul_0", TensorOf(Float, "batch", "time", 64))
		b.Output(y, TensorOf(Float, "batch", "time", 64))
	})
	linear.Metadata = []Prop{{Key: "z", Value: "1"}, {Key: "a", Value: "ünicode"}}

	control := build(func(b *Builder) {
		x := b.Input("x", TensorOf(Float, "time", "width"))
		yes := b.Input("yes", TensorOf(Bool))
		start := b.Op("ReduceSum", x, b.Int64s(0), IntAttr("keepdims", 0))
		step := b.Sub("step")
		done := b.Scope("layer.0")
		sum := step.Input(step.Fresh("sum"), TensorOf(Float, "width"))
		row := step.Input(step.Fresh("row"), TensorOf(Float, "width"))
		next := step.Op("Add", sum, step.Op("Mul", row, step.Scalar(Float, 2)))
		step.Output(next, nil)
		step.Output(step.Op("Add", next, start), nil)
		out := b.Ops(2, "Scan", start, x, Body("body", step), IntAttr("num_scan_inputs", 1))
		done()
		then, other := b.Sub("then"), b.Sub("else")
		then.Output(then.Op("Neg", out[1]), nil)
		other.Output(other.Op("Identity", x), nil)
		b.Output(b.Op("If", yes, Body("then_branch", then), Body("else_branch", other), As("y")), TensorOf(Float, "time", "width"))
		odd := b.Ops(2, "com.example::Odd", x, As("", "second"))
		b.Output(odd[1], TensorOf(Int64, "time", 1))
	})

	fb := NewFunction("com.example", "Soft")
	q := fb.Input("q", nil)
	fb.Attribute("axis")
	fb.Default(FloatAttr("scale", 0.25))
	scale := fb.Op("Constant", Ref("value_float", "scale", KindFloat))
	zero := fb.Scalar(Float, 0)
	scaled := fb.Op("Add", fb.Op("Mul", q, scale), zero)
	fb.Output(fb.Op("Softmax", scaled, Ref("axis", "axis", KindInt)), nil)
	fn, err := fb.Function(Opset{Version: 17})
	if err != nil {
		t.Fatal(err)
	}
	function := build(func(b *Builder) {
		x := b.Input("x", TensorOf(Float, 2, -1, ""))
		b.Output(b.Op("com.example::Soft", x, IntAttr("axis", -1), As("y")), TensorOf(Float, 2, -1, ""))
		b.Output(b.Op("com.example::Other", x, None, x, None, StringAttr("mode", "a\xff"), IntsAttr("none"), FloatsAttr("two", 1, 2)), &Type{Kind: TypeSequence, Of: TensorOf(Float)})
	})
	function.Functions = []*Function{fn}
	return map[string]*Model{"linear": linear, "control": control, "function": function}
}

// TestReferenceAcceptsOurs writes models with data inside and outside; the
// reference checker accepts them and the library reads what was written.
func TestReferenceAcceptsOurs(t *testing.T) {
	dir := t.TempDir()
	args := []string{"check"}
	var what []string
	var want []any
	for name, m := range oracleModels(t) {
		for _, mode := range []ExternalData{ExternalNever, ExternalAlways} {
			path := filepath.Join(dir, fmt.Sprintf("%s.%d.onnx", name, mode))
			if err := WriteFile(path, m, WriteOptions{External: mode}); err != nil {
				t.Fatal(err)
			}
			args = append(args, path)
			what = append(what, filepath.Base(path))
			want = append(want, parsed(t, dumpModel(m)))
		}
	}
	if _, err := os.Stat(DataPath(filepath.Join(dir, "linear.2.onnx"))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a data file that was not asked for: %v", err)
	}
	if _, err := os.Stat(DataPath(filepath.Join(dir, "linear.1.onnx"))); err != nil {
		t.Errorf("no data file: %v", err)
	}
	for i, line := range oracle(t, args...) {
		differ(t, what[i], parsed(t, line), want[i])
		if strings.Contains(string(line), `"error"`) {
			t.Errorf("%s: %s", what[i], line)
		}
	}
}

func TestIRVersionFor(t *testing.T) {
	for _, opset := range []int64{0, 29} {
		if v, err := IRVersionFor(opset); err == nil {
			t.Errorf("opset %d: %d", opset, v)
		}
	}
	versions := parsed(t, oracle(t, "versions")[0]).(map[string]any)
	for name, ir := range versions {
		var opset int64
		if _, err := fmt.Sscan(name, &opset); err != nil {
			t.Fatal(err)
		}
		if got, err := IRVersionFor(opset); err != nil || got != max(8, int64(ir.(float64))) {
			t.Errorf("opset %d: %d, %v, expected %v", opset, got, err, ir)
		}
	}
}
