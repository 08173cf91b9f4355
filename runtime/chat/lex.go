package chat

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// tokenKind is the kind of a token. Punctuation and operators are one kind,
// told apart by their text.
type tokenKind int

const (
	tokEOF tokenKind = iota
	tokData
	tokVarBegin
	tokVarEnd
	tokBlockBegin
	tokBlockEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
)

// A token is one token of a template; text is the data, the name, the decoded
// string or the operator.
type token struct {
	kind tokenKind
	text string
	num  value // int64 or float64
	pos  int   // byte offset in the normalized source
}

// describe names a token in an error message.
func (t token) describe() string {
	switch t.kind {
	case tokEOF:
		return "end of template"
	case tokData:
		return "template text"
	case tokVarBegin:
		return "'{{'"
	case tokVarEnd:
		return "end of print statement ('}}')"
	case tokBlockBegin:
		return "'{%'"
	case tokBlockEnd:
		return "end of statement block ('%}')"
	case tokString:
		return "string " + strconv.Quote(clip(t.text))
	case tokInt, tokFloat:
		return "number"
	}
	return "'" + clip(t.text) + "'"
}

// clip shortens text of the template for an error message.
func clip(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	end := most
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// isSpace is what Python's str.isspace and \s of its regular expressions call
// white space: Unicode's, and the four ASCII separators.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// normalizeNewlines turns \r\n and \r into \n.
func normalizeNewlines(s string) string {
	if !strings.Contains(s, "\r") {
		return s
	}
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
}

// A lexer cuts a template into tokens the way Jinja2 does under trim_blocks
// (the newline after a block is dropped) and lstrip_blocks (white space between
// the start of a line and a block is dropped).
type lexer struct {
	src       string
	pos       int
	tokens    []token
	lineStart bool // the last match ended with a newline, or nothing was matched yet
}

// lex returns the tokens of a normalized source, the last of them tokEOF.
func lex(src string) ([]token, error) {
	l := &lexer{src: src, lineStart: true}
	for l.pos < len(src) {
		if err := l.root(); err != nil {
			return nil, err
		}
	}
	l.emit(token{kind: tokEOF, pos: len(src)})
	return l.tokens, nil
}

func (l *lexer) emit(t token) { l.tokens = append(l.tokens, t) }

// emitData adds template text, if there is any.
func (l *lexer) emitData(text string, pos int) {
	if text != "" {
		l.emit(token{kind: tokData, text: text, pos: pos})
	}
}

// root reads text up to the next tag, and that tag.
func (l *lexer) root() error {
	start := l.pos
	at := -1
	for i := start; ; i++ {
		next := strings.IndexByte(l.src[i:], '{')
		if next < 0 || i+next+1 >= len(l.src) {
			break
		}
		i += next
		if c := l.src[i+1]; c == '%' || c == '{' || c == '#' {
			at = i
			break
		}
	}
	if at < 0 {
		l.emitData(l.src[start:], start)
		l.pos = len(l.src)
		return nil
	}
	open := l.src[at+1]
	l.pos = at + 2
	sign := l.sign()
	l.emitData(l.strip(l.src[start:at], sign, open != '{'), start)
	l.lineStart = false
	switch open {
	case '#':
		return l.comment(at)
	case '{':
		l.emit(token{kind: tokVarBegin, pos: at})
		return l.tag(at, false)
	}
	if end, ok := l.rawBegin(); ok {
		l.advance(end)
		return l.raw(at)
	}
	l.emit(token{kind: tokBlockBegin, pos: at})
	return l.tag(at, true)
}

// sign reads the white space control sign after the start of a tag.
func (l *lexer) sign() byte {
	if l.pos < len(l.src) && (l.src[l.pos] == '-' || l.src[l.pos] == '+') {
		l.pos++
		return l.src[l.pos-1]
	}
	return 0
}

// strip removes from the end of text what the tag after it asks to remove.
func (l *lexer) strip(text string, sign byte, block bool) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, isSpace)
	case sign == '+' || !block:
		return text
	}
	line := strings.LastIndexByte(text, '\n') + 1
	if (line > 0 || l.lineStart) && strings.TrimLeftFunc(text[line:], isSpace) == "" {
		return text[:line]
	}
	return text
}

// advance moves to end and notes whether what was passed ends a line.
func (l *lexer) advance(end int) {
	l.lineStart = end > l.pos && l.src[end-1] == '\n'
	l.pos = end
}

// skipSpace is the offset of the first character at or after i that is not
// white space.
func (l *lexer) skipSpace(i int) int {
	return len(l.src) - len(strings.TrimLeftFunc(l.src[i:], isSpace))
}

