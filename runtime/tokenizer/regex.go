package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// Bounds on regular expressions, which come from the file: a pattern can need
// exponential time. matchTimeout bounds one match; a whole text may take
// regexBase and regexPerByte for each byte.
const (
	maxPatternLength = 16 << 10
	matchTimeout     = 5 * time.Second
	regexBase        = 20 * time.Second
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

// matches calls f with the byte range of each match in s, in order.
func (p *regexPattern) matches(s string, f func(start, end int) error) error {
	deadline := time.Now().Add(regexBase + time.Duration(len(s))*regexPerByte)
	runes := []rune(s)
	m, err := p.re.FindRunesMatch(runes)
	runeAt, byteAt := 0, 0 // the same place in runes and in s
	last := -1             // where the last match ended
	for n := 0; m != nil && err == nil; n++ {
		if n%64 == 0 && time.Now().After(deadline) {
			return errSlowPattern
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
	return nil
}

// replace replaces each match in s.
func (p *regexPattern) replace(s, with string) (string, error) {
	var b strings.Builder
	done := 0
	err := p.matches(s, func(start, end int) error {
		b.WriteString(s[done:start])
		b.WriteString(with)
		done = end
		return nil
	})
	if err != nil {
		return "", err
	}
	b.WriteString(s[done:])
	return b.String(), nil
}

// wordClass is the inside of a character class for \w in Oniguruma: letters,
// letter-like numbers, marks, decimal digits, connectors, and the circled and
// squared letters, which have the property Alphabetic too.
const wordClass = `\p{L}\p{Nl}\p{M}\p{Nd}\p{Pc}` + "\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189"

// maxGroupDepth bounds the nesting of groups in a pattern.
const maxGroupDepth = 64

// knownGroups are the ways to open a group that both engines read alike.
var knownGroups = []string{"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?i)", "(?-i:", "(?-i)"}

// translateRegex rewrites a pattern from Oniguruma's syntax to regexp2's. It
// passes what means the same in both, rewrites what differs, and refuses the
// rest by name.
func translateRegex(source string) (string, error) {
	var out []byte
	var groups []int // start in out of each open group
	atom := -1       // start in out of the last thing that a quantifier may follow
	wrap := func(prefix, suffix string) {
		last := string(out[atom:])
		out = append(append(append(out[:atom], prefix...), last...), suffix...)
	}
	for rest := source; rest != ""; {
		c, n := utf8.DecodeRuneInString(rest)
		switch c {
		case '\\', '[':
			translate := translateEscape
			if c == '[' {
				translate = translateClass
			}
			text, length, err := translate(rest)
			if err != nil {
				return "", err
			}
			atom = len(out)
			out = append(out, text...)
			n = length
		case '(':
			open := "("
			if strings.HasPrefix(rest, "(?") {
				open = ""
				for _, known := range knownGroups {
					if strings.HasPrefix(rest, known) {
						open = known
					}
				}
				if open == "" {
					return "", fmt.Errorf("the group %.5q is not supported", rest)
				}
			}
			if !strings.HasSuffix(open, ")") {
				groups = append(groups, len(out))
			}
			if len(groups) > maxGroupDepth {
				return "", fmt.Errorf("more than %d nested groups are not supported", maxGroupDepth)
			}
			out = append(out, open...)
			atom, n = -1, len(open)
		case ')':
			if len(groups) == 0 {
				return "", errors.New("unmatched )")
			}
			atom = groups[len(groups)-1]
			groups = groups[:len(groups)-1]
			out = append(out, ')')
		case '*', '+', '?', '{':
			quantifier := rest[:1]
			if c == '{' {
				quantifier = interval(rest)
				if quantifier == "" {
					return "", errors.New(`a { that is no quantifier is not supported; write \{`)
				}
			}
			if atom < 0 {
				return "", fmt.Errorf("nothing before the quantifier %s", quantifier)
			}
			n = len(quantifier)
			switch {
			case !strings.HasPrefix(rest[n:], "+"):
				if strings.HasPrefix(rest[n:], "?") {
					n++
				}
				out = append(out, rest[:n]...)
			case c == '{': // X{1,3}+ repeats once more
				wrap("(?:", quantifier+")+")
				n++
			default: // X++ never gives back what it took
				wrap("(?>", quantifier+")")
				n++
			}
			if len(rest) > n && strings.IndexByte("*+?{", rest[n]) >= 0 {
				return "", errors.New("a quantifier after a quantifier is not supported")
			}
			atom = -1
		case '|', '^', '$':
			atom = -1
			out = append(out, byte(c))
		default:
			atom = len(out)
			out = append(out, rest[:n]...)
		}
		rest = rest[n:]
	}
	return string(out), nil
}

// interval is the quantifier {n}, {n,}, {,m} or {n,m} at the start of s, or
// nothing.
func interval(s string) string {
	end := strings.IndexByte(s, '}')
	if end < 2 || strings.Trim(s[1:end], "0123456789,") != "" || strings.Count(s[:end], ",") > 1 || s[1] == ',' {
		return ""
	}
	return s[:end+1]
}

// translateEscape translates the escape at the start of s outside a character
// class, and says how long it is.
func translateEscape(s string) (text string, length int, err error) {
	if len(s) > 1 {
		switch s[1] {
		case 'w':
			return "[" + wordClass + "]", 2, nil
		case 'W':
			return "[^" + wordClass + "]", 2, nil
		case 'A', 'z', 'Z':
			return s[:2], 2, nil
		}
	}
	return commonEscape(s)
}

// commonEscape translates an escape that may stand inside and outside a class.
func commonEscape(s string) (text string, length int, err error) {
	if len(s) < 2 {
		return "", 0, errors.New("it ends in a backslash")
	}
	switch c := s[1]; {
	case strings.IndexByte("sSdDrntfav", c) >= 0, c < utf8.RuneSelf && isPunctuation(rune(c)), c == ' ':
		return s[:2], 2, nil
	case c == 'p' || c == 'P':
		end := strings.IndexByte(s, '}')
		if len(s) < 4 || s[2] != '{' || end < 4 {
			return "", 0, fmt.Errorf("the property %.6q is not supported", s)
		}
		name := s[3:end]
		if after, negated := strings.CutPrefix(name, "^"); negated {
			name = after
			c ^= 'p' ^ 'P'
		}
		return `\` + string(c) + "{" + name + "}", end + 1, nil
	case c == 'x' || c == 'u':
		digits := 2
		if c == 'u' {
			digits = 4
		}
		if strings.HasPrefix(s[2:], "{") {
			digits = strings.IndexByte(s, '}') - 1
		}
		if digits < 1 || len(s) < 2+digits {
			return "", 0, fmt.Errorf("the escape %.6q is not supported", s)
		}
		return s[:2+digits], 2 + digits, nil
	}
	return "", 0, fmt.Errorf("the escape %.2q is not supported", s)
}

// translateClass translates the character class at the start of s.
func translateClass(s string) (text string, length int, err error) {
	out := []byte{'['}
	i := 1
	if strings.HasPrefix(s[i:], "^") {
		out = append(out, '^')
		i++
	}
	for first := true; i < len(s); first = false {
		switch {
		case s[i] == ']' && !first:
			return string(append(out, ']')), i + 1, nil
		case s[i] == '[' || s[i] == ']':
			return "", 0, errors.New("a [ or ] inside a character class is not supported; write \\[ or \\]")
		case strings.HasPrefix(s[i:], "&&"):
			return "", 0, errors.New("the intersection && of character classes is not supported")
		case s[i] == '-' && (first || strings.HasPrefix(s[i+1:], "]")):
			out = append(out, `\-`...)
			i++
		case strings.HasPrefix(s[i:], `\w`):
			out = append(out, wordClass...)
			i += 2
		case s[i] == '\\':
			text, n, err := commonEscape(s[i:])
			if err != nil {
				return "", 0, err
			}
			out = append(out, text...)
			i += n
		default:
			out = append(out, s[i])
			i++
		}
	}
	return "", 0, errors.New("a character class is not closed")
}
