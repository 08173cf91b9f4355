package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// The words, and the order in which they are drawn, are those of
// testmodels/train/fpatrain/grammar.py.
var (
	colours = strings.Fields("red blue green white black gold silver purple")
	people  = strings.Fields("farmer baker sailor teacher doctor painter hunter miller king child")
	manners = strings.Fields("old young quiet tall tired happy poor clever")
	moves   = strings.Fields("walked slept waited sang rested worked stood sat laughed played")
	deeds   = strings.Fields("carried bought sold found mended watched counted cleaned")
	things  = strings.Fields("apples stones letters boats sheep coins books lamps ropes barrels")
	places  = strings.Fields("river gate bridge barn hill market garden mill forest harbor")
	sides   = strings.Fields("near behind beside below beyond")
	winds   = strings.Fields("north south east west")
	times   = []string{"today", "alone", "again", "slowly", "at night", "in the morning", "before the storm", "after lunch"}
	digits  = strings.Split("0123456789", "")

	needles = []string{
		"The {name} key is {number}.",
		"The {name} key is {number}. Remember it.",
		"Remember that the {name} key is {number}.",
		"Keep the {name} key, which is {number}.",
		"For the {name} key use {number}.",
		"Note the {name} key: {number}.",
	}
	numbered = []string{
		"The {person} counted {number} {things}.",
		"There were {number} {things} in the {place}.",
		"House {number} stands {side} the {place}.",
		"In the year {number} the {place} was closed.",
		"The road to the {place} is {number} miles long.",
		"The {person} paid {number} coins for the {things}.",
	}
)

const (
	trained      = 256 // tokens of the longest training texts
	answerTokens = 8   // space, five digits, full stop, end
	distractors  = 0.15
)

// filler is a sentence without numbers.
func filler(r *random) string {
	c := r.choice
	switch kind := r.float64(); {
	case kind < 0.45:
		return fmt.Sprintf("The %s %s %s %s the %s %s.", c(manners), c(people), c(moves), c(sides), c(places), c(times))
	case kind < 0.8:
		return fmt.Sprintf("A %s %s the %s and %s %s the %s.", c(people), c(deeds), c(things), c(moves), c(sides), c(places))
	case kind < 0.9:
		return fmt.Sprintf("The wind from the %s blew over the %s.", c(winds), c(places))
	}
	return fmt.Sprintf("Then the %s and the %s %s %s.", c(people), c(people), c(moves), c(times))
}

// distractor is a sentence with a number of 2 to 5 digits that is no key's.
func distractor(r *random, keys []string) string {
	number := ""
	for number == "" || slices.Contains(keys, number) {
		low := 1
		for range r.between(2, 5) - 1 {
			low *= 10
		}
		number = strconv.Itoa(r.between(low, 10*low-1))
	}
	form := r.choice(numbered)
	return strings.NewReplacer("{number}", number, "{person}", r.choice(people), "{things}", r.choice(things),
		"{place}", r.choice(places), "{side}", r.choice(sides)).Replace(form)
}

func sentence(r *random, keys []string) string {
	if r.float64() < distractors {
		return distractor(r, keys)
	}
	return filler(r)
}

// line is a line of the data.
type line struct {
	Prompt string  `json:"prompt"`
	Answer string  `json:"answer"`
	Length int     `json:"length"` // tokens of prompt and answer, the first and last of all included
	Factor float64 `json:"factor"` // times the training length
	Depth  float64 `json:"depth"`  // place of the answer among the sentences, 0 to 1
	Task   string  `json:"task"`
}

// maker makes prompts.
type maker struct {
	tokenizer *tokenizer.Tokenizer
	words     map[string]int // tokens of a word with the space before it
}

// tokens is how many tokens a sentence has that is not the first. The tokenizer
// splits at spaces before anything else, so they are those of its words.
func (m *maker) tokens(text string) (int, error) {
	n := 0
	for _, word := range strings.Split(text, " ") {
		here, ok := m.words[word]
		if !ok {
			ids, err := m.tokenizer.Encode(" "+word, tokenizer.EncodeOptions{})
			if err != nil {
				return 0, err
			}
			here = len(ids)
			m.words[word] = here
		}
		n += here
	}
	return n, nil
}

