package quant

import (
	"encoding/binary"
	"math"
)

// This file holds the encoders of Q4_K, Q5_K and Q6_K. The formats fix how a block
// is read, not how its numbers are chosen; these encoders look for the least sum of
// squared errors, in three steps.
//
//  1. Each group finds the real scale (and offset) that suits it best. For given
//     integers that is a least-squares line; the integers come from rounding with
//     several scales near the one that spans the group's range, and then in turns:
//     round, fit, round.
//  2. The binary16 numbers of the block are set so that the largest scale and offset
//     just fit, and each group takes the stored scale and offset next to its own that
//     err least, as a reader will see them.
//  3. With all integers known, the binary16 numbers are fitted to the whole block,
//     and step 2 is done once more. The better of the two is written.
//
// A block that nearly fits, such as one of equal elements, errs mostly by the rounding
// of its binary16 numbers; it tries some more of them.
//
// All is done in float64, in which the products of float32 numbers and small
// integers are exact. Where a product is not, it is written float64(a*b), so that
// no compiler fuses it with a sum and every machine gives the same bytes.
//
// A NaN counts as 0 and an infinity as the largest float32; scales too large for
// binary16 become its largest number. So whatever comes in, what comes out decodes
// to finite numbers.

// maxF16 is the largest finite binary16 number, minF16 the smallest above 0.
const (
	maxF16 = 65504
	minF16 = 1.0 / (1 << 24)
)

// nearlyExact is the share of the sum of squares below which the squared error of a
// block is about that of rounding to binary16.
const nearlyExact = 1.0 / (1 << 20)

// finite is v, made finite.
func finite(v float32) float64 {
	switch {
	case v != v:
		return 0
	case v > math.MaxFloat32:
		return math.MaxFloat32
	case v < -math.MaxFloat32:
		return -math.MaxFloat32
	}
	return float64(v)
}

// nearF16 is the finite binary16 number next to v. Where those are whole multiples
// of the smallest one it is not below v in size, since what is stored times a number
// too small would not reach the largest scale.
func nearF16(v float64) float32 {
	size := min(math.Abs(v), maxF16)
	if size < minF16*(1<<10) {
		size = math.Ceil(size/minF16) * minF16
	}
	return F16ToF32(F32ToF16(float32(math.Copysign(size, v))))
}

// around is the two whole numbers next to v, within [low, high].
func around(v float64, low, high int) (a, b int) {
	v = math.Floor(min(max(v, float64(low)), float64(high)))
	return int(v), min(int(v)+1, high)
}

// roundSumsGo rounds x*inverse+shift, where shift contains the half, down to the
// integers from 0 to top; q gets them, and sums those of q, q² and x*q, where bias
// is taken off q first. Sums are kept in four lanes, as the assembly does.
func roundSumsGo(sums *[3]float64, q []int32, x []float64, inverse, shift, top, bias float64) {
	var total [3][4]float64
	q = q[:len(x)]
	for i, v := range x {
		n := truncate(float64(v*inverse)+shift, 0, top)
		q[i] = int32(n)
		f, lane := float64(n)-bias, i%4
		total[0][lane] += f
		total[1][lane] += f * f
		total[2][lane] += v * f
	}
	for i, t := range total {
		sums[i] = (t[0] + t[2]) + (t[1] + t[3])
	}
}

// affineLen and signedLen are the elements of a group.
const (
	affineLen = 32
	signedLen = 16
)

// An affineGroup is 32 elements of Q4_K or Q5_K:
// x = scale*q - offset, with q from 0 to top.
type affineGroup struct {
	x           [affineLen]float64
	sum, square float64 // of the elements, and of their squares
	low, high   float64 // the range; low is at most 0

	scale, offset float64 // step 1

	// What is written: the integers and the stored scale and offset; the sums of
	// q, q² and x*q, and of the squared errors.
	q            [affineLen]int32
	stored, back int
	sums         [3]float64
	err          float64
}

// An affineBlock is the eight groups of a block.
type affineBlock struct {
	groups [8]affineGroup
	top    float64
}

