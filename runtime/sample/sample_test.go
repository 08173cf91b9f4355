package sample

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"strings"
	"testing"
)

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

// naive is the chain written down step by step: every token is sorted, and
// every step makes a new slice with probabilities that sum to 1. It returns
// the tokens that may be drawn, best first.
func naive(p Params, recent []int32, logits []float32) []candidate {
	var c []candidate
	for i, l := range logits {
		v := float64(l)
		if slices.Contains(recent[max(0, len(recent)-PenaltyWindow):], int32(i)) {
			if v > 0 {
				v /= p.RepeatPenalty
			} else {
				v *= p.RepeatPenalty
			}
		}
		if !math.IsInf(v, -1) {
			c = append(c, candidate{id: int32(i), logit: v})
		}
	}
	sort.SliceStable(c, func(i, j int) bool { return c[i].logit > c[j].logit })
	softmax := func(temp float64) {
		var sum float64
		for i := range c {
			c[i].weight = math.Exp((c[i].logit - c[0].logit) / temp)
			sum += c[i].weight
		}
		for i := range c {
			c[i].weight /= sum
		}
	}
	if p.TopK > 0 {
		c = c[:min(p.TopK, len(c))]
	}
	softmax(1)
	if p.TopP < 1 {
		var sum float64
		for i := range c {
			if sum += c[i].weight; sum >= p.TopP {
				c = c[:i+1]
				break
			}
		}
	}
	if p.MinP > 0 {
		var kept []candidate
		for _, x := range c {
			if x.logit >= c[0].logit+math.Log(p.MinP) {
				kept = append(kept, x)
			}
		}
		c = kept
	}
	if p.Temp == 0 {
		c = c[:1]
		c[0].weight = 1
	} else {
		softmax(p.Temp)
	}
	return c
}

// randomLogits gives n logits, with ties and barred tokens where asked.
func randomLogits(r *rand.Rand, n int, ties, barred bool) []float32 {
	l := make([]float32, n)
	for i := range l {
		l[i] = float32(r.NormFloat64() * 3)
		if ties {
			l[i] = float32(math.Round(float64(l[i])))
		}
		if barred && r.IntN(4) == 0 {
			l[i] = -inf
		}
	}
	l[r.IntN(n)] = 1
	return l
}

func TestAgainstNaive(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(v ...float64) float64 { return v[r.IntN(len(v))] }
	for range 3000 {
		p := Params{
			Temp:          pick(0.01, 0.8, 1, 3, 100),
			TopK:          int(pick(0, 1, 2, 5, 40, 1000)),
			TopP:          pick(0, 0.1, 0.5, 0.95, 0.999, 1),
			MinP:          pick(0, 0.05, 0.5, 1),
			RepeatPenalty: pick(1, 1.1, 2, 0.5),
		}
		n := 1 + r.IntN(300)
		logits := randomLogits(r, n, r.IntN(2) == 0, r.IntN(2) == 0)
		given := slices.Clone(logits)
		s := New(p, 7)
		var recent []int32
		for range r.IntN(100) {
			id := int32(r.IntN(n))
			recent = append(recent, id)
			s.Accept(id)
		}
		want := naive(p, recent, logits)
		if err := s.filter(logits); err != nil {
			t.Fatalf("%+v: %v", p, err)
		}
		if !slices.Equal(logits, given) {
			t.Fatalf("%+v: the caller's logits were changed", p)
		}
		got := slices.Clone(s.cands)
		slices.SortFunc(got, compare)
		var total float64
		for _, c := range got {
			total += c.weight
		}
		if len(got) != len(want) {
			t.Fatalf("%+v, %d logits: %d candidates, want %d", p, n, len(got), len(want))
		}
		for i := range got {
			if got[i].id != want[i].id || math.Abs(got[i].weight/total-want[i].weight) > 1e-12 {
				t.Fatalf("%+v, %d logits: candidate %d is token %d with %v, want token %d with %v",
					p, n, i, got[i].id, got[i].weight/total, want[i].id, want[i].weight)
			}
		}
		p.Temp = 0
		s.params = p
		id, err := s.Sample(logits)
		if want := naive(p, recent, logits)[0].id; err != nil || id != want {
			t.Fatalf("greedy, %+v: %d, %v; want %d", p, id, err, want)
		}
	}
}

