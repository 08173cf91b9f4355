package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// An addedToken is a token that is cut out of the text before the model sees it.
type addedToken struct {
	content    string
	id         int32
	singleWord bool // only where no word character touches it
	stripLeft  bool // takes the white space before it
	stripRight bool // takes the white space after it
	normalized bool // looked for after normalization
	special    bool // markup, not text: left out when decoding without specials
}

// maxAddedToken bounds the length in bytes of an added token, so that looking
// for them takes time linear in the text.
const maxAddedToken = 4096

// An addedSet finds added tokens in text: the leftmost first, of those that
// start at one place the longest.
type addedSet struct {
	tokens   []addedToken
	patterns map[string]int32 // what to look for, and the index of its token
	trie     byteTrie
	starts   [256]bool // bytes that begin a pattern
	only     int       // the only such byte, or -1
}

// add adds a token whose text in the input is pattern; build ends adding.
func (s *addedSet) add(pattern string, t addedToken) {
	if pattern == "" {
		return
	}
	if s.patterns == nil {
		s.patterns = make(map[string]int32)
		s.only = int(pattern[0])
	}
	if s.only != int(pattern[0]) {
		s.only = -1
	}
	s.starts[pattern[0]] = true
	s.patterns[pattern] = int32(len(s.tokens))
	s.tokens = append(s.tokens, t)
}

func (s *addedSet) build() {
	s.trie.build(s.patterns)
	s.patterns = nil
}

// find is the next occurrence of a token in text at or after from, nil where
// there is none.
func (s *addedSet) find(text string, from int) (start, end int, token *addedToken) {
	for i := from; i < len(text); i++ {
		if s.only >= 0 {
			skip := strings.IndexByte(text[i:], byte(s.only))
			if skip < 0 {
				break
			}
			i += skip
		} else if !s.starts[text[i]] {
			continue
		}
		if index, length := s.trie.longest(text[i:]); length > 0 {
			return i, i + length, &s.tokens[index]
		}
	}
	return 0, 0, nil
}

// split calls text for each stretch of s between tokens and token for each
// token, in order. Special tokens are text too where special is false.
func (s *addedSet) split(str string, special bool, text func(start, end int) error, token func(id int32)) error {
	if len(s.tokens) == 0 {
		return text(0, len(str))
	}
	done := 0
	for search := 0; ; {
		start, end, t := s.find(str, search)
		if t == nil {
			break
		}
		search = end
		if t.special && !special {
			continue
		}
		if t.singleWord && (wordBefore(str[:start]) || wordAfter(str[end:])) {
			continue
		}
		// done is beyond the token where the one before it took white space that
		// this one begins with; what lies between is then white space too.
		if t.stripLeft {
			start = done + len(strings.TrimRightFunc(str[done:max(start, done)], unicode.IsSpace))
		}
		if t.stripRight {
			end = len(str) - len(strings.TrimLeftFunc(str[max(end, done):], unicode.IsSpace))
		}
		if done < start {
			if err := text(done, start); err != nil {
				return err
			}
		}
		token(t.id)
		done = end
	}
	if done < len(str) {
		return text(done, len(str))
	}
	return nil
}

func wordBefore(s string) bool {
	r, _ := utf8.DecodeLastRuneInString(s)
	return s != "" && isWord(r)
}

func wordAfter(s string) bool {
	r, _ := utf8.DecodeRuneInString(s)
	return s != "" && isWord(r)
}
