package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/firstpassage/fpa/format"
)

// maxJSON bounds a tokenizer.json; the largest in use are below 40 MB.
const maxJSON = 128 << 20

// Bounds on components: how deep Sequences may nest, and how many stages the
// normalizer, the pre-tokenizer and the decoder may have.
const (
	maxNesting = 16
	maxStages  = 64
)

// tooMany fails where a Sequence has too many stages.
func tooMany(n int, where string) error {
	if n > maxStages {
		return unsupported(where, "more than %d stages", maxStages)
	}
	return nil
}

func malformed(where, message string, args ...any) error {
	return &format.FormatError{Offset: -1, Where: where, Msg: fmt.Sprintf(message, args...)}
}

func unsupported(where, message string, args ...any) error {
	return &format.UnsupportedError{Offset: -1, Where: where, Msg: fmt.Sprintf(message, args...)}
}

// checkJSON says where data is not JSON in UTF-8.
func checkJSON(data []byte) error {
	if len(data) > maxJSON {
		return &format.UnsupportedError{Offset: -1, Msg: fmt.Sprintf("tokenizer.json of %d bytes; at most %d are supported", len(data), maxJSON)}
	}
	if !utf8.Valid(data) {
		at := 0
		for at < len(data) {
			n, valid, _ := utf8Step(data[at:])
			if !valid {
				break
			}
			at += n
		}
		return &format.FormatError{Offset: int64(at), Msg: "found a byte that is not UTF-8, expected JSON in UTF-8"}
	}
	var discard json.RawMessage
	var syntax *json.SyntaxError
	if json.Valid(data) {
		// The usual case, without a copy.
	} else if err := json.Unmarshal(data, &discard); errors.As(err, &syntax) {
		return &format.FormatError{Offset: syntax.Offset, Msg: fmt.Sprintf("not JSON: %v", err)}
	} else if err != nil {
		return &format.FormatError{Offset: -1, Msg: fmt.Sprintf("not JSON: %v", err)}
	}
	if at := loneSurrogate(data); at >= 0 {
		return &format.FormatError{Offset: int64(at), Msg: "found half of a surrogate pair, expected a character"}
	}
	return nil
}

// loneSurrogate is the place of an escape in valid JSON that is half of a
// surrogate pair, which encoding/json would replace; -1 where there is none.
func loneSurrogate(data []byte) int {
	escape := func(i int) rune { // the value of \uXXXX at i, or 0
		if i+6 > len(data) || data[i] != '\\' || data[i+1] != 'u' {
			return 0
		}
		n, _ := strconv.ParseUint(string(data[i+2:i+6]), 16, 16)
		return rune(n)
	}
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		if r := escape(i); utf16.IsSurrogate(r) {
			if utf16.DecodeRune(r, escape(i+6)) == utf8.RuneError {
				return i
			}
			i += 6
		}
		i++ // the character that is escaped
	}
	return -1
}

// An object reads the fields of a JSON object. The first error sticks; finish
// returns it, or an error where a field was not asked for: an unknown field may
// change what the component does.
type object struct {
	where  string
	fields map[string]json.RawMessage
	err    error
}

func readObject(raw json.RawMessage, where string) *object {
	o := &object{where: where, fields: make(map[string]json.RawMessage)}
	o.err = members(raw, where, func(key string, value json.RawMessage) error {
		if _, double := o.fields[key]; double {
			return malformed(where, "the field %q stands there twice", key)
		}
		o.fields[key] = value
		return nil
	})
	return o
}

// take removes a field; it is nil where the field is missing or null.
func (o *object) take(name string) json.RawMessage {
	raw := o.fields[name]
	delete(o.fields, name)
	if string(raw) == "null" {
		return nil
	}
	return raw
}

// get reads a field into a Go value and reports whether it was there.
func (o *object) get(name string, value any) bool {
	raw := o.take(name)
	if raw == nil || o.err != nil {
		return false
	}
	if err := json.Unmarshal(raw, value); err != nil {
		where := strings.TrimPrefix(o.where+"."+name, ".")
		o.err = malformed(where, "found %.40s, expected a %T", raw, value)
		return false
	}
	return true
}

// must is get for a field that has to be there.
func (o *object) must(name string, value any) {
	if !o.get(name, value) && o.err == nil {
		o.err = malformed(o.where, "the field %q is missing", name)
	}
}

func (o *object) finish() error {
	if o.err != nil {
		return o.err
	}
	for name, raw := range o.fields {
		if string(raw) != "null" {
			return unsupported(o.where, "the field %q is not known, and may change what the component does", name)
		}
	}
	return nil
}

