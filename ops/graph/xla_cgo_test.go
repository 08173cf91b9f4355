//go:build cgo

package graph_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/backends/xla"
	"github.com/gomlx/gomlx/pkg/core/distributed"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"

	"github.com/firstpassage/fpa/ops/graph"
	"github.com/firstpassage/fpa/ops/reference"
)

func init() { others["xla"] = xlaBackend }

// openXLA opens the PJRT CPU plugin that FPA_PJRT_CPU names, once a process.
var openXLA = sync.OnceValues(func() (backends.Backend, error) {
	plugin, err := filepath.Abs(os.Getenv("FPA_PJRT_CPU"))
	if err != nil {
		return nil, err
	}
	// With the path of a plugin, nothing is searched for and nothing fetched.
	return xla.New(plugin + ",shared_buffers")
})

func xlaBackend(t testing.TB) backends.Backend {
	t.Helper()
	if os.Getenv("FPA_PJRT_CPU") == "" {
		if os.Getenv("FPA_REQUIRE_ORACLES") == "1" {
			t.Fatal("FPA_PJRT_CPU does not name a PJRT CPU plugin, and FPA_REQUIRE_ORACLES is 1")
		}
		t.Skip("FPA_PJRT_CPU does not name a PJRT CPU plugin (a file like pjrt_c_api_cpu_plugin.so)")
	}
	b, err := openXLA()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The heads split over devices by gomlx's automatic sharding give what one
// device gives.
func TestSharded(t *testing.T) {
	b := xlaBackend(t)
	if b.NumDevices() < 2 {
		t.Skipf("%s has %d device", b.Description(), b.NumDevices())
	}
	mesh, err := distributed.NewDeviceMesh([]int{2}, []string{"heads"})
	if err != nil {
		t.Fatal(err)
	}
	x := random(rand.New(rand.NewPCG(41, 42)), shape{2, 4, 2, 2, 12, 4, 4}, reference.Exclusive, 0.2)
	ref, err := reference.Parallel(x)
	if err != nil {
		t.Fatal(err)
	}
	e, err := gx.NewExec(b, func(in []*gx.Node) *gx.Node {
		return graph.Attention(in[0], in[1], in[2], in[3], in[4], in[5], options(x))
	})
	if err != nil {
		t.Fatal(err)
	}
	spec := func(axes ...distributed.AxisSpec) *distributed.ShardingSpec {
		s, err := distributed.NewShardingSpec(mesh, axes...)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	all, split := distributed.ReplicatedAxis, distributed.AxisSpec{"heads"}
	specs := []*distributed.ShardingSpec{
		spec(all, split, all, all), spec(all, split, all, all), spec(all, split, all, all),
		spec(all, split, all), spec(all, split, all), spec(split),
	}
	e.AutoSharding(mesh).WithInputShardingSpecs(specs...).WithOutputShardingSpecs(specs[0])
	var args []any
	for i, in := range inputs(x, dtypes.Float32, dtypes.Float32) {
		shards, err := distributed.ShardTensor(specs[i], in)
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, shards)
	}
	out, err := e.DistributedExec(args...)
	if err != nil {
		t.Fatal(err)
	}
	y, err := out[0].Merge()
	if err != nil {
		t.Fatal(err)
	}
	if got := out[0].ShardShape().Dimensions[1]; got != 2 {
		t.Errorf("a device holds %d of 4 heads, want 2", got)
	}
	near(t, "output", floats(t, y), ref.Output, 2e-6)
}
