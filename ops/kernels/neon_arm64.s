#include "textflag.h"
#include "neon_arm64.h"

// The kernels for arm64: four float32 lanes of Advanced SIMD. dispatch_arm64.go
// says what each computes. None is called for nothing; counts n of the functions
// of one element are multiples of four.

#define ZERO4(a, b, c, d) ZERO(a); ZERO(b); ZERO(c); ZERO(d)
#define ZERO16 ZERO4(0, 1, 2, 3); ZERO4(4, 5, 6, 7); ZERO4(8, 9, 10, 11); ZERO4(12, 13, 14, 15)
#define FMLA4(a, b, c, d) FMLA(a, 20, 16); FMLA(b, 21, 17); FMLA(c, 22, 18); FMLA(d, 23, 19)
#define WIDEN4 FCVTL(20, 24); FCVTL2(21, 24); FCVTL(22, 25); FCVTL2(23, 25)

// The four sums of a row become one register.
#define FOLD(a, b, c, d) FADD(a, a, b); FADD(c, c, d); FADD(a, a, c)

// Of mulAdd: R0 y and R5 w of a strip of columns, R9 rows of x left, R10 and R11 x
// and y of them; R12 to R15 x, R16 w and R17 the count of the loop over c.
#define ROWS4 \
	MOVD R10, R12; \
	ADD  R3, R12, R13; \
	ADD  R3, R13, R14; \
	ADD  R3, R14, R15; \
	ADD  R3, R15, R10; \
	MOVD R5, R16; \
	MOVD R7, R17

#define ROWS1 \
	MOVD R10, R12; \
	ADD  R3, R10; \
	MOVD R5, R16; \
	MOVD R7, R17

#define X4 \
	FMOVS.P 4(R12), F20; \
	FMOVS.P 4(R13), F21; \
	FMOVS.P 4(R14), F22; \
	FMOVS.P 4(R15), F23

#define STRIP \
	MOVD n+32(FP), R9; \
	MOVD x+16(FP), R10; \
	MOVD R0, R11

// V0 becomes exp(V0), as expGo computes it, and V1 to V6 are lost. The constants:
// V16 expLow, V17 expHigh, V18 log2e, V19 and V20 the parts of ln 2, V21 to V26 the
// coefficients, V27 1, V28 the integer 127, V29 +Inf, V30 0.
#define EXP_CONSTANTS \
	MOVD   $·expConstants(SB), R4; \
	VLD1.P 64(R4), [V16.B16, V17.B16, V18.B16, V19.B16]; \
	VLD1.P 64(R4), [V20.B16, V21.B16, V22.B16, V23.B16]; \
	VLD1.P 64(R4), [V24.B16, V25.B16, V26.B16, V27.B16]; \
	VLD1   (R4), [V28.B16, V29.B16, V30.B16]

#define EXP \
	FCMGT(1, 16, 0); \
	FCMGT(2, 0, 17); \
	FMAX(0, 0, 16); \
	FMIN(0, 0, 17); \
	FMUL(3, 0, 18); \
	FRINTN(3, 3); \
	FMLS(0, 3, 19); \
	FMLS(0, 3, 20); \
	VMOV V22.B16, V4.B16; \
	FMLA(4, 21, 0); \
	VMOV V23.B16, V5.B16; \
	FMLA(5, 4, 0); \
	VMOV V24.B16, V4.B16; \
	FMLA(4, 5, 0); \
	VMOV V25.B16, V5.B16; \
	FMLA(5, 4, 0); \
	VMOV V26.B16, V4.B16; \
	FMLA(4, 5, 0); \
	FMUL(5, 0, 0); \
	FMLA(0, 4, 5); \
	FADD(0, 0, 27); \
	FCVTNS(3, 3); \
	SSHR1(5, 3); \
	SUB4(6, 3, 5); \
	ADD4(5, 5, 28); \
	SHL23(5, 5); \
	ADD4(6, 6, 28); \
	SHL23(6, 6); \
	FMUL(0, 0, 5); \
	FMUL(0, 0, 6); \
	BIT(0, 29, 2); \
	BIT(0, 30, 1)

// func gemvF32NEON(y *float32, w *byte, stride int, x *float32, cols, rows int, scale float32)
//
// Every row has the same four sums of four lanes, alone or among four: columns in
// sixteens, then in fours, then one by one (the other lanes are 0 then).
TEXT ·gemvF32NEON(SB), NOSPLIT, $0-52
	MOVD  y+0(FP), R0
	MOVD  w+8(FP), R1
	MOVD  stride+16(FP), R2
	MOVD  x+24(FP), R3
	MOVD  cols+32(FP), R4
	MOVD  rows+40(FP), R5
	FMOVS scale+48(FP), F31
	VDUP  V31.S[0], V31.S4