// TestAgainstLlamaCpp compares the tokens that may be drawn, and their
// probabilities, with llama.cpp's. testdata/README.md says how the file was
// made.
func TestAgainstLlamaCpp(t *testing.T) {
	data, err := os.ReadFile("testdata/llamacpp.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Temp          float64   `json:"temp"`
		TopK          int       `json:"top_k"`
		TopP          float64   `json:"top_p"`
		MinP          float64   `json:"min_p"`
		RepeatPenalty float64   `json:"repeat_penalty"`
		Recent        []int32   `json:"recent"`
		Logits        []float32 `json:"logits"`
		IDs           []int32   `json:"ids"`
		Probs         []float64 `json:"probs"`
	}
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 50 {
		t.Fatalf("%d cases, want at least 50", len(cases))
	}
	var worst float64
	for i, c := range cases {
		p := Params{Temp: c.Temp, TopK: c.TopK, TopP: c.TopP, MinP: c.MinP, RepeatPenalty: c.RepeatPenalty}
		s := New(p, 1)
		for _, id := range c.Recent {
			s.Accept(id)
		}
		if p.Temp == 0 {
			if id, err := s.Sample(c.Logits); err != nil || len(c.IDs) != 1 || id != c.IDs[0] {
				t.Errorf("case %d, %+v: %d, %v; want %v", i, p, id, err, c.IDs)
			}
			continue
		}
		if err := s.filter(c.Logits); err != nil {
			t.Errorf("case %d, %+v: %v", i, p, err)
			continue
		}
		slices.SortFunc(s.cands, func(a, b candidate) int { return int(a.id - b.id) })
		var ids []int32
		var total float64
		for _, x := range s.cands {
			ids = append(ids, x.id)
			total += x.weight
		}
		if !slices.Equal(ids, c.IDs) {
			t.Errorf("case %d, %+v: tokens %v, want %v", i, p, ids, c.IDs)
			continue
		}
		for j, x := range s.cands {
			worst = max(worst, math.Abs(x.weight/total-c.Probs[j]))
		}
	}
	// llama.cpp keeps logits in float32, and the file six digits.
	if worst > 2e-6 {
		t.Errorf("probabilities differ by up to %.2g", worst)
	}
	t.Logf("largest difference of a probability: %.2g", worst)
}

// The draws follow the distribution of the naive chain.
func TestDistribution(t *testing.T) {
	logits := []float32{2, 1, 0.5, 0, -1, -1, -3, 1.5, -inf, 0.25}
	const draws = 50_000
	for _, p := range []Params{
		{Temp: 1, TopP: 1, RepeatPenalty: 1},
		{Temp: 0.7, TopK: 5, TopP: 1, RepeatPenalty: 1},
		{Temp: 1.5, TopP: 0.9, MinP: 0.05, RepeatPenalty: 1},
		{Temp: 1, TopP: 1, RepeatPenalty: 1.5},
	} {
		s := New(p, 42)
		s.Accept(0)
		s.Accept(4)
		counts := make([]int, len(logits))
		for range draws {
			id, err := s.Sample(logits)
			if err != nil {
				t.Fatal(err)
			}
			counts[id]++
		}
		want := naive(p, []int32{0, 4}, logits)
		var chi2 float64
		for _, c := range want {
			e := c.weight * draws
			d := float64(counts[c.id]) - e
			chi2 += d * d / e
			counts[c.id] = 0
		}
		// Far in the tail for up to 8 degrees of freedom (p about 1e-4); the
		// seed is fixed, so this either always passes or never.
		if chi2 > 31.8 {
			t.Errorf("%+v: chi-square %.1f over %d tokens", p, chi2, len(want))
		}
		for id, n := range counts {
			if n != 0 {
				t.Errorf("%+v: token %d was drawn %d times and should never be", p, id, n)
			}
		}
	}
}

