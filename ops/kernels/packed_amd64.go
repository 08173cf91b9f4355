package kernels

import "unsafe"

//go:generate sh -c "cd gen && go run . -for packed -pkg kernels -out ../packed_amd64.s -stubs ../packed_stubs_amd64.go"

// canPack reports whether this processor multiplies packed matrices.
func canPack() bool { return current >= avx512 }

// The kernels by family and number of vectors, less one.
var packedKernels = [...][packedVectors]func(y *float32, ldy int, w *byte, heads int, x *float32, ldx int, sums, table *float32, blocks, groups, mask int){
	packedNibbles: {
		packedNibbles1AVX512, packedNibbles2AVX512, packedNibbles3AVX512, packedNibbles4AVX512,
		packedNibbles5AVX512, packedNibbles6AVX512, packedNibbles7AVX512, packedNibbles8AVX512,
	},
	packedNibblesOffset: {
		packedNibblesOffset1AVX512, packedNibblesOffset2AVX512, packedNibblesOffset3AVX512, packedNibblesOffset4AVX512,
		packedNibblesOffset5AVX512, packedNibblesOffset6AVX512, packedNibblesOffset7AVX512, packedNibblesOffset8AVX512,
	},
	packedBytes: {
		packedBytes1AVX512, packedBytes2AVX512, packedBytes3AVX512, packedBytes4AVX512,
		packedBytes5AVX512, packedBytes6AVX512, packedBytes7AVX512, packedBytes8AVX512,
	},
	packedNibblesGroups: {
		packedNibblesGroups1AVX512, packedNibblesGroups2AVX512, packedNibblesGroups3AVX512, packedNibblesGroups4AVX512,
		packedNibblesGroups5AVX512, packedNibblesGroups6AVX512, packedNibblesGroups7AVX512, packedNibblesGroups8AVX512,
	},
	packedBytesGroups: {
		packedBytesGroups1AVX512, packedBytesGroups2AVX512, packedBytesGroups3AVX512, packedBytesGroups4AVX512,
		packedBytesGroups5AVX512, packedBytesGroups6AVX512, packedBytesGroups7AVX512, packedBytesGroups8AVX512,
	},
}

// matMulPacked multiplies rows r0 to r1 of a packed matrix, eight vectors at a time.
func matMulPacked(y []float32, ldy int, w Matrix, in *Input, r0, r1 int, s *Scratch) {
	f := w.packed.form
	if f.packedTiles(in.n) {
		matMulPackedTiles(y, ldy, w, in, r0, r1, s)
		return
	}
	heads, all := f.groupBytes(w.Cols)
	blocks := w.Cols / f.columns
	for t := 0; t < in.n; t += packedVectors {
		n := min(packedVectors, in.n-t)
		kernel := packedKernels[f.kernel][n-1]
		var sums, table *float32
		if f.offset {
			sums = &in.sums[t*(w.Cols/32)]
		}
		if f.table != nil {
			table = &f.table[0]
		}
		eachGroups(r0, r1, func(group, groups, mask int) {
			kernel((*float32)(unsafe.Add(unsafe.Pointer(&y[0]), 4*(t*ldy+group*packedRows))), 4*ldy,
				&w.packed.data[group*all], heads, &in.x[t*in.ld], 4*in.ld, sums, table, blocks, groups, mask)
		})
	}
}

// eachGroups calls f for runs of groups that rows r0 to r1 lie in. A bit of mask is
// set for each row of the groups that is one of them: the first and the last group may
// be wanted in part.
func eachGroups(r0, r1 int, f func(group, groups, mask int)) {
	group, last := r0/packedRows, r1/packedRows
	const whole = 1<<packedRows - 1
	first, rest := whole&^(1<<(r0%packedRows)-1), 1<<(r1%packedRows)-1
	if group == last {
		f(group, 1, first&rest)
		return
	}
	if first != whole {
		f(group, 1, first)
		group++
	}
	if last > group {
		f(group, last-group, whole)
	}
	if rest != 0 {
		f(last, 1, rest)
	}
}

// widenGroup widens cols columns, from c on, of all rows of a group to float32 numbers,
// a row every stride numbers. c and cols are whole blocks.
func widenGroup(dst []float32, stride int, w Matrix, group, c, cols int) {
	f := w.packed.form
	heads, all := f.groupBytes(w.Cols)
	data := w.packed.data[group*all:]
	_ = dst[:(packedRows-1)*stride+cols]
	first, blocks := c/f.columns, cols/f.columns
	head, quants := &data[first*f.head], &data[heads+first*f.words*4*packedRows]
	var table *float32
	if f.table != nil {
		table = &f.table[0]
	}
	switch f.kernel {
	case packedNibbles:
		widenPackedNibblesAVX512(&dst[0], 4*stride, head, quants, table, blocks)
	case packedNibblesOffset:
		widenPackedNibblesOffsetAVX512(&dst[0], 4*stride, head, quants, table, blocks)
	case packedBytes:
		widenPackedBytesAVX512(&dst[0], 4*stride, head, quants, table, blocks)
	case packedNibblesGroups:
		widenPackedNibblesGroupsAVX512(&dst[0], 4*stride, head, quants, table, blocks)
	case packedBytesGroups:
		widenPackedBytesGroupsAVX512(&dst[0], 4*stride, head, quants, table, blocks)
	}
}

// turnBytes exchanges, in every 64 bytes, sixteen rows of four bytes for four of
// sixteen.
func turnBytes(p []byte) { turnBytesAVX512(&p[0], len(p)/64) }
