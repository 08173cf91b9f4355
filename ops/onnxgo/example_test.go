package onnxgo_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/pkg/core/tensors"
	"gorgonia.org/tensor"

	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/onnxgo"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/convert"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// generate continues ids by n tokens, with a decoder that fpaconv wrote.
func generate(model *onnx.Model, ids []int64, n int) ([]int64, error) {
	b := onnxgo.New(nil) // gomlx's pure-Go backend; or one of XLA
	m, err := onnxgo.Decode(model, b)
	if err != nil {
		return nil, err
	}
	in := make(map[string]tensor.Tensor)
	for _, v := range model.Graph.Inputs { // an empty past
		if in[v.Name], err = onnxgo.Zeros(v, map[string]int{"batch_size": 1}); err != nil {
			return nil, err
		}
	}
	var text []int64
	for next := ids; len(text) < n; next = text[len(text)-1:] {
		in["input_ids"] = tensor.New(tensor.WithShape(1, len(next)), tensor.WithBacking(slices.Clone(next)))
		in["attention_mask"] = tensor.Ones(tensor.Int64, 1, len(next))
		for i, v := range model.Graph.Inputs {
			if err := m.SetInput(i, in[v.Name]); err != nil {
				return nil, err
			}
		}
		if err := b.Run(); err != nil {
			return nil, err
		}
		out, err := m.GetOutputTensors()
		if err != nil {
			return nil, err
		}
		for i, v := range model.Graph.Outputs { // present.N.X goes in as past_key_values.N.X
			in["past_key_values"+strings.TrimPrefix(v.Name, "present")] = out[i]
		}
		logits := out[0].Data().([]float32) // [1, tokens, vocabulary]
		last := logits[len(logits)-out[0].Shape()[2]:]
		text = append(text, int64(slices.Index(last, slices.Max(last))))
	}
	return text, nil
}

// TestGenerate runs the program of the documentation: the passkey model finds the
// key in its prompt, in both a form with the operator as a node and the one that
// other programs read.
func TestGenerate(t *testing.T) {
	src, err := model.Open(passkey, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	data, err := os.ReadFile(filepath.Join(passkey, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	words, err := tokenizer.FromJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(passkey, "prompt-1x.txt"))
	if err != nil {
		t.Fatal(err)
	}
	ids, err := words.Encode(string(text), tokenizer.EncodeOptions{AddSpecial: true})
	if err != nil {
		t.Fatal(err)
	}
	var prompt []int64
	for _, id := range ids {
		prompt = append(prompt, int64(id))
	}
	for _, op := range []string{convert.ONNXCustom, convert.ONNXFunction} {
		m := export(t, src, convert.ONNXOptions{Options: convert.Options{Type: quant.F16}, Op: op})
		out, err := generate(m, prompt, 7)
		if err != nil {
			t.Fatal(err)
		}
		var answer []int32
		for _, id := range out {
			answer = append(answer, int32(id))
		}
		if got, err := words.Decode(answer, true); got != " 09798." || err != nil {
			t.Errorf("%s: %q, %v, want the key of the prompt, 09798", op, got, err)
		}
	}
}

// The program in the README is the one that is tested.
func TestDocumentation(t *testing.T) {
	code, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(code), "// generate continues")
	body, _, _ := strings.Cut(rest, "\n}\n")
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "// generate continues"+body+"\n}\n") {
		t.Error("README.md does not hold the function generate as it is tested here")
	}
}

// layer is a model: attention of one head whose field is the keys' first number.
func layer() (*onnx.Model, error) {
	b := onnx.NewGraph("layer")
	x := b.Input("x", onnx.TensorOf(onnx.Float, 1, 1, "time", 2))
	field := b.Op("Gather", x, b.Scalar(onnx.Int64, 0), onnx.IntAttr("axis", 3))
	y := b.Op("ai.firstpassage::FirstPassageAttention", x, x, x, field, field, b.Floats(100), onnx.As("y"))
	b.Output(y, onnx.TensorOf(onnx.Float, 1, 1, "time", 2))
	g, err := b.Graph()
	return &onnx.Model{IRVersion: 8, Opsets: []onnx.Opset{{Version: 17}, {Domain: "ai.firstpassage", Version: 1}}, Graph: g}, err
}

// A model as a gomlx function: the field at the third position falls below the
// levels of the first two, whose keys are dead for it.
func ExampleConvert() {
	m, err := layer()
	if err != nil {
		log.Fatal(err)
	}
	p, err := onnxgo.Convert(m)
	if err != nil {
		log.Fatal(err)
	}
	s, err := onnxgo.NewSession(nil, p)
	if err != nil {
		log.Fatal(err)
	}
	x := tensors.FromFlatDataAndDimensions([]float32{1, 0, 2, 8, -1, 4}, 1, 1, 3, 2)
	out, err := s.Run(map[string]*tensors.Tensor{"x": x})
	if err != nil {
		log.Fatal(err)
	}
	y := tensors.MustCopyFlatData[float32](out["y"])
	fmt.Printf("%v %v %.2f\n", p.Inputs(), p.Outputs(), y[4:])
	// Output:
	// [x] [y] [-1.00 4.00]
}

// The same through onnx-go.
func ExampleDecode() {
	layer, err := layer()
	if err != nil {
		log.Fatal(err)
	}
	b := onnxgo.New(nil)
	m, err := onnxgo.Decode(layer, b)
	if err != nil {
		log.Fatal(err)
	}
	x := tensor.New(tensor.WithShape(1, 1, 3, 2), tensor.WithBacking([]float32{1, 0, 2, 8, -1, 4}))
	if err := m.SetInput(0, x); err != nil {
		log.Fatal(err)
	}
	if err := b.Run(); err != nil {
		log.Fatal(err)
	}
	out, err := m.GetOutputTensors()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v %.2f\n", out[0].Shape(), out[0].Data().([]float32)[4:])
	// Output:
	// (1, 1, 3, 2) [-1.00 4.00]
}
