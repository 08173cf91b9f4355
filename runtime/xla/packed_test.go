package xla

import (
	"strings"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// TestPacked holds matrices that stay packed against the same ones widened when they
// are loaded, and against the CPU engine.
func TestPacked(t *testing.T) {
	c := modeltest.Config()
	modeltest.Options()["fox pro"](&c)
	c.Blocks, c.Hidden, c.FeedForward = 1, 64, 96
	c.KeyDim, c.ValDim = 32, 32
	for _, typ := range []quant.DType{quant.Q8_0, quant.Q4_0, quant.Q4_1, quant.Q5_0} {
		p := modeltest.Random(c, 8, true)
		for i := range p.Tensors {
			x := &p.Tensors[i]
			if !strings.HasSuffix(x.Name, ".weight") || len(x.Shape) != 2 || strings.Contains(x.Name, "norm") || strings.Contains(x.Name, "field") || x.Shape[1]%blockLen != 0 {
				continue
			}
			wide := make([]float32, x.Shape[0]*x.Shape[1])
			if err := quant.Decode(wide, x.DType, x.Data); err != nil {
				t.Fatal(err)
			}
			x.DType, x.Data = typ, make([]byte, sizeOf(typ, len(wide)))
			if err := quant.Encode(x.Data, x.DType, wide); err != nil {
				t.Fatal(err)
			}
		}
		m := build(t, p)
		ids := modeltest.Tokens(20, m.VocabSize, 2)
		policy := cache.Policy{Mode: cache.Exact}
		want := feed(t, newSession(t, cpuEngine(t, m), quant.F32, policy), ids, nil)
		each(t, func(k kind) bool { return k.shared && (!k.compiles || typ == quant.Q4_1) }, func(t *testing.T, k kind) {
			wide := k.engine(t, m, Options{})
			packed := k.engine(t, m, Options{Packed: true})
			if less := packed.stats.WeightBytes*2 < wide.stats.WeightBytes; less != (typ != quant.Q5_0) {
				t.Errorf("%s: %d bytes of weights, and %d when widened", typ, packed.stats.WeightBytes, wide.stats.WeightBytes)
			}
			got := feed(t, newSession(t, packed, quant.F32, policy), ids, nil)
			if d := maxDiff(got, feed(t, newSession(t, wide, quant.F32, policy), ids, nil)); !(d < 1e-5) {
				t.Errorf("%s: logits differ by %g from those of widened weights", typ, d)
			}
			if d := maxDiff(got, want); !(d < 1e-4) {
				t.Errorf("%s: logits differ by %g from the CPU engine's", typ, d)
			}
		})
	}
}
