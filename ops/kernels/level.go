package kernels

// A level is an instruction set that kernels are written for; each includes
// the ones before it. Those of a processor stand in its dispatch file, and their
// names in levelNames.
type level uint8

// generic is plain Go.
const generic level = 0

func (l level) String() string { return levelNames[l] }

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

// Level names the instruction set in use: generic, avx2, avx512, amx or neon. It is
// the best that processor and operating system support, or the lesser one that
// the environment variable FPA_CPU names.
func Level() string { return current.String() }