// encode chooses the numbers of a block of 256 elements.
func (b *affineBlock) encode(src []float32) (d, dmin float32) {
	var scale, offset, square float64
	for i := range b.groups {
		g := &b.groups[i]
		g.load(src[i*affineLen:][:affineLen])
		g.fit(b.top)
		scale, offset = max(scale, g.scale), max(offset, g.offset)
		square += g.square
	}
	best := math.Inf(1)
	var kept affineBlock
	try := func(d2, dmin2 float32) {
		if err := b.store(d2, dmin2); err < best {
			d, dmin, best, kept = d2, dmin2, err, *b
		}
	}
	try(nearF16(scale/63), nearF16(offset/63))
	try(b.refit(d, dmin))
	if best < square*nearlyExact {
		for n := 62.0; n > 52; n-- {
			try(nearF16(scale/n), nearF16(offset/n))
		}
	}
	*b = kept
	return d, dmin
}

func (g *affineGroup) load(src []float32) {
	g.sum, g.square, g.low, g.high = 0, 0, 0, finite(src[0])
	for i, v := range src {
		x := finite(v)
		g.x[i] = x
		g.sum += x
		g.square += float64(x * x)
		g.low, g.high = min(g.low, x), max(g.high, x)
	}
}

// spans are the numbers of steps that the range of a group is laid over in the
// search, less the largest integer. Above 0 the ends of the range are cut off.
var spans = [...]float64{0, -1.1, -0.8, -0.5, -0.25, 0.2, 0.4, 0.6, 0.9, 1.3}

// fit is step 1.
func (g *affineGroup) fit(top float64) {
	g.scale, g.offset = 0, -g.low
	width := g.high - g.low
	if width == 0 { // all elements are equal, and not above 0
		return
	}
	best := math.Inf(1)
	for _, span := range spans {
		if scale, offset, err := g.line((top+span)/width, -g.low, top); err < best {
			g.scale, g.offset, best = scale, offset, err
		}
	}
	for range 4 {
		if g.scale == 0 {
			break
		}
		scale, offset, err := g.line(1/g.scale, g.offset, top)
		if !(err < best) {
			break
		}
		g.scale, g.offset, best = scale, offset, err
	}
}

// line rounds the elements with a scale, given as its inverse, and an offset, and
// returns the scale and offset, both at least 0, that suit those integers best, with
// the sum of squared errors.
func (g *affineGroup) line(inverse, offset, top float64) (scale, newOffset, err float64) {
	var q [affineLen]int32
	var sums [3]float64
	roundSums(&sums, q[:], g.x[:], inverse, float64(offset*inverse)+0.5, top, 0)
	sumQ, sumQQ, sumXQ := sums[0], sums[1], sums[2]
	det := affineLen*sumQQ - sumQ*sumQ // integers: exact
	if det > 0 {
		scale = (float64(affineLen*sumXQ) - float64(sumQ*g.sum)) / det
		newOffset = (float64(scale*sumQ) - g.sum) / affineLen
	}
	if det == 0 || newOffset < 0 { // all integers are equal, or no offset would be best
		scale, newOffset = 0, max(0, -g.sum/affineLen)
		if newOffset == 0 && sumQQ > 0 {
			scale = max(0, sumXQ/sumQQ)
		}
	}
	return scale, newOffset, g.error(scale, newOffset, &sums)
}

// error is the sum of squared errors of integers with these sums.
func (g *affineGroup) error(scale, offset float64, sums *[3]float64) float64 {
	linear := float64(scale*sums[2]) - float64(offset*g.sum)
	square := float64(scale*float64(scale*sums[1])) - float64(2*float64(scale*float64(offset*sums[0]))) + float64(affineLen*float64(offset*offset))
	return g.square - 2*linear + square
}

// store is step 2. It returns the sum of squared errors.
func (b *affineBlock) store(d, dmin float32) (err float64) {
	for i := range b.groups {
		g := &b.groups[i]
		var s, m [2]int
		if d > 0 {
			s[0], s[1] = around(g.scale/float64(d), 0, 63)
		}
		if dmin > 0 {
			m[0], m[1] = around(g.offset/float64(dmin), 0, 63)
		}
		g.err = math.Inf(1)
		g.try(s[0], m[0], d, dmin, b.top)
		if m[1] != m[0] {
			g.try(s[0], m[1], d, dmin, b.top)
		}
		if s[1] != s[0] {
			g.try(s[1], m[0], d, dmin, b.top)
			if m[1] != m[0] {
				g.try(s[1], m[1], d, dmin, b.top)
			}
		}
		err += g.err
	}
	return err
}

