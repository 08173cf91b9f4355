package cpu

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// quantised is a random model whose matrices are of a type, but for those of fields.
func quantised(t testing.TB, c model.Config, typ quant.DType, tied bool) *model.Model {
	t.Helper()
	p := modeltest.Random(c, 7, tied)
	for i := range p.Tensors {
		x := &p.Tensors[i]
		if len(x.Shape) != 2 || !strings.HasSuffix(x.Name, ".weight") || strings.Contains(x.Name, "norm") ||
			strings.Contains(x.Name, "_field") || strings.Contains(x.Name, "_level") {
			continue
		}
		wide := make([]float32, len(x.Data)/4)
		for j := range wide {
			wide[j] = math.Float32frombits(binary.LittleEndian.Uint32(x.Data[4*j:]))
		}
		x.DType = typ
		x.Data = make([]byte, len(wide)/typ.BlockLen()*typ.BlockBytes())
		if err := quant.Encode(x.Data, typ, wide); err != nil {
			t.Fatal(err)
		}
	}
	return build(t, p)
}

// TestRepacked holds models of quantised types against the float64 decoder, repacked
// and not, and expects that threads do not matter, nor, repacked, whether tokens are
// fed one by one.
func TestRepacked(t *testing.T) {
	for _, typ := range []quant.DType{quant.Q8_0, quant.Q4_0, quant.Q4_1, quant.Q4_K, quant.Q6_K} {
		for _, tied := range []bool{false, true} {
			c := modeltest.Config()
			c.Hidden, c.FeedForward, c.KeyDim, c.ValDim, c.KVHeads = 64, 96, 16, 16, 2
			c.KeyShift, c.OutputGate = true, model.Sigmoid
			if typ.BlockLen() == 256 {
				c.Hidden, c.FeedForward, c.KeyDim, c.ValDim = 256, 256, 64, 64
			}
			m := quantised(t, c, typ, tied)
			data := slices.Clone(m.Output.W.Data)
			ids := modeltest.Tokens(40, c.VocabSize, 3)
			want := oracle(t, m, ids)
			var first, mapped []float32
			for _, o := range []Options{{Threads: 1}, {Threads: 3}, {Threads: 2, Chunk: 7}, {Threads: 2, NoRepack: true}, {Threads: 2, NoRepack: true, Copy: CopyAlways}, {Threads: 3, Copy: CopyAlways}} {
				got, _ := run(t, m, o, quant.F32, cache.Policy{Mode: cache.Off}, ids, len(ids))
				if d := maxDiff(got, want); !(d < 2e-5) {
					t.Errorf("%s, tied %v, %+v: logits differ by %g", typ, tied, o, d)
				}
				switch {
				case first == nil:
					first = got
				case o.NoRepack && o.Copy != CopyAlways:
					mapped = got
				case o.NoRepack && !slices.Equal(got, mapped):
					t.Errorf("%s: a copy changes the logits", typ)
				case o.Chunk == 0 && !o.NoRepack && !slices.Equal(got, first):
					t.Errorf("%s: the number of threads changes the logits", typ)
				}
			}
			if !slices.Equal(m.Output.W.Data, data) {
				t.Fatalf("%s: repacking changed the model's own weights", typ)
			}
		}
	}
}

// TestWorthCopying: neither little nor much of the memory is copied unasked.
func TestWorthCopying(t *testing.T) {
	for _, test := range []struct {
		bytes, available int
		want             bool
	}{
		{220 << 20, 16 << 30, true}, {220 << 20, 1 << 30, true},
		{220 << 20, 800 << 20, false}, {220 << 20, 0, false},
		{1 << 20, 16 << 30, false}, {2 << 30, 64 << 30, false},
	} {
		if got := worthCopying(test.bytes, test.available); got != test.want {
			t.Errorf("%d MB of %d MB: %v", test.bytes>>20, test.available>>20, got)
		}
	}
}

// TestCopied copies matrices of several pieces, and looks at each byte, and at what the
// engine says it holds.
func TestCopied(t *testing.T) {
	c := modeltest.Config()
	c.Hidden, c.FeedForward, c.VocabSize = 256, 1500, 1200 // 1.5 MB and 1.2 MB in F32
	m := build(t, modeltest.Random(c, 7, false))
	for _, copying := range []Copying{CopyNever, CopyAlways} {
		e := engineOf(t, m, Options{Threads: 2, Copy: copying})
		size := len(m.Embed.Data)
		for i, w := range matrices(e.model) {
			from := matrices(m)[i]
			if !bytes.Equal(w.Data, from.Data) {
				t.Errorf("matrix %d, %d by %d: the copy differs", i, w.Rows, w.Cols)
			}
			if same := &w.Data[0] == &from.Data[0]; same != (copying == CopyNever) {
				t.Errorf("matrix %d: used in place: %v", i, same)
			}
			size += len(w.Data)
		}
		held := 0
		for _, b := range e.weights() {
			held += len(b)
		}
		if most := size + 64*len(matrices(m)); held < size || held > most {
			t.Errorf("the weights fill %d bytes, expected %d to %d", held, size, most)
		}
	}
}

// TestShare runs an engine on the weights of another one.
func TestShare(t *testing.T) {
	c := modeltest.Config()
	c.Hidden, c.FeedForward, c.KeyDim, c.ValDim = 64, 96, 16, 16
	m := quantised(t, c, quant.Q8_0, true)
	e, err := New(m, Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	shared := e.Share(1)
	defer shared.Close()
	if shared.Threads() != 1 || shared.model != e.model {
		t.Errorf("%d threads, its own weights: %v", shared.Threads(), shared.model != e.model)
	}
	var logits [2][]float32
	for i, e := range []*Engine{e, shared} {
		s, err := e.NewSession(quant.F16, cache.Policy{Mode: cache.Off})
		if err != nil {
			t.Fatal(err)
		}
		err = s.Feed([]int32{1, 2, 3}, nil, func(_ int, l []float32) error {
			logits[i] = slices.Clone(l)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(logits[0]) != c.VocabSize || !slices.Equal(logits[0], logits[1]) {
		t.Error("the two differ")
	}
}
