package convert

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
	"github.com/firstpassage/fpa/testmodels/onnxtest"
)

// writeONNX writes a model into a folder of its own.
func writeONNX(t *testing.T, src *model.File, o ONNXOptions) (string, *Report) {
	t.Helper()
	o.Output = filepath.Join(t.TempDir(), "model.onnx")
	r, err := ToONNX(context.Background(), src, o)
	if err != nil {
		t.Fatal(err)
	}
	return o.Output, r
}

// randomFile is a random model as if it had been opened.
func randomFile(c model.Config, tied bool) *model.File {
	return &model.File{Path: "random", Parts: modeltest.Random(c, 3, tied), Generation: model.Generation{BOS: -1, PAD: -1}}
}

// unread are options of a conversion whose source is no file.
func unread(t quant.DType) Options { return Options{Type: t, NoCheck: true} }

// farthest is the largest difference of two lists, +Inf where they are not of one
// length.
func farthest[A, B float32 | float64](a []A, b []B) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	worst := 0.0
	for i := range a {
		if d := math.Abs(float64(a[i]) - float64(b[i])); !(d <= worst) {
			worst = d
		}
	}
	return worst
}

// TestONNXOptions runs a model with each option of a block in ONNX Runtime, whole
// and in pieces, against float64.
func TestONNXOptions(t *testing.T) {
	python := onnxtest.Start(t)
	variations := modeltest.Options()
	forms := []ONNXOptions{
		{Op: ONNXFunction}, {Op: ONNXInline, Opset: 18, NoMask: true}, {Op: ONNXAttention}, {Op: ONNXFunction, Packed: true, Opset: 21},
	}
	// Those that differ in what they carry.
	states := []string{"fox pro", "value width, value shift", "one field for all heads", "grouped, field a query head", "softmax rope", "direct absolute"}
	for n, name := range slices.Sorted(maps.Keys(variations)) {
		t.Run(name, func(t *testing.T) {
			c := modeltest.Config()
			variations[name](&c)
			src := randomFile(c, n%2 == 0)
			m, err := src.Build()
			if err != nil {
				t.Fatal(err)
			}
			ids := modeltest.Tokens(pieceLen+20, c.VocabSize, uint64(n))
			want, err := modeltest.Reference(m).Forward(nil, ints(ids))
			if err != nil {
				t.Fatal(err)
			}
			for k, o := range forms {
				if k != n%len(forms) && !(o.Packed && slices.Contains(states, name)) {
					continue
				}
				o.Options = unread(quant.F32)
				path, _ := writeONNX(t, src, o)
				python.Check(t, path)
				s := python.Load(t, path, onnxtest.Runtime)
				for _, calls := range []int{len(ids), 37, 1} {
					got := slices.Concat(s.FeedAll(t, ids, calls)...)
					if d := farthest(got, want); !(d <= 2e-5) {
						t.Errorf("%+v, %d at a time: a logit differs by %g", o, calls, d)
					}
				}
			}
		})
	}
}

func ints(ids []int32) []int {
	var out []int
	for _, id := range ids {
		out = append(out, int(id))
	}
	return out
}

// padded is a batch in which every sequence has its next tokens and padding.
type padded struct {
	ids, mask, positions [][]int64
	at                   [][]int // of each token, in the call's row
}

// pad makes a batch of the tokens from[i] to to[i] of each sequence, filled up at
// the left or right with an id that counts nowhere.
func pad(sequences [][]int32, from, to []int, left bool) padded {
	var p padded
	length := 0
	for i := range sequences {
		length = max(length, to[i]-from[i])
	}
	for i, s := range sequences {
		n := to[i] - from[i]
		ids, mask, positions := make([]int64, length), make([]int64, length), make([]int64, length)
		var at []int
		for j := range n {
			k := j
			if left {
				k += length - n
			}
			ids[k], mask[k], positions[k] = int64(s[from[i]+j]), 1, int64(from[i]+j)
			at = append(at, k)
		}
		for k := range ids {
			if mask[k] == 0 {
				ids[k] = 5
			}
		}
		p.ids, p.mask, p.positions, p.at = append(p.ids, ids), append(p.mask, mask), append(p.positions, positions), append(p.at, at)
	}
	return p
}

