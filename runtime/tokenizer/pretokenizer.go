package tokenizer

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// A piece is a part of the text on its way to the model. It is never empty.
type piece struct {
	text   string
	first  bool    // its first character is the first of the whole text
	budget *budget // of the whole text
}

// A budget bounds what the patterns and replacements of a file, which may be
// hostile, do to one text.
type budget struct {
	bytes int           // length that the text may grow to
	regex time.Duration // time left for regular expressions
}

// maxGrowth is how many times longer normalization may make a text; real
// tokenizers stay below 20.
const maxGrowth = 64

// maxGrown bounds the length of any text after normalization: places in it are
// 32 bit numbers.
const maxGrown = math.MaxInt32 - 1<<17

// newBudget is the budget for a text of n bytes.
func newBudget(n int) *budget {
	return &budget{
		bytes: maxGrowth*min(n, maxGrown/maxGrowth) + 1<<16,
		regex: regexBase + time.Duration(n)*regexPerByte,
	}
}

// errTooLong says that normalization makes a text too long.
var errTooLong = fmt.Errorf("the tokenizer's normalizer makes this text more than %d times longer", maxGrowth)

// check fails where a text has grown beyond the budget.
func (b *budget) check(n int) error {
	if n > b.bytes {
		return errTooLong
	}
	return nil
}

// An emitter takes the pieces that one stage of the pipeline makes.
type emitter func(piece) error

// A preTokenizer splits a piece into smaller ones, and may change them.
type preTokenizer interface {
	split(p piece, emit emitter) error
}

// emitRange emits p.text[start:end] unless it is empty.
func emitRange(p piece, start, end int, emit emitter) error {
	if start == end {
		return nil
	}
	return emit(piece{p.text[start:end], p.first && start == 0, p.budget})
}

// scanSplit splits by a scanner: every match is a piece.
type scanSplit struct{ scanner scanner }

func (t scanSplit) split(p piece, emit emitter) error {
	for i := 0; i < len(p.text); {
		end := t.scanner.next(p.text, i)
		if err := emitRange(p, i, end, emit); err != nil {
			return err
		}
		i = end
	}
	return nil
}

// A pattern finds its matches in s, in order and without overlap, and calls f
// with the byte range of each. Matches may be empty.
type pattern interface {
	matches(s string, b *budget, f func(start, end int) error) error
}

// A behavior says what becomes of the matches of a patternSplit.
type behavior uint8

const (
	removed            behavior = iota // matches are dropped
	isolated                           // each match is a piece
	mergedWithPrevious                 // a match joins the text before it
	mergedWithNext                     // a match joins the text after it
	contiguous                         // neighbouring matches form one piece
)

var behaviors = map[string]behavior{
	"Removed":            removed,
	"Isolated":           isolated,
	"MergedWithPrevious": mergedWithPrevious,
	"MergedWithNext":     mergedWithNext,
	"Contiguous":         contiguous,
}

// patternSplit splits at the matches of a pattern or, inverted, at the text
// between the matches.
type patternSplit struct {
	pattern  pattern
	behavior behavior
	invert   bool
}

func (t patternSplit) split(p piece, emit emitter) error {
	// held is a piece whose end is not known yet.
	var held struct {
		start, end int
		ok, match  bool
	}
	flush := func() error {
		if !held.ok {
			return nil
		}
		held.ok = false
		return emitRange(p, held.start, held.end, emit)
	}
	// part takes the next stretch of the text, alternately outside and inside
	// matches (two matches may touch).
	part := func(start, end int, match bool) error {
		match = match != t.invert
		join := false
		switch t.behavior {
		case removed:
			if match {
				return nil
			}
			return emitRange(p, start, end, emit)
		case isolated:
			return emitRange(p, start, end, emit)
		case mergedWithPrevious:
			join = match && !held.match
		case mergedWithNext:
			join = !match && held.match
		case contiguous:
			join = match == held.match
		}
		if !join || !held.ok {
			if err := flush(); err != nil {
				return err
			}
			held.start = start
		}
		held.end, held.match, held.ok = end, match, true
		return nil
	}
	done := 0
	err := t.pattern.matches(p.text, p.budget, func(start, end int) error {
		if start > done {
			if err := part(done, start, false); err != nil {
				return err
			}
		}
		done = end
		return part(start, end, true)
	})
	if err != nil {
		return err
	}
	if done < len(p.text) {
		if err := part(done, len(p.text), false); err != nil {
			return err
		}
	}
	return flush()
}

// literal is the pattern of a fixed string, which must not be empty.
type literal string

