package cpu

import (
	"fmt"
	"math"
	"slices"

	"github.com/firstpassage/fpa/ops/kernels"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
)

// Session is one sequence: its cache, the running values of its fields, and the
// last projections that key and value shifts look back to.
type Session struct {
	e     *Engine
	typ   quant.DType // of K and V
	cache *cache.Cache
	walks []*cache.Walk // [layer]; nil without a walk
	lastK [][]float32   // [layer][Hkv*d], the unshifted key projection of the last token
	lastV [][]float32
	buf   buffers
	probe *probe // nil: nobody looks

	scratch []cache.Scratch // [thread]
}

// probe is what SetProbe asked for.
type probe struct {
	report       func(layer, first int, field, level []float64)
	base         [][]float64 // [layer][Hf], how far the walks' bases have moved
	field, level []float64   // [n, Hf], of the chunk
}

// buffers hold the activations of a chunk of n tokens; the comments give the
// row of one token.
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
	logits         []float32 // [V], of up to logitRows tokens
}

// NewSession starts an empty sequence with a cache of the given type and policy.
func (e *Engine) NewSession(t quant.DType, p cache.Policy) (engine.Session, error) {
	return e.newSession(t, p)
}

func (e *Engine) newSession(t quant.DType, p cache.Policy) (*Session, error) {
	m := e.model
	// Measuring the bound of a model that carries none takes a while, and off has
	// little use for it.
	if p.Bound == nil && (p.Mode != cache.Off || m.LogitBound != nil && t != quant.Q8_0) {
		p.Bound = e.logitBound(t)
	}
	p.SelfPenalised = m.SelfPenalised()
	c, err := cache.New(CacheShape(m, t), p)
	if err != nil {
		return nil, err
	}
	s := &Session{e: e, typ: t, cache: c}
	for range m.Layers {
		if m.Field == model.FieldWalk {
			s.walks = append(s.walks, cache.NewWalk(m.FieldHeads))
		}
		s.lastK = append(s.lastK, make([]float32, m.KVHeads*m.KeyDim))
		s.lastV = append(s.lastV, make([]float32, m.KVHeads*m.ValDim))
	}
	s.scratch = make([]cache.Scratch, e.pool.size())
	return s, nil
}

// Len is the number of tokens fed.
func (s *Session) Len() int { return s.cache.Tokens() }

// CacheStats measures the cache.
func (s *Session) CacheStats() cache.Stats { return s.cache.Stats() }

// SetProbe has report called with the field and the level of every token that is
// fed, a layer and a chunk at a time: [n, Hf] for n tokens from position first on,
// in float64 and on one zero for the whole sequence, before they are rounded for
// the cache. The slices are valid during the call. Models without a field report
// nothing. It must be set before the first Feed.
func (s *Session) SetProbe(report func(layer, first int, field, level []float64)) {
	s.probe = &probe{report: report}
	for range s.e.model.Layers {
		s.probe.base = append(s.probe.base, make([]float64, s.e.model.FieldHeads))
	}
}

// add notes one field and level, relative to the base that has just moved.
func (p *probe) add(layer, head int, field, level float64, moved float32) {
	p.base[layer][head] += float64(moved)
	p.field = append(p.field, p.base[layer][head]+field)
	p.level = append(p.level, p.base[layer][head]+level)
}

// flush reports the chunk, which begins at position first.
func (p *probe) flush(layer, first int) {
	if len(p.field) > 0 {
		p.report(layer, first, p.field, p.level)
	}
	p.field, p.level = p.field[:0], p.level[:0]
}

