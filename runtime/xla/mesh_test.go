package xla

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	"github.com/gomlx/gomlx/pkg/core/shapes"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/cpu"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// separate are the kinds of engine whose backend may have several devices. The CPU
// plugin has virtual ones.
func separate(t *testing.T, test func(t *testing.T, k kind)) {
	each(t, func(k kind) bool { return k.compiles && !k.shared }, test)
}

// TestTensorParallel holds models that are split over devices against the float64
// decoder: in a chunk with padding, token by token, and while the cache grows.
func TestTensorParallel(t *testing.T) {
	for _, tt := range []struct {
		option           string
		devices, vocab   int
		tokens, one, cut int // fed; how many of them one by one; an axis of the output matrix
	}{
		{"fox pro", 4, 68, 26, 2, 0},
		{"gelu_tanh, sigmoid gate norm", 2, 68, 13, 0, 0},
		{"grouped, field a query head", 2, 67, leastSlots + 16, 0, whole}, // whose vocabulary two cannot share
	} {
		separate(t, func(t *testing.T, k kind) {
			c := modeltest.Config()
			modeltest.Options()[tt.option](&c)
			c.Blocks, c.VocabSize = 1, tt.vocab
			m := build(t, modeltest.Random(c, 7, true))
			e := k.engine(t, m, Options{TensorParallel: tt.devices})
			if axis := e.weights[nameOutput].axis; axis != tt.cut {
				t.Errorf("%s: the output matrix is cut along %d, expected %d", tt.option, axis, tt.cut)
			}
			ids := modeltest.Tokens(tt.tokens, c.VocabSize, 3)
			want := oracle(t, m, ids)
			s := newSession(t, e, quant.F32, cache.Policy{Mode: cache.Off})
			first := tt.tokens - tt.one
			got := feed(t, s, ids[:first], func(i int) bool { return i == first-1 })
			for _, id := range ids[first:] {
				got = append(got, feed(t, s, []int32{id}, nil)...)
			}
			if d := maxDiff(got, want[(first-1)*c.VocabSize:]); !(d < 2e-5) {
				t.Errorf("%s over %d devices: logits differ by %g", tt.option, tt.devices, d)
			}
		})
	}
}

// TestTensorParallelEviction drops the same keys on several devices as the CPU engine
// does, and goes on there with a session saved here.
func TestTensorParallelEviction(t *testing.T) {
	m, ids := passkey(t, 150)
	p := cache.Policy{Mode: cache.Exact}
	separate(t, func(t *testing.T, k kind) {
		one := k.engine(t, m, Options{})
		e := k.engine(t, m, Options{TensorParallel: 2})
		// Norms and slopes are on both; on one, more is fused, with a bias of zeros.
		if each, all := e.Stats().WeightBytes, one.Stats().WeightBytes; each < all/2-all/50 || each > all/2+all/50 {
			t.Errorf("%d bytes of weights on each device, %d on one alone", each, all)
		}
		theirs := cpuEngine(t, m)
		base, s := newSession(t, theirs, quant.F32, p), newSession(t, e, quant.F32, p)
		for i := range ids[:120] {
			want, got := feed(t, base, ids[i:i+1], nil), feed(t, s, ids[i:i+1], nil)
			if d := maxDiff(got, want); !(d < 1e-4) {
				t.Fatalf("position %d: logits differ by %g", i, d)
			}
			if a, b := base.CacheStats().Live, s.CacheStats().Live; fmt.Sprint(a) != fmt.Sprint(b) {
				t.Fatalf("live keys after %d tokens: %v, the CPU engine has %v", i+1, b, a)
			}
		}
		if kept := s.CacheStats().Kept; kept > 0.5 {
			t.Errorf("%g of the cache is kept: this compares too little", kept)
		}
		var b bytes.Buffer
		if err := s.Save(&b); err != nil {
			t.Fatal(err)
		}
		want := feed(t, base, ids[120:], nil)
		saved := b.Bytes()
		r, err := theirs.RestoreSession(bytes.NewReader(saved), quant.F32, p)
		if err != nil {
			t.Fatal(err)
		}
		if d := maxDiff(feed(t, r, ids[120:], nil), want); !(d < 1e-4) {
			t.Errorf("saved here, restored by the CPU engine: logits differ by %g", d)
		}
		if r, err = e.RestoreSession(bytes.NewReader(saved), quant.F32, p); err != nil {
			t.Fatal(err)
		}
		var got []float32
		for i := 120; i < len(ids); i++ {
			got = append(got, feed(t, r, ids[i:i+1], nil)...)
		}
		if d := maxDiff(got, want); !(d < 1e-4) {
			t.Errorf("saved and restored here: logits differ by %g", d)
		}
	})
}

