package onnxedit

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/testmodels/onnxtest"
)

// The models of testdata come from PyTorch, with its results: see
// testmodels/train/onnx_export.py.

// torchTolerance is how far ONNX Runtime may be from PyTorch. Logits are up to 10.
const torchTolerance = 1e-5

// load reads a model of testdata.
func load(t testing.TB, name string) *onnx.Model {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	m, err := onnx.Parse(data, format.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// encode is the model's bytes.
func encode(t testing.TB, m *onnx.Model) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := onnx.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// clone is a copy of a model, as a file of it would be read.
func clone(t testing.TB, m *onnx.Model) *onnx.Model {
	t.Helper()
	c, err := onnx.Parse(encode(t, m), format.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// inject runs Inject on copies of a model, twice, and expects the same bytes and a
// result in which Inspect finds nothing wrong.
func inject(t testing.TB, m *onnx.Model, o Options) (*onnx.Model, *Result) {
	t.Helper()
	a, b := clone(t, m), clone(t, m)
	r, err := Inject(a, o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Inject(b, o); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(encode(t, a), encode(t, b)) {
		t.Fatal("the same input gave different bytes")
	}
	report, err := Inspect(clone(t, a))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range report.Problems {
		t.Errorf("after Inject: %s", p)
	}
	return a, r
}

// write writes a model to a file of the test.
func write(t testing.TB, m *onnx.Model) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.onnx")
	if err := onnx.WriteFile(path, m, onnx.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	return path
}

// goldens are the tensors of a safetensors file.
func goldens(t testing.TB) map[string]onnxtest.Tensor {
	t.Helper()
	f, err := safetensors.Open(filepath.Join("testdata", "torch.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	out := map[string]onnxtest.Tensor{}
	for _, x := range f.Tensors() {
		typ := map[string]string{"F32": "float32", "I64": "int64"}[x.DType.String()]
		if typ == "" {
			t.Fatalf("%s has type %s", x.Name, x.DType)
		}
		out[x.Name] = onnxtest.Tensor{Name: x.Name, Type: typ, Shape: x.Shape, Data: x.Data}
	}
	return out
}

// named is a tensor under another name.
func named(name string, x onnxtest.Tensor) onnxtest.Tensor {
	x.Name = name
	return x
}

// farthest is the largest difference between two tensors of floats.
func farthest(t testing.TB, a, b onnxtest.Tensor) float64 {
	t.Helper()
	if !slices.Equal(a.Shape, b.Shape) {
		t.Fatalf("shapes %v of %s and %v of %s", a.Shape, a.Name, b.Shape, b.Name)
	}
	x, y := a.Floats(t), b.Floats(t)
	if len(x) == 0 {
		t.Fatal("no elements to compare")
	}
	far := 0.0
	for i := range x {
		if d := math.Abs(x[i] - y[i]); !(d <= far) {
			far = d
		}
	}
	return far
}

// lengths are the prompts of the goldens.
var lengths = []string{"1x1", "3x10", "1x64", "2x150"}

// TestRuntime runs models in ONNX Runtime: one process for all, which takes seconds
// to start.
func TestRuntime(t *testing.T) {
	p := onnxtest.Start(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *onnxtest.Python)
	}{
		{"Forms", runForms},
		{"InlinePatternRound", runInlinePatternRound},
		{"MixedPast", runMixedPast},
		{"Nested", runNested},
		{"Placeholders", runPlaceholders},
		{"PassedScale", runPassedScale},
		{"Half", runHalf},
		{"BothIntervals", runBothIntervals},
		{"HelperPattern", runHelperPattern},
		{"TorchPlaceholders", runTorchPlaceholders},
		{"TorchCached", runTorchCached},
		{"TorchPattern", runTorchPattern},
		{"TorchFused", runTorchFused},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, p) })
	}
}

func runTorchPlaceholders(t *testing.T, p *onnxtest.Python) {
	want := goldens(t)
	exported := load(t, "torch-plain.onnx")
	for _, form := range []string{Function, Inline} {
		m, r := inject(t, exported, Options{Form: form})
		if len(r.Replaced) != 2 || r.Replaced[0].Was != operator {
			t.Errorf("%s: replaced %+v", form, r.Replaced)
		}
		path := write(t, m)
		p.Check(t, path)
		for _, engine := range []onnxtest.Engine{onnxtest.Runtime, onnxtest.Reference} {
			if engine == onnxtest.Reference && form == Inline {
				continue // the same operators
			}
			s := p.Load(t, path, engine)
			for _, n := range lengths {
				if engine == onnxtest.Reference && n != "3x10" {
					continue // seconds each
				}
				got := s.Run(t, []onnxtest.Tensor{named("input_ids", want["ids."+n])})
				far := farthest(t, got[0], want["logits."+n])
				t.Logf("%s, %s, %s: %.1e from PyTorch", form, engine, n, far)
				if !(far <= torchTolerance) {
					t.Errorf("%s, %s, %s: %g from PyTorch, expected %g", form, engine, n, far, torchTolerance)
				}
			}
		}
	}
}

// runTorchCached runs the model with states in three chunks.
func runTorchCached(t *testing.T, p *onnxtest.Python) {
	want := goldens(t)
	exported := load(t, "torch-cached.onnx")
	for _, form := range []string{Function, Inline} {
		m, _ := inject(t, exported, Options{Form: form})
		path := write(t, m)
		p.Check(t, path)
		s := p.Load(t, path, onnxtest.Runtime)
		var past []onnxtest.Tensor
		for _, in := range s.Inputs[1:] {
			shape := []int64{2, 2, 0, 6}[:len(in.Dims)]
			size := 4
			if in.Type == "float64" {
				size = 8
			}
			past = append(past, onnxtest.Zeros(in.Name, in.Type, size, shape...))
		}
		for chunk := range 3 {
			ids := named("input_ids", want[fmt.Sprintf("chunk.%d.ids", chunk)])
			got := s.Run(t, append([]onnxtest.Tensor{ids}, past...))
			far := farthest(t, got[0], want[fmt.Sprintf("chunk.%d.logits", chunk)])
			t.Logf("%s, chunk %d: %.1e from PyTorch", form, chunk, far)
			if !(far <= torchTolerance) {
				t.Errorf("%s, chunk %d: %g from PyTorch, expected %g", form, chunk, far, torchTolerance)
			}
			for i := range past {
				past[i] = named(past[i].Name, got[1+i])
			}
		}
	}
}

// foxPatterns are the attentions of torch-fox.onnx, by the names that the exporter
// gave.
const foxPatterns = `[
	{"query": "getitem", "key": "getitem_1", "value": "getitem_2", "field": "transpose", "slopes": [1], "output": "matmul_1"},
	{"query": "getitem_3", "key": "getitem_4", "value": "getitem_5", "field": "transpose_3", "slopes": [1, 1, 1, 1], "output": "matmul_3"}
]`

// runTorchPattern replaces attention that PyTorch wrote by its own operators.
func runTorchPattern(t *testing.T, p *onnxtest.Python) {
	want := goldens(t)
	exported := load(t, "torch-fox.onnx")
	patterns, err := ParsePattern(foxPatterns)
	if err != nil {
		t.Fatal(err)
	}
	before := p.Load(t, write(t, exported), onnxtest.Runtime)
	for _, form := range []string{Function, Inline} {
		m, r := inject(t, exported, Options{Form: form, Patterns: patterns})
		for i, x := range r.Replaced {
			if x.Was != "pattern" || x.Removed["Softmax"] != 1 || x.Removed["MatMul"] != 2 {
				t.Errorf("replacement %d: %+v", i, x)
			}
		}
		if len(r.Replaced) != 2 || len(r.Notes) > 0 {
			t.Errorf("%+v", r)
		}
		for _, n := range m.Graph.Nodes {
			if slices.Contains([]string{"Trilu", "Softmax"}, n.OpType) {
				t.Errorf("%s: %s of the old attention is still there", form, n.OpType)
			}
		}
		path := write(t, m)
		p.Check(t, path)
		s := p.Load(t, path, onnxtest.Runtime)
		for _, n := range lengths {
			ids := []onnxtest.Tensor{named("input_ids", want["ids."+n])}
			got, old := s.Run(t, ids), before.Run(t, ids)
			far, moved := farthest(t, got[0], want["fox."+n]), farthest(t, got[0], old[0])
			t.Logf("%s, %s: %.1e from PyTorch, %.1e from the model before", form, n, far, moved)
			if !(far <= torchTolerance) || !(moved <= torchTolerance) {
				t.Errorf("%s, %s: %g from PyTorch, %g from the model before, expected %g", form, n, far, moved, torchTolerance)
			}
		}
	}
}

// runTorchFused replaces PyTorch's fused attention, with repeated keys, as the exporter
// writes it for two operator sets.
func runTorchFused(t *testing.T, p *onnxtest.Python) {
	want := goldens(t)
	patterns, err := ParsePattern("query=transpose,key=transpose_1,value=transpose_2,field=transpose_3,slopes=1,output=scaled_dot_product_attention")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ file, form, op string }{
		{"torch-sdpa18.onnx", Function, "Softmax"},
		{"torch-sdpa18.onnx", Inline, "Softmax"},
		{"torch-sdpa23.onnx", Function, "Attention"},
		{"torch-sdpa23.onnx", Attention, "Attention"},
	} {
		m, r := inject(t, load(t, test.file), Options{Form: test.form, Patterns: patterns})
		if len(r.Replaced) != 1 || r.Replaced[0].Removed[test.op] != 1 || len(r.Notes) > 0 {
			t.Errorf("%s, %s: %+v", test.file, test.form, r)
		}
		got := runs(t, p, m, []onnxtest.Tensor{named("x", want["sdpa.x"])})[0]
		far := farthest(t, got[0], want["sdpa.y"])
		t.Logf("%s, %s: %.1e from PyTorch", test.file, test.form, far)
		if !(far <= torchTolerance) {
			t.Errorf("%s, %s: %g from PyTorch, expected %g", test.file, test.form, far, torchTolerance)
		}
	}
}

// TestRecipe checks that the Python code of docs/onnx-export.md is that of the
// script which made the models of this test.
func TestRecipe(t *testing.T) {
	read := func(path string) string {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	script := read("../../testmodels/train/onnx_export.py")
	blocks := strings.Split(read("../../docs/onnx-export.md"), "```python\n")[1:]
	if len(blocks) < 5 {
		t.Fatalf("docs/onnx-export.md has %d blocks of Python, expected the whole recipe", len(blocks))
	}
	for _, b := range blocks {
		b, _, _ = strings.Cut(b, "```")
		if !strings.Contains(script, b) {
			t.Errorf("this code of docs/onnx-export.md is not in testmodels/train/onnx_export.py:\n%s", b)
		}
	}
}