four:
	CMP  $4, R5
	BLT  one
	MOVD R1, R6
	ADD  R2, R6, R7
	ADD  R2, R7, R8
	ADD  R2, R8, R9
	ADD  R2, R9, R1
	MOVD R3, R10
	MOVD R4, R11
	ZERO16

four16:
	SUBS   $16, R11
	BLT    four4
	VLD1.P 64(R10), [V16.B16, V17.B16, V18.B16, V19.B16]
	VLD1.P 64(R6), [V20.B16, V21.B16, V22.B16, V23.B16]
	FMLA4(0, 1, 2, 3)
	VLD1.P 64(R7), [V20.B16, V21.B16, V22.B16, V23.B16]
	FMLA4(4, 5, 6, 7)
	VLD1.P 64(R8), [V20.B16, V21.B16, V22.B16, V23.B16]
	FMLA4(8, 9, 10, 11)
	VLD1.P 64(R9), [V20.B16, V21.B16, V22.B16, V23.B16]
	FMLA4(12, 13, 14, 15)
	B      four16

four4:
	ADDS   $12, R11
	BLT    four1
	VLD1.P 16(R10), [V16.B16]
	VLD1.P 16(R6), [V20.B16]
	VLD1.P 16(R7), [V21.B16]
	VLD1.P 16(R8), [V22.B16]
	VLD1.P 16(R9), [V23.B16]
	FMLA(0, 20, 16)
	FMLA(4, 21, 16)
	FMLA(8, 22, 16)
	FMLA(12, 23, 16)
	SUB    $16, R11
	B      four4

four1:
	ADDS    $3, R11
	BLT     four0
	FMOVS.P 4(R10), F16
	FMOVS.P 4(R6), F20
	FMOVS.P 4(R7), F21
	FMOVS.P 4(R8), F22
	FMOVS.P 4(R9), F23
	FMLA(0, 20, 16)
	FMLA(4, 21, 16)
	FMLA(8, 22, 16)
	FMLA(12, 23, 16)
	SUB     $4, R11
	B       four1

four0:
	FOLD(0, 1, 2, 3)
	FOLD(4, 5, 6, 7)
	FOLD(8, 9, 10, 11)
	FOLD(12, 13, 14, 15)
	FADDP(0, 0, 4)
	FADDP(8, 8, 12)
	FADDP(0, 0, 8)
	FMUL(0, 0, 31)
	VST1.P [V0.B16], 16(R0)
	SUB    $4, R5
	B      four

one:
	CBZ  R5, done
	MOVD R1, R6
	ADD  R2, R1
	MOVD R3, R10
	MOVD R4, R11
	ZERO4(0, 1, 2, 3)

one16:
	SUBS   $16, R11
	BLT    one4
	VLD1.P 64(R10), [V16.B16, V17.B16, V18.B16, V19.B16]
	VLD1.P 64(R6), [V20.B16, V21.B16, V22.B16, V23.B16]
	FMLA4(0, 1, 2, 3)
	B      one16

one4:
	ADDS   $12, R11
	BLT    one1
	VLD1.P 16(R10), [V16.B16]
	VLD1.P 16(R6), [V20.B16]
	FMLA(0, 20, 16)
	SUB    $16, R11
	B      one4

one1:
	ADDS    $3, R11
	BLT     one0
	FMOVS.P 4(R10), F16
	FMOVS.P 4(R6), F20
	FMLA(0, 20, 16)
	SUB     $4, R11
	B       one1

one0:
	FOLD(0, 1, 2, 3)
	FADDP(0, 0, 0)
	FADDP(0, 0, 0)
	FMUL(0, 0, 31)
	FMOVS.P F0, 4(R0)
	SUB     $1, R5
	B       one

done:
	RET

// func gemvF16NEON(y *float32, w *byte, stride int, x *float32, cols, rows int, scale float32)
//
// As gemvF32NEON.
TEXT ·gemvF16NEON(SB), NOSPLIT, $0-52
	MOVD  y+0(FP), R0
	MOVD  w+8(FP), R1
	MOVD  stride+16(FP), R2
	MOVD  x+24(FP), R3
	MOVD  cols+32(FP), R4
	MOVD  rows+40(FP), R5
	FMOVS scale+48(FP), F31
	VDUP  V31.S[0], V31.S4

four:
	CMP  $4, R5
	BLT  one
	MOVD R1, R6
	ADD  R2, R6, R7
	ADD  R2, R7, R8
	ADD  R2, R8, R9
	ADD  R2, R9, R1
	MOVD R3, R10
	MOVD R4, R11
	ZERO16

