package convert

import (
	"context"
	"encoding/binary"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/runtime/tokenizer"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// written converts a model and returns the file's metadata and types by name.
func written(t *testing.T, src *model.File, o Options) (*gguf.File, *Report) {
	t.Helper()
	o.Output, o.Version = filepath.Join(t.TempDir(), "m.gguf"), "test"
	r, err := ToGGUF(context.Background(), src, o)
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(o.Output)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, r
}

// asFile writes tensors as a GGUF file in F32 and opens it as a source.
func asFile(t *testing.T, p model.Parts) *model.File {
	t.Helper()
	kv := append([]gguf.KV{{Key: gguf.KeyArchitecture, Value: gguf.ValueOf(gguf.ArchFPA)}}, p.Config.KV()...)
	var infos []gguf.TensorInfo
	for _, x := range p.Tensors {
		infos = append(infos, gguf.TensorInfo{Name: x.Name, DType: x.DType, Shape: x.Shape})
	}
	var out output
	path := filepath.Join(t.TempDir(), "src.gguf")
	if err := out.create(path, false); err != nil {
		t.Fatal(err)
	}
	defer out.abort()
	if err := out.begin(path, false, 0, kv, infos); err != nil {
		t.Fatal(err)
	}
	for i, x := range p.Tensors {
		if _, err := out.tensors[i].Write(x.Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.commit(); err != nil {
		t.Fatal(err)
	}
	f, err := model.Open(path, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func typeOf(t *testing.T, f *gguf.File, name string) quant.DType {
	t.Helper()
	x, ok := f.Tensor(name)
	if !ok {
		t.Fatalf("the file has no tensor %s", name)
	}
	return x.DType
}

// TestTooLargeForF16 writes a matrix whose last value does not fit: it turns up
// after most of the file is written, and must arrive unharmed.
func TestTooLargeForF16(t *testing.T) {
	const name = "blk.1.ffn_down.weight"
	for _, from := range []quant.DType{quant.F32, quant.BF16} {
		p := modeltest.Random(modeltest.Config(), 1, true)
		for i := range p.Tensors {
			x := &p.Tensors[i]
			if x.Name != name {
				continue
			}
			n := len(x.Data)
			binary.LittleEndian.PutUint32(x.Data[n-4:], math.Float32bits(-70000))
			if from == quant.BF16 {
				half := make([]byte, n/2)
				if err := quant.Convert(half, quant.BF16, x.Data, quant.F32, n/4); err != nil {
					t.Fatal(err)
				}
				x.DType, x.Data = quant.BF16, half
			}
		}
		f, r := written(t, asFile(t, p), Options{Type: quant.F16, NoCheck: true})
		if got := typeOf(t, f, name); got != from {
			t.Errorf("from %s: the matrix is %s, expected it to stay", from, got)
		}
		if got := typeOf(t, f, "blk.0.ffn_down.weight"); got != quant.F16 {
			t.Errorf("from %s: another matrix is %s", from, got)
		}
		x, _ := f.Tensor(name)
		last := make([]float32, x.Size/int64(from.BlockBytes()))
		if err := quant.Decode(last, x.DType, f.Data(x)); err != nil {
			t.Fatal(err)
		}
		if v := last[len(last)-1]; math.Abs(float64(v)+70000) > 300 {
			t.Errorf("from %s: the large value is %g", from, v)
		}
		if len(r.Notes) == 0 || !strings.Contains(strings.Join(r.Notes, "\n"), name) {
			t.Errorf("from %s: the notes %q do not name the matrix", from, r.Notes)
		}
	}
}

// TestRowsThatFillNoBlock writes rows of 36 and 52 elements, which Q8_0 cannot.
func TestRowsThatFillNoBlock(t *testing.T) {
	c := modeltest.Config()
	c.FeedForward = 64 // the rows of ffn_down fill two blocks
	f, r := written(t, asFile(t, modeltest.Random(c, 1, true)), Options{Type: quant.Q8_0})
	if a, b := typeOf(t, f, "blk.0.ffn_up.weight"), typeOf(t, f, "blk.0.ffn_down.weight"); a != quant.F16 || b != quant.Q8_0 {
		t.Errorf("ffn_up is %s and ffn_down %s, expected F16 and Q8_0", a, b)
	}
	if typeOf(t, f, "blk.0.attn_field.weight") != quant.F32 {
		t.Error("the field projection is not F32")
	}
	if len(r.Notes) == 0 {
		t.Error("no note")
	}
	if v, ok, _ := f.Uint32(gguf.KeyQuantizationVersion); !ok || v != gguf.QuantizationVersion {
		t.Errorf("quantization version %d, %v", v, ok)
	}
}

// TestProvenance reads what is put into the header after the data is written.
func TestProvenance(t *testing.T) {
	src := asFile(t, modeltest.Random(modeltest.Config(), 1, true))
	f, r := written(t, src, Options{Type: quant.F16})
	want, err := hashFiles(context.Background(), src.DataFiles())
	if err != nil {
		t.Fatal(err)
	}
	if got, _, _ := f.Str(gguf.KeySourceSHA256); got != want || r.SourceSHA256 != want {
		t.Errorf("the file says %s, the report %s, the source has %s", got, r.SourceSHA256, want)
	}
	worst := 0.0
	for _, d := range r.Verification {
		worst = max(worst, d.MaxAbs)
	}
	if got, _, _ := f.Float32(gguf.KeyVerifiedMaxAbsError); !(float64(got)*1.0001 >= worst && worst > 0 && float64(got) <= 2.6*worst) {
		t.Errorf("the file says %g, measured was %g", got, worst)
	}
	f, _ = written(t, src, Options{Type: quant.F16, NoCheck: true})
	for _, key := range []string{gguf.KeySourceSHA256, gguf.KeyVerifiedMaxAbsError} {
		if _, ok := f.Lookup(key); ok {
			t.Errorf("an unverified file has %s", key)
		}
	}
}

func TestRoundUp(t *testing.T) {
	for x, want := range map[float64]float64{0: 0, 1: 1, 1.1: 2, 2: 2, 3: 5, 0.0051: 0.01, 7e-4: 1e-3} {
		if got := roundUp(x); math.Abs(got-want) > 1e-9*want {
			t.Errorf("%g becomes %g, expected %g", x, got, want)
		}
	}
}

// TestDifference checks the measures on two positions worked out by hand.
func TestDifference(t *testing.T) {
	var d Difference
	if !d.add([]float32{0, 0}, []float32{0, 0}) || d.KL != 0 || d.MaxAbs != 0 {
		t.Errorf("equal logits: %+v", d)
	}
	ln3 := float32(math.Log(3))
	// P = (3/4, 1/4), Q = (1/4, 3/4): KL = 1/2 ln 3.
	if d.add([]float32{ln3, 0}, []float32{0, ln3}) {
		t.Error("other best tokens count as the same")
	}
	if math.Abs(d.KL-math.Log(3)/2) > 1e-6 || math.Abs(d.MaxAbs-math.Log(3)) > 1e-6 || math.Abs(d.Largest-math.Log(3)) > 1e-6 {
		t.Errorf("%+v", d)
	}
}

// TestFillGeneration takes from the tokenizer only what the model does not name.
func TestFillGeneration(t *testing.T) {
	v := tokenizer.Vocab{BOS: 7, EOS: 8, PAD: 9}
	c := conversion{generation: model.Generation{BOS: -1, PAD: -1}}
	fillGeneration(&c.generation, v)
	if g := c.generation; g.BOS != 7 || g.PAD != 9 || len(g.EOS) != 1 || g.EOS[0] != 8 {
		t.Errorf("%+v", g)
	}
	c.generation = model.Generation{BOS: 1, PAD: 2, EOS: []int{3, 4}}
	fillGeneration(&c.generation, v)
	if g := c.generation; g.BOS != 1 || g.PAD != 2 || len(g.EOS) != 2 {
		t.Errorf("%+v", g)
	}
}
