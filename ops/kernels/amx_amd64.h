// The matrix unit (AMX). Go's assembler does not know its instructions, so they
// are spelt out, as GNU as does:
//
//	ldtilecfg (%rax)                        c4 e2 78 49 00
//	tilerelease                             c4 e2 78 49 c0
//	tilezero %tmm3                          c4 e2 7b 49 d8
//	tileloadd 0x1000(%rdx,%rcx,1), %tmm4    c4 e2 7b 4b a4 0a 00 10 00 00
//	tilestored %tmm2, 0x1000(%rdi,%rcx,1)   c4 e2 7a 4b 94 0f 00 10 00 00
//	tdpbf16ps %tmm7, %tmm5, %tmm3           c4 e2 42 5c dd
//
// TestAMXEncodings compares the macros with this table. base and index are register
// numbers: AX 0, CX 1, DX 2, BX 3, SI 6, DI 7.

#define TILECONFIG_AX \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x78; BYTE $0x49; BYTE $0x00

#define TILERELEASE \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x78; BYTE $0x49; BYTE $0xc0

#define TILEZERO(t) \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x49; BYTE $(0xc0 | (t)<<3)

// Tile t is read from, or written to, rows index bytes apart from base+disp on.
#define TILELOAD(t, disp, base, index) \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x4b; BYTE $(0x84 | (t)<<3); BYTE $((index)<<3 | (base)); LONG $(disp)

#define TILESTORE(t, disp, base, index) \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7a; BYTE $0x4b; BYTE $(0x84 | (t)<<3); BYTE $((index)<<3 | (base)); LONG $(disp)

// c += a b, of pairs of bfloat16 numbers: TDPBF16PS.
#define TILEDOT(c, a, b) \
	BYTE $0xc4; BYTE $0xe2; BYTE $(0x02 | (15-(b))<<3); BYTE $0x5c; BYTE $(0xc0 | (c)<<3 | (a))
