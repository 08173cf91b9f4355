package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// isa is an instruction set and its vector width.
type isa struct {
	suffix     string
	lanes      int  // float32 numbers in a register
	wide       bool // AVX-512: 32 registers of 512 bits, mask registers
	tileTokens int  // vectors in a tile of MatMul: all that fits the registers
}

var (
	avx2   = isa{suffix: "AVX2", lanes: 8, tileTokens: 3}
	avx512 = isa{suffix: "AVX512", lanes: 16, wide: true, tileTokens: 6}
)

// bytes is the width of a register.
func (v isa) bytes() int { return 4 * v.lanes }

// text starts a function.
func (v isa) text(name, signature string) {
	TEXT(name+v.suffix, NOSPLIT, "func"+signature)
	Pragma("noescape")
}

// end finishes a function.
func end() {
	VZEROUPPER()
	RET()
}

func (v isa) reg() VecVirtual {
	if v.wide {
		return ZMM()
	}
	return YMM()
}

// zero returns a cleared register.
func (v isa) zero() VecVirtual {
	r := v.reg()
	VXORPS(r, r, r)
	return r
}

// broadcast returns a register with a float32 argument in every lane.
func (v isa) broadcast(param string) VecVirtual {
	x := XMM()
	Load(Param(param), x)
	r := v.reg()
	VBROADCASTSS(x, r)
	return r
}

var labels int

// label returns a label not used before in the function.
func label(name string) string {
	labels++
	return fmt.Sprintf("%s%d", name, labels)
}

// element is a storage type that a vector load widens to float32.
type element struct {
	name  string
	bytes int
}

var (
	f32  = element{"F32", 4}
	f16  = element{"F16", 2}
	bf16 = element{"BF16", 2}
	i8   = element{"I8", 1} // signed integers
)

// tail is the rest of a row that does not fill a register: its mask, and for
// AVX2, which has masked loads of 32 bits only, a buffer on the stack.
type tail struct {
	mask   Op       // K register, or a YMM register of all ones and zeros
	count  Register // elements
	buffer Mem      // AVX2, types narrower than float32: eight elements
}

// newTail makes the mask for count elements, 0 < count < lanes.
func (v isa) newTail(count Register) *tail {
	t := &tail{count: count}
	table := GP64()
	if v.wide {
		LEAQ(wordMasks, table)
		k := K()
		KMOVW(Mem{Base: table, Index: count, Scale: 2}, k)
		t.mask = k
		return t
	}
	// Eight words of ones, eight of zeros: start count words before the border.
	LEAQ(laneMasks, table)
	from := GP64()
	MOVQ(count, from)
	NEGQ(from)
	y := YMM()
	VMOVUPS(Mem{Base: table, Index: from, Scale: 4, Disp: 32}, y)
	t.mask = y
	return t
}

// load widens lanes elements at m. With a tail, only its elements are read and
// the other lanes are 0.
func (v isa) load(t element, m Mem, part *tail) VecVirtual {
	r := v.reg()
	switch {
	case part == nil && t == f32:
		VMOVUPS(m, r)
	case part == nil && t == f16:
		VCVTPH2PS(m, r)
	case part == nil && t == i8:
		VPMOVSXBD(m, r)
		VCVTDQ2PS(r, r)
	case part == nil:
		VPMOVZXWD(m, r)
		VPSLLD(U8(16), r, r)
	case t == f32 && v.wide:
		VMOVUPS_Z(m, part.mask, r)
	case t == f32:
		VMASKMOVPS(m, part.mask, r)
	case t == f16 && v.wide:
		y := YMM()
		VMOVDQU16_Z(m, part.mask, y)
		VCVTPH2PS(y, r)
	case t == i8 && v.wide:
		VPMOVSXBD_Z(m, part.mask, r)
		VCVTDQ2PS(r, r)
	case v.wide:
		VPMOVZXWD_Z(m, part.mask, r)
		VPSLLD(U8(16), r, r)
	default:
		// Copy one by one; what the buffer held beyond count is zero.
		source, i, word := GP64(), GP64(), GP32()
		LEAQ(m, source)
		XORQ(i, i)
		again := label("word")
		Label(again)
		from, to := Mem{Base: source, Index: i, Scale: uint8(t.bytes)}, part.buffer.Idx(i, uint8(t.bytes))
		if t == i8 {
			MOVBLZX(from, word)
			MOVB(word.As8(), to)
		} else {
			MOVWLZX(from, word)
			MOVW(word.As16(), to)
		}
		INCQ(i)
		CMPQ(i, part.count)
		JL(LabelRef(again))
		return v.load(t, part.buffer, nil)
	}
	return r
}

