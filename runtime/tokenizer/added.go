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
	tokens []addedToken
	nodes  []trieNode
	starts [256]bool // bytes that begin a token
	only   int       // the only such byte, or -1
}

// A trieNode is a prefix of tokens.
type trieNode struct {
	next  map[byte]int32
	token int32 // index of the token that ends here, or -1
}

// add adds a token whose text in the input is pattern.
func (s *addedSet) add(pattern string, t addedToken) {
	if pattern == "" {
		return
	}
	if len(s.nodes) == 0 {
		s.nodes = append(s.nodes, trieNode{token: -1})
		s.only = int(pattern[0])
	}
	if s.only != int(pattern[0]) {
		s.only = -1
	}
	s.starts[pattern[0]] = true
	at := int32(0)
	for i := range len(pattern) {
		next, ok := s.nodes[at].next[pattern[i]]
		if !ok {
			next = int32(len(s.nodes))
			s.nodes = append(s.nodes, trieNode{token: -1})
			if s.nodes[at].next == nil {
				s.nodes[at].next = make(map[byte]int32)
			}
			s.nodes[at].next[pattern[i]] = next
		}
		at = next
	}
	s.nodes[at].token = int32(len(s.tokens))
	s.tokens = append(s.tokens, t)
}

// find is the next occurrence of a token in text at or after from, nil where
// there is none.
func (s *addedSet) find(text string, from int) (start, end int, token *addedToken) {
	for i := from; i < len(text); i++ {
		if s.only >= 0 {
			skip := strings.IndexByte(text[i:], byte(s.only))
			if skip < 0 {
				return 0, 0, nil
			}
			i += skip
		} else if !s.starts[text[i]] {
			continue
		}
		at, ok := int32(0), true
		for j := i; j < len(text); j++ {
			if at, ok = s.nodes[at].next[text[j]]; !ok {
				break
			}
			if s.nodes[at].token >= 0 {
				end, token = j+1, &s.tokens[s.nodes[at].token]
			}
		}
		if token != nil {
			return i, end, token
		}
	}
	return 0, 0, nil
}

// split calls text for each stretch of s between tokens and token for each
// token, in order. Special tokens are text too where special is false.
func (s *addedSet) split(str string, special bool, text func(start, end int) error, token func(id int32)) error {
	if len(s.nodes) == 0 {
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
