package quant

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/x448/float16"
)

// readTensors reads a small safetensors file of the tests.
func readTensors(t testing.TB, path string) (tensors map[string][]byte, metadata map[string]string) {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(file)
	var header map[string]json.RawMessage
	if err := json.Unmarshal(file[8:8+n], &header); err != nil {
		t.Fatal(err)
	}
	tensors = make(map[string][]byte)
	for name, raw := range header {
		if name == "__metadata__" {
			if err := json.Unmarshal(raw, &metadata); err != nil {
				t.Fatal(err)
			}
			continue
		}
		var info struct {
			Offsets [2]int `json:"data_offsets"`
		}
		if err := json.Unmarshal(raw, &info); err != nil {
			t.Fatal(err)
		}
		tensors[name] = file[8+n:][info.Offsets[0]:info.Offsets[1]]
	}
	return tensors, metadata
}

func parseDType(t testing.TB, name string) DType {
	t.Helper()
	for d := Invalid; d < numDTypes; d++ {
		if d.String() == name {
			return d
		}
	}
	t.Fatalf("no type is named %q", name)
	return Invalid
}

func decodeAll(t testing.TB, d DType, src []byte) []float32 {
	t.Helper()
	dst := make([]float32, len(src)/d.BlockBytes()*d.BlockLen())
	if err := Decode(dst, d, src); err != nil {
		t.Fatal(err)
	}
	return dst
}

func f32Bytes(x []float32) []byte {
	b := make([]byte, 4*len(x))
	encodeF32(b, x)
	return b
}

// TestDecodeGolden decodes tensors written by the gguf and safetensors packages
// and compares with the values that those read, bit by bit.
func TestDecodeGolden(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		tensors, hashes := readTensors(t, "testdata/decode.safetensors")
		for name, hash := range hashes {
			d := parseDType(t, name[strings.IndexByte(name, '.')+1:])
			got := decodeAll(t, d, tensors[name])
			if want, ok := tensors[name+".values"]; ok {
				for i, w := range decodeAll(t, F32, want) {
					if math.Float32bits(w) != math.Float32bits(got[i]) {
						t.Errorf("%s: element %d is %v, want %v", name, i, got[i], w)
						break
					}
				}
			}
			for i, v := range got {
				if v != v { // the hash is over one canonical NaN
					got[i] = math.Float32frombits(0x7fc00000)
				}
			}
			if sum := sha256.Sum256(f32Bytes(got)); hex.EncodeToString(sum[:]) != hash {
				t.Errorf("%s: hash of the values differs from the golden", name)
			}
		}
		if len(hashes) < 30 {
			t.Errorf("only %d goldens", len(hashes))
		}
	})
}

// TestEncodeGolden compares with the bytes of llama.cpp's reference quantiser.
func TestEncodeGolden(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		tensors, _ := readTensors(t, "testdata/quantize.safetensors")
		input := decodeAll(t, F32, tensors["input"])
		for _, d := range []DType{F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0} {
			want := tensors[d.String()]
			got := make([]byte, len(want))
			if err := Encode(got, d, input); err != nil {
				t.Fatal(err)
			}
			if i := firstDifference(got, want); i >= 0 {
				t.Errorf("%s: byte %d (block %d) is %#x, want %#x", d, i, i/d.BlockBytes(), got[i], want[i])
			}
		}
	})
}

// TestDecodeQuantised compares the error of every block type of the reference
// quantiser with the root mean square that was computed for it elsewhere.
func TestDecodeQuantised(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		tensors, _ := readTensors(t, "testdata/quantize.safetensors")
		var doc struct {
			Rows  []string
			Types map[string]struct {
				RMSE map[string]float64 `json:"rmse_per_row"`
			}
		}
		text, err := os.ReadFile("testdata/quantize.json")
		if err != nil {
			t.Fatal(err)
		}
		// Python writes infinities bare, which is no JSON.
		text = bytes.ReplaceAll(text, []byte("Infinity"), []byte("-1"))
		if err := json.Unmarshal(text, &doc); err != nil {
			t.Fatal(err)
		}
		input := decodeAll(t, F32, tensors["input"])
		for name, typ := range doc.Types {
			got := decodeAll(t, parseDType(t, name), tensors[name])
			for i, row := range doc.Rows {
				var e Error
				e.Add(input[i*256:(i+1)*256], got[i*256:(i+1)*256])
				want := typ.RMSE[row]
				if want < 0 {
					if !math.IsInf(e.RMSE(), 1) && !math.IsNaN(e.RMSE()) {
						t.Errorf("%s %s: error %g, want infinity", name, row, e.RMSE())
					}
					continue
				}
				if math.Abs(e.RMSE()-want) > 1e-5*want+1e-12 {
					t.Errorf("%s %s: error %g, want %g", name, row, e.RMSE(), want)
				}
			}
		}
	})
}

