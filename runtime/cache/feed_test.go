package cache

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/firstpassage/fpa/quant"
)

// randomTokens are n tokens of a layer whose fields fall so slowly that keys live for
// some hundreds of tokens.
func randomTokens(s Shape, n int, seed uint64) Tokens {
	rng := rand.New(rand.NewPCG(seed, 5))
	numbers := func(width int) []float32 {
		v := make([]float32, n*width)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
		return v
	}
	x := Tokens{
		N: n, Query: numbers(s.QueryHeads * s.KeyDim), Key: numbers(s.KeyHeads * s.KeyDim), Value: numbers(s.KeyHeads * s.ValueDim),
		Field: numbers(s.FieldHeads), Level: numbers(s.FieldHeads), Low: numbers(s.FieldHeads), Moved: make([]float32, n*s.FieldHeads),
		Out: make([]float32, n*s.QueryHeads*s.ValueDim),
	}
	for h := range s.FieldHeads {
		walk := NewWalk(1)
		for t := range n {
			i := t*s.FieldHeads + h
			field, moved := walk.Step(0, float64(x.Field[i])*0.1-0.02)
			x.Field[i], x.Level[i], x.Moved[i], x.Low[i] = float32(field), float32(field)+0.1*x.Level[i], moved, posInf
		}
	}
	return x
}

// from is the tokens from t on, at most n.
func (x *Tokens) from(s Shape, t, n int) Tokens {
	n = min(n, x.N-t)
	of := func(v []float32, width int) []float32 { return v[t*width : (t+n)*width] }
	return Tokens{
		N: n, Query: of(x.Query, s.QueryHeads*s.KeyDim), Key: of(x.Key, s.KeyHeads*s.KeyDim), Value: of(x.Value, s.KeyHeads*s.ValueDim),
		Field: of(x.Field, s.FieldHeads), Level: of(x.Level, s.FieldHeads), Low: of(x.Low, s.FieldHeads), Moved: of(x.Moved, s.FieldHeads),
		Out: of(x.Out, s.QueryHeads*s.ValueDim),
	}
}

// TestFeedInPieces takes tokens in by tasks in any order, with several scratches, and
// expects the bits of Group.Feed; and, token by token over so many keys that there are
// several tasks, what blocks give, up to the order of sums.
func TestFeedInPieces(t *testing.T) {
	const n = 1700
	for _, heads := range [][3]int{{4, 2, 0}, {4, 2, 1}, {4, 2, 2}, {4, 2, 4}, {3, 1, 3}} {
		for _, typ := range []quant.DType{quant.F16, quant.Q8_0} {
			t.Run(fmt.Sprint(heads, typ), func(t *testing.T) {
				s := Shape{Layers: 1, QueryHeads: heads[0], KeyHeads: heads[1], FieldHeads: heads[2], KeyDim: 8, ValueDim: 12, Type: typ, Scale: 0.5}
				bound := make([]float32, s.QueryHeads)
				for range s.FieldHeads {
					s.Slope = append(s.Slope, 1)
				}
				for i := range bound {
					bound[i] = 1
				}
				results := map[string][]float32{}
				most := 0
				for _, way := range []struct {
					name   string
					calls  int
					pieces bool
				}{{"blocks", 200, false}, {"blocks in pieces", 200, true}, {"tokens", 1, false}, {"tokens in pieces", 1, true}} {
					x := randomTokens(s, n, 7)
					c := newCache(t, s, Policy{Mode: Exact, Bound: bound})
					rng := rand.New(rand.NewPCG(1, 1))
					var scratch [3]Scratch
					var f Feed
					for at := 0; at < n; at += way.calls {
						part := x.from(s, at, way.calls)
						for _, g := range c.Groups(0) {
							if !way.pieces {
								g.Feed(&part, &scratch[0])
								continue
							}
							f.Reset(g, &part)
							for tasks := f.Open(); tasks > 0; tasks = f.Open() {
								most = max(most, tasks)
								for _, task := range rng.Perm(tasks) {
									f.Run(task, task+1, &scratch[rng.IntN(3)])
								}
								f.Close(&scratch[rng.IntN(3)])
							}
							if f.Open() != 0 {
								t.Fatal("there are tasks after the last one")
							}
						}
						c.Advance(part.N)
					}
					results[way.name] = x.Out
					if kept := c.Stats().Kept; s.FieldHeads > 0 && !(kept > 0.1 && kept < 1) {
						t.Errorf("%s: %g of the keys are kept, which says nothing about pages that are dead or have holes", way.name, kept)
					}
				}
				if !slices.Equal(results["blocks"], results["blocks in pieces"]) || !slices.Equal(results["tokens"], results["tokens in pieces"]) {
					t.Error("pieces give another result")
				}
				for i, want := range results["blocks"] {
					if d := math.Abs(float64(results["tokens"][i] - want)); !(d < 2e-5) {
						t.Fatalf("output %d differs by %g between tokens and blocks", i, d)
					}
				}
				if parts := (n/PageSlots + partPages) / partPages; s.FieldHeads == 0 && most < parts {
					t.Errorf("%d tasks at most, expected %d", most, parts)
				}
			})
		}
	}
}
