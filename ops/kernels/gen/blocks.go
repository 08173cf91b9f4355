package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// blockType is a type of blocks of 32 elements (see package quant).
type blockType struct {
	name   string
	bytes  int  // of a block
	at     int  // where the integers lie, behind the binary16 numbers
	nibble bool // four bits an integer, low halves first
	fifth  bool // bit j of the word before the integers is the fifth of integer j
	bias   int  // subtracted from the integers
	offset bool // a second binary16 number is added to every element
}

var (
	q8  = blockType{name: "Q8", bytes: 34, at: 2}
	q4  = blockType{name: "Q4", bytes: 18, at: 2, nibble: true, bias: 8}
	q41 = blockType{name: "Q41", bytes: 20, at: 4, nibble: true, offset: true}
	q5  = blockType{name: "Q5", bytes: 22, at: 6, nibble: true, fifth: true, bias: 16}
	q51 = blockType{name: "Q51", bytes: 24, at: 8, nibble: true, fifth: true, offset: true}
)

// blockConstants are the registers that reading the integers of a type needs.
type blockConstants struct{ low, bias, lane, sixteen VecVirtual }

func (v isa) blockConstants(t blockType) (c blockConstants) {
	if t.nibble {
		c.low = v.words(15)
	}
	if t.fifth {
		c.lane, c.sixteen = v.reg(), v.words(16)
		VPMOVZXBD(laneOrder, c.lane)
	}
	if t.bias != 0 {
		c.bias = v.words(uint32(t.bias))
	}
	return c
}

// widenHalf returns the binary16 number at m in every lane.
func (v isa) widenHalf(m Mem) VecVirtual {
	d := v.reg()
	narrow := d.AsX()
	if v.wide {
		narrow = d.AsY()
	}
	VPBROADCASTW(m, narrow)
	VCVTPH2PS(narrow, d)
	return d
}

// integers reads the 32 integers of the block at base as float32 numbers and
// hands on a register at a time, with the place of its first element.
func (v isa) integers(t blockType, c blockConstants, base Register, use func(k int, q VecVirtual)) {
	var packed [2]VecVirtual // pairs of nibbles, one byte in every double word
	var fifths VecVirtual    // those of the elements from that of the lane on
	if t.fifth {
		fifths = v.reg()
		VPBROADCASTD(Mem{Base: base, Disp: t.at - 4}, fifths)
		VPSRLVD(c.lane, fifths, fifths)
	}
	for k := 0; k < 32; k += v.lanes {
		q := v.reg()
		from := Mem{Base: base, Disp: t.at + k}
		switch {
		case !t.nibble:
			VPMOVSXBD(from, q)
		case k < 16:
			VPMOVZXBD(from, q)
			packed[k/v.lanes] = q
			q = v.and(q, c.low)
		default:
			VPSRLD(U8(4), packed[(k-16)/v.lanes], q)
		}
		if t.fifth {
			v.or(q, v.and(v.shifted(fifths, k-4), c.sixteen))
		}
		if t.bias != 0 {
			VPSUBD(c.bias, q, q)
		}
		VCVTDQ2PS(q, q)
		use(k, q)
	}
}
