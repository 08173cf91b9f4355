package cpu

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/firstpassage/fpa/ops/kernels"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/internal/finite"
	"github.com/firstpassage/fpa/runtime/model"
)

// pass takes rows through the model, a row being a token of one of several
// sequences: matrices are multiplied with all rows at once, and each sequence
// attends to its own cache. An engine has one, whose memory grows once to the
// largest pass.
//
// The rows of a sequence follow each other. What is computed of a row does not
// depend on the other rows, but for the kernel that their number calls for; see
// kernels.MatMul.
type pass struct {
	e *Engine
	n int // rows
	buffers

	all    []sequence  // of the batch under way
	seqs   []*sequence // those with rows in this pass
	rows   []row
	logits []logit

	// Of the round under way; see parallel.
	task      func(p *pass, worker, task int)
	layer     int
	input     kernels.Input
	inputRows int
	before    func(p *pass, row int) // makes a row of the input
	jobs      []job
	pieces    []piece

	odd   atomic.Bool  // some number of the layer is none that attention can work with
	apart []cache.Feed // of groups that several workers share
}

// sequence is the part of a batch that is one session's.
type sequence struct {
	s     *Session
	part  *engine.Part
	ids   []int32 // to be fed
	last  int     // position of the last of them
	row   int     // the first row in this pass
	n     int     // rows in this pass
	first int     // position of the first row

	tokens cache.Tokens // the rows, for the groups
}

// row says what a row is.
type row struct {
	seq *sequence
	t   int // the token of seq.tokens
}

// logit is a row whose logits are wanted.
type logit struct {
	seq *sequence
	row int
}

// buffers hold the activations of the rows; the comments give what one row has.
type buffers struct {
	x, h, proj     []float32 // [D]
	q              []float32 // [H*d]
	k, v           []float32 // [Hkv*d], [Hkv*dv]
	kRaw, vRaw     []float32 // before the shift
	kMix, vMix     []float32 // [Hkv], the shift's mix
	field, level   []float32 // [Hf], relative to the walk's base
	low            []float32 // [Hf], of the key itself; overwritten by attention
	moved          []float32 // [Hf], how far the base moved at this token
	out, gate      []float32 // [H*dv]
	ffnGate, ffnUp []float32 // [F]
	sin, cos       []float32 // [RopeDim/2], of the position
	vocab          []float32 // [V], the logits of up to logitRows rows
}

// resize makes room for n rows.
func (p *pass) resize(n int) {
	m := p.e.model
	grow := func(v *[]float32, width int) {
		if cap(*v) < n*width {
			*v = make([]float32, n*width)
		}
		*v = (*v)[:n*width]
	}
	p.n = n
	for _, v := range []*[]float32{&p.x, &p.h, &p.proj} {
		grow(v, m.Hidden)
	}
	grow(&p.q, m.Heads*m.KeyDim)
	grow(&p.k, m.KVHeads*m.KeyDim)
	grow(&p.v, m.KVHeads*m.ValDim)
	if m.KeyShift {
		grow(&p.kRaw, m.KVHeads*m.KeyDim)
		grow(&p.kMix, m.KVHeads)
	}
	if m.ValueShift {
		grow(&p.vRaw, m.KVHeads*m.ValDim)
		grow(&p.vMix, m.KVHeads)
	}
	for _, v := range []*[]float32{&p.field, &p.level, &p.low, &p.moved} {
		grow(v, m.FieldHeads)
	}
	grow(&p.out, m.Heads*m.ValDim)
	if m.OutputGate != model.GateNone {
		grow(&p.gate, m.Heads*m.ValDim)
	}
	grow(&p.ffnGate, m.FeedForward)
	grow(&p.ffnUp, m.FeedForward)
	grow(&p.sin, len(m.InvFreq))
	grow(&p.cos, len(m.InvFreq))
}

