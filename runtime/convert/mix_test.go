package convert

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// wide is a configuration whose rows fill blocks of 256.
func wide(layers int) model.Config {
	c := modeltest.Config()
	c.Hidden, c.FeedForward, c.Blocks, c.KeyDim, c.ValDim = 256, 512, layers, 64, 64
	return c
}

// TestMix compares with the layers to which llama.cpp gave Q6_K, in its files of type
// Q4_K_M and Q5_K_M made from models of 30 and 12 layers.
func TestMix(t *testing.T) {
	sensitive := map[int][]int{
		30: {0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29},
		12: {0, 3, 6, 9, 10, 11},
	}
	for layers, want := range sensitive {
		for _, typ := range []quant.DType{quant.Q4_K, quant.Q5_K} {
			m := mix{want: typ, output: "output.weight", layers: layers}
			isWant := make(map[int]bool)
			for _, layer := range want {
				isWant[layer] = true
			}
			for layer := range layers {
				expected := typ
				if isWant[layer] {
					expected = quant.Q6_K
				}
				for name, e := range map[string]quant.DType{"attn_v": expected, "ffn_down": expected, "attn_k": typ, "attn_output": typ, "ffn_up": typ} {
					if got := m.of(fmt.Sprintf("blk.%d.%s.weight", layer, name)); got != e {
						t.Errorf("%s, %d layers: %s of layer %d is %s, expected %s", typ, layers, name, layer, got, e)
					}
				}
			}
		}
	}
	for _, test := range []struct {
		typ                 quant.DType
		embedding, untied   quant.DType // the embedding, and beside an output matrix
		output, value, gate quant.DType // value of layer 0
	}{
		{quant.F16, quant.F16, quant.F16, quant.F16, quant.F16, quant.F16},
		{quant.Q8_0, quant.Q8_0, quant.Q8_0, quant.Q8_0, quant.Q8_0, quant.Q8_0},
		{quant.Q6_K, quant.Q6_K, quant.Q6_K, quant.Q6_K, quant.Q6_K, quant.Q6_K},
		{quant.Q5_K, quant.Q6_K, quant.Q5_K, quant.Q6_K, quant.Q6_K, quant.Q5_K},
		{quant.Q4_K, quant.Q6_K, quant.Q4_K, quant.Q6_K, quant.Q6_K, quant.Q4_K},
		{quant.Q4_0, quant.Q6_K, quant.Q4_0, quant.Q6_K, quant.Q4_0, quant.Q4_0},
		{quant.Q5_1, quant.Q6_K, quant.Q5_1, quant.Q6_K, quant.Q5_1, quant.Q5_1},
	} {
		parts := model.Parts{Config: wide(8), Tensors: []model.Tensor{{Name: "token_embd.weight"}}}
		tied := newMix(test.typ, &parts)
		parts.Tensors = append(parts.Tensors, model.Tensor{Name: "output.weight"})
		m := newMix(test.typ, &parts)
		got := [...]quant.DType{tied.of("token_embd.weight"), m.of("token_embd.weight"), m.of("output.weight"), m.of("blk.0.attn_v.weight"), m.of("blk.0.attn_gate.weight")}
		if want := [...]quant.DType{test.embedding, test.untied, test.output, test.value, test.gate}; got != want {
			t.Errorf("%s: %v, expected %v", test.typ, got, want)
		}
	}
}