func TestDraw(t *testing.T) {
	const almostOne = 1 - 0x1p-53 // the largest number the generator gives
	for _, tt := range []struct {
		u       float64
		weights []float64
		want    int32
	}{
		{0, []float64{1, 1}, 0},
		{0.5, []float64{1, 1}, 1},
		{0, []float64{0, 1}, 1},
		{0.5, []float64{1, 0, 1}, 2},
		{almostOne, []float64{1, 1}, 1},
		{almostOne, []float64{1, 0x1p-52, 0}, 1},
	} {
		var c []candidate
		for i, w := range tt.weights {
			c = append(c, candidate{id: int32(i), weight: w})
		}
		if got := draw(c, tt.u); got != tt.want {
			t.Errorf("u %v, weights %v: %d, want %d", tt.u, tt.weights, got, tt.want)
		}
	}
}

func TestSeed(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	positions := make([][]float32, 50)
	for i := range positions {
		positions[i] = randomLogits(r, 1000, false, false)
	}
	run := func(seed uint64) []int32 {
		s := New(Defaults(), seed)
		var ids []int32
		for _, logits := range positions {
			id, err := s.Sample(logits)
			if err != nil {
				t.Fatal(err)
			}
			s.Accept(id)
			ids = append(ids, id)
		}
		return ids
	}
	if a, b := run(1), run(1); !slices.Equal(a, b) {
		t.Errorf("one seed, two results:\n%v\n%v", a, b)
	}
	if a, b := run(1), run(2); slices.Equal(a, b) {
		t.Errorf("seeds 1 and 2 both give %v", a)
	}
}

// The ids of a seed are a promise to users: text that was published with its
// seed can be made again. They change only with the generator.
func TestSeedGolden(t *testing.T) {
	logits := make([]float32, 100)
	for i := range logits {
		logits[i] = float32(i%10) / 4
	}
	s := New(Params{Temp: 1, TopK: 20, TopP: 1, RepeatPenalty: 1}, 1234)
	var got []int32
	for range 10 {
		id, err := s.Sample(logits)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, id)
	}
	want := []int32{79, 9, 8, 58, 9, 8, 38, 89, 99, 99}
	if !slices.Equal(got, want) {
		t.Errorf("ids %v, want %v", got, want)
	}
}

// The penalty looks at the last PenaltyWindow tokens, and at each token once
// however often it was seen.
func TestRepeatPenalty(t *testing.T) {
	greedy := Params{TopP: 1, RepeatPenalty: 2}
	logits := []float32{4, 3, 1.5}
	for _, tt := range []struct {
		name   string
		accept []int32
		want   int32
	}{
		{"nothing accepted", nil, 0},
		{"best token", []int32{0}, 1},
		{"twice is no more than once: 4/2 beats 1.5", []int32{0, 0, 1, 1}, 0},
		{"both better ones, ratio kept", []int32{0, 1}, 0},
		{"at the end of the window", append([]int32{0}, slices.Repeat([]int32{2}, PenaltyWindow-1)...), 1},
		{"out of the window", append([]int32{0}, slices.Repeat([]int32{2}, PenaltyWindow)...), 0},
		{"ids outside the vocabulary", []int32{-1, 3, math.MaxInt32, math.MinInt32, 0}, 1},
	} {
		s := New(greedy, 1)
		for _, id := range tt.accept {
			s.Accept(id)
		}
		if id, err := s.Sample(logits); err != nil || id != tt.want {
			t.Errorf("%s: %d, %v; want %d", tt.name, id, err, tt.want)
		}
	}
	// Logits at or below 0 are multiplied.
	s := New(greedy, 1)
	s.Accept(0)
	if id, err := s.Sample([]float32{-1, -1.5}); err != nil || id != 1 {
		t.Errorf("negative logits: %d, %v; want 1", id, err)
	}
}

