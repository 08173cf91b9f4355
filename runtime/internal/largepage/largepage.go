// Package largepage asks the operating system to back memory with its large pages:
// whoever reads hundreds of megabytes a token spends a good part of its time on
// translating addresses otherwise.
package largepage

// Size is that of a large page.
const Size = 2 << 20
