package cpu

import (
	"fmt"
	"math"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// build makes a model or fails the test.
func build(t testing.TB, p model.Parts) *model.Model {
	t.Helper()
	m, err := model.Build(p.Config, p.Tensors)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// run feeds ids in calls of so many tokens and returns the logits of every
// position, [T, V].
func run(t *testing.T, m *model.Model, o Options, typ quant.DType, p cache.Policy, ids []int32, calls int) ([]float32, engine.Session) {
	t.Helper()
	e, err := New(m, o)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s, err := e.NewSession(typ, p)
	if err != nil {
		t.Fatal(err)
	}
	var logits []float32
	for len(ids) > 0 {
		n := min(calls, len(ids))
		err := s.Feed(ids[:n], func(int) bool { return true }, func(pos int, l []float32) error {
			if pos*m.VocabSize != len(logits) {
				return fmt.Errorf("position %d after %d logits", pos, len(logits))
			}
			logits = append(logits, l...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		ids = ids[n:]
	}
	return logits, s
}

// oracle is the float64 result.
func oracle(t *testing.T, m *model.Model, ids []int32) []float64 {
	t.Helper()
	wide := make([]int, len(ids))
	for i, id := range ids {
		wide[i] = int(id)
	}
	logits, err := modeltest.Reference(m).Forward(nil, wide)
	if err != nil {
		t.Fatal(err)
	}
	return logits
}

func maxDiff[A, B float32 | float64](a []A, b []B) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	worst := 0.0
	for i := range a {
		d := math.Abs(float64(a[i]) - float64(b[i]))
		if !(d <= worst) {
			worst = d
		}
	}
	return worst
}

// TestOracle holds every option of the block against the float64 decoder, in
// every way to split the prompt into calls and chunks.
func TestOracle(t *testing.T) {
	for name, option := range modeltest.Options() {
		t.Run(name, func(t *testing.T) {
			c := modeltest.Config()
			option(&c)
			for _, tied := range []bool{false, true} {
				m := build(t, modeltest.Random(c, 7, tied))
				ids := modeltest.Tokens(90, c.VocabSize, 3)
				want := oracle(t, m, ids)
				for _, split := range []struct{ calls, chunk, threads int }{{90, 512, 1}, {90, 7, 2}, {1, 512, 2}, {40, 16, 3}} {
					got, _ := run(t, m, Options{Threads: split.threads, Chunk: split.chunk}, quant.F32, cache.Policy{Mode: cache.Off}, ids, split.calls)
					if d := maxDiff(got, want); !(d < 2e-5) {
						t.Errorf("tied %v, %+v: logits differ by %g", tied, split, d)
					}
				}
			}
		})
	}
}
