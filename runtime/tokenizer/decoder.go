package tokenizer

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// A decodeStep turns tokens into text, or into tokens nearer to text. What the
// last step leaves is joined.
type decodeStep interface {
	decode(tokens []string) []string
	// stream is the same for tokens that come one by one. fused says that the
	// tokens are parts of one long token, last that no step follows. It is nil
	// where the step needs all tokens at once.
	stream(fused, last bool) streamStep
	// fuses reports whether the step leaves a single token.
	fuses() bool
}

// decodeAll is the text of tokens.
func decodeAll(steps []decodeStep, tokens []string) string {
	for _, step := range steps {
		tokens = step.decode(tokens)
	}
	return strings.Join(tokens, "")
}

// A streamStep takes tokens one by one and hands on what is certain.
type streamStep interface {
	push(token string, out func(string))
	flush(out func(string))
}

// eachToken is a step that looks at one token at a time; index counts them.
type eachToken func(index int, token string) string

func (f eachToken) decode(tokens []string) []string {
	for i, token := range tokens {
		tokens[i] = f(i, token)
	}
	return tokens
}

func (f eachToken) fuses() bool { return false }

func (f eachToken) stream(fused, last bool) streamStep {
	if fused {
		return nil
	}
	return &eachStream{f: f}
}

type eachStream struct {
	f     eachToken
	index int
}

func (s *eachStream) push(token string, out func(string)) {
	out(s.f(s.index, token))
	s.index++
}

func (s *eachStream) flush(func(string)) {}

// spacedTokens joins tokens with blanks, for tokenizers without a decoder.
func spacedTokens(index int, token string) string {
	if index > 0 {
		return " " + token
	}
	return token
}

// metaspaceDecoder turns marks into blanks; those of the first token vanish
// where encoding puts one in front.
func metaspaceDecoder(mark string, prepends bool) eachToken {
	return func(index int, token string) string {
		if index == 0 && prepends {
			return strings.ReplaceAll(token, mark, "")
		}
		return strings.ReplaceAll(token, mark, " ")
	}
}

// wordPieceDecoder puts a blank before each token that does not continue a word.
func wordPieceDecoder(prefix string, cleanup bool) eachToken {
	return func(index int, token string) string {
		if index > 0 {
			if rest, ok := strings.CutPrefix(token, prefix); ok {
				token = rest
			} else {
				token = " " + token
			}
		}
		if cleanup {
			token = cleanUp(token)
		}
		return token
	}
}