// TestDecodePaths decodes random bytes, which need not be a sane tensor, on each
// path.
func TestDecodePaths(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	for d := Invalid; d < numDTypes; d++ {
		if !CanDecode(d) {
			continue
		}
		src := make([]byte, 5*d.BlockBytes()*max(1, 256/d.BlockLen())+1)[1:]
		for i := range src {
			src[i] = byte(r.Uint32())
		}
		var want []float32
		eachPath(t, func(t *testing.T) {
			got := decodeAll(t, d, src)
			if want == nil {
				want = got
			}
			for i, w := range want {
				if got[i] != w && (got[i] == got[i] || w == w) {
					t.Fatalf("%s: element %d is %v, want %v", d, i, got[i], w)
				}
			}
		})
	}
}

func firstDifference(a, b []byte) int {
	for i := range b {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

func longTests() bool { return os.Getenv("FPA_LONG_TESTS") == "1" }

func TestF16ToF32All(t *testing.T) {
	for i := range 1 << 16 {
		want := math.Float32bits(float16.Frombits(uint16(i)).Float32())
		if got := math.Float32bits(F16ToF32(uint16(i))); got != want {
			t.Fatalf("F16ToF32(%#04x) = %#08x, want %#08x", i, got, want)
		}
		if v := F16ToF32(uint16(i)); v == v && F32ToF16(v) != uint16(i) {
			t.Fatalf("%#04x does not survive", i)
		}
	}
}

// TestF32ToF16 tries every input in the long test; otherwise every combination
// of sign, exponent and upper eleven fraction bits, with the lower bits that
// decide rounding.
func TestF32ToF16(t *testing.T) {
	check := func(bits uint32) {
		f := math.Float32frombits(bits)
		if got, want := F32ToF16(f), float16.Fromfloat32(f).Bits(); got != want {
			t.Fatalf("F32ToF16(%#08x) = %#04x, want %#04x", bits, got, want)
		}
	}
	if longTests() {
		const run = 1 << 16
		x, bulk := make([]float32, run), make([]uint16, run)
		for high := range uint32(1 << 16) {
			for low := range x {
				bits := high<<16 | uint32(low)
				check(bits)
				x[low] = math.Float32frombits(bits)
			}
			EncodeF16(bulk, x)
			for low, v := range x {
				if bulk[low] != F32ToF16(v) {
					t.Fatalf("EncodeF16(%#08x) = %#04x", high<<16|uint32(low), bulk[low])
				}
			}
		}
		return
	}
	for high := range uint32(1 << 20) {
		for _, low := range []uint32{0, 1, 0x7ff, 0x800, 0xfff} {
			check(high<<12 | low)
		}
	}
}

// TestF32ToBF16 compares with rounding in float64, which holds both neighbours
// and the middle exactly.
func TestF32ToBF16(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1 << 18 {
		bits := r.Uint32()
		if r.IntN(4) == 0 {
			bits = bits&0xffff0000 | 0x8000 // a tie
		}
		f := math.Float32frombits(bits)
		got := F32ToBF16(f)
		if f != f {
			if v := BF16ToF32(got); v == v || math.Signbit(float64(v)) != math.Signbit(float64(f)) {
				t.Fatalf("NaN %#08x became %#04x", bits, got)
			}
			continue
		}
		down := uint16(bits >> 16)
		want := down
		lower := math.Abs(float64(BF16ToF32(down)))
		upper := math.Abs(float64(BF16ToF32(down + 1)))
		if math.IsInf(upper, 1) {
			upper = 0x1p128
		}
		if x := math.Abs(float64(f)); !math.IsInf(x, 1) && (x-lower > upper-x || x-lower == upper-x && down&1 == 1) {
			want++
		}
		if got != want {
			t.Fatalf("F32ToBF16(%#08x) = %#04x, want %#04x", bits, got, want)
		}
	}
}

func TestF8Tables(t *testing.T) {
	tests := []struct {
		d     DType
		code  byte
		value float64
	}{
		{F8E4M3, 0x00, 0}, {F8E4M3, 0x01, 0x1p-9}, {F8E4M3, 0x08, 0x1p-6}, {F8E4M3, 0x38, 1},
		{F8E4M3, 0x7e, 448}, {F8E4M3, 0xfe, -448}, {F8E4M3, 0x7f, math.NaN()}, {F8E4M3, 0xff, math.NaN()},
		{F8E5M2, 0x01, 0x1p-16}, {F8E5M2, 0x3c, 1}, {F8E5M2, 0x7b, 57344}, {F8E5M2, 0x7c, math.Inf(1)},
		{F8E5M2, 0xfc, math.Inf(-1)}, {F8E5M2, 0x7d, math.NaN()},
		{F8E4M3FNUZ, 0x7f, 240}, {F8E4M3FNUZ, 0x40, 1}, {F8E4M3FNUZ, 0x01, 0x1p-10}, {F8E4M3FNUZ, 0x80, math.NaN()},
		{F8E5M2FNUZ, 0x7f, 57344}, {F8E5M2FNUZ, 0x40, 1}, {F8E5M2FNUZ, 0x01, 0x1p-17}, {F8E5M2FNUZ, 0x80, math.NaN()},
		{F8E8M0, 0x00, 0x1p-127}, {F8E8M0, 0x7f, 1}, {F8E8M0, 0xfe, 0x1p127}, {F8E8M0, 0xff, math.NaN()},
	}
	for _, test := range tests {
		got := float64(decodeAll(t, test.d, []byte{test.code})[0])
		if got != test.value && !(math.IsNaN(got) && math.IsNaN(test.value)) {
			t.Errorf("%s %#02x is %v, want %v", test.d, test.code, got, test.value)
		}
	}
	if v := decodeAll(t, F8E4M3, []byte{0x80})[0]; v != 0 || !math.Signbit(float64(v)) {
		t.Errorf("F8_E4M3 0x80 is %v, want -0", v)
	}
}

// randomFloats mixes ordinary numbers with every kind of special one.
func randomFloats(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		switch r.IntN(8) {
		case 0:
			x[i] = math.Float32frombits(r.Uint32())
		case 1:
			x[i] = []float32{0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 65520, -65519, 1e-45}[r.IntN(8)]
		default:
			x[i] = float32(r.NormFloat64())
		}
	}
	return x
}

// TestBulk compares whole slices, at every small length and at an odd address,
// with the scalar functions.
func TestBulk(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 4))
		for n := range 200 {
			x := randomFloats(r, n)
			want16, wantB16 := make([]byte, 2*n), make([]byte, 2*n)
			back := make([]float32, n)
			for i, v := range x {
				binary.LittleEndian.PutUint16(want16[2*i:], F32ToF16(v))
				binary.LittleEndian.PutUint16(wantB16[2*i:], F32ToBF16(v))
				back[i] = F16ToF32(F32ToF16(v))
			}
			odd := make([]byte, 4*n+1)[1:]
			for _, test := range []struct {
				d    DType
				want []byte
			}{{F16, want16}, {BF16, wantB16}, {F32, f32Bytes(x)}} {
				dst := odd[:len(test.want)]
				if err := Encode(dst, test.d, x); err != nil {
					t.Fatal(err)
				}
				if i := firstDifference(dst, test.want); i >= 0 {
					t.Fatalf("%s, %d elements: byte %d differs", test.d, n, i)
				}
			}
			copy(odd, want16)
			got := make([]float32, n)
			if err := Decode(got, F16, odd[:2*n]); err != nil {
				t.Fatal(err)
			}
			sameBits(t, got, back)
			halves := make([]uint16, n)
			EncodeF16(halves, x)
			DecodeF16(got, halves)
			sameBits(t, got, back)
			copy(odd, wantB16)
			if err := Decode(got, BF16, odd[:2*n]); err != nil {
				t.Fatal(err)
			}
			for i, v := range x {
				back[i] = BF16ToF32(F32ToBF16(v))
			}
			sameBits(t, got, back)
			if err := Convert(odd[:2*n], F16, wantB16, BF16, n); err != nil {
				t.Fatal(err)
			}
			for i, v := range back {
				if got := binary.LittleEndian.Uint16(odd[2*i:]); got != F32ToF16(v) {
					t.Fatalf("BF16 to F16, element %d: %#04x, want %#04x", i, got, F32ToF16(v))
				}
			}
		}
	})
}