// try rounds the elements with a stored scale and offset, and keeps the result if it
// is the best so far.
func (g *affineGroup) try(stored, back int, d, dmin float32, top float64) {
	// A reader computes both in float32.
	scale, offset := float64(d*float32(stored)), float64(dmin*float32(back))
	inverse := 0.0
	if scale > 0 {
		inverse = 1 / scale
	}
	var q [affineLen]int32
	var sums [3]float64
	roundSums(&sums, q[:], g.x[:], inverse, float64(offset*inverse)+0.5, top, 0)
	if err := g.error(scale, offset, &sums); err < g.err {
		g.err, g.stored, g.back, g.q, g.sums = err, stored, back, q, sums
	}
}

// refit is step 3: x = d*(stored*q) - dmin*back over the whole block.
func (b *affineBlock) refit(d, dmin float32) (float32, float32) {
	var aa, ab, bb, xa, xb float64
	for i := range b.groups {
		g := &b.groups[i]
		s, m := float64(g.stored), float64(g.back)
		aa += s * s * g.sums[1]
		ab += s * m * g.sums[0]
		bb += m * m * affineLen
		xa += float64(s * g.sums[2])
		xb += float64(m * g.sum)
	}
	// The normal equations: d*aa - dmin*ab = xa, d*ab - dmin*bb = xb.
	det := aa*bb - ab*ab
	switch {
	case det > 0:
		d2 := (float64(xa*bb) - float64(xb*ab)) / det
		dmin2 := (float64(xa*ab) - float64(xb*aa)) / det
		if d2 > 0 && dmin2 > 0 {
			return nearF16(d2), nearF16(dmin2)
		}
	case bb == 0 && xa > 0:
		return nearF16(xa / aa), dmin
	}
	return d, dmin
}

// putScales writes d, dmin and the six-bit scales and offsets; see scaleMin.
func (b *affineBlock) putScales(dst []byte, d, dmin float32) {
	putF16(dst, d)
	putF16(dst[2:], dmin)
	packed := dst[4:16]
	for j := range 4 {
		g, h := &b.groups[j], &b.groups[j+4]
		packed[j] = byte(g.stored | h.stored>>4<<6)
		packed[j+4] = byte(g.back | h.back>>4<<6)
		packed[j+8] = byte(h.stored&15 | h.back<<4)
	}
}

// putLow writes the low four bits of the integers.
func (b *affineBlock) putLow(dst []byte) {
	for i := range dst {
		pair, k := i/affineLen*2, i%affineLen
		dst[i] = byte(b.groups[pair].q[k]&15 | b.groups[pair+1].q[k]<<4)
	}
}

// encodeQ4K; see decodeQ4KGo for the layout.
func encodeQ4K(dst []byte, src []float32) {
	b := affineBlock{top: 15}
	for ; len(src) > 0; dst, src = dst[144:], src[superLen:] {
		d, dmin := b.encode(src[:superLen])
		b.putScales(dst, d, dmin)
		b.putLow(dst[16:144])
	}
}

// encodeQ5K; see decodeQ5KGo for the layout.
func encodeQ5K(dst []byte, src []float32) {
	b := affineBlock{top: 31}
	for ; len(src) > 0; dst, src = dst[176:], src[superLen:] {
		d, dmin := b.encode(src[:superLen])
		b.putScales(dst, d, dmin)
		for i := range affineLen {
			var high int32
			for j := range b.groups {
				high |= b.groups[j].q[i] >> 4 << j
			}
			dst[16+i] = byte(high)
		}
		b.putLow(dst[48:176])
	}
}

// A signedGroup is sixteen elements of Q6_K: x = scale*q, with q from -32 to 31;
// stored with 32 added.
type signedGroup struct {
	x       [signedLen]float64
	square  float64 // the sum of the elements' squares
	extreme float64 // the element of largest magnitude

	scale float64 // step 1; of either sign

	q      [signedLen]int32
	stored int
	sums   [3]float64
	err    float64
}

type signedBlock [16]signedGroup

