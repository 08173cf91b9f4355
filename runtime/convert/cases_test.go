package convert

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/cpu"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// goldenFile is a file of sequences with reference logits.
type goldenFile struct{ f *safetensors.File }

func openGolden(t *testing.T, path string) goldenFile {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return goldenFile{f}
}

func (g goldenFile) ints(name string) []int32 {
	x, ok := g.f.Lookup(name)
	if !ok {
		return nil
	}
	v := make([]int32, len(x.Data)/4)
	for i := range v {
		v[i] = int32(binary.LittleEndian.Uint32(x.Data[4*i:]))
	}
	return v
}

func (g goldenFile) floats(t *testing.T, name string) []float32 {
	t.Helper()
	x, ok := g.f.Lookup(name)
	if !ok {
		t.Fatalf("the golden file lacks %s", name)
	}
	v := make([]float32, len(x.Data)/4)
	if err := quant.Decode(v, x.DType, x.Data); err != nil {
		t.Fatal(err)
	}
	return v
}

// check runs every sequence of a golden file through a model, whole and in
// pieces, and returns the largest difference of a logit.
func (g goldenFile) check(t *testing.T, m *model.Model, greedy bool) float64 {
	t.Helper()
	worst := 0.0
	for _, n := range []int{1, 7, 64, 200, 300} {
		ids := g.ints(fmt.Sprintf("ids.%d", n))
		if ids == nil {
			continue
		}
		want := g.floats(t, fmt.Sprintf("logits.%d", n))
		pos := g.ints(fmt.Sprintf("pos.%d", n))
		for _, chunk := range []int{512, 16, 1} {
			got, s := runCase(t, m, ids, chunk, pos)
			if len(got) != len(want) {
				t.Fatalf("%d logits, expected %d", len(got), len(want))
			}
			for i := range want {
				if d := math.Abs(float64(got[i]) - float64(want[i])); !(d <= worst) {
					worst = d
				}
			}
			if greedy && chunk == 512 {
				continueGreedily(t, s, got[len(got)-m.VocabSize:], g.ints(fmt.Sprintf("greedy.%d", n)))
			}
		}
	}
	return worst
}

func runCase(t *testing.T, m *model.Model, ids []int32, chunk int, pos []int32) ([]float32, engine.Session) {
	t.Helper()
	e, err := cpu.New(m, cpu.Options{Chunk: chunk, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	s, err := e.NewSession(quant.F32, cache.Policy{Mode: cache.Off})
	if err != nil {
		t.Fatal(err)
	}
	var got []float32
	err = s.Feed(ids, func(p int) bool { return slices.Contains(pos, int32(p)) }, func(_ int, l []float32) error {
		got = append(got, l...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got, s
}

// continueGreedily generates the greedy continuation after the last logits and
// compares it.
func continueGreedily(t *testing.T, s engine.Session, last []float32, want []int32) {
	t.Helper()
	for i, w := range want {
		best := 0
		for id := range last {
			if last[id] > last[best] {
				best = id
			}
		}
		if int32(best) != w {
			t.Errorf("greedy token %d is %d, expected %d", i, best, w)
			return
		}
		err := s.Feed([]int32{w}, nil, func(_ int, l []float32) error {
			last = append(last[:0:0], l...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// caseFolders are the folders of a kind of case: those copied here, or all of
// them where FPA_SHARED points at the shared data.
func caseFolders(t *testing.T, kind string) []string {
	t.Helper()
	root := filepath.Join("testdata", kind)
	if shared := os.Getenv("FPA_SHARED"); shared != "" {
		root = filepath.Join(shared, "cases", kind)
	}
	entries, err := os.ReadDir(root)
	var dirs []string
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, filepath.Join(root, e.Name()))
		}
	}
	if len(dirs) == 0 {
		t.Fatalf("no cases in %s: %v", root, err)
	}
	return dirs
}

func open(t *testing.T, path string) (*model.File, *model.Model) {
	t.Helper()
	f, err := model.Open(path, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	m, err := f.Build()
	if err != nil {
		t.Fatal(err)
	}
	return f, m
}

// TestFox holds every public forgetting-attention layout against the logits of
// its reference code: the folder as it is, and through GGUF files.
func TestFox(t *testing.T) {
	for _, dir := range caseFolders(t, "fox") {
		for _, variant := range []struct{ folder, golden string }{
			{"f32", "golden_f32"}, {"f32_sharded", "golden_f32"}, {"bf16", "golden_bf16w"},
		} {
			src := filepath.Join(dir, variant.folder)
			if _, err := os.Stat(src); err != nil {
				continue
			}
			t.Run(filepath.Base(dir)+"/"+variant.folder, func(t *testing.T) {
				g := openGolden(t, filepath.Join(dir, variant.golden+".safetensors"))
				f, m := open(t, src)
				d := g.check(t, m, variant.folder == "f32")
				t.Logf("folder: largest difference of a logit %.2e", d)
				if !(d <= 5e-5) {
					t.Errorf("logits differ by %g", d)
				}
				typ := quant.F32
				if variant.folder == "bf16" {
					typ = quant.BF16
				}
				_, m = converted(t, f, typ)
				if d := g.check(t, m, variant.folder == "f32"); !(d <= 5e-5) {
					t.Errorf("through a %s file logits differ by %g", typ, d)
				}
				_, m = converted(t, f, quant.F16)
				if d := g.check(t, m, false); !(d <= 2e-2) {
					t.Errorf("through an F16 file logits differ by %g", d)
				}
				checkReference(t, m, g)
			})
		}
	}
}

func converted(t *testing.T, src *model.File, typ quant.DType) (*model.File, *model.Model) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "model.gguf")
	_, err := ToGGUF(context.Background(), src, Options{Output: out, Type: typ, Version: "test", NoCheck: true})
	if err != nil {
		t.Fatal(err)
	}
	return open(t, out)
}

// checkReference compares a model with a float64 run on its own weights.
func checkReference(t *testing.T, m *model.Model, g goldenFile) {
	t.Helper()
	ids := g.ints("ids.64")
	wide := make([]int, len(ids))
	for i, id := range ids {
		wide[i] = int(id)
	}
	want, err := modeltest.Reference(m).Forward(nil, wide)
	if err != nil {
		t.Fatal(err)
	}
	pos := make([]int32, len(ids))
	for i := range pos {
		pos[i] = int32(i)
	}
	got, _ := runCase(t, m, ids, 512, pos)
	for i := range want {
		if d := math.Abs(float64(got[i]) - want[i]); !(d <= 5e-5) {
			t.Fatalf("logit %d differs by %g from float64 on the same weights", i, d)
		}
	}
}

// TestLlama holds GGUF files of the llama architecture against their goldens,
// as they are and converted to the architecture fpa.
func TestLlama(t *testing.T) {
	for _, dir := range caseFolders(t, "llama_tiny") {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			g := openGolden(t, filepath.Join(dir, "golden.safetensors"))
			f, m := open(t, filepath.Join(dir, "model.gguf"))
			d := g.check(t, m, true)
			t.Logf("largest difference of a logit %.2e", d)
			if !(d <= 1e-4) {
				t.Errorf("logits differ by %g", d)
			}
			_, m = converted(t, f, quant.F32)
			if d := g.check(t, m, true); !(d <= 1e-4) {
				t.Errorf("through an F32 file logits differ by %g", d)
			}
		})
	}
}