func sameBits(t *testing.T, got, want []float32) {
	t.Helper()
	for i, w := range want {
		if math.Float32bits(got[i]) != math.Float32bits(w) {
			t.Fatalf("element %d of %d is %v (%#08x), want %v (%#08x)", i, len(want), got[i], math.Float32bits(got[i]), w, math.Float32bits(w))
		}
	}
}

func TestScan(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(5, 6))
		for _, n := range []int{0, 1, 7, 31, 64, 100, 1023, 1024, 5000} {
			x := randomFloats(r, n)
			for _, d := range []DType{F32, F16, BF16} {
				src := make([]byte, size(d, n))
				if err := Encode(src, d, x); err != nil {
					t.Fatal(err)
				}
				want := Stats{Count: int64(n)}
				for _, v := range decodeAll(t, d, src) {
					switch {
					case v != v:
						want.NaN++
					case math.IsInf(float64(v), 0):
						want.Inf++
					case v == 0:
						want.Zero++
					default:
						want.Max = max(want.Max, abs(v))
					}
				}
				odd := append(make([]byte, 1), src...)[1:]
				got, err := Scan(d, odd)
				if err != nil || got != want {
					t.Errorf("Scan of %d %s: %+v, %v, want %+v", n, d, got, err, want)
				}
			}
		}
		if _, err := Scan(F32, make([]byte, 7)); err == nil {
			t.Error("Scan of 7 bytes of F32 succeeded")
		}
		if _, err := Scan(C64, nil); err == nil {
			t.Error("Scan of C64 succeeded")
		}
		got := Stats{Count: 1, Max: 2, NaN: 3, Inf: 4, Zero: 5}
		got.Merge(Stats{Count: 10, Max: 1, NaN: 30, Inf: 40, Zero: 50})
		if want := (Stats{Count: 11, Max: 2, NaN: 33, Inf: 44, Zero: 55}); got != want {
			t.Errorf("Merge: %+v, want %+v", got, want)
		}
	})
}

