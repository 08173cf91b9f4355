#include "textflag.h"
#include "amx_amd64.h"

// Palette 1, eight tiles of 16 rows of 64 bytes.
DATA tiles<>+0(SB)/8, $1
DATA tiles<>+8(SB)/8, $0
DATA tiles<>+16(SB)/8, $0x0040004000400040
DATA tiles<>+24(SB)/8, $0x0040004000400040
DATA tiles<>+32(SB)/8, $0
DATA tiles<>+40(SB)/8, $0
DATA tiles<>+48(SB)/8, $0x1010101010101010
DATA tiles<>+56(SB)/8, $0
GLOBL tiles<>(SB), RODATA|NOPTR, $64

// Tiles 0 to 3 are the sums: vectors 0-15 and 16-31, by rows 0-15 and 16-31.
// Tiles 4 and 5 are the vectors' limb at hand, 6 and 7 the rows'.

#define VECTORS(limb) \
	TILELOAD(4, (limb)*1024, 2, 1); \
	TILELOAD(5, (limb)*1024, 6, 1)

#define ROWS(limb) \
	TILELOAD(6, (limb)*1024, 0, 1); \
	TILELOAD(7, (limb)*1024, 3, 1)

#define MULTIPLY \
	TILEDOT(0, 4, 6); \
	TILEDOT(1, 4, 7); \
	TILEDOT(2, 5, 6); \
	TILEDOT(3, 5, 7)

// The frame of a product: the arguments to registers, then panels of 32 rows.
#define BEGIN \
	LEAQ tiles<>(SB), AX; \
	TILECONFIG_AX; \
	MOVQ at_c+0(FP), DI; \
	MOVQ at_rows+8(FP), R9; \
	MOVQ at_rowsHalf+16(FP), R10; \
	MOVQ at_panels+48(FP), R11; \
	MOVQ at_more+56(FP), R12; \
	MOVQ at_ahead_at+64(FP), R13

// Besides, each panel asks the cache for what is worked on next: lines of some rows.
#define BEGIN_PANEL \
	MOVQ R9, AX; \
	LEAQ (R9)(R10*1), BX; \
	MOVQ at_vectors+24(FP), DX; \
	MOVQ DX, SI; \
	ADDQ at_vectorsHalf+32(FP), SI; \
	MOVQ at_steps+40(FP), R8

#define AHEAD(row, line, done) \
	MOVQ at_ahead_rows+72(FP), CX; \
	MOVQ R13, SI; \
	TESTQ CX, CX; \
	JZ    done; \
row: \
	MOVQ at_ahead_lines+88(FP), R8; \
	MOVQ SI, BX; \
line: \
	PREFETCHT0 (BX); \
	ADDQ $64, BX; \
	DECQ R8; \
	JNZ  line; \
	ADDQ at_ahead_stride+80(FP), SI; \
	DECQ CX; \
	JNZ  row; \
	ADDQ at_ahead_next+96(FP), R13; \
done:

#define CLEAR_SUMS \
	TILEZERO(0); \
	TILEZERO(1); \
	TILEZERO(2); \
	TILEZERO(3)

#define LOAD_SUMS \
	MOVQ $128, CX; \
	TILELOAD(0, 0, 7, 1); \
	TILELOAD(1, 64, 7, 1); \
	TILELOAD(2, 2048, 7, 1); \
	TILELOAD(3, 2112, 7, 1)

#define NEXT_STEP(limbs) \
	ADDQ $((limbs)*1024), AX; \
	ADDQ $((limbs)*1024), BX; \
	ADDQ $3072, DX; \
	ADDQ $3072, SI

#define END_PANEL \
	MOVQ $128, CX; \
	TILESTORE(0, 0, 7, 1); \
	TILESTORE(1, 64, 7, 1); \
	TILESTORE(2, 2048, 7, 1); \
	TILESTORE(3, 2112, 7, 1); \
	ADDQ $4096, DI; \
	LEAQ (R9)(R10*2), R9

// func tileProduct1(at product)
TEXT ·tileProduct1(SB), NOSPLIT, $0-136
	BEGIN

