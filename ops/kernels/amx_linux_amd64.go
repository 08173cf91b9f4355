package kernels

import (
	"syscall"

	"golang.org/x/sys/cpu"
)

// hasTiles reports whether the matrix unit may be used: the processor has it for
// bfloat16 numbers, and Linux grants this process its state of 8 KB a thread, which
// it asks to be told of (arch_prctl, ARCH_REQ_XCOMP_PERM, of the tile data). Linux
// refuses, for one, where a thread's signal stack could not hold that state.
func hasTiles() bool {
	const (
		requestPermission = 0x1023
		tileData          = 18
	)
	if !cpu.X86.HasAMXTile || !cpu.X86.HasAMXBF16 {
		return false
	}
	_, _, errno := syscall.RawSyscall(syscall.SYS_ARCH_PRCTL, requestPermission, tileData, 0)
	return errno == 0
}