// closing matches the end of a tag at i: mark with an optional sign before it.
// A minus takes all white space after the tag, no sign takes one newline if
// trim is set; a plus, which only blocks and comments know, takes nothing.
func (l *lexer) closing(i int, mark string, plus, trim bool) (end int, ok bool) {
	rest := l.src[i:]
	switch {
	case strings.HasPrefix(rest, "-"+mark):
		return l.skipSpace(i + 1 + len(mark)), true
	case plus && strings.HasPrefix(rest, "+"+mark):
		return i + 1 + len(mark), true
	case strings.HasPrefix(rest, mark):
		end = i + len(mark)
		if trim && end < len(l.src) && l.src[end] == '\n' {
			end++
		}
		return end, true
	}
	return 0, false
}

func (l *lexer) comment(at int) error {
	for i := l.pos; i < len(l.src); i++ {
		if c := l.src[i]; c != '#' && c != '-' && c != '+' {
			continue
		}
		if end, ok := l.closing(i, "#}", true, true); ok {
			l.advance(end)
			return nil
		}
	}
	return syntaxError(at, "comment without an end ('#}')")
}

// rawBegin matches the rest of {% raw %} after its start and sign.
func (l *lexer) rawBegin() (end int, ok bool) {
	i := l.skipSpace(l.pos)
	if !strings.HasPrefix(l.src[i:], "raw") {
		return 0, false
	}
	return l.closing(l.skipSpace(i+len("raw")), "%}", false, false)
}

// raw reads text up to {% endraw %}.
func (l *lexer) raw(at int) error {
	start := l.pos
	for i := start; ; i++ {
		next := strings.Index(l.src[i:], "{%")
		if next < 0 {
			return syntaxError(at, "raw block without {%% endraw %%}")
		}
		i += next
		l.pos = i + 2
		sign := l.sign()
		word := l.skipSpace(l.pos)
		if !strings.HasPrefix(l.src[word:], "endraw") {
			continue
		}
		if end, ok := l.closing(l.skipSpace(word+len("endraw")), "%}", true, true); ok {
			l.emitData(l.strip(l.src[start:i], sign, true), start)
			l.advance(end)
			return nil
		}
	}
}

// operators, the longer before those they begin with.
var operators = []string{
	"//", "**", "==", "!=", ">=", "<=",
	"+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";",
}

// tag reads the tokens of a block or of a print statement, and its end.
func (l *lexer) tag(at int, block bool) error {
	var open []byte // the closing brackets awaited
	for l.pos < len(l.src) {
		if len(open) == 0 {
			mark, kind := "}}", tokVarEnd
			if block {
				mark, kind = "%}", tokBlockEnd
			}
			if end, ok := l.closing(l.pos, mark, block, block); ok {
				l.emit(token{kind: kind, pos: l.pos})
				l.advance(end)
				return nil
			}
		}
		c := l.src[l.pos]
		r, _ := utf8.DecodeRuneInString(l.src[l.pos:])
		switch {
		case isSpace(r):
			l.pos = l.skipSpace(l.pos)
		case c >= '0' && c <= '9':
			if err := l.number(); err != nil {
				return err
			}
		case c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
			start := l.pos
			for l.pos < len(l.src) && isNameByte(l.src[l.pos]) {
				l.pos++
			}
			if l.pos < len(l.src) && l.src[l.pos] >= utf8.RuneSelf {
				if r, _ := utf8.DecodeRuneInString(l.src[l.pos:]); unicode.IsLetter(r) || unicode.IsMark(r) || unicode.IsNumber(r) {
					return unsupported(start, "name with letters outside ASCII")
				}
			}
			l.emit(token{kind: tokName, text: l.src[start:l.pos], pos: start})
		case c == '\'' || c == '"':
			if err := l.str(); err != nil {
				return err
			}
		default:
			op := ""
			for _, o := range operators {
				if strings.HasPrefix(l.src[l.pos:], o) {
					op = o
					break
				}
			}
			if op == "" {
				if unicode.IsLetter(r) {
					return unsupported(l.pos, "name with letters outside ASCII")
				}
				return syntaxError(l.pos, "unexpected character %q", r)
			}
			switch op {
			case "(":
				open = append(open, ')')
			case "[":
				open = append(open, ']')
			case "{":
				open = append(open, '}')
			case ")", "]", "}":
				if len(open) == 0 {
					return syntaxError(l.pos, "unexpected '%s'", op)
				}
				if want := open[len(open)-1]; want != op[0] {
					return syntaxError(l.pos, "unexpected '%s', expected '%c'", op, want)
				}
				open = open[:len(open)-1]
			}
			l.emit(token{kind: tokOp, text: op, pos: l.pos})
			l.pos += len(op)
		}
	}
	return syntaxError(at, "tag without an end")
}

