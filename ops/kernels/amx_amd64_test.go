package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/x448/float16"

	"github.com/firstpassage/fpa/quant"
)

// TestAMXEncodings expands each macro for the operands of the table in
// amx_amd64.s, which is what GNU as makes of the instruction.
func TestAMXEncodings(t *testing.T) {
	source, err := os.ReadFile("amx_amd64.h")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		macro       string
		args        []int
		instruction string
	}{
		{"TILECONFIG_AX", nil, "ldtilecfg (%rax)"},
		{"TILERELEASE", nil, "tilerelease"},
		{"TILEZERO", []int{3}, "tilezero %tmm3"},
		{"TILELOAD", []int{4, 0x1000, 2, 1}, "tileloadd 0x1000(%rdx,%rcx,1), %tmm4"},
		{"TILESTORE", []int{2, 0x1000, 7, 1}, "tilestored %tmm2, 0x1000(%rdi,%rcx,1)"},
		{"TILEDOT", []int{3, 5, 7}, "tdpbf16ps %tmm7, %tmm5, %tmm3"},
	} {
		row := regexp.MustCompile(`(?m)^//\t` + regexp.QuoteMeta(test.instruction) + ` +([0-9a-f ]+)$`).FindSubmatch(source)
		if row == nil {
			t.Fatalf("no row of %s", test.instruction)
		}
		if got := expand(t, string(source), test.macro, test.args); got != string(row[1]) {
			t.Errorf("%s%v is %s, %s is %s", test.macro, test.args, got, test.instruction, row[1])
		}
	}
}

// expand is the bytes that a macro of constants stands for, in hexadecimal.
func expand(t *testing.T, source, macro string, args []int) string {
	m := regexp.MustCompile(`#define ` + macro + `(?:\(([a-z, ]*)\))? \\\n\t(.*)\n`).FindStringSubmatch(source)
	if m == nil {
		t.Fatalf("no macro %s", macro)
	}
	values := make(map[string]int)
	for i, name := range strings.Split(m[1], ", ") {
		if name != "" {
			values[name] = args[i]
		}
	}
	// A term is a number or a parameter, less than the one before it, then shifted.
	term := regexp.MustCompile(`^\(?(?:([0-9]+)-)?\(?(\w+)\)*(?:<<([0-9]+))?\)?$`)
	var out []string
	for _, one := range strings.Split(m[2], "; ") {
		kind, operand, _ := strings.Cut(one, " $")
		value := 0
		for _, part := range strings.Split(operand, " | ") {
			f := term.FindStringSubmatch(strings.TrimSuffix(strings.TrimPrefix(part, "("), ")"))
			if f == nil {
				t.Fatalf("%s: cannot read %q of %q", macro, part, one)
			}
			v, known := values[f[2]]
			if !known {
				n, err := strconv.ParseInt(f[2], 0, 32)
				if err != nil {
					t.Fatalf("%s: %v", macro, err)
				}
				v = int(n)
			}
			if f[1] != "" {
				from, _ := strconv.Atoi(f[1])
				v = from - v
			}
			shift, _ := strconv.Atoi(f[3])
			value |= v << shift
		}
		size := 1
		if kind == "LONG" {
			size = 4
		}
		for i := range size {
			out = append(out, fmt.Sprintf("%02x", byte(value>>(8*i))))
		}
	}
	return strings.Join(out, " ")
}

// needTiles skips a test where there is no matrix unit.
func needTiles(t testing.TB) {
	t.Helper()
	if detect() < amx {
		t.Skip("this machine has no matrix unit for bfloat16 (AMX)")
	}
}

// at runs f with another level in use.
func at(l level, f func()) {
	before := current
	defer func() { current = before }()
	current = l
	f()
}

// tileType is a type of matrices, packed or not.
type tileType struct {
	quant.DType
	packed bool
}

