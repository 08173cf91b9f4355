package cpu

import (
	"math"
	"slices"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// TestInt8 runs models of quantised types with activations rounded to bytes: the
// logits move by what such rounding explains, and neither threads nor repacking change
// a bit of them.
func TestInt8(t *testing.T) {
	for _, typ := range []quant.DType{quant.Q8_0, quant.Q4_0, quant.Q4_1} {
		c := modeltest.Config()
		c.Hidden, c.FeedForward, c.KeyDim, c.ValDim, c.KVHeads = 64, 96, 16, 16, 2
		c.KeyShift, c.OutputGate = true, model.Sigmoid
		m := quantised(t, c, typ, false)
		ids := modeltest.Tokens(40, c.VocabSize, 3)
		want := oracle(t, m, ids)
		var first []float32
		for _, o := range []Options{{Threads: 1}, {Threads: 3}, {Threads: 2, NoRepack: true}} {
			o.Int8 = true
			got, _ := run(t, m, o, quant.F32, cache.Policy{Mode: cache.Off}, ids, len(ids))
			var off, size float64
			for i, w := range want {
				off += (float64(got[i]) - w) * (float64(got[i]) - w)
				size += w * w
			}
			if r := math.Sqrt(off / size); !(r > 1e-4 && r < 3e-2) {
				t.Errorf("%s, %+v: logits move by %g of their size", typ, o, r)
			}
			if first == nil {
				first = got
			}
			if !slices.Equal(got, first) {
				t.Errorf("%s, %+v: other logits than on one thread", typ, o)
			}
		}
		if m.Output.W.Int8 {
			t.Fatal("the model itself has changed")
		}
	}
}

// TestInt8Bound: a rounded block of 32 is longer by the share that the bound allows at
// most, and engines with rounding have the larger bound.
func TestInt8Bound(t *testing.T) {
	for a := 0.5; a < 127; a += 0.25 {
		if growth := (127*127 + 31*(a+0.5)*(a+0.5)) / (127*127 + 31*a*a); growth > roundedLogit {
			t.Errorf("elements of %g steps: a product grows by %g, the bound allows %g", a, growth, roundedLogit)
		}
	}
	c := modeltest.Config()
	c.QKNorm = model.NormHead
	m := build(t, modeltest.Random(c, 7, true))
	var bounds [2][]float32
	for i, int8 := range []bool{false, true} {
		e, err := New(m, Options{Threads: 1, Int8: int8})
		if err != nil {
			t.Fatal(err)
		}
		bounds[i] = slices.Clone(e.logitBound(quant.F16))
		e.Close()
	}
	if len(bounds[0]) == 0 || len(bounds[0]) != len(bounds[1]) {
		t.Fatalf("%d and %d bounds", len(bounds[0]), len(bounds[1]))
	}
	for i, b := range bounds[0] {
		if bounds[1][i] != b*roundedLogit {
			t.Errorf("bound %d is %g, expected %g", i, bounds[1][i], b*roundedLogit)
		}
	}
}
