// Package strictjson reads JSON text (RFC 8259) piece by piece, and refuses
// what readers disagree about: a key given twice in one object, an escaped
// half of a surrogate pair, bytes that are not UTF-8, anything after the
// value. encoding/json lets all of these pass, keeping the last of two keys;
// in a file that describes weights, two programs would then load two models.
//
// # Security
//
// The input is untrusted. Nesting and the number of keys of an object are
// bounded, nothing is allocated beyond the keys and strings that are read, and
// every failure is a [SyntaxError] with its byte offset.
package strictjson

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Kind is what a JSON value is.
type Kind byte

// The kinds of value; their text is what an error message calls them.
const (
	Null Kind = iota
	Bool
	Number
	String
	Array
	Object
)

func (k Kind) String() string {
	return [...]string{"null", "a boolean", "a number", "a string", "an array", "an object"}[k]
}

// SyntaxError says what is wrong with a text, and at which byte.
type SyntaxError struct {
	Offset int // from the start of the text
	Msg    string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("at byte %d: %s", e.Offset, e.Msg) }

// Reader reads one JSON value. The value is taken apart by the methods named
// after the kinds; each consumes exactly one value.
type Reader struct {
	data     []byte
	pos      int
	depth    int
	maxDepth int
	maxKeys  int64
}

// NewReader reads data, allowing maxDepth nested arrays and objects, and
// maxKeys members in one object.
func NewReader(data []byte, maxDepth int, maxKeys int64) *Reader {
	return &Reader{data: data, maxDepth: maxDepth, maxKeys: maxKeys}
}

// Offset is where the next value starts.
func (r *Reader) Offset() int {
	r.space()
	return r.pos
}

// Consumed is where the last value that was read ends.
func (r *Reader) Consumed() int { return r.pos }

// errorAt makes a SyntaxError.
func (r *Reader) errorAt(offset int, msg string, args ...any) error {
	return &SyntaxError{Offset: offset, Msg: fmt.Sprintf(msg, args...)}
}

// space skips the white space of the grammar.
func (r *Reader) space() {
	for r.pos < len(r.data) {
		switch r.data[r.pos] {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return
		}
	}
}

// found describes the next byte for an error message.
func (r *Reader) found() string {
	if r.pos >= len(r.data) {
		return "the end of the text"
	}
	c, size := utf8.DecodeRune(r.data[r.pos:])
	if c == utf8.RuneError && size <= 1 {
		return fmt.Sprintf("byte 0x%02x, which is not UTF-8", r.data[r.pos])
	}
	return fmt.Sprintf("%q", c)
}

// Kind tells the kind of the next value by its first byte, consuming nothing.
func (r *Reader) Kind() (Kind, error) {
	r.space()
	if r.pos < len(r.data) {
		switch c := r.data[r.pos]; {
		case c == '{':
			return Object, nil
		case c == '[':
			return Array, nil
		case c == '"':
			return String, nil
		case c == 't', c == 'f':
			return Bool, nil
		case c == 'n':
			return Null, nil
		case c == '-', '0' <= c && c <= '9':
			return Number, nil
		}
	}
	return 0, r.errorAt(r.pos, "found %s where a JSON value is expected", r.found())
}

// want fails unless the next value has kind k.
func (r *Reader) want(k Kind) error {
	got, err := r.Kind()
	if err != nil {
		return err
	}
	if got != k {
		return r.errorAt(r.pos, "found %s, expected %s", got, k)
	}
	return nil
}

// enter counts a level of nesting, and consumes the opening bracket.
func (r *Reader) enter() error {
	if r.depth >= r.maxDepth {
		return r.errorAt(r.pos, "nested more than %d deep", r.maxDepth)
	}
	r.depth++
	r.pos++
	return nil
}

// next consumes what may stand after an element: a comma, or close, when it
// reports that the array or object is done.
func (r *Reader) next(close byte) (done bool, err error) {
	r.space()
	if r.pos < len(r.data) {
		switch r.data[r.pos] {
		case close:
			r.pos++
			r.depth--
			return true, nil
		case ',':
			r.pos++
			return false, nil
		}
	}
	return false, r.errorAt(r.pos, "found %s where ',' or '%c' is expected", r.found(), close)
}

