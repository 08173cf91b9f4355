package xla

import (
	"fmt"
	"math"
	"testing"

	"github.com/gomlx/gomlx/backends"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/cpu"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// kind is a way to run a model whose results must be those of the CPU engine.
type kind struct {
	name     string
	open     func(shared bool) (backends.Backend, error)
	shared   bool // the host writes to the backend's memory
	half     bool
	compiles bool // a program takes XLA's time to compile
	gpu      bool
}

// kinds are the pure-Go backend and, in a build with cgo, XLA.
var kinds = []kind{
	{name: "go", open: func(bool) (backends.Backend, error) { return openGo() }, shared: true},
	{name: "go, nothing shared", open: func(bool) (backends.Backend, error) { return openGo() }},
}

// engine makes an engine of a kind for a model, or skips the test.
func (k kind) engine(t testing.TB, m *model.Model, o Options) *Engine {
	t.Helper()
	b, err := k.open(k.shared)
	if err != nil {
		t.Fatal(err)
	}
	if b == nil {
		t.Skip("FPA_PJRT_CPU does not name a PJRT CPU plugin (a file like pjrt_c_api_cpu_plugin.so)")
	}
	e, err := newEngine(m, b, memory{shared: k.shared, half: k.half}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// each runs a test on every kind of engine that keeps float32, or those of them that
// suit it: XLA takes seconds to compile, and what the host does is the same on all.
func each(t *testing.T, suits func(k kind) bool, test func(t *testing.T, k kind)) {
	for _, k := range kinds {
		if !k.half && (suits == nil || suits(k)) {
			t.Run(k.name, func(t *testing.T) { test(t, k) })
		}
	}
}

func cpuEngine(t testing.TB, m *model.Model) engine.Engine {
	t.Helper()
	e, err := cpu.New(m, cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// build makes a model or fails the test.
func build(t testing.TB, p model.Parts) *model.Model {
	t.Helper()
	m, err := model.Build(p.Config, p.Tensors)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func newSession(t testing.TB, e engine.Engine, typ quant.DType, p cache.Policy) engine.Session {
	t.Helper()
	s, err := e.NewSession(typ, p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// feed feeds ids and returns the logits of the positions that are wanted, of all if
// want is nil.
func feed(t testing.TB, s engine.Session, ids []int32, want func(int) bool) []float32 {
	t.Helper()
	if want == nil {
		want = func(int) bool { return true }
	}
	var logits []float32
	next := s.Len()
	err := s.Feed(ids, want, func(pos int, l []float32) error {
		for ; next < pos; next++ {
			if want(next) {
				return fmt.Errorf("no logits of position %d", next)
			}
		}
		if next != pos || !want(pos) {
			return fmt.Errorf("logits of position %d", pos)
		}
		next++
		logits = append(logits, l...)
		return nil
	})
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

// oracle is the float64 result, [T, V].
func oracle(t testing.TB, m *model.Model, ids []int32) []float64 {
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

// onXLA are the options that XLA is tested with, each program taking it a second to
// compile: those whose operators differ most. The value is the number of chunks.
var onXLA = map[string]int{
	"fox pro": 5, "softmax rope": 2, "one field for all heads": 2, "direct absolute": 1, "inclusive relative": 1, "gelu_tanh, sigmoid gate norm": 1,
}

// TestOptions holds every option of the block against the float64 decoder: in
// chunks of all tokens, in chunks with padding, and token by token.
func TestOptions(t *testing.T) {
	each(t, nil, func(t *testing.T, k kind) {
		for name, option := range modeltest.Options() {
			chunks := 5
			if k.compiles {
				if chunks = onXLA[name]; chunks == 0 || !k.shared && name != "fox pro" {
					continue
				}
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c := modeltest.Config()
				option(&c)
				if k.compiles {
					c.Blocks = 1
				}
				m := build(t, modeltest.Random(c, 7, true))
				ids := modeltest.Tokens(45, c.VocabSize, 3)
				want := oracle(t, m, ids)
				e := k.engine(t, m, Options{Chunk: 16})
				s := newSession(t, e, quant.F32, cache.Policy{Mode: cache.Off})
				at := 0
				check := func(n int, wanted func(int) bool) {
					t.Helper()
					var here []float64
					for i := at; i < at+n; i++ {
						if wanted == nil || wanted(i) {
							here = append(here, want[i*c.VocabSize:(i+1)*c.VocabSize]...)
						}
					}
					if d := maxDiff(feed(t, s, ids[at:at+n], wanted), here); !(d < 2e-5) {
						t.Errorf("positions %d to %d: logits differ by %g", at, at+n-1, d)
					}
					at += n
				}
				last := func(n int) func(int) bool { return func(i int) bool { return i == n-1 } }
				check(16, last(16))
				if chunks > 1 {
					check(12, last(28)) // four of padding
				}
				if chunks > 2 {
					check(1, nil)
					check(1, nil)
					check(15, nil)
				}
			})
		}
	})
}
