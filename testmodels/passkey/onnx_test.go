package passkey_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/convert"
	"github.com/firstpassage/fpa/runtime/tokenizer"
	"github.com/firstpassage/fpa/testmodels/onnxtest"
)

// toONNX writes this folder's model as an ONNX file and returns its path.
func toONNX(t *testing.T, o convert.ONNXOptions) string {
	t.Helper()
	src, _ := open(t, ".")
	o.Output, o.Version = filepath.Join(t.TempDir(), "passkey.onnx"), "test"
	if _, err := convert.ToONNX(context.Background(), src, o); err != nil {
		t.Fatal(err)
	}
	return o.Output
}

// TestONNX holds the model as an ONNX file, run by ONNX Runtime, against the
// goldens: whole, in calls of 300 tokens, and token by token.
func TestONNX(t *testing.T) {
	python := onnxtest.Start(t)
	for _, c := range []struct {
		op  string
		typ quant.DType
	}{{convert.ONNXFunction, quant.F16}, {convert.ONNXInline, quant.F32}, {convert.ONNXAttention, quant.F32}} {
		holdONNX(t, python, convert.ONNXOptions{Options: convert.Options{Type: c.typ}, Op: c.op})
	}
}

// TestONNXPlugin is TestONNX with the plugin, which takes over the nodes: of a file
// that has them alone, of one whose function would do the same, and of one that asks
// for dead keys to be dropped.
func TestONNXPlugin(t *testing.T) {
	python := onnxtest.Start(t, onnxtest.Plugin(t))
	for _, o := range []convert.ONNXOptions{{Op: convert.ONNXCustom}, {Op: convert.ONNXFunction}, {Op: convert.ONNXCustom, Cache: "exact"}} {
		o.Type = quant.F32
		holdONNX(t, python, o)
	}
}

// holdONNX holds a form of the model against the goldens.
func holdONNX(t *testing.T, python *onnxtest.Python, o convert.ONNXOptions) {
	t.Helper()
	path := toONNX(t, o)
	python.Check(t, path)
	s := python.Load(t, path, onnxtest.Runtime)
	worst := 0.0
	for _, g := range readGoldens(t) {
		for _, calls := range []int{len(g.ids), 300, 1} {
			if calls == 1 && len(g.ids) > 300 && o.Cache != "exact" {
				continue // the states of 2,048 slots, 2,048 times
			}
			var got []float64
			for p, row := range s.FeedAll(t, g.ids, calls) {
				if g.pos[p] {
					got = append(got, row...)
				}
			}
			d := maxDiff(got, g.logits)
			worst = max(worst, d)
			if !(d <= 1e-4) {
				t.Errorf("%s, cache %q, %d tokens, %d at a time: a logit differs by %g", o.Op, o.Cache, len(g.ids), calls, d)
			}
		}
	}
	t.Logf("%s, %s, cache %q: largest difference of a logit %.1e", o.Op, o.Type, o.Cache, worst)
}