panel:
	AHEAD(row, line, asked)
	BEGIN_PANEL
	CLEAR_SUMS
	TESTQ R12, R12
	JZ    begin
	LOAD_SUMS

begin:
	MOVQ $64, CX

step:
	ROWS(0)
	VECTORS(2)
	MULTIPLY
	VECTORS(1)
	MULTIPLY
	VECTORS(0)
	MULTIPLY
	NEXT_STEP(1)
	DECQ R8
	JNZ  step
	END_PANEL
	DECQ R11
	JNZ  panel
	TILERELEASE
	RET

// func tileProduct2(at product)
TEXT ·tileProduct2(SB), NOSPLIT, $0-136
	BEGIN

panel:
	AHEAD(row, line, asked)
	BEGIN_PANEL
	CLEAR_SUMS
	TESTQ R12, R12
	JZ    begin
	LOAD_SUMS

begin:
	MOVQ $64, CX

step:
	ROWS(0)
	VECTORS(2)
	MULTIPLY
	VECTORS(1)
	MULTIPLY
	ROWS(1)
	MULTIPLY
	VECTORS(0)
	MULTIPLY
	ROWS(0)
	MULTIPLY
	NEXT_STEP(2)
	DECQ R8
	JNZ  step
	END_PANEL
	DECQ R11
	JNZ  panel
	TILERELEASE
	RET

// func tileProduct3(at product)
TEXT ·tileProduct3(SB), NOSPLIT, $0-136
	BEGIN

panel:
	AHEAD(row, line, asked)
	BEGIN_PANEL
	CLEAR_SUMS
	TESTQ R12, R12
	JZ    begin
	LOAD_SUMS

begin:
	MOVQ $64, CX

step:
	ROWS(2)
	VECTORS(0)
	MULTIPLY
	ROWS(0)
	VECTORS(2)
	MULTIPLY
	VECTORS(1)
	MULTIPLY
	ROWS(1)
	MULTIPLY
	VECTORS(0)
	MULTIPLY
	ROWS(0)
	MULTIPLY
	NEXT_STEP(3)
	DECQ R8
	JNZ  step
	END_PANEL
	DECQ R11
	JNZ  panel
	TILERELEASE
	RET

// Scaled products: the products of a step of 32 columns are exact integers times a
// vector's limbs, and count scale times; the sum of the vector counts offset times.
// The step before is added up while the unit multiplies.

#define CLEAR_C \
	MOVQ   DI, CX; \
	MOVQ   $16, BX; \
	VPXORQ Z4, Z4, Z4; \
clear: \
	VMOVUPS Z4, (CX); \
	VMOVUPS Z4, 64(CX); \
	VMOVUPS Z4, 128(CX); \
	VMOVUPS Z4, 192(CX); \
	ADDQ    $256, CX; \
	DECQ    BX; \
	JNZ     clear

#define STORE_PART \
	MOVQ at_part+120(FP), BX; \
	MOVQ $128, CX; \
	TILESTORE(0, 0, 3, 1); \
	TILESTORE(1, 64, 3, 1); \
	TILESTORE(2, 2048, 3, 1); \
	TILESTORE(3, 2112, 3, 1)

// Of one vector: c = part*scale + c, for 32 rows. CX has the part.
#define SCALE(i) \
	VMOVUPS     ((i)*128)(CX), Z4; \
	VMOVUPS     ((i)*128+64)(CX), Z5; \
	VFMADD213PS ((i)*128)(DI), Z0, Z4; \
	VFMADD213PS ((i)*128+64)(DI), Z1, Z5

#define OFFSET(i) \
	VBROADCASTSS ((i)%8*4)(BX), Z6; \
	VFMADD231PS  Z2, Z6, Z4; \
	VFMADD231PS  Z3, Z6, Z5

#define KEEP(i) \
	VMOVUPS Z4, ((i)*128)(DI); \
	VMOVUPS Z5, ((i)*128+64)(DI)

#define SCALED(i) \
	SCALE(i); \
	KEEP(i)