func TestGreedyTies(t *testing.T) {
	for _, tt := range []struct {
		logits []float32
		want   int32
	}{
		{[]float32{0}, 0},
		{[]float32{1, 1, 1}, 0},
		{[]float32{0, 2, 1, 2}, 1},
		{[]float32{-inf, -5, -5}, 1},
		{[]float32{float32(math.Copysign(0, -1)), 0}, 0},
		{[]float32{-math.MaxFloat32, math.MaxFloat32, math.MaxFloat32}, 1},
	} {
		if id, err := New(Params{TopP: 1, RepeatPenalty: 1}, 1).Sample(tt.logits); err != nil || id != tt.want {
			t.Errorf("%v: %d, %v; want %d", tt.logits, id, err, tt.want)
		}
	}
}

// Settings that leave one token draw it, whatever the generator says.
func TestSingleSurvivor(t *testing.T) {
	logits := []float32{1, 3, 3, 2}
	for _, p := range []Params{
		{Temp: 100, TopK: 1, TopP: 1, RepeatPenalty: 1},
		{Temp: 100, TopP: 0, RepeatPenalty: 1},
		{Temp: 100, TopK: 3, TopP: 0, RepeatPenalty: 1},
		{Temp: 100, TopK: 2, TopP: 0.5, RepeatPenalty: 1},
	} {
		s := New(p, 5)
		for range 50 {
			if id, err := s.Sample(logits); err != nil || id != 1 {
				t.Fatalf("%+v: %d, %v; want 1", p, id, err)
			}
		}
	}
	s := New(Params{Temp: math.SmallestNonzeroFloat64, TopP: 1, RepeatPenalty: 1}, 5)
	for range 50 {
		if id, err := s.Sample(logits); err != nil || (id != 1 && id != 2) {
			t.Fatalf("tiny temperature: %d, %v; want 1 or 2", id, err)
		}
	}
}

func TestBadLogits(t *testing.T) {
	for _, tt := range []struct {
		logits []float32
		want   string
	}{
		{nil, "vocabulary is empty"},
		{[]float32{-inf, -inf}, "all 2 logits are -Inf"},
		{[]float32{0, 1, nan, 2}, "token 2 is NaN"},
		{[]float32{nan, nan}, "token 0 is NaN"},
		{[]float32{0, inf}, "token 1 is +Inf"},
	} {
		for _, temp := range []float64{0, 1} {
			for _, k := range []int{0, 1} {
				p := Defaults()
				p.Temp, p.TopK = temp, k
				s := New(p, 1)
				if _, err := s.Sample(tt.logits); err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%v at temperature %v: error %v, want %q", tt.logits, temp, err, tt.want)
				}
				// A failed call draws nothing.
				if s.rng.Uint64() != New(p, 1).rng.Uint64() {
					t.Errorf("%v: the failed call moved the generator", tt.logits)
				}
			}
		}
	}
}

func TestValidate(t *testing.T) {
	if err := Defaults().Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	for _, p := range []Params{
		{Temp: 0, TopK: 0, TopP: 0, MinP: 0, RepeatPenalty: minPenalty},
		{Temp: maxTemp, TopK: maxTopK, TopP: 1, MinP: 1, RepeatPenalty: maxPenalty},
	} {
		if err := p.Validate(); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
	set := map[string]func(*Params, float64){
		"--temp":           func(p *Params, v float64) { p.Temp = v },
		"--top-p":          func(p *Params, v float64) { p.TopP = v },
		"--min-p":          func(p *Params, v float64) { p.MinP = v },
		"--repeat-penalty": func(p *Params, v float64) { p.RepeatPenalty = v },
	}
	for flag, f := range set {
		for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -0.1, 100.5} {
			p := Defaults()
			f(&p, v)
			err := p.Validate()
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%s %v: want", flag, v)) {
				t.Errorf("%s %v: error %v", flag, v, err)
			}
			if _, got := New(p, 1).Sample([]float32{1}); got == nil || got.Error() != err.Error() {
				t.Errorf("%s %v: Sample says %v", flag, v, got)
			}
		}
	}
	p := Defaults()
	p.TopK = -1
	if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "--top-k -1") {
		t.Errorf("--top-k -1: error %v", err)
	}
	// All faults are told at once.
	if err := (Params{Temp: -1, TopK: -1, TopP: 2, MinP: 2}).Validate(); err == nil || strings.Count(err.Error(), "--") != 5 {
		t.Errorf("five faults: %v", err)
	}
}