// TestTensorParallelErrors asks for splits that there cannot be.
func TestTensorParallelErrors(t *testing.T) {
	c := modeltest.Config()
	modeltest.Options()["grouped, field a key head"](&c) // four query heads, two key heads
	m := build(t, modeltest.Random(c, 1, true))
	separate(t, func(t *testing.T, k kind) {
		for n, want := range map[int]string{
			-1: "at least 1", 3: "4 query heads cannot be shared evenly by 3 devices; this model can be split over 1 or 2",
			4: "2 key-value heads", 1000: "the plugin has ",
		} {
			b, err := k.open(k.shared)
			if err != nil {
				t.Fatal(err)
			}
			if b == nil {
				t.Skip("FPA_PJRT_CPU does not name a PJRT CPU plugin")
			}
			if _, err := newEngine(m, b, memory{}, Options{TensorParallel: n}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%d devices: %v, expected an error with %q", n, err, want)
			}
		}
	})
	if _, err := NewGo(m, Options{TensorParallel: 2}); err == nil || !strings.Contains(err.Error(), "the plugin has 1") {
		t.Errorf("two devices of the Go backend: %v", err)
	}
}

// TestPieces puts values on devices, cut along every axis, and gets them back.
func TestPieces(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	separate(t, func(t *testing.T, k kind) {
		e := k.engine(t, build(t, modeltest.Random(modeltest.Config(), 1, true)), Options{TensorParallel: 2})
		for range 30 {
			dims := make([]int, 1+r.IntN(4))
			for i := range dims {
				dims[i] = 2 * (1 + r.IntN(3))
			}
			shape := shapes.Make(dtypes.Int32, dims...)
			value := make([]int32, shape.Size())
			for i := range value {
				value[i] = int32(i)
			}
			axis := r.IntN(len(dims)+1) - 1
			b, err := e.put(value, shape, axis)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]int32, len(value))
			if err := e.get(b, got); err != nil || !slices.Equal(got, value) {
				t.Errorf("%v cut along %d: %v, %v", shape, axis, got, err)
			}
			for d, on := range b.(*pieces).on {
				if at, err := e.backend.BufferDeviceNum(on); err != nil || at != backends.DeviceNum(d) {
					t.Errorf("piece %d is on device %d (%v)", d, at, err)
				}
			}
			e.release(b)
		}
	})
}

// TestDataParallel feeds sessions that two devices share, each with sequences of its
// own and one with an idle one, and compares with the CPU engine: the logits of several
// positions of each, and the keys that are kept.
func TestDataParallel(t *testing.T) {
	m, ids := passkey(t, 400)
	p := cache.Policy{Mode: cache.Exact}
	texts := [][]int32{ids[:90], ids[90:120], ids[200:316]}
	separate(t, func(t *testing.T, k kind) {
		e := k.engine(t, m, Options{Chunk: 32, DataParallel: 2})
		theirs, err := cpu.New(m, cpu.Options{Threads: 2, Chunk: 16}) // as the batch is fed
		if err != nil {
			t.Fatal(err)
		}
		defer theirs.Close()
		parts, base := make([]engine.Part, len(texts)), make([]engine.Session, len(texts))
		for i := range parts {
			base[i] = newSession(t, theirs, quant.F32, p)
			parts[i].Session = newSession(t, e, quant.F32, p)
		}
		check := func(fed [][]int32) {
			t.Helper()
			got := make([][]float32, len(parts))
			for i := range parts {
				parts[i].IDs = fed[i]
				parts[i].Each = func(_ int, l []float32) error { got[i] = append(got[i], l...); return nil }
				parts[i].Want = func(p int) bool { return p%30 == 25 }
				if len(fed[i]) == 1 {
					parts[i].Want = nil
				}
			}
			if err := e.FeedBatch(parts); err != nil {
				t.Fatal(err)
			}
			for i, x := range parts {
				want := feed(t, base[i], x.IDs, x.Want)
				if d := maxDiff(got[i], want); !(d < 1e-4) {
					t.Errorf("sequence %d, %d tokens: logits differ by %g", i, x.Session.Len(), d)
				}
				if a, l := base[i].CacheStats().Live, x.Session.CacheStats().Live; fmt.Sprint(a) != fmt.Sprint(l) {
					t.Errorf("sequence %d, %d tokens: live keys %v, the CPU engine has %v", i, x.Session.Len(), l, a)
				}
			}
		}
		check(texts)
		for i := range 3 {
			check([][]int32{ids[i : i+1], nil, ids[5+i : 6+i]})
		}
		if kept := parts[2].Session.CacheStats().Kept; kept > 0.7 {
			t.Errorf("%g of a cache is kept: this compares too little", kept)
		}
		// One from the second device goes on alone, beside an idle sequence.
		var b bytes.Buffer
		if err := parts[2].Session.Save(&b); err != nil {
			t.Fatal(err)
		}
		s, err := e.RestoreSession(&b, quant.F32, p)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			got := feed(t, s, ids[20+i:21+i], nil)
			if d := maxDiff(got, feed(t, base[2], ids[20+i:21+i], nil)); !(d < 1e-4) {
				t.Errorf("%d tokens after a session was restored: logits differ by %g", i+1, d)
			}
		}
	})
}