func TestError(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	var e, f Error
	if e.RMSE() != 0 {
		t.Errorf("error of nothing is %v", e.RMSE())
	}
	e.Add([]float32{1, inf, nan}, []float32{1, inf, nan})
	if e.RMSE() != 0 || e.Max != 0 {
		t.Errorf("equal values differ by %+v", e)
	}
	f.Add([]float32{1}, []float32{-3})
	e.Merge(f)
	if e.RMSE() != 2 || e.Max != 4 || e.Count != 4 {
		t.Errorf("one difference of 4 in 4 gives %v, %+v", e.RMSE(), e)
	}
	var g, zero Error
	g.Add([]float32{3, 4}, []float32{3, 4})
	if g.Relative() != 0 || zero.Relative() != 0 {
		t.Errorf("relative error of equal values is %v, of none %v", g.Relative(), zero.Relative())
	}
	f = Error{}
	f.Add([]float32{0}, []float32{5})
	if !math.IsNaN(f.Relative()) {
		t.Errorf("relative error of a zero is %v", f.Relative())
	}
	if g.Merge(f); g.Relative() != 1 {
		t.Errorf("errors of norm 5 in values of norm 5 give %v", g.Relative())
	}
	e.Add([]float32{1}, []float32{nan})
	if !math.IsNaN(e.Max) || !math.IsNaN(e.RMSE()) {
		t.Errorf("a NaN went unseen: %+v", e)
	}
}

func TestRefusals(t *testing.T) {
	x, b := make([]float32, 32), make([]byte, 1000)
	for _, test := range []struct {
		name string
		err  error
	}{
		{"decode invalid", Decode(x, Invalid, nil)},
		{"decode unknown", Decode(x, 200, b)},
		{"decode C64", Decode(x, C64, b[:256])},
		{"decode short", Decode(x, F32, b[:127])},
		{"decode long", Decode(x, F32, b[:129])},
		{"decode part of a block", Decode(x[:16], Q8_0, b[:17])},
		{"encode K", Encode(b[:84], Q2_K, make([]float32, 256))},
		{"encode long", Encode(b[:35], Q8_0, x)},
		{"encode part of a block", Encode(b[:34], Q8_0, x[:31])},
		{"convert from C64", Convert(b[:64], F16, b[:256], C64, 32)},
		{"convert to Q2_K", Convert(b[:84], Q2_K, b[:512], F16, 256)},
		{"convert short", Convert(b[:64], F16, b[:63], F16, 32)},
		{"convert long", Convert(b[:65], F16, b[:64], F16, 32)},
		{"convert negative", Convert(nil, F16, nil, F16, -1)},
	} {
		if test.err == nil {
			t.Errorf("%s succeeded", test.name)
		}
	}
}

