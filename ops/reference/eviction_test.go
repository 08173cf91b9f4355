package reference

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/firstpassage/fpa/quant"
)

func TestQKNormBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	for _, rotary := range []Rotary{{}, {Dim: 8, Base: 1e4}, {Dim: 4, Base: 100}} {
		t.Run(fmt.Sprint("rotary ", rotary.Dim), func(t *testing.T) {
			const d = 8
			scale := 1 / math.Sqrt(d)
			tightest := 0.0
			for range 300 {
				wq, wk := normals(rng, d, 1), normals(rng, d, 1)
				u, err := QKNormBound(wq, wk, scale, rotary.Dim > 0, Rounding{})
				if err != nil {
					t.Fatal(err)
				}
				if float64(float32(u)) != u {
					t.Errorf("bound %v is no float32", u)
				}
				for n := range 40 {
					x, y := normals(rng, d, 10), normals(rng, d, 10)
					if n == 0 { // the worst case without rotation
						best := 0
						for i := range wq {
							if math.Abs(wq[i]*wk[i]) > math.Abs(wq[best]*wk[best]) {
								best = i
							}
						}
						clear(x)
						clear(y)
						x[best], y[best] = 1e6, -1e6
					}
					q, k := RMSNorm(x, wq, 1e-5), RMSNorm(y, wk, 1e-5)
					rotary.Apply(q, 1, d, rng.IntN(5000))
					rotary.Apply(k, 1, d, rng.IntN(5000))
					logit := math.Abs(scale * dot(q, k))
					if logit > u {
						t.Fatalf("logit %v beyond the bound %v", logit, u)
					}
					tightest = math.Max(tightest, logit/u)
				}
			}
			if rotary.Dim == 0 && tightest < 0.999999 {
				t.Errorf("the bound is never nearly reached: %v", tightest)
			}
			t.Logf("the largest logit was %.6f of its bound", tightest)
		})
	}
	exact, _ := QKNormBound([]float64{1, 2}, []float64{3, -1}, 0.5, false, Rounding{})
	rotated, _ := QKNormBound([]float64{1, 2}, []float64{3, -1}, 0.5, true, Rounding{})
	half, _ := QKNormBound([]float64{1, 2}, []float64{3, -1}, 0.5, false, Rounding{Relative: 0x1p-10})
	eighth, _ := QKNormBound([]float64{1, 2}, []float64{3, -1}, 0.5, false, Rounding{Largest: 1.0 / 254})
	for _, c := range []struct{ got, want float64 }{{exact, 3}, {rotated, 6}, {half, 3 * (1 + 0x1p-10)}, {eighth, 3 + 6*math.Sqrt2/254}} {
		if c.got < c.want || c.got > c.want*(1+1e-6) {
			t.Errorf("bound %v, want just above %v", c.got, c.want)
		}
	}
	if _, err := QKNormBound([]float64{1}, []float64{1, 2}, 1, false, Rounding{}); err == nil {
		t.Error("norms of different widths give no error")
	}
}

// roundF16 rounds a key as a float16 cache does.
func roundF16(k []float64) {
	for i, v := range k {
		k[i] = float64(quant.F16ToF32(quant.F32ToF16(float32(v))))
	}
}

// roundQ8 rounds a key as a cache of one scale a key does.
func roundQ8(k []float64) {
	most := 0.0
	for _, v := range k {
		most = math.Max(most, math.Abs(v))
	}
	if scale := float64(float32(most / 127)); scale > 0 {
		for i, v := range k {
			k[i] = scale * math.Round(v/scale)
		}
	}
}