four16:
	SUBS   $16, R11
	BLT    four4
	VLD1.P 64(R10), [V16.B16, V17.B16, V18.B16, V19.B16]
	VLD1.P 32(R6), [V24.B16, V25.B16]
	WIDEN4
	FMLA4(0, 1, 2, 3)
	VLD1.P 32(R7), [V24.B16, V25.B16]
	WIDEN4
	FMLA4(4, 5, 6, 7)
	VLD1.P 32(R8), [V24.B16, V25.B16]
	WIDEN4
	FMLA4(8, 9, 10, 11)
	VLD1.P 32(R9), [V24.B16, V25.B16]
	WIDEN4
	FMLA4(12, 13, 14, 15)
	B      four16

four4:
	ADDS   $12, R11
	BLT    four1
	VLD1.P 16(R10), [V16.B16]
	VLD1.P 8(R6), [V20.B8]
	VLD1.P 8(R7), [V21.B8]
	VLD1.P 8(R8), [V22.B8]
	VLD1.P 8(R9), [V23.B8]
	FCVTL(20, 20)
	FCVTL(21, 21)
	FCVTL(22, 22)
	FCVTL(23, 23)
	FMLA(0, 20, 16)
	FMLA(4, 21, 16)
	FMLA(8, 22, 16)
	FMLA(12, 23, 16)
	SUB    $16, R11
	B      four4

four1:
	ADDS    $3, R11
	BLT     four0
	FMOVS.P 4(R10), F16
	MOVHU.P 2(R6), R12
	MOVHU.P 2(R7), R13
	MOVHU.P 2(R8), R14
	MOVHU.P 2(R9), R15
	FMOVS   R12, F20
	FMOVS   R13, F21
	FMOVS   R14, F22
	FMOVS   R15, F23
	FCVTL(20, 20)
	FCVTL(21, 21)
	FCVTL(22, 22)
	FCVTL(23, 23)
	FMLA(0, 20, 16)
	FMLA(4, 21, 16)
	FMLA(8, 22, 16)
	FMLA(12, 23, 16)
	SUB     $4, R11
	B       four1

four0:
	FOLD(0, 1, 2, 3)
	FOLD(4, 5, 6, 7)
	FOLD(8, 9, 10, 11)
	FOLD(12, 13, 14, 15)
	FADDP(0, 0, 4)
	FADDP(8, 8, 12)
	FADDP(0, 0, 8)
	FMUL(0, 0, 31)
	VST1.P [V0.B16], 16(R0)
	SUB    $4, R5
	B      four

one:
	CBZ  R5, done
	MOVD R1, R6
	ADD  R2, R1
	MOVD R3, R10
	MOVD R4, R11
	ZERO4(0, 1, 2, 3)

one16:
	SUBS   $16, R11
	BLT    one4
	VLD1.P 64(R10), [V16.B16, V17.B16, V18.B16, V19.B16]
	VLD1.P 32(R6), [V24.B16, V25.B16]
	WIDEN4
	FMLA4(0, 1, 2, 3)
	B      one16

one4:
	ADDS   $12, R11
	BLT    one1
	VLD1.P 16(R10), [V16.B16]
	VLD1.P 8(R6), [V20.B8]
	FCVTL(20, 20)
	FMLA(0, 20, 16)
	SUB    $16, R11
	B      one4

one1:
	ADDS    $3, R11
	BLT     one0
	FMOVS.P 4(R10), F16
	MOVHU.P 2(R6), R12
	FMOVS   R12, F20
	FCVTL(20, 20)
	FMLA(0, 20, 16)
	SUB     $4, R11
	B       one1

one0:
	FOLD(0, 1, 2, 3)
	FADDP(0, 0, 0)
	FADDP(0, 0, 0)
	FMUL(0, 0, 31)
	FMOVS.P F0, 4(R0)
	SUB     $1, R5
	B       one

done:
	RET

// func tileNEON(y *float32, ldy int, w *float32, ldw int, x *float32, ldx, cols, more int)
//
// Four rows times four vectors, cols a multiple of four: one sum of four lanes
// each. ldy, ldw and ldx are in bytes; more adds to y.
TEXT ·tileNEON(SB), NOSPLIT, $0-64
	MOVD y+0(FP), R0
	MOVD ldy+8(FP), R1
	MOVD w+16(FP), R2
	MOVD ldw+24(FP), R6
	ADD  R6, R2, R3
	ADD  R6, R3, R4
	ADD  R6, R4, R5
	MOVD x+32(FP), R6
	MOVD ldx+40(FP), R10
	ADD  R10, R6, R7
	ADD  R10, R7, R8
	ADD  R10, R8, R9
	MOVD cols+48(FP), R10
	MOVD more+56(FP), R11
	ZERO16

