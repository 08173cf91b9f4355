// Package sample turns the logits of one position into the id of the next
// token.
//
// The steps and their order are those that llama.cpp applies by default, so
// that its users' settings mean the same here:
//
//	repeat penalty -> top-k -> top-p -> min-p -> temperature -> draw
//
// Each filter works on what the one before it left, at temperature 1; the
// temperature comes last and changes only how the draw is spread. All sums are
// taken in float64 and in a fixed order on one goroutine. A seed therefore
// fixes the ids for given logits, however many threads computed those.
package sample

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// PenaltyWindow is the number of most recent tokens that the repeat penalty
// looks at.
const PenaltyWindow = 64

// The largest values that Validate accepts. Beyond them a setting has no
// further effect or is a slip of the hand.
const (
	maxTemp    = 100
	maxTopK    = math.MaxInt32
	minPenalty = 0.01
	maxPenalty = 100
)

// Params are the settings of a Sampler. The zero value is no valid setting
// (its RepeatPenalty is 0); start from Defaults.
type Params struct {
	// Temp divides the logits before the draw, 0 to 100. 0 takes the token of
	// the highest logit, the lowest id where several share it.
	Temp float64
	// TopK keeps the k tokens of the highest logits; 0 keeps all.
	TopK int
	// TopP keeps the fewest tokens, most probable first, whose probabilities
	// reach p together, 0 to 1; never fewer than one; 1 keeps all.
	TopP float64
	// MinP keeps the tokens at least p times as probable as the most probable
	// one, 0 to 1; 0 keeps all.
	MinP float64
	// RepeatPenalty divides the positive and multiplies the other logits of
	// the tokens among the last PenaltyWindow accepted ones, 0.01 to 100;
	// 1 changes nothing.
	RepeatPenalty float64
}

// Defaults returns the settings that fparun starts from.
func Defaults() Params {
	return Params{Temp: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05, RepeatPenalty: 1}
}

// Validate reports every setting that is out of its range, by the name of its
// command-line flag.
func (p Params) Validate() error {
	var errs []error
	check := func(flag string, v, low, high float64, hint string) {
		// Written so that NaN fails.
		if !(v >= low && v <= high) {
			errs = append(errs, fmt.Errorf("%s %v: want a number from %v to %v (%s)", flag, v, low, high, hint))
		}
	}
	check("--temp", p.Temp, 0, maxTemp, "0 is greedy")
	if p.TopK < 0 || p.TopK > maxTopK {
		errs = append(errs, fmt.Errorf("--top-k %d: want a whole number from 0 to %d (0 is off)", p.TopK, maxTopK))
	}
	check("--top-p", p.TopP, 0, 1, "1 is off")
	check("--min-p", p.MinP, 0, 1, "0 is off")
	check("--repeat-penalty", p.RepeatPenalty, minPenalty, maxPenalty, "1 is off")
	return errors.Join(errs...)
}

// Sampler draws tokens. It is not safe for use by several goroutines at once;
// each sequence has its own.
type Sampler struct {
	params  Params
	invalid error // what Validate says of params
	rng     *rand.Rand

	recent [PenaltyWindow]int32 // ring of the last accepted ids
	count  int                  // ids accepted so far

	// Buffers kept from token to token.
	window [PenaltyWindow]int32 // the ids of recent, sorted
	cands  []candidate
}

// candidate is a token that may be drawn.
type candidate struct {
	id     int32
	logit  float64 // after the repeat penalty
	weight float64 // probability, not normalised
}

// stream is the second half of the generator's state: any constant does, and
// it must never change, or a seed would give other text.
const stream = 0x9e3779b97f4a7c15

// New returns a Sampler with its own generator (PCG) started from seed. When p
// is invalid every call of Sample returns what p.Validate returns.
func New(p Params, seed uint64) *Sampler {
	return &Sampler{params: p, invalid: p.Validate(), rng: rand.New(rand.NewPCG(seed, stream))}
}

// Accept adds a token to those that the repeat penalty looks at. Sample does
// not do it by itself: the tokens of the prompt count too, and a token may be
// drawn and then thrown away.
func (s *Sampler) Accept(id int32) {
	s.recent[s.count%PenaltyWindow] = id
	s.count++
}

// Sample returns the id of the next token. logits holds one number a token of
// the vocabulary and is left as it is; -Inf bars a token. It fails, and draws
// nothing, when a logit is NaN or +Inf or when every token is barred. Each
// successful call with a temperature above 0 takes one number from the
// generator.
func (s *Sampler) Sample(logits []float32) (int32, error) {
	if s.invalid != nil {
		return 0, s.invalid
	}
	if s.params.Temp == 0 {
		// The filters never remove the best token.
		if err := s.collect(logits, 1); err != nil {
			return 0, err
		}
		return s.cands[0].id, nil
	}
	if err := s.filter(logits); err != nil {
		return 0, err
	}
	return draw(s.cands, s.rng.Float64()), nil
}

