package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// withEigenvalues is a symmetric matrix of given eigenvalues: H diag(e) H for a few
// random reflections H.
func withEigenvalues(rng *rand.Rand, e []float64) []float64 {
	d := len(e)
	g := make([]float64, d*d)
	for i, v := range e {
		g[i*d+i] = v
	}
	for range 3 {
		v := normals(rng, d)
		size := math.Sqrt(dot(v, v))
		for i := range v {
			v[i] /= size
		}
		gv := times(g, v)
		vgv := dot(v, gv)
		for i := range d {
			for j := range d {
				g[i*d+j] += -2*v[i]*gv[j] - 2*gv[i]*v[j] + 4*vgv*v[i]*v[j]
			}
		}
	}
	for i := range d { // exactly symmetric
		for j := range i {
			g[j*d+i] = g[i*d+j]
		}
	}
	return g
}

func normals(rng *rand.Rand, n int) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = rng.NormFloat64()
	}
	return v
}

// TestLargestEigenvalue takes spectra of every kind, in sizes from nearly nothing to
// nearly too much: never below, hardly above.
func TestLargestEigenvalue(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	spectra := map[string]func(i, d int) float64{
		"flat":      func(int, int) float64 { return 1 },
		"one":       func(i, _ int) float64 { return float64(1 - min(i, 1)) },
		"cluster":   func(i, _ int) float64 { return 1 - 1e-3*float64(i) },
		"pair":      func(i, _ int) float64 { return []float64{1, 1 - 1e-6, 0.1}[min(i, 2)] },
		"geometric": func(i, _ int) float64 { return math.Pow(0.5, float64(i)) },
		"uniform":   func(i, d int) float64 { return 1 - float64(i)/float64(d) },
	}
	loosest := 0.0
	for name, f := range spectra {
		for _, d := range []int{1, 2, 3, 7, 64, 100} {
			for _, size := range []float64{1e-170, 1e-40, 1, 1e70} {
				e := make([]float64, d)
				for i := range e {
					e[i] = size * max(f(i, d), 0)
				}
				got := largestEigenvalue(withEigenvalues(rng, e), d) / size
				// The matrix itself is off by some d ulp.
				if !(got >= 1-1e-14*float64(d)) || got > 1.03 {
					t.Errorf("%s, %d wide, size %g: %v, expected just above 1", name, d, size, got)
				}
				loosest = max(loosest, got)
			}
		}
	}
	t.Logf("at most %.5f times the largest eigenvalue", loosest)
	// The vector that power iteration begins with has no say in what is proved.
	for _, g := range [][]float64{{0, 0, 0, 0}, {1, 0, 0, 0}, {0, 0, 0, 1}, {2, -1, -1, 2}, {1e-300, 0, 0, 1}} {
		want := (g[0]+g[3])/2 + math.Hypot((g[0]-g[3])/2, g[1])
		if got := largestEigenvalue(g, 2); got < want || got > want*1.001 {
			t.Errorf("of %v: %v, expected just above %v", g, got, want)
		}
	}
}

// TestRoot checks U^T U >= P P^T along random directions, and that it is near, for
// matrices of full and of lesser rank.
func TestRoot(t *testing.T) {
	rng := rand.New(rand.NewPCG(33, 34))
	const d, n = 9, 23
	for name, change := range map[string]func(p []float64){
		"full":      func([]float64) {},
		"zero":      func(p []float64) { clear(p) },
		"rank 1":    func(p []float64) { each(p, func(i int) float64 { return p[i%n] * float64(1+i/n) }) },
		"same rows": func(p []float64) { each(p, func(i int) float64 { return p[i%n] }) },
		"one row":   func(p []float64) { clear(p[:(d-1)*n]) },
		"mixed": func(p []float64) {
			each(p, func(i int) float64 { return p[i] * math.Pow(10, float64(6*(i/n)-24)) })
		},
		"tiny": func(p []float64) { each(p, func(i int) float64 { return p[i] * 1e-85 }) },
		"huge": func(p []float64) { each(p, func(i int) float64 { return p[i] * 1e36 }) },
	} {
		p := normals(rng, d*n)
		change(p)
		g := gram(p, d, n)
		u := rootOf(g, d, n)
		all := trace(g, d)
		for range 200 {
			v := normals(rng, d)
			pv := make([]float64, n) // P^T v
			for i, x := range v {
				for c := range pv {
					pv[c] += x * p[i*n+c]
				}
			}
			uv := times(u, v)
			want, got := dot(pv, pv), dot(uv, uv)
			if got < want*(1-1e-13) || got > want+1e-11*all*dot(v, v) {
				t.Fatalf("%s: |U v|² is %g, |P^T v|² %g", name, got, want)
			}
		}
	}
}

