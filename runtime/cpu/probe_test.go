package cpu

import (
	"math"
	"testing"

	"github.com/firstpassage/fpa/ops/reference"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// probed feeds ids and returns what the probe saw of each layer, [T, Hf].
func probed(t *testing.T, m *model.Model, chunk int, ids []int32) (field, level [][]float64) {
	t.Helper()
	e, err := New(m, Options{Threads: 2, Chunk: chunk})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s, err := e.NewSession(quant.F32, cache.Policy{Mode: cache.Off})
	if err != nil {
		t.Fatal(err)
	}
	field, level = make([][]float64, m.Blocks), make([][]float64, m.Blocks)
	s.(*Session).SetProbe(func(layer, first int, f, l []float64) {
		if first*m.FieldHeads != len(field[layer]) || len(f) != len(l) {
			t.Fatalf("layer %d: a report of %d fields and %d levels from position %d, after %d values", layer, len(f), len(l), first, len(field[layer]))
		}
		field[layer], level[layer] = append(field[layer], f...), append(level[layer], l...)
	})
	if err := s.Feed(ids, nil, func(int, []float32) error { return nil }); err != nil {
		t.Fatal(err)
	}
	return field, level
}

// TestProbe holds what the probe sees of the first layer against the float64
// field source on the same embeddings, and all layers against another chunking.
func TestProbe(t *testing.T) {
	for name, option := range modeltest.Options() {
		t.Run(name, func(t *testing.T) {
			c := modeltest.Config()
			option(&c)
			m := build(t, modeltest.Random(c, 11, false))
			if m.Field == model.FieldWalk {
				m.Layers[0].Field.Bias[0] = 3 // moves the walk's base now and then
			}
			ids := modeltest.Tokens(300, c.VocabSize, 5)
			field, level := probed(t, m, 512, ids)
			if m.Field == model.FieldNone {
				if len(field[0]) != 0 {
					t.Fatalf("a model without field reports %d values", len(field[0]))
				}
				return
			}
			d := modeltest.Reference(m)
			l := &d.Weights.Layers[0]
			x := make([]float64, 0, len(ids)*m.Hidden)
			for _, id := range ids {
				x = append(x, reference.RMSNorm(d.Weights.Embedding[int(id)*m.Hidden:(int(id)+1)*m.Hidden], l.AttnNorm, d.Config.NormEps)...)
			}
			source := reference.FieldSource{
				Heads: m.FieldHeads, Width: m.Hidden, Kind: d.Config.FieldKind, Activation: d.Config.FieldActivation, Level: d.Config.LevelKind,
				Weight: l.Field, Bias: l.FieldBias, LevelWeight: l.Level, LevelBias: l.LevelBias,
			}
			wantField, wantLevel, err := source.Evaluate(x, make([]float64, m.FieldHeads), nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range ids {
				for h := range m.FieldHeads {
					got, want := i*m.FieldHeads+h, h*len(ids)+i // token by token, and head by head
					f, l := math.Abs(field[0][got]-wantField[want]), math.Abs(level[0][got]-wantLevel[want])
					if limit := 1e-6 * float64(i+10); !(f < limit) || !(l < limit) { // increments are float32
						t.Fatalf("position %d, head %d: field %g and level %g, expected %g and %g", i, h, field[0][got], level[0][got], wantField[want], wantLevel[want])
					}
				}
			}
			otherField, otherLevel := probed(t, m, 7, ids)
			for i := range field {
				if f, l := maxDiff(field[i], otherField[i]), maxDiff(level[i], otherLevel[i]); !(f < 1e-3) || !(l < 1e-3) {
					t.Errorf("layer %d: in chunks of 7 tokens fields differ by %g, levels by %g", i, f, l)
				}
			}
		})
	}
}