// TestTypes writes a model as every type: the file verifies, holds what it should and
// says so, is of the size that was planned, and errs less the more bits there are.
func TestTypes(t *testing.T) {
	src := asFile(t, modeltest.Random(wide(2), 3, false))
	fileTypes := map[quant.DType]gguf.FileType{
		quant.Q8_0: gguf.FileQ8_0, quant.Q6_K: gguf.FileQ6_K, quant.Q5_K: gguf.FileQ5_K_M, quant.Q5_1: gguf.FileQ5_1,
		quant.Q5_0: gguf.FileQ5_0, quant.Q4_K: gguf.FileQ4_K_M, quant.Q4_1: gguf.FileQ4_1, quant.Q4_0: gguf.FileQ4_0,
	}
	order := []quant.DType{quant.Q8_0, quant.Q6_K, quant.Q5_K, quant.Q5_1, quant.Q4_K, quant.Q4_1}
	last := 0.0
	for typ, number := range fileTypes {
		o := Options{Type: typ, Measure: true}
		plan, err := Plan(src, o)
		if err != nil {
			t.Fatal(err)
		}
		f, r := written(t, src, o)
		if v, ok, err := f.Uint32(gguf.KeyFileType); !ok || err != nil || v != uint32(number) {
			t.Errorf("%s: file type %d, expected %d", typ, v, number)
		}
		if got := typeOf(t, f, "blk.0.attn_q.weight"); got != typ {
			t.Errorf("%s: attn_q is %s", typ, got)
		}
		if typeOf(t, f, "blk.0.attn_field.weight") != quant.F32 || typeOf(t, f, "blk.1.attn_level.weight") != quant.F32 || typeOf(t, f, "blk.1.ffn_norm.weight") != quant.F32 {
			t.Errorf("%s: field, level or norm is not F32", typ)
		}
		if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "no tokenizer") {
			t.Errorf("%s: notes %q", typ, r.Notes)
		}
		if len(r.LogitBound) == 0 {
			t.Errorf("%s: no bounds", typ)
		}
		data := int64(0)
		for i, x := range f.Tensors() {
			data += x.Size
			if p := plan.Tensors[i]; p.Name != x.Name || p.Type != x.DType.String() {
				t.Errorf("%s: planned %s as %s, written %s as %s", typ, p.Name, p.Type, x.Name, x.DType)
			}
		}
		if data != plan.OutputBytes {
			t.Errorf("%s: %d bytes planned, %d written", typ, plan.OutputBytes, data)
		}
		if len(r.Verification) != len(Lengths) || r.Verification[2].MaxAbs == 0 {
			t.Errorf("%s: verification %+v", typ, r.Verification)
		}
	}
	for _, typ := range order {
		_, r := written(t, src, Options{Type: typ, Measure: true, NoCheck: true})
		for _, p := range r.Tensors {
			if p.Name != "blk.0.attn_q.weight" {
				continue
			}
			if p.Relative == nil || p.RMSE == nil || p.MaxError == nil || !(*p.RMSE <= *p.MaxError) {
				t.Fatalf("%s: errors are missing: %+v", typ, p)
			}
			if !(*p.Relative > last) || *p.Relative > 0.1 {
				t.Errorf("%s: relative error %g after %g", typ, *p.Relative, last)
			}
			last = *p.Relative
		}
	}
}

// TestNarrower writes matrices with rows of 96, 256 and 40 elements.
func TestNarrower(t *testing.T) {
	c := wide(2)
	c.FeedForward = 96
	c.Heads, c.KVHeads, c.FieldHeads, c.ValDim = 4, 4, 4, 10
	src := asFile(t, modeltest.Random(c, 1, true))
	for typ, want := range map[quant.DType][2]quant.DType{ // of ffn_down in layer 0, and of layer 1 (of which Q6_K is asked)
		quant.Q4_K: {quant.Q5_0, quant.Q8_0}, quant.Q5_K: {quant.Q5_1, quant.Q8_0}, quant.Q6_K: {quant.Q8_0, quant.Q8_0},
		quant.Q4_0: {quant.Q4_0, quant.Q4_0},
	} {
		f, r := written(t, src, Options{Type: typ})
		if a, b := typeOf(t, f, "blk.0.ffn_down.weight"), typeOf(t, f, "blk.1.ffn_down.weight"); a != want[0] || b != want[1] {
			t.Errorf("%s: ffn_down is %s and %s, expected %v", typ, a, b, want)
		}
		if got := typeOf(t, f, "blk.0.attn_output.weight"); got != quant.F16 {
			t.Errorf("%s: rows of 40 elements are %s", typ, got)
		}
		if got := typeOf(t, f, "blk.0.ffn_up.weight"); got != typ {
			t.Errorf("%s: rows of 256 elements are %s", typ, got)
		}
		if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, "rows of 40 elements") || len(r.Notes) > 4 {
			t.Errorf("%s: notes\n%s", typ, notes)
		}
	}
}

