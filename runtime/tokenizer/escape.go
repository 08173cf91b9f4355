package tokenizer

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A TextEscape is how text is rewritten before anything else happens to it, and
// written back after decoding. No field of a tokenizer.json says so; it is part
// of the Python class that goes with some models.
type TextEscape string

const (
	// EscapeNone leaves text as it is.
	EscapeNone TextEscape = ""
	// EscapeJSON writes text as the inside of a JSON string in ASCII, as Python's
	// json.dumps(text)[1:-1] does: \" \\ \b \f \n \r \t, and \uXXXX with small hex
	// digits for all else outside blank to ~, in two halves beyond U+FFFF.
	//
	// It is the front of JSONGPT2Tokenizer in the Forgetting Transformer's
	// repository, https://github.com/zhixuan-lin/forgetting-transformer, whose
	// models have seen text in this form only. There, as here, the text is escaped
	// as a whole before added tokens are looked for. So an added token is found
	// where its own text stands in the escaped text: "<|endoftext|>" is, a token
	// with a quote or a letter outside ASCII never.
	//
	// Decoding undoes all escapes of JSON. The class reads a text that is not the
	// inside of a JSON string once more, with Python's unicode_escape codec and
	// errors ignored; since a stream cannot know how its text will end, this
	// package takes the escapes of both at once:
	//
	//   - \/ is /, and the two halves of a pair are one character, as in JSON.
	//   - \a, \v, \', \xNN, \UNNNNNNNN, octal digits and a backslash before the end
	//     of a line are as in unicode_escape; \N{NAME} is left as it is.
	//   - An escape that is cut short or beyond U+10FFFF is dropped, as is a
	//     backslash at the end of the text; what follows it remains.
	//   - A backslash before any other character remains.
	//   - Half a surrogate pair is U+FFFD, where Python's string has the half.
	//   - All else is itself, outside ASCII too, where unicode_escape reads UTF-8
	//     as Latin-1.
	EscapeJSON TextEscape = "json"
)

// SetTextEscape sets how text is escaped. It must be called before the tokenizer
// is used. It fails with a *format.UnsupportedError on an escape that is not one
// of the constants.
func (t *Tokenizer) SetTextEscape(e TextEscape) error {
	if e != EscapeNone && e != EscapeJSON {
		return unsupported("text escape", "found %q, can do %q", string(e), string(EscapeJSON))
	}
	t.escape = e
	return nil
}

// TextEscape is how text is escaped.
func (t *Tokenizer) TextEscape() TextEscape { return t.escape }

// shortEscapes are the letters of the escapes of two characters that JSON has.
var shortEscapes = [utf8.RuneSelf]byte{'"': '"', '\\': '\\', '\b': 'b', '\f': 'f', '\n': 'n', '\r': 'r', '\t': 't'}

// asIs reports whether a character is not escaped.
func asIs(r rune) bool { return r >= ' ' && r <= '~' && r != '"' && r != '\\' }

// escapedLen is the length of escapeJSON's result.
func escapedLen(text string) int {
	n := 0
	for _, r := range text {
		switch {
		case asIs(r):
			n++
		case r < utf8.RuneSelf && shortEscapes[r] != 0:
			n += 2
		case r < 0x10000:
			n += 6
		default:
			n += 12
		}
	}
	return n
}

// escapeJSON escapes a text in UTF-8; see EscapeJSON.
func escapeJSON(text string) string {
	n := escapedLen(text)
	if n == len(text) { // no escape has the length of its character
		return text
	}
	b := make([]byte, 0, n)
	for _, r := range text {
		switch {
		case asIs(r):
			b = append(b, byte(r))
		case r < utf8.RuneSelf && shortEscapes[r] != 0:
			b = append(b, '\\', shortEscapes[r])
		case r < 0x10000:
			b = appendUnit(b, r)
		default:
			high, low := utf16.EncodeRune(r)
			b = appendUnit(appendUnit(b, high), low)
		}
	}
	return string(b)
}

func appendUnit(b []byte, r rune) []byte {
	const digits = "0123456789abcdef"
	return append(b, '\\', 'u', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15])
}

