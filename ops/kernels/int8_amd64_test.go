package kernels

import "testing"

// eachInt8Level is eachLevel, and AVX-512 without the instructions for bytes.
func eachInt8Level(t *testing.T, test func(t *testing.T)) {
	eachLevel(t, test)
	if detect() >= avx512 && vnni {
		vnni = false
		defer func() { vnni = true }()
		t.Run("without VNNI", test)
	}
}