// TestONNXCache asks the plugin to drop dead keys of a prompt of 2,040 tokens, fed in
// chunks and token by token, and expects the logits and the answer of the function
// body, which keeps every key, with a small part of its slots. Without the plugin the
// same file keeps every key; each goes on where the other stopped.
func TestONNXCache(t *testing.T) {
	const apart = 2e-4 // each is within 1e-4 of float64, see TestONNXPlugin
	plain, plugin := onnxtest.Start(t), onnxtest.Start(t, onnxtest.Plugin(t))
	text, err := os.ReadFile("prompt-8x.txt")
	if err != nil {
		t.Fatal(err)
	}
	src, _ := open(t, ".")
	tok, err := src.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	ids, err := tok.Encode(string(text), tokenizer.EncodeOptions{AddSpecial: true})
	if err != nil {
		t.Fatal(err)
	}
	f32 := convert.Options{Type: quant.F32}
	body := plain.Load(t, toONNX(t, convert.ONNXOptions{Options: f32}), onnxtest.Runtime)
	want, answer, slots := answerONNX(t, body, ids, len(ids))
	if got, err := tok.Decode(answer, true); err != nil || got != " 23589." {
		t.Fatalf("the function body answers %q, %v", got, err)
	}
	if all := len(ids) + len(answer); slices.Min(slots) != all || slices.Max(slots) != all {
		t.Fatalf("the function body keeps %v slots a layer, expected all %d", slots, all)
	}
	for _, c := range []struct {
		o      convert.ONNXOptions
		chunks []int
	}{
		{convert.ONNXOptions{Op: convert.ONNXCustom, Cache: "exact"}, []int{len(ids), 300, 1}},
		{convert.ONNXOptions{Op: convert.ONNXFunction, Opset: 21, Cache: "bounded", CacheEps: 1e-6}, []int{37}},
	} {
		c.o.Options = f32
		path := toONNX(t, c.o)
		plugin.Check(t, path)
		s := plugin.Load(t, path, onnxtest.Runtime)
		for _, chunk := range c.chunks {
			got, text, slots := answerONNX(t, s, ids, chunk)
			d := maxDiff(got, want)
			if !(d <= apart) || !slices.Equal(text, answer) {
				t.Errorf("cache %s, %d at a time: a logit differs by %g, the answer is %d, expected %d", c.o.Cache, chunk, d, text, answer)
			}
			if least, most := slices.Min(slots), slices.Max(slots); least == 0 || most > len(ids)/50 || least == most {
				t.Errorf("cache %s, %d at a time: of %d tokens the layers keep %d slots", c.o.Cache, chunk, len(ids), slots)
			}
			t.Logf("cache %s, %d at a time: largest difference of a logit %.1e, slots of the layers %d", c.o.Cache, chunk, d, slots)
		}
		if c.o.Op != convert.ONNXFunction {
			continue
		}
		stock := plain.Load(t, path, onnxtest.Runtime)
		for _, sessions := range [][]*onnxtest.Session{{s, stock, s}, {stock, s, stock}} {
			d := sessions[0].NewDecoder(t, 1)
			var got []float32
			for i, from := range []int{0, 700, 1400} {
				d = sessions[i].Continue(d)
				got = append(got, feedONNX(t, d, ids[from:min(from+700, len(ids))])...)
			}
			if diff := maxDiff(got, want[:len(got)]); !(diff <= apart) {
				t.Errorf("with the plugin for a part of the prompt a logit differs by %g", diff)
			}
		}
		got, text, slots := answerONNX(t, stock, ids, 300)
		if d := maxDiff(got, want); !(d <= apart) || !slices.Equal(text, answer) || slices.Min(slots) != len(ids)+len(answer) {
			t.Errorf("without the plugin a logit differs by %g, the answer is %d, slots %d", d, text, slots)
		}
	}
}

// answerONNX feeds a prompt in chunks and then what the model answers, to the end
// token. It gives the logits of the prompt and of the answer, the answer, and how many
// slots each layer has in the end.
func answerONNX(t *testing.T, s *onnxtest.Session, prompt []int32, chunk int) (logits []float32, answer []int32, slots []int) {
	t.Helper()
	const end = 1 // eos_token_id
	d := s.NewDecoder(t, 1)
	feed := func(ids []int32) (next int32) {
		rows := feedONNX(t, d, ids)
		logits = append(logits, rows...)
		last := rows[len(rows)-len(rows)/len(ids):]
		return int32(slices.Index(last, slices.Max(last)))
	}
	var next int32
	for part := range slices.Chunk(prompt, chunk) {
		next = feed(part)
	}
	for next != end && len(answer) < 16 {
		answer = append(answer, next)
		next = feed([]int32{next})
	}
	for _, x := range d.States() {
		if len(x.Shape) == 4 && strings.HasSuffix(x.Name, ".key") {
			slots = append(slots, int(x.Shape[2]))
		}
	}
	return logits, answer, slots
}

// feedONNX feeds tokens in one call and gives their logits.
func feedONNX(t *testing.T, d *onnxtest.Decoder, ids []int32) (logits []float32) {
	t.Helper()
	row := make([]int64, len(ids))
	for i, id := range ids {
		row[i] = int64(id)
	}
	for _, l := range d.Feed(t, onnxtest.Step{IDs: [][]int64{row}})[0] {
		for _, v := range l {
			logits = append(logits, float32(v))
		}
	}
	return logits
}