// empty consumes close when it is the next byte.
func (r *Reader) empty(close byte) bool {
	r.space()
	if r.pos < len(r.data) && r.data[r.pos] == close {
		r.pos++
		r.depth--
		return true
	}
	return false
}

// Object reads an object. For each member it calls member with the key and
// the key's offset; member must consume the value.
func (r *Reader) Object(member func(key string, offset int) error) error {
	return r.object(true, member)
}

// object is Object; unique asks for a check of the keys, which costs memory.
func (r *Reader) object(unique bool, member func(key string, offset int) error) error {
	if err := r.want(Object); err != nil {
		return err
	}
	if err := r.enter(); err != nil {
		return err
	}
	if r.empty('}') {
		return nil
	}
	var seen keySet
	for {
		r.space()
		at := r.pos
		if r.pos >= len(r.data) || r.data[r.pos] != '"' {
			return r.errorAt(at, "found %s where a key in quotes is expected", r.found())
		}
		key, err := r.String()
		if err != nil {
			return err
		}
		if unique {
			if seen.count >= r.maxKeys {
				return r.errorAt(at, "more than %d keys in one object", r.maxKeys)
			}
			if !seen.add(key) {
				return r.errorAt(at, "key %q is given twice in one object", Shorten(key))
			}
		}
		r.space()
		if r.pos >= len(r.data) || r.data[r.pos] != ':' {
			return r.errorAt(r.pos, "found %s where ':' is expected after key %q", r.found(), Shorten(key))
		}
		r.pos++
		if err := member(key, at); err != nil {
			return err
		}
		done, err := r.next('}')
		if err != nil || done {
			return err
		}
	}
}

// keySet is a set of keys. Most objects have a few, which are cheaper to
// compare than to hash: a header has an object of three keys for each tensor.
type keySet struct {
	count int64
	few   [4]string
	many  map[string]struct{} // nil while few is enough
}

// add reports whether key is new.
func (s *keySet) add(key string) bool {
	if s.many == nil {
		if slices.Contains(s.few[:s.count], key) {
			return false
		}
		if int(s.count) < len(s.few) {
			s.few[s.count] = key
			s.count++
			return true
		}
		s.many = map[string]struct{}{}
		for _, k := range s.few {
			s.many[k] = struct{}{}
		}
	}
	if _, ok := s.many[key]; ok {
		return false
	}
	s.many[key] = struct{}{}
	s.count++
	return true
}

// Array reads an array, calling element for each index; element must consume
// the value.
func (r *Reader) Array(element func(i int) error) error {
	if err := r.want(Array); err != nil {
		return err
	}
	if err := r.enter(); err != nil {
		return err
	}
	if r.empty(']') {
		return nil
	}
	for i := 0; ; i++ {
		if err := element(i); err != nil {
			return err
		}
		done, err := r.next(']')
		if err != nil || done {
			return err
		}
	}
}

// String reads a string and undoes its escapes.
func (r *Reader) String() (string, error) {
	if err := r.want(String); err != nil {
		return "", err
	}
	start := r.pos
	r.pos++
	var b strings.Builder
	plain := r.pos // start of the stretch not yet copied to b
	for r.pos < len(r.data) {
		switch c := r.data[r.pos]; {
		case c == '"':
			b.Write(r.data[plain:r.pos])
			r.pos++
			return b.String(), nil
		case c == '\\':
			b.Write(r.data[plain:r.pos])
			if err := r.escape(&b); err != nil {
				return "", err
			}
			plain = r.pos
		case c < ' ':
			return "", r.errorAt(r.pos, "control character 0x%02x in a string must be escaped", c)
		case c < utf8.RuneSelf:
			r.pos++
		default:
			ch, size := utf8.DecodeRune(r.data[r.pos:])
			if ch == utf8.RuneError && size == 1 {
				return "", r.errorAt(r.pos, "byte 0x%02x in a string is not UTF-8", c)
			}
			r.pos += size
		}
	}
	return "", r.errorAt(start, "string without a closing quote")
}

