// Package chat renders the chat template of a model: the small program, in the
// template language Jinja2, that turns a list of messages into the text the
// model continues. Hugging Face's transformers keeps it in chat_template of
// tokenizer_config.json, a GGUF file in tokenizer.chat_template.
//
// The language is Jinja2 as transformers sets it up: trim_blocks and
// lstrip_blocks, the statements break and continue, {% generation %}, the
// functions raise_exception and strftime_now, a filter tojson that is Python's
// json.dumps without ensure_ascii, and the immutable sandbox, in which lists
// and dicts cannot be changed. See
// https://jinja.palletsprojects.com/en/stable/templates/ and
// https://huggingface.co/docs/transformers/chat_templating.
//
// The rule of this package is that a template is rendered exactly as Jinja2
// renders it, white space and Python's way of writing values included, or
// refused with an error. What is refused by name, before anything is rendered:
// the statements include, import, from, extends, block, autoescape, do and
// trans; recursive loops; argument unpacking; the filters attr,
// filesizeformat, forceescape, groupby, pprint, random, striptags, urlencode,
// urlize, wordcount, wordwrap and xmlattr; the tests filter and test; the
// functions cycler, joiner and lipsum; methods that are not listed in
// methods.go, str.format among them; names that begin with two underscores
// after a dot. Refused when they occur: integers outside 64 bits, arithmetic
// on strings marked by safe or escape, sums of floats, and the rest of what
// says "not supported".
//
// # Security
//
// A chat template comes with a model and is as little trusted as the model. It
// is interpreted here, by code that has no access to files, the network, the
// environment or any Go value; there is no loader. Limits bounds the size of
// the template, the depth of its nesting and of its macros, the steps it runs,
// the bytes it allocates and the bytes it prints, so that no template makes
// Parse or Render run, grow or recurse without end. Templates cannot cause a
// panic. With the default limits the worst templates known take some seconds
// and half a GB. The text that a template prints is not escaped in any way: a message
// that contains a control token of the model ends up in the prompt as it is,
// and it is for the caller to tokenize it accordingly.
package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits bounds what a template may use. A zero field means its default. The
// defaults are far above what templates in use need.
type Limits struct {
	TemplateBytes int // size of the template; default 256 KiB
	Depth         int // nesting of statements and of expressions; default 200
	Calls         int // macros running at the same time; default 50
	Steps         int // statements, expressions and items handled; default 10 million
	AllocBytes    int // text and lists made while rendering, all told; default 128 MiB
	OutputBytes   int // size of the text printed; default 16 MiB
}

// withDefaults replaces each zero field by its default.
func (l Limits) withDefaults() Limits {
	set := func(field *int, value int) {
		if *field == 0 {
			*field = value
		}
	}
	set(&l.TemplateBytes, 256<<10)
	set(&l.Depth, 200)
	set(&l.Calls, 50)
	set(&l.Steps, 10_000_000)
	set(&l.AllocBytes, 128<<20)
	set(&l.OutputBytes, 16<<20)
	return l
}

// Template is a parsed chat template. It can be rendered by several goroutines
// at the same time.
type Template struct {
	src   string // with \n as the only end of a line
	body  []stmt
	scope *scope
	lim   Limits
}

// Parse parses a template. Every error is an *Error, which tells templates
// that are wrong from templates that are not supported.
func Parse(template string, lim Limits) (*Template, error) {
	lim = lim.withDefaults()
	if len(template) > lim.TemplateBytes {
		return nil, errorAt(Limit, noPos, "template of %d bytes, at most %d are accepted", len(template), lim.TemplateBytes)
	}
	if !utf8.ValidString(template) {
		return nil, errorAt(Syntax, noPos, "template is not UTF-8")
	}
	// Jinja2 drops one newline at the end of a template.
	src := strings.TrimSuffix(normalizeNewlines(template), "\n")
	tokens, err := lex(src)
	if err != nil {
		return nil, locate(err, src)
	}
	body, err := parseTemplate(tokens, lim.Depth)
	if err != nil {
		return nil, locate(err, src)
	}
	scope, err := resolveNames(body)
	if err != nil {
		return nil, locate(err, src)
	}
	return &Template{src: src, body: body, scope: scope, lim: lim}, nil
}

// Message is one message of a chat.
type Message struct {
	Role    string // "system", "user", "assistant", "tool", …
	Content string

	// JSON, if not empty, is the message as a JSON object, and Role and Content
	// are not used. It serves messages with parts or further fields; the order
	// of its keys is kept, as some templates print it.
	JSON json.RawMessage
}

