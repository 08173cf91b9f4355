//go:build !amd64 && !arm64

package kernels

import "testing"

// eachLevel runs a test on every instruction set of this machine.
func eachLevel(t *testing.T, test func(t *testing.T)) { t.Run(Level(), test) }

func eachLevelB(b *testing.B, bench func(b *testing.B)) { b.Run(Level(), bench) }
