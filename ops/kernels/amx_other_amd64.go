//go:build amd64 && !linux

package kernels

// hasTiles reports whether the matrix unit may be used: how the system is asked
// for it is known for Linux alone.
func hasTiles() bool { return false }