func isNameByte(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// digits matches digits at i, single underscores between them.
func (l *lexer) digits(i int, ok func(byte) bool) int {
	for i < len(l.src) {
		switch {
		case ok(l.src[i]):
			i++
		case l.src[i] == '_' && i+1 < len(l.src) && ok(l.src[i+1]):
			i += 2
		default:
			return i
		}
	}
	return i
}

// number reads an integer or a float literal, as Python writes them.
func (l *lexer) number() error {
	start := l.pos
	afterDot := start > 0 && l.src[start-1] == '.'
	if end, ok := l.float(start); ok && !afterDot {
		f, err := strconv.ParseFloat(strings.ReplaceAll(l.src[start:end], "_", ""), 64)
		if err != nil && !isRange(err) {
			return syntaxError(start, "bad number %q", clip(l.src[start:end]))
		}
		l.pos = end
		l.emit(token{kind: tokFloat, num: f, pos: start})
		return nil
	}
	end := start
	if l.src[start] == '0' {
		end = l.digits(start, func(c byte) bool { return c == '0' })
		if start+1 < len(l.src) {
			if set := radixDigits(l.src[start+1]); set != "" {
				in := func(c byte) bool { return strings.IndexByte(set, c) >= 0 }
				if e := l.digits(start+2, in); e > start+2 {
					end = e
				}
			}
		}
	} else {
		end = l.digits(start, isDigit)
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(l.src[start:end], "_", ""), 0, 64)
	if err != nil {
		return unsupported(start, "integer %s: only 64 bits are supported", clip(l.src[start:end]))
	}
	l.pos = end
	l.emit(token{kind: tokInt, num: n, text: l.src[start:end], pos: start})
	return nil
}

// radixDigits is the digits allowed after 0b, 0o and 0x.
func radixDigits(c byte) string {
	switch c {
	case 'b', 'B':
		return "01"
	case 'o', 'O':
		return "01234567"
	case 'x', 'X':
		return "0123456789abcdefABCDEF"
	}
	return ""
}

// float matches a float literal at i: digits and a fraction, an exponent, or both.
func (l *lexer) float(i int) (end int, ok bool) {
	end = l.digits(i, isDigit)
	if end+1 < len(l.src) && l.src[end] == '.' && isDigit(l.src[end+1]) {
		end, ok = l.digits(end+1, isDigit), true
	}
	if end < len(l.src) && (l.src[end] == 'e' || l.src[end] == 'E') {
		exp := end + 1
		if exp < len(l.src) && (l.src[exp] == '+' || l.src[exp] == '-') {
			exp++
		}
		if exp < len(l.src) && isDigit(l.src[exp]) {
			return l.digits(exp, isDigit), true
		}
	}
	return end, ok
}

// str reads a string literal.
func (l *lexer) str() error {
	start, quote := l.pos, l.src[l.pos]
	for i := start + 1; i < len(l.src); i++ {
		switch l.src[i] {
		case '\\':
			i++
		case quote:
			text, err := unescape(l.src[start+1:i], start)
			if err != nil {
				return err
			}
			l.emit(token{kind: tokString, text: text, pos: start})
			l.pos = i + 1
			return nil
		}
	}
	return syntaxError(start, "string without an end")
}

// simpleEscapes are Python's one letter escapes.
var simpleEscapes = map[byte]byte{
	'\\': '\\', '\'': '\'', '"': '"', 'a': 7, 'b': 8, 'f': 12, 'n': 10, 'r': 13, 't': 9, 'v': 11,
}

// unescape decodes the escapes of a string literal as Python does. An escape
// that Python does not know stands for itself, backslash included.
func unescape(s string, pos int) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++
		if i == len(s) {
			return "", syntaxError(pos, "string ends in a backslash")
		}
		c := s[i]
		width := 0
		switch {
		case c == '\n':
			continue
		case simpleEscapes[c] != 0:
			b.WriteByte(simpleEscapes[c])
			continue
		case c >= '0' && c <= '7':
			n := 0
			for k := 0; k < 3 && i < len(s) && s[i] >= '0' && s[i] <= '7'; k++ {
				n = n*8 + int(s[i]-'0')
				i++
			}
			i--
			b.WriteRune(rune(n))
			continue
		case c == 'x':
			width = 2
		case c == 'u':
			width = 4
		case c == 'U':
			width = 8
		case c == 'N':
			return "", unsupported(pos, `escape \N{…} in a string`)
		case c >= utf8.RuneSelf:
			// Jinja2 escapes what is not ASCII before it decodes, so the
			// backslash swallows the one of the escape.
			return "", unsupported(pos, "backslash before a character outside ASCII")
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
			continue
		}
		if i+1+width > len(s) {
			return "", syntaxError(pos, `escape \%c needs %d hexadecimal digits`, c, width)
		}
		n, err := strconv.ParseUint(s[i+1:i+1+width], 16, 32)
		if err != nil || n > unicode.MaxRune {
			return "", syntaxError(pos, `escape \%c needs %d hexadecimal digits of a character`, c, width)
		}
		if n >= 0xd800 && n <= 0xdfff {
			return "", unsupported(pos, "surrogate %s in a string", strconv.Quote(s[i-1:i+1+width]))
		}
		b.WriteRune(rune(n))
		i += width
	}
	return b.String(), nil
}