// fill gives the pass its rows: of each sequence, in order, as many as there is
// room for. It says whether any is left to run.
func (p *pass) fill() bool {
	m := p.e.model
	p.seqs, p.rows = p.seqs[:0], p.rows[:0]
	for i := range p.all {
		q := &p.all[i]
		if q.part.Err != nil || len(q.ids) == 0 {
			continue
		}
		q.row, q.n, q.first = len(p.rows), min(len(q.ids), p.e.chunk-len(p.rows)), q.s.Len()
		if q.n == 0 {
			break
		}
		for t := range q.n {
			p.rows = append(p.rows, row{q, t})
		}
		p.seqs = append(p.seqs, q)
	}
	if len(p.rows) == 0 {
		return false
	}
	p.resize(len(p.rows))
	for _, q := range p.seqs {
		of := func(v []float32, width int) []float32 { return v[q.row*width : (q.row+q.n)*width] }
		q.tokens = cache.Tokens{
			N: q.n, Query: of(p.q, m.Heads*m.KeyDim), Key: of(p.k, m.KVHeads*m.KeyDim), Value: of(p.v, m.KVHeads*m.ValDim),
			Field: of(p.field, m.FieldHeads), Level: of(p.level, m.FieldHeads), Low: of(p.low, m.FieldHeads), Moved: of(p.moved, m.FieldHeads),
			Out: of(p.out, m.Heads*m.ValDim),
		}
	}
	return true
}

// run takes the rows through the model and passes the logits on. Errors are left
// with the parts of the batch that they concern.
func (p *pass) run() {
	m := p.e.model
	for _, q := range p.seqs {
		q.s.cache.Begin(q.n)
	}
	p.embed()
	for p.layer = range m.Layers {
		p.attention()
		p.feedForward()
	}
	p.logits = p.logits[:0]
	for _, q := range p.seqs {
		if q.part.Err != nil {
			continue
		}
		q.s.cache.Advance(q.n)
		for t := range q.n {
			if q.wants(q.first + t) {
				p.logits = append(p.logits, logit{q, q.row + t})
			}
		}
		q.ids = q.ids[q.n:]
	}
	for rest := p.logits; len(rest) > 0; {
		k := min(len(rest), logitRows)
		p.output(rest[:k])
		rest = rest[k:]
	}
}

// wants says whether the logits of a position are asked for.
func (q *sequence) wants(position int) bool {
	if q.part.Want == nil {
		return position == q.last
	}
	return q.part.Want(position)
}

// fail ends a sequence with an error; the rows that it has in this pass are of no
// further meaning.
func (q *sequence) fail(err error) {
	if q.part.Err == nil {
		q.part.Err = err
	}
}

// embed looks the rows of the tokens up, and how far each position turns.
func (p *pass) embed() {
	m, d := p.e.model, p.e.model.Hidden
	rowBytes, half := len(m.Embed.Data)/m.VocabSize, len(m.InvFreq)
	for r, row := range p.rows {
		id := int(row.seq.ids[row.t])
		if err := quant.Decode(p.x[r*d:(r+1)*d], m.Embed.Type, m.Embed.Data[id*rowBytes:(id+1)*rowBytes]); err != nil {
			row.seq.fail(fmt.Errorf("token_embd.weight, row %d: %w", id, err))
		}
		position := float64(row.seq.first + row.t)
		for i, f := range m.InvFreq {
			sin, cos := math.Sincos(position * f)
			p.sin[r*half+i], p.cos[r*half+i] = float32(sin), float32(cos)
		}
	}
}

// logitRows is the number of rows whose logits are computed in one pass over the
// output matrix.
const logitRows = 32

// output computes the logits of some rows and passes them on.
func (p *pass) output(rows []logit) {
	m, d := p.e.model, p.e.model.Hidden
	if need := len(rows) * m.VocabSize; cap(p.vocab) < need {
		p.vocab = make([]float32, need)
	}
	for i, l := range rows {
		kernels.RMSNorm(p.h[i*d:(i+1)*d], p.x[l.row*d:(l.row+1)*d], m.FinalNorm, m.NormEps)
	}
	logits := p.vocab[:len(rows)*m.VocabSize]
	p.project(len(rows), nil, p.h, d, job{l: m.Output, y: logits})
	for i, l := range rows {
		if l.seq.part.Err != nil {
			continue
		}
		row, position := logits[i*m.VocabSize:(i+1)*m.VocabSize], l.seq.first+l.row-l.seq.row
		if !within(row, math.MaxFloat32) {
			if err := finite.Logits(row, position); err != nil {
				l.seq.fail(err)
				continue
			}
		}
		if err := l.seq.part.Each(position, row); err != nil {
			l.seq.fail(err)
		}
	}
}

// exceeds is the index of the first element whose magnitude is not at most most;
// -1 without one.
func exceeds(x []float32, most float64) int {
	if within(x, most) {
		return -1 // nearly always
	}
	return slices.IndexFunc(x, func(v float32) bool { return !(math.Abs(float64(v)) <= most) })
}

// within says that no magnitude exceeds most; false when it does not know.
func within(x []float32, most float64) bool {
	return float64(kernels.Dot(x, x)) <= min(most*most, math.MaxFloat32)
}
