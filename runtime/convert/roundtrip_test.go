package convert

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/ops/onnxbody"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// openFile opens a model until the test ends.
func openFile(t *testing.T, path string) *model.File {
	t.Helper()
	f, err := model.Open(path, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// asGGUF writes a model as GGUF and opens that.
func asGGUF(t *testing.T, src *model.File, o Options) *model.File {
	t.Helper()
	o.Output = filepath.Join(t.TempDir(), "model.gguf")
	if _, err := ToGGUF(context.Background(), src, o); err != nil {
		t.Fatal(err)
	}
	return openFile(t, o.Output)
}

// asCheckpoint writes a model as a checkpoint folder and opens that.
func asCheckpoint(t *testing.T, src *model.File, o Options) *model.File {
	t.Helper()
	o.Output = t.TempDir()
	if _, err := ToCheckpoint(context.Background(), src, o); err != nil {
		t.Fatal(err)
	}
	return openFile(t, o.Output)
}

// asONNX writes a model as ONNX and opens that.
func asONNX(t *testing.T, src *model.File, o ONNXOptions) *model.File {
	t.Helper()
	path, _ := writeONNX(t, src, o)
	return openFile(t, path)
}

// same fails unless two GGUF files hold the same model, bit for bit.
func same(t *testing.T, what string, got, want *model.File) {
	t.Helper()
	if !reflect.DeepEqual(got.Parts.Config, want.Parts.Config) {
		t.Errorf("%s: configuration %+v, expected %+v", what, got.Parts.Config, want.Parts.Config)
	}
	if !reflect.DeepEqual(got.Generation, want.Generation) {
		t.Errorf("%s: generation %+v, expected %+v", what, got.Generation, want.Generation)
	}
	if g, w := len(got.Parts.Tensors), len(want.Parts.Tensors); g != w {
		t.Fatalf("%s: %d tensors, expected %d", what, g, w)
	}
	for i, w := range want.Parts.Tensors {
		g := got.Parts.Tensors[i]
		if g.Name != w.Name || g.DType != w.DType || !g.Shape.Equal(w.Shape) || !bytes.Equal(g.Data, w.Data) {
			t.Errorf("%s: tensor %s %s %v, expected %s %s %v with the same bytes", what, g.Name, g.DType, g.Shape, w.Name, w.DType, w.Shape)
		}
	}
}

// onnxForms are ways to write an ONNX model, which must not matter to its weights.
var onnxForms = []ONNXOptions{
	{Op: ONNXFunction}, {Op: ONNXInline, External: true}, {Op: ONNXCustom, NoMask: true, LastLogits: true}, {Op: ONNXAttention},
	{Op: ONNXFunction, Packed: true}, {Op: ONNXAttention, Packed: true, External: true},
}

// TestRoundTripOptions writes a model with each option of a block as ONNX and as a
// checkpoint, reads both back, and compares with what GGUF gets directly.
func TestRoundTripOptions(t *testing.T) {
	variations := modeltest.Options()
	for n, name := range slices.Sorted(maps.Keys(variations)) {
		t.Run(name, func(t *testing.T) {
			c := modeltest.Config()
			variations[name](&c)
			src := randomFile(c, n%2 == 0)
			typ := []quant.DType{quant.F16, quant.F32}[n%2]
			want := asGGUF(t, src, unread(typ))
			form := onnxForms[n%len(onnxForms)]
			form.Options = unread(typ)
			x := asONNX(t, src, form)
			same(t, "ONNX", asGGUF(t, x, unread(typ)), want)
			checkpoint := asCheckpoint(t, x, Options{Type: typ})
			same(t, "ONNX, checkpoint", asGGUF(t, checkpoint, unread(typ)), want)
			same(t, "checkpoint, ONNX", asGGUF(t, asONNX(t, checkpoint, form), unread(typ)), want)
		})
	}
}

// TestRoundTripCheckpoints does so with trained models, in all forms.
func TestRoundTripCheckpoints(t *testing.T) {
	const passkey = "../../testmodels/passkey"
	folders := append(caseFolders(t, "fox"), passkey)
	for n, folder := range folders {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			dir, forms := folder, append(slices.Clone(onnxForms), ONNXOptions{Op: ONNXCustom, Cache: onnxbody.CacheBounded})
			if folder != passkey {
				forms = onnxForms[n%len(onnxForms):][:1]
				for _, variant := range []string{"bf16", "f32_sharded", "f32"} {
					if _, err := os.Stat(filepath.Join(folder, variant)); err == nil {
						dir = filepath.Join(folder, variant)
					}
				}
				if dir == folder {
					t.Skip("no checkpoint")
				}
			}
			src := openFile(t, dir)
			for k, form := range forms {
				typ := []quant.DType{quant.F16, quant.F32}[k%2]
				form.Options = unread(typ)
				x := asONNX(t, src, form)
				// The tokenizer is beside the source, not beside the ONNX file.
				want := asGGUF(t, src, unread(typ))
				got := asGGUF(t, x, unread(typ))
				want.Generation, got.Generation = src.Generation, x.Generation
				same(t, form.Op, got, want)
			}
			for _, typ := range []quant.DType{quant.F32, quant.F16, quant.BF16} {
				got := asGGUF(t, asCheckpoint(t, src, unread(typ)), unread(typ))
				same(t, "checkpoint "+typ.String(), got, asGGUF(t, src, unread(typ)))
			}
		})
	}
}

