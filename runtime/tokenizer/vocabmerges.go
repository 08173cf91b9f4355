package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/firstpassage/fpa/format"
)

// The files of a VocabMerges, as errors name them.
const (
	vocabFile         = "vocab.json"
	mergesFile        = "merges.txt"
	configFile        = "tokenizer_config.json"
	specialTokensFile = "special_tokens_map.json"
	addedTokensFile   = "added_tokens.json"
)

// VocabMerges are the files in which transformers keeps GPT2Tokenizer, the
// byte-level BPE of GPT-2 without a tokenizer.json:
// https://huggingface.co/docs/transformers/model_doc/gpt2#transformers.GPT2Tokenizer.
// Fields but the first two may be nil, where a file does not exist.
type VocabMerges struct {
	Vocab         []byte // vocab.json: an object of tokens and their ids
	Merges        []byte // merges.txt: a line "#version: 0.2", which may be missing, and "a b" lines
	Config        []byte // tokenizer_config.json
	SpecialTokens []byte // special_tokens_map.json
	Added         []byte // added_tokens.json: an object of tokens and their ids
}

// A fileToken is an added token as configurations and tokenizer.json have it.
type fileToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	StripLeft  bool   `json:"lstrip"`
	StripRight bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// JSON writes the tokenizer.json of the same tokenizer, for FromJSON: the ids
// are those of GPT2TokenizerFast for these files. What a tokenizer.json cannot
// say is TextEscapeOf's.
//
// As in transformers, added_tokens_decoder in tokenizer_config.json stands for
// the files special_tokens_map.json and added_tokens.json where it exists, and
// <|endoftext|> is the beginning, the end and the unknown token where nothing
// else is said. Unlike there, the first line of merges.txt is a merge where it
// is not a #version, the last needs no line end, and files that contradict
// themselves or each other are refused. Errors are *format.FormatError or
// *format.UnsupportedError and name the file.
func (v *VocabMerges) JSON() ([]byte, error) {
	files := []struct {
		name string
		data []byte
	}{
		{vocabFile, v.Vocab}, {configFile, v.Config}, {specialTokensFile, v.SpecialTokens}, {addedTokensFile, v.Added},
	}
	for _, f := range files {
		if f.data == nil && f.name != vocabFile {
			continue
		}
		if err := checkFile(f.data, f.name); err != nil {
			return nil, err
		}
	}
	vocab, err := readVocab(v.Vocab, "")
	if err != nil {
		return nil, format.WithPath(err, vocabFile)
	}
	tokens, err := orderVocab(vocab)
	if err != nil {
		return nil, format.WithPath(err, vocabFile)
	}
	merges, err := readMergesFile(v.Merges, vocab)
	if err != nil {
		return nil, format.WithPath(err, mergesFile)
	}
	s, err := v.readSettings()
	if err != nil {
		return nil, err
	}
	added, err := s.place(vocab)
	if err != nil {
		return nil, format.WithPath(err, s.listFile)
	}
	model := map[string]any{"type": "BPE", "vocab": json.RawMessage(tokens), "merges": merges}
	if s.escape != EscapeNone && s.named["unk_token"] != nil {
		// The class is written in Python alone, and that tokenizer gives this token
		// for bytes that a vocabulary lacks. The other one leaves them out.
		model["unk_token"] = s.named["unk_token"].Content
	}
	byteLevel := func(prefixSpace bool) map[string]any {
		return map[string]any{"type": "ByteLevel", "add_prefix_space": prefixSpace, "trim_offsets": true, "use_regex": true}
	}
	file := map[string]any{
		"version": "1.0", "added_tokens": added, "model": model,
		"pre_tokenizer": byteLevel(s.prefixSpace), "decoder": byteLevel(true),
	}
	if s.addBOS {
		if file["post_processor"], err = s.template(added); err != nil {
			return nil, format.WithPath(err, configFile)
		}
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err = enc.Encode(file)
	return out.Bytes(), err
}

// TextEscapeOf is how the tokenizer of a folder escapes text, by its
// tokenizer_config.json: EscapeJSON for the class JSONGPT2Tokenizer. nil stands
// for a file that does not exist.
func TextEscapeOf(config []byte) (TextEscape, error) {
	if config == nil {
		return EscapeNone, nil
	}
	if err := checkFile(config, configFile); err != nil {
		return EscapeNone, err
	}
	o := readObject(config, "")
	class := o.class()
	if o.err != nil {
		return EscapeNone, format.WithPath(o.err, configFile)
	}
	if class == jsonClass {
		return EscapeJSON, nil
	}
	return EscapeNone, nil
}

// jsonClass is the tokenizer of the Forgetting Transformer's repository.
const jsonClass = "JSONGPT2Tokenizer"

// Class is the tokenizer_class of a tokenizer_config.json from which TextEscapeOf
// gives e.
func (e TextEscape) Class() string {
	if e == EscapeJSON {
		return jsonClass
	}
	return "PreTrainedTokenizerFast"
}

// class is the class of a tokenizer_config.json, empty where it names none: that
// in auto_map, which a model brings along as Python code, before tokenizer_class.
func (o *object) class() string {
	var class string
	o.get("tokenizer_class", &class)
	var custom struct{ AutoTokenizer json.RawMessage }
	if !o.get("auto_map", &custom) || len(custom.AutoTokenizer) == 0 || string(custom.AutoTokenizer) == "null" {
		return class
	}
	// "module.Class", "repository--module.Class", or the slow and the fast class,
	// of which one may be null.
	var one string
	var several []*string
	if json.Unmarshal(custom.AutoTokenizer, &one) == nil {
		several = append(several, &one)
	} else if err := json.Unmarshal(custom.AutoTokenizer, &several); err != nil && o.err == nil {
		o.err = malformed("auto_map.AutoTokenizer", "found %.40s, expected the name of a class, or two", custom.AutoTokenizer)
	}
	for _, name := range several {
		if name != nil {
			return (*name)[strings.LastIndexByte(*name, '.')+1:]
		}
	}
	return class
}

// checkFile says where a file is not JSON in UTF-8.
func checkFile(data []byte, name string) error {
	if len(data) > maxJSON {
		return &format.UnsupportedError{Path: name, Offset: -1, Msg: fmt.Sprintf("the file has %d bytes; at most %d are supported", len(data), maxJSON)}
	}
	return format.WithPath(checkJSON(data), name)
}

// orderVocab writes a vocabulary as JSON, in the order of ids.
func orderVocab(vocab map[string]int32) ([]byte, error) {
	if len(vocab) == 0 {
		return nil, malformed("", "found no tokens")
	}
	type entry struct {
		token string
		id    int32
	}
	entries := make([]entry, 0, len(vocab))
	for token, id := range vocab {
		entries = append(entries, entry{token, id})
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.id, b.id), strings.Compare(a.token, b.token))
	})
	out := []byte{'{'}
	for i, e := range entries {
		if i > 0 {
			if before := entries[i-1]; before.id == e.id {
				return nil, malformed("", "the tokens %q and %q have the same id %d", before.token, e.token, e.id)
			}
			out = append(out, ',')
		}
		name, err := json.Marshal(e.token)
		if err != nil {
			return nil, err
		}
		out = append(append(out, name...), ':')
		out = strconv.AppendInt(out, int64(e.id), 10)
	}
	if err := checkHighest(entries[len(entries)-1].id, len(vocab), ""); err != nil {
		return nil, err
	}
	return append(out, '}'), nil
}