func (l literal) matches(s string, _ *budget, f func(start, end int) error) error {
	for done := 0; ; {
		i := strings.Index(s[done:], string(l))
		if i < 0 {
			return nil
		}
		start := done + i
		done = start + len(l)
		if err := f(start, done); err != nil {
			return err
		}
	}
}

// characterPattern matches each character for which the function holds.
type characterPattern func(rune) bool

func (p characterPattern) matches(s string, _ *budget, f func(start, end int) error) error {
	for i, r := range s {
		if p(r) {
			if err := f(i, i+utf8.RuneLen(r)); err != nil {
				return err
			}
		}
	}
	return nil
}

// characterSplit is a patternSplit by single characters, which are removed or
// isolated, without its overhead.
type characterSplit struct {
	match  func(rune) bool
	remove bool
}

func (t characterSplit) split(p piece, emit emitter) error {
	start := 0
	for i, r := range p.text {
		if !t.match(r) {
			continue
		}
		if err := emitRange(p, start, i, emit); err != nil {
			return err
		}
		start = i + utf8.RuneLen(r)
		if t.remove {
			continue
		}
		if err := emitRange(p, i, start, emit); err != nil {
			return err
		}
	}
	return emitRange(p, start, len(p.text), emit)
}

// bertStages split at white space, and isolate punctuation.
var bertStages = []preTokenizer{characterSplit{unicode.IsSpace, true}, characterSplit{isPunctuation, false}}

// isNumeric reports whether a character is of a Unicode category N.
func isNumeric(r rune) bool { return characterClass(r) == classNumber }

// wordPattern is \w+|[^\w\s]+, the pattern of the Whitespace pre-tokenizer.
type wordPattern struct{}

func (wordPattern) matches(s string, _ *budget, f func(start, end int) error) error {
	const space, word, other = 0, 1, 2
	start, kind := 0, space
	for i, r := range s {
		now := other
		switch {
		case isWord(r):
			now = word
		case unicode.IsSpace(r):
			now = space
		}
		if now != kind {
			if kind != space {
				if err := f(start, i); err != nil {
					return err
				}
			}
			start, kind = i, now
		}
	}
	if kind != space && start < len(s) {
		return f(start, len(s))
	}
	return nil
}

// byteLevel turns each byte into its character of the GPT-2 alphabet. With raw
// it leaves that to the model, which then works on bytes: byte-level BPE as the
// last stage.
type byteLevel struct {
	prefixSpace bool
	pattern     bool // split by the pattern of GPT-2 first
	raw         bool
}

func (t byteLevel) split(p piece, emit emitter) error {
	if t.prefixSpace && p.text[0] != ' ' {
		p.text = " " + p.text
	}
	out := emit
	if !t.raw {
		out = func(p piece) error { return emit(piece{toByteLevel(p.text), p.first, p.budget}) }
	}
	if !t.pattern {
		return out(p)
	}
	return scanSplit{gpt2Scanner{}}.split(p, out)
}

// A prependScheme says when metaspace puts its mark in front of a piece.
type prependScheme uint8

const (
	prependAlways prependScheme = iota
	prependFirst                // only where the piece begins the whole text
	prependNever
)

var prependSchemes = map[string]prependScheme{
	"always": prependAlways, "first": prependFirst, "never": prependNever,
}

// metaspace writes blanks as a visible mark and splits before the marks.
type metaspace struct {
	mark    string
	prepend prependScheme
	cut     bool
}

func (t metaspace) split(p piece, emit emitter) error {
	text := strings.ReplaceAll(p.text, " ", t.mark)
	if !strings.HasPrefix(text, t.mark) && (t.prepend == prependAlways || t.prepend == prependFirst && p.first) {
		text = t.mark + text
	}
	p.text = text
	if !t.cut {
		return emit(p)
	}
	// The same as a patternSplit that merges the mark with the next text, which
	// is the bulk of the work for such tokenizers: a mark starts a piece.
	for start := 0; start < len(text); {
		end := len(text)
		if i := strings.Index(text[start+1:], t.mark); i >= 0 {
			end = start + 1 + i
		}
		if err := emitRange(p, start, end, emit); err != nil {
			return err
		}
		start = end
	}
	return nil
}

// fixedLength cuts pieces of a number of characters.
type fixedLength int

func (t fixedLength) split(p piece, emit emitter) error {
	start, n := 0, 0
	for i := range p.text {
		if n == int(t) {
			if err := emitRange(p, start, i, emit); err != nil {
				return err
			}
			start, n = i, 0
		}
		n++
	}
	return emitRange(p, start, len(p.text), emit)
}
