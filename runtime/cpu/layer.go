package cpu

import (
	"math"

	"github.com/firstpassage/fpa/ops/kernels"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/internal/finite"
	"github.com/firstpassage/fpa/runtime/model"
)

// This file takes the rows of a pass through one layer.

// weights are those of the layer under way.
func (p *pass) weights() *model.Layer { return &p.e.model.Layers[p.layer] }

// attention adds the attention part of the layer to x. The order is: projection,
// shift, QK-norm, RoPE, field and level, attention, output norm, output gate,
// output projection.
func (p *pass) attention() {
	m, l := p.e.model, p.weights()
	k, v := p.k, p.v
	if m.KeyShift {
		k = p.kRaw
	}
	if m.ValueShift {
		v = p.vRaw
	}
	var list [8]job
	jobs := append(list[:0], job{l: l.Q, y: p.q}, job{l: l.K, y: k}, job{l: l.V, y: v})
	if m.OutputGate != model.GateNone {
		jobs = append(jobs, job{l: l.Gate, y: p.gate})
	}
	if m.KeyShift {
		jobs = append(jobs, job{l: l.KShift, y: p.kMix})
	}
	if m.ValueShift {
		jobs = append(jobs, job{l: l.VShift, y: p.vMix})
	}
	if l.Field.Present() {
		jobs = append(jobs, job{l: l.Field, y: p.field})
	}
	if l.Level.Present() {
		jobs = append(jobs, job{l: l.Level, y: p.level})
	}
	p.project(p.n, (*pass).attentionNorm, p.h, m.Hidden, jobs...)
	p.heads()
	p.attend()
	p.project(p.n, p.finisher(), p.out, m.Heads*m.ValDim, job{l: l.O, y: p.proj, sum: p.x})
}

// feedForward adds the feed-forward part of the layer to x.
func (p *pass) feedForward() {
	m, l := p.e.model, p.weights()
	p.project(p.n, (*pass).feedForwardNorm, p.h, m.Hidden, job{l: l.FFNGate, y: p.ffnGate, times: l.FFNUp, up: p.ffnUp})
	p.project(p.n, nil, p.ffnGate, m.FeedForward, job{l: l.FFNDown, y: p.proj, sum: p.x})
}

func (p *pass) attentionNorm(r int)   { p.normalise(r, p.weights().AttnNorm) }
func (p *pass) feedForwardNorm(r int) { p.normalise(r, p.weights().FFNNorm) }

// normalise writes the norm of row r of x to h.
func (p *pass) normalise(r int, weight []float32) {
	d := p.e.model.Hidden
	kernels.RMSNorm(p.h[r*d:(r+1)*d], p.x[r*d:(r+1)*d], weight, p.e.model.NormEps)
}

// finisher is what is done to the output of attention before its projection, nil
// for nothing.
func (p *pass) finisher() func(p *pass, r int) {
	if m := p.e.model; m.OutputNorm || m.OutputGate != model.GateNone {
		return (*pass).finish
	}
	return nil
}

// finish applies the output norm and the output gate to row r.
func (p *pass) finish(r int) {
	m := p.e.model
	width, dv := m.Heads*m.ValDim, m.ValDim
	out := p.out[r*width : (r+1)*width]
	if m.OutputNorm {
		for h := range m.Heads {
			head := out[h*dv : (h+1)*dv]
			kernels.RMSNorm(head, head, p.weights().OutputNorm[h*dv:(h+1)*dv], m.NormEps)
		}
	}
	if m.OutputGate != model.GateNone {
		kernels.GatedMul(kernelActivation(m.OutputGate), out, p.gate[r*width:(r+1)*width], out)
	}
}

// job is one projection: y = W x + bias of the rows of the input.
type job struct {
	l model.Linear
	y []float32 // [n, out]

	// What follows at once where a stretch of y is there, if anything:
	times model.Linear // y = activation(y) * (the projection by times, which is put into up)
	up    []float32
	sum   []float32 // y is added to it

	tasks int
	tile  int // a task has a multiple of so many rows
}

// rows are the rows of W that are one task: whole tiles, evenly.
func (j *job) rows(task int) (lo, hi int) {
	rows := j.l.W.Rows
	tiles := (rows + j.tile - 1) / j.tile
	return task * tiles / j.tasks * j.tile, min((task+1)*tiles/j.tasks*j.tile, rows)
}

// The number of rows that kernels work on at a time, or a multiple of it, for few and
// for many vectors.
const fewTile, manyTile = 16, 32