func each(p []float64, f func(i int) float64) {
	next := make([]float64, len(p))
	for i := range p {
		next[i] = f(i)
	}
	copy(p, next)
}

// TestLargestForm compares with the largest value that alternating maximisation
// finds, on projections of which one or both are of lesser rank, or orthogonal.
func TestLargestForm(t *testing.T) {
	rng := rand.New(rand.NewPCG(35, 36))
	const d, n = 5, 12
	for run := range 40 {
		t.Run(fmt.Sprint(run), func(t *testing.T) {
			x, y := normals(rng, d*n), normals(rng, d*n)
			switch run % 4 {
			case 1: // ranks 1 and 2
				each(x, func(i int) float64 { return x[i%n] })
				each(y, func(i int) float64 { return y[i%(2*n)] })
			case 2: // P^T R is 0
				clear(x[2*n:])
				clear(y[2*n:])
				for c := range n {
					x[n+c], y[c] = 3*x[c], -3*y[n+c]
				}
			}
			p, r := projectionOf(x, d, n), projectionOf(y, d, n)
			if run%4 == 3 {
				p.bias, r.bias = normals(rng, d), normals(rng, d)
				p.biasLen, r.biasLen = length(p.bias), length(r.bias)
			}
			got := largestForm(&p, &r, 2)
			lengths := (2*p.norm + p.biasLen) * (2*r.norm + r.biasLen)
			if got > lengths*(1+1e-4) {
				t.Errorf("%g, more than the product of the lengths %g", got, lengths)
			}
			best := 0.0
			for range 4 {
				a := normals(rng, n)
				var b []float64
				for range 300 {
					b = along(y, apply(x, a, p.bias), n, 2)
					a = along(x, apply(y, b, r.bias), n, 2)
				}
				best = max(best, math.Abs(dot(apply(x, a, p.bias), apply(y, b, r.bias))))
			}
			if best > got {
				t.Errorf("reached %g, the bound is %g", best, got)
			}
			if run%4 < 2 && best < 0.999*got || run%4 == 2 && got > 1e-4*lengths {
				t.Errorf("reached %g, the bound is %g, the product of lengths %g", best, got, lengths)
			}
		})
	}
}

func projectionOf(x []float64, d, n int) projection {
	g := gram(x, d, n)
	return projection{root: rootOf(g, d, n), bias: make([]float64, d), norm: math.Sqrt(largestEigenvalue(g, d)), width: n}
}

// apply is m v + b.
func apply(m, v, b []float64) []float64 {
	out := make([]float64, len(b))
	for i := range out {
		out[i] = dot(m[i*len(v):(i+1)*len(v)], v) + b[i]
	}
	return out
}

// along is the vector of a length in the direction of m^T v.
func along(m, v []float64, n int, size float64) []float64 {
	out := make([]float64, n)
	for i, x := range v {
		for c := range out {
			out[c] += x * m[i*n+c]
		}
	}
	if l := math.Sqrt(dot(out, out)); l > 0 {
		for c := range out {
			out[c] *= size / l
		}
	}
	return out
}
