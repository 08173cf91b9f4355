package kernels

// Input is a number of vectors of the same length that one or several matrices
// are multiplied with, together with what kernels derive from them: forms that
// are made once and then read by every matrix and every worker. Set, Need and
// Prepare make one ready for [MatMul], in this order:
//
//	var in Input
//	in.Set(x, ld, n, cols)
//	in.Need(w)         // for every matrix
//	in.Prepare(0, n)   // or in parts, by several workers
//	MatMul(y, ldy, w, &in, 0, w.Rows, &scratch)
//
// The zero value holds no vectors. Buffers grow once to the size that the inputs
// need.
type Input struct {
	x       []float32
	ld      int // from one vector to the next
	n, cols int
	forms   forms // those that Prepare fills

	sums  []float32 // see sumBlocks
	limbs []byte    // see splitVectors
	pairs []byte    // see splitPairs

	records []record // see roundVectors
}

// forms is a set of derived forms of vectors.
type forms uint8

const (
	formSums    forms = 1 << iota
	formLimbs         // for the matrix unit
	formPairs         // for the matrix unit and packed matrices
	formRecords       // rounded to bytes
)

// PrepareStep is the number of vectors that Prepare works on at a time.
const PrepareStep = 32

// Set makes the input n vectors of cols elements, the first elements of which
// lie ld apart in x. x is kept, not copied. Nothing is derived from it yet.
func (in *Input) Set(x []float32, ld, n, cols int) {
	size := 0
	if n > 0 {
		size = (n-1)*ld + cols
	}
	in.x, in.ld, in.n, in.cols, in.forms = x[:size], ld, n, cols, 0
}

// Need notes that the input will be multiplied with the matrix, and makes room
// for the forms that this takes.
func (in *Input) Need(w Matrix) {
	in.forms |= in.formsFor(w)
	if in.forms&formSums != 0 {
		if need := in.sumsLen(); cap(in.sums) < need {
			in.sums = make([]float32, need)
		} else {
			in.sums = in.sums[:need]
		}
	}
	if in.forms&formLimbs != 0 {
		in.growLimbs()
	}
	if in.forms&formPairs != 0 {
		in.growPairs()
	}
	if in.forms&formRecords != 0 {
		in.growRecords()
	}
}

// formsFor is what MatMul of the matrix reads beside the vectors.
func (in *Input) formsFor(w Matrix) forms {
	if w.roundsTo() != nil {
		return formRecords
	}
	if f := formsFor(w, in.n); f != 0 || w.packed.form == nil {
		return f
	}
	return w.packed.form.forms(in.n)
}

// Derives reports whether Prepare has anything to do.
func (in *Input) Derives() bool { return in.forms != 0 }

// Prepare derives the forms that are needed from vectors t0 to t1. t0 is a
// multiple of PrepareStep; t1 is one too, or the number of vectors. Workers may
// prepare different vectors at a time; all are prepared before MatMul is called.
func (in *Input) Prepare(t0, t1 int) {
	if in.forms&formSums != 0 {
		in.sumBlocks(t0, t1)
	}
	if in.forms&formLimbs != 0 {
		in.splitVectors(t0, t1)
	}
	if in.forms&formPairs != 0 {
		in.splitPairs(t0, t1)
	}
	if in.forms&formRecords != 0 {
		in.roundVectors(t0, t1)
	}
}

// vector is vector t.
func (in *Input) vector(t int) []float32 {
	return in.x[t*in.ld : t*in.ld+in.cols]
}