// TestEncodeQ8 tries blocks that no sane tensor has, on each path, against the
// plain definition in float64.
func TestEncodeQ8(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(13, 14))
		const blocks = 3000
		x := make([]float32, blocks*blockLen)
		for b := range blocks {
			block := x[b*blockLen:][:blockLen]
			size := float32(math.Ldexp(1, r.IntN(270)-148))
			switch b % 4 {
			case 0: // integers and halves: a scale of 1
				for i := range block {
					block[i] = float32(r.IntN(509)-254) / 2
				}
				block[0] = 127
			case 1:
				copy(block, randomFloats(r, blockLen))
			default:
				for i := range block {
					block[i] = size * (2*r.Float32() - 1)
				}
			}
		}
		got := make([]byte, size(Q8_0, len(x)))
		if err := Encode(got, Q8_0, x); err != nil {
			t.Fatal(err)
		}
		for b := range blocks {
			block, code := x[b*blockLen:][:blockLen], got[b*34:][:34]
			var largest float64
			for _, v := range block {
				if v == v {
					largest = max(largest, math.Abs(float64(v)))
				}
			}
			d := float32(largest) / 127
			if h := binary.LittleEndian.Uint16(code); h != F32ToF16(d) {
				t.Fatalf("block %d: scale %#04x, want %#04x", b, h, F32ToF16(d))
			}
			inverse := 1 / d
			if math.IsInf(float64(inverse), 0) {
				inverse = 0
			}
			for i, v := range block {
				want := math.Round(float64(v * inverse))
				if want != want {
					want = -128
				}
				if got := int8(code[2+i]); float64(got) != want {
					t.Fatalf("block %d: %v with scale %v became %d, want %v", b, v, d, got, want)
				}
			}
		}
	})
}

// TestConvertLong crosses the internal buffer.
func TestConvertLong(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(7, 8))
		const n = 2*chunk + 96
		src, want, got := make([]byte, size(F32, n)), make([]byte, size(Q8_0, n)), make([]byte, size(Q8_0, n))
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		encodeF32(src, x)
		if err := Encode(want, Q8_0, x); err != nil {
			t.Fatal(err)
		}
		if err := Convert(got, Q8_0, src, F32, n); err != nil {
			t.Fatal(err)
		}
		if i := firstDifference(got, want); i >= 0 {
			t.Errorf("byte %d differs", i)
		}
	})
}

// FuzzDecode: any bytes decode or are refused, and a type that can be encoded
// decodes to the same numbers again where the format keeps them.
func FuzzDecode(f *testing.F) {
	tensors, hashes := readTensors(f, "testdata/decode.safetensors")
	for name := range hashes {
		f.Add(uint8(parseDType(f, name[strings.IndexByte(name, '.')+1:])), tensors[name])
	}
	f.Fuzz(func(t *testing.T, code uint8, src []byte) {
		d := DType(code)
		if !CanDecode(d) {
			return
		}
		src = src[:len(src)/d.BlockBytes()*d.BlockBytes()]
		x := decodeAll(t, d, src)
		if _, err := Scan(d, src); err != nil {
			t.Fatal(err)
		}
		if !CanEncode(d) {
			return
		}
		again := make([]byte, len(src))
		if err := Encode(again, d, x); err != nil {
			t.Fatal(err)
		}
		if d == F32 || d == F16 || d == BF16 {
			for i, v := range decodeAll(t, d, again) {
				if v != x[i] && v == v {
					t.Fatalf("element %d: %v became %v", i, x[i], v)
				}
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	const n = 1 << 14 // stays in the cache
	x := make([]float32, n)
	r := rand.New(rand.NewPCG(9, 10))
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for _, d := range []DType{F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K} {
		b.Run(d.String(), func(b *testing.B) {
			dst := make([]byte, size(d, n))
			b.SetBytes(4 * n)
			for b.Loop() {
				_ = Encode(dst, d, x)
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	const n = 1 << 14
	x := make([]float32, n)
	for _, d := range []DType{F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q6_K} {
		b.Run(d.String(), func(b *testing.B) {
			src := make([]byte, size(d, n))
			b.SetBytes(4 * n)
			for b.Loop() {
				_ = Decode(x, d, src)
			}
		})
	}
}

func BenchmarkConvertBF16ToF16(b *testing.B) {
	const n = 1 << 14
	src, dst := make([]byte, 2*n), make([]byte, 2*n)
	b.SetBytes(4 * n)
	for b.Loop() {
		_ = Convert(dst, F16, src, BF16, n)
	}
}

func BenchmarkScan(b *testing.B) {
	for _, d := range []DType{F32, F16, BF16} {
		b.Run(d.String(), func(b *testing.B) {
			src := make([]byte, size(d, 1<<14))
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				_, _ = Scan(d, src)
			}
		})
	}
}