// tileTypes cover every way to tiles.
var tileTypes = []tileType{
	{quant.F32, false}, {quant.F16, false}, {quant.BF16, false}, {quant.Q8_0, false}, {quant.Q4_0, false},
	{quant.Q4_1, false}, {quant.Q5_0, false}, {quant.Q5_1, false}, {quant.Q4_K, false}, {quant.Q5_K, false}, {quant.Q6_K, false},
	{quant.Q4_0, true}, {quant.Q4_1, true}, {quant.Q8_0, true}, {quant.IQ4_NL, true}, {quant.Q4_K, true}, {quant.Q6_K, true},
}

func (d tileType) String() string {
	if d.packed {
		return d.DType.String() + " packed"
	}
	return d.DType.String()
}

// matrix is matrix of the type.
func (d tileType) matrix(t *testing.T, r *rand.Rand, rows, cols int) (Matrix, []float32) {
	w, values := matrix(t, r, d.DType, rows, cols)
	if d.packed {
		at(amx, func() { w = packedOf(t, w, aligned(w.PackedBytes())) }) // whatever FPA_CPU says
	}
	return w, values
}

// TestTilesError measures the error of a product in tiles beside that of the
// float32 kernel, relative to the sum of magnitudes.
func TestTilesError(t *testing.T) {
	needTiles(t)
	r := newRand()
	var s Scratch
	for _, test := range tileTypes {
		const rows, cols, n = 32, 2048, 64
		w, values := test.matrix(t, r, rows, cols)
		x := normals(r, n*cols)
		y := [2][]float32{make([]float32, n*rows), make([]float32, n*rows)}
		at(avx512, func() { matMulOf(y[0], rows, w, x, cols, n, 0, rows, &s) })
		at(amx, func() { matMulOf(y[1], rows, w, x, cols, n, 0, rows, &s) })
		var square, worst [2]float64
		for i := range y[0] {
			want, size := dot64(values[i%rows*cols:(i%rows+1)*cols], x[i/rows*cols:])
			for k := range y {
				e := math.Abs(float64(y[k][i])-want) / size
				square[k] += e * e
				worst[k] = max(worst[k], e)
			}
		}
		rms := func(k int) float64 { return math.Sqrt(square[k] / float64(len(y[k]))) }
		t.Logf("%s: rms and largest error, float32 %.2g %.2g, tiles %.2g %.2g", test, rms(0), worst[0], rms(1), worst[1])
		if rms(1) > 3*rms(0) {
			t.Errorf("%s: error %.3g in tiles, %.3g in float32", test, rms(1), rms(0))
		}
	}
}