// TestONNXBounds finds the bounds on the logits in the metadata of every model, and
// those of a layer's heads in its node where keys are to be dropped.
func TestONNXBounds(t *testing.T) {
	_, m := open(t, ".")
	stored, node := m.LogitBounds(quant.F16), m.LogitBounds(quant.F32)
	for _, cache := range convert.ONNXCaches {
		path := toONNX(t, convert.ONNXOptions{Options: convert.Options{Type: quant.F16}, Cache: cache})
		written, _ := open(t, path)
		if got := written.Parts.Config.LogitBound; !slices.Equal(got, stored) {
			t.Errorf("cache %s: the metadata has the bounds %v, expected %v", cache, got, stored)
		}
		f, err := onnx.Open(path, format.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var found []float32 // of the nodes in the branches for short calls, in order
		visitONNX(f.Model.Graph, func(n *onnx.Node) {
			if a := n.Attribute("logit_bound"); a != nil {
				found = append(found, a.Value.([]float32)...)
			}
		})
		// Each layer has a node for short calls, and one in the loop of long ones.
		var expected []float32
		if cache != "off" {
			for l := range slices.Chunk(node, m.Heads) {
				expected = append(expected, slices.Concat(l, l)...)
			}
		}
		if !slices.Equal(found, expected) {
			t.Errorf("cache %s: the nodes have the bounds %v, expected %v", cache, found, expected)
		}
	}
}

// visitONNX visits the nodes of a graph and of those nested in it.
func visitONNX(g *onnx.Graph, visit func(*onnx.Node)) {
	for _, n := range g.Nodes {
		visit(n)
		for _, a := range n.Attributes {
			for _, sub := range a.Graphs() {
				visitONNX(sub, visit)
			}
		}
	}
}

// TestONNXBatch runs three prompts as one batch, padded at the left, then at the right,
// then continued by one token each, and expects what each gives alone; with the plugin
// dropping keys, too.
func TestONNXBatch(t *testing.T) {
	plain, plugin := onnxtest.Start(t), onnxtest.Start(t, onnxtest.Plugin(t))
	golden := slices.MaxFunc(readGoldens(t), func(a, b golden) int { return len(a.ids) - len(b.ids) }).ids
	ends := [][3]int{{0, 0, 0}, {150, 40, 97}, {161, 140, 98}, {162, 141, 99}} // of the three, by calls
	const apart = 2e-4                                                         // each is within 1e-4 of float64
	for _, form := range []struct {
		python *onnxtest.Python
		o      convert.ONNXOptions
	}{{plain, convert.ONNXOptions{}}, {plugin, convert.ONNXOptions{Op: convert.ONNXCustom, Cache: "exact"}}} {
		form.o.Type = quant.F32
		s := form.python.Load(t, toONNX(t, form.o), onnxtest.Runtime)
		var alone [3][][]float64
		for i := range alone {
			alone[i] = s.FeedAll(t, golden[300*i:300*i+ends[3][i]], 1000)
		}
		d := s.NewDecoder(t, 3)
		for call := range 3 {
			longest := 0
			for i := range alone {
				longest = max(longest, ends[call+1][i]-ends[call][i])
			}
			var step onnxtest.Step
			for i := range alone {
				row, mask := make([]int64, longest), make([]int64, longest)
				n := ends[call+1][i] - ends[call][i]
				for j := range n {
					at := j
					if call == 0 {
						at += longest - n
					}
					row[at], mask[at] = int64(golden[300*i+ends[call][i]+j]), 1
				}
				step.IDs, step.Mask = append(step.IDs, row), append(step.Mask, mask)
			}
			for i, rows := range d.Feed(t, step) {
				from, to := ends[call][i], ends[call+1][i]
				if call == 0 {
					rows = rows[longest-(to-from):]
				}
				for j := range to - from {
					if diff := maxDiff(rows[j], alone[i][from+j]); !(diff <= apart) {
						t.Fatalf("cache %q, call %d, sequence %d, token %d: a logit differs by %g", form.o.Cache, call, i, from+j, diff)
					}
				}
			}
		}
	}
}
