package xla

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// TestModes holds every mode of the cache against the CPU engine, token by token: which
// keys are kept, what the report says, and the logits.
func TestModes(t *testing.T) {
	const onXLA = "grouped, field a query head"
	policies := []cache.Policy{
		{Mode: cache.Measured, Eps: 1e-2},
		{Mode: cache.Budget, Keep: cache.Keep{Share: 0.3}},
		{Mode: cache.Budget, Keep: cache.Keep{Bytes: 1}, Audit: true},
		{Mode: cache.Bounded, Eps: 1e-2, Audit: true},
	}
	for _, name := range []string{"fox pro", "grouped, field a query head", "grouped, field a key head", "one field for all heads", "direct absolute", "inclusive relative", "softmax rope"} {
		c := modeltest.Config()
		modeltest.Options()[name](&c)
		if name == onXLA {
			c.Blocks = 1
		}
		m := build(t, modeltest.Random(c, 5, true))
		for i := range m.Layers { // fields that fall fast
			for h := range m.Layers[i].Slope {
				m.Layers[i].Slope[h] *= 6
			}
		}
		ids := modeltest.Tokens(70, c.VocabSize, 9)
		for _, p := range policies {
			p.Positions = true
			for _, typ := range []quant.DType{quant.F32, quant.Q8_0} {
				suits := func(k kind) bool {
					switch {
					case k.compiles: // which takes XLA a second for each
						return name == onXLA && k.shared && (typ == quant.Q8_0) == (p.Mode == cache.Bounded)
					case typ == quant.Q8_0:
						return name == "fox pro" && k.shared
					}
					return k.shared || name == onXLA
				}
				each(t, suits, func(t *testing.T, k kind) {
					t.Run(fmt.Sprintf("%s, %s %+v %s", name, p.Mode, p.Keep, typ), func(t *testing.T) {
						ours, theirs := k.engine(t, m, Options{}), cpuEngine(t, m)
						var s, base engine.Session
						s, base = newSession(t, ours, typ, p), newSession(t, theirs, typ, p)
						if p.Audit {
							all := cache.Policy{Mode: cache.Off, Audit: true}
							s = engine.NewAudit(s, newSession(t, ours, typ, all))
							base = engine.NewAudit(base, newSession(t, theirs, typ, all))
						}
						allowed := 1e-4
						if typ == quant.Q8_0 {
							allowed = 5e-2 // a number between two bytes may go to the other
						}
						for i := range ids {
							got, want := feed(t, s, ids[i:i+1], nil), feed(t, base, ids[i:i+1], nil)
							if d := maxDiff(got, want); !(d < allowed) {
								t.Fatalf("logits of token %d differ by %g", i, d)
							}
						}
						compareStats(t, s.CacheStats(), base.CacheStats(), allowed)
					})
				})
			}
		}
	}
}

// compareStats compares the report of an XLA session with that of a CPU session. What an
// audit saw dropped may differ by a key or two: of those that die together the first ones
// go, and on the device dropped ones keep their slots.
func compareStats(t *testing.T, got, want cache.Stats, allowed float64) {
	t.Helper()
	if got.Device == nil || got.Device.Type != "f32" || got.BytesAllocated < got.BytesLive {
		t.Errorf("on the device: %+v, %d bytes", got.Device, got.BytesAllocated)
	}
	if want.Audit == nil && fmt.Sprint(got.Positions) != fmt.Sprint(want.Positions) {
		t.Errorf("keys %v are kept, expected %v", got.Positions, want.Positions)
	}
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-2*b }
	if a, b := got.Budget, want.Budget; b != nil && (a.Bytes != b.Bytes || a.Dropped != b.Dropped || !near(a.LargestWeight, b.LargestWeight) || !near(a.MeanWeight, b.MeanWeight)) {
		t.Errorf("%+v, expected %+v", a, b)
	}
	if a, b := got.Audit, want.Audit; b != nil && (a.Positions != b.Positions || a.Removed < b.Removed-2 || a.Removed > b.Removed+2 || !near(a.LargestWeight, b.LargestWeight) || math.Abs(a.LargestLogitDifference-b.LargestLogitDifference) > allowed) {
		t.Errorf("%+v, expected %+v", a, b)
	}
}

// TestInputsOfAttention refuses the numbers that the CPU engine refuses, in its words.
func TestInputsOfAttention(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		tensor string
		value  float32 // of its first element; of all, for fields
		typ    quant.DType
	}{
		{"blk.1.attn_q.weight", nan, quant.F32},
		{"blk.0.attn_k.weight", nan, quant.Q8_0},
		{"blk.0.attn_v.weight", inf, quant.F32},
		{"blk.0.attn_field.weight", 3e38, quant.F32},
		{"blk.1.attn_level.weight", -3e38, quant.F32},
		{"blk.1.attn_v.bias", 66000, quant.Q8_0},
		{"blk.1.attn_v.bias", 1e15, quant.F32},
		{"blk.1.attn_v.bias", -66000, quant.F16},
	} {
		config := modeltest.Config()
		config.Field, config.Level, config.FieldActivation = model.FieldDirect, model.LevelAbsolute, model.Identity
		p := modeltest.Random(config, 7, false)
		for _, x := range p.Tensors {
			if x.Name != c.tensor {
				continue
			}
			n := 1
			if strings.Contains(c.tensor, "field") || strings.Contains(c.tensor, "level") {
				n = len(x.Data) / 4
			}
			for i := range n {
				binary.LittleEndian.PutUint32(x.Data[4*i:], math.Float32bits(c.value))
			}
		}
		m := build(t, p)
		each(t, func(k kind) bool { return k.shared && k.compiles == (c.typ == quant.F16) }, func(t *testing.T, k kind) {
			ours, theirs := k.engine(t, m, Options{}), cpuEngine(t, m)
			for _, n := range []int{1, 5} {
				if k.compiles && n == 1 {
					continue
				}
				feed := func(e engine.Engine) string {
					s := newSession(t, e, c.typ, cache.Policy{Mode: cache.Off})
					return fmt.Sprint(s.Feed(modeltest.Tokens(n, config.VocabSize, 3), nil, func(int, []float32) error { return nil }))
				}
				got, want := feed(ours), feed(theirs)
				if i := strings.Index(want, "-660"); i >= 0 { // the last digits of a sum
					got, want = got[:min(len(got), i+4)], want[:i+4]
				}
				if got != want {
					t.Errorf("%s %g, %s, %d tokens: %q, expected %q", c.tensor, c.value, c.typ, n, got, want)
				}
			}
		})
	}
	// Both sequences of a batch have the bad number; the first is named.
	c := modeltest.Config()
	p := modeltest.Random(c, 7, false)
	for _, x := range p.Tensors {
		if x.Name == "blk.1.attn_q.weight" {
			binary.LittleEndian.PutUint32(x.Data, math.Float32bits(nan))
		}
	}
	e := kinds[0].engine(t, build(t, p), Options{})
	var parts []engine.Part
	for i := range 3 {
		s := newSession(t, e, quant.F32, cache.Policy{Mode: cache.Off})
		parts = append(parts, engine.Part{Session: s, IDs: []int32{1, 2, 3}[:i]})
	}
	err := e.FeedBatch(parts)
	if want := "sequence 1: layer 1: a query at position 0 is NaN: the weights are damaged, or overflow"; fmt.Sprint(err) != want {
		t.Errorf("a batch: %v, expected %s", err, want)
	}
}