// clearBuffer gives a tail its stack buffer, which AVX2 needs for narrow types.
func (v isa) clearBuffer(t element, part *tail) {
	if v.wide || t == f32 {
		return
	}
	part.buffer = AllocLocal(16)
	x := XMM()
	VXORPS(x, x, x)
	VMOVUPS(x, part.buffer)
}

// store writes float32 numbers, with a tail only its elements.
func (v isa) store(r VecVirtual, m Mem, part *tail) {
	switch {
	case part == nil:
		VMOVUPS(r, m)
	case v.wide:
		VMOVUPS(r, part.mask, m)
	default:
		VMASKMOVPS(r, part.mask, m)
	}
}

// keep replaces the lanes outside a tail by those of other.
func (v isa) keep(r, other VecVirtual, part *tail) {
	switch {
	case part == nil:
	case v.wide:
		VBLENDMPS(r, other, part.mask, r)
	default:
		VBLENDVPS(part.mask, r, other, r)
	}
}

// sum4 adds up four registers (or one) and leaves the sums side by side in an
// XMM register. The order of additions does not depend on how many there are.
func (v isa) sum4(rows []VecVirtual) VecVirtual {
	y := make([]VecVirtual, len(rows))
	for i, r := range rows {
		if !v.wide {
			y[i] = r
			continue
		}
		y[i] = YMM()
		VEXTRACTF64X4(U8(1), r, y[i])
		VADDPS(r.AsY(), y[i], y[i])
	}
	for len(y) > 1 {
		for i := range len(y) / 2 {
			pairSums(y[2*i], y[2*i+1], y[i])
		}
		y = y[:len(y)/2]
	}
	if len(rows) == 1 {
		pairSums(y[0], y[0], y[0])
		pairSums(y[0], y[0], y[0])
	}
	high := v.upperHalf(y[0])
	VADDPS(y[0].AsX(), high, high)
	return high
}

// pairSums adds up neighbours: a0+a1, a2+a3, b0+b1, b2+b3 in each half of sum.
// (VHADDPS does the same, but reaches only half of AVX-512's registers.)
func pairSums(a, b, sum VecVirtual) {
	odd := YMM()
	VSHUFPS(U8(0b11_01_11_01), b, a, odd)
	VSHUFPS(U8(0b10_00_10_00), b, a, sum)
	VADDPS(odd, sum, sum)
}

// upperHalf returns the upper half of a YMM register.
func (v isa) upperHalf(y VecVirtual) VecVirtual {
	x := XMM()
	if v.wide {
		VEXTRACTF32X4(U8(1), y, x)
	} else {
		VEXTRACTF128(U8(1), y, x)
	}
	return x
}

// words returns a register with the same word in every lane.
func (v isa) words(w uint32) VecVirtual {
	g, r := GP32(), v.reg()
	MOVL(U32(w), g)
	VMOVD(g, r.AsX())
	VPBROADCASTD(r.AsX(), r)
	return r
}

// and returns the bits that two registers share.
func (v isa) and(a, b VecVirtual) VecVirtual {
	r := v.reg()
	if v.wide {
		VPANDD(a, b, r)
	} else {
		VPAND(a, b, r)
	}
	return r
}

// bytesOf turns a count of elements into bytes, in place.
func bytesOf(t element, count Register) {
	SHLQ(U8(math.Ilogb(float64(t.bytes))), count)
}