// The bound holds for random inputs and is nearly reached by the worst ones,
// which power iteration finds.
func TestProjectionBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(25, 26))
	const d, width = 6, 17
	scale := 1 / math.Sqrt(d)
	caches := []struct {
		Rounding
		round func([]float64)
	}{{Rounding{}, func([]float64) {}}, {RoundingF16, roundF16}, {RoundingQ8, roundQ8}}
	for n := range 60 {
		wq, wk, norm := normals(rng, d*width, 1), normals(rng, d*width, 1), normals(rng, width, 1)
		kind, cache := n%5, caches[n/5%3]
		var bq, bk []float64
		rotary := Rotary{}
		switch kind {
		case 1:
			bq, bk = normals(rng, d, 1), normals(rng, d, 1)
		case 2:
			rotary = Rotary{Dim: 4, Base: 100}
		case 3: // rank 1
			for i := range wq {
				wq[i] = wq[i%width]
			}
		case 4: // q·k is 0 but for rounding: q is (a, 3a, 0...), k is (3b, -b, 0...)
			clear(wq[2*width:])
			clear(wk[2*width:])
			for c := range width {
				wq[width+c], wk[c] = 3*wq[c], -3*wk[width+c]
			}
		}
		u, err := ProjectionBound(wq, wk, bq, bk, norm, scale, rotary.Dim > 0, cache.Rounding)
		if err != nil {
			t.Fatal(err)
		}
		largest := 0.0
		logit := func(x, y []float64) float64 {
			q := Linear(RMSNorm(x, norm, 1e-6), wq, bq, width, d)
			k := Linear(RMSNorm(y, norm, 1e-6), wk, bk, width, d)
			rotary.Apply(q, 1, d, rng.IntN(3000))
			rotary.Apply(k, 1, d, rng.IntN(3000))
			cache.round(k)
			return math.Abs(scale * dot(q, k))
		}
		for range 100 {
			largest = math.Max(largest, logit(normals(rng, width, 9), normals(rng, width, 9)))
		}
		// x -> (P^T R)(P^T R)^T x, each half by its own projections; with biases the
		// gradient of q·k.
		x := normals(rng, width, 1)
		y := x
		half := func(x, from, fromBias, to []float64) []float64 {
			out := make([]float64, width)
			for i, v := range Linear(RMSNorm(x, norm, 1e-6), from, fromBias, width, d) {
				for c := range out {
					out[c] += v * to[i*width+c] * norm[c]
				}
			}
			length := math.Sqrt(dot(out, out))
			for c := range out {
				out[c] *= 1e4 / math.Max(length, 1e-100)
			}
			return out
		}
		for range 2000 {
			y = half(x, wq, bq, wk)
			x = half(y, wk, bk, wq)
		}
		worst := logit(x, y)
		largest = math.Max(largest, worst)
		if largest > u {
			t.Errorf("run %d: logit %v beyond the bound %v", n, largest, u)
		}
		least := []float64{0.996, 0.65, 0, 0.996, 0}[kind]
		if cache.Largest > 0 {
			least -= 0.05
		}
		if worst < least*u {
			t.Errorf("run %d: the worst logit is %v, the bound %v", n, worst, u)
		}
		if kind == 4 && cache.Relative > 0 && largest < 1e-3*u {
			t.Errorf("run %d: rounding moved the logit to %v, the bound is %v: the case tries nothing", n, largest, u)
		}
	}
	// (2x + 4) (3y + 5) is 48 at the most.
	one, err := ProjectionBound([]float64{2}, []float64{3}, []float64{4}, []float64{5}, []float64{1}, 1, false, Rounding{})
	if err != nil || one < 48 || one > 48*1.003 {
		t.Errorf("bound %v, want just above 48 (%v)", one, err)
	}
	if _, err := ProjectionBound(make([]float64, 6), make([]float64, 6), nil, nil, make([]float64, 4), 1, false, Rounding{}); err == nil {
		t.Error("projections of no whole rows give no error")
	}
	if _, err := ProjectionBound(make([]float64, 6), make([]float64, 6), make([]float64, 3), nil, make([]float64, 3), 1, false, Rounding{}); err == nil {
		t.Error("a bias of the wrong width gives no error")
	}
	if u, err := ProjectionBound(make([]float64, 6), make([]float64, 6), nil, nil, make([]float64, 3), 1, false, Rounding{}); err != nil || u > math.SmallestNonzeroFloat32 {
		t.Errorf("zero projections have the bound %v (%v)", u, err)
	}
}

// boundedVector returns a vector of length at most 1.
func boundedVector(rng *rand.Rand, d int) []float64 {
	v := normals(rng, d, 1)
	length := math.Sqrt(dot(v, v)) * (1 + rng.Float64()*float64(rng.IntN(2)))
	for c := range v {
		v[c] /= length
	}
	return v
}