// unescapeJSON undoes escapeJSON; see EscapeJSON for what else it takes.
func unescapeJSON(text string) string {
	text, _ = unescapeMost(text, true)
	return text
}

// unescapeMost unescapes text as far as it is certain without what follows; rest
// is where the rest begins. At the end of the text that is all.
func unescapeMost(text string, end bool) (out string, rest int) {
	at := strings.IndexByte(text, '\\')
	if at < 0 {
		return text, len(text)
	}
	b := make([]byte, 0, len(text))
	for done := 0; ; {
		b = append(b, text[done:at]...)
		var n int
		if b, n = appendUnescaped(b, text[at:], end); n == 0 {
			return string(b), at
		}
		done = at + n
		if at = strings.IndexByte(text[done:], '\\'); at < 0 {
			return string(append(b, text[done:]...)), len(text)
		}
		at += done
	}
}

// appendUnescaped appends what the escape at the start of s, a backslash, stands
// for. n is its length, or 0 where that depends on what follows s; at the end of
// the text nothing does.
func appendUnescaped(b []byte, s string, end bool) (out []byte, n int) {
	if len(s) == 1 {
		if end {
			return b, 1
		}
		return b, 0
	}
	switch c := s[1]; c {
	case '\n':
		return b, 2
	case '"', '\\', '/', '\'':
		return append(b, c), 2
	case 'a':
		return append(b, '\a'), 2
	case 'b':
		return append(b, '\b'), 2
	case 'f':
		return append(b, '\f'), 2
	case 'n':
		return append(b, '\n'), 2
	case 'r':
		return append(b, '\r'), 2
	case 't':
		return append(b, '\t'), 2
	case 'v':
		return append(b, '\v'), 2
	case '0', '1', '2', '3', '4', '5', '6', '7':
		r, length := readDigits(s[1:], 3, 8)
		if length < 3 && 1+length == len(s) && !end {
			return b, 0
		}
		return utf8.AppendRune(b, rune(r)), 1 + length
	case 'x':
		return appendHex(b, s, 2, end)
	case 'u':
		return appendHex(b, s, 4, end)
	case 'U':
		return appendHex(b, s, 8, end)
	}
	return append(b, '\\'), 1
}

// appendHex is appendUnescaped for an escape with so many hex digits.
func appendHex(b []byte, s string, count int, end bool) (out []byte, n int) {
	value, length := readDigits(s[2:], count, 16)
	n = 2 + length
	switch {
	case length < count && n == len(s) && !end:
		return b, 0
	case length < count || value > utf8.MaxRune:
		return b, n
	case count == 4 && value>>10 == 0xd800>>10:
		// Half a pair: is the other half next?
		const start = `\u`
		rest := s[n:]
		low, length := uint32(0), 0
		if strings.HasPrefix(rest, start) {
			low, length = readDigits(rest[len(start):], 4, 16)
		}
		if length == 4 && low>>10 == 0xdc00>>10 {
			return utf8.AppendRune(b, utf16.DecodeRune(rune(value), rune(low))), n + len(start) + 4
		}
		begins := strings.HasPrefix(start, rest) || strings.HasPrefix(rest, start) && len(start)+length == len(rest)
		if begins && length < 4 && !end {
			return b, 0
		}
	}
	return utf8.AppendRune(b, rune(value)), n // half a pair becomes U+FFFD
}

// readDigits reads up to count digits, which fit into 32 bits.
func readDigits(s string, count int, base uint32) (value uint32, length int) {
	for length < count && length < len(s) {
		digit := uint32(99)
		switch c := s[length]; {
		case '0' <= c && c <= '9':
			digit = uint32(c - '0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			digit = uint32(c|0x20-'a') + 10
		}
		if digit >= base {
			break
		}
		value = value*base + digit
		length++
	}
	return value, length
}

// An unescapeStream unescapes text that comes in parts. It holds back at most
// one escape, of 11 bytes.
type unescapeStream struct{ held string }

func (s *unescapeStream) push(text string, out func(string)) {
	text = s.held + text
	certain, rest := unescapeMost(text, false)
	s.held = text[rest:]
	out(certain)
}

func (s *unescapeStream) flush(out func(string)) {
	out(unescapeJSON(s.held))
	s.held = ""
}
