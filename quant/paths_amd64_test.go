package quant

import "testing"

// eachPath runs a test in plain Go and with the assembly, where there is one.
func eachPath(t *testing.T, test func(t *testing.T)) {
	best := vector
	defer func() { vector = best }()
	vector = false
	t.Run("generic", test)
	if vector = best; best {
		t.Run("avx2", test)
	}
}