loop:
	VLD1.P 16(R2), [V16.B16]
	VLD1.P 16(R3), [V17.B16]
	VLD1.P 16(R4), [V18.B16]
	VLD1.P 16(R5), [V19.B16]
	VLD1.P 16(R6), [V20.B16]
	VLD1.P 16(R7), [V21.B16]
	VLD1.P 16(R8), [V22.B16]
	VLD1.P 16(R9), [V23.B16]
	FMLA(0, 16, 20)
	FMLA(1, 17, 20)
	FMLA(2, 18, 20)
	FMLA(3, 19, 20)
	FMLA(4, 16, 21)
	FMLA(5, 17, 21)
	FMLA(6, 18, 21)
	FMLA(7, 19, 21)
	FMLA(8, 16, 22)
	FMLA(9, 17, 22)
	FMLA(10, 18, 22)
	FMLA(11, 19, 22)
	FMLA(12, 16, 23)
	FMLA(13, 17, 23)
	FMLA(14, 18, 23)
	FMLA(15, 19, 23)
	SUBS   $4, R10
	BGT    loop
	FADDP(0, 0, 1)
	FADDP(2, 2, 3)
	FADDP(0, 0, 2)
	FADDP(4, 4, 5)
	FADDP(6, 6, 7)
	FADDP(4, 4, 6)
	FADDP(8, 8, 9)
	FADDP(10, 10, 11)
	FADDP(8, 8, 10)
	FADDP(12, 12, 13)
	FADDP(14, 14, 15)
	FADDP(12, 12, 14)
	ADD    R1, R0, R2
	ADD    R1, R2, R3
	ADD    R1, R3, R4
	CBZ    R11, store
	VLD1   (R0), [V16.B16]
	VLD1   (R2), [V17.B16]
	VLD1   (R3), [V18.B16]
	VLD1   (R4), [V19.B16]
	FADD(0, 16, 0)
	FADD(4, 17, 4)
	FADD(8, 18, 8)
	FADD(12, 19, 12)

store:
	VST1 [V0.B16], (R0)
	VST1 [V4.B16], (R2)
	VST1 [V8.B16], (R3)
	VST1 [V12.B16], (R4)
	RET

// func accumulateF32NEON(y, p *float32, v *byte, n, count int)
//
// Strips of thirty-two, four and one elements of y stay in registers while j runs.
TEXT ·accumulateF32NEON(SB), NOSPLIT, $0-40
	MOVD y+0(FP), R0
	MOVD v+16(FP), R2
	MOVD n+24(FP), R3
	LSL  $2, R3, R6

wide:
	CMP  $32, R3
	BLT  narrow
	MOVD p+8(FP), R1
	MOVD count+32(FP), R4
	MOVD R2, R5
	MOVD R0, R7
	VLD1.P 64(R7), [V0.B16, V1.B16, V2.B16, V3.B16]
	VLD1   (R7), [V4.B16, V5.B16, V6.B16, V7.B16]

wideValue:
	FMOVS.P 4(R1), F16
	FCMPS   $(0.0), F16
	BEQ     wideNext
	MOVD    R5, R7
	VLD1.P  64(R7), [V17.B16, V18.B16, V19.B16, V20.B16]
	VLD1    (R7), [V21.B16, V22.B16, V23.B16, V24.B16]
	FMLA0(0, 17, 16)
	FMLA0(1, 18, 16)
	FMLA0(2, 19, 16)
	FMLA0(3, 20, 16)
	FMLA0(4, 21, 16)
	FMLA0(5, 22, 16)
	FMLA0(6, 23, 16)
	FMLA0(7, 24, 16)

wideNext:
	ADD    R6, R5
	SUBS   $1, R4
	BNE    wideValue
	VST1.P [V0.B16, V1.B16, V2.B16, V3.B16], 64(R0)
	VST1.P [V4.B16, V5.B16, V6.B16, V7.B16], 64(R0)
	ADD    $128, R2
	SUB    $32, R3
	B      wide

narrow:
	CMP  $4, R3
	BLT  single
	MOVD p+8(FP), R1
	MOVD count+32(FP), R4
	MOVD R2, R5
	VLD1 (R0), [V0.B16]

narrowValue:
	FMOVS.P 4(R1), F16
	FCMPS   $(0.0), F16
	BEQ     narrowNext
	VLD1    (R5), [V17.B16]
	FMLA0(0, 17, 16)

narrowNext:
	ADD    R6, R5
	SUBS   $1, R4
	BNE    narrowValue
	VST1.P [V0.B16], 16(R0)
	ADD    $16, R2
	SUB    $4, R3
	B      narrow

