#include "textflag.h"
#include "amx_amd64.h"

// Up to eight vectors times packed rows on the matrix unit. Of every block of 32
// columns the integers, which are exact in bfloat16, become a tile (row: a pair of
// columns, column: a row of the matrix), times the three limbs of the vectors (see
// splitPackedAVX512); the product, exact but for its sums, is multiplied by the scales.
//
//
// work is 3584 bytes at a multiple of 4096: two tiles of integers, a kilobyte each, two
// of products, and zeros, none of them at a distance that the processor takes for the
// same place. A tile is written a block before it is multiplied, since what was stored
// just before is slow to read, and products are used a block later, when they are ready.

// Palette 1. Tile 0 are the products of eight vectors, 1 the integers of 16 rows, 2 to
// 4 the limbs.
DATA packedTiles<>+0(SB)/8, $1
DATA packedTiles<>+8(SB)/8, $0
DATA packedTiles<>+16(SB)/8, $0x0040004000400040
DATA packedTiles<>+24(SB)/8, $0x0000000000000040
DATA packedTiles<>+32(SB)/8, $0
DATA packedTiles<>+40(SB)/8, $0
DATA packedTiles<>+48(SB)/8, $0x0000000808081008
DATA packedTiles<>+56(SB)/8, $0
GLOBL packedTiles<>(SB), RODATA|NOPTR, $64

// R8 scales, R9 integers, R10 blocks left, R11 groups left, R12 the products of the
// block before, whose scales are in Z8, R13 y, DX limbs, BX integers' tile, DI products.

#define BEGIN \
	LEAQ  packedTiles<>(SB), AX; \
	TILECONFIG_AX; \
	MOVQ  y+0(FP), R13; \
	MOVQ  w+16(FP), R8; \
	MOVQ  groups+64(FP), R11; \
	MOVQ  mask+80(FP), AX; \
	KMOVW AX, K1; \
	MOVQ  $64, CX

#define BEGIN_GROUP \
	MOVQ   heads+24(FP), R9; \
	ADDQ   R8, R9; \
	MOVQ   x+32(FP), DX; \
	MOVQ   sums+40(FP), SI; \
	MOVQ   blocks+56(FP), R10; \
	MOVQ   work+88(FP), BX; \
	LEAQ   3072(BX), R12; \
	LEAQ   2048(BX), DI; \
	VPXORD Z0, Z0, Z0; \
	VPXORD Z1, Z1, Z1; \
	VPXORD Z2, Z2, Z2; \
	VPXORD Z3, Z3, Z3; \
	VPXORD Z4, Z4, Z4; \
	VPXORD Z5, Z5, Z5; \
	VPXORD Z6, Z6, Z6; \
	VPXORD Z7, Z7, Z7; \
	VPXORD Z8, Z8, Z8

// The columns that half bytes 0 and 4, 2 and 6, 1 and 5, 3 and 7 of the words d belong
// to are pairs 4d to 4d+3.
#define NIBBLES(d) \
	PREFETCHT0 (8192+64*(d))(R9); \
	VMOVDQU32  (64*(d))(R9), Z16; \
	VPSRLD     $8, Z16, Z17; \
	VPSRLD     $4, Z16, Z18; \
	VPSRLD     $12, Z16, Z19; \
	VPERMW     Z31, Z16, Z16; \
	VPERMW     Z31, Z17, Z17; \
	VPERMW     Z31, Z18, Z18; \
	VPERMW     Z31, Z19, Z19; \
	VMOVDQU32  Z16, (256*(d))(BX); \
	VMOVDQU32  Z17, (256*(d)+64)(BX); \
	VMOVDQU32  Z18, (256*(d)+128)(BX); \
	VMOVDQU32  Z19, (256*(d)+192)(BX)

// Columns k and k+2 of bytes; small integers have zeros below bfloat16.
#define BYTE_PAIR(k, to) \
	VPMOVSXBD (16*(k))(R9), Z16; \
	VPMOVSXBD (16*(k)+32)(R9), Z17; \
	VCVTDQ2PS Z16, Z16; \
	VCVTDQ2PS Z17, Z17; \
	VPSRLD    $16, Z16, Z16; \
	VPORD     Z16, Z17, Z17; \
	VMOVDQU32 Z17, (64*(to))(BX)

#define BYTES(e) \
	PREFETCHT0 (8192+64*(e))(R9); \
	BYTE_PAIR(4*(e), 4*((e)&3)+2*((e)>>2)); \
	BYTE_PAIR(4*(e)+1, 4*((e)&3)+2*((e)>>2)+1)

#define PRODUCT \
	XORQ $512, DI; \
	TILEZERO(0); \
	TILELOAD(1, 0, 0, 1); \
	TILELOAD(2, 1024, 2, 1); \
	TILELOAD(3, 512, 2, 1); \
	TILELOAD(4, 0, 2, 1); \
	TILEDOT(0, 2, 1); \
	TILEDOT(0, 3, 1); \
	TILEDOT(0, 4, 1); \
	TILESTORE(0, 0, 7, 1)

