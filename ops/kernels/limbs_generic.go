//go:build !amd64

package kernels

// formsFor is what MatMul of the matrix and n vectors reads beside the vectors.
func formsFor(Matrix, int) forms { return 0 }

func (in *Input) growLimbs()            {}
func (in *Input) splitVectors(int, int) {}