// readMergesFile reads a merges.txt and checks it against the vocabulary.
func readMergesFile(data []byte, vocab map[string]int32) ([][2]string, error) {
	merges := [][2]string{}
	seen := make(map[[2]string]int)
	rest := bytes.TrimRight(data, "\r\n")
	if len(rest) == 0 {
		return nil, malformed("", "the file is empty, expected a line \"#version: 0.2\" and merges")
	}
	for number := 1; len(rest) > 0; number++ {
		var line []byte
		line, rest, _ = bytes.Cut(rest, []byte("\n"))
		line = bytes.TrimSuffix(line, []byte("\r"))
		if number == 1 && bytes.HasPrefix(line, []byte("#version")) {
			continue
		}
		where := fmt.Sprintf("line %d", number)
		left, right, ok := strings.Cut(string(line), " ")
		if !ok || left == "" || right == "" || strings.Contains(right, " ") {
			return nil, malformed(where, "found %.80q, expected two tokens and a blank between them", line)
		}
		pair := [2]string{left, right}
		for _, token := range []string{left, right, left + right} {
			if _, ok := vocab[token]; !ok {
				return nil, malformed(where, "the merge of %.80q and %.80q needs the token %.160q, which vocab.json does not have", left, right, token)
			}
		}
		if before, double := seen[pair]; double {
			return nil, malformed(where, "the merge of %.80q and %.80q stands in line %d already", left, right, before)
		}
		seen[pair] = number
		merges = append(merges, pair)
	}
	return merges, nil
}