// project makes the rows of x [n, cols] by before, unless that is nil, and computes
// several projections of them.
func (p *pass) project(n int, before func(p *pass, row int), x []float32, cols int, jobs ...job) {
	p.jobs = append(p.jobs[:0], jobs...)
	p.input.Set(x, cols, n, cols)
	p.inputRows = n
	tasks, work := 0, 0
	for i := range p.jobs {
		j := &p.jobs[i]
		p.input.Need(j.l.W)
		rows := j.l.W.Rows
		if j.up != nil {
			p.input.Need(j.times.W)
			rows += j.times.W.Rows
		}
		work += n * rows * cols
		j.tile = fewTile
		if n >= kernels.ManyVectors {
			j.tile = manyTile
		}
		j.tasks = p.e.tasksOf(n, rows, rows*j.l.W.RowBytes())
		tasks += j.tasks
	}
	if p.before = before; before != nil || p.input.Derives() {
		p.parallel((n+kernels.PrepareStep-1)/kernels.PrepareStep, n*cols, (*pass).prepareTask)
	}
	p.parallel(tasks, work, (*pass).projectTask)
}

// prepareTask makes the input ready from row task * PrepareStep on.
func (p *pass) prepareTask(_, task int) {
	from := task * kernels.PrepareStep
	to := min(from+kernels.PrepareStep, p.inputRows)
	for r := from; r < to && p.before != nil; r++ {
		p.before(p, r)
	}
	p.input.Prepare(from, to)
}

// projectTask computes some elements of one projection for all rows.
func (p *pass) projectTask(worker, task int) {
	i := 0
	for task >= p.jobs[i].tasks {
		task -= p.jobs[i].tasks
		i++
	}
	j := &p.jobs[i]
	width := j.l.W.Rows
	lo, hi := j.rows(task)
	p.multiply(j.y, j.l, lo, hi, worker)
	if j.up != nil {
		p.multiply(j.up, j.times, lo, hi, worker)
	}
	for r := range p.inputRows {
		y := j.y[r*width+lo : r*width+hi]
		if j.up != nil {
			kernels.GatedMul(kernelActivation(p.e.model.Activation), y, y, j.up[r*width+lo:r*width+hi])
		}
		if j.sum != nil {
			kernels.Add(j.sum[r*width+lo:r*width+hi], y)
		}
	}
}

// multiply computes elements lo to hi-1 of a projection for all rows.
func (p *pass) multiply(y []float32, l model.Linear, lo, hi, worker int) {
	width := l.W.Rows
	kernels.MatMul(y, width, l.W, &p.input, lo, hi, &p.e.workers[worker].matrix)
	for r := 0; r < p.inputRows && l.Bias != nil; r++ {
		kernels.Add(y[r*width+lo:r*width+hi], l.Bias[lo:hi])
	}
}

// tasksOf is the number of tasks that so many rows of so many bytes are for n
// vectors: as many as keep a thread that is slower than the others, or was
// interrupted, from letting them wait long, and so few that memory is read in long
// runs.
func (e *Engine) tasksOf(n, rows, bytes int) int {
	const (
		each      = 4        // tasks a thread
		few       = 16       // vectors for which the time goes into reading the rows
		taskBytes = 96 << 10 // some ten microseconds
		least     = 32       // rows
	)
	tasks := each * e.Threads()
	switch {
	case n <= few:
		tasks = max(tasks, bytes/taskBytes)
	case n >= kernels.ManyVectors: // each task reads all vectors
		tasks /= 2
	}
	return max(1, min(tasks, rows/least))
}

// smallWork is the number of multiplications below which one thread does it all,
// where they are done by vectors; scalarWork is what one of a plain loop counts.
const (
	smallWork  = 1 << 15
	scalarWork = 8
)

// parallel runs tasks on all threads, or here when there is little to do. What a
// task computes must not depend on which others ran before it.
func (p *pass) parallel(tasks, work int, task func(p *pass, worker, task int)) {
	if work < smallWork {
		for i := range tasks {
			task(p, 0, i)
		}
		return
	}
	p.task = task
	p.e.pool.run(tasks, p)
}

// do is a task of the pool.
func (p *pass) do(worker, task int) { p.task(p, worker, task) }

