package kernels

import "testing"

func TestParseLevel(t *testing.T) {
	for _, test := range []struct {
		name string
		best level
		want level
	}{
		{"", avx512, avx512}, {"", amx, amx}, {"amx", amx, amx}, {"avx512", amx, avx512}, {"", generic, generic}, {"generic", avx512, generic},
		{"avx2", avx512, avx2}, {"avx512", avx2, avx2}, {"avx2", generic, generic}, {"neon", avx2, avx2},
	} {
		if got := parseLevel(test.name, test.best); got != test.want {
			t.Errorf("FPA_CPU=%s on %s gives %s, want %s", test.name, test.best, got, test.want)
		}
	}
}