single:
	CBZ   R3, done
	MOVD  p+8(FP), R1
	MOVD  count+32(FP), R4
	MOVD  R2, R5
	FMOVS (R0), F0

singleValue:
	FMOVS.P 4(R1), F16
	FCMPS   $(0.0), F16
	BEQ     singleNext
	FMOVS   (R5), F17
	FMLA0(0, 17, 16)

singleNext:
	ADD     R6, R5
	SUBS    $1, R4
	BNE     singleValue
	FMOVS.P F0, 4(R0)
	ADD     $4, R2
	SUB     $1, R3
	B       single

done:
	RET

// func accumulateF16NEON(y, p *float32, v *byte, n, count int)
//
// As accumulateF32NEON.
TEXT ·accumulateF16NEON(SB), NOSPLIT, $0-40
	MOVD y+0(FP), R0
	MOVD v+16(FP), R2
	MOVD n+24(FP), R3
	LSL  $1, R3, R6

wide:
	CMP  $32, R3
	BLT  narrow
	MOVD p+8(FP), R1
	MOVD count+32(FP), R4
	MOVD R2, R5
	MOVD R0, R7
	VLD1.P 64(R7), [V0.B16, V1.B16, V2.B16, V3.B16]
	VLD1   (R7), [V4.B16, V5.B16, V6.B16, V7.B16]

wideValue:
	FMOVS.P 4(R1), F16
	FCMPS   $(0.0), F16
	BEQ     wideNext
	VLD1    (R5), [V25.B16, V26.B16, V27.B16, V28.B16]
	FCVTL(17, 25)
	FCVTL2(18, 25)
	FCVTL(19, 26)
	FCVTL2(20, 26)
	FCVTL(21, 27)
	FCVTL2(22, 27)
	FCVTL(23, 28)
	FCVTL2(24, 28)
	FMLA0(0, 17, 16)
	FMLA0(1, 18, 16)
	FMLA0(2, 19, 16)
	FMLA0(3, 20, 16)
	FMLA0(4, 21, 16)
	FMLA0(5, 22, 16)
	FMLA0(6, 23, 16)
	FMLA0(7, 24, 16)

wideNext:
	ADD    R6, R5
	SUBS   $1, R4
	BNE    wideValue
	VST1.P [V0.B16, V1.B16, V2.B16, V3.B16], 64(R0)
	VST1.P [V4.B16, V5.B16, V6.B16, V7.B16], 64(R0)
	ADD    $64, R2
	SUB    $32, R3
	B      wide

narrow:
	CMP  $4, R3
	BLT  single
	MOVD p+8(FP), R1
	MOVD count+32(FP), R4
	MOVD R2, R5
	VLD1 (R0), [V0.B16]

narrowValue:
	FMOVS.P 4(R1), F16
	FCMPS   $(0.0), F16
	BEQ     narrowNext
	VLD1    (R5), [V17.B8]
	FCVTL(17, 17)
	FMLA0(0, 17, 16)

narrowNext:
	ADD    R6, R5
	SUBS   $1, R4
	BNE    narrowValue
	VST1.P [V0.B16], 16(R0)
	ADD    $8, R2
	SUB    $4, R3
	B      narrow

single:
	CBZ   R3, done
	MOVD  p+8(FP), R1
	MOVD  count+32(FP), R4
	MOVD  R2, R5
	FMOVS (R0), F0

singleValue:
	FMOVS.P 4(R1), F16
	FCMPS   $(0.0), F16
	BEQ     singleNext
	MOVHU   (R5), R7
	FMOVS   R7, F17
	FCVTL(17, 17)
	FMLA0(0, 17, 16)

singleNext:
	ADD     R6, R5
	SUBS    $1, R4
	BNE     singleValue
	FMOVS.P F0, 4(R0)
	ADD     $2, R2
	SUB     $1, R3
	B       single

done:
	RET

// func mulAddNEON(y *float32, ldy int, x *float32, ldx, n int, w *float32, ldw, k, width, add int)
//
// Strips of sixteen, four and one columns, four rows of x at a time and then one;
// a sum is one lane, in the order of c. ldy, ldx and ldw are in bytes.
TEXT ·mulAddNEON(SB), NOSPLIT, $0-80
	MOVD y+0(FP), R0
	MOVD ldy+8(FP), R1
	MOVD ldx+24(FP), R3
	MOVD w+40(FP), R5
	MOVD ldw+48(FP), R6
	MOVD k+56(FP), R7
	MOVD width+64(FP), R8
	MOVD add+72(FP), R19

strip16:
	CMP $16, R8
	BLT strip4
	STRIP

strip16rows4:
	CMP $4, R9
	BLT strip16rows1
	ROWS4
	ZERO16