// Feed runs ids through the model, a chunk at a time; see engine.Session. The
// error of a model file that can no longer be read is a Fault.
func (s *Session) Feed(ids []int32, want func(position int) bool, each func(position int, logits []float32) error) error {
	for i, id := range ids {
		if id < 0 || int(id) >= s.e.model.VocabSize {
			return fmt.Errorf("token %d of the input is id %d, the vocabulary has %d entries", i, id, s.e.model.VocabSize)
		}
	}
	if want == nil {
		last := s.Len() + len(ids) - 1
		want = func(position int) bool { return position == last }
	}
	for len(ids) > 0 {
		n := min(len(ids), s.e.chunk)
		if err := guard(func() error { return s.feedChunk(ids[:n], want, each) }); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

func (s *Session) feedChunk(ids []int32, want func(int) bool, each func(int, []float32) error) error {
	m, n := s.e.model, len(ids)
	first := s.Len()
	s.resize(n)
	s.cache.Begin(n)
	if err := s.embed(ids); err != nil {
		return err
	}
	for i := range m.Layers {
		if err := s.attention(i, n, first); err != nil {
			return err
		}
		s.feedForward(&m.Layers[i], n)
	}
	s.cache.Advance(n)
	var rows []int // tokens of the chunk whose logits are wanted
	for t := range n {
		if want(first + t) {
			rows = append(rows, t)
		}
	}
	for len(rows) > 0 {
		k := min(len(rows), logitRows)
		if err := s.output(rows[:k], first, each); err != nil {
			return err
		}
		rows = rows[k:]
	}
	return nil
}

// logitRows is the number of tokens whose logits are computed in one pass over
// the output matrix.
const logitRows = 32

// output computes the logits of some tokens of the chunk and passes them on.
func (s *Session) output(rows []int, first int, each func(int, []float32) error) error {
	m, b, d := s.e.model, &s.buf, s.e.model.Hidden
	if need := len(rows) * m.VocabSize; cap(b.logits) < need {
		b.logits = make([]float32, need)
	}
	logits := b.logits[:len(rows)*m.VocabSize]
	for i, t := range rows {
		kernels.RMSNorm(b.h[i*d:(i+1)*d], b.x[t*d:(t+1)*d], m.FinalNorm, m.NormEps)
	}
	s.project(len(rows), d, b.h, job{m.Output, logits})
	for i, t := range rows {
		row := logits[i*m.VocabSize : (i+1)*m.VocabSize]
		if err := finite(row, first+t); err != nil {
			return err
		}
		if err := each(first+t, row); err != nil {
			return err
		}
	}
	return nil
}

// finite checks that no logit is NaN or infinite.
func finite(logits []float32, position int) error {
	for id, l := range logits {
		if d := l - l; d != 0 {
			return fmt.Errorf("the logit of token %d at position %d is %g: the weights are damaged, or overflow", id, position, l)
		}
	}
	return nil
}

// resize makes room for n tokens.
func (s *Session) resize(n int) {
	m, b := s.e.model, &s.buf
	grow := func(v *[]float32, width int) {
		if cap(*v) < n*width {
			*v = make([]float32, n*width)
		}
		*v = (*v)[:n*width]
	}
	for _, v := range []*[]float32{&b.x, &b.h, &b.proj} {
		grow(v, m.Hidden)
	}
	grow(&b.q, m.Heads*m.KeyDim)
	grow(&b.k, m.KVHeads*m.KeyDim)
	grow(&b.v, m.KVHeads*m.ValDim)
	if m.KeyShift {
		grow(&b.kRaw, m.KVHeads*m.KeyDim)
		grow(&b.kMix, m.KVHeads)
	}
	if m.ValueShift {
		grow(&b.vRaw, m.KVHeads*m.ValDim)
		grow(&b.vMix, m.KVHeads)
	}
	for _, v := range []*[]float32{&b.field, &b.level, &b.low, &b.moved} {
		grow(v, m.FieldHeads)
	}
	grow(&b.out, m.Heads*m.ValDim)
	if m.OutputGate != model.GateNone {
		grow(&b.gate, m.Heads*m.ValDim)
	}
	grow(&b.ffnGate, m.FeedForward)
	grow(&b.ffnUp, m.FeedForward)
}

// embed looks the rows of the tokens up.
func (s *Session) embed(ids []int32) error {
	m, d := s.e.model, s.e.model.Hidden
	rowBytes := len(m.Embed.Data) / m.VocabSize
	for t, id := range ids {
		row := m.Embed.Data[int(id)*rowBytes : (int(id)+1)*rowBytes]
		if err := quant.Decode(s.buf.x[t*d:(t+1)*d], m.Embed.Type, row); err != nil {
			return fmt.Errorf("token_embd.weight, row %d: %w", id, err)
		}
	}
	return nil
}

// job is one projection of the same input: y [n, out].
type job struct {
	l model.Linear
	y []float32
}

// smallWork is the number of multiplications below which one thread does it all.
const smallWork = 1 << 15

// rowsPerTask is the number of rows of a matrix that a worker takes at a time: so
// many that memory is read in long runs, and so few that a thread which is slower
// than the others, or was interrupted, does not keep them waiting long. It is a
// multiple of the rows that lie together in a repacked matrix.
func (e *Engine) rowsPerTask(rows int) int {
	const tasksPerThread = 4
	n := (rows + tasksPerThread*e.Threads() - 1) / (tasksPerThread * e.Threads())
	return max(32, (n+15)&^15)
}

// project computes y = W x + bias for several projections of x [n, in].
func (s *Session) project(n, in int, x []float32, jobs ...job) {
	input := &s.e.input
	input.Set(x, in, n, in)
	tasks := 0
	work := 0
	for _, j := range jobs {
		input.Need(j.l.W)
		step := s.e.rowsPerTask(j.l.W.Rows)
		tasks += (j.l.W.Rows + step - 1) / step
		work += n * j.l.W.Rows * in
	}
	if input.Derives() {
		const step = kernels.PrepareStep
		s.parallel((n+step-1)/step, n*in, func(_, task int) {
			input.Prepare(task*step, min((task+1)*step, n))
		})
	}
	task := func(worker, task int) {
		for _, j := range jobs {
			rows := j.l.W.Rows
			step := s.e.rowsPerTask(rows)
			here := (rows + step - 1) / step
			if task >= here {
				task -= here
				continue
			}
			lo, hi := task*step, min((task+1)*step, rows)
			kernels.MatMul(j.y, rows, j.l.W, input, lo, hi, s.e.scratch[worker])
			if j.l.Bias != nil {
				for t := range n {
					kernels.Add(j.y[t*rows+lo:t*rows+hi], j.l.Bias[lo:hi])
				}
			}
			return
		}
	}
	s.parallel(tasks, work, task)
}

// parallel runs tasks on all threads, or here when there is little to do.
func (s *Session) parallel(tasks, work int, f func(worker, task int)) {
	if work < smallWork {
		for t := range tasks {
			f(0, t)
		}
		return
	}
	s.e.pool.run(tasks, f)
}

// normalise writes the RMS norm of x [n, D] to h.
func (s *Session) normalise(n int, weight []float32) {
	b, d := &s.buf, s.e.model.Hidden
	s.parallel(n, n*d, func(_, t int) {
		kernels.RMSNorm(b.h[t*d:(t+1)*d], b.x[t*d:(t+1)*d], weight, s.e.model.NormEps)
	})
}

// attention adds the attention part of layer i to x. The order is: projection,
// shift, QK-norm, RoPE, field and level, attention, output norm, output gate,
// output projection. It fails when a number that attention reads is not finite, or
// too large for the cache: what a softmax makes of it can look like a result.
func (s *Session) attention(i, n, first int) error {
	m, b := s.e.model, &s.buf
	l := &m.Layers[i]
	s.normalise(n, l.AttnNorm)

	k, v := b.k, b.v
	jobs := append(make([]job, 0, 8), job{l.Q, b.q})
	if m.KeyShift {
		k = b.kRaw
		jobs = append(jobs, job{l.KShift, b.kMix})
	}
	if m.ValueShift {
		v = b.vRaw
		jobs = append(jobs, job{l.VShift, b.vMix})
	}
	jobs = append(jobs, job{l.K, k}, job{l.V, v})
	if l.Field.Present() {
		jobs = append(jobs, job{l.Field, b.field})
	}
	if l.Level.Present() {
		jobs = append(jobs, job{l.Level, b.level})
	}
	if m.OutputGate != model.GateNone {
		jobs = append(jobs, job{l.Gate, b.gate})
	}
	s.project(n, m.Hidden, b.h, jobs...)

	if m.KeyShift {
		shift(b.k, b.kRaw, b.kMix, s.lastK[i], n, m.KVHeads)
	}
	if m.ValueShift {
		shift(b.v, b.vRaw, b.vMix, s.lastV[i], n, m.KVHeads)
	}
	s.parallel(n, n*(m.Heads+m.KVHeads)*m.KeyDim, func(_, t int) {
		s.rotate(b.q[t*m.Heads*m.KeyDim:], l.QNorm, m.Heads, first+t)
		s.rotate(b.k[t*m.KVHeads*m.KeyDim:], l.KNorm, m.KVHeads, first+t)
	})
	s.fields(i, n)
	if err := s.checkInputs(i, n, first); err != nil {
		return err
	}

	groups := s.cache.Groups(i)
	tokens := cache.Tokens{
		N: n, Query: b.q, Key: b.k, Value: b.v, Field: b.field, Level: b.level, Low: b.low, Moved: b.moved, Out: b.out,
	}
	s.parallel(len(groups), n*m.Heads*m.KeyDim*(groups[0].Live()+n), func(worker, g int) {
		groups[g].Feed(&tokens, &s.scratch[worker])
	})

	if m.OutputNorm || m.OutputGate != model.GateNone {
		s.parallel(n, n*m.Heads*m.ValDim, func(_, t int) { s.finish(l, t) })
	}
	s.project(n, m.Heads*m.ValDim, b.out, job{l.O, b.proj})
	kernels.Add(b.x, b.proj)
	return nil
}

// largestF16 is the first number that rounds to infinity in float16.
const largestF16 = 65520

// checkInputs looks for numbers that layer i cannot work with in a chunk of n
// tokens from position first on.
func (s *Session) checkInputs(i, n, first int) error {
	b := &s.buf
	most := math.MaxFloat32
	if s.typ == quant.F16 {
		most = math.Nextafter(largestF16, 0)
	}
	for _, in := range []struct {
		what string
		x    []float32
		most float64
	}{
		{"query", b.q, math.MaxFloat32}, {"key", b.k, most}, {"value", b.v, most},
		{"field", b.field, math.MaxFloat32}, {"level", b.level, math.MaxFloat32},
	} {
		at := exceeds(in.x, in.most)
		if at < 0 {
			continue
		}
		position := first + at/(len(in.x)/n)
		if x := in.x[at]; x-x == 0 {
			return fmt.Errorf("layer %d: a %s at position %d is %g, which the cache type f16 cannot hold (at most 65504); use f32 or q8_0", i, in.what, position, x)
		}
		return fmt.Errorf("layer %d: a %s at position %d is %g: the weights are damaged, or overflow", i, in.what, position, in.x[at])
	}
	return nil
}

// exceeds is the index of the first element whose magnitude is not at most most;
// -1 without one.
func exceeds(x []float32, most float64) int {
	if sum := float64(kernels.Dot(x, x)); sum <= min(most*most, math.MaxFloat32) {
		return -1 // nearly always
	}
	return slices.IndexFunc(x, func(v float32) bool { return !(math.Abs(float64(v)) <= most) })
}

// shift mixes each head's projection with that of the token before:
// y_t = a x_{t-1} + (1-a) x_t with a = sigmoid(mix_t), where x before the first
// token is 0. raw is [n, heads*d]; last holds x of the token before the chunk,
// and afterwards that of its last token.
func shift(y, raw, mix, last []float32, n, heads int) {
	width := len(last)
	d := width / heads
	for t := range n {
		before := last
		if t > 0 {
			before = raw[(t-1)*width : t*width]
		}
		for h := range heads {
			a := float32(1 / (1 + math.Exp(-float64(mix[t*heads+h]))))
			for c := h * d; c < (h+1)*d; c++ {
				y[t*width+c] = a*before[c] + (1-a)*raw[t*width+c]
			}
		}
	}
	copy(last, raw[(n-1)*width:n*width])
}

// rotate applies the norm and the rotary embedding to the heads of one token,
// in place. Rotary pairs are half-split: dimension i turns with i + RopeDim/2.
func (s *Session) rotate(x, norm []float32, heads, position int) {
	m := s.e.model
	d := m.KeyDim
	for h := range heads {
		head := x[h*d : (h+1)*d]
		if norm != nil {
			kernels.RMSNorm(head, head, norm[h*d:(h+1)*d], m.QKNormEps)
		}
	}
	half := m.RopeDim / 2
	for i, f := range m.InvFreq {
		sin64, cos64 := math.Sincos(float64(position) * f)
		sin, cos := float32(sin64), float32(cos64)
		for h := range heads {
			a, b := x[h*d+i], x[h*d+i+half]
			x[h*d+i] = a*cos - b*sin
			x[h*d+i+half] = b*cos + a*sin
		}
	}
}

// fields turns the projections of the chunk into fields, levels and lows of
// layer i, and notes where the walk's base moves.
func (s *Session) fields(i, n int) {
	m, b := s.e.model, &s.buf
	l := &m.Layers[i]
	act := m.FieldActivation.Field()
	for t := range n {
		for h := range m.FieldHeads {
			j := t*m.FieldHeads + h
			inc := float64(l.Field.Bias[h])
			if l.Field.Present() {
				inc = float64(b.field[j])
			}
			field, moved := act(inc), float32(0)
			if m.Field == model.FieldWalk {
				field, moved = s.walks[i].Step(h, field)
			}
			level := field
			switch m.Level {
			case model.LevelOffset:
				level += float64(l.Level.Bias[h])
			case model.LevelRelative:
				level += float64(b.level[j])
			case model.LevelAbsolute:
				level = float64(b.level[j])
			}
			b.field[j], b.level[j], b.moved[j] = float32(field), float32(level), moved
			b.low[j] = float32(math.Inf(1))
			if m.Interval == model.Inclusive {
				b.low[j] = b.field[j]
			}
			if s.probe != nil {
				s.probe.add(i, h, field, level, moved)
			}
		}
	}
	if s.probe != nil {
		s.probe.flush(i, s.Len())
	}
}

// finish applies the output norm and the output gate to one token.
func (s *Session) finish(l *model.Layer, t int) {
	m, b := s.e.model, &s.buf
	width, dv := m.Heads*m.ValDim, m.ValDim
	out := b.out[t*width : (t+1)*width]
	if m.OutputNorm {
		for h := range m.Heads {
			head := out[h*dv : (h+1)*dv]
			kernels.RMSNorm(head, head, l.OutputNorm[h*dv:(h+1)*dv], m.NormEps)
		}
	}
	if m.OutputGate != model.GateNone {
		kernels.GatedMul(kernelActivation(m.OutputGate), out, b.gate[t*width:(t+1)*width], out)
	}
}

// feedForward adds the feed-forward part of a layer to x.
func (s *Session) feedForward(l *model.Layer, n int) {
	m, b := s.e.model, &s.buf
	f := m.FeedForward
	s.normalise(n, l.FFNNorm)
	s.project(n, m.Hidden, b.h, job{l.FFNGate, b.ffnGate}, job{l.FFNUp, b.ffnUp})
	kind := kernelActivation(m.Activation)
	s.parallel(n, n*f, func(_, t int) {
		row := b.ffnGate[t*f : (t+1)*f]
		kernels.GatedMul(kind, row, row, b.ffnUp[t*f:(t+1)*f])
	})
	s.project(n, f, b.ffnGate, job{l.FFNDown, b.proj})
	kernels.Add(b.x, b.proj)
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
