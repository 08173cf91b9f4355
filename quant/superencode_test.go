package quant

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

var superTypes = []DType{Q4_K, Q5_K, Q6_K}

func encodeAll(t testing.TB, d DType, x []float32) []byte {
	t.Helper()
	dst := make([]byte, size(d, len(x)))
	if err := Encode(dst, d, x); err != nil {
		t.Fatal(err)
	}
	return dst
}

func rmse(want, got []float32) float64 {
	var e Error
	e.Add(want, got)
	return e.RMSE()
}

// TestEncodeSuperGolden: in no row is the error above that of llama.cpp's quantiser,
// and over rows of plain weights it is lower by some percent.
func TestEncodeSuperGolden(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		tensors, _ := readTensors(t, "testdata/quantize.safetensors")
		input := decodeAll(t, F32, tensors["input"])
		for _, d := range superTypes {
			reference := decodeAll(t, d, tensors[d.String()])
			got := decodeAll(t, d, encodeAll(t, d, input))
			for i := 0; i < len(input); i += superLen {
				ours := rmse(input[i:i+superLen], got[i:i+superLen])
				theirs := rmse(input[i:i+superLen], reference[i:i+superLen])
				if !(ours <= theirs) {
					t.Errorf("%s, row %d: error %g, the reference has %g", d, i/superLen, ours, theirs)
				}
			}
			if ours, theirs := rmse(input[:2*superLen], got[:2*superLen]), rmse(input[:2*superLen], reference[:2*superLen]); ours > 0.985*theirs {
				t.Errorf("%s, rows of weights: error %g, the reference has %g", d, ours, theirs)
			}
		}
	})
}

// superBlocks are blocks of every size and kind.
func superBlocks(r *rand.Rand, blocks int) []float32 {
	x := make([]float32, blocks*superLen)
	for b := range blocks {
		block := x[b*superLen:][:superLen]
		size := math.Ldexp(1, r.IntN(150)-140)
		switch b % 6 {
		case 0:
			copy(block, randomFloats(r, superLen))
		case 1: // a constant
			for i := range block {
				block[i] = float32(size)
			}
		case 2: // all of one sign
			for i := range block {
				block[i] = -float32(size * (1 + r.Float64()))
			}
		case 3: // zeros but for one element
			block[r.IntN(superLen)] = float32(size * r.NormFloat64())
		default:
			for i := range block {
				block[i] = float32(size * r.NormFloat64())
			}
		}
	}
	return x
}

// TestEncodeSuperPaths: assembly and plain Go give the same bytes.
func TestEncodeSuperPaths(t *testing.T) {
	x := superBlocks(rand.New(rand.NewPCG(21, 22)), 600)
	for _, d := range superTypes {
		var want []byte
		eachPath(t, func(t *testing.T) {
			got := encodeAll(t, d, x)
			if want == nil {
				want = got
			}
			if i := firstDifference(got, want); i >= 0 {
				t.Errorf("%s: block %d, byte %d differs", d, i/d.BlockBytes(), i%d.BlockBytes())
			}
		})
	}
}

// TestEncodeSuperBound: an element is off by no more than a rounding error of the
// coarsest grid that its block may have to be laid on.
func TestEncodeSuperBound(t *testing.T) {
	x := superBlocks(rand.New(rand.NewPCG(23, 24)), 3000)
	for _, d := range superTypes {
		got := decodeAll(t, d, encodeAll(t, d, x))
		for b := 0; b < len(x); b += superLen {
			var largest float64
			ok := true
			for _, v := range x[b : b+superLen] {
				ok = ok && v == v && !math.IsInf(float64(v), 0)
				largest = max(largest, math.Abs(float64(v)))
			}
			if !ok || largest > 63*maxF16 { // covered by TestEncodeSuperFinite
				continue
			}
			e := rmse(x[b:b+superLen], got[b:b+superLen])
			// The largest scale has an error of a half in 63 (127), the offset too; the
			// integers have one of a half in 15 (31, 32), of a range of up to twice the
			// largest. Scales are whole numbers of the smallest binary16 number at best.
			bound := 2 * largest * (0.5/15 + 1.0/63)
			switch d {
			case Q5_K:
				bound = 2 * largest * (0.5/31 + 1.0/63)
			case Q6_K:
				bound = largest * (0.5/31 + 1.0/127)
			}
			if bound += 32 * minF16; e > bound {
				t.Errorf("%s, block %d (largest %g): error %g, bound %g", d, b/superLen, largest, e, bound)
			}
		}
	}
}

