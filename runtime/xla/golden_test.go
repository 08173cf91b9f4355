package xla

import (
	"cmp"
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
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
)

// golden is one sequence of a file with reference logits, and its greedy
// continuation where the file has one.
type golden struct {
	ids, pos, greedy []int32
	logits           []float32 // [positions, V]
}

// readGolden reads the sequence of n tokens, or the only one for 0.
func readGolden(t testing.TB, path string, n int) golden {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	floats := func(name string) []float32 {
		x, ok := f.Lookup(name)
		if !ok {
			return nil
		}
		v := make([]float32, len(x.Data)/x.DType.BlockBytes())
		if x.DType == quant.I32 {
			for i := range v {
				v[i] = float32(int32(binary.LittleEndian.Uint32(x.Data[4*i:])))
			}
		} else if err := quant.Decode(v, x.DType, x.Data); err != nil {
			t.Fatal(err)
		}
		return v
	}
	ints := func(name string) []int32 {
		var v []int32
		for _, x := range floats(name) {
			v = append(v, int32(x)) // ids are small
		}
		return v
	}
	suffix := ""
	if n > 0 {
		suffix = fmt.Sprintf(".%d", n)
	}
	g := golden{
		ids: ints("ids" + suffix), pos: ints("pos" + suffix), greedy: ints("greedy" + suffix),
		logits: floats("logits" + suffix),
	}
	if len(g.logits) == 0 || len(g.ids) == 0 || n > 0 && len(g.ids) != n {
		t.Fatalf("%s lacks the sequence of length %d", path, n)
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

// caseFolder is a folder of other people's cases: what FPA_SHARED names, or the copies
// that package convert has.
func caseFolder(t testing.TB, name string) string {
	shared := os.Getenv("FPA_SHARED")
	if shared == "" {
		return filepath.Join("..", "convert", "testdata", name)
	}
	dir := filepath.Join(shared, "cases", name)
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("FPA_SHARED is set, but: %v", err)
	}
	return dir
}

// goldenCase is a model with reference logits.
type goldenCase struct {
	name, model, file string
	length            int          // of the sequence
	policy            cache.Policy // drops what the logits do not show
	drops             bool         // some keys, at least
	xla               bool         // on XLA too, which takes seconds to compile; all of them with FPA_LONG_TESTS
}

// goldenCases are the trained model, FoX and FLA checkpoints with the outputs of their
// own programs, small llama models, and SmolLM2 where it is at hand.
func goldenCases(t *testing.T) []goldenCase {
	exact := cache.Policy{Mode: cache.Exact}
	// Without QK-norm few keys are ever proved dead.
	measured := cache.Policy{Mode: cache.Measured, Eps: 1e-6}
	passkey := filepath.Join("..", "..", "testmodels", "passkey")
	file := filepath.Join(passkey, "golden.safetensors")
	cases := []goldenCase{
		{"passkey 64", passkey, file, 64, exact, true, false},
		{"passkey 300", passkey, file, 300, exact, true, true},
	}
	folders := func(name string) (list []string) {
		entries, err := os.ReadDir(caseFolder(t, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() {
				list = append(list, filepath.Join(caseFolder(t, name), e.Name()))
			}
		}
		return list
	}
	for _, dir := range folders("fox") {
		c := goldenCase{filepath.Base(dir), filepath.Join(dir, "f32"), filepath.Join(dir, "golden_f32.safetensors"), 64, measured, false, false}
		if _, err := os.Stat(c.file); err != nil {
			c.model, c.file = filepath.Join(dir, "bf16"), filepath.Join(dir, "golden_bf16w.safetensors")
		}
		c.xla = c.name == "fox_pro"
		cases = append(cases, c)
	}
	for _, dir := range folders("llama_tiny") {
		name := filepath.Base(dir)
		cases = append(cases, goldenCase{name, filepath.Join(dir, "model.gguf"), filepath.Join(dir, "golden.safetensors"), 64, exact, false, name == "mixed_quants_small"})
	}
	if path, shared := os.Getenv("FPA_SMOLLM2"), os.Getenv("FPA_SHARED"); path != "" && shared != "" {
		cases = append(cases, goldenCase{"SmolLM2", path, filepath.Join(shared, "cases", "smollm2", "english_100", "golden.safetensors"), 0, exact, false, true})
	}
	if os.Getenv("FPA_LONG_TESTS") != "" {
		for i := range cases {
			cases[i].xla = true
		}
	}
	return cases
}

// tolerance is how far float32 logits may be from each other: 1e-4, or more where
// they are larger than 10.
func tolerance(logits []float32) float64 {
	return max(1e-4, 1e-5*math.Abs(float64(slices.MaxFunc(logits, func(a, b float32) int { return cmp.Compare(a*a, b*b) }))))
}

// TestGoldens runs every model with reference outputs on the CPU engine, on gomlx's Go
// backend where it is small, on XLA, and on the GPU that FPA_XLA_CUDA names, with f32
// weights where the device computes in them: the logits agree with the reference and
// with the CPU engine, the greedy continuation is the same where the first token leads
// by 1e-3, and the same keys are kept, but for those within 1e-3 of the threshold.
func TestGoldens(t *testing.T) {
	for _, c := range goldenCases(t) {
		t.Run(c.name, func(t *testing.T) {
			m := openModel(t, c.model)
			g := readGolden(t, c.file, c.length)
			c.policy.Positions = true
			base := newSession(t, cpuEngine(t, m), quant.F32, c.policy)
			ref := feedPieces(t, base, g)
			// The goldens are of other programs in float32, or rounded float64.
			if d := maxDiff(ref, g.logits); !(d < 2*tolerance(g.logits)) {
				t.Errorf("the CPU engine's logits differ by %g from the goldens", d)
			}
			kept := base.CacheStats().Positions
			if s := base.CacheStats(); c.drops && s.Kept > 0.9 {
				t.Errorf("%g of the keys are kept: that shows little", s.Kept)
			}
			text, lead := greedy(t, base, ref[len(ref)-m.VocabSize:], g.greedy)
			fed := text
			if len(g.greedy) > 0 {
				fed = g.greedy
				sameText(t, text, g.greedy, lead)
			}
			for _, k := range kinds {
				if k.half || k.compiles && (!c.xla || !k.shared && !k.gpu) || !k.compiles && (!k.shared || m.Hidden > 512) {
					continue
				}
				t.Run(k.name, func(t *testing.T) {
					s := newSession(t, k.engine(t, m, Options{}), quant.F32, c.policy)
					got := feedPieces(t, s, g)
					if d := maxDiff(got, ref); !(d < tolerance(ref)) {
						t.Errorf("logits differ by %g from those of the CPU engine", d)
					}
					if d := maxDiff(got, g.logits); !(d < 2*tolerance(g.logits)) {
						t.Errorf("logits differ by %g from the goldens", d)
					}
					sameKeys(t, m, g, c.policy, s.CacheStats().Positions, kept)
					ours, _ := greedy(t, s, got[len(got)-m.VocabSize:], fed)
					sameText(t, ours, text, lead)
				})
			}
		})
	}
}

// feedPieces feeds a sequence in pieces that are chunks on every engine, and returns the
// logits of the golden's positions. The last one must be among them.
func feedPieces(t testing.TB, s engine.Session, g golden) (logits []float32) {
	t.Helper()
	if g.pos[len(g.pos)-1] != int32(len(g.ids)-1) {
		t.Fatal("the golden lacks the last position")
	}
	want := func(p int) bool { return slices.Contains(g.pos, int32(p)) }
	for rest := g.ids; len(rest) > 0; {
		n := min(64, len(rest))
		logits = append(logits, feed(t, s, rest[:n], want)...)
		rest = rest[n:]
	}
	return logits
}

// greedyTokens is the number of tokens that a sequence is continued by.
const greedyTokens = 16

// greedy continues a sequence after logits and returns what it would say and by how
// much each token leads. What it is fed is that, or the given text.
func greedy(t testing.TB, s engine.Session, logits []float32, given []int32) (text []int32, lead []float32) {
	t.Helper()
	for len(text) < greedyTokens {
		best, second := 0, -1
		for id := 1; id < len(logits); id++ {
			switch {
			case logits[id] > logits[best]:
				best, second = id, best
			case second < 0 || logits[id] > logits[second]:
				second = id
			}
		}
		next := int32(best)
		text, lead = append(text, next), append(lead, logits[best]-logits[second])
		if given != nil {
			next = given[len(text)-1]
		}
		logits = feed(t, s, []int32{next}, nil)
	}
	return text, lead
}

// sameText compares greedy choices after the same tokens. One may differ that leads by
// less than 1e-3.
func sameText(t testing.TB, got, want []int32, lead []float32) {
	t.Helper()
	for i, id := range got {
		if id != want[i] && !(lead[i] < 1e-3) {
			t.Errorf("token %d of the greedy text is %d, expected %d", i, id, want[i])
		}
	}
}

// sameKeys compares the positions of the keys that two engines keep, [layer][group]. A
// key within 1e-3 of the threshold may be kept by one alone: one that the CPU engine
// keeps with an eps that moves the threshold down by so much is kept by both, and
// one that it drops with an eps that moves it up is kept by none.
func sameKeys(t testing.TB, m *model.Model, g golden, p cache.Policy, got, want [][][]int) {
	t.Helper()
	if fmt.Sprint(got) == fmt.Sprint(want) {
		return
	}
	if p.Mode == cache.Exact {
		p.Mode, p.Eps = cache.Bounded, cache.ExactEps
	}
	keptAt := func(shift float64) [][][]int {
		p := p
		p.Eps *= math.Exp(shift)
		s := newSession(t, cpuEngine(t, m), quant.F32, p)
		feedPieces(t, s, g)
		return s.CacheStats().Positions
	}
	few, many := keptAt(1e-3), keptAt(-1e-3)
	for i, layer := range got {
		for j, keys := range layer {
			for _, key := range few[i][j] {
				if _, found := slices.BinarySearch(keys, key); !found {
					t.Errorf("layer %d, heads %d: key %d was dropped", i, j, key)
				}
			}
			for _, key := range keys {
				if _, found := slices.BinarySearch(many[i][j], key); !found {
					t.Errorf("layer %d, heads %d: key %d is kept", i, j, key)
				}
			}
		}
	}
}