// UnmarshalJSON keeps the object in JSON, and sets Role and Content where they
// are strings.
func (m *Message) UnmarshalJSON(data []byte) error {
	var fields struct{ Role, Content any }
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	*m = Message{JSON: append(json.RawMessage(nil), data...)}
	m.Role, _ = fields.Role.(string)
	m.Content, _ = fields.Content.(string)
	return nil
}

// MarshalJSON writes the message as a JSON object.
func (m Message) MarshalJSON() ([]byte, error) {
	if len(m.JSON) > 0 {
		return m.JSON, nil
	}
	return json.Marshal(struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}{m.Role, m.Content})
}

// value is the message as templates see it.
func (m Message) value() (value, error) {
	if len(m.JSON) == 0 {
		if !utf8.ValidString(m.Role) || !utf8.ValidString(m.Content) {
			return nil, badInput("text is not UTF-8")
		}
		d := newDict()
		d.setString("role", m.Role)
		d.setString("content", m.Content)
		return d, nil
	}
	v, err := decodeJSON(m.JSON)
	if err != nil {
		return nil, err
	}
	if _, ok := v.(*dict); !ok {
		return nil, badInput("expected a JSON object, got %s", typeName(v))
	}
	return v, nil
}

// Input is what a template is rendered with. Each field is a variable of the
// template.
type Input struct {
	Messages            []Message       // messages
	Tools               json.RawMessage // tools: a JSON array of function descriptions; none when empty
	Documents           json.RawMessage // documents: a JSON array; none when empty
	AddGenerationPrompt bool            // add_generation_prompt: end with the start of the model's answer

	// BOSToken and EOSToken are bos_token and eos_token. An empty one is not
	// defined in the template, as in transformers.
	BOSToken, EOSToken string

	// Extra are further variables by name; they win over those above. Values
	// are nil, bool, int, int64, float64, string, json.Number, []string, []any,
	// map[string]any (its keys sorted) or, to keep the order of keys,
	// json.RawMessage.
	Extra map[string]any

	// Now is the time that strftime_now tells; the zero value means the
	// current local time.
	Now time.Time
}

// vars are the variables of the template.
func (in *Input) vars() (map[string]value, error) {
	vars := map[string]value{
		"add_generation_prompt": in.AddGenerationPrompt,
		"tools":                 nil,
		"documents":             nil,
	}
	for name, f := range globals {
		vars[name] = f
	}
	messages := &list{}
	for i, m := range in.Messages {
		v, err := m.value()
		if err != nil {
			return nil, inInput(err, fmt.Sprintf("message %d", i))
		}
		messages.items = append(messages.items, v)
	}
	vars["messages"] = messages
	for name, data := range map[string]json.RawMessage{"tools": in.Tools, "documents": in.Documents} {
		if len(data) == 0 {
			continue
		}
		v, err := decodeJSON(data)
		if err != nil {
			return nil, inInput(err, name)
		}
		vars[name] = v
	}
	for name, token := range map[string]string{"bos_token": in.BOSToken, "eos_token": in.EOSToken} {
		if !utf8.ValidString(token) {
			return nil, badInput("%s is not UTF-8", name)
		}
		if token != "" {
			vars[name] = token
		}
	}
	for name, x := range in.Extra {
		v, err := fromGo(x, 0)
		if err != nil {
			return nil, inInput(err, "variable "+name)
		}
		vars[name] = v
	}
	return vars, nil
}

// inInput says which part of the input an error is about.
func inInput(err error, what string) error {
	var e *Error
	if errors.As(err, &e) {
		e.Msg = what + ": " + e.Msg
	}
	return err
}

// Render runs the template and returns the text it prints. Every error is an
// *Error; when the template calls raise_exception, its Kind is Raised and its
// Msg the template's message.
func (t *Template) Render(in Input) (string, error) {
	vars, err := in.vars()
	if err != nil {
		return "", err
	}
	e := &evaluator{lim: t.lim, vars: vars, now: in.Now, out: &strings.Builder{}}
	if e.now.IsZero() {
		e.now = time.Now()
	}
	e.act = &activation{vars: map[variable]value{}}
	if err := e.enterScope(t.scope); err != nil {
		return "", locate(err, t.src)
	}
	if _, err := e.run(t.body); err != nil {
		return "", locate(err, t.src)
	}
	return e.out.String(), nil
}
