//go:build amd64 || arm64

package kernels

import "testing"

// eachLevel runs a test on every instruction set of this machine.
func eachLevel(t *testing.T, test func(t *testing.T)) {
	best := current
	defer func() { current = best }()
	for l := generic; l <= detect(); l++ {
		current = l
		t.Run(l.String(), test)
	}
}

func eachLevelB(b *testing.B, bench func(b *testing.B)) {
	best := current
	defer func() { current = best }()
	for l := generic; l <= detect(); l++ {
		current = l
		b.Run(l.String(), bench)
	}
}