// TestTilesRange multiplies numbers of every magnitude, one product at a time so
// that nothing hides its error, and those that are not finite.
func TestTilesRange(t *testing.T) {
	needTiles(t)
	at(amx, func() {
		const n, cols = 64, 33
		r := newRand()
		var s Scratch
		// y[v] = w*x[v] for one weight, all else 0.
		multiply := func(d quant.DType, value float32, x []float32) ([]float32, float32) {
			w := Matrix{Type: d, Rows: 1, Cols: cols, Data: make([]byte, cols*d.BlockBytes())}
			weights := make([]float32, cols)
			weights[cols-1] = value
			if err := quant.Encode(w.Data, d, weights); err != nil {
				t.Fatal(err)
			}
			if err := quant.Decode(weights, d, w.Data); err != nil {
				t.Fatal(err)
			}
			in, y := make([]float32, n*cols), make([]float32, n)
			for v, a := range x {
				in[v*cols+cols-1] = a
			}
			matMulOf(y, 1, w, in, cols, n, 0, 1, &s)
			return y, weights[cols-1]
		}
		float := func(lowest, highest int) float32 {
			f := math.Ldexp(1+r.Float64(), lowest+r.IntN(highest-lowest+1))
			return float32(math.Copysign(min(f, math.MaxFloat32), float64(r.IntN(2))-0.5))
		}
		for _, test := range []struct {
			d               quant.DType
			lowest, highest int // exponents of the weights
			bound           float64
		}{
			{quant.BF16, -126, 127, 0x1p-23}, {quant.F16, -14, 15, 0x1p-23}, {quant.F32, -102, 127, 0x1p-22},
		} {
			worst := 0.0
			for range 300 {
				x := make([]float32, n)
				for v := range x {
					x[v] = float(-102, 127)
				}
				x[0], x[1] = math.MaxFloat32, -math.MaxFloat32
				y, w := multiply(test.d, float(test.lowest, test.highest), x)
				for v, got := range y {
					want := float64(w) * float64(x[v])
					if a := math.Abs(want); a > math.MaxFloat32/2 || a < 0x1p-100 {
						continue // what is added up may overflow, or lose bits
					}
					worst = max(worst, math.Abs(float64(got)-want)/math.Abs(want))
				}
			}
			t.Logf("%s: largest error of a product %.3g", test.d, worst)
			if worst > test.bound {
				t.Errorf("%s: a product is off by %.3g of it, expected at most %.3g", test.d, worst, test.bound)
			}
		}
		// Tiny numbers may count as 0.
		y, w := multiply(quant.F32, 0x1p-3, []float32{0x1p-127, 0x1p-149, 0x1.234568p-118, 0x1p-126})
		for v, x := range []float64{0x1p-127, 0x1p-149, 0x1.234568p-118, 0x1p-126} {
			if e := math.Abs(float64(y[v]) - float64(w)*x); e > 0x1p-126 {
				t.Errorf("%g times %g is %g", w, x, y[v])
			}
		}
		if y, _ := multiply(quant.F32, math.MaxFloat32, []float32{1, -1, 0.5}); y[0] != math.MaxFloat32 || y[1] != -math.MaxFloat32 || y[2] != math.MaxFloat32/2 {
			t.Errorf("the largest number times 1, -1, 0.5 is %v", y[:3])
		}
		odd := math.Float32frombits // NaNs of several kinds
		for _, d := range []quant.DType{quant.BF16, quant.F16, quant.F32} {
			bad := []float32{inf, -inf, nan, odd(0x7f800001), odd(0xffffffff), odd(0x7fffffff), odd(0x7f808000)}
			y, _ := multiply(d, 1.5, bad)
			for v, x := range bad {
				if y[v]-y[v] == 0 {
					t.Errorf("%s: %v times 1.5 is %v", d, x, y[v])
				}
			}
			for _, value := range bad {
				y, w := multiply(d, value, []float32{1, -3e-5, 7})
				for v := range 3 {
					if y[v]-y[v] == 0 {
						t.Errorf("%s: weight %v gives %v", d, w, y[v])
					}
				}
			}
		}
	})
}

// TestTilesShapes covers what the blocks of matMulTiles leave over: more panels,
// groups and steps than a block has, and their last ones. It compares with rows and
// vectors taken alone.
func TestTilesShapes(t *testing.T) {
	needTiles(t)
	at(amx, func() {
		r := newRand()
		var s Scratch
		for _, d := range tileTypes {
			shapes := [][3]int{{blockPanels*panelRows + 17, blockSteps*tileCols + 32, blockGroups*groupVectors + 9}, {37, 3 * blockSteps * tileCols, 47}}
			if d.BlockLen() == 256 {
				shapes = [][3]int{{37, 768, 47}}
			}
			for _, shape := range shapes {
				rows, cols, n := shape[0], shape[1], shape[2]
				w, values := d.matrix(t, r, rows, cols)
				x, y := normals(r, n*cols), make([]float32, n*rows)
				matMulOf(y, rows, w, x, cols, n, 0, rows, &s)
				for range 200 {
					i, v := r.IntN(rows), r.IntN(n)
					want, size := dot64(values[i*cols:(i+1)*cols], x[v*cols:])
					near(t, fmt.Sprint(d, shape, i, v), y[v*rows+i], want, size, sumTolerance)
				}
				for range 5 {
					// One row alone, and some that begin and end in the middle of a tile.
					i, v := r.IntN(rows), r.IntN(n-ManyVectors+1)
					for _, end := range []int{i + 1, min(rows, i+20)} {
						some, check := guarded(t, make([]float32, ManyVectors*rows))
						matMulOf(some, rows, w, x[v*cols:], cols, ManyVectors, i, end, &s)
						check()
						for k := range some {
							row, want := k%rows, float32(0)
							if row >= i && row < end {
								want = y[v*rows+k]
							}
							if some[k] != want {
								t.Fatalf("%s %v: rows %d to %d: row %d of vector %d is %v, want %v", d, shape, i, end, row, v+k/rows, some[k], want)
							}
						}
					}
				}
			}
		}
	})
}

