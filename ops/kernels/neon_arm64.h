// Instructions of AArch64's Advanced SIMD as words: those that Go's assembler lacks,
// and those that the macros of neon_arm64.s use by number. Operands are register
// numbers, the destination first as in Arm's manual: FADD(0, 1, 2) is FADD V0.4S,
// V1.4S, V2.4S. TestNEON holds every one against a disassembler.

#define ZERO(d)         WORD $(0x6F00E400 | (d))
#define FADD(d, n, m)   WORD $(0x4E20D400 | (m)<<16 | (n)<<5 | (d))
#define FSUB(d, n, m)   WORD $(0x4EA0D400 | (m)<<16 | (n)<<5 | (d))
#define FMUL(d, n, m)   WORD $(0x6E20DC00 | (m)<<16 | (n)<<5 | (d))
#define FDIV(d, n, m)   WORD $(0x6E20FC00 | (m)<<16 | (n)<<5 | (d))
#define FMAX(d, n, m)   WORD $(0x4E20F400 | (m)<<16 | (n)<<5 | (d))
#define FMIN(d, n, m)   WORD $(0x4EA0F400 | (m)<<16 | (n)<<5 | (d))
#define FADDP(d, n, m)  WORD $(0x6E20D400 | (m)<<16 | (n)<<5 | (d))
#define FMAXV(d, n)     WORD $(0x6E30F800 | (n)<<5 | (d))
#define FNEG(d, n)      WORD $(0x6EA0F800 | (n)<<5 | (d))

// d += n*m and d -= n*m, rounded once; with all of m, or with its lane 0.
#define FMLA(d, n, m)   WORD $(0x4E20CC00 | (m)<<16 | (n)<<5 | (d))
#define FMLS(d, n, m)   WORD $(0x4EA0CC00 | (m)<<16 | (n)<<5 | (d))
#define FMLA0(d, n, m)  WORD $(0x4F801000 | (m)<<16 | (n)<<5 | (d))

// Comparisons: ones where n > m or n >= m, zeros elsewhere and for NaN.
#define FCMGT(d, n, m)  WORD $(0x6EA0E400 | (m)<<16 | (n)<<5 | (d))
#define FCMGE(d, n, m)  WORD $(0x6E20E400 | (m)<<16 | (n)<<5 | (d))

// d's bits become n's where m has ones; and d = n & m.
#define BIT(d, n, m)    WORD $(0x6EA01C00 | (m)<<16 | (n)<<5 | (d))
#define AND(d, n, m)    WORD $(0x4E201C00 | (m)<<16 | (n)<<5 | (d))

// The lower and the upper four of eight binary16 numbers, widened.
#define FCVTL(d, n)     WORD $(0x0E217800 | (n)<<5 | (d))
#define FCVTL2(d, n)    WORD $(0x4E217800 | (n)<<5 | (d))

// To the nearest whole number, ties to the even one, as float32 and as int32.
#define FRINTN(d, n)    WORD $(0x4E218800 | (n)<<5 | (d))
#define FCVTNS(d, n)    WORD $(0x4E21A800 | (n)<<5 | (d))

// Int32 lanes: sum, difference, half (rounded down), times 2^23.
#define ADD4(d, n, m)   WORD $(0x4EA08400 | (m)<<16 | (n)<<5 | (d))
#define SUB4(d, n, m)   WORD $(0x6EA08400 | (m)<<16 | (n)<<5 | (d))
#define SSHR1(d, n)     WORD $(0x4F3F0400 | (n)<<5 | (d))
#define SHL23(d, n)     WORD $(0x4F375400 | (n)<<5 | (d))
