package tokenizer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// Bounds on regular expressions, which come from the file: a pattern can need
// exponential time. matchTimeout bounds one match; a whole text may take
// regexBase and regexPerByte for each byte.
const (
	maxPatternLength = 16 << 10
	matchTimeout     = 5 * time.Second
	regexBase        = 10 * time.Second
	regexPerByte     = 20 * time.Microsecond
)

// errSlowPattern says that a pattern ran out of the time that its text allows.
var errSlowPattern = errors.New("the tokenizer's regular expression takes too long on this text: the file's pattern backtracks too much")

// regexPattern is a regular expression in the syntax of Oniguruma (which the
// reference uses), run by regexp2.
type regexPattern struct{ re *regexp2.Regexp }

// newRegex compiles a pattern, or says what in it is not supported.
func newRegex(source string) (*regexPattern, error) {
	if len(source) > maxPatternLength {
		return nil, fmt.Errorf("regular expression of %d bytes; at most %d are supported", len(source), maxPatternLength)
	}
	translated, err := translateRegex(source)
	if err != nil {
		return nil, fmt.Errorf("regular expression %q: %w", source, err)
	}
	// In Oniguruma's default syntax ^ and $ always match at line ends.
	re, err := regexp2.Compile(translated, regexp2.Multiline)
	if err != nil {
		return nil, fmt.Errorf("regular expression %q is not supported: %w", source, err)
	}
	re.MatchTimeout = matchTimeout
	return &regexPattern{re}, nil
}

// matches calls f with the byte range of each match in s, in order. Time is
// charged to the budget.
func (p *regexPattern) matches(s string, b *budget, f func(start, end int) error) error {
	clock := time.Now()
	charge := func() error {
		now := time.Now()
		b.regex -= now.Sub(clock)
		clock = now
		if b.regex < 0 {
			return errSlowPattern
		}
		return nil
	}
	runes := []rune(s)
	m, err := p.re.FindRunesMatch(runes)
	runeAt, byteAt := 0, 0 // the same place in runes and in s
	last := -1             // where the last match ended
	for n := 1; m != nil && err == nil; n++ {
		if n%64 == 0 {
			if err := charge(); err != nil {
				return err
			}
		}
		for ; runeAt < m.Index; runeAt++ {
			byteAt += utf8.RuneLen(runes[runeAt])
		}
		start := byteAt
		for ; runeAt < m.Index+m.Length; runeAt++ {
			byteAt += utf8.RuneLen(runes[runeAt])
		}
		if start < byteAt || start != last {
			last = byteAt
			if err := f(start, byteAt); err != nil {
				return err
			}
		}
		m, err = p.re.FindNextMatch(m)
	}
	if err != nil {
		return fmt.Errorf("%w (%v)", errSlowPattern, err)
	}
	return charge()
}

// replace replaces each match in s.
func (p *regexPattern) replace(s, with string, budget *budget) (string, error) {
	var b strings.Builder
	done := 0
	err := p.matches(s, budget, func(start, end int) error {
		b.WriteString(s[done:start])
		b.WriteString(with)
		done = end
		return budget.check(b.Len())
	})
	if err != nil {
		return "", err
	}
	b.WriteString(s[done:])
	return b.String(), nil
}

// wordClass is the inside of a character class for \w inside a class in
// Oniguruma: letters, letter-like numbers, marks, decimal digits, connectors, and
// the circled and squared letters, which have the property Alphabetic too. Outside
// a class, \w matches the superscripts and fractions of Latin-1 as well.
const (
	wordClass = `\p{L}\p{Nl}\p{M}\p{Nd}\p{Pc}` +
		"\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189"
	word    = "[" + wordClass + "\u00b2\u00b3\u00b9\u00bc-\u00be]"
	notWord = "[^" + wordClass + "\u00b2\u00b3\u00b9\u00bc-\u00be]"
)