// tokenAttributes are the special tokens that configurations name, in the order
// in which transformers adds those that the vocabulary lacks.
var tokenAttributes = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

const moreSpecial = "additional_special_tokens"

// settings is what the configurations say.
type settings struct {
	escape      TextEscape
	prefixSpace bool
	addBOS      bool
	named       map[string]*fileToken // by attribute, nil where it has none
	more        []fileToken           // additional_special_tokens
	listed      []fileToken           // with ids
	listFile    string                // the file of listed
}

// readSettings reads all but vocabulary and merges.
func (v *VocabMerges) readSettings() (*settings, error) {
	s := &settings{named: make(map[string]*fileToken)}
	for _, name := range tokenAttributes[:3] {
		s.named[name] = &fileToken{Content: "<|endoftext|>", Normalized: true, Special: true}
	}
	listed := false
	if v.Config != nil {
		o := readObject(v.Config, "")
		raw, err := s.config(o)
		if err != nil {
			return nil, format.WithPath(err, configFile)
		}
		if listed = raw != nil; listed {
			s.listFile = configFile
			if err := s.decoderList(raw); err != nil {
				return nil, format.WithPath(err, configFile)
			}
		}
	}
	if listed {
		return s, nil
	}
	if v.SpecialTokens != nil {
		if err := s.specialTokens(readObject(v.SpecialTokens, "")); err != nil {
			return nil, format.WithPath(err, specialTokensFile)
		}
	}
	if v.Added != nil {
		s.listFile = addedTokensFile
		added, err := readVocab(v.Added, "")
		if err != nil {
			return nil, format.WithPath(err, addedTokensFile)
		}
		special := s.special()
		for content, id := range added {
			s.listed = append(s.listed, fileToken{ID: id, Content: content, Normalized: !special[content], Special: special[content]})
		}
	}
	return s, nil
}

// config reads a tokenizer_config.json. Its added_tokens_decoder is left to the
// caller. Fields that do not change ids are many, and ignored.
func (s *settings) config(o *object) (listed json.RawMessage, err error) {
	listed = o.take("added_tokens_decoder")
	class := o.class()
	switch class {
	case "", "GPT2Tokenizer", "GPT2TokenizerFast":
	case jsonClass:
		s.escape = EscapeJSON
	default:
		return nil, unsupported("tokenizer_class", "found %.80q; can read vocab.json and merges.txt of GPT2Tokenizer and JSONGPT2Tokenizer, and any class that saved a tokenizer.json", class)
	}
	o.get("add_prefix_space", &s.prefixSpace)
	o.get("add_bos_token", &s.addBOS)
	if s.prefixSpace && s.escape != EscapeNone {
		return nil, unsupported("add_prefix_space", "found true; not supported with %s", jsonClass)
	}
	var errorMode string
	if o.get("errors", &errorMode) && errorMode != "replace" {
		return nil, unsupported("errors", "found %.40q; decoding can replace wrong bytes only", errorMode)
	}
	return listed, s.specialTokens(o)
}

// specialTokens reads the special tokens that an object names.
func (s *settings) specialTokens(o *object) error {
	if o.err != nil {
		return o.err
	}
	for i, name := range tokenAttributes {
		raw, there := o.fields[name]
		if !there {
			continue
		}
		// GPT2Tokenizer makes AddedTokens of its own names, which are looked for
		// after normalization if there was one.
		token, err := parseToken(raw, name, i < 3 || name == "pad_token")
		if err != nil {
			return err
		}
		s.named[name] = token
	}
	var more []json.RawMessage
	o.get(moreSpecial, &more)
	if o.err != nil {
		return o.err
	}
	for i, raw := range more {
		where := fmt.Sprintf("%s[%d]", moreSpecial, i)
		token, err := parseToken(raw, where, false)
		if err != nil {
			return err
		}
		if token == nil {
			return malformed(where, "found null, expected a token")
		}
		if !slices.ContainsFunc(s.more, func(t fileToken) bool { return t.Content == token.Content }) {
			s.more = append(s.more, *token)
		}
	}
	return nil
}

// parseToken reads a special token: its text, an AddedToken, or null.
func parseToken(raw json.RawMessage, where string, normalized bool) (*fileToken, error) {
	if string(raw) == "null" {
		return nil, nil
	}
	t := &fileToken{Normalized: normalized, Special: true}
	if json.Unmarshal(raw, &t.Content) == nil {
		return t, checkContent(t, where)
	}
	err := t.parse(raw, where)
	t.Special = true
	return t, err
}

