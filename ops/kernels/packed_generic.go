//go:build !amd64

package kernels

// canPack reports whether this processor multiplies packed matrices: there are no
// kernels for it.
func canPack() bool { return false }

func matMulPacked([]float32, int, Matrix, *Input, int, int, *Scratch) {}

func (f *packedForm) packedTiles(int) bool { return false }

func (in *Input) growPairs() {}

func (in *Input) splitPairs(int, int) {}

func widenGroup([]float32, int, Matrix, int, int, int) {}

func turnBytes([]byte) {}