// TestONNXPadding runs three sequences of different lengths as one batch, padded
// at the left, then at the right, then at the left again, one of them with
// nothing new in a call, and expects what they give alone. The mask has columns
// of the past in some calls, which do not count.
func TestONNXPadding(t *testing.T) {
	python := onnxtest.Start(t)
	variations := modeltest.Options()
	for n, name := range []string{"plain", "fox pro", "softmax rope", "partial rope, shared norm", "value width, value shift", "direct absolute", "inclusive relative"} {
		op := []string{ONNXFunction, ONNXAttention, ONNXInline}[n%3]
		t.Run(name+", "+op, func(t *testing.T) {
			c := modeltest.Config()
			variations[name](&c)
			src := randomFile(c, false)
			path, _ := writeONNX(t, src, ONNXOptions{Options: unread(quant.F32), Op: op, Packed: n%2 == 1})
			s := python.Load(t, path, onnxtest.Runtime)
			lastPath, _ := writeONNX(t, src, ONNXOptions{Options: unread(quant.F32), Op: op, LastLogits: true})
			last := python.Load(t, lastPath, onnxtest.Runtime)

			var sequences [][]int32
			var alone [][][]float64
			for i := range 3 {
				ids := modeltest.Tokens(90, c.VocabSize, uint64(10*n+i))
				sequences = append(sequences, ids)
				alone = append(alone, s.FeedAll(t, ids, len(ids)))
			}
			d, dLast := s.NewDecoder(t, 3), last.NewDecoder(t, 3)
			from := []int{0, 0, 0}
			for call, to := range [][]int{{70, 5, 33}, {75, 76, 33}, {80, 79, 90}, {81, 80, 90}, {82, 81, 90}} {
				p := pad(sequences, from, to, call != 1)
				step := onnxtest.Step{IDs: p.ids, Mask: p.mask, Positions: p.positions}
				if call%2 == 1 {
					step.Mask = nil
					for _, row := range p.mask {
						step.Mask = append(step.Mask, append([]int64{0, 1, 0}, row...))
					}
				}
				got, gotLast := d.Feed(t, step), dLast.Feed(t, step)
				for i := range sequences {
					for j, k := range p.at[i] {
						if diff := farthest(got[i][k], alone[i][from[i]+j]); !(diff <= 3e-5) {
							t.Fatalf("call %d, sequence %d, token %d: a logit differs by %g", call, i, from[i]+j, diff)
						}
					}
					if n := len(p.at[i]); n > 0 {
						if diff := farthest(gotLast[i][0], got[i][p.at[i][n-1]]); !(diff <= 1e-5) || len(gotLast[i]) != 1 {
							t.Fatalf("call %d, sequence %d: the last logits differ by %g", call, i, diff)
						}
					}
				}
				from = to
			}
		})
	}
}

