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
