package cache

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/firstpassage/fpa/quant"
)

// BenchmarkDecode attends from one token to many keys, in as many heads as do not
// fit any cache of the processor, on two goroutines. Bytes a second are those of
// keys, values, levels and lows.
func BenchmarkDecode(b *testing.B) {
	for _, typ := range []quant.DType{quant.F16, quant.Q8_0, quant.F32} {
		for _, keys := range []int{1000, 10_000} {
			b.Run(fmt.Sprintf("%s_%d", typ, keys), func(b *testing.B) {
				heads := 200_000_000 / (keys * 300)
				s := Shape{Layers: 1, QueryHeads: heads, KeyHeads: heads, FieldHeads: heads, KeyDim: 64, ValueDim: 64, Type: typ, Scale: 0.125}
				var bound []float32
				for range heads {
					s.Slope, bound = append(s.Slope, 1), append(bound, 8)
				}
				c := newCache(b, s, Policy{Mode: Exact, Bound: bound})
				x := Tokens{
					N: 1, Query: make([]float32, heads*64), Key: make([]float32, heads*64), Value: make([]float32, heads*64),
					Field: make([]float32, heads), Level: make([]float32, heads), Low: make([]float32, heads), Moved: make([]float32, heads), Out: make([]float32, heads*64),
				}
				for i := range x.Query {
					x.Query[i], x.Key[i], x.Value[i] = rand.Float32(), rand.Float32(), rand.Float32()
				}
				for h := range heads {
					x.Low[h] = posInf
				}
				var scratch [2]Scratch
				step := func() {
					var w sync.WaitGroup
					for worker := range scratch {
						w.Go(func() {
							for h := worker; h < heads; h += len(scratch) {
								c.Groups(0)[h].Feed(&x, &scratch[worker])
							}
						})
					}
					w.Wait()
				}
				for h := range heads {
					g := c.Groups(0)[h]
					for range keys {
						k := g.token(&x, 0)
						g.clock.pass(1, k.field)
						g.add(&k, 0)
					}
				}
				b.SetBytes(int64(heads*keys) * c.Groups(0)[0].slotBytes())
				b.ResetTimer()
				for range b.N {
					step()
				}
			})
		}
	}
}
