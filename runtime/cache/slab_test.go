package cache

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/firstpassage/fpa/quant"
)

// TestSlabs makes pages until they come from slabs, of every type, and expects that
// none shares memory with another and that each begins where vectors may.
func TestSlabs(t *testing.T) {
	for _, typ := range []quant.DType{quant.F16, quant.Q8_0, quant.F32} {
		p := pool{layout: layout{keyHeads: 2, fieldHeads: 1, keyDim: 63, valueDim: 65, typ: typ}}
		n := int(2*slabsFrom/(PageSlots*p.layout.slotBytes())) + 1
		type span struct{ from, to uintptr }
		var spans []span
		seen := map[uintptr]bool{}
		var held []*page // lest their memory is used again
		for range n {
			page := p.get()
			held = append(held, page)
			for _, s := range [][2]uintptr{edges(page.k16), edges(page.v16), edges(page.k8), edges(page.v8), edges(page.k32), edges(page.v32)} {
				if s[0] != s[1] {
					spans = append(spans, span{s[0], s[1]})
				}
			}
		}
		aligned := 0
		for _, s := range spans {
			for at := s.from &^ 63; at < s.to; at += 64 {
				if at >= s.from && at+64 <= s.to {
					if seen[at] {
						t.Fatalf("%s: two pages share the address %#x", typ, at)
					}
					seen[at] = true
				}
			}
			if s.from%64 == 0 {
				aligned++
			}
		}
		runtime.KeepAlive(held)
		if len(spans) != 2*n || aligned < n/2 {
			t.Errorf("%s: %d pieces of %d pages, %d aligned", typ, len(spans), n, aligned)
		}
	}
}

func edges[T uint16 | int8 | float32](x []T) [2]uintptr {
	if len(x) == 0 {
		return [2]uintptr{}
	}
	from := uintptr(unsafe.Pointer(&x[0]))
	return [2]uintptr{from, from + uintptr(len(x))*unsafe.Sizeof(x[0])}
}

// TestLargeVectors are beyond a slab, and get memory of their own.
func TestLargeVectors(t *testing.T) {
	var s slab
	if x := numbers[float32](&s, slabBytes); len(x) != slabBytes || s.rest != nil {
		t.Errorf("%d numbers, %d bytes of slab left", len(x), len(s.rest))
	}
	if x := numbers[int8](&s, 0); len(x) != 0 {
		t.Errorf("%d numbers", len(x))
	}
}
