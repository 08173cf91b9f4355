package kernels

import "unsafe"

//go:noescape
func packedTilesNibbles(y *float32, ldy int, w *byte, heads int, x *byte, sums *float32, table *uint16, blocks, groups, n, mask int, work *byte)

//go:noescape
func packedTilesNibblesOffset(y *float32, ldy int, w *byte, heads int, x *byte, sums *float32, table *uint16, blocks, groups, n, mask int, work *byte)

//go:noescape
func packedTilesBytes(y *float32, ldy int, w *byte, heads int, x *byte, sums *float32, table *uint16, blocks, groups, n, mask int, work *byte)

// packedLimbBytes is the size of the limbs of a block of eight vectors.
const packedLimbBytes = 3 * 64 * packedVectors

// packedTiles reports whether n vectors are multiplied with matrices of the form on the
// matrix unit, whose time does not depend on n up to eight.
func (f *packedForm) packedTiles(n int) bool {
	if current != amx || n <= FewVectors {
		return false
	}
	switch f.kernel {
	case packedNibbles, packedNibblesOffset, packedBytes:
		return true
	}
	return false
}

// growPairs makes room for the pairs of all vectors, eight by eight.
func (in *Input) growPairs() {
	size := (in.n + packedVectors - 1) / packedVectors * (in.cols / 32) * packedLimbBytes
	if cap(in.pairs) < size {
		const line = 64
		all := make([]byte, size+line)
		in.pairs = all[-uintptr(unsafe.Pointer(&all[0]))%line:]
	}
	in.pairs = in.pairs[:size]
}

// splitPairs fills in pairs for vectors t0 to t1. The places of vectors that are not
// there hold anything.
func (in *Input) splitPairs(t0, t1 int) {
	blocks := in.cols / 32
	for t := t0; t < t1; t++ {
		to := &in.pairs[t/packedVectors*blocks*packedLimbBytes+t%packedVectors*64]
		splitPackedAVX512(to, &in.x[t*in.ld], blocks)
	}
}

// matMulPackedTiles is matMulPacked on the matrix unit.
func matMulPackedTiles(y []float32, ldy int, w Matrix, in *Input, r0, r1 int, s *Scratch) {
	const workBytes, workZeros, workAt = 3072 + 512, 3072, 4096
	f := w.packed.form
	heads, all := f.groupBytes(w.Cols)
	blocks := w.Cols / f.columns
	work := s.bytes(workBytes + workAt)
	work = work[-uintptr(unsafe.Pointer(&work[0]))%workAt:][:workBytes]
	clear(work[workZeros:])
	kernel, table := packedTilesBytes, (*uint16)(nil)
	switch f.kernel {
	case packedNibbles:
		kernel = packedTilesNibbles
	case packedNibblesOffset:
		kernel = packedTilesNibblesOffset
	}
	if f.table != nil {
		table = &f.narrow[0]
	}
	for t := 0; t < in.n; t += packedVectors {
		var sums *float32
		if f.offset {
			sums = &in.sums[t*blocks]
		}
		eachGroups(r0, r1, func(group, groups, mask int) {
			kernel((*float32)(unsafe.Add(unsafe.Pointer(&y[0]), 4*(t*ldy+group*packedRows))), 4*ldy,
				&w.packed.data[group*all], heads, &in.pairs[t*blocks/packedVectors*packedLimbBytes],
				sums, table, blocks, groups, min(packedVectors, in.n-t), mask, &work[0])
		})
	}
}
