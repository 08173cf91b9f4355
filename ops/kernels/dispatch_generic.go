//go:build !amd64 && !arm64

package kernels

// current is the level in use: there is no assembly for this processor yet.
const current = generic

var levelNames = [...]string{"generic"}

func dot(a, b []float32) float32                  { return dotGo(a, b) }
func axpy(y []float32, a float32, x []float32)    { axpyGo(y, a, x) }
func add(y, x []float32)                          { addGo(y, x) }
func mul(y, x []float32)                          { mulGo(y, x) }
func scale(y []float32, a float32)                { scaleGo(y, a) }
func scaleMul(y, x, w []float32, a float32)       { scaleMulGo(y, x, w, a) }
func addConst(x []float32, a float32)             { addConstGo(x, a) }
func maximum(x []float32) float32                 { return maximumGo(x) }
func expSum(s []float32, m float32) float32       { return expSumGo(s, m) }
func activate(kind Activation, y []float32)       { activateGo(kind, y) }
func updateLow(low []float32, field float32)      { updateLowGo(low, field) }
func keyDotsF32(s, q, k []float32, scale float32) { keyDotsF32Go(s, q, k, scale) }
func accumulateF16(y, p []float32, v []uint16)    { accumulateF16Go(y, p, v) }
func accumulateF32(y, p, v []float32)             { accumulateF32Go(y, p, v) }

func keyDotsF16(s, q []float32, k []uint16, scale float32) { keyDotsF16Go(s, q, k, scale) }

func penalise(s, low, level []float32, field, slope float32) float32 {
	return penaliseGo(s, low, level, field, slope)
}

func matMul(y []float32, ldy int, w Matrix, in *Input, r0, r1 int, s *Scratch) {
	matMulGo(y, ldy, w, in, r0, r1, s)
}

func mulAdd(y []float32, ldy int, x []float32, ldx, n int, w []float32, ldw, k, width int, add bool) {
	mulAddGo(y, ldy, x, ldx, n, w, ldw, k, width, add)
}

func pause() {}