// escapes maps the byte after a backslash to what it stands for.
var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape consumes one escape sequence, or a surrogate pair of two, and writes
// the character.
func (r *Reader) escape(b *strings.Builder) error {
	at := r.pos
	if at+1 >= len(r.data) {
		return r.errorAt(at, "string without a closing quote")
	}
	if c := escapes[r.data[at+1]]; c != 0 {
		b.WriteByte(c)
		r.pos += 2
		return nil
	}
	ch, err := r.hex4()
	if err != nil {
		return err
	}
	if utf16.IsSurrogate(ch) {
		low, err := r.hex4()
		if err != nil {
			return r.errorAt(at, "escape of half a surrogate pair")
		}
		if ch = utf16.DecodeRune(ch, low); ch == utf8.RuneError {
			return r.errorAt(at, "escape of half a surrogate pair")
		}
	}
	b.WriteRune(ch)
	return nil
}

// hex4 consumes \uXXXX.
func (r *Reader) hex4() (rune, error) {
	if len(r.data)-r.pos < 6 || r.data[r.pos] != '\\' || r.data[r.pos+1] != 'u' {
		return 0, r.errorAt(r.pos, "unknown or incomplete escape")
	}
	var ch rune
	for _, c := range r.data[r.pos+2 : r.pos+6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, r.errorAt(r.pos, "escape \\u needs four hexadecimal digits")
		}
		ch = ch<<4 | rune(c)
	}
	r.pos += 6
	return ch, nil
}

// Number reads a number and returns its text, which may be of any size.
func (r *Reader) Number() (string, error) {
	if err := r.want(Number); err != nil {
		return "", err
	}
	start := r.pos
	if r.data[r.pos] == '-' {
		r.pos++
	}
	if r.pos < len(r.data) && r.data[r.pos] == '0' {
		r.pos++ // no digit may follow; what does is found by the caller
	} else if err := r.digits(); err != nil {
		return "", err
	}
	if r.pos < len(r.data) && r.data[r.pos] == '.' {
		r.pos++
		if err := r.digits(); err != nil {
			return "", err
		}
	}
	if r.pos < len(r.data) && r.data[r.pos]|0x20 == 'e' {
		r.pos++
		if r.pos < len(r.data) && (r.data[r.pos] == '+' || r.data[r.pos] == '-') {
			r.pos++
		}
		if err := r.digits(); err != nil {
			return "", err
		}
	}
	return string(r.data[start:r.pos]), nil
}

// digits consumes at least one digit.
func (r *Reader) digits() error {
	start := r.pos
	for r.pos < len(r.data) && '0' <= r.data[r.pos] && r.data[r.pos] <= '9' {
		r.pos++
	}
	if r.pos == start {
		return r.errorAt(r.pos, "found %s where a digit is expected", r.found())
	}
	return nil
}

// Bool reads true or false.
func (r *Reader) Bool() (bool, error) {
	if err := r.want(Bool); err != nil {
		return false, err
	}
	if r.data[r.pos] == 't' {
		return true, r.word("true")
	}
	return false, r.word("false")
}

// Null reads null.
func (r *Reader) Null() error {
	if err := r.want(Null); err != nil {
		return err
	}
	return r.word("null")
}

// word consumes the given literal.
func (r *Reader) word(w string) error {
	if len(r.data)-r.pos < len(w) || string(r.data[r.pos:r.pos+len(w)]) != w {
		return r.errorAt(r.pos, "misspelt %q", w)
	}
	r.pos += len(w)
	return nil
}

// Skip reads a value of any kind, checking all of it as the other methods do.
func (r *Reader) Skip() error { return r.skip(true) }

// SkipIgnored is Skip for a value that nothing will ever look at: repeated
// keys in it are let pass, and no memory is spent on finding them.
func (r *Reader) SkipIgnored() error { return r.skip(false) }

func (r *Reader) skip(unique bool) error {
	kind, err := r.Kind()
	if err != nil {
		return err
	}
	switch kind {
	case Object:
		return r.object(unique, func(string, int) error { return r.skip(unique) })
	case Array:
		return r.Array(func(int) error { return r.skip(unique) })
	case String:
		_, err = r.String()
	case Number:
		_, err = r.Number()
	case Bool:
		_, err = r.Bool()
	default:
		err = r.Null()
	}
	return err
}

// End fails when anything but white space follows.
func (r *Reader) End() error {
	r.space()
	if r.pos < len(r.data) {
		return r.errorAt(r.pos, "found %s after the end of the JSON value", r.found())
	}
	return nil
}

// Shorten cuts a name of the file to a length fit for an error message.
func Shorten(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}