// TestRoundTripLarge has a value that F16 does not hold: that matrix stays F32.
func TestRoundTripLarge(t *testing.T) {
	src := randomFile(modeltest.Config(), true)
	data := src.Parts.Tensors[0].Data
	binary.LittleEndian.PutUint32(data[4*100:], math.Float32bits(70000))
	want := asGGUF(t, src, unread(quant.F16))
	if typ := want.Parts.Tensors[0].DType; typ != quant.F32 {
		t.Fatalf("the embedding is %s", typ)
	}
	x := asONNX(t, src, ONNXOptions{Options: unread(quant.F16)})
	same(t, "ONNX", asGGUF(t, x, unread(quant.F16)), want)
	same(t, "checkpoint", asGGUF(t, asCheckpoint(t, x, unread(quant.F16)), unread(quant.F16)), want)
}

// TestCheckpointBiases fills up the biases of a model that has some of them.
func TestCheckpointBiases(t *testing.T) {
	src := randomFile(modeltest.Config(), false)
	keep := func(x model.Tensor) bool {
		return x.Name == "blk.1.attn_q.bias" || !strings.HasSuffix(x.Name, ".bias") || strings.Contains(x.Name, "field") || strings.Contains(x.Name, "level")
	}
	src.Parts.Tensors = slices.DeleteFunc(src.Parts.Tensors, func(x model.Tensor) bool { return !keep(x) })
	o := unread(quant.F32)
	o.Output = t.TempDir()
	r, err := ToCheckpoint(context.Background(), src, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Notes) == 0 || !strings.Contains(r.Notes[0], "5 biases") {
		t.Errorf("notes %q", r.Notes)
	}
	f := openFile(t, o.Output)
	if got, want := len(f.Parts.Tensors), len(src.Parts.Tensors)+5; got != want {
		t.Errorf("%d tensors, expected %d", got, want)
	}
	a, err := src.Build()
	if err != nil {
		t.Fatal(err)
	}
	b, err := f.Build()
	if err != nil {
		t.Fatal(err)
	}
	if d, err := Compare(context.Background(), a, b, 64, 1); err != nil || d.MaxAbs != 0 {
		t.Errorf("%v, difference %g", err, d.MaxAbs)
	}
}

// TestCheckpointOutput covers names that are taken and types that do not go.
func TestCheckpointOutput(t *testing.T) {
	src := randomFile(modeltest.Config(), false)
	ctx := context.Background()
	if _, err := ToCheckpoint(ctx, src, unread(quant.Q8_0)); err == nil || !strings.Contains(err.Error(), "f32, f16, bf16") {
		t.Errorf("Q8_0: %v", err)
	}
	dir := t.TempDir()
	o := unread(quant.F16)
	o.Output = filepath.Join(dir, "weights.safetensors")
	if _, err := ToCheckpoint(ctx, src, o); err != nil {
		t.Fatal(err)
	}
	names := func() (names []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	want := []string{"config.json", "generation_config.json", "weights.safetensors"}
	if got := names(); !slices.Equal(got, want) {
		t.Errorf("the folder has %v, expected %v", got, want)
	}
	// config.json is taken by the first model.
	o.Output = filepath.Join(dir, "other.safetensors")
	if _, err := ToCheckpoint(ctx, src, o); err == nil || !strings.Contains(err.Error(), "config.json") {
		t.Errorf("config.json is taken: %v", err)
	}
	if got := names(); !slices.Equal(got, want) {
		t.Errorf("the folder has %v, expected %v", got, want)
	}
	o.Force = true
	if _, err := ToCheckpoint(ctx, src, o); err != nil {
		t.Error(err)
	}
}

// TestForeignONNX reads ONNX models that cannot be read back.
func TestForeignONNX(t *testing.T) {
	_, err := model.Open("../onnxedit/testdata/torch-plain.onnx", model.OpenOptions{})
	var unsupported *format.UnsupportedError
	if !errors.As(err, &unsupported) || !strings.Contains(err.Error(), "not an ONNX model that fpaconv wrote") {
		t.Errorf("error %v", err)
	}
}

// TestRopeShare reads back every partial_rotary_factor as readers do.
func TestRopeShare(t *testing.T) {
	for dim := 1; dim <= 512; dim++ {
		for n := 2; n <= dim; n += 2 {
			if got := int(ropeShare(n, dim) * float64(dim)); got != n {
				t.Fatalf("%d of %d elements come back as %d", n, dim, got)
			}
		}
	}
}

// TestRoundTripEndTokens has more end tokens than the metadata can name, which is
// said; a checkpoint keeps them all, and the sampling settings.
func TestRoundTripEndTokens(t *testing.T) {
	src := randomFile(modeltest.Config(), true)
	temperature, k := float32(0.7), 12
	src.Generation = model.Generation{BOS: 1, PAD: -1, EOS: []int{2, 3, 4, 5}, Temperature: &temperature, TopK: &k}
	path, r := writeONNX(t, src, ONNXOptions{Options: unread(quant.F32)})
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "of 4 end tokens") {
		t.Errorf("notes %q", r.Notes)
	}
	want := src.Generation
	if got := asCheckpoint(t, src, unread(quant.F32)).Generation; !reflect.DeepEqual(got, want) {
		t.Errorf("the checkpoint has %+v, expected %+v", got, want)
	}
	want.EOS = want.EOS[:3]
	if got := openFile(t, path).Generation; !reflect.DeepEqual(got, want) {
		t.Errorf("the ONNX model has %+v, expected %+v", got, want)
	}
}
