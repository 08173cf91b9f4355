package quant

import (
	"math"
	"os"
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:generate sh -c "cd ../ops/kernels/gen && go run . -for quant -pkg quant -out ../../../quant/bulk_amd64.s -stubs ../../../quant/stubs_amd64.go"

// vector tells whether the assembly is used: the processor has the
// instructions, and FPA_CPU does not ask for plain Go. Tests change it.
var vector = cpu.X86.HasAVX2 && cpu.X86.HasF16C && os.Getenv("FPA_CPU") != "generic"

// whole is how many of n elements the assembly takes, which works on sixteen at
// a time; plain Go does the rest.
func whole(n int) int {
	if !vector {
		return 0
	}
	return n &^ 15
}

func encodeF16(dst []byte, src []float32) {
	n := whole(len(src))
	if n > 0 {
		encodeF16AVX2(&dst[0], &src[0], n)
	}
	encodeF16Go(dst[2*n:], src[n:])
}

func encodeBF16(dst []byte, src []float32) {
	n := whole(len(src))
	if n > 0 {
		encodeBF16AVX2(&dst[0], &src[0], n)
	}
	encodeBF16Go(dst[2*n:], src[n:])
}

func decodeF16(dst []float32, src []byte) {
	n := whole(len(dst))
	if n > 0 {
		decodeF16AVX2(&dst[0], &src[0], n)
	}
	decodeF16Go(dst[n:], src[2*n:])
}

func decodeBF16(dst []float32, src []byte) {
	n := whole(len(dst))
	if n > 0 {
		decodeBF16AVX2(&dst[0], &src[0], n)
	}
	decodeBF16Go(dst[n:], src[2*n:])
}

func encodeF16Words(dst []uint16, src []float32) int {
	n := whole(len(src))
	if n > 0 {
		encodeF16AVX2((*byte)(unsafe.Pointer(&dst[0])), &src[0], n)
	}
	return n
}

func decodeF16Words(dst []float32, src []uint16) int {
	n := whole(len(src))
	if n > 0 {
		decodeF16AVX2(&dst[0], (*byte)(unsafe.Pointer(&src[0])), n)
	}
	return n
}

func decodeQ8_0(dst []float32, src []byte) {
	if !vector || len(dst) == 0 {
		decodeQ8_0Go(dst, src)
		return
	}
	decodeQ8AVX2(&dst[0], &src[0], len(dst)/blockLen)
}

func encodeQ8_0(dst []byte, src []float32) {
	if !vector || len(src) == 0 {
		encodeQ8_0Go(dst, src)
		return
	}
	encodeQ8AVX2(&dst[0], &src[0], len(src)/blockLen)
}

func decodeQ4_0(dst []float32, src []byte) {
	if !vector || len(dst) == 0 {
		decodeQ4_0Go(dst, src)
		return
	}
	decodeQ4AVX2(&dst[0], &src[0], len(dst)/blockLen)
}

func decodeQ4_1(dst []float32, src []byte) {
	if !vector || len(dst) == 0 {
		decodeQ4_1Go(dst, src)
		return
	}
	decodeQ41AVX2(&dst[0], &src[0], len(dst)/blockLen)
}

func decodeQ5_0(dst []float32, src []byte) {
	if !vector || len(dst) == 0 {
		decodeQ5_0Go(dst, src)
		return
	}
	decodeQ5AVX2(&dst[0], &src[0], len(dst)/blockLen)
}

func decodeQ5_1(dst []float32, src []byte) {
	if !vector || len(dst) == 0 {
		decodeQ5_1Go(dst, src)
		return
	}
	decodeQ51AVX2(&dst[0], &src[0], len(dst)/blockLen)
}

// In the K types Go unpacks the scales of a block, and assembly the elements.

func decodeQ4K(dst []float32, src []byte) {
	if !vector {
		decodeQ4KGo(dst, src)
		return
	}
	for ; len(dst) > 0; dst, src = dst[superLen:], src[144:] {
		scales, offsets := groupScales(src)
		decodeQ4KAVX2(&dst[0], &src[16], &scales, &offsets)
	}
}

func decodeQ5K(dst []float32, src []byte) {
	if !vector {
		decodeQ5KGo(dst, src)
		return
	}
	for ; len(dst) > 0; dst, src = dst[superLen:], src[176:] {
		scales, offsets := groupScales(src)
		decodeQ5KAVX2(&dst[0], &src[48], &src[16], &scales, &offsets)
	}
}

func decodeQ6K(dst []float32, src []byte) {
	if !vector {
		decodeQ6KGo(dst, src)
		return
	}
	for ; len(dst) > 0; dst, src = dst[superLen:], src[210:] {
		scales := q6Scales(src)
		decodeQ6KAVX2(&dst[0], &src[0], &src[128], &scales)
	}
}

func roundSums(sums *[3]float64, q []int32, x []float64, inverse, shift, top, bias float64) {
	if !vector {
		roundSumsGo(sums, q, x, inverse, shift, top, bias)
		return
	}
	roundSumsAVX2(sums, &q[0], &x[0], len(x), inverse, shift, top, bias)
}

// scanBulk adds to s what the first elements hold and returns how many bytes
// they take.
func scanBulk(s *Stats, d DType, src []byte) (done int) {
	// The lanes count in 32 bits.
	const most = 1 << 30
	for {
		n := min(whole(len(src)/infos[d].bytes), most)
		if n == 0 {
			return done
		}
		var out [4][8]uint32
		switch d {
		case F32:
			scanF32AVX2(&out, &src[0], n)
		case F16:
			scanF16AVX2(&out, &src[0], n)
		case BF16:
			scanBF16AVX2(&out, &src[0], n)
		default:
			return done
		}
		s.Count += int64(n)
		for lane := range 8 {
			s.Max = max(s.Max, math.Float32frombits(out[0][lane]))
			s.NaN += int64(out[1][lane])
			s.Inf += int64(out[2][lane])
			s.Zero += int64(out[3][lane])
		}
		done += n * infos[d].bytes
		src = src[n*infos[d].bytes:]
	}
}