// encode chooses the numbers of a block of 256 elements.
func (b *signedBlock) encode(src []float32) (d float32) {
	var extreme, square float64
	for i := range b {
		g := &b[i]
		g.load(src[i*signedLen:][:signedLen])
		g.fit()
		if math.Abs(g.scale) > math.Abs(extreme) {
			extreme = g.scale
		}
		square += g.square
	}
	best := math.Inf(1)
	var kept signedBlock
	try := func(d2 float32) {
		if err := b.store(d2); err < best {
			d, best, kept = d2, err, *b
		}
	}
	try(nearF16(extreme / -128)) // the stored scales reach from -128 to 127
	try(b.refit(d))
	if best < square*nearlyExact {
		for n := 127.0; n > 112; n-- {
			try(nearF16(extreme / -n))
		}
	}
	*b = kept
	return d
}

// refit is step 3.
func (b *signedBlock) refit(d float32) float32 {
	var aa, xa float64
	for i := range b {
		g := &b[i]
		s := float64(g.stored)
		aa += s * s * g.sums[1]
		xa += float64(s * g.sums[2])
	}
	if aa == 0 || xa == 0 {
		return d
	}
	return nearF16(xa / aa)
}

func (g *signedGroup) load(src []float32) {
	g.square, g.extreme = 0, 0
	for i, v := range src {
		x := finite(v)
		g.x[i] = x
		g.square += float64(x * x)
		if math.Abs(x) > math.Abs(g.extreme) {
			g.extreme = x
		}
	}
}

// reaches are the integers that the search lays the extreme of a group on, which may
// lie beyond the last one. The extreme becomes negative, where there is one integer
// more.
var reaches = [...]float64{-32, -30.6, -31.2, -31.6, -32.4, -32.8, -33.4}

// fit is step 1.
func (g *signedGroup) fit() {
	if g.scale = 0; g.extreme == 0 {
		return
	}
	best := math.Inf(1)
	for _, reach := range reaches {
		if scale, err := g.line(reach / g.extreme); err < best {
			g.scale, best = scale, err
		}
	}
	for range 3 {
		scale, err := g.line(1 / g.scale)
		if !(err < best) {
			break
		}
		g.scale, best = scale, err
	}
}

// line is as of affineGroup.
func (g *signedGroup) line(inverse float64) (scale, err float64) {
	var q [signedLen]int32
	var sums [3]float64
	roundSums(&sums, q[:], g.x[:], inverse, 32.5, 63, 32)
	sumQQ, sumXQ := sums[1], sums[2]
	if sumQQ == 0 || sumXQ == 0 {
		return 0, math.Inf(1)
	}
	scale = sumXQ / sumQQ
	return scale, g.square - float64(scale*sumXQ)
}

// store is step 2.
func (b *signedBlock) store(d float32) (err float64) {
	for i := range b {
		g := &b[i]
		g.err = math.Inf(1)
		if d == 0 {
			g.try(0, d)
			continue
		}
		low, high := around(g.scale/float64(d), -128, 127)
		g.try(low, d)
		if high != low {
			g.try(high, d)
		}
		err += g.err
	}
	return err
}

// try is as of affineGroup.
func (g *signedGroup) try(stored int, d float32) {
	scale := float64(d * float32(stored)) // in float32, as a reader computes it
	inverse := 0.0
	if scale != 0 {
		inverse = 1 / scale
	}
	var q [signedLen]int32
	var sums [3]float64
	roundSums(&sums, q[:], g.x[:], inverse, 32.5, 63, 32)
	err := g.square - float64(2*float64(scale*sums[2])) + float64(scale*float64(scale*sums[1]))
	if err < g.err {
		g.err, g.stored, g.q, g.sums = err, stored, q, sums
	}
}

// encodeQ6K; see decodeQ6KGo for the layout.
func encodeQ6K(dst []byte, src []float32) {
	var b signedBlock
	for ; len(src) > 0; dst, src = dst[210:], src[superLen:] {
		d := b.encode(src[:superLen])
		clear(dst[:192])
		for i := range b {
			g := &b[i]
			half, k := i/8, i%8
			low := dst[half*64+k%4*16:][:16]
			high := dst[128+half*32+k%2*16:][:16]
			for j, q := range g.q {
				low[j] |= byte(q & 15 << (k / 4 * 4))
				high[j] |= byte(q >> 4 << (k / 2 * 2))
			}
			dst[192+i] = byte(int8(g.stored))
		}
		binary.LittleEndian.PutUint16(dst[208:], F32ToF16(d))
	}
}