// TestONNXCases holds the FoX cases, in f32 and bf16, against the logits that
// their own PyTorch code gives: forms that need nothing, and the node and the function
// with the plugin.
func TestONNXCases(t *testing.T) {
	plain, plugin := onnxtest.Start(t), onnxtest.Start(t, onnxtest.Plugin(t))
	for i, dir := range caseFolders(t, "fox") {
		for _, kind := range []struct{ folder, golden string }{{"f32", "golden_f32"}, {"bf16", "golden_bf16w"}} {
			t.Run(filepath.Base(dir)+" "+kind.folder, func(t *testing.T) {
				if _, err := os.Stat(filepath.Join(dir, kind.folder)); errors.Is(err, fs.ErrNotExist) {
					t.Skip("not among the cases copied here; FPA_SHARED names all of them")
				}
				src, err := model.Open(filepath.Join(dir, kind.folder), model.OpenOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer src.Close()
				golden := openGolden(t, filepath.Join(dir, kind.golden+".safetensors"))
				for _, form := range []struct {
					op     string
					cache  string
					python *onnxtest.Python
				}{
					{ONNXFunction, "off", plain}, {ONNXInline, "off", plain}, {ONNXAttention, "off", plain},
					{ONNXCustom, []string{"off", "exact"}[i%2], plugin}, {ONNXFunction, []string{"exact", "off"}[i%2], plugin},
				} {
					o := ONNXOptions{Options: Options{Type: quant.F32, Threads: 1}, Op: form.op, Cache: form.cache}
					path, _ := writeONNX(t, src, o)
					form.python.Check(t, path)
					s := form.python.Load(t, path, onnxtest.Runtime)
					worst := 0.0
					for _, n := range []int{1, 7, 64, 300} {
						ids, want := golden.ints(fmt.Sprintf("ids.%d", n)), golden.floats(t, fmt.Sprintf("logits.%d", n))
						for _, calls := range []int{n, 50, 1} {
							if calls == 1 && n > 64 && form.op == ONNXFunction && form.python == plugin {
								continue // as custom
							}
							logits := s.FeedAll(t, ids, calls)
							var got []float64
							for _, p := range golden.ints(fmt.Sprintf("pos.%d", n)) {
								got = append(got, logits[p]...)
							}
							d := farthest(got, want)
							worst = max(worst, d)
							if !(d <= 1e-4) {
								t.Errorf("%s, cache %s, %d tokens, %d at a time: a logit differs by %g", form.op, form.cache, n, calls, d)
							}
						}
					}
					t.Logf("%s, cache %s: largest difference of a logit %.1e", form.op, form.cache, worst)
				}
			})
		}
	}
}

// TestONNXBoundsOfRounded has a model without QK-norm whose matrices are rounded: the
// bounds in its file are those of the weights in its file.
func TestONNXBoundsOfRounded(t *testing.T) {
	c := modeltest.Config()
	c.QKNorm = model.NormNone
	src := randomFile(c, false)
	for _, cache := range ONNXCaches {
		path, r := writeONNX(t, src, ONNXOptions{Options: unread(quant.F16), Cache: cache})
		f, err := model.Open(path, model.OpenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		m, err := f.Build()
		if err != nil {
			t.Fatal(err)
		}
		if want := m.LogitBounds(quant.F16); want == nil || !slices.Equal(f.Parts.Config.LogitBound, want) || !slices.Equal(r.LogitBound, want) {
			t.Errorf("cache %s: the bounds are %v, those of the weights %v", cache, f.Parts.Config.LogitBound, want)
		}
	}
}

// TestONNXReferenceEvaluator runs models in the evaluator that comes with the standard,
// one of each form.
func TestONNXReferenceEvaluator(t *testing.T) {
	python := onnxtest.Start(t)
	variations := modeltest.Options()
	for n, name := range []string{"fox pro", "grouped, field a key head", "plain"} {
		c := modeltest.Config()
		variations[name](&c)
		src := randomFile(c, false)
		m, err := src.Build()
		if err != nil {
			t.Fatal(err)
		}
		ids := modeltest.Tokens(40, c.VocabSize, 1)
		want, err := modeltest.Reference(m).Forward(nil, ints(ids))
		if err != nil {
			t.Fatal(err)
		}
		path, _ := writeONNX(t, src, ONNXOptions{Options: unread(quant.F32), Op: []string{ONNXFunction, ONNXInline, ONNXAttention}[n]})
		s := python.Load(t, path, onnxtest.Reference)
		if d := farthest(slices.Concat(s.FeedAll(t, ids, 30)...), want); !(d <= 2e-5) {
			t.Errorf("%s: a logit differs by %g", name, d)
		}
	}
}

// TestONNXHalf writes F16 weights: the results are those of the GGUF file with the
// same weights, and the same with the weights outside.
func TestONNXHalf(t *testing.T) {
	python := onnxtest.Start(t)
	c := modeltest.Config()
	src := randomFile(c, true)
	rounded := randomFile(c, true) // the same with matrices as F16 holds them
	for i, s := range c.Tensors()[:len(rounded.Parts.Tensors)] {
		x := &rounded.Parts.Tensors[i]
		if s.Role != model.Weight {
			continue
		}
		half := make([]byte, len(x.Data)/2)
		if err := quant.Convert(half, quant.F16, x.Data, quant.F32, len(half)/2); err != nil {
			t.Fatal(err)
		}
		x.DType, x.Data = quant.F16, half
	}
	m, err := rounded.Build()
	if err != nil {
		t.Fatal(err)
	}
	ids := modeltest.Tokens(50, c.VocabSize, 4)
	want, err := modeltest.Reference(m).Forward(nil, ints(ids))
	if err != nil {
		t.Fatal(err)
	}
	sizes := make(map[bool]int64)
	for _, external := range []bool{false, true} {
		path, r := writeONNX(t, src, ONNXOptions{Options: unread(quant.F16), External: external})
		if n := len(r.Files); n != map[bool]int{false: 1, true: 2}[external] {
			t.Fatalf("%d files: %v", n, r.Files)
		}
		sizes[external] = r.OutputBytes
		python.Check(t, path)
		s := python.Load(t, path, onnxtest.Runtime)
		if d := farthest(slices.Concat(s.FeedAll(t, ids, 20)...), want); !(d <= 2e-5) {
			t.Errorf("external %v: a logit differs by %g", external, d)
		}
	}
	if _, r := writeONNX(t, src, ONNXOptions{Options: unread(quant.F32)}); r.OutputBytes-sizes[false] < sizes[false]/4 {
		t.Errorf("F16 takes %d bytes, F32 %d", sizes[false], r.OutputBytes)
	}
}

// TestONNXRefused lists options that cannot be written.
func TestONNXRefused(t *testing.T) {
	src := randomFile(modeltest.Config(), false)
	for want, o := range map[string]ONNXOptions{
		"opset":      {Options: unread(quant.F32), Opset: 16},
		"23 to":      {Options: unread(quant.F32), Op: ONNXAttention, Opset: 22},
		"written as": {Options: unread(quant.F32), Op: "loop"},
		"q8_0":       {Options: unread(quant.Q8_0)},
		"one of off": {Options: unread(quant.F32), Cache: "measured"},
		"function":   {Options: unread(quant.F32), Op: ONNXInline, Cache: "exact"},
		"packed":     {Options: unread(quant.F32), Packed: true, Cache: "exact"},
		"not exact":  {Options: unread(quant.F32), Cache: "exact", CacheEps: 0.1},
		"below 1":    {Options: unread(quant.F32), Cache: "bounded", CacheEps: 1},
	} {
		o.Output = filepath.Join(t.TempDir(), "m.onnx")
		if _, err := ToONNX(context.Background(), src, o); err == nil || !strings.Contains(strings.ToLower(err.Error()), want) {
			t.Errorf("%+v: error %v, expected one about %q", o, err, want)
		}
	}
	for name, want := range map[string]string{"softmax rope": "plain softmax", "inclusive relative": "inclusive"} {
		c := modeltest.Config()
		modeltest.Options()[name](&c)
		o := ONNXOptions{Options: unread(quant.F16), Cache: "exact"}
		o.Output = filepath.Join(t.TempDir(), "m.onnx")
		if _, err := ToONNX(context.Background(), randomFile(c, false), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, expected one about %q", name, err, want)
		}
		if files, _ := os.ReadDir(filepath.Dir(o.Output)); len(files) > 0 {
			t.Errorf("%s: %v is left", name, files)
		}
	}
}
