package onnxtest

import (
	"slices"
	"strings"
	"testing"
)

// Decoder feeds a model that fpaconv wrote, and carries its states from call to
// call as any pipeline does: what comes out as present.X goes in as
// past_key_values.X.
type Decoder struct {
	s      *Session
	states []Tensor
}

// NewDecoder starts so many sequences, with states of zeros and no slots.
func (s *Session) NewDecoder(t testing.TB, sequences int) *Decoder {
	t.Helper()
	d := &Decoder{s: s}
	for _, in := range s.Inputs {
		if !strings.HasPrefix(in.Name, "past_key_values.") {
			continue
		}
		size := map[string]int{"float32": 4, "float64": 8}[in.Type]
		if size == 0 {
			t.Fatalf("%s has type %s, expected float32 or float64", in.Name, in.Type)
		}
		var shape []int64
		for _, dim := range in.Dims {
			switch dim := dim.(type) {
			case float64: // as JSON has it
				shape = append(shape, int64(dim))
			case string:
				shape = append(shape, map[string]int64{"batch_size": int64(sequences)}[dim])
			}
		}
		d.states = append(d.states, Zeros(in.Name, in.Type, size, shape...))
	}
	return d
}

// Step is what a call adds to each sequence; all have one length.
type Step struct {
	IDs       [][]int64
	Mask      [][]int64 // nil: ones, where the model takes a mask
	Positions [][]int64 // of models with a rotary embedding
}

// Feed makes one call and returns the logits, [sequence][position][V].
func (d *Decoder) Feed(t testing.TB, step Step) [][][]float64 {
	t.Helper()
	shape := []int64{int64(len(step.IDs)), int64(len(step.IDs[0]))}
	in := slices.Clone(d.states)
	for _, i := range d.s.Inputs {
		switch i.Name {
		case "input_ids":
			in = append(in, Int64(i.Name, slices.Concat(step.IDs...), shape...))
		case "position_ids":
			in = append(in, Int64(i.Name, slices.Concat(step.Positions...), shape...))
		case "attention_mask":
			mask := slices.Concat(step.Mask...)
			if mask == nil {
				mask = slices.Repeat([]int64{1}, int(shape[0]*shape[1]))
			}
			in = append(in, Int64(i.Name, mask, shape[0], int64(len(mask))/shape[0]))
		}
	}
	out := d.s.Run(t, in)
	d.states = nil
	for _, x := range out[1:] {
		x.Name = "past_key_values." + strings.TrimPrefix(x.Name, "present.")
		d.states = append(d.states, x)
	}
	if out[0].Name != "logits" {
		t.Fatalf("the first output is %s, expected logits", out[0].Name)
	}
	flat := out[0].Floats(t)
	var logits [][][]float64
	for s := range slices.Chunk(flat, len(flat)/int(shape[0])) {
		logits = append(logits, slices.Collect(slices.Chunk(s, int(out[0].Shape[2]))))
	}
	return logits
}

// States are the states after the last call, under the names that they are fed
// back by.
func (d *Decoder) States() []Tensor { return d.states }

// Continue goes on with the sequences of a decoder, of this session or another whose
// model has the same states.
func (s *Session) Continue(d *Decoder) *Decoder { return &Decoder{s, slices.Clone(d.states)} }

// FeedAll feeds one sequence whole or in calls of so many tokens, and returns the
// logits of all positions.
func (s *Session) FeedAll(t testing.TB, ids []int32, calls int) [][]float64 {
	t.Helper()
	d := s.NewDecoder(t, 1)
	var logits [][]float64
	for from := 0; from < len(ids); from += calls {
		to := min(from+calls, len(ids))
		var step Step
		var row, at []int64
		for i := from; i < to; i++ {
			row, at = append(row, int64(ids[i])), append(at, int64(i))
		}
		step.IDs, step.Positions = [][]int64{row}, [][]int64{at}
		logits = append(logits, d.Feed(t, step)[0]...)
	}
	return logits
}
