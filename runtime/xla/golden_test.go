package xla

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
)

// golden is one sequence of a file with reference logits, and its greedy
// continuation where the file has one.
type golden struct {
	ids, pos, greedy []int32
	logits           []float32 // [positions, V]
}

// readGolden reads the sequence of n tokens.
func readGolden(t testing.TB, path string, n int) golden {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ints := func(name string) []int32 {
		x, ok := f.Lookup(fmt.Sprintf("%s.%d", name, n))
		if !ok {
			return nil
		}
		v := make([]int32, len(x.Data)/4)
		for i := range v {
			v[i] = int32(binary.LittleEndian.Uint32(x.Data[4*i:]))
		}
		return v
	}
	g := golden{ids: ints("ids"), pos: ints("pos"), greedy: ints("greedy")}
	x, ok := f.Lookup(fmt.Sprintf("logits.%d", n))
	if !ok || len(g.ids) != n {
		t.Fatalf("%s lacks the sequence of length %d", path, n)
	}
	g.logits = make([]float32, len(x.Data)/4)
	if err := quant.Decode(g.logits, x.DType, x.Data); err != nil {
		t.Fatal(err)
	}
	return g
}

// openModel opens a model that is closed at the end of the test.
func openModel(t testing.TB, path string) *model.Model {
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
	if m.LogitBound == nil {
		m.LogitBound = m.LogitBounds(quant.F16)
	}
	return m
}

// foxCases is the folder with the outputs of other people's programs: all of them
// where FPA_SHARED says so, or else the copies that package convert has.
func foxCases(t testing.TB) string {
	shared := os.Getenv("FPA_SHARED")
	if shared == "" {
		return filepath.Join("..", "convert", "testdata", "fox")
	}
	dir := filepath.Join(shared, "cases", "fox")
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("FPA_SHARED is set, but: %v", err)
	}
	return dir
}

// TestGoldens holds the reference outputs of whole models, the greedy continuation
// included, and the CPU engine beside them.
func TestGoldens(t *testing.T) {
	type goldenCase struct{ name, dir, file string }
	passkey := filepath.Join("..", "..", "testmodels", "passkey")
	cases := []goldenCase{{"passkey", passkey, filepath.Join(passkey, "golden.safetensors")}}
	entries, err := os.ReadDir(foxCases(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		dir := filepath.Join(foxCases(t), e.Name())
		c := goldenCase{e.Name(), filepath.Join(dir, "f32"), filepath.Join(dir, "golden_f32.safetensors")}
		if _, err := os.Stat(c.file); err != nil {
			c.dir, c.file = filepath.Join(dir, "bf16"), filepath.Join(dir, "golden_bf16w.safetensors")
		}
		cases = append(cases, c)
	}
	each(t, nil, func(t *testing.T, k kind) {
		for _, c := range cases {
			length := 64
			if k.compiles {
				// Each model takes XLA a few seconds to compile.
				if !k.shared || c.name != "passkey" && c.name != "fox_pro" && c.name != "fla_gqa" {
					continue
				}
				length = 300 // which grows the cache
			}
			t.Run(c.name, func(t *testing.T) {
				m := openModel(t, c.dir)
				g := readGolden(t, c.file, length)
				want := func(p int) bool { return slices.Contains(g.pos, int32(p)) }
				policy := cache.Policy{Mode: cache.Off}
				e := k.engine(t, m, Options{Chunk: 64})
				s := newSession(t, e, quant.F32, policy)
				got := feed(t, s, g.ids, want)
				base := newSession(t, cpuEngine(t, m), quant.F32, policy)
				ref := feed(t, base, g.ids, want)
				// The goldens are rounded float64; the CPU engine is 1.1e-4 off those of
				// the passkey model.
				if d := maxDiff(got, g.logits); !(d < 2e-4) {
					t.Errorf("logits differ by %g from the goldens", d)
				}
				if d := maxDiff(got, ref); !(d < 1e-4) {
					t.Errorf("logits differ by %g from those of the CPU engine", d)
				}
				if len(g.greedy) > 0 && want(len(g.ids)-1) {
					if text := greedy(t, s, got[len(got)-m.VocabSize:], len(g.greedy)); !slices.Equal(text, g.greedy) {
						t.Errorf("greedy continuation %v, expected %v", text, g.greedy)
					}
				}
			})
		}
	})
}

// greedy continues a sequence by n tokens after the given logits.
func greedy(t testing.TB, s engine.Session, logits []float32, n int) []int32 {
	t.Helper()
	var text []int32
	for len(text) < n {
		best := 0
		for id, l := range logits {
			if l > logits[best] {
				best = id
			}
		}
		text = append(text, int32(best))
		logits = feed(t, s, text[len(text)-1:], nil)
	}
	return text
}
