package cpu

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

// build makes a model or fails the test.
func build(t testing.TB, p model.Parts) *model.Model {
	t.Helper()
	m, err := model.Build(p.Config, p.Tensors)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// run feeds ids in calls of so many tokens and returns the logits of every
// position, [T, V].
func run(t *testing.T, m *model.Model, o Options, typ quant.DType, p cache.Policy, ids []int32, calls int) ([]float32, engine.Session) {
	t.Helper()
	e, err := New(m, o)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s, err := e.NewSession(typ, p)
	if err != nil {
		t.Fatal(err)
	}
	var logits []float32
	for len(ids) > 0 {
		n := min(calls, len(ids))
		err := s.Feed(ids[:n], func(int) bool { return true }, func(pos int, l []float32) error {
			if pos*m.VocabSize != len(logits) {
				return fmt.Errorf("position %d after %d logits", pos, len(logits))
			}
			logits = append(logits, l...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		ids = ids[n:]
	}
	return logits, s
}

// oracle is the float64 result.
func oracle(t *testing.T, m *model.Model, ids []int32) []float64 {
	t.Helper()
	wide := make([]int, len(ids))
	for i, id := range ids {
		wide[i] = int(id)
	}
	logits, err := modeltest.Reference(m).Forward(nil, wide)
	if err != nil {
		t.Fatal(err)
	}
	return logits
}

func maxDiff[A, B float32 | float64](a []A, b []B) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	worst := 0.0
	for i := range a {
		d := math.Abs(float64(a[i]) - float64(b[i]))
		if !(d <= worst) {
			worst = d
		}
	}
	return worst
}

// TestOracle holds every option of the block against the float64 decoder, in
// every way to split the prompt into calls and chunks.
func TestOracle(t *testing.T) {
	for name, option := range modeltest.Options() {
		t.Run(name, func(t *testing.T) {
			c := modeltest.Config()
			option(&c)
			for _, tied := range []bool{false, true} {
				m := build(t, modeltest.Random(c, 7, tied))
				ids := modeltest.Tokens(90, c.VocabSize, 3)
				want := oracle(t, m, ids)
				for _, split := range []struct{ calls, chunk, threads int }{{90, 512, 1}, {90, 7, 2}, {1, 512, 2}, {40, 16, 3}} {
					got, _ := run(t, m, Options{Threads: split.threads, Chunk: split.chunk}, quant.F32, cache.Policy{Mode: cache.Off}, ids, split.calls)
					if d := maxDiff(got, want); !(d < 2e-5) {
						t.Errorf("tied %v, %+v: logits differ by %g", tied, split, d)
					}
				}
			}
		})
	}
}

// TestInputsOfAttention refuses numbers that attention cannot work with, fed one by
// one and in blocks: a NaN among keys would look like a key without weight.
func TestInputsOfAttention(t *testing.T) {
	for _, c := range []struct {
		tensor string
		value  float32 // of its first element; of all, for fields
		typ    quant.DType
		says   string // "": it works
	}{
		{"blk.1.attn_q.weight", float32(math.NaN()), quant.F32, "layer 1: a query at position 0 is NaN"},
		{"blk.0.attn_k.weight", float32(math.NaN()), quant.Q8_0, "layer 0: a key at position 0 is NaN"},
		{"blk.0.attn_v.weight", float32(math.Inf(1)), quant.F16, "layer 0: a value at position 0 is "},
		{"blk.1.attn_v.bias", 66000, quant.F16, "cache type f16 cannot hold"},
		{"blk.1.attn_v.bias", -66000, quant.F16, "cache type f16 cannot hold"},
		{"blk.1.attn_v.bias", 65400, quant.F16, ""},
		{"blk.1.attn_v.bias", 66000, quant.Q8_0, ""},
		{"blk.1.attn_v.bias", 1e15, quant.F32, ""},
		{"blk.0.attn_field.weight", 3e38, quant.F16, "layer 0: a field at position 0 is "},
		{"blk.1.attn_level.weight", -3e38, quant.F16, "layer 1: a level at position 0 is "},
	} {
		config := modeltest.Config()
		config.Field, config.Level, config.FieldActivation = model.FieldDirect, model.LevelAbsolute, model.Identity
		p := modeltest.Random(config, 7, false)
		found := false
		for _, x := range p.Tensors {
			if x.Name == c.tensor {
				binary.LittleEndian.PutUint32(x.Data, math.Float32bits(c.value))
				found = true
				if strings.Contains(c.tensor, "field") || strings.Contains(c.tensor, "level") {
					for i := range len(x.Data) / 4 { // finite itself, its sum is not
						binary.LittleEndian.PutUint32(x.Data[4*i:], math.Float32bits(c.value))
					}
				}
			}
		}
		if !found {
			t.Fatalf("no tensor %s", c.tensor)
		}
		m := build(t, p)
		e, err := New(m, Options{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1, 8} {
			s, err := e.NewSession(c.typ, cache.Policy{Mode: cache.Off})
			if err != nil {
				t.Fatal(err)
			}
			err = s.Feed(modeltest.Tokens(n, config.VocabSize, 3), nil, func(int, []float32) error { return nil })
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s %g, %s, %d tokens: %v; expected %q", c.tensor, c.value, c.typ, n, err, c.says)
			}
		}
		e.Close()
	}
}
