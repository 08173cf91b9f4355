package passkey_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/convert"
	"github.com/firstpassage/fpa/testmodels/onnxtest"
)

// TestONNX holds the model as an ONNX file, run by ONNX Runtime, against the
// goldens: whole, in calls of 300 tokens, and token by token.
func TestONNX(t *testing.T) {
	python := onnxtest.Start(t)
	src, _ := open(t, ".")
	goldens := readGoldens(t)
	for _, c := range []struct {
		op  string
		typ quant.DType
	}{{convert.ONNXFunction, quant.F16}, {convert.ONNXInline, quant.F32}, {convert.ONNXAttention, quant.F32}} {
		path := filepath.Join(t.TempDir(), "passkey.onnx")
		o := convert.ONNXOptions{Options: convert.Options{Output: path, Type: c.typ, Version: "test"}, Op: c.op}
		if _, err := convert.ToONNX(context.Background(), src, o); err != nil {
			t.Fatal(err)
		}
		python.Check(t, path)
		s := python.Load(t, path, onnxtest.Runtime)
		worst := 0.0
		for _, g := range goldens {
			for _, calls := range []int{len(g.ids), 300, 1} {
				if calls == 1 && len(g.ids) > 300 {
					continue // long, and the same as at 300
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
					t.Errorf("%s, %d tokens, %d at a time: a logit differs by %g", c.op, len(g.ids), calls, d)
				}
			}
		}
		t.Logf("%s, %s: largest difference of a logit %.1e", c.op, c.typ, worst)
	}
}