// heads makes queries, keys, values, fields and levels of the projections. It fails
// sequences with numbers that are not finite, or too large for the cache: what a
// softmax makes of them can look like a result.
func (p *pass) heads() {
	m := p.e.model
	p.odd.Store(false)
	for _, q := range p.seqs {
		q.s.probe.resize(q.n * m.FieldHeads)
	}
	work := p.n * ((m.Heads+m.KVHeads)*m.KeyDim + 10*m.FieldHeads)
	p.parallel(p.n+len(p.seqs)*m.FieldHeads, work*scalarWork, (*pass).headsTask)
	for _, q := range p.seqs {
		if last := (q.row + q.n - 1); m.KeyShift {
			copy(q.s.lastK[p.layer], p.kRaw[last*m.KVHeads*m.KeyDim:])
		}
		if last := (q.row + q.n - 1); m.ValueShift {
			copy(q.s.lastV[p.layer], p.vRaw[last*m.KVHeads*m.ValDim:])
		}
		q.s.probe.flush(p.layer, q.first)
		if p.odd.Load() {
			if err := p.check(q); err != nil {
				q.fail(err)
			}
		}
	}
}

// headsTask works on one field head of a sequence, or on one row.
func (p *pass) headsTask(_, task int) {
	m := p.e.model
	if n := len(p.seqs) * m.FieldHeads; task >= n {
		p.keysAndQueries(task - n)
	} else {
		p.fields(p.seqs[task/m.FieldHeads], task%m.FieldHeads)
	}
}

// keysAndQueries shifts, norms and turns row r.
func (p *pass) keysAndQueries(r int) {
	m, l, row := p.e.model, p.weights(), p.rows[r]
	s := row.seq.s
	if m.KeyShift {
		shift(p.k, p.kRaw, p.kMix, s.lastK[p.layer], r, row.t == 0)
	}
	if m.ValueShift {
		shift(p.v, p.vRaw, p.vMix, s.lastV[p.layer], r, row.t == 0)
	}
	width := m.KVHeads * m.KeyDim
	q, k := p.q[r*m.Heads*m.KeyDim:(r+1)*m.Heads*m.KeyDim], p.k[r*width:(r+1)*width]
	v := p.v[r*m.KVHeads*m.ValDim : (r+1)*m.KVHeads*m.ValDim]
	p.turn(q, l.QNorm, r)
	p.turn(k, l.KNorm, r)
	if most := finite.MostKey(s.typ); !within(q, math.MaxFloat32) || !within(k, most) || !within(v, most) {
		p.odd.Store(true)
	}
}

// shift mixes each head's projection in row r with that of the token before:
// y_t = a x_{t-1} + (1-a) x_t with a = sigmoid(mix_t), where x before the first
// token is 0. raw has rows of as many elements as last, and mix one for each head;
// last holds x of the token before the first of the pass.
func shift(y, raw, mix, last []float32, r int, first bool) {
	width := len(last)
	heads := len(mix) * width / len(raw)
	d := width / heads
	before := last
	if !first {
		before = raw[(r-1)*width : r*width]
	}
	y, raw = y[r*width:(r+1)*width], raw[r*width:(r+1)*width]
	for h, x := range mix[r*heads : (r+1)*heads] {
		a := float32(1 / (1 + math.Exp(-float64(x))))
		for c := h * d; c < (h+1)*d; c++ {
			y[c] = a*before[c] + (1-a)*raw[c]
		}
	}
}

// turn applies the norm and the rotary embedding to the heads x of row r, in
// place. Rotary pairs are half-split: dimension i turns with i + RopeDim/2.
func (p *pass) turn(x, norm []float32, r int) {
	m := p.e.model
	d, half := m.KeyDim, len(m.InvFreq)
	sin, cos := p.sin[r*half:(r+1)*half], p.cos[r*half:(r+1)*half]
	for at := 0; at < len(x); at += d {
		head := x[at : at+d]
		if norm != nil {
			kernels.RMSNorm(head, head, norm[at:at+d], m.QKNormEps)
		}
		low, high := head[:half], head[half:2*half]
		for i, a := range low {
			b := high[i]
			low[i], high[i] = a*cos[i]-b*sin[i], b*cos[i]+a*sin[i]
		}
	}
}

// fields turns the projections of field head h of a sequence into fields, levels
// and lows, and notes where the walk's base moves.
func (p *pass) fields(q *sequence, h int) {
	m, l := p.e.model, p.weights()
	for t := range q.n {
		j := (q.row+t)*m.FieldHeads + h
		inc := float64(l.Field.Bias[h])
		if l.Field.Present() {
			inc = float64(p.field[j])
		}
		field, moved := p.e.field(inc), float32(0)
		if m.Field == model.FieldWalk {
			field, moved = q.s.walks[p.layer].Step(h, field)
		}
		level := field
		switch m.Level {
		case model.LevelOffset:
			level += float64(l.Level.Bias[h])
		case model.LevelRelative:
			level += float64(p.level[j])
		case model.LevelAbsolute:
			level = float64(p.level[j])
		}
		p.field[j], p.level[j], p.moved[j] = float32(field), float32(level), moved
		p.low[j] = float32(math.Inf(1))
		if m.Interval == model.Inclusive {
			p.low[j] = p.field[j]
		}
		if x := p.field[j]; x-x != 0 {
			p.odd.Store(true)
		}
		if x := p.level[j]; x-x != 0 {
			p.odd.Store(true)
		}
		q.s.probe.add(p.layer, t*m.FieldHeads+h, h, field, level, moved)
	}
}

