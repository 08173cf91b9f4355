// Package generate is the token loop that all engines share: it feeds a prompt,
// samples, decodes to text and stops.
package generate

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/sample"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// Options say when a generation ends.
type Options struct {
	Predict   int           // at most so many tokens; negative: no limit; 0: feed the prompt, all but its last token
	Stop      []string      // texts that end it; they are not part of the output
	End       []int32       // tokens that end it; they are not part of the output
	IgnoreEnd bool          // end tokens do not end it, and are never sampled
	Chunk     int           // tokens of the prompt fed between two looks at the context; 0: 512
	Progress  func(fed int) // called after each chunk of the prompt; may be nil
}

// Reason says why a generation ended.
type Reason string

// The reasons.
const (
	ByLimit  Reason = "limit"  // Predict tokens were generated
	ByEnd    Reason = "end"    // an end token was sampled
	ByStop   Reason = "stop"   // a stop text came up
	ByCancel Reason = "cancel" // the context was cancelled
)

// Result describes a generation.
type Result struct {
	PromptTokens int           `json:"prompt_tokens"`
	Tokens       []int32       `json:"tokens"` // generated, end token included
	Text         string        `json:"text"`
	Reason       Reason        `json:"reason"`
	Prefill      time.Duration `json:"prefill_ns"`
	Decode       time.Duration `json:"decode_ns"`

	// Pending are the tokens that the session has not taken in yet: the one sampled
	// last, or what a cancelled run left of the prompt. Fed first, they go on where
	// this run ended.
	Pending []int32 `json:"-"`
}

// Run feeds a prompt and generates after it. emit gets the text as it comes, in
// pieces that are whole characters; it may be nil. Cancelling the context ends
// the run between tokens, without an error. It fails when the prompt is empty
// and nothing was fed before, or with an error of the session, the sampler, the
// tokenizer or emit; the result then holds what came before.
func Run(ctx context.Context, s engine.Session, t *tokenizer.Tokenizer, sampler *sample.Sampler, prompt []int32, o Options, emit func(string) error) (Result, error) {
	if len(prompt) == 0 {
		return Result{}, errors.New("the prompt has no token; give some text, since the model has no token that begins one")
	}
	r := &run{s: s, sampler: sampler, o: o, out: newOutput(t.NewStream(true), o.Stop, emit)}
	r.res.PromptTokens, r.res.Tokens = len(prompt), []int32{} // JSON says [], not null
	for _, id := range prompt {
		sampler.Accept(id)
	}
	err := r.generate(ctx, prompt)
	r.res.Text = r.out.text.String()
	return r.res, err
}

// run is the state of one generation.
type run struct {
	s       engine.Session
	sampler *sample.Sampler
	o       Options
	out     *output
	res     Result
	next    [1]int32 // sampled, not yet fed
}

func (r *run) generate(ctx context.Context, prompt []int32) error {
	start := time.Now()
	if r.o.Predict == 0 {
		// Without its last token, whose logits a later run needs.
		last := len(prompt) - 1
		r.res.Reason = ByLimit
		err := r.prefill(ctx, prompt[:last], nil)
		r.res.Prefill = time.Since(start)
		r.res.Pending = append(slices.Clone(r.res.Pending), prompt[last])
		return err
	}
	err := r.prefill(ctx, prompt, r.sample)
	r.res.Prefill = time.Since(start)
	if err != nil || r.res.Reason != "" {
		return err
	}
	start = time.Now()
	defer func() { r.res.Decode = time.Since(start) }()
	sample := r.sample // one function for all tokens
	for {
		done, err := r.take()
		r.res.Pending = r.next[:]
		if done || err != nil {
			return errors.Join(err, r.out.finish())
		}
		if ctx.Err() != nil {
			r.res.Reason = ByCancel
			return r.out.finish()
		}
		if err := r.s.Feed(r.next[:], nil, sample); err != nil {
			return errors.Join(err, r.out.finish())
		}
	}
}

// prefill feeds the prompt; each gets the logits of its last position.
func (r *run) prefill(ctx context.Context, prompt []int32, each func(int, []float32) error) error {
	chunk := r.o.Chunk
	if chunk <= 0 {
		chunk = 512
	}
	none := func(int) bool { return false }
	for fed := 0; fed < len(prompt); {
		n := min(chunk, len(prompt)-fed)
		want := none
		if fed+n == len(prompt) && each != nil {
			want = nil
		}
		if ctx.Err() != nil {
			r.res.Reason = ByCancel
			r.res.Pending = prompt[fed:]
			return nil
		}
		if err := r.s.Feed(prompt[fed:fed+n], want, each); err != nil {
			return err
		}
		fed += n
		if r.o.Progress != nil {
			r.o.Progress(fed)
		}
	}
	return nil
}

// sample draws the next token.
func (r *run) sample(_ int, logits []float32) error {
	if r.o.IgnoreEnd {
		for _, id := range r.o.End {
			if int(id) < len(logits) {
				logits[id] = negInf
			}
		}
	}
	id, err := r.sampler.Sample(logits)
	if err != nil {
		return err
	}
	r.sampler.Accept(id)
	r.next[0] = id
	return nil
}

// take adds the sampled token to the result and says whether that ends it.
func (r *run) take() (done bool, err error) {
	next := r.next[0]
	r.res.Tokens = append(r.res.Tokens, next)
	for _, end := range r.o.End {
		if next == end {
			r.res.Reason = ByEnd
			return true, nil
		}
	}
	stopped, err := r.out.add(next)
	switch {
	case err != nil:
		return true, err
	case stopped:
		r.res.Reason = ByStop
		return true, nil
	case len(r.res.Tokens) == r.o.Predict:
		r.res.Reason = ByLimit
		return true, nil
	}
	return false, nil
}

// output turns tokens into text, holds back what may be the beginning of a stop
// text, and passes the rest on.
type output struct {
	stream  *tokenizer.Stream
	stop    []string
	emit    func(string) error
	held    string
	stopped bool
	text    strings.Builder
}

func newOutput(stream *tokenizer.Stream, stop []string, emit func(string) error) *output {
	return &output{stream: stream, stop: stop, emit: emit}
}

// add takes in a token and says whether a stop text came up.
func (o *output) add(id int32) (stopped bool, err error) {
	piece, err := o.stream.Add(id)
	if err != nil {
		return false, err
	}
	o.held += piece
	first := -1
	for _, s := range o.stop {
		if i := strings.Index(o.held, s); i >= 0 && (first < 0 || i < first) {
			first = i
		}
	}
	if first >= 0 {
		o.stopped = true
		o.held = o.held[:first]
		return true, nil
	}
	return false, o.pass(len(o.held) - o.undecided())
}

// undecided is the length of the longest end of the held text that begins a
// stop text.
func (o *output) undecided() int {
	longest := 0
	for _, s := range o.stop {
		for n := min(len(s)-1, len(o.held)); n > longest; n-- {
			if strings.HasSuffix(o.held, s[:n]) {
				longest = n
				break
			}
		}
	}
	return longest
}

// finish passes on what was held back.
func (o *output) finish() error {
	if !o.stopped {
		o.held += o.stream.Flush()
	}
	return o.pass(len(o.held))
}

// pass gives the first n bytes of the held text out.
func (o *output) pass(n int) error {
	if n == 0 {
		return nil
	}
	piece := o.held[:n]
	o.held = o.held[n:]
	o.text.WriteString(piece)
	if o.emit == nil {
		return nil
	}
	return o.emit(piece)
}

var negInf = float32(math.Inf(-1))