func TestAllocs(t *testing.T) {
	logits := randomLogits(rand.New(rand.NewPCG(5, 6)), 5000, false, false)
	for _, p := range []Params{
		Defaults(),
		{Temp: 0, TopP: 1, RepeatPenalty: 1.1},
		{Temp: 1, TopP: 0.99, MinP: 0.01, RepeatPenalty: 1.1},
	} {
		s := New(p, 1)
		step := func() {
			id, err := s.Sample(logits)
			if err != nil {
				t.Fatal(err)
			}
			s.Accept(id)
		}
		step()
		if n := testing.AllocsPerRun(100, step); n != 0 {
			t.Errorf("%+v: %v allocations a token, want 0", p, n)
		}
	}
}

// FuzzSample checks on any logits and settings that the token drawn is one the
// naive chain allows.
func FuzzSample(f *testing.F) {
	f.Add([]byte{0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 0, 0}, 0.8, 40, 0.95, 0.05, 1.1, uint64(1))
	f.Add([]byte{0, 0, 128, 255, 0, 0, 192, 127}, 0.0, 0, 1.0, 0.0, 1.0, uint64(2))
	f.Add([]byte{255, 255, 127, 127, 255, 255, 127, 255}, 100.0, 1, 0.0, 1.0, 100.0, uint64(3))
	f.Add([]byte{1, 0, 0, 0, 1, 0, 0, 128, 0, 0, 128, 63}, 1e-300, 2, 0.5, 0.5, 0.01, uint64(4))
	f.Fuzz(func(t *testing.T, data []byte, temp float64, topK int, topP, minP, penalty float64, seed uint64) {
		p := Params{Temp: temp, TopK: topK, TopP: topP, MinP: minP, RepeatPenalty: penalty}
		logits := make([]float32, len(data)/4)
		for i := range logits {
			logits[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
		s := New(p, seed)
		s.Accept(1)
		id, err := s.Sample(logits)
		if p.Validate() != nil {
			if err == nil {
				t.Fatalf("%+v is invalid, yet %d was drawn", p, id)
			}
			return
		}
		finite, broken := false, false
		for _, l := range logits {
			broken = broken || l != l || l == inf
			finite = finite || l == l && l != inf && l != -inf
		}
		if (err == nil) != (finite && !broken) {
			t.Fatalf("%v: %d, %v", logits, id, err)
		}
		if err != nil {
			return
		}
		// The naive chain rounds its sums elsewhere: a cut a hair wider than
		// asked allows for it.
		p.TopP = min(1, p.TopP+1e-9)
		for _, c := range naive(p, []int32{1}, logits) {
			if c.id == id {
				return
			}
		}
		t.Fatalf("%+v, logits %v: token %d is not among the allowed", p, logits, id)
	})
}

func BenchmarkSample(b *testing.B) {
	logits := randomLogits(rand.New(rand.NewPCG(7, 8)), 49152, false, false)
	noTopK := Defaults()
	noTopK.TopK = 0
	for _, bb := range []struct {
		name string
		p    Params
	}{{"default", Defaults()}, {"greedy", Params{TopP: 1, RepeatPenalty: 1}}, {"noTopK", noTopK}} {
		b.Run(bb.name, func(b *testing.B) {
			s := New(bb.p, 1)
			for b.Loop() {
				if _, err := s.Sample(logits); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