// FromJSON makes a tokenizer from the contents of a tokenizer.json. Truncation
// and padding are not applied, as in transformers, which sets them anew for each
// call. Errors are *format.FormatError or *format.UnsupportedError.
func FromJSON(data []byte) (*Tokenizer, error) {
	if err := checkJSON(data); err != nil {
		return nil, err
	}
	file := readObject(data, "")
	var version string
	if file.get("version", &version) && version != "1.0" {
		return nil, unsupported("version", "found %q, can read 1.0", version)
	}
	if file.err != nil {
		return nil, file.err
	}
	t := &Tokenizer{roles: noRoles}
	var err error
	if raw := file.take("normalizer"); raw != nil {
		if t.normalizer, err = parseNormalizer(raw, "normalizer", 0); err != nil {
			return nil, err
		}
	}
	if raw := file.take("pre_tokenizer"); raw != nil {
		if t.preTokenizers, err = parsePreTokenizer(raw, "pre_tokenizer", 0); err != nil {
			return nil, err
		}
		if err := checkPreTokenizers(t.preTokenizers); err != nil {
			return nil, err
		}
	}
	t.decoder = []decodeStep{eachToken(spacedTokens)}
	if raw := file.take("decoder"); raw != nil {
		if t.decoder, err = parseDecoder(raw, "decoder", 0); err != nil {
			return nil, err
		}
		if err := checkDecoder(t.decoder); err != nil {
			return nil, err
		}
	}
	raw := file.take("model")
	if raw == nil {
		return nil, malformed("", "the field \"model\" is missing")
	}
	if err := t.parseModel(raw); err != nil {
		return nil, err
	}
	if raw := file.take("added_tokens"); raw != nil {
		if err := t.parseAdded(raw); err != nil {
			return nil, err
		}
	}
	if raw := file.take("post_processor"); raw != nil {
		if err := t.parsePostProcessor(raw, "post_processor", 0); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// component reads the type of a component and what else it has.
func component(raw json.RawMessage, where string, depth int) (kind string, o *object, err error) {
	if depth > maxNesting {
		return "", nil, unsupported(where, "components nested more than %d deep", maxNesting)
	}
	o = readObject(raw, where)
	o.must("type", &kind)
	return kind, o, o.err
}

// list reads the array of components of a Sequence.
func (o *object) list(name string, f func(raw json.RawMessage, where string) error) error {
	var items []json.RawMessage
	o.must(name, &items)
	if err := o.finish(); err != nil {
		return err
	}
	for i, item := range items {
		if err := f(item, fmt.Sprintf("%s.%s[%d]", o.where, name, i)); err != nil {
			return err
		}
	}
	return nil
}

// patternField reads a pattern: a fixed string or a regular expression.
func (o *object) patternField(name string) (fixed, regex string) {
	var p struct{ String, Regex *string }
	o.must(name, &p)
	switch {
	case o.err != nil:
	case p.String != nil && p.Regex == nil:
		fixed = *p.String
	case p.Regex != nil && p.String == nil:
		regex = *p.Regex
	}
	if o.err == nil && fixed == "" && regex == "" {
		o.err = unsupported(o.where+"."+name, "an empty pattern, or one that is neither String nor Regex")
	}
	return fixed, regex
}

// character reads a field that is a string of one character.
func (o *object) character(name string) string {
	var s string
	o.must(name, &s)
	if o.err == nil && utf8.RuneCountInString(s) != 1 {
		o.err = malformed(o.where+"."+name, "found %q, expected one character", s)
	}
	return s
}

// compile compiles a regular expression of the file.
func (o *object) compile(name, regex string) *regexPattern {
	p, err := newRegex(regex)
	if err != nil && o.err == nil {
		o.err = unsupported(o.where+"."+name, "%v", err)
	}
	return p
}

func parseAddedToken(raw json.RawMessage, where string) (addedToken, error) {
	var t addedToken
	o := readObject(raw, where)
	var id int64
	o.must("id", &id)
	o.must("content", &t.content)
	o.must("single_word", &t.singleWord)
	o.must("lstrip", &t.stripLeft)
	o.must("rstrip", &t.stripRight)
	o.must("normalized", &t.normalized)
	o.must("special", &t.special)
	if err := o.finish(); err != nil {
		return t, err
	}
	if id < 0 || id > maxID {
		return t, malformed(where+".id", "found %d, expected an id from 0 to %d", id, maxID)
	}
	if len(t.content) > maxAddedToken {
		return t, unsupported(where, "an added token of %d bytes; at most %d are supported", len(t.content), maxAddedToken)
	}
	t.id = int32(id)
	return t, nil
}

// maxID is the largest token id that is possible at all.
const maxID = 1<<31 - 2

// parseAdded adds the added tokens. As in the reference, a token that the model
// has keeps the model's id, and others follow the model's in the order of the
// file, whatever id the file says.
func (t *Tokenizer) parseAdded(raw json.RawMessage) error {
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		return malformed("added_tokens", "found %.20s, expected an array", raw)
	}
	var tokens []addedToken
	seen := make(map[string]addedToken)
	next := int32(t.definition.modelSize)
	for i, item := range items {
		where := fmt.Sprintf("added_tokens[%d]", i)
		token, err := parseAddedToken(item, where)
		if err != nil {
			return err
		}
		if token.content == "" {
			continue
		}
		id, ok := t.ids[token.content]
		if !ok && seen[token.content].content == "" {
			id = next
			next++
			if int(id) < len(t.known) && t.known[id] {
				return malformed(where, "the token %q comes to id %d, which %q has; the vocabulary has holes", token.content, id, t.tokens[id])
			}
		}
		token.id = id
		if other, double := seen[token.content]; double {
			token.id = other.id
			if token != other {
				return malformed(where, "the token %q stands there twice with different properties", token.content)
			}
			continue
		}
		seen[token.content] = token
		tokens = append(tokens, token)
	}
	return t.addTokens(tokens)
}

// addTokens enters added tokens, whose ids are set.
func (t *Tokenizer) addTokens(tokens []addedToken) error {
	special := make(map[string]bool)
	for _, token := range tokens {
		pattern := token.content
		if token.normalized && t.normalizer != nil {
			p, err := t.normalizer.normalize(piece{text: pattern, budget: newBudget(len(pattern))})
			if err != nil {
				return err
			}
			pattern = p.text
		}
		t.setToken(token.id, pattern)
		t.ids[token.content] = token.id
		if token.special {
			t.special[token.id] = true
			special[token.content] = true
		}
		if token.normalized {
			t.normalized.add(pattern, token)
		} else {
			t.raw.add(pattern, token)
		}
	}
	t.normalized.build()
	t.raw.build()
	// As in the reference, decoding leaves out the tokens whose text after
	// normalization is that of a special token.
	for _, token := range tokens {
		t.skipped[token.id] = special[t.tokens[token.id]]
	}
	t.definition.added = append(t.definition.added, tokens...)
	return nil
}

// setToken gives an id its token, growing the vocabulary by one id at most.
func (t *Tokenizer) setToken(id int32, token string) {
	if int(id) == len(t.tokens) {
		t.tokens = append(t.tokens, "")
		t.known = append(t.known, false)
		t.special = append(t.special, false)
		t.skipped = append(t.skipped, false)
	}
	t.tokens[id], t.known[id] = token, true
}

// setVocab enters the model's vocabulary.
func (t *Tokenizer) setVocab(vocab map[string]int32, where string) error {
	highest := int32(-1)
	for _, id := range vocab {
		highest = max(highest, id)
	}
	if err := checkHighest(highest, len(vocab), where); err != nil {
		return err
	}
	size := int(highest) + 1
	t.tokens = make([]string, size)
	t.known = make([]bool, size)
	t.special = make([]bool, size)
	t.skipped = make([]bool, size)
	t.ids = make(map[string]int32, len(vocab))
	for token, id := range vocab {
		if t.known[id] {
			return malformed(where, "the tokens %q and %q have the same id %d", t.tokens[id], token, id)
		}
		t.setToken(id, token)
		t.ids[token] = id
	}
	t.definition.modelSize = len(vocab)
	return nil
}

// checkHighest bounds the memory that ids ask for.
func checkHighest(highest int32, tokens int, where string) error {
	if int(highest) >= 4*tokens+1024 {
		return malformed(where, "the highest id is %d, but there are only %d tokens", highest, tokens)
	}
	return nil
}

// readVocab reads an object of tokens and their ids.
func readVocab(raw json.RawMessage, where string) (map[string]int32, error) {
	vocab := make(map[string]int32)
	err := members(raw, where, func(token string, value json.RawMessage) error {
		id, err := strconv.ParseInt(string(value), 10, 64)
		if err != nil || id < 0 || id > maxID {
			return malformed(where, "the id of %q is %.40s, expected a number from 0 to %d", token, value, maxID)
		}
		if _, double := vocab[token]; double {
			return malformed(where, "the token %q stands there twice", token)
		}
		vocab[token] = int32(id)
		return nil
	})
	return vocab, err
}

// readMerges reads merges, written "a b" or ["a", "b"].
func readMerges(raw json.RawMessage, where string) ([]bpeMerge, error) {
	var merges []bpeMerge
	err := elements(raw, where, func(i int, value json.RawMessage) error {
		var parts []string
		if line, ok := stringValue(value); ok {
			if strings.HasPrefix(line, "#version") {
				return nil
			}
			parts = strings.Split(line, " ")
		} else {
			err := elements(value, fmt.Sprintf("%s: merge %d", where, i), func(_ int, value json.RawMessage) error {
				part, ok := stringValue(value)
				if !ok {
					return malformed(where, "merge %d has the part %.40s, expected a string", i, value)
				}
				parts = append(parts, part)
				return nil
			})
			if err != nil {
				return err
			}
		}
		if len(parts) != 2 {
			return malformed(where, "merge %d has %d parts, expected 2 tokens", i, len(parts))
		}
		merges = append(merges, bpeMerge{parts[0], parts[1]})
		return nil
	})
	return merges, err
}
