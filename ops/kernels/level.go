package kernels

// A level is an instruction set that kernels are written for; each includes
// the ones before it.
type level uint8

const (
	generic level = iota
	avx2
	avx512
)

func (l level) String() string { return [...]string{"generic", "avx2", "avx512"}[l] }

// parseLevel finds the level that a name asks for, and the best one for an
// unknown name.
func parseLevel(name string, best level) level {
	for l := generic; l < best; l++ {
		if l.String() == name {
			return l
		}
	}
	return best
}

// Level names the instruction set in use: generic, avx2 or avx512. It is the
// best that processor and operating system support, or the lesser one that the
// environment variable FPA_CPU names.
func Level() string { return current.String() }
