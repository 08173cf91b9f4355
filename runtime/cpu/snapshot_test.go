package cpu

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// policies are one of each mode.
func policies() []cache.Policy {
	return []cache.Policy{
		{Mode: cache.Off}, {Mode: cache.Exact}, {Mode: cache.Bounded, Eps: 1e-2}, {Mode: cache.Measured, Eps: 1e-2},
		{Mode: cache.Budget, Keep: cache.Keep{Share: 0.4}},
	}
}

// feedAll feeds ids in chunks and returns the logits of every position.
func feedAll(t testing.TB, s engine.Session, ids []int32, chunk int) []float32 {
	t.Helper()
	var out []float32
	for len(ids) > 0 {
		n := min(chunk, len(ids))
		err := s.Feed(ids[:n], func(int) bool { return true }, func(_ int, l []float32) error {
			out = append(out, l...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		ids = ids[n:]
	}
	return out
}

// TestRestore saves a session in the middle, for every option of the block, every
// mode and type of the cache: what was restored goes on to the same bits, and so
// does the session that was saved.
func TestRestore(t *testing.T) {
	for name, option := range modeltest.Options() {
		c := modeltest.Config()
		option(&c)
		m := build(t, modeltest.Random(c, 7, false))
		for i := range m.Layers {
			for h := range m.Layers[i].Slope {
				m.Layers[i].Slope[h] *= 20 // keys die within the test
			}
		}
		m.LogitBound = m.LogitBounds(quant.F16)
		ids := modeltest.Tokens(130, c.VocabSize, 3)
		e, err := New(m, Options{Threads: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		for _, p := range policies() {
			for _, typ := range []quant.DType{quant.F16, quant.Q8_0, quant.F32} {
				for _, chunk := range []int{30, 1} {
					if chunk == 1 && typ != quant.F16 {
						continue // another type changes nothing about single tokens
					}
					t.Run(fmt.Sprintf("%s, %s %s by %d", name, p.Mode, typ, chunk), func(t *testing.T) {
						session := func() engine.Session {
							s, err := e.NewSession(typ, p)
							if err != nil {
								t.Fatal(err)
							}
							return s
						}
						want := feedAll(t, session(), ids, chunk)
						s := session()
						got := feedAll(t, s, ids[:90], chunk)
						var saved bytes.Buffer
						if err := s.Save(&saved); err != nil {
							t.Fatal(err)
						}
						restored, err := e.RestoreSession(bytes.NewReader(saved.Bytes()), typ, p)
						if err != nil {
							t.Fatal(err)
						}
						if a, b := fmt.Sprint(s.CacheStats()), fmt.Sprint(restored.CacheStats()); a != b && p.Mode != cache.Budget {
							t.Errorf("saved %s, restored %s", a, b)
						}
						rest := feedAll(t, restored, ids[90:], chunk)
						if !slices.Equal(append(got, rest...), want) {
							t.Errorf("restored: logits differ by %g", maxDiff(append(got, rest...), want))
						}
						if again := feedAll(t, s, ids[90:], chunk); !slices.Equal(again, rest) {
							t.Errorf("saved: logits differ by %g", maxDiff(again, rest))
						}
					})
				}
			}
		}
	}
}

// TestRestoreSteep saves a session whose penalties overflow float32.
func TestRestoreSteep(t *testing.T) {
	c := modeltest.Config()
	m := build(t, modeltest.Random(c, 7, false))
	for i := range m.Layers {
		for h := range m.Layers[i].Slope {
			m.Layers[i].Slope[h] = 3e38
		}
	}
	ids := modeltest.Tokens(130, c.VocabSize, 3)
	e, err := New(m, Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, p := range policies() {
		s, err := e.NewSession(quant.F16, p)
		if err != nil {
			t.Fatal(err)
		}
		feedAll(t, s, ids[:90], 30)
		var saved bytes.Buffer
		if err := s.Save(&saved); err != nil {
			t.Fatal(err)
		}
		restored, err := e.RestoreSession(&saved, quant.F16, p)
		if err != nil {
			t.Errorf("%s: %v", p.Mode, err)
			continue
		}
		if !slices.Equal(feedAll(t, restored, ids[90:], 30), feedAll(t, s, ids[90:], 30)) {
			t.Errorf("%s: a restored session goes on otherwise", p.Mode)
		}
	}
}

// TestRestoreDead saves sessions whose pages are dead in part: attention skips
// them, so a restored session must skip the same ones, or it would sum in another
// order.
func TestRestoreDead(t *testing.T) {
	c := modeltest.Config()
	c.FieldActivation, c.Level, c.KVHeads = model.LogSigmoid, model.LevelTied, 2
	m := build(t, modeltest.Random(c, 5, false))
	for i := range m.Layers {
		for h := range m.Layers[i].Slope {
			m.Layers[i].Slope[h] *= []float32{0.1, 8, 1, 4}[h]
		}
	}
	m.LogitBound = m.LogitBounds(quant.F16)
	ids := modeltest.Tokens(400, c.VocabSize, 4)
	e, err := New(m, Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, p := range policies() {
		for _, chunk := range []int{1, 20} {
			s, err := e.NewSession(quant.F16, p)
			if err != nil {
				t.Fatal(err)
			}
			want := feedAll(t, s, ids, chunk)
			if s, err = e.NewSession(quant.F16, p); err != nil {
				t.Fatal(err)
			}
			var got []float32
			for from := 0; from < len(ids); from += 20 {
				got = append(got, feedAll(t, s, ids[from:from+20], chunk)...)
				var saved bytes.Buffer
				if err := s.Save(&saved); err != nil {
					t.Fatal(err)
				}
				if s, err = e.RestoreSession(&saved, quant.F16, p); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s by %d: logits differ by %g", p.Mode, chunk, maxDiff(got, want))
			}
		}
	}
}

// FuzzRestore gives a session anything to read: an error, or a session that runs.
func FuzzRestore(f *testing.F) {
	c := modeltest.Config()
	c.KeyShift = true
	p := modeltest.Random(c, 7, false)
	m := build(f, p)
	m.LogitBound = m.LogitBounds(quant.F16)
	e, err := New(m, Options{Threads: 1})
	if err != nil {
		f.Fatal(err)
	}
	policies := policies()
	for i, p := range policies {
		s, err := e.NewSession(quant.F16, p)
		if err != nil {
			f.Fatal(err)
		}
		feedAll(f, s, modeltest.Tokens(70, c.VocabSize, 3), 16)
		var saved bytes.Buffer
		if err := s.Save(&saved); err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), saved.Bytes())
		f.Add(uint8(i), saved.Bytes()[:saved.Len()/2])
	}
	f.Fuzz(func(t *testing.T, policy uint8, data []byte) {
		s, err := e.RestoreSession(bytes.NewReader(data), quant.F16, policies[int(policy)%len(policies)])
		if err != nil {
			return
		}
		// Keys and values may be anything, so logits may come out not finite.
		_ = s.Feed([]int32{1, 2, 3, 4, 5, 6}, nil, func(int, []float32) error { return nil })
		s.CacheStats()
	})
}
