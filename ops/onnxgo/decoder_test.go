package onnxgo_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/pkg/core/dtypes"
	"github.com/gomlx/gomlx/pkg/core/shapes"
	"github.com/gomlx/gomlx/pkg/core/tensors"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/ops/onnxgo"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/convert"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// export writes a model as fpaconv does, and opens the file.
func export(t testing.TB, src *model.File, o convert.ONNXOptions) *onnx.Model {
	t.Helper()
	o.Output, o.NoCheck = filepath.Join(t.TempDir(), "model.onnx"), true
	if _, err := convert.ToONNX(context.Background(), src, o); err != nil {
		t.Fatal(err)
	}
	f, err := onnx.Open(o.Output, format.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f.Model
}

// runner runs a model on inputs and gives its outputs, by name.
type runner func(in map[string]*tensors.Tensor) (map[string]*tensors.Tensor, error)

// session runs a model on the pure-Go backend.
func session(t testing.TB, m *onnx.Model) runner {
	t.Helper()
	p, err := onnxgo.Convert(m)
	if err != nil {
		t.Fatal(err)
	}
	s, err := onnxgo.NewSession(nil, p)
	if err != nil {
		t.Fatal(err)
	}
	return s.Run
}

// feed gives a decoder its sequences in calls of so many tokens, and returns the
// logits, [sequence][position][V].
func feed(t testing.TB, m *onnx.Model, run runner, sequences [][]int32, calls int) [][][]float64 {
	t.Helper()
	in := make(map[string]*tensors.Tensor)
	for _, v := range m.Graph.Inputs {
		if strings.HasPrefix(v.Name, "past_key_values.") {
			var dims []int
			for _, d := range v.Type.Dims {
				size := int(d.Size)
				if d.Param != "" {
					size = map[string]int{"batch_size": len(sequences)}[d.Param]
				}
				dims = append(dims, size)
			}
			in[v.Name] = tensors.FromShape(shapes.Make(map[onnx.DataType]dtypes.DType{onnx.Float: dtypes.Float32, onnx.Double: dtypes.Float64}[v.Type.Elem], dims...))
		}
	}
	logits := make([][][]float64, len(sequences))
	for from := 0; from < len(sequences[0]); from += calls {
		to := min(from+calls, len(sequences[0]))
		var ids, mask, positions []int64
		for _, s := range sequences {
			for i := from; i < to; i++ {
				ids, mask, positions = append(ids, int64(s[i])), append(mask, 1), append(positions, int64(i))
			}
		}
		for _, v := range m.Graph.Inputs {
			if list := map[string][]int64{"input_ids": ids, "attention_mask": mask, "position_ids": positions}[v.Name]; list != nil {
				in[v.Name] = tensors.FromFlatDataAndDimensions(list, len(sequences), to-from)
			}
		}
		out, err := run(in)
		if err != nil {
			t.Fatal(err)
		}
		for name, x := range out {
			if state, ok := strings.CutPrefix(name, "present."); ok {
				in["past_key_values."+state] = x
			}
		}
		flat := tensors.MustCopyFlatData[float32](out["logits"])
		vocab := out["logits"].Shape().Dimensions[2]
		for i, row := range slices.Collect(slices.Chunk(flat, vocab)) {
			wide := make([]float64, vocab)
			for k, v := range row {
				wide[k] = float64(v)
			}
			s := i / (to - from)
			logits[s] = append(logits[s], wide)
		}
	}
	return logits
}

func farthest(got, want []float64) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	worst := 0.0
	for i := range got {
		if d := math.Abs(got[i] - want[i]); !(d <= worst) {
			worst = d
		}
	}
	return worst
}