// check looks for numbers that attention cannot work with in the rows of a
// sequence.
func (p *pass) check(q *sequence) error {
	x, most := &q.tokens, finite.MostKey(q.s.typ)
	for _, in := range []struct {
		what string
		x    []float32
		most float64
	}{
		{"query", x.Query, math.MaxFloat32}, {"key", x.Key, most}, {"value", x.Value, most},
		{"field", x.Field, math.MaxFloat32}, {"level", x.Level, math.MaxFloat32},
	} {
		at := exceeds(in.x, in.most)
		if at < 0 {
			continue
		}
		return finite.Input(p.layer, in.what, q.first+at/(len(in.x)/q.n), in.x[at])
	}
	return nil
}

// attend has every group of every sequence take in its tokens. A group is one task,
// unless that would leave threads without work.
func (p *pass) attend() {
	m := p.e.model
	work := 0
	live := 0
	for _, q := range p.seqs {
		if q.part.Err == nil {
			const call = 1024 // what a head costs without any key
			work += q.n * m.Heads * (2*m.KeyDim*(q.s.cache.Groups(p.layer)[0].Live()+q.n) + call)
			live++
		}
	}
	groups := p.groups()
	if threads := p.e.Threads(); threads > 1 && work >= smallWork && live*groups < 2*threads && p.splits() {
		p.attendApart()
		return
	}
	p.parallel(len(p.seqs)*groups, work, (*pass).attendTask)
}

// groups is the number of groups of a layer.
func (p *pass) groups() int { return len(p.seqs[0].s.cache.Groups(p.layer)) }

// splits says whether some group has enough to do for several threads.
func (p *pass) splits() bool {
	for _, q := range p.seqs {
		for _, g := range q.s.cache.Groups(p.layer) {
			if q.part.Err == nil && g.Splits(q.n) {
				return true
			}
		}
	}
	return false
}

// attendTask has one group take in the tokens of its sequence.
func (p *pass) attendTask(worker, task int) {
	n := p.groups()
	if q := p.seqs[task/n]; q.part.Err == nil {
		q.s.cache.Groups(p.layer)[task%n].Feed(&q.tokens, &p.e.workers[worker].attention)
	}
}

// piece is a task of a group that several workers share.
type piece struct {
	feed *cache.Feed
	task int
}

// attendApart is attend where threads share groups.
func (p *pass) attendApart() {
	p.apart = p.apart[:cap(p.apart)]
	n := 0
	for _, q := range p.seqs {
		if q.part.Err != nil {
			continue
		}
		for _, g := range q.s.cache.Groups(p.layer) {
			if n == len(p.apart) {
				p.apart = append(p.apart, cache.Feed{})
			}
			p.apart[n].Reset(g, &q.tokens)
			n++
		}
	}
	p.apart = p.apart[:n]
	for {
		p.pieces = p.pieces[:0]
		for i := range p.apart {
			f := &p.apart[i]
			for task := range f.Open() {
				p.pieces = append(p.pieces, piece{f, task})
			}
		}
		if len(p.pieces) == 0 {
			return
		}
		p.parallel(len(p.pieces), smallWork, (*pass).pieceTask)
		for i, x := range p.pieces {
			if i == 0 || x.feed != p.pieces[i-1].feed {
				x.feed.Close(&p.e.workers[0].attention)
			}
		}
	}
}

func (p *pass) pieceTask(worker, task int) {
	x := p.pieces[task]
	x.feed.Run(x.task, x.task+1, &p.e.workers[worker].attention)
}

// kernelActivation maps a model's activation to the kernel's.
func kernelActivation(a model.Activation) kernels.Activation {
	switch a {
	case model.Sigmoid:
		return kernels.Sigmoid
	case model.Gelu:
		return kernels.Gelu
	case model.GeluTanh:
		return kernels.GeluTanh
	case model.Relu:
		return kernels.Relu
	}
	return kernels.Silu
}