// All removed keys together weigh at most eps in the softmax over all keys, at
// every later query; a removed key's penalty never falls; and the output moves
// by at most 2 eps max|v|.
func TestRemovedWeight(t *testing.T) {
	rng := rand.New(rand.NewPCG(23, 24))
	const d, tokens = 4, 250
	removedTotal, closest := 0, 0.0
	for n := range 40 {
		u := 0.2 + 3*rng.Float64()
		eps := []float64{1e-1, 1e-3, 0x1p-25}[n%3]
		field, level := randomField(rng, tokens)
		slope := []float64{0.5, 2, 10}[rng.IntN(3)]
		full := Stream{Slope: slope, Scale: u}
		kept := Stream{Slope: slope, Scale: u}
		budget := Budget{Bound: u, Eps: eps}
		dead := map[*float64]float64{} // first element of a removed key -> penalty when removed
		for i := range tokens {
			key, query, value := boundedVector(rng, d), boundedVector(rng, d), []float64{rng.Float64()*2 - 1}
			if n%2 == 1 { // the worst case: the query's own key is as far off as can be
				query = make([]float64, d)
				query[0] = 1
				key = make([]float64, d)
				key[0] = 1
			}
			if n%2 == 1 && i > tokens/2 {
				key[0] = -1
			}
			full.Append(key, value, field[i], level[i])
			kept.Append(key, value, field[i], level[i])
			for j := len(kept.Slots) - 1; j >= 0; j-- {
				if p := kept.Penalty(j); budget.Remove(p) {
					dead[&kept.Slots[j].Key[0]] = p
					kept.Remove(j)
				}
			}
			removed := 0.0
			for j, w := range full.Weights(query) {
				before, ok := dead[&full.Slots[j].Key[0]]
				if !ok {
					continue
				}
				removed += w
				if full.Penalty(j) < before {
					t.Fatalf("run %d, token %d: the penalty of a removed key fell from %v to %v", n, i, before, full.Penalty(j))
				}
				dead[&full.Slots[j].Key[0]] = full.Penalty(j)
			}
			if removed > eps || budget.Spent() > eps || removed > budget.Spent()*(1+1e-9) {
				t.Fatalf("run %d, token %d: removed weight %g, spent %g, allowed %g", n, i, removed, budget.Spent(), eps)
			}
			closest = math.Max(closest, removed/eps)
			if diff := maxDiff(full.Attend(query, 1), kept.Attend(query, 1)); !(diff <= 2*eps+1e-14) {
				t.Fatalf("run %d, token %d: output moved by %g with eps %g", n, i, diff, eps)
			}
		}
		if len(dead) != budget.Removed() || len(kept.Slots)+len(dead) != len(full.Slots) {
			t.Fatalf("run %d: %d dead, %d removed, %d kept of %d", n, len(dead), budget.Removed(), len(kept.Slots), len(full.Slots))
		}
		removedTotal += len(dead)
	}
	if removedTotal < 1000 {
		t.Errorf("only %d keys were removed", removedTotal)
	}
	t.Logf("%d of %d keys removed; removed weight at most %.3g of what is allowed", removedTotal, 40*tokens, closest)
}

func TestBudgetSchedule(t *testing.T) {
	const u, eps = 3.0, 1e-3
	first := 2*u + math.Log(4/eps)
	b := Budget{Bound: u, Eps: eps}
	if d := math.Abs(b.Threshold() - first); d > 1e-12 {
		t.Errorf("the first threshold is off by %g", d)
	}
	if b.Remove(first-1e-9) || b.Removed() != 0 {
		t.Error("a key below the threshold is removed")
	}
	if b.Remove(math.NaN()) {
		t.Error("a key of penalty NaN is removed")
	}
	// Keys that die far beyond the threshold spend next to nothing.
	for range 1_000_000 {
		if !b.Remove(first + 20) {
			t.Fatal("a key far beyond the threshold is kept")
		}
	}
	if b.Threshold() > first {
		t.Errorf("after a million cheap removals the threshold is %g, above %g", b.Threshold(), first)
	}
	// Keys that die exactly at the threshold use the budget up, but never
	// beyond eps, and the threshold never becomes unreachable.
	b = Budget{Bound: u, Eps: eps}
	for range 100_000 {
		if p := b.Threshold(); !b.Remove(math.Nextafter(p, math.Inf(1)) + 1e-9) {
			t.Fatalf("a key at the threshold %g is kept after %d removals", p, b.Removed())
		}
	}
	if b.Spent() > eps || b.Spent() < eps/2 {
		t.Errorf("spent %g of %g", b.Spent(), eps)
	}
	if b.Threshold() > first+2*math.Log(100_000) {
		t.Errorf("the threshold has risen to %g", b.Threshold())
	}
}