// Word boundaries, and their absence, for this meaning of \w.
const (
	wordBoundary   = "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))"
	noWordBoundary = "(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))"
)

// maxGroupDepth bounds the nesting of groups in a pattern.
const maxGroupDepth = 64

// groupOpenings are the ways to open a group that are supported: what both
// engines read alike, and the switches of case, which are worked into the
// pattern.
var groupOpenings = []string{"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?i)", "(?-i:", "(?-i)"}

// A regexTranslator rewrites a pattern from Oniguruma's syntax to regexp2's. It
// passes what means the same in both, rewrites what differs, and refuses the
// rest by name.
type regexTranslator struct {
	out    []byte
	fold   bool // case is ignored here
	groups []openGroup
	atom   int // start in out of the last thing that a quantifier may follow, or -1
}

type openGroup struct {
	start int  // in out
	fold  bool // outside the group
}

func translateRegex(source string) (string, error) {
	t := regexTranslator{atom: -1}
	for rest := source; rest != ""; {
		n, err := t.step(rest)
		if err != nil {
			return "", err
		}
		rest = rest[n:]
	}
	return string(t.out), nil
}

// step translates what rest begins with, and says how long it is.
func (t *regexTranslator) step(rest string) (n int, err error) {
	c, n := utf8.DecodeRuneInString(rest)
	switch c {
	case '\\':
		text, r, n, err := translateEscape(rest)
		switch {
		case err != nil:
			return 0, err
		case r >= 0:
			t.character(r, text)
		case t.fold && casedProperty(text):
			return 0, errCasedProperty
		default:
			t.add(text)
		}
		return n, nil
	case '[':
		class, n, err := t.class(rest)
		if err != nil {
			return 0, err
		}
		t.add(class)
		return n, nil
	case '(':
		return t.open(rest)
	case ')':
		if len(t.groups) == 0 {
			return 0, errors.New("unmatched )")
		}
		group := t.groups[len(t.groups)-1]
		t.groups = t.groups[:len(t.groups)-1]
		t.atom, t.fold = group.start, group.fold
		t.out = append(t.out, ')')
	case '*', '+', '?', '{':
		return t.quantifier(rest)
	case '|', '^', '$':
		t.atom = -1
		t.out = append(t.out, byte(c))
	default:
		t.character(c, rest[:n])
	}
	return n, nil
}

// character adds a character, written as text, in all its cases.
func (t *regexTranslator) character(r rune, text string) {
	if others := t.folds(r); others != "" {
		text = "[" + text + others + "]"
	}
	t.add(text)
}

// add adds something that a quantifier may follow.
func (t *regexTranslator) add(text string) {
	t.atom = len(t.out)
	t.out = append(t.out, text...)
}

// folds are the other cases of a character, where case is ignored.
func (t *regexTranslator) folds(c rune) string {
	others := ""
	if t.fold {
		for r := unicode.SimpleFold(c); r != c; r = unicode.SimpleFold(r) {
			others += string(r)
		}
	}
	return others
}

func (t *regexTranslator) open(rest string) (n int, err error) {
	opening := "("
	if strings.HasPrefix(rest, "(?") {
		opening = ""
		for _, known := range groupOpenings {
			if strings.HasPrefix(rest, known) {
				opening = known
			}
		}
		if opening == "" {
			return 0, fmt.Errorf("the group %.5q is not supported", rest)
		}
	}
	t.atom = -1
	fold := t.fold
	switch opening {
	case "(?i)", "(?i:":
		t.fold = true
	case "(?-i)", "(?-i:":
		t.fold = false
	}
	if strings.HasSuffix(opening, ")") { // up to the end of the group around it
		return len(opening), nil
	}
	if len(t.groups) == maxGroupDepth {
		return 0, fmt.Errorf("more than %d nested groups are not supported", maxGroupDepth)
	}
	t.groups = append(t.groups, openGroup{len(t.out), fold})
	n = len(opening)
	if strings.HasSuffix(opening, "i:") {
		opening = "(?:"
	}
	t.out = append(t.out, opening...)
	return n, nil
}