// parse reads an AddedToken. The fields but content may be missing.
func (t *fileToken) parse(raw json.RawMessage, where string) error {
	o := readObject(raw, where)
	o.take("__type")
	o.must("content", &t.Content)
	o.get("single_word", &t.SingleWord)
	o.get("lstrip", &t.StripLeft)
	o.get("rstrip", &t.StripRight)
	o.get("special", &t.Special)
	t.Normalized = !t.Special
	o.get("normalized", &t.Normalized)
	if err := o.finish(); err != nil {
		return err
	}
	return checkContent(t, where)
}

func checkContent(t *fileToken, where string) error {
	if len(t.Content) > maxAddedToken {
		return unsupported(where, "an added token of %d bytes; at most %d are supported", len(t.Content), maxAddedToken)
	}
	return nil
}

// decoderList reads added_tokens_decoder: AddedTokens by their ids.
func (s *settings) decoderList(raw json.RawMessage) error {
	const name = "added_tokens_decoder"
	return members(raw, name, func(key string, value json.RawMessage) error {
		where := fmt.Sprintf("%s[%.20q]", name, key)
		id, err := strconv.ParseInt(key, 10, 64)
		if err != nil || id < 0 || id > maxID {
			return malformed(where, "expected an id from 0 to %d", maxID)
		}
		t := fileToken{ID: int32(id)}
		if err := t.parse(value, where); err != nil {
			return err
		}
		s.listed = append(s.listed, t)
		return nil
	})
}

// special is the set of the special tokens that have a name.
func (s *settings) special() map[string]bool {
	special := make(map[string]bool)
	for _, t := range s.named {
		if t != nil {
			special[t.Content] = true
		}
	}
	for _, t := range s.more {
		special[t.Content] = true
	}
	return special
}

// place is the added tokens with the ids that they come to: those of the
// vocabulary, or else the ones that follow it. Those with an id must come to it.
func (s *settings) place(vocab map[string]int32) ([]fileToken, error) {
	listed := slices.Clone(s.listed)
	slices.SortStableFunc(listed, func(a, b fileToken) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), strings.Compare(a.Content, b.Content))
	})
	special := s.special()
	added := []fileToken{}
	next := int32(len(vocab))
	seen := make(map[string]bool)
	add := func(t fileToken, hasID bool) error {
		if t.Content == "" || seen[t.Content] && !hasID {
			return nil
		}
		if seen[t.Content] {
			return malformed("", "the token %.80q stands there twice", t.Content)
		}
		seen[t.Content] = true
		id, known := vocab[t.Content]
		if !known {
			id = next
			next++
		}
		if hasID && t.ID != id {
			return malformed("", "the token %.80q has the id %d, expected %d, as in vocab.json or following it without a gap", t.Content, t.ID, id)
		}
		t.ID = id
		t.Special = t.Special || special[t.Content]
		added = append(added, t)
		return nil
	}
	for _, t := range listed {
		if err := add(t, true); err != nil {
			return nil, err
		}
	}
	for _, name := range tokenAttributes {
		if t := s.named[name]; t != nil {
			if err := add(*t, false); err != nil {
				return nil, err
			}
		}
	}
	for _, t := range s.more {
		if err := add(t, false); err != nil {
			return nil, err
		}
	}
	return added, nil
}

// template is the post-processor that puts the beginning token before a text.
func (s *settings) template(added []fileToken) (map[string]any, error) {
	bos := s.named["bos_token"]
	if bos == nil || bos.Content == "" {
		return nil, malformed("add_bos_token", "found true, but there is no bos_token")
	}
	at := slices.IndexFunc(added, func(t fileToken) bool { return t.Content == bos.Content }) // place has put it there
	token := map[string]any{"SpecialToken": map[string]any{"id": bos.Content, "type_id": 0}}
	text := func(name string, kind int) map[string]any {
		return map[string]any{"Sequence": map[string]any{"id": name, "type_id": kind}}
	}
	return map[string]any{
		"type":   "TemplateProcessing",
		"single": []any{token, text("A", 0)},
		"pair":   []any{token, text("A", 0), text("B", 1)},
		"special_tokens": map[string]any{
			bos.Content: map[string]any{"id": bos.Content, "ids": []int32{added[at].ID}, "tokens": []string{bos.Content}},
		},
	}, nil
}