strip16loop4:
	VLD1 (R16), [V16.B16, V17.B16, V18.B16, V19.B16]
	ADD  R6, R16
	X4
	FMLA0(0, 16, 20)
	FMLA0(1, 17, 20)
	FMLA0(2, 18, 20)
	FMLA0(3, 19, 20)
	FMLA0(4, 16, 21)
	FMLA0(5, 17, 21)
	FMLA0(6, 18, 21)
	FMLA0(7, 19, 21)
	FMLA0(8, 16, 22)
	FMLA0(9, 17, 22)
	FMLA0(10, 18, 22)
	FMLA0(11, 19, 22)
	FMLA0(12, 16, 23)
	FMLA0(13, 17, 23)
	FMLA0(14, 18, 23)
	FMLA0(15, 19, 23)
	SUBS $1, R17
	BNE  strip16loop4
	MOVD R11, R12
	ADD  R1, R12, R13
	ADD  R1, R13, R14
	ADD  R1, R14, R15
	ADD  R1, R15, R11
	CBZ  R19, strip16store4
	VLD1 (R12), [V16.B16, V17.B16, V18.B16, V19.B16]
	VLD1 (R13), [V20.B16, V21.B16, V22.B16, V23.B16]
	VLD1 (R14), [V24.B16, V25.B16, V26.B16, V27.B16]
	VLD1 (R15), [V28.B16, V29.B16, V30.B16, V31.B16]
	FADD(0, 16, 0)
	FADD(1, 17, 1)
	FADD(2, 18, 2)
	FADD(3, 19, 3)
	FADD(4, 20, 4)
	FADD(5, 21, 5)
	FADD(6, 22, 6)
	FADD(7, 23, 7)
	FADD(8, 24, 8)
	FADD(9, 25, 9)
	FADD(10, 26, 10)
	FADD(11, 27, 11)
	FADD(12, 28, 12)
	FADD(13, 29, 13)
	FADD(14, 30, 14)
	FADD(15, 31, 15)

strip16store4:
	VST1 [V0.B16, V1.B16, V2.B16, V3.B16], (R12)
	VST1 [V4.B16, V5.B16, V6.B16, V7.B16], (R13)
	VST1 [V8.B16, V9.B16, V10.B16, V11.B16], (R14)
	VST1 [V12.B16, V13.B16, V14.B16, V15.B16], (R15)
	SUB  $4, R9
	B    strip16rows4

strip16rows1:
	CBZ R9, strip16next
	ROWS1
	ZERO4(0, 1, 2, 3)

strip16loop1:
	VLD1    (R16), [V16.B16, V17.B16, V18.B16, V19.B16]
	ADD     R6, R16
	FMOVS.P 4(R12), F20
	FMLA0(0, 16, 20)
	FMLA0(1, 17, 20)
	FMLA0(2, 18, 20)
	FMLA0(3, 19, 20)
	SUBS    $1, R17
	BNE     strip16loop1
	CBZ     R19, strip16store1
	VLD1    (R11), [V16.B16, V17.B16, V18.B16, V19.B16]
	FADD(0, 16, 0)
	FADD(1, 17, 1)
	FADD(2, 18, 2)
	FADD(3, 19, 3)

strip16store1:
	VST1 [V0.B16, V1.B16, V2.B16, V3.B16], (R11)
	ADD  R1, R11
	SUB  $1, R9
	B    strip16rows1

strip16next:
	ADD $64, R0
	ADD $64, R5
	SUB $16, R8
	B   strip16

strip4:
	CMP $4, R8
	BLT strip1
	STRIP

strip4rows4:
	CMP $4, R9
	BLT strip4rows1
	ROWS4
	ZERO4(0, 1, 2, 3)

strip4loop4:
	VLD1 (R16), [V16.B16]
	ADD  R6, R16
	X4
	FMLA0(0, 16, 20)
	FMLA0(1, 16, 21)
	FMLA0(2, 16, 22)
	FMLA0(3, 16, 23)
	SUBS $1, R17
	BNE  strip4loop4
	MOVD R11, R12
	ADD  R1, R12, R13
	ADD  R1, R13, R14
	ADD  R1, R14, R15
	ADD  R1, R15, R11
	CBZ  R19, strip4store4
	VLD1 (R12), [V16.B16]
	VLD1 (R13), [V17.B16]
	VLD1 (R14), [V18.B16]
	VLD1 (R15), [V19.B16]
	FADD(0, 16, 0)
	FADD(1, 17, 1)
	FADD(2, 18, 2)
	FADD(3, 19, 3)

strip4store4:
	VST1 [V0.B16], (R12)
	VST1 [V1.B16], (R13)
	VST1 [V2.B16], (R14)
	VST1 [V3.B16], (R15)
	SUB  $4, R9
	B    strip4rows4

