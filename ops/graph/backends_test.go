package graph_test

import (
	"sync"
	"testing"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/backends/simplego"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/tensors"
)

// others holds the backends that a test may run on beside the pure-Go one; a
// constructor skips the test where its backend is not at hand.
var others = map[string]func(t testing.TB) backends.Backend{}

// onBackends runs a test on each backend.
func onBackends(t *testing.T, test func(t *testing.T, b backends.Backend)) {
	t.Run("go", func(t *testing.T) { test(t, goBackend(t)) })
	for name, open := range others {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// openGo opens gomlx's pure-Go backend, once a process, since a tensor stays
// with one backend. Its operators run one after the other: in parallel mode an
// error of one ends the process.
var openGo = sync.OnceValues(func() (backends.Backend, error) { return simplego.New("ops_sequential") })

func goBackend(t testing.TB) backends.Backend {
	t.Helper()
	b, err := openGo()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// compile returns a function that runs the graph that build makes of inputs of
// the given shapes.
func compile(t testing.TB, b backends.Backend, build func(in []*gx.Node) []*gx.Node) func(in ...*tensors.Tensor) []*tensors.Tensor {
	t.Helper()
	e, err := gx.NewExec(b, build)
	if err != nil {
		t.Fatal(err)
	}
	return func(in ...*tensors.Tensor) []*tensors.Tensor {
		t.Helper()
		args := make([]any, len(in))
		for i := range in {
			args[i] = in[i]
		}
		out, err := e.Exec(args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
}

// run is compile for a graph that is run once.
func run(t testing.TB, b backends.Backend, build func(in []*gx.Node) []*gx.Node, in ...*tensors.Tensor) []*tensors.Tensor {
	t.Helper()
	return compile(t, b, build)(in...)
}

// tensor makes a tensor of type Float64, Float32 or Int32 of x.
func tensor(dtype dtypes.DType, x []float64, dims ...int) *tensors.Tensor {
	switch dtype {
	case dtypes.Float64:
		return tensors.FromFlatDataAndDimensions(x, dims...)
	case dtypes.Float32:
		return tensors.FromFlatDataAndDimensions(convert[float32](x), dims...)
	case dtypes.Int32:
		return tensors.FromFlatDataAndDimensions(convert[int32](x), dims...)
	}
	panic("no such tensor in these tests: " + dtype.String())
}

func convert[T float32 | float64 | int32, F float32 | float64 | int32](x []F) []T {
	y := make([]T, len(x))
	for i, v := range x {
		y[i] = T(v)
	}
	return y
}

// floats returns the elements of a tensor.
func floats(t testing.TB, x *tensors.Tensor) []float64 {
	t.Helper()
	var out []float64
	err := x.ConstFlatData(func(flat any) {
		switch f := flat.(type) {
		case []float64:
			out = append(out, f...)
		case []float32:
			out = convert[float64](f)
		case []int32:
			out = convert[float64](f)
		case []bool:
			for _, b := range f {
				v := 0.0
				if b {
					v = 1
				}
				out = append(out, v)
			}
		default:
			t.Fatalf("a tensor of %v", x.Shape())
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
