package kernels

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:generate sh -c "cd gen && go run . -for int8 -pkg kernels -out ../int8_amd64.s -stubs ../int8_stubs_amd64.go"

// vnni says that sums of products of four bytes are one instruction (AVX-512 VNNI).
// Tests change it.
var vnni = cpu.X86.HasAVX512VNNI

// int8Kernel multiplies a packed group with some vectors; see gen/int8.go.
type int8Kernel = func(y *float32, ldy int, w *byte, heads int, x *byte, blocks int)

// The kernels by family and number of vectors, less one.
var (
	int8Wide = map[packedKernel][packedVectors]int8Kernel{
		packedNibbles: {
			int8Nibbles1AVX512, int8Nibbles2AVX512, int8Nibbles3AVX512, int8Nibbles4AVX512,
			int8Nibbles5AVX512, int8Nibbles6AVX512, int8Nibbles7AVX512, int8Nibbles8AVX512,
		},
		packedNibblesOffset: {
			int8NibblesOffset1AVX512, int8NibblesOffset2AVX512, int8NibblesOffset3AVX512, int8NibblesOffset4AVX512,
			int8NibblesOffset5AVX512, int8NibblesOffset6AVX512, int8NibblesOffset7AVX512, int8NibblesOffset8AVX512,
		},
		packedWords: {
			int8Words1AVX512, int8Words2AVX512, int8Words3AVX512, int8Words4AVX512,
			int8Words5AVX512, int8Words6AVX512, int8Words7AVX512, int8Words8AVX512,
		},
	}
	int8Narrow = map[packedKernel][packedVectors / 2]int8Kernel{
		packedNibbles:       {int8Nibbles1AVX2, int8Nibbles2AVX2, int8Nibbles3AVX2, int8Nibbles4AVX2},
		packedNibblesOffset: {int8NibblesOffset1AVX2, int8NibblesOffset2AVX2, int8NibblesOffset3AVX2, int8NibblesOffset4AVX2},
		packedWords:         {int8Words1AVX2, int8Words2AVX2, int8Words3AVX2, int8Words4AVX2},
	}
)

func int8Group(f *packedForm, n int, y []float32, ldy int, data []byte, heads int, records []record) {
	blocks := len(records) / packedVectors
	switch {
	case current == generic:
		int8GroupGo(f, n, y, ldy, data, heads, records)
	case current >= avx512 && vnni:
		int8Wide[f.kernel][n-1](&y[0], 4*ldy, &data[0], heads, (*byte)(unsafe.Pointer(&records[0])), blocks)
	default:
		for t := 0; t < n; t += packedVectors / 2 {
			k := min(packedVectors/2, n-t)
			int8Narrow[f.kernel][k-1](&y[t*ldy], 4*ldy, &data[0], heads, (*byte)(unsafe.Pointer(&records[t])), blocks)
		}
	}
}

func roundRecords(to []record, x []float32) {
	if current == generic {
		roundRecordsGo(to, x)
		return
	}
	roundRecordsAVX2((*byte)(unsafe.Pointer(&to[0])), &x[0], len(x)/32)
}
