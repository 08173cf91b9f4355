package main

import (
	"maps"
	"slices"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// each emits a loop over n elements of the arrays named, one register at a time
// and then the tail; body gets the addresses.
func (v isa) each(arrays []string, body func(at map[string]Mem, part *tail)) {
	base := make(map[string]Register)
	at := make(map[string]Mem)
	for _, name := range arrays {
		base[name] = Load(Param(name), GP64())
		at[name] = Mem{Base: base[name]}
	}
	n := Load(Param("n"), GP64())
	loop, rest, done := label("loop"), label("rest"), label("done")
	Label(loop)
	CMPQ(n, U32(v.lanes))
	JL(LabelRef(rest))
	body(at, nil)
	for _, name := range arrays {
		ADDQ(U32(v.bytes()), base[name])
	}
	SUBQ(U32(v.lanes), n)
	JMP(LabelRef(loop))
	Label(rest)
	TESTQ(n, n)
	JZ(LabelRef(done))
	body(at, v.newTail(n))
	Label(done)
}

// In min and max below the order of operands decides what a NaN does: Go's
// assembly names them in reverse, and the processor returns the first one named
// here when either is a NaN.

func (v isa) elementwise() {
	v.text("axpy", "(y, x *float32, a float32, n int)")
	Comment("y += a*x")
	a := v.broadcast("a")
	v.each([]string{"y", "x"}, func(at map[string]Mem, part *tail) {
		y := v.load(f32, at["y"], part)
		VFMADD231PS(v.load(f32, at["x"], part), a, y)
		v.store(y, at["y"], part)
	})
	end()

	v.text("add", "(y, x *float32, n int)")
	Comment("y += x")
	v.each([]string{"y", "x"}, func(at map[string]Mem, part *tail) {
		y := v.load(f32, at["y"], part)
		VADDPS(v.load(f32, at["x"], part), y, y)
		v.store(y, at["y"], part)
	})
	end()

	v.text("mul", "(y, x *float32, n int)")
	Comment("y *= x")
	v.each([]string{"y", "x"}, func(at map[string]Mem, part *tail) {
		y := v.load(f32, at["y"], part)
		VMULPS(v.load(f32, at["x"], part), y, y)
		v.store(y, at["y"], part)
	})
	end()

	v.text("scale", "(y *float32, a float32, n int)")
	Comment("y *= a")
	a = v.broadcast("a")
	v.each([]string{"y"}, func(at map[string]Mem, part *tail) {
		y := v.load(f32, at["y"], part)
		VMULPS(a, y, y)
		v.store(y, at["y"], part)
	})
	end()

	v.text("scaleMul", "(y, x, w *float32, a float32, n int)")
	Comment("y = a*x*w")
	a = v.broadcast("a")
	v.each([]string{"y", "x", "w"}, func(at map[string]Mem, part *tail) {
		x := v.load(f32, at["x"], part)
		VMULPS(a, x, x)
		VMULPS(v.load(f32, at["w"], part), x, x)
		v.store(x, at["y"], part)
	})
	end()

	v.text("addConst", "(y *float32, a float32, n int)")
	Comment("y += a")
	a = v.broadcast("a")
	v.each([]string{"y"}, func(at map[string]Mem, part *tail) {
		y := v.load(f32, at["y"], part)
		VADDPS(a, y, y)
		v.store(y, at["y"], part)
	})
	end()

	v.text("updateLow", "(low *float32, field float32, n int)")
	Comment("low = min(low, field)")
	field := v.broadcast("field")
	v.each([]string{"low"}, func(at map[string]Mem, part *tail) {
		low := v.load(f32, at["low"], part)
		VMINPS(low, field, low)
		v.store(low, at["low"], part)
	})
	end()

	v.text("maximum", "(x *float32, n int) float32")
	Comment("The largest element; -Inf for none.")
	least, most := v.reg(), v.reg()
	VMOVUPS(constants["negInfinity"], least)
	VMOVUPS(constants["negInfinity"], most)
	v.each([]string{"x"}, func(at map[string]Mem, part *tail) {
		x := v.load(f32, at["x"], part)
		v.keep(x, least, part)
		VMAXPS(most, x, most)
	})
	Store(v.reduceMax(most), ReturnIndex(0))
	end()

	v.penalise()

	v.text("expSum", "(s *float32, max float32, n int) float32")
	Comment("s = exp(s-max), and the sum")
	max := v.broadcast("max")
	sum, none := v.zero(), v.zero()
	v.holding(expConstants, func() {
		v.each([]string{"s"}, func(at map[string]Mem, part *tail) {
			s := v.load(f32, at["s"], part)
			VSUBPS(max, s, s)
			e := v.exp(s)
			v.keep(e, none, part)
			v.store(e, at["s"], part)
			VADDPS(e, sum, sum)
		})
	})
	Store(v.sum4([]VecVirtual{sum}), ReturnIndex(0))
	end()

	v.activation("silu", "y /= 1 + exp(-y)", expConstants, func(x VecVirtual) VecVirtual {
		e := v.exp(v.xor(x, "signBit"))
		VADDPS(constants["one"], e, e)
		VDIVPS(e, x, x)
		return x
	})
	v.activation("sigmoid", "y = 1 / (1 + exp(-y))", expConstants, func(x VecVirtual) VecVirtual {
		e := v.exp(v.xor(x, "signBit"))
		VADDPS(constants["one"], e, e)
		VMOVUPS(constants["one"], x)
		VDIVPS(e, x, x)
		return x
	})
	v.activation("gelu", "y *= (1 + erf(y/sqrt(2))) / 2", expConstants, v.gelu)
	v.activation("geluTanh", "y /= 1 + exp(y*(A + B*y*y))", expConstants, func(x VecVirtual) VecVirtual {
		u := v.reg()
		VMULPS(x, x, u)
		VMULPS(constants["geluB"], u, u)
		VADDPS(constants["geluA"], u, u)
		VMULPS(x, u, u)
		e := v.exp(u)
		VADDPS(constants["one"], e, e)
		VDIVPS(e, x, x)
		return x
	})
	v.activation("relu", "y = max(0, y)", nil, func(x VecVirtual) VecVirtual {
		VMAXPS(x, v.zero(), x)
		return x
	})
	v.activation("tanh", "y = tanh(y)", expConstants, v.tanh)
}

// activation emits a function applied in place, given the constants to hold.
func (v isa) activation(name, comment string, used []string, f func(x VecVirtual) VecVirtual) {
	v.text(name, "(y *float32, n int)")
	Comment(comment)
	v.holding(used, func() {
		v.each([]string{"y"}, func(at map[string]Mem, part *tail) {
			v.store(f(v.load(f32, at["y"], part)), at["y"], part)
		})
	})
	end()
}

// xor returns x with the bits of a constant flipped.
func (v isa) xor(x VecVirtual, constant string) VecVirtual {
	r := v.reg()
	if v.wide {
		VPXORD(constants[constant], x, r)
	} else {
		VXORPS(constants[constant], x, r)
	}
	return r
}

// reduceMax leaves the largest lane in an XMM register.
func (v isa) reduceMax(r VecVirtual) VecVirtual {
	y := r
	if v.wide {
		y = YMM()
		VEXTRACTF64X4(U8(1), r, y)
		VMAXPS(r.AsY(), y, y)
	}
	x, other := v.upperHalf(y), XMM()
	VMAXPS(y.AsX(), x, x)
	VPERMILPS(U8(0b01_00_11_10), x, other)
	VMAXPS(other, x, x)
	VPERMILPS(U8(0b10_11_00_01), x, other)
	VMAXPS(other, x, x)
	return x
}

// Comparison predicates of VCMPPS.
const (
	equal       = 0  // ordered
	notLess     = 5  // or unordered
	lessOrdered = 17 // quiet
)

// zeroWhereLess clears the lanes of r where x < bound, a constant.
func (v isa) zeroWhereLess(r, x VecVirtual, bound string) {
	if v.wide {
		k := K()
		VCMPPS(U8(notLess), constants[bound], x, k)
		VMOVAPS_Z(r, k, r)
		return
	}
	mask := YMM()
	VCMPPS(U8(notLess), constants[bound], x, mask)
	VANDPS(mask, r, r)
}

// blendWhere replaces the lanes of r where the comparison of x with a constant
// holds by those of other, a register or a constant.
func (v isa) blendWhere(r VecVirtual, other Op, predicate int, x VecVirtual, bound string) {
	if v.wide {
		k := K()
		VCMPPS(U8(predicate), constants[bound], x, k)
		VBLENDMPS(other, r, k, r)
		return
	}
	mask := YMM()
	VCMPPS(U8(predicate), constants[bound], x, mask)
	VBLENDVPS(mask, other, r, r)
}

// exp returns exp(x) as a new register and keeps x; see expGo for the method.
func (v isa) exp(x VecVirtual) VecVirtual {
	c, n, r, p := v.reg(), v.reg(), v.reg(), v.reg()
	VMOVUPS(constants["expLow"], c)
	VMAXPS(x, c, c) // keeps a NaN
	VMOVUPS(constants["expHigh"], r)
	VMINPS(c, r, r)
	VMULPS(constants["log2e"], r, n)
	if v.wide {
		VRNDSCALEPS(U8(0), n, n)
	} else {
		VROUNDPS(U8(0), n, n)
	}
	VFNMADD231PS(constants["ln2High"], n, r)
	VFNMADD231PS(constants["ln2Low"], n, r)
	VMOVUPS(constants["expC0"], p)
	for _, c := range []string{"expC1", "expC2", "expC3", "expC4", "expC5"} {
		VFMADD213PS(constants[c], r, p)
	}
	VMULPS(r, r, c)
	VFMADD213PS(r, c, p)
	VADDPS(constants["one"], p, p)
	if v.wide {
		VSCALEFPS(n, p, p)
	} else {
		// Two factors, because 2^128 is no float32.
		VCVTPS2DQ(n, n)
		VPSRAD(U8(1), n, c)
		VPSUBD(c, n, n)
		for _, power := range []VecVirtual{c, n} {
			VPADDD(constants["bias"], power, power)
			VPSLLD(U8(23), power, power)
			VMULPS(power, p, p)
		}
	}
	v.zeroWhereLess(p, x, "expLow")
	return p
}

// split returns the magnitude and the sign bit of x.
func (v isa) split(x VecVirtual) (magnitude, sign VecVirtual) {
	magnitude, sign = v.reg(), v.reg()
	if v.wide {
		VPANDD(constants["signBit"], x, sign)
		VPXORD(sign, x, magnitude)
	} else {
		VANDPS(constants["signBit"], x, sign)
		VXORPS(sign, x, magnitude)
	}
	return magnitude, sign
}

// gelu returns x times the normal distribution's integral up to x. For t =
// |x|/sqrt(2), erfc(t) = exp(-t^2) times a polynomial in 1/(1+0.3275911 t)
// (Abramowitz and Stegun, 7.1.26, error 1.5e-7); then the result is |x|
// erfc(t)/2 below zero and x less that above.
func (v isa) gelu(x VecVirtual) VecVirtual {
	a, _ := v.split(x)
	e, k, p := v.reg(), v.reg(), v.reg()
	VMULPS(x, x, e)
	VMULPS(constants["negHalf"], e, e)
	e = v.exp(e)
	VMOVUPS(constants["one"], k)
	VMOVAPS(k, p)
	VFMADD231PS(constants["erfScale"], a, p)
	VDIVPS(p, k, k)
	VMOVUPS(constants["erfC0"], p)
	for _, c := range []string{"erfC1", "erfC2", "erfC3", "erfC4"} {
		VFMADD213PS(constants[c], k, p)
	}
	VMULPS(k, p, p)
	VMULPS(e, p, p)
	VMULPS(constants["half"], p, p)
	VMULPS(a, p, p) // |x| erfc(t) / 2
	r := v.zero()
	VMAXPS(x, r, r) // keeps a NaN
	VSUBPS(p, r, r)
	return r
}

// tanh returns tanh(x); see tanhGo for the method.
func (v isa) tanh(x VecVirtual) VecVirtual {
	a, sign := v.split(x)
	e := v.reg()
	VADDPS(a, a, e)
	e = v.exp(e)
	VADDPS(constants["one"], e, e)
	large := v.reg()
	VMOVUPS(constants["two"], large)
	VDIVPS(e, large, e)
	VMOVUPS(constants["one"], large)
	VSUBPS(e, large, large)
	if v.wide {
		VPORD(sign, large, large)
	} else {
		VORPS(sign, large, large)
	}
	z, p := v.reg(), v.reg()
	VMULPS(x, x, z)
	VMOVUPS(constants["tanhC0"], p)
	for _, c := range []string{"tanhC1", "tanhC2", "tanhC3", "tanhC4"} {
		VFMADD213PS(constants[c], z, p)
	}
	VMULPS(z, p, p)
	VFMADD213PS(x, x, p)
	v.blendWhere(large, p, lessOrdered, a, "tanhSmall")
	return large
}

// penalise emits Penalise; see penaliseGo.
func (v isa) penalise() {
	v.text("penalise", "(s, low, level *float32, field, slope float32, n int) float32")
	Comment("low = min(low, field); s -= slope*max(0, level-low); the largest penalty")
	field, slope := v.broadcast("field"), v.broadcast("slope")
	most, zero := v.zero(), v.zero()
	v.holding([]string{"zero", "largest", "infinity"}, func() {
		v.each([]string{"s", "low", "level"}, func(at map[string]Mem, part *tail) {
			low, level := v.load(f32, at["low"], part), v.load(f32, at["level"], part)
			VMINPS(low, field, low)
			v.store(low, at["low"], part)
			penalty := v.penalty(low, level, slope)
			v.blendWhere(penalty, zero, equal, level, "infinity") // an empty slot
			v.keep(penalty, zero, part)
			VMAXPS(most, penalty, most)
			s := v.load(f32, at["s"], part)
			VSUBPS(penalty, s, s)
			empty := v.reg()
			VMOVUPS(constants["negInfinity"], empty)
			v.blendWhere(s, empty, equal, level, "infinity")
			v.store(s, at["s"], part)
		})
	})
	Store(v.reduceMax(most), ReturnIndex(0))
	end()
}
