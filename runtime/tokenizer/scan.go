package tokenizer

// A scanner splits text by one of the well-known patterns without a regular
// expression engine: next returns the end of the match that starts at s[i],
// i < len(s). The patterns match at every position, so there are no gaps.
type scanner interface {
	next(s string, i int) int
}

// contractions of English that the patterns of GPT-2 and its heirs keep whole.
// contraction is the length of the one at s[i], or 0; s[i] is an apostrophe.
// With fold, case is ignored as Oniguruma does: U+017F (long s) is an s.
func contraction(s string, i int, fold bool) int {
	rest := s[i+1:]
	if rest == "" {
		return 0
	}
	first, second := rest[0], byte(0)
	if len(rest) > 1 {
		second = rest[1]
	}
	if fold {
		if first == 0xc5 && second == 0xbf {
			return 3
		}
		first, second = first|0x20, second|0x20
		if first < 'a' || first > 'z' {
			return 0
		}
	}
	switch first {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if second == 'e' {
			return 3
		}
	case 'l':
		if second == 'l' {
			return 3
		}
	}
	return 0
}

// run is the end of the characters from s[i] on whose class is class.
func run(s string, i int, class uint8) int {
	for i < len(s) {
		c, size := classAt(s, i)
		if c != class {
			break
		}
		i += size
	}
	return i
}

// spaceRun is the end of the match of \s+(?!\S)|\s+ at s[i], a white space:
// white space before a word leaves its last character to the word.
func spaceRun(s string, i int) int {
	end, last := i, i
	for end < len(s) {
		c, size := classAt(s, end)
		if c != classSpace {
			if last > i {
				return last
			}
			return end
		}
		last = end
		end += size
	}
	return end
}

// gpt2Scanner is the pattern of GPT-2:
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
type gpt2Scanner struct{}

func (gpt2Scanner) next(s string, i int) int {
	if s[i] == '\'' {
		if n := contraction(s, i, false); n > 0 {
			return i + n
		}
	}
	j := i
	if s[i] == ' ' && i+1 < len(s) {
		j++
	}
	if class, size := classAt(s, j); class != classSpace {
		return run(s, j+size, class)
	}
	return spaceRun(s, i)
}

// tiktokenScanner is the pattern of Llama 3 (3 digits) and Qwen 2 (1 digit):
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
//	 ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
type tiktokenScanner struct{ digits int }

func (t tiktokenScanner) next(s string, i int) int {
	c := s[i]
	if c == '\'' {
		if n := contraction(s, i, true); n > 0 {
			return i + n
		}
	}
	class, size := classAt(s, i)
	switch class {
	case classLetter:
		return run(s, i+size, classLetter)
	case classNumber:
		end := i + size
		for n := 1; n < t.digits && end < len(s); n++ {
			class, size := classAt(s, end)
			if class != classNumber {
				break
			}
			end += size
		}
		return end
	}
	second := uint8(classSpace) // class of the character after the first
	if i+size < len(s) {
		second, _ = classAt(s, i+size)
		if second == classLetter && c != '\r' && c != '\n' {
			return run(s, i+size, classLetter)
		}
	}
	if class == 0 || c == ' ' && second == 0 {
		end := run(s, i+size, 0)
		for end < len(s) && (s[end] == '\r' || s[end] == '\n') {
			end++
		}
		return end
	}
	end := run(s, i, classSpace)
	for k := end - 1; k >= i; k-- {
		if s[k] == '\r' || s[k] == '\n' {
			return k + 1
		}
	}
	return spaceRun(s, i)
}

// digitScanner splits off each number character: \p{N}, and the text between.
type digitScanner struct{}

func (digitScanner) next(s string, i int) int {
	class, size := classAt(s, i)
	i += size
	if class == classNumber {
		return i
	}
	for i < len(s) {
		class, size := classAt(s, i)
		if class == classNumber {
			break
		}
		i += size
	}
	return i
}

// Spellings of the well-known patterns in tokenizer.json files. A pattern that
// is not here goes to the regular expression engine.
const (
	gpt2Tail   = `| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llama3Tail = `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen2Tail  = `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

var knownPatterns = map[string]scanner{
	`'s|'t|'re|'ve|'m|'ll|'d` + gpt2Tail:        gpt2Scanner{},
	`'(?:[sdmt]|ll|ve|re)` + gpt2Tail:           gpt2Scanner{},
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)` + llama3Tail: tiktokenScanner{3},
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)` + qwen2Tail:  tiktokenScanner{1},
	`'(?i:[sdmt]|ll|ve|re)` + llama3Tail:        tiktokenScanner{3},
	`'(?i:[sdmt]|ll|ve|re)` + qwen2Tail:         tiktokenScanner{1},
}