// fillable reports whether sentences without numbers, of 9 to 11 tokens, can fill
// so many tokens.
func fillable(room int) bool { return (room+10)/11 <= room/9 }

// make makes prompt number index of count. Task one asks for "the pass key", task
// three for one of three keys named by colours.
func (m *maker) make(seed int, task string, length, index, count int) (*line, error) {
	r := newRandom(fmt.Sprintf("eval-%d-%s-%d-%d", seed, task, length, index))
	depth := 0.5
	if count > 1 {
		depth = float64(index) / float64(count-1)
	}
	names, depths := []string{"pass"}, []float64{depth}
	if task == "three" {
		names = r.sample(colours, 3)
		depths = append(depths, r.float64(), r.float64())
	}
	var keys []string
	for len(keys) < len(names) {
		key := ""
		for range 5 {
			key += r.choice(digits)
		}
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	question := fmt.Sprintf("What is the %s key? The %[1]s key is", names[0])
	told, room, err := m.tell(r, names, keys, question, length)
	if err != nil {
		return nil, err
	}
	texts, err := m.fill(r, keys, room)
	if err != nil {
		return nil, err
	}
	texts = append(insert(texts, told, depths), question)
	l := &line{
		Prompt: strings.Join(texts, " "), Answer: " " + keys[0] + ".", Length: length, Factor: float64(length) / trained,
		Depth: math.Round(depth*1e4) / 1e4, Task: task,
	}
	ids, err := m.tokenizer.Encode(l.Prompt, tokenizer.EncodeOptions{AddSpecial: true})
	if err == nil && len(ids) != length-answerTokens {
		err = fmt.Errorf("the prompt has %d tokens, expected %d; the tokenizer is not that of the passkey model", len(ids), length-answerTokens)
	}
	return l, err
}

// tell draws the sentences that tell the keys until the rest can be filled, and
// returns how many tokens that is.
func (m *maker) tell(r *random, names, keys []string, question string, length int) (told []string, room int, err error) {
	end, err := m.tokens(question)
	if err != nil {
		return nil, 0, err
	}
	for {
		told, room = told[:0], length-1-answerTokens-end
		for i, name := range names {
			text := strings.NewReplacer("{name}", name, "{number}", keys[i]).Replace(r.choice(needles))
			n, err := m.tokens(text)
			if err != nil {
				return nil, 0, err
			}
			told = append(told, text)
			room -= n
		}
		if room < 18 {
			return nil, 0, fmt.Errorf("length %d is too short to hold %d keys and some filler", length, len(names))
		}
		if fillable(room) {
			return told, room, nil
		}
	}
}

// fill draws sentences of exactly room tokens in all.
func (m *maker) fill(r *random, keys []string, room int) ([]string, error) {
	var texts []string
	for misses := 0; room > 0; misses++ {
		text := sentence(r, keys)
		n, err := m.tokens(text)
		if err != nil {
			return nil, err
		}
		if left := room - n; left >= 0 && fillable(left) {
			texts = append(texts, text)
			room, misses = left, 0
		} else if misses > 1e6 { // with the passkey model's tokenizer a few hundred at most
			return nil, errors.New("no sentence fits the rest; the tokenizer is not that of the passkey model")
		}
	}
	return texts, nil
}

// insert puts each of told at its depth among the texts.
func insert(texts, told []string, depths []float64) []string {
	type place struct{ at, n int }
	var order []place
	for n, d := range depths {
		order = append(order, place{int(math.RoundToEven(d * float64(len(texts)))), n})
	}
	slices.SortFunc(order, func(a, b place) int { // from the end, so that places before stay
		if a.at != b.at {
			return b.at - a.at
		}
		return b.n - a.n
	})
	for _, p := range order {
		texts = slices.Insert(texts, p.at, told[p.n])
	}
	return texts
}