// Adds the products at R12.
#define ADD_PRODUCTS \
	VFMADD231PS (R12), Z8, Z0; \
	VFMADD231PS 64(R12), Z8, Z1; \
	VFMADD231PS 128(R12), Z8, Z2; \
	VFMADD231PS 192(R12), Z8, Z3; \
	VFMADD231PS 256(R12), Z8, Z4; \
	VFMADD231PS 320(R12), Z8, Z5; \
	VFMADD231PS 384(R12), Z8, Z6; \
	VFMADD231PS 448(R12), Z8, Z7

#define SCALES \
	PREFETCHT0 8192(R8); \
	VCVTPH2PS  (R8), Z8

#define OFFSETS \
	VCVTPH2PS        32(R8), Z9; \
	VFMADD231PS.BCST (SI), Z9, Z0; \
	VFMADD231PS.BCST 4(SI), Z9, Z1; \
	VFMADD231PS.BCST 8(SI), Z9, Z2; \
	VFMADD231PS.BCST 12(SI), Z9, Z3; \
	VFMADD231PS.BCST 16(SI), Z9, Z4; \
	VFMADD231PS.BCST 20(SI), Z9, Z5; \
	VFMADD231PS.BCST 24(SI), Z9, Z6; \
	VFMADD231PS.BCST 28(SI), Z9, Z7; \
	ADDQ             $32, SI

#define NEXT(head) \
	MOVQ DI, R12; \
	ADDQ $(head), R8; \
	ADDQ $1536, DX

// Goes on to the tile and the integers of the next block; AX is that of this one.
#define NEXT_TILE(integers) \
	MOVQ BX, AX; \
	XORQ $1024, BX; \
	ADDQ $(integers), R9

// Stores the sums of vector t, goes on to the next or is done.
#define STORE(sum) \
	VMOVUPS sum, K1, (R12); \
	DECQ    AX; \
	JZ      stored; \
	ADDQ    ldy+8(FP), R12

#define END_GROUP \
	ADD_PRODUCTS; \
	MOVQ R13, R12; \
	MOVQ n+72(FP), AX; \
	STORE(Z0); \
	STORE(Z1); \
	STORE(Z2); \
	STORE(Z3); \
	STORE(Z4); \
	STORE(Z5); \
	STORE(Z6); \
	STORE(Z7)

// func packedTilesNibbles(y *float32, ldy int, w *byte, heads int, x *byte, sums *float32, table *uint16, blocks, groups, n, mask int, work *byte)
TEXT ·packedTilesNibbles(SB), NOSPLIT, $0-96
	BEGIN
	MOVQ      table+48(FP), AX
	VMOVDQU32 (AX), Z31

group:
	BEGIN_GROUP
	NIBBLES(0)
	NIBBLES(1)
	NIBBLES(2)
	NIBBLES(3)

block:
	NEXT_TILE(256)
	NIBBLES(0)
	NIBBLES(1)
	NIBBLES(2)
	NIBBLES(3)
	PRODUCT
	ADD_PRODUCTS
	SCALES
	NEXT(32)
	DECQ R10
	JNZ  block
	END_GROUP

stored:
	ADDQ $64, R13
	MOVQ R9, R8
	DECQ R11
	JNZ  group
	TILERELEASE
	VZEROUPPER
	RET

// func packedTilesNibblesOffset(y *float32, ldy int, w *byte, heads int, x *byte, sums *float32, table *uint16, blocks, groups, n, mask int, work *byte)
TEXT ·packedTilesNibblesOffset(SB), NOSPLIT, $0-96
	BEGIN
	MOVQ      table+48(FP), AX
	VMOVDQU32 (AX), Z31

group:
	BEGIN_GROUP
	NIBBLES(0)
	NIBBLES(1)
	NIBBLES(2)
	NIBBLES(3)

block:
	NEXT_TILE(256)
	NIBBLES(0)
	NIBBLES(1)
	NIBBLES(2)
	NIBBLES(3)
	PRODUCT
	ADD_PRODUCTS
	SCALES
	OFFSETS
	NEXT(64)
	DECQ R10
	JNZ  block
	END_GROUP

stored:
	ADDQ $64, R13
	MOVQ R9, R8
	DECQ R11
	JNZ  group
	TILERELEASE
	VZEROUPPER
	RET

// func packedTilesBytes(y *float32, ldy int, w *byte, heads int, x *byte, sums *float32, table *uint16, blocks, groups, n, mask int, work *byte)
TEXT ·packedTilesBytes(SB), NOSPLIT, $0-96
	BEGIN

group:
	BEGIN_GROUP
	BYTES(0)
	BYTES(1)
	BYTES(2)
	BYTES(3)
	BYTES(4)
	BYTES(5)
	BYTES(6)
	BYTES(7)

block:
	NEXT_TILE(512)
	BYTES(0)
	BYTES(1)
	BYTES(2)
	BYTES(3)
	BYTES(4)
	BYTES(5)
	BYTES(6)
	BYTES(7)
	PRODUCT
	ADD_PRODUCTS
	SCALES
	NEXT(32)
	DECQ R10
	JNZ  block
	END_GROUP

stored:
	ADDQ $64, R13
	MOVQ R9, R8
	DECQ R11
	JNZ  group
	TILERELEASE
	VZEROUPPER
	RET