// TestTooLarge writes values that overflow a type's binary16 numbers.
func TestTooLarge(t *testing.T) {
	for typ, largest := range map[quant.DType]float64{
		quant.Q8_0: 127 * 65504, quant.Q6_K: 127 * 31 * 65504, quant.Q4_K: 63 * 65504, quant.Q5_1: 65504, quant.Q4_0: 8 * 65504,
	} {
		for _, share := range []float64{0.999, 1.01} {
			p := modeltest.Random(wide(1), 1, true)
			const name = "blk.0.ffn_up.weight"
			value := float32(-share * largest)
			for i := range p.Tensors {
				if x := &p.Tensors[i]; x.Name == name {
					binary.LittleEndian.PutUint32(x.Data, math.Float32bits(value))
				}
			}
			f, _ := written(t, asFile(t, p), Options{Type: typ, NoCheck: true})
			got := typeOf(t, f, name)
			if share < 1 && got != typ || share > 1 && got != quant.F32 {
				t.Errorf("%s: a matrix with the value %g is %s", typ, value, got)
			}
			x, _ := f.Tensor(name)
			row := make([]float32, 256)
			n, _ := x.DType.Bytes(256)
			if err := quant.Decode(row, x.DType, f.Data(x)[:n]); err != nil {
				t.Fatal(err)
			}
			if math.Abs(float64(row[0]-value)) > 0.1*math.Abs(float64(value)) {
				t.Errorf("%s: %g became %g", typ, value, row[0])
			}
		}
	}
}

// TestRequantise: a quantised matrix is copied, widened, or refused.
func TestRequantise(t *testing.T) {
	dir := t.TempDir()
	once, twice := filepath.Join(dir, "once.gguf"), filepath.Join(dir, "twice.gguf")
	if _, err := ToGGUF(context.Background(), asFile(t, modeltest.Random(wide(2), 5, true)), Options{Type: quant.Q4_K, Output: once}); err != nil {
		t.Fatal(err)
	}
	src, err := model.Open(once, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	var refused *RequantiseError
	for _, typ := range []quant.DType{quant.Q8_0, quant.Q4_0, quant.Q6_K} {
		_, err := ToGGUF(context.Background(), src, Options{Type: typ, Output: twice})
		if !errors.As(err, &refused) || refused.To != typ || !strings.Contains(err.Error(), once) {
			t.Errorf("%s after Q4_K: error %v", typ, err)
		}
		if _, err := Plan(src, Options{Type: typ}); !errors.As(err, &refused) {
			t.Errorf("%s after Q4_K: the plan gives error %v", typ, err)
		}
	}
	f, _ := written(t, src, Options{Type: quant.Q4_K})
	for _, x := range f.Tensors() {
		for _, s := range src.Parts.Tensors {
			if s.Name == x.Name && (s.DType != x.DType || !bytes.Equal(s.Data, f.Data(x))) {
				t.Errorf("%s was not copied", x.Name)
			}
		}
	}
	if f, _ := written(t, src, Options{Type: quant.F16}); typeOf(t, f, "blk.0.attn_q.weight") != quant.F16 {
		t.Error("attn_q was not widened")
	}
	if f, _ := written(t, src, Options{Type: quant.Q8_0, Requantise: true}); typeOf(t, f, "blk.0.attn_q.weight") != quant.Q8_0 {
		t.Error("attn_q was not quantised again")
	}
}

// TestQuantiseNotFinite: a NaN or an infinity is refused whatever the type.
func TestQuantiseNotFinite(t *testing.T) {
	for _, bits := range []uint32{0x7fc00000, 0x7f800000, 0xff800000} {
		p := modeltest.Random(wide(1), 1, true)
		for i := range p.Tensors {
			if x := &p.Tensors[i]; x.Name == "blk.0.ffn_up.weight" {
				binary.LittleEndian.PutUint32(x.Data[4*700:], bits)
			}
		}
		src := asFile(t, p)
		for _, typ := range []quant.DType{quant.Q8_0, quant.Q6_K, quant.Q4_K, quant.Q4_1} {
			_, err := ToGGUF(context.Background(), src, Options{Type: typ, Output: filepath.Join(t.TempDir(), "m.gguf"), NoCheck: true})
			if err == nil || !strings.Contains(err.Error(), "blk.0.ffn_up.weight") {
				t.Errorf("%s of %#x: error %v", typ, bits, err)
			}
		}
	}
}