// limb is the number that the upper half of a float32 number is.
func limb(word uint32) float64 { return float64(math.Float32frombits(word << 16)) }

// TestLimbs: the limbs of a number add up to it, the first two being the nearest
// ones, for random bit patterns.
func TestLimbs(t *testing.T) {
	needTiles(t)
	r := rand.New(rand.NewPCG(3, 4))
	var in Input
	at(amx, func() {
		const n, cols = 48, 70
		x := make([]float32, n*cols)
		for i := range x {
			for x[i] == 0 || !(math.Abs(float64(x[i])) <= math.MaxFloat32) || math.Abs(float64(x[i])) < 0x1p-110 {
				x[i] = math.Float32frombits(r.Uint32())
			}
		}
		in.Set(x, cols, n, cols)
		in.Need(Matrix{Type: quant.F32, Rows: 1, Cols: cols})
		in.Prepare(0, 32)
		in.Prepare(32, n)
	})
	const cols = 70
	steps := tileSteps(cols)
	for v := range 48 {
		for c := range cols {
			// Tile, row and place of the element, see splitVectors.
			tile := v / tileSide * steps * vectorLimbs
			at := (tile+c/tileCols*vectorLimbs)*tileBytes + v%16*64 + c%16*4 + c%tileCols/16*2
			sum, size := 0.0, 0.0
			for l := range vectorLimbs {
				p := in.limbs[at+l*tileBytes:]
				value := limb(uint32(p[0]) | uint32(p[1])<<8)
				if l > 0 && math.Abs(value) > size*0x1p-7 {
					t.Fatalf("limb %d of %v is %g after %g", l, in.x[v*cols+c], value, size)
				}
				sum, size = sum+value, math.Abs(value)
			}
			if sum != float64(in.x[v*cols+c]) {
				t.Fatalf("limbs of vector %d, element %d: %v, want %v", v, c, sum, in.x[v*cols+c])
			}
		}
	}
}

// TestTilesSameInEveryType: numbers that fewer limbs hold give the same bits as with more.
func TestTilesSameInEveryType(t *testing.T) {
	needTiles(t)
	const rows, cols, n = 40, 200, 48
	r := newRand()
	x := normals(r, n*cols)
	bytesOf := map[quant.DType][]byte{}
	for range rows * cols {
		v := math.Float32bits(float32(r.NormFloat64())) &^ 0xffff // a bfloat16 number
		f := math.Float32frombits(v)
		if f != 0 && math.Abs(float64(f)) < 1e-4 {
			v, f = 0, 0 // not a normal binary16 number
		}
		bytesOf[quant.F32] = binary.LittleEndian.AppendUint32(bytesOf[quant.F32], v)
		bytesOf[quant.BF16] = binary.LittleEndian.AppendUint16(bytesOf[quant.BF16], uint16(v>>16))
		bytesOf[quant.F16] = binary.LittleEndian.AppendUint16(bytesOf[quant.F16], float16.Fromfloat32(f).Bits())
	}
	at(amx, func() {
		var s Scratch
		products := map[quant.DType][]float32{}
		for d, data := range bytesOf {
			y := make([]float32, n*rows)
			matMulOf(y, rows, Matrix{Type: d, Rows: rows, Cols: cols, Data: data}, x, cols, n, 0, rows, &s)
			products[d] = y
		}
		for _, d := range []quant.DType{quant.F16, quant.BF16} {
			if !slices.Equal(products[d], products[quant.F32]) {
				t.Errorf("%s gives other sums than F32", d)
			}
		}
	})
}
