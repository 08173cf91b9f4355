//go:build !linux

package largepage

// Advise does nothing here.
func Advise([]byte) {}
