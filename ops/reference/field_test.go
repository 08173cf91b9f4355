package reference

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The formulas of each kind, written out for one head at a time.
func TestFieldSource(t *testing.T) {
	rng := rand.New(rand.NewPCG(41, 42))
	const heads, width, n = 2, 3, 12
	x := normals(rng, n*width, 1)
	acts := map[Activation]func(float64) float64{
		Identity:    func(z float64) float64 { return z },
		Tanh:        func(z float64) float64 { return (math.Exp(2*z) - 1) / (math.Exp(2*z) + 1) },
		LogSigmoid:  func(z float64) float64 { return math.Log(1 / (1 + math.Exp(-z))) },
		NegSoftplus: func(z float64) float64 { return -math.Log(1 + math.Exp(z)) },
	}
	for act, f := range acts {
		for _, kind := range []FieldKind{Walk, Direct} {
			for _, levelKind := range []LevelKind{Tied, Offset, Relative, Absolute} {
				if kind == Walk && levelKind == Absolute {
					continue // refused, see below
				}
				s := FieldSource{Heads: heads, Width: width, Kind: kind, Activation: act, Level: levelKind,
					Weight: normals(rng, heads*width, 1), Bias: normals(rng, heads, 1)}
				if levelKind == Relative || levelKind == Absolute {
					s.LevelWeight = normals(rng, heads*width, 1)
				}
				if levelKind != Tied {
					s.LevelBias = normals(rng, heads, 1)
				}
				walk := make([]float64, heads)
				field, level, err := s.Evaluate(x, walk, nil)
				if err != nil {
					t.Fatal(err)
				}
				for h := range heads {
					sum := 0.0
					for i := range n {
						in := x[i*width : (i+1)*width]
						w := s.Weight[h*width:]
						inc := f(w[0]*in[0] + w[1]*in[1] + w[2]*in[2] + s.Bias[h])
						wantField := inc
						if kind == Walk {
							sum += inc
							wantField = sum
						}
						wantLevel := wantField
						if levelKind != Tied {
							wantLevel += s.LevelBias[h]
						}
						if s.LevelWeight != nil {
							w := s.LevelWeight[h*width:]
							wantLevel += w[0]*in[0] + w[1]*in[1] + w[2]*in[2]
						}
						if levelKind == Absolute {
							wantLevel -= wantField
						}
						if math.Abs(field[h*n+i]-wantField) > 1e-12 || math.Abs(level[h*n+i]-wantLevel) > 1e-12 {
							t.Errorf("%s %s %s, head %d, position %d: field %v level %v, want %v and %v",
								act, kind, levelKind, h, i, field[h*n+i], level[h*n+i], wantField, wantLevel)
						}
					}
					if kind == Walk && walk[h] != field[h*n+n-1] {
						t.Errorf("the walk is left at %v, its field at %v", walk[h], field[h*n+n-1])
					}
				}
			}
		}
	}
}

// A walk goes on over any split, exactly, and over padding.
func TestWalkCarries(t *testing.T) {
	rng := rand.New(rand.NewPCG(43, 44))
	const heads, width, n = 2, 3, 20
	s := FieldSource{Heads: heads, Width: width, Kind: Walk, Activation: Tanh, Level: Relative,
		Weight: normals(rng, heads*width, 1), Bias: normals(rng, heads, 1), LevelWeight: normals(rng, heads*width, 1)}
	x := normals(rng, n*width, 1)
	whole := make([]float64, heads)
	field, level, err := s.Evaluate(x, whole, nil)
	if err != nil {
		t.Fatal(err)
	}
	walk := make([]float64, heads)
	for from := 0; from < n; {
		to := min(n, from+rng.IntN(5))
		// A padded position stands before each part.
		part := append(normals(rng, width, 1), x[from*width:to*width]...)
		skip := make([]bool, to-from+1)
		skip[0] = true
		before := append([]float64{}, walk...)
		f, l, err := s.Evaluate(part, walk, skip)
		if err != nil {
			t.Fatal(err)
		}
		for h := range heads {
			f, l := f[h*len(skip):(h+1)*len(skip)], l[h*len(skip):(h+1)*len(skip)]
			if f[0] != before[h] || !math.IsInf(l[0], 1) {
				t.Errorf("padding has field %v, level %v; want %v, +inf", f[0], l[0], before[h])
			}
			if maxDiff(f[1:], field[h*n+from:h*n+to]) != 0 || maxDiff(l[1:], level[h*n+from:h*n+to]) != 0 {
				t.Errorf("positions %d to %d differ from the whole", from, to)
			}
		}
		from = to
	}
	if maxDiff(walk, whole) != 0 {
		t.Errorf("the walk ends at %v, want %v", walk, whole)
	}
}

func TestFieldSourceRefuses(t *testing.T) {
	good := FieldSource{Heads: 2, Width: 3, Kind: Walk, Activation: Tanh, Level: Relative, LevelWeight: make([]float64, 6)}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(s *FieldSource){
		"absolute level on a walk": func(s *FieldSource) { s.Level = Absolute },
		"unknown kind":             func(s *FieldSource) { s.Kind = "run" },
		"unknown level":            func(s *FieldSource) { s.Level = "" },
		"gate activation":          func(s *FieldSource) { s.Activation = SiLU },
		"no level weight":          func(s *FieldSource) { s.LevelWeight = nil },
		"weight of a tied level":   func(s *FieldSource) { s.Level = Tied },
		"short bias":               func(s *FieldSource) { s.Bias = []float64{1} },
	} {
		s := good
		spoil(&s)
		if err := s.Check(); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, _, err := s.Evaluate(make([]float64, 6), make([]float64, 2), nil); err == nil {
			t.Errorf("%s: Evaluate gives no error", name)
		}
	}
	if _, _, err := good.Evaluate(make([]float64, 7), make([]float64, 2), nil); err == nil {
		t.Error("an input of no whole rows gives no error")
	}
	if _, _, err := good.Evaluate(make([]float64, 6), make([]float64, 1), nil); err == nil {
		t.Error("one running value for two heads gives no error")
	}
	if _, _, err := good.Evaluate(make([]float64, 6), make([]float64, 2), []bool{true}); err == nil {
		t.Error("one skip mark for two positions gives no error")
	}
}
