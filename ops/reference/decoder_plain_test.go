package reference

import (
	"math"
	"math/cmplx"
	"math/rand/v2"
	"testing"
)

// plainDecoder is fpaConfig written a second time, for this one configuration
// and position by position, from the formulas and the tensors' names alone.
func plainDecoder(w map[string][]float64, ids []int) (logits []float64) {
	const d, heads, kvHeads, kd, vd, fieldHeads = 24, 4, 2, 6, 5, 2
	mat := func(name string, x []float64) []float64 { // W x + b
		m, b := w[name+".weight"], w[name+".bias"]
		y := make([]float64, len(m)/len(x))
		for o := range y {
			for c, v := range x {
				y[o] += m[o*len(x)+c] * v
			}
			if b != nil {
				y[o] += b[o]
			}
		}
		return y
	}
	norm := func(x, weight []float64, eps float64) []float64 {
		squares := 0.0
		for _, v := range x {
			squares += v * v
		}
		y := make([]float64, len(x))
		for c, v := range x {
			y[c] = v / math.Sqrt(squares/float64(len(x))+eps) * weight[c]
		}
		return y
	}
	sig := func(z float64) float64 { return 1 / (1 + math.Exp(-z)) }
	turn := func(x []float64, position int) {
		for i := range 2 { // four elements turn, the base is 100
			z := complex(x[i], x[i+2]) * cmplx.Rect(1, float64(position)*math.Pow(100, -float64(i)/2))
			x[i], x[i+2] = real(z), imag(z)
		}
	}

	xs := make([][]float64, len(ids))
	for t, id := range ids {
		xs[t] = append([]float64{}, w["token_embd.weight"][id*d:(id+1)*d]...)
	}
	for _, l := range []string{"blk.0.", "blk.1."} {
		var keys, values [][]float64
		field, level := make([][]float64, len(ids)), make([][]float64, len(ids))
		lastKey, lastValue := make([]float64, kvHeads*kd), make([]float64, kvHeads*vd)
		for t, x := range xs {
			h := norm(x, w[l+"attn_norm.weight"], 1e-6)
			k, v := mat(l+"attn_k", h), mat(l+"attn_v", h)
			ka, va := mat(l+"attn_k_shift", h), mat(l+"attn_v_shift", h)
			key, value := make([]float64, len(k)), make([]float64, len(v))
			for c := range k {
				key[c] = sig(ka[c/kd])*lastKey[c] + (1-sig(ka[c/kd]))*k[c]
			}
			for c := range v {
				value[c] = sig(va[c/vd])*lastValue[c] + (1-sig(va[c/vd]))*v[c]
			}
			lastKey, lastValue = k, v
			for g := range kvHeads {
				copy(key[g*kd:], norm(key[g*kd:(g+1)*kd], w[l+"attn_k_norm.weight"][g*kd:], 1e-5))
				turn(key[g*kd:], t)
			}
			keys, values = append(keys, key), append(values, value)

			field[t] = mat(l+"attn_field", h)
			level[t] = mat(l+"attn_level", h)
			for f := range fieldHeads {
				field[t][f] = math.Tanh(field[t][f])
				if t > 0 {
					field[t][f] += field[t-1][f]
				}
				level[t][f] += field[t][f]
			}

			query, gate := mat(l+"attn_q", h), mat(l+"attn_gate", h)
			y := make([]float64, heads*vd)
			for n := range heads {
				g, f := n/2, n/2
				q := norm(query[n*kd:(n+1)*kd], w[l+"attn_q_norm.weight"][n*kd:], 1e-5)
				turn(q, t)
				out, sum := y[n*vd:(n+1)*vd], 0.0
				for j := 0; j <= t; j++ {
					low := field[j][f] // the interval is inclusive
					for p := j; p <= t; p++ {
						low = math.Min(low, field[p][f])
					}
					s := 0.0
					for c := range q {
						s += 0.3 * q[c] * keys[j][g*kd+c]
					}
					e := math.Exp(s - w[l+"attn_slope.weight"][f]*math.Max(0, level[j][f]-low))
					sum += e
					for c := range out {
						out[c] += e * values[j][g*vd+c]
					}
				}
				for c := range out {
					out[c] /= sum
				}
				copy(out, norm(out, w[l+"attn_output_norm.weight"][n*vd:], 1e-6))
				for c := range out {
					z := gate[n*vd+c]
					out[c] *= z * sig(z)
				}
			}
			for c, v := range mat(l+"attn_output", y) {
				x[c] += v
			}
			m := norm(x, w[l+"ffn_norm.weight"], 1e-6)
			inner, up := mat(l+"ffn_gate", m), mat(l+"ffn_up", m)
			for c, z := range inner {
				inner[c] = z * 0.5 * math.Erfc(-z/math.Sqrt2) * up[c]
			}
			for c, v := range mat(l+"ffn_down", inner) {
				x[c] += v
			}
		}
	}
	for _, x := range xs {
		logits = append(logits, mat("output", norm(x, w["output_norm.weight"], 1e-6))...)
	}
	return logits
}

func TestDecoderAgainstPlain(t *testing.T) {
	rng := rand.New(rand.NewPCG(71, 72))
	for range 5 {
		tensors := randomTensors(rng)
		ids := make([]int, 50)
		for i := range ids {
			ids[i] = rng.IntN(50)
		}
		got := forward(t, newDecoder(t, fpaConfig(), tensors), ids)
		if d := maxDiff(got, plainDecoder(tensors, ids)); !(d <= 1e-10) {
			t.Errorf("logits differ by %g", d)
		}
	}
}
