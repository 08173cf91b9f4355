package tokenizer

import (
	"cmp"
	"encoding/json"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// maxPrepend bounds what is put in front of each stretch between added tokens.
const maxPrepend = 64

// parseNormalizer reads a normalizer of a tokenizer.json.
func parseNormalizer(raw json.RawMessage, where string, depth int) (normalizer, error) {
	kind, o, err := component(raw, where, depth)
	if err != nil {
		return nil, err
	}
	var n normalizer
	switch kind {
	case "Sequence":
		var all sequence
		return all, o.list("normalizers", func(raw json.RawMessage, where string) error {
			one, err := parseNormalizer(raw, where, depth+1)
			all = append(all, one)
			return cmp.Or(err, tooMany(len(all), where))
		})
	case "NFC":
		n = unicodeForm(norm.NFC)
	case "NFD":
		n = unicodeForm(norm.NFD)
	case "NFKC":
		n = unicodeForm(norm.NFKC)
	case "NFKD":
		n = unicodeForm(norm.NFKD)
	case "Lowercase":
		n = lowercase{}
	case "StripAccents":
		n = mapCharacters(stripMark)
	case "Nmt":
		n = mapCharacters(nmtCharacter)
	case "ByteLevel":
		n = byteLevelForm{}
	case "Strip":
		var s strip
		o.must("strip_left", &s.left)
		o.must("strip_right", &s.right)
		n = s
	case "Prepend":
		var s string
		o.must("prepend", &s)
		if o.err == nil && len(s) > maxPrepend {
			o.err = unsupported(where+".prepend", "a text of %d bytes; at most %d are supported", len(s), maxPrepend)
		}
		n = prepend(s)
	case "Replace":
		var content string
		o.must("content", &content)
		fixed, regex := o.patternField("pattern")
		if regex == " {2,}" && content == " " {
			n = squeezeBlanks{}
		} else if regex != "" {
			n = replaceRegex{o.compile("pattern", regex), content}
		} else {
			n = replaceLiteral{fixed, content}
		}
	case "BertNormalizer":
		var b bertNormalizer
		o.must("clean_text", &b.clean)
		o.must("handle_chinese_chars", &b.spaceHan)
		o.must("lowercase", &b.lowercase)
		b.stripAccents = b.lowercase
		o.get("strip_accents", &b.stripAccents)
		n = b
	case "Precompiled":
		var charsmap []byte // base64
		o.get("precompiled_charsmap", &charsmap)
		if o.err == nil {
			n, o.err = newPrecompiled(charsmap, where)
		}
	default:
		return nil, unsupported(where, "the normalizer %q is not supported", kind)
	}
	return n, o.finish()
}

// parsePreTokenizer reads a pre-tokenizer as the list of its stages.
func parsePreTokenizer(raw json.RawMessage, where string, depth int) ([]preTokenizer, error) {
	kind, o, err := component(raw, where, depth)
	if err != nil {
		return nil, err
	}
	var stages []preTokenizer
	add := func(stage preTokenizer) { stages = append(stages, stage) }
	switch kind {
	case "Sequence":
		err := o.list("pretokenizers", func(raw json.RawMessage, where string) error {
			some, err := parsePreTokenizer(raw, where, depth+1)
			stages = append(stages, some...)
			return cmp.Or(err, tooMany(len(stages), where))
		})
		return stages, err
	case "ByteLevel":
		stage := byteLevel{pattern: true}
		o.must("add_prefix_space", &stage.prefixSpace)
		o.get("use_regex", &stage.pattern)
		o.take("trim_offsets") // offsets are not kept here
		add(stage)
	case "Metaspace":
		stage := metaspace{mark: o.character("replacement"), cut: true}
		prefixSpace, scheme := true, "always"
		o.get("add_prefix_space", &prefixSpace)
		o.get("prepend_scheme", &scheme)
		o.get("split", &stage.cut)
		o.take("str_rep") // the replacement once more
		known := false
		stage.prepend, known = prependSchemes[scheme]
		switch {
		case o.err != nil:
		case !known:
			o.err = unsupported(where+".prepend_scheme", "found %q, expected always, first or never", scheme)
		case !prefixSpace && stage.prepend != prependNever && o.has("prepend_scheme"):
			o.err = malformed(where, "add_prefix_space is false, but prepend_scheme is %q", scheme)
		case !prefixSpace:
			stage.prepend = prependNever
		}
		add(stage)
	case "Split":
		var s patternSplit
		o.must("invert", &s.invert)
		s.behavior = o.behaviorField("behavior")
		fixed, regex := o.patternField("pattern")
		scan := knownPatterns[regex]
		switch {
		case scan != nil && (s.behavior == isolated || s.behavior == removed && s.invert):
			// The pattern matches everywhere, so nothing lies between matches.
			add(scanSplit{scan})
		case regex != "":
			s.pattern = o.compile("pattern", regex)
			add(s)
		default:
			s.pattern = literal(fixed)
			add(s)
		}
	case "Digits":
		var each bool
		o.get("individual_digits", &each)
		if each {
			add(scanSplit{digitScanner{}})
		} else {
			add(patternSplit{characterPattern(isNumeric), contiguous, false})
		}
	case "Whitespace":
		add(patternSplit{wordPattern{}, removed, true})
	case "WhitespaceSplit":
		add(characterSplit{unicode.IsSpace, true})
	case "Punctuation":
		s := patternSplit{characterPattern(isPunctuation), isolated, false}
		if o.has("behavior") {
			s.behavior = o.behaviorField("behavior")
		}
		add(s)
	case "BertPreTokenizer":
		stages = append(stages, bertStages...)
	case "CharDelimiterSplit":
		add(patternSplit{literal(o.character("delimiter")), removed, false})
	case "FixedLength":
		length := 5
		o.get("length", &length)
		if o.err == nil && length < 1 {
			o.err = malformed(where+".length", "found %d, expected at least 1", length)
		}
		add(fixedLength(length))
	default:
		return nil, unsupported(where, "the pre-tokenizer %q is not supported", kind)
	}
	return stages, o.finish()
}

// checkPreTokenizers refuses ByteLevel twice, which makes text longer each time.
func checkPreTokenizers(stages []preTokenizer) error {
	n := 0
	for _, stage := range stages {
		if _, ok := stage.(byteLevel); ok {
			n++
		}
	}
	if n > 1 {
		return unsupported("pre_tokenizer", "ByteLevel stands there %d times", n)
	}
	return nil
}

// maxDecoderGrowth bounds how many times longer the decoder makes tokens.
const maxDecoderGrowth = 256

// checkDecoder refuses decoders that can make text very long.
func checkDecoder(steps []decodeStep) error {
	growth := 1
	for _, step := range steps {
		if r, ok := step.(replaceDecoder); ok {
			if growth *= r.growth(); growth > maxDecoderGrowth {
				return unsupported("decoder", "it can make text more than %d times longer", maxDecoderGrowth)
			}
		}
	}
	return nil
}

// has reports whether a field is there and not null.
func (o *object) has(name string) bool {
	raw, ok := o.fields[name]
	return ok && string(raw) != "null"
}

// behaviorField reads the behavior of a split.
func (o *object) behaviorField(name string) behavior {
	var s string
	o.must(name, &s)
	b, ok := behaviors[s]
	if o.err == nil && !ok {
		o.err = unsupported(o.where+"."+name, "found %q, expected Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous", s)
	}
	return b
}

// parseDecoder reads a decoder as the list of its steps.
func parseDecoder(raw json.RawMessage, where string, depth int) ([]decodeStep, error) {
	kind, o, err := component(raw, where, depth)
	if err != nil {
		return nil, err
	}
	var step decodeStep
	switch kind {
	case "Sequence":
		var steps []decodeStep
		err := o.list("decoders", func(raw json.RawMessage, where string) error {
			some, err := parseDecoder(raw, where, depth+1)
			steps = append(steps, some...)
			return cmp.Or(err, tooMany(len(steps), where))
		})
		return steps, err
	case "ByteLevel":
		o.take("add_prefix_space") // of the pre-tokenizer; decoding does not ask
		o.take("trim_offsets")
		o.take("use_regex")
		step = byteLevelDecoder{}
	case "Metaspace":
		mark := o.character("replacement")
		prefixSpace, scheme := true, "always"
		o.get("add_prefix_space", &prefixSpace)
		o.get("prepend_scheme", &scheme)
		o.take("split")
		o.take("str_rep")
		prepends, known := prependSchemes[scheme]
		if o.err == nil && !known {
			o.err = unsupported(where+".prepend_scheme", "found %q, expected always, first or never", scheme)
		}
		step = metaspaceDecoder(mark, prefixSpace && prepends != prependNever)
	case "WordPiece":
		prefix, cleanup := "##", true
		o.must("prefix", &prefix)
		o.must("cleanup", &cleanup)
		step = wordPieceDecoder(prefix, cleanup)
	case "BPEDecoder":
		var suffix string
		o.must("suffix", &suffix)
		if o.err == nil && suffix == "" {
			o.err = unsupported(where+".suffix", "an empty suffix")
		}
		step = suffixDecoder(suffix)
	case "Replace":
		var d replaceDecoder
		o.must("content", &d.new)
		regex := ""
		if d.old, regex = o.patternField("pattern"); regex != "" {
			// There is no bound on its time that could be reported from a stream.
			return nil, unsupported(where, "a regular expression in a decoder")
		}
		step = d
	case "Fuse":
		step = fuse{}
	case "Strip":
		d := stripDecoder{content: o.character("content")}
		o.must("start", &d.start)
		o.must("stop", &d.stop)
		step = d
	case "ByteFallback":
		step = byteFallbackDecoder{}
	default:
		return nil, unsupported(where, "the decoder %q is not supported", kind)
	}
	return []decodeStep{step}, o.finish()
}

// parsePostProcessor reads what a post-processor puts around a text.
func (t *Tokenizer) parsePostProcessor(raw json.RawMessage, where string, depth int) error {
	kind, o, err := component(raw, where, depth)
	if err != nil {
		return err
	}
	switch kind {
	case "Sequence":
		return o.list("processors", func(raw json.RawMessage, where string) error {
			return t.parsePostProcessor(raw, where, depth+1)
		})
	case "ByteLevel": // changes offsets alone
		o.take("add_prefix_space")
		o.take("trim_offsets")
		o.take("use_regex")
		return o.finish()
	case "BertProcessing", "RobertaProcessing":
		prefix, suffix := o.tokenField("cls"), o.tokenField("sep")
		o.take("add_prefix_space")
		o.take("trim_offsets")
		if err := o.finish(); err != nil {
			return err
		}
		return t.setTemplate([]int32{prefix}, []int32{suffix}, where)
	case "TemplateProcessing":
		return t.parseTemplate(o, where)
	}
	return unsupported(where, "the post-processor %q is not supported", kind)
}

// tokenField reads a token written as ["text", id].
func (o *object) tokenField(name string) int32 {
	var pair []json.RawMessage
	var text string
	var id int32
	o.must(name, &pair)
	if o.err == nil && (len(pair) != 2 || json.Unmarshal(pair[0], &text) != nil || json.Unmarshal(pair[1], &id) != nil) {
		o.err = malformed(o.where+"."+name, "expected a token and its id")
	}
	return id
}

// parseTemplate reads the template for a single text.
func (t *Tokenizer) parseTemplate(o *object, where string) error {
	type part struct {
		ID     string `json:"id"`
		TypeID int    `json:"type_id"`
	}
	var single []struct{ Sequence, SpecialToken *part }
	var tokens map[string]struct {
		ID     string   `json:"id"`
		IDs    []int32  `json:"ids"`
		Tokens []string `json:"tokens"`
	}
	o.must("single", &single)
	o.must("special_tokens", &tokens)
	o.take("pair") // texts are encoded one by one here
	if err := o.finish(); err != nil {
		return err
	}
	var prefix, suffix []int32
	texts := 0
	for i, p := range single {
		switch {
		case p.Sequence != nil && p.SpecialToken == nil && p.Sequence.ID == "A":
			texts++
		case p.SpecialToken != nil && p.Sequence == nil:
			token, ok := tokens[p.SpecialToken.ID]
			if !ok {
				return malformed(where+".single", "piece %d is the token %q, which special_tokens does not have", i, p.SpecialToken.ID)
			}
			if texts == 0 {
				prefix = append(prefix, token.IDs...)
			} else {
				suffix = append(suffix, token.IDs...)
			}
		default:
			return unsupported(where+".single", "piece %d is neither the sequence A nor a special token", i)
		}
	}
	if texts != 1 {
		return unsupported(where+".single", "the text stands there %d times, expected once", texts)
	}
	return t.setTemplate(prefix, suffix, where)
}

// setTemplate sets what goes around a text.
func (t *Tokenizer) setTemplate(prefix, suffix []int32, where string) error {
	if t.prefix != nil || t.suffix != nil {
		return unsupported(where, "a second post-processor that adds tokens")
	}
	for _, ids := range [][]int32{prefix, suffix} {
		for _, id := range ids {
			if _, ok := t.Token(id); !ok {
				return malformed(where, "token id %d is not in the vocabulary", id)
			}
		}
	}
	t.prefix, t.suffix = prefix, suffix
	if len(prefix) == 1 {
		t.roles.bos = prefix[0]
	}
	if len(suffix) == 1 {
		t.roles.eos = suffix[0]
	}
	return nil
}