// TestDecoders runs exported models with every option of a block, in each form of
// the operator, whole and in pieces, against float64.
func TestDecoders(t *testing.T) {
	variations := modeltest.Options()
	forms := []convert.ONNXOptions{
		{Op: convert.ONNXCustom}, {Op: convert.ONNXFunction, Opset: 21}, {Op: convert.ONNXInline, Opset: 18, NoMask: true}, {Op: convert.ONNXAttention},
	}
	for n, name := range slices.Sorted(maps.Keys(variations)) {
		t.Run(name, func(t *testing.T) {
			c := modeltest.Config()
			variations[name](&c)
			src := &model.File{Path: "random", Parts: modeltest.Random(c, 3, n%2 == 0), Generation: model.Generation{BOS: -1, PAD: -1}}
			m, err := src.Build()
			if err != nil {
				t.Fatal(err)
			}
			var sequences [][]int32
			var want [][]float64
			for i := range 2 {
				ids := modeltest.Tokens(24, c.VocabSize, uint64(2*n+i))
				wide := make([]int, len(ids))
				for k, id := range ids {
					wide[k] = int(id)
				}
				y, err := modeltest.Reference(m).Forward(nil, wide)
				if err != nil {
					t.Fatal(err)
				}
				sequences, want = append(sequences, ids), append(want, y)
			}
			o := forms[n%len(forms)]
			o.Type = quant.F32
			exported := export(t, src, o)
			run := session(t, exported)
			for _, calls := range []int{24, 13} {
				for i, got := range feed(t, exported, run, sequences, calls) {
					if d := farthest(slices.Concat(got...), want[i]); !(d <= 2e-5) {
						t.Errorf("%s, %d at a time, sequence %d: a logit differs by %g", o.Op, calls, i, d)
					}
				}
			}
		})
	}
}

// golden is a sequence with the float64 logits of some of its positions.
type golden struct {
	ids    []int32
	pos    []int32
	logits []float64 // [positions, V]
}

func passkeyGolden(t testing.TB, n int) golden {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(passkey, "golden.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	get := func(name string) []byte {
		x, ok := f.Lookup(fmt.Sprintf("%s.%d", name, n))
		if !ok {
			t.Fatalf("no %s.%d", name, n)
		}
		return x.Data
	}
	ints := func(data []byte) (v []int32) {
		for i := 0; i < len(data); i += 4 {
			v = append(v, int32(binary.LittleEndian.Uint32(data[i:])))
		}
		return v
	}
	g := golden{ids: ints(get("ids")), pos: ints(get("pos"))}
	x, _ := f.Lookup(fmt.Sprintf("logits.%d", n))
	flat := make([]float32, len(x.Data)/x.DType.BlockBytes())
	if err := quant.Decode(flat, x.DType, x.Data); err != nil {
		t.Fatal(err)
	}
	for _, v := range flat {
		g.logits = append(g.logits, float64(v))
	}
	return g
}

const passkey = "../../testmodels/passkey"

// passkeyLogits are those of the golden's positions.
func passkeyLogits(t testing.TB, m *onnx.Model, run runner, g golden, calls int) []float64 {
	rows := feed(t, m, run, [][]int32{g.ids}, calls)[0]
	var got []float64
	for _, p := range g.pos {
		got = append(got, rows[p]...)
	}
	return got
}

// TestPasskey runs the trained model as fpaconv writes it against its goldens.
func TestPasskey(t *testing.T) {
	src, err := model.Open(passkey, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	for _, c := range []struct {
		op      string
		typ     quant.DType
		n, call int
	}{
		{convert.ONNXCustom, quant.F32, 1, 1}, {convert.ONNXCustom, quant.F32, 7, 1}, {convert.ONNXCustom, quant.F32, 64, 20},
		{convert.ONNXCustom, quant.F32, 300, 300}, {convert.ONNXFunction, quant.F16, 300, 150}, {convert.ONNXInline, quant.F32, 64, 64},
	} {
		m := export(t, src, convert.ONNXOptions{Options: convert.Options{Type: c.typ, Version: "test"}, Op: c.op})
		g := passkeyGolden(t, c.n)
		d := farthest(passkeyLogits(t, m, session(t, m), g, c.call), g.logits)
		t.Logf("%s, %v, %d tokens, %d at a time: a logit differs by %.1e", c.op, c.typ, c.n, c.call, d)
		if !(d <= 1e-4) {
			t.Errorf("%s, %v, %d tokens, %d at a time: a logit differs by %g", c.op, c.typ, c.n, c.call, d)
		}
	}
}