strip4rows1:
	CBZ R9, strip4next
	ROWS1
	ZERO(0)

strip4loop1:
	VLD1    (R16), [V16.B16]
	ADD     R6, R16
	FMOVS.P 4(R12), F20
	FMLA0(0, 16, 20)
	SUBS    $1, R17
	BNE     strip4loop1
	CBZ     R19, strip4store1
	VLD1    (R11), [V16.B16]
	FADD(0, 16, 0)

strip4store1:
	VST1 [V0.B16], (R11)
	ADD  R1, R11
	SUB  $1, R9
	B    strip4rows1

strip4next:
	ADD $16, R0
	ADD $16, R5
	SUB $4, R8
	B   strip4

strip1:
	CBZ R8, done
	STRIP

strip1rows1:
	CBZ R9, strip1next
	ROWS1
	ZERO(0)

strip1loop1:
	FMOVS   (R16), F16
	ADD     R6, R16
	FMOVS.P 4(R12), F20
	FMLA0(0, 16, 20)
	SUBS    $1, R17
	BNE     strip1loop1
	CBZ     R19, strip1store1
	FMOVS   (R11), F16
	FADD(0, 16, 0)

strip1store1:
	FMOVS F0, (R11)
	ADD   R1, R11
	SUB   $1, R9
	B     strip1rows1

strip1next:
	ADD $4, R0
	ADD $4, R5
	SUB $1, R8
	B   strip1

done:
	RET

// func axpyNEON(y, x *float32, a float32, n int)
TEXT ·axpyNEON(SB), NOSPLIT, $0-32
	MOVD  y+0(FP), R0
	MOVD  x+8(FP), R1
	FMOVS a+16(FP), F16
	MOVD  n+24(FP), R2

loop:
	VLD1   (R0), [V0.B16]
	VLD1.P 16(R1), [V1.B16]
	FMLA0(0, 1, 16)
	VST1.P [V0.B16], 16(R0)
	SUBS   $4, R2
	BNE    loop
	RET

// func addNEON(y, x *float32, n int)
TEXT ·addNEON(SB), NOSPLIT, $0-24
	MOVD y+0(FP), R0
	MOVD x+8(FP), R1
	MOVD n+16(FP), R2

loop:
	VLD1   (R0), [V0.B16]
	VLD1.P 16(R1), [V1.B16]
	FADD(0, 0, 1)
	VST1.P [V0.B16], 16(R0)
	SUBS   $4, R2
	BNE    loop
	RET

// func mulNEON(y, x *float32, n int)
TEXT ·mulNEON(SB), NOSPLIT, $0-24
	MOVD y+0(FP), R0
	MOVD x+8(FP), R1
	MOVD n+16(FP), R2

loop:
	VLD1   (R0), [V0.B16]
	VLD1.P 16(R1), [V1.B16]
	FMUL(0, 0, 1)
	VST1.P [V0.B16], 16(R0)
	SUBS   $4, R2
	BNE    loop
	RET

// func scaleNEON(y *float32, a float32, n int)
TEXT ·scaleNEON(SB), NOSPLIT, $0-24
	MOVD  y+0(FP), R0
	FMOVS a+8(FP), F16
	VDUP  V16.S[0], V16.S4
	MOVD  n+16(FP), R2

loop:
	VLD1   (R0), [V0.B16]
	FMUL(0, 0, 16)
	VST1.P [V0.B16], 16(R0)
	SUBS   $4, R2
	BNE    loop
	RET

// func scaleMulNEON(y, x, w *float32, a float32, n int)
TEXT ·scaleMulNEON(SB), NOSPLIT, $0-40
	MOVD  y+0(FP), R0
	MOVD  x+8(FP), R1
	MOVD  w+16(FP), R3
	FMOVS a+24(FP), F16
	VDUP  V16.S[0], V16.S4
	MOVD  n+32(FP), R2

loop:
	VLD1.P 16(R1), [V0.B16]
	VLD1.P 16(R3), [V1.B16]
	FMUL(0, 16, 0)
	FMUL(0, 0, 1)
	VST1.P [V0.B16], 16(R0)
	SUBS   $4, R2
	BNE    loop
	RET

// func addConstNEON(x *float32, a float32, n int)
TEXT ·addConstNEON(SB), NOSPLIT, $0-24
	MOVD  x+0(FP), R0
	FMOVS a+8(FP), F16
	VDUP  V16.S[0], V16.S4
	MOVD  n+16(FP), R2

loop:
	VLD1   (R0), [V0.B16]
	FADD(0, 0, 16)
	VST1.P [V0.B16], 16(R0)
	SUBS   $4, R2
	BNE    loop
	RET