// cleanUps are the blanks that WordPiece's decoder removes, in this order.
var cleanUps = [][2]string{
	{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"}, {" n't", "n't"}, {" 'm", "'m"},
	{" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
}

func cleanUp(s string) string {
	for _, c := range cleanUps {
		s = strings.ReplaceAll(s, c[0], c[1])
	}
	return s
}

// replaceDecoder replaces a string, which must not be empty, inside each token.
type replaceDecoder struct{ old, new string }

func (d replaceDecoder) decode(tokens []string) []string {
	for i, token := range tokens {
		tokens[i] = strings.ReplaceAll(token, d.old, d.new)
	}
	return tokens
}

func (d replaceDecoder) fuses() bool { return false }

func (d replaceDecoder) stream(fused, last bool) streamStep {
	if fused && utf8.RuneCountInString(d.old) > 1 {
		return nil
	}
	return &eachStream{f: func(_ int, token string) string { return strings.ReplaceAll(token, d.old, d.new) }}
}

// growth is how many times longer the step makes a text, at most.
func (d replaceDecoder) growth() int { return max(1, (len(d.new)+len(d.old)-1)/len(d.old)) }

// fuse joins all tokens.
type fuse struct{}

func (fuse) decode(tokens []string) []string { return []string{strings.Join(tokens, "")} }
func (fuse) fuses() bool                     { return true }
func (fuse) stream(fused, last bool) streamStep {
	return &eachStream{f: func(_ int, token string) string { return token }}
}

// stripDecoder removes up to start characters at the beginning and stop at the
// end of each token, as far as they are content.
type stripDecoder struct {
	content     string // one character
	start, stop int
}

func (d stripDecoder) decode(tokens []string) []string {
	for i, token := range tokens {
		tokens[i] = d.strip(token)
	}
	return tokens
}

func (d stripDecoder) strip(token string) string {
	for n := 0; n < d.start && strings.HasPrefix(token, d.content); n++ {
		token = token[len(d.content):]
	}
	for n := 0; n < d.stop && strings.HasSuffix(token, d.content); n++ {
		token = token[:len(token)-len(d.content)]
	}
	return token
}

func (d stripDecoder) fuses() bool { return false }

func (d stripDecoder) stream(fused, last bool) streamStep {
	if fused {
		return &stripStream{d: d, left: d.start}
	}
	return &eachStream{f: func(_ int, token string) string { return d.strip(token) }}
}

// stripStream strips the ends of one token that comes in parts.
type stripStream struct {
	d    stripDecoder
	left int    // how many may still be removed at the beginning
	held string // what may be removed at the end
}

func (s *stripStream) push(token string, out func(string)) {
	for s.left > 0 && strings.HasPrefix(token, s.d.content) {
		token = token[len(s.d.content):]
		s.left--
	}
	if token == "" {
		return
	}
	s.left = 0
	token = s.held + token
	end := len(token)
	for n := 0; n < s.d.stop && strings.HasSuffix(token[:end], s.d.content); n++ {
		end -= len(s.d.content)
	}
	s.held = token[end:]
	out(token[:end])
}

func (s *stripStream) flush(func(string)) { s.held = "" }

// suffixDecoder turns the suffix that ends words into a blank, or into nothing
// in the last token.
type suffixDecoder string

func (d suffixDecoder) decode(tokens []string) []string {
	for i, token := range tokens {
		blank := " "
		if i == len(tokens)-1 {
			blank = ""
		}
		tokens[i] = strings.ReplaceAll(token, string(d), blank)
	}
	return tokens
}

func (d suffixDecoder) fuses() bool { return false }

func (d suffixDecoder) stream(fused, last bool) streamStep {
	if fused || !last {
		return nil
	}
	return &suffixStream{suffix: string(d)}
}

// suffixStream holds a token back from its first suffix on, until it is known
// whether another token follows.
type suffixStream struct{ suffix, held string }

func (s *suffixStream) push(token string, out func(string)) {
	out(strings.ReplaceAll(s.held, s.suffix, " "))
	at := strings.Index(token, s.suffix)
	if at < 0 {
		at = len(token)
	}
	out(token[:at])
	s.held = token[at:]
}

func (s *suffixStream) flush(out func(string)) {
	out(strings.ReplaceAll(s.held, s.suffix, ""))
	s.held = ""
}

// byteLevelDecoder reads tokens as bytes and joins them to text.
type byteLevelDecoder struct{}

func (byteLevelDecoder) decode(tokens []string) []string {
	var b []byte
	for _, token := range tokens {
		b = appendByteLevel(b, token)
	}
	return []string{toValid(string(b))}
}

func (byteLevelDecoder) fuses() bool { return true }

func (byteLevelDecoder) stream(fused, last bool) streamStep {
	if fused {
		return nil
	}
	return &byteLevelStream{}
}

// byteLevelStream holds back the bytes of a character that is not complete.
type byteLevelStream struct{ held []byte }

func (s *byteLevelStream) push(token string, out func(string)) {
	s.held = appendByteLevel(s.held, token)
	end := len(s.held)
	for back := 1; back < utf8.UTFMax && back <= len(s.held); back++ {
		if _, _, short := utf8Step(s.held[len(s.held)-back:]); short {
			end = len(s.held) - back
		}
	}
	out(toValid(string(s.held[:end])))
	s.held = append(s.held[:0], s.held[end:]...)
}

func (s *byteLevelStream) flush(out func(string)) {
	out(toValid(string(s.held)))
	s.held = nil
}

// byteFallbackDecoder turns runs of tokens <0x00> to <0xFF> into text, or into a
// U+FFFD each where a run is not UTF-8 as a whole.
type byteFallbackDecoder struct{}

// fallbackByte is the byte of a token <0xNN>.
func fallbackByte(token string) (byte, bool) {
	if len(token) != 6 || token[:3] != "<0x" || token[5] != '>' {
		return 0, false
	}
	// The reference's parser takes a plus sign in front of one digit too.
	b, err := strconv.ParseUint(strings.TrimPrefix(token[3:5], "+"), 16, 8)
	return byte(b), err == nil
}

func (byteFallbackDecoder) decode(tokens []string) []string {
	out := tokens[:0:0]
	var run []byte
	flush := func() {
		if len(run) > 0 && utf8.Valid(run) {
			out = append(out, string(run))
		} else {
			for range run {
				out = append(out, "\ufffd")
			}
		}
		run = run[:0]
	}
	for _, token := range tokens {
		if b, ok := fallbackByte(token); ok {
			run = append(run, b)
			continue
		}
		flush()
		out = append(out, token)
	}
	flush()
	return out
}

func (byteFallbackDecoder) fuses() bool { return false }

func (byteFallbackDecoder) stream(fused, last bool) streamStep {
	if fused {
		return nil
	}
	return &byteFallbackStream{}
}

// byteFallbackStream hands on a run of bytes as soon as it is text: a later
// byte may still make the run ill-formed, but text cannot be taken back.
type byteFallbackStream struct{ run []byte }

func (s *byteFallbackStream) push(token string, out func(string)) {
	b, ok := fallbackByte(token)
	if !ok {
		s.flush(out)
		out(token)
		return
	}
	s.run = append(s.run, b)
	if utf8.Valid(s.run) {
		s.flush(out)
	}
}

func (s *byteFallbackStream) flush(out func(string)) {
	if utf8.Valid(s.run) {
		if len(s.run) > 0 {
			out(string(s.run))
		}
	} else {
		out(strings.Repeat("\ufffd", len(s.run)))
	}
	s.run = s.run[:0]
}