func (t *regexTranslator) quantifier(rest string) (n int, err error) {
	quantifier := rest[:1]
	if quantifier == "{" {
		if quantifier = interval(rest); quantifier == "" {
			return 0, errors.New(`a { that is no quantifier is not supported; write \{`)
		}
	}
	if t.atom < 0 {
		return 0, fmt.Errorf("nothing before the quantifier %s", quantifier)
	}
	n = len(quantifier)
	wrap := func(prefix, suffix string) {
		last := string(t.out[t.atom:])
		t.out = append(t.out[:t.atom], prefix+last+suffix...)
		n++
	}
	switch {
	case !strings.HasPrefix(rest[n:], "+"):
		if strings.HasPrefix(rest[n:], "?") {
			n++
		}
		t.out = append(t.out, rest[:n]...)
	case rest[0] == '{': // X{1,3}+ repeats once more
		wrap("(?:", quantifier+")+")
	default: // X++ never gives back what it took
		wrap("(?>", quantifier+")")
	}
	if len(rest) > n && strings.IndexByte("*+?{", rest[n]) >= 0 {
		return 0, errors.New("a quantifier after a quantifier is not supported")
	}
	t.atom = -1
	return n, nil
}

// interval is the quantifier {n}, {n,} or {n,m} at the start of s, or nothing.
func interval(s string) string {
	end := strings.IndexByte(s, '}')
	if end < 2 || strings.Trim(s[1:end], "0123456789,") != "" || strings.Count(s[:end], ",") > 1 || s[1] == ',' {
		return ""
	}
	return s[:end+1]
}

// translateEscape translates the escape at the start of s outside a character
// class, and says how long it is.
func translateEscape(s string) (text string, r rune, length int, err error) {
	if len(s) > 1 {
		switch s[1] {
		case 'w':
			return word, -1, 2, nil
		case 'W':
			return notWord, -1, 2, nil
		case 'b':
			return wordBoundary, -1, 2, nil
		case 'B':
			return noWordBoundary, -1, 2, nil
		case 'A', 'z', 'Z':
			return s[:2], -1, 2, nil
		}
	}
	return commonEscape(s)
}

