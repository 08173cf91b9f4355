package tokenizer

import "strings"

// A Stream decodes tokens one by one. What it has given so far is always a
// prefix of the text that Decode gives for all ids, except where a run of byte
// tokens (<0x..>) that was text so far turns out not to be UTF-8, and it never
// ends inside a character. It is for one goroutine.
type Stream struct {
	t    *Tokenizer
	skip bool
	in   func(token string)
	done []func() // ends the steps, in order
	out  strings.Builder
}

// NewStream begins to decode a sequence; with skipSpecial, special tokens are
// left out.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream {
	s := &Stream{t: t, skip: skipSpecial}
	sink := func(text string) { s.out.WriteString(text) }
	if t.escape == EscapeJSON {
		out, u := sink, &unescapeStream{}
		sink = func(text string) { u.push(text, out) }
		s.done = append(s.done, func() { u.flush(out) })
	}
	// Find how many steps can work token by token; the rest waits for Flush.
	var steps []streamStep
	fused := false
	for i, step := range t.decoder {
		one := step.stream(fused, i == len(t.decoder)-1)
		if one == nil {
			break
		}
		steps = append(steps, one)
		fused = fused || step.fuses()
	}
	if rest := t.decoder[len(steps):]; len(rest) > 0 {
		steps = append(steps, &waitingStream{steps: rest, fused: fused})
	}
	s.in = sink
	for i := len(steps) - 1; i >= 0; i-- {
		step, next := steps[i], s.in
		s.in = func(token string) { step.push(token, next) }
		s.done = append(s.done, func() { step.flush(next) })
	}
	return s
}

// Add is the text that a further token makes certain. It fails on an id that is
// not in the vocabulary.
func (s *Stream) Add(id int32) (string, error) {
	token, ok := s.t.Token(id)
	if !ok {
		return "", s.t.unknownID(id)
	}
	if s.skip && s.t.skipped[id] {
		return "", nil
	}
	s.in(token)
	return s.take(), nil
}

// Flush is the text that Add has held back: incomplete characters, as U+FFFD,
// and what the decoder can tell only at the end. It ends the stream.
func (s *Stream) Flush() string {
	for i := len(s.done) - 1; i >= 0; i-- {
		s.done[i]()
	}
	return s.take()
}

func (s *Stream) take() string {
	text := s.out.String()
	s.out.Reset()
	return text
}

// waitingStream keeps the tokens of decoders that need all of them.
type waitingStream struct {
	steps  []decodeStep
	fused  bool
	tokens []string
}

func (s *waitingStream) push(token string, _ func(string)) { s.tokens = append(s.tokens, token) }

func (s *waitingStream) flush(out func(string)) {
	if s.fused {
		s.tokens = []string{strings.Join(s.tokens, "")}
	}
	out(decodeAll(s.steps, s.tokens))
	s.tokens = nil
}