// TestEncodeSuperFinite: whatever comes in, what is stored decodes to finite numbers,
// and zeros to zeros.
func TestEncodeSuperFinite(t *testing.T) {
	inf, nan, most := float32(math.Inf(1)), float32(math.NaN()), float32(math.MaxFloat32)
	fill := func(f func(i int) float32) []float32 {
		x := make([]float32, superLen)
		for i := range x {
			x[i] = f(i)
		}
		return x
	}
	tests := map[string][]float32{
		"zeros":          fill(func(int) float32 { return 0 }),
		"negative zeros": fill(func(int) float32 { return float32(math.Copysign(0, -1)) }),
		"NaN":            fill(func(int) float32 { return nan }),
		"infinities":     fill(func(i int) float32 { return []float32{inf, -inf}[i%2] }),
		"one NaN":        fill(func(i int) float32 { return []float32{1, nan}[i/255] }),
		"largest":        fill(func(i int) float32 { return []float32{most, -most}[i%2] }),
		"all largest":    fill(func(int) float32 { return most }),
		"all lowest":     fill(func(int) float32 { return -most }),
		"smallest":       fill(func(i int) float32 { return []float32{1e-45, -1e-45}[i%2] }),
		"both ends":      fill(func(i int) float32 { return []float32{most, 1e-45, -1e-45, 0}[i%4] }),
	}
	for name, x := range tests {
		for _, d := range superTypes {
			got := decodeAll(t, d, encodeAll(t, d, x))
			for i, v := range got {
				if v != v || math.IsInf(float64(v), 0) {
					t.Errorf("%s, %s: element %d (%g) became %g", d, name, i, x[i], v)
					break
				}
				if x[0] == 0 && v != 0 {
					t.Errorf("%s, %s: 0 became %g", d, name, v)
					break
				}
			}
		}
	}
	// What fits the format is stored well however large it is.
	for _, d := range superTypes {
		x := fill(func(i int) float32 { return float32(i-128) * 3e4 })
		if e := rmse(x, decodeAll(t, d, encodeAll(t, d, x))); e > 0.02*3.8e6 {
			t.Errorf("%s: numbers up to 3.8e6 err by %g", d, e)
		}
	}
}

// TestEncodeSuperOnce: encoding what a block decodes to loses next to nothing.
func TestEncodeSuperOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(25, 26))
	x := make([]float32, 64*superLen)
	for i := range x {
		x[i] = float32(r.NormFloat64() * 0.02)
	}
	for _, d := range superTypes {
		once := decodeAll(t, d, encodeAll(t, d, x))
		twice := decodeAll(t, d, encodeAll(t, d, once))
		if first, again := rmse(x, once), rmse(once, twice); again > 0.25*first {
			t.Errorf("%s: error %g, and %g more the second time", d, first, again)
		}
	}
}

// FuzzEncodeSuper: any numbers are encoded, to the same bytes on each path, and decode
// to finite ones.
func FuzzEncodeSuper(f *testing.F) {
	tensors, _ := readTensors(f, "testdata/quantize.safetensors")
	for i := 0; i < 12*4*superLen; i += 4 * superLen {
		f.Add(tensors["input"][i : i+4*superLen])
	}
	f.Add(bytes.Repeat([]byte{0, 0, 0x80, 0x7f, 0, 0, 0xc0, 0xff}, superLen/2))
	f.Fuzz(func(t *testing.T, data []byte) {
		x := make([]float32, superLen)
		for i := 0; i < len(data)/4 && i < len(x); i++ {
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
		for _, d := range superTypes {
			var want []byte
			eachPath(t, func(t *testing.T) {
				got := encodeAll(t, d, x)
				if want == nil {
					want = got
				}
				if i := firstDifference(got, want); i >= 0 {
					t.Fatalf("%s: byte %d differs between the paths", d, i)
				}
			})
			for i, v := range decodeAll(t, d, want) {
				if v != v || math.IsInf(float64(v), 0) {
					t.Fatalf("%s: element %d (%g) became %g", d, i, x[i], v)
				}
			}
		}
	})
}

func ExampleEncode_super() {
	x := make([]float32, 256)
	for i := range x {
		x[i] = float32(math.Sin(float64(i)))
	}
	for _, d := range []DType{Q4_K, Q6_K} {
		n, _ := d.Bytes(256)
		b := make([]byte, n)
		if err := Encode(b, d, x); err != nil {
			fmt.Println(err)
			return
		}
		y := make([]float32, 256)
		if err := Decode(y, d, b); err != nil {
			fmt.Println(err)
			return
		}
		var e Error
		e.Add(x, y)
		fmt.Printf("%s: %d bytes, error %.3f\n", d, n, e.RMSE())
	}
	// Output:
	// Q4_K: 144 bytes, error 0.030
	// Q6_K: 210 bytes, error 0.008
}