#define SCALED8(i) \
	SCALED(i); \
	SCALED(i+1); \
	SCALED(i+2); \
	SCALED(i+3); \
	SCALED(i+4); \
	SCALED(i+5); \
	SCALED(i+6); \
	SCALED(i+7)

#define SHIFTED(i) \
	SCALE(i); \
	OFFSET(i); \
	KEEP(i)

#define SHIFTED8(i) \
	SHIFTED(i); \
	SHIFTED(i+1); \
	SHIFTED(i+2); \
	SHIFTED(i+3); \
	SHIFTED(i+4); \
	SHIFTED(i+5); \
	SHIFTED(i+6); \
	SHIFTED(i+7)

// R12 is at the scales of the step, and the offsets; R15 at the sums of vectors 0 to
// 7, and every R14 bytes further on at those of eight more.
#define APPLY_SCALES \
	VMOVUPS (R12), Z0; \
	VMOVUPS 64(R12), Z1; \
	ADDQ    $256, R12; \
	MOVQ    at_part+120(FP), CX; \
	SCALED8(0); \
	SCALED8(8); \
	SCALED8(16); \
	SCALED8(24)

#define APPLY_OFFSETS \
	VMOVUPS (R12), Z0; \
	VMOVUPS 64(R12), Z1; \
	VMOVUPS 128(R12), Z2; \
	VMOVUPS 192(R12), Z3; \
	ADDQ    $256, R12; \
	MOVQ    at_part+120(FP), CX; \
	MOVQ    R15, BX; \
	SHIFTED8(0); \
	ADDQ    R14, BX; \
	SHIFTED8(8); \
	ADDQ    R14, BX; \
	SHIFTED8(16); \
	ADDQ    R14, BX; \
	SHIFTED8(24); \
	ADDQ    $32, R15

// func tileScaled(at product)
TEXT ·tileScaled(SB), NOSPLIT, $0-136
	BEGIN
	MOVQ at_scales+104(FP), R12

panel:
	AHEAD(row, line, asked)
	MOVQ  at_more+56(FP), CX
	TESTQ CX, CX
	JNZ   begin
	CLEAR_C

begin:
	BEGIN_PANEL

step:
	MOVQ $64, CX
	LEAQ (AX)(R10*1), BX
	CLEAR_SUMS
	ROWS(0)
	VECTORS(2)
	MULTIPLY
	VECTORS(1)
	MULTIPLY
	VECTORS(0)
	MULTIPLY
	CMPQ R8, at_steps+40(FP)
	JEQ  store
	APPLY_SCALES

store:
	STORE_PART
	NEXT_STEP(1)
	DECQ R8
	JNZ  step
	APPLY_SCALES
	ADDQ $4096, DI
	LEAQ (R9)(R10*2), R9
	DECQ R11
	JNZ  panel
	TILERELEASE
	VZEROUPPER
	RET

// func tileShifted(at product)
TEXT ·tileShifted(SB), NOSPLIT, $0-136
	BEGIN
	MOVQ at_scales+104(FP), R12
	MOVQ at_octet+128(FP), R14

panel:
	AHEAD(row, line, asked)
	MOVQ  at_more+56(FP), CX
	TESTQ CX, CX
	JNZ   begin
	CLEAR_C

begin:
	BEGIN_PANEL
	MOVQ at_sums+112(FP), R15

step:
	MOVQ $64, CX
	LEAQ (AX)(R10*1), BX
	CLEAR_SUMS
	ROWS(0)
	VECTORS(2)
	MULTIPLY
	VECTORS(1)
	MULTIPLY
	VECTORS(0)
	MULTIPLY
	CMPQ R8, at_steps+40(FP)
	JEQ  store
	APPLY_OFFSETS

store:
	STORE_PART
	NEXT_STEP(1)
	DECQ R8
	JNZ  step
	APPLY_OFFSETS
	ADDQ $4096, DI
	LEAQ (R9)(R10*2), R9
	DECQ R11
	JNZ  panel
	TILERELEASE
	VZEROUPPER
	RET
