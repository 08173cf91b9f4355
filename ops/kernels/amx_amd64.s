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

// Tiles 0 to 3 are the sums: rows 0-15 and 16-31, by vectors 0-15 and 16-31.
// Tiles 4 and 5 are the rows' limb at hand, 6 and 7 the vectors'.

#define ROWS(limb) \
	TILELOAD(4, (limb)*1024, 0, 1); \
	TILELOAD(5, (limb)*1024, 3, 1)

#define VECTORS(limb) \
	TILELOAD(6, (limb)*1024, 2, 1); \
	TILELOAD(7, (limb)*1024, 6, 1)

#define MULTIPLY \
	TILEDOT(0, 4, 6); \
	TILEDOT(1, 4, 7); \
	TILEDOT(2, 5, 6); \
	TILEDOT(3, 5, 7)

// The frame of a product: the arguments to registers, then panels of 32 rows.
#define BEGIN \
	LEAQ tiles<>(SB), AX; \
	TILECONFIG_AX; \
	MOVQ c+0(FP), DI; \
	MOVQ a+8(FP), R9; \
	MOVQ aBlock+16(FP), R10; \
	MOVQ panels+48(FP), R11; \
	MOVQ more+56(FP), R12; \
	MOVQ ahead_at+64(FP), R13

// Besides, each panel asks the cache for what is worked on next: lines of some rows.
#define BEGIN_PANEL \
	MOVQ R9, AX; \
	LEAQ (R9)(R10*1), BX; \
	MOVQ b+24(FP), DX; \
	MOVQ DX, SI; \
	ADDQ bBlock+32(FP), SI; \
	MOVQ steps+40(FP), R8

#define AHEAD(row, line, done) \
	MOVQ ahead_rows+72(FP), CX; \
	MOVQ R13, SI; \
	TESTQ CX, CX; \
	JZ    done; \
row: \
	MOVQ ahead_lines+88(FP), R8; \
	MOVQ SI, BX; \
line: \
	PREFETCHT0 (BX); \
	ADDQ $64, BX; \
	DECQ R8; \
	JNZ  line; \
	ADDQ ahead_stride+80(FP), SI; \
	DECQ CX; \
	JNZ  row; \
	ADDQ ahead_next+96(FP), R13; \
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

// func tileProduct1(c *float32, a *byte, aBlock int, b *byte, bBlock, steps, panels, more int, ahead ahead)
TEXT ·tileProduct1(SB), NOSPLIT, $0-104
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

// func tileProduct2(c *float32, a *byte, aBlock int, b *byte, bBlock, steps, panels, more int, ahead ahead)
TEXT ·tileProduct2(SB), NOSPLIT, $0-104
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

// func tileProduct3(c *float32, a *byte, aBlock int, b *byte, bBlock, steps, panels, more int, ahead ahead)
TEXT ·tileProduct3(SB), NOSPLIT, $0-104
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