// commonEscape translates an escape that may stand inside and outside a class.
// r is the character that it stands for, or -1 where it stands for a set.
func commonEscape(s string) (text string, r rune, length int, err error) {
	if len(s) < 2 {
		return "", 0, 0, errors.New("it ends in a backslash")
	}
	unknown := fmt.Errorf("the escape %.6q is not supported", s)
	switch c := s[1]; {
	case strings.IndexByte("sSdD", c) >= 0:
		return s[:2], -1, 2, nil
	case strings.IndexByte("nrtfav", c) >= 0:
		r = map[byte]rune{'n': '\n', 'r': '\r', 't': '\t', 'f': '\f', 'a': '\a', 'v': '\v'}[c]
		return quote(r), r, 2, nil
	case c < utf8.RuneSelf && isPunctuation(rune(c)), c == ' ':
		return quote(rune(c)), rune(c), 2, nil
	case c == 'p' || c == 'P':
		end := strings.IndexByte(s, '}')
		if len(s) < 4 || s[2] != '{' || end < 4 {
			return "", 0, 0, fmt.Errorf("the property %.6q is not supported", s)
		}
		name := s[3:end]
		if after, negated := strings.CutPrefix(name, "^"); negated {
			name = after
			c ^= 'p' ^ 'P'
		}
		return `\` + string(c) + "{" + name + "}", -1, end + 1, nil
	case c == 'x' || c == 'u':
		digits, length := s[2:], 0
		if after, braced := strings.CutPrefix(digits, "{"); braced {
			end := strings.IndexByte(after, '}')
			if end < 0 {
				return "", 0, 0, unknown
			}
			digits, length = after[:end], end+4
		} else {
			n := 2
			if c == 'u' {
				n = 4
			}
			if len(digits) < n {
				return "", 0, 0, unknown
			}
			digits, length = digits[:n], n+2
		}
		n, err := strconv.ParseUint(digits, 16, 32)
		if err != nil || n > unicode.MaxRune || c == 'x' && s[2] != '{' && n >= utf8.RuneSelf || !utf8.ValidRune(rune(n)) {
			return "", 0, 0, unknown // \x80 and above are bytes in Oniguruma
		}
		return quote(rune(n)), rune(n), length, nil
	}
	return "", 0, 0, unknown
}

// quote is a character as a literal of regexp2, inside and outside a class.
func quote(r rune) string {
	if r < utf8.RuneSelf && isPunctuation(r) && r != '_' {
		return `\` + string(r)
	}
	return string(r)
}

// errCasedProperty says that a property under (?i) would need case folding.
var errCasedProperty = errors.New("a property of upper or lower case where case is ignored is not supported")

// casedProperty reports whether a translated escape is a property that depends
// on case.
func casedProperty(text string) bool {
	name := strings.ToLower(strings.Trim(text, `\pP{}`))
	return name == "lu" || name == "ll" || name == "lt" || strings.Contains(name, "upper") || strings.Contains(name, "lower")
}

// maxFoldedRange bounds the ranges of which other cases are looked for.
const maxFoldedRange = 0x1000

// class translates the character class at the start of s. A class inside a
// class is a part of it.
func (t *regexTranslator) class(s string) (text string, length int, err error) {
	out := []byte{'['}
	i := 1
	if strings.HasPrefix(s[i:], "^") {
		out = append(out, '^')
		i++
	}
	low := rune(-1) // the character that a range may start with
	depth := 1
	for first := true; i < len(s); first = false {
		rest := s[i:]
		switch {
		case rest[0] == ']' && !first:
			low = -1
			i++
			if depth--; depth == 0 {
				return string(append(out, ']')), i, nil
			}
		case rest[0] == ']':
			return "", 0, errors.New(`a ] at the start of a character class is not supported; write \]`)
		case rest[0] == '[':
			if strings.HasPrefix(rest, "[:") || strings.HasPrefix(rest, "[^") || strings.HasPrefix(rest, "[]") {
				return "", 0, fmt.Errorf("%.2q inside a character class is not supported", rest)
			}
			low = -1
			depth++
			i++
		case strings.HasPrefix(rest, "&&"):
			return "", 0, errors.New("the intersection && of character classes is not supported")
		case rest[0] == '-' && low >= 0 && len(rest) > 1 && rest[1] != ']':
			item, high, n, err := classItem(rest[1:])
			if err != nil {
				return "", 0, err
			}
			if high < low || rest[1] == '[' {
				return "", 0, fmt.Errorf("the range %q-%.6q is not supported", low, item)
			}
			out = append(append(out, '-'), item...)
			if t.fold && high-low > maxFoldedRange {
				return "", 0, errors.New("a long range where case is ignored is not supported")
			}
			for r := low + 1; r <= high; r++ {
				out = append(out, t.folds(r)...)
			}
			low = -1
			i += 1 + n
		default:
			item, r, n, err := classItem(rest)
			if err != nil {
				return "", 0, err
			}
			if t.fold && casedProperty(item) {
				return "", 0, errCasedProperty
			}
			if r >= 0 {
				out = append(out, t.folds(r)...)
			}
			out = append(out, item...)
			low = r
			i += n
		}
	}
	return "", 0, errors.New("a character class is not closed")
}

// classItem translates one character or escape of a class.
func classItem(s string) (text string, r rune, length int, err error) {
	switch {
	case strings.HasPrefix(s, `\w`):
		return wordClass, -1, 2, nil
	case s[0] == '\\':
		return commonEscape(s)
	}
	r, n := utf8.DecodeRuneInString(s)
	return quote(r), r, n, nil
}
