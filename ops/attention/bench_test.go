package attention

import (
	"math/rand/v2"
	"testing"
)

// BenchmarkCall times one thread on the attention of a small decoder's layer: 12
// heads of 64, f32. "near" has penalties that kill no key, with "far" a key is dead
// after about 250 positions.
func BenchmarkCall(b *testing.B) {
	for _, test := range []struct {
		name        string
		fresh, past int
		step        float64
	}{
		{"prefill 512", 512, 0, 0.001},
		{"prefill 4096 near", 4096, 0, 0.001},
		{"prefill 4096 far", 4096, 0, 0.5},
		{"decode at 4096", 1, 4096, 0.001},
	} {
		b.Run(test.name, func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			normals := func(n int) []float32 {
				x := make([]float32, n)
				for i := range x {
					x[i] = float32(r.NormFloat64())
				}
				return x
			}
			const heads, d = 12, 64
			t, p := test.fresh, test.past
			c := Call[float32]{Operands: Operands[float32]{
				Shape: Shape{1, heads, heads, heads, t, p, d, d},
				Query: normals(heads * t * d), Key: normals(heads * t * d), Value: normals(heads * t * d),
				Field: make([]float32, heads*t), Slope: make([]float32, heads),
				PastKey: normals(heads * p * d), PastValue: normals(heads * p * d),
				PastLevel: make([]float32, heads*p), PastLow: make([]float32, heads*p),
			}}
			for h := range heads {
				c.Slope[h] = 1
				field := 0.0
				for i := range t {
					field -= test.step * r.ExpFloat64()
					c.Field[h*t+i] = float32(field)
				}
			}
			c.Level = c.Field
			slots, err := c.Plan()
			if err != nil {
				b.Fatal(err)
			}
			c.Results = results[float32](b, c.Shape, slots)
			var s Scratch
			for b.Loop() {
				for u := range c.Units() {
					c.Run(u, &s)
				}
			}
		})
	}
}