// filter leaves in s.cands the tokens that may be drawn, with their weights at
// the temperature.
func (s *Sampler) filter(logits []float32) error {
	if err := s.collect(logits, s.params.TopK); err != nil {
		return err
	}
	best := math.Inf(-1)
	for _, c := range s.cands {
		best = max(best, c.logit)
	}
	n := len(s.cands)
	var total float64
	if s.params.TopP < 1 {
		total = s.weigh(best, 1)
	}
	// Top-p and min-p each keep a head of the list sorted best first, so their
	// order changes nothing once top-p knows the sum before min-p. Min-p comes
	// first here since it leaves less to sort.
	if s.params.MinP > 0 {
		// weight >= MinP * the best one's weight, said in logits.
		floor := best + math.Log(s.params.MinP)
		s.cands = slices.DeleteFunc(s.cands, func(c candidate) bool { return c.logit < floor })
	}
	if s.params.TopP < 1 {
		s.topP(total, n)
	}
	s.weigh(best, s.params.Temp)
	return nil
}

// weigh sets the weights at a temperature and returns their sum. The best
// token weighs 1, so nothing overflows.
func (s *Sampler) weigh(best, temp float64) float64 {
	var total float64
	for i := range s.cands {
		c := &s.cands[i]
		c.weight = math.Exp((c.logit - best) / temp)
		total += c.weight
	}
	return total
}

// topP cuts s.cands to the fewest tokens that reach TopP of total, the weight
// of the n tokens that top-k left. When they do not reach it, min-p has cut
// further already.
func (s *Sampler) topP(total float64, n int) {
	if s.params.TopK == 0 {
		// All tokens lighter than (1-p)/n weigh less than 1-p together, so the
		// cut falls before them and they need no sorting. Half of it leaves
		// room for rounding.
		light := total * (1 - s.params.TopP) / float64(n) / 2
		s.cands = slices.DeleteFunc(s.cands, func(c candidate) bool { return c.weight < light })
		slices.SortFunc(s.cands, compare)
	}
	var sum float64
	for i, c := range s.cands {
		if sum += c.weight; sum >= s.params.TopP*total {
			s.cands = s.cands[:i+1]
			return
		}
	}
}

// draw picks a candidate by u, at most 1-2^-53, in proportion to the weights.
func draw(cands []candidate, u float64) int32 {
	var total float64
	for _, c := range cands {
		total += c.weight
	}
	// u*total is below total after rounding too, so the loop always ends in
	// its break, and never at a token of weight 0.
	target := u * total
	var sum float64
	var id int32
	for _, c := range cands {
		id = c.id
		if sum += c.weight; target < sum {
			break
		}
	}
	return id
}

// collect puts into s.cands the k best tokens after the repeat penalty, best
// first, or all tokens in the order of their ids when k is 0. Barred tokens
// are left out.
func (s *Sampler) collect(logits []float32, k int) error {
	if len(logits) == 0 {
		return errors.New("no logits: the vocabulary is empty")
	}
	penalised := s.window[:0]
	if s.params.RepeatPenalty != 1 {
		penalised = append(penalised, s.recent[:min(s.count, PenaltyWindow)]...)
		slices.Sort(penalised)
		penalised = slices.Compact(penalised)
		for len(penalised) > 0 && penalised[0] < 0 {
			penalised = penalised[1:]
		}
	}
	s.cands = s.cands[:0]
	for i, l := range logits {
		if l != l || l > math.MaxFloat32 {
			return fmt.Errorf("the logit of token %d is %v, want a finite number or -Inf; the model's weights or arithmetic are broken", i, l)
		}
		c := candidate{id: int32(i), logit: float64(l)}
		if len(penalised) > 0 && penalised[0] == c.id {
			penalised = penalised[1:]
			if c.logit > 0 {
				c.logit /= s.params.RepeatPenalty
			} else {
				c.logit *= s.params.RepeatPenalty
			}
		}
		switch {
		case math.IsInf(c.logit, -1):
		case k == 0:
			s.cands = append(s.cands, c)
		case len(s.cands) < k:
			s.cands = append(s.cands, c)
			if len(s.cands) == k {
				for j := k/2 - 1; j >= 0; j-- {
					siftDown(s.cands, j)
				}
			}
		case c.logit > s.cands[0].logit: // at a tie the earlier, lower id stays
			s.cands[0] = c
			siftDown(s.cands, 0)
		}
	}
	if len(s.cands) == 0 {
		return fmt.Errorf("all %d logits are -Inf: no token can be drawn", len(logits))
	}
	if k > 0 {
		slices.SortFunc(s.cands, compare)
	}
	return nil
}

// better says whether a comes before b: higher logit, then lower id.
func better(a, b candidate) bool {
	return a.logit > b.logit || a.logit == b.logit && a.id < b.id
}

// compare orders candidates best first; no two are equal.
func compare(a, b candidate) int {
	if better(a, b) {
		return -1
	}
	return 1
}

// siftDown restores, below i, the heap whose root is the worst candidate.
func siftDown(heap []candidate, i int) {
	for {
		child := 2*i + 1
		if child >= len(heap) {
			return
		}
		if r := child + 1; r < len(heap) && better(heap[child], heap[r]) {
			child = r
		}
		if better(heap[child], heap[i]) {
			return
		}
		heap[i], heap[child] = heap[child], heap[i]
		i = child
	}
}