// func maximumNEON(x *float32, n int) float32
TEXT ·maximumNEON(SB), NOSPLIT, $0-20
	MOVD x+0(FP), R0
	MOVD n+8(FP), R2
	MOVD $0xFF800000, R3
	VDUP R3, V0.S4

loop:
	VLD1.P 16(R0), [V1.B16]
	FCMGT(2, 1, 0)
	BIT(0, 1, 2)
	SUBS   $4, R2
	BNE    loop
	FMAXV(0, 0)
	FMOVS  F0, ret+16(FP)
	RET

// func updateLowNEON(low *float32, field float32, n int)
TEXT ·updateLowNEON(SB), NOSPLIT, $0-24
	MOVD  low+0(FP), R0
	FMOVS field+8(FP), F16
	VDUP  V16.S[0], V16.S4
	MOVD  n+16(FP), R2

loop:
	VLD1   (R0), [V0.B16]
	FCMGT(1, 0, 16)
	BIT(0, 16, 1)
	VST1.P [V0.B16], 16(R0)
	SUBS   $4, R2
	BNE    loop
	RET

// func penaliseNEON(s, low, level *float32, field, slope float32, n int) float32
//
// V19 the largest number, V20 -Inf, V21 the largest penalties.
TEXT ·penaliseNEON(SB), NOSPLIT, $0-44
	MOVD  s+0(FP), R0
	MOVD  low+8(FP), R1
	MOVD  level+16(FP), R2
	FMOVS field+24(FP), F16
	VDUP  V16.S[0], V16.S4
	FMOVS slope+28(FP), F17
	VDUP  V17.S[0], V17.S4
	MOVD  n+32(FP), R3
	MOVD  $0x7F7FFFFF, R4
	VDUP  R4, V19.S4
	MOVD  $0xFF800000, R4
	VDUP  R4, V20.S4
	ZERO(18)
	ZERO(21)

loop:
	VLD1   (R1), [V1.B16]
	FCMGT(3, 1, 16)
	BIT(1, 16, 3)
	VST1.P [V1.B16], 16(R1)
	VLD1.P 16(R2), [V2.B16]
	FSUB(1, 2, 1)
	FMIN(1, 1, 19)
	FCMGT(3, 1, 18) // beyond 0
	FMUL(1, 17, 1)
	AND(1, 1, 3)
	FCMGE(3, 19, 2) // not empty
	AND(1, 1, 3)
	FMAX(21, 21, 1)
	VLD1   (R0), [V0.B16]
	FSUB(0, 0, 1)
	FCMGT(3, 2, 19) // empty
	BIT(0, 20, 3)
	VST1.P [V0.B16], 16(R0)
	SUBS   $4, R3
	BNE    loop
	FMAXV(21, 21)
	FMOVS  F21, ret+40(FP)
	RET

// func expSumNEON(s *float32, max float32, n int) float32
TEXT ·expSumNEON(SB), NOSPLIT, $0-28
	MOVD  s+0(FP), R0
	FMOVS max+8(FP), F31
	VDUP  V31.S[0], V31.S4
	MOVD  n+16(FP), R2
	EXP_CONSTANTS
	ZERO(7)

loop:
	VLD1   (R0), [V0.B16]
	FSUB(0, 0, 31)
	EXP
	FADD(7, 7, 0)
	VST1.P [V0.B16], 16(R0)
	SUBS   $4, R2
	BNE    loop
	FADDP(7, 7, 7)
	FADDP(7, 7, 7)
	FMOVS  F7, ret+24(FP)
	RET

// func sigmoidNEON(y *float32, n int)
TEXT ·sigmoidNEON(SB), NOSPLIT, $0-16
	MOVD y+0(FP), R0
	MOVD n+8(FP), R2
	EXP_CONSTANTS

loop:
	VLD1   (R0), [V0.B16]
	FNEG(0, 0)
	EXP
	FADD(0, 0, 27)
	FDIV(0, 27, 0)
	VST1.P [V0.B16], 16(R0)
	SUBS   $4, R2
	BNE    loop
	RET

// func siluNEON(y *float32, n int)
TEXT ·siluNEON(SB), NOSPLIT, $0-16
	MOVD y+0(FP), R0
	MOVD n+8(FP), R2
	EXP_CONSTANTS

loop:
	VLD1   (R0), [V7.B16]
	FNEG(0, 7)
	EXP
	FADD(0, 0, 27)
	FDIV(0, 7, 0)
	VST1.P [V0.B16], 16(R0)
	SUBS   $4, R2
	BNE    loop
	RET

// func pause()
//
// The processor's hint for a loop that waits.
TEXT ·pause(SB), NOSPLIT, $0-0
	YIELD
	RET
