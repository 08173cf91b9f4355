package chat

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// testNow is the time that the goldens were made at.
var testNow = time.Date(2024, 7, 6, 5, 4, 3, 0, time.UTC)

// render parses and renders with the variables given.
func render(template string, lim Limits, vars map[string]any) (string, error) {
	t, err := Parse(template, lim)
	if err != nil {
		return "", err
	}
	return t.Render(Input{Extra: vars, Now: testNow})
}

// kindOf is the kind of an error, and checks that it is an *Error.
func kindOf(t *testing.T, err error) Kind {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error of type %T: %v", err, err)
	}
	return e.Kind
}

// readLines calls f with each line of a JSON lines file.
func readLines(t *testing.T, path string, f func(line []byte)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	s := bufio.NewScanner(file)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		f(s.Bytes())
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

// sharedTemplate is an entry of templates.json.
type sharedTemplate struct {
	ChatTemplate string `json:"chat_template"`
	BOSToken     string `json:"bos_token"`
	EOSToken     string `json:"eos_token"`
}

// checkCases renders the cases in dir, which transformers has rendered.
func checkCases(t *testing.T, dir string) {
	data, err := os.ReadFile(filepath.Join(dir, "templates.json"))
	if err != nil {
		t.Fatal(err)
	}
	var templates map[string]sharedTemplate
	if err := json.Unmarshal(data, &templates); err != nil {
		t.Fatal(err)
	}
	n := 0
	readLines(t, filepath.Join(dir, "cases.jsonl"), func(line []byte) {
		var c struct {
			Template            string
			Messages            []Message
			AddGenerationPrompt bool `json:"add_generation_prompt"`
			Text, Error         *string
		}
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		n++
		tmpl := templates[c.Template]
		parsed, err := Parse(tmpl.ChatTemplate, Limits{})
		if err != nil {
			t.Fatalf("%s: %v", c.Template, err)
		}
		got, err := parsed.Render(Input{
			Messages: c.Messages, AddGenerationPrompt: c.AddGenerationPrompt,
			BOSToken: tmpl.BOSToken, EOSToken: tmpl.EOSToken,
		})
		switch {
		case c.Text == nil:
			if err == nil {
				t.Errorf("%s: got %q, want the error %s", line, got, *c.Error)
			}
		case err != nil:
			t.Errorf("%s: %v", line, err)
		case got != *c.Text:
			t.Errorf("%s:\n got %q\nwant %q", line, got, *c.Text)
		}
	})
	if n < 40 {
		t.Errorf("%d cases, want 40", n)
	}
}

func TestCases(t *testing.T) { checkCases(t, "testdata") }

// TestSharedCases guards against the copy in testdata going stale.
func TestSharedCases(t *testing.T) {
	shared := os.Getenv("FPA_SHARED")
	if shared == "" {
		t.Skip("FPA_SHARED is not set")
	}
	checkCases(t, filepath.Join(shared, "cases", "chat_templates"))
}

// TestSmolLM2 renders the prompt that the goldens of the model SmolLM2 begin with.
func TestSmolLM2(t *testing.T) {
	data, err := os.ReadFile("testdata/smollm2_chat.json")
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Messages []Message
		Prompt   string
	}
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatal(err)
	}
	if data, err = os.ReadFile("testdata/templates.json"); err != nil {
		t.Fatal(err)
	}
	var templates map[string]sharedTemplate
	if err := json.Unmarshal(data, &templates); err != nil {
		t.Fatal(err)
	}
	tmpl, err := Parse(templates["smollm2"].ChatTemplate, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := tmpl.Render(Input{Messages: c.Messages, AddGenerationPrompt: true, EOSToken: "<|im_end|>"})
	if err != nil || got != c.Prompt {
		t.Errorf("got %q, %v\nwant %q", got, err, c.Prompt)
	}
}

// A golden is a template, and what Jinja2 makes of it.
type golden struct {
	Template string
	Text     *string
	Error    string
	Refused  bool
}

// readGoldens returns the goldens and the variables they are rendered with.
func readGoldens(t *testing.T) ([]golden, map[string]any) {
	var goldens []golden
	var vars map[string]any
	readLines(t, "testdata/goldens.jsonl", func(line []byte) {
		if vars == nil {
			var first struct{ Vars map[string]json.RawMessage }
			if err := json.Unmarshal(line, &first); err != nil {
				t.Fatal(err)
			}
			vars = map[string]any{}
			for name, v := range first.Vars {
				vars[name] = v
			}
			return
		}
		var g golden
		if err := json.Unmarshal(line, &g); err != nil {
			t.Fatal(err)
		}
		goldens = append(goldens, g)
	})
	if len(goldens) < 300 {
		t.Fatalf("%d goldens, want 300 at least", len(goldens))
	}
	return goldens, vars
}

// TestGoldens compares with Jinja2 on constructs of every kind.
func TestGoldens(t *testing.T) {
	goldens, vars := readGoldens(t)
	for _, g := range goldens {
		got, err := render(g.Template, Limits{}, vars)
		switch {
		case g.Refused:
			if err == nil || kindOf(t, err) != Unsupported {
				t.Errorf("%s\ngot %q, %v, want it refused", g.Template, got, err)
			}
		case g.Text == nil:
			if err == nil {
				t.Errorf("%s\ngot %q, want the error %s", g.Template, got, g.Error)
			}
		case err != nil:
			t.Errorf("%s\n%v", g.Template, err)
		case got != *g.Text:
			t.Errorf("%s\n got %q\nwant %q", g.Template, got, *g.Text)
		}
	}
}

func TestErrors(t *testing.T) {
	tests := []struct {
		template  string
		kind      Kind
		line, col int
		msg       string
	}{
		{"{{ 1 +\n }}", Syntax, 2, 2, "end of print statement"},
		{"a\n  {% frob %}", Syntax, 2, 6, "unknown statement 'frob'"},
		{"é {% if x %}", Syntax, 1, 13, "endif"},
		{"{{ 'x }}", Syntax, 1, 4, "string without an end"},
		{"{{ (1] }}", Syntax, 1, 6, "expected ')'"},
		{"{# x", Syntax, 1, 1, "comment without an end"},
		{"{% raw %}", Syntax, 1, 1, "endraw"},
		{"{{ x", Syntax, 1, 1, "tag without an end"},
		{"{% set true = 1 %}", Syntax, 1, 8, "cannot assign"},
		{"\xff", Syntax, 0, 0, "UTF-8"},
		{"{% include 'x' %}", Unsupported, 1, 4, "'include'"},
		{"{% import 'x' as y %}", Unsupported, 1, 4, "'import'"},
		{"{% from 'x' import y %}", Unsupported, 1, 4, "'from'"},
		{"{% extends 'x' %}", Unsupported, 1, 4, "'extends'"},
		{"{% block x %}{% endblock %}", Unsupported, 1, 4, "'block'"},
		{"{% call f %}{% endcall %}", Syntax, 1, 9, "expected a call"},
		{"{% if false %}{{ x|xmlattr }}{% endif %}", Unsupported, 1, 20, "filter 'xmlattr'"},
		{"{% if false %}{{ x|map('nope') }}{% endif %}", Unsupported, 1, 24, "filter 'nope'"},
		{"{% if false %}{{ x|selectattr('a', 'nope') }}{% endif %}", Unsupported, 1, 36, "test 'nope'"},
		{"{{ x is filter }}", Unsupported, 1, 9, "test 'filter'"},
		{"{% if false %}{{ x.format(1) }}{% endif %}", Unsupported, 1, 19, "method 'format'"},
		{"{% if false %}{{ ''.__class__.__mro__ }}{% endif %}", Unsupported, 1, 21, "'__class__'"},
		{"{% for x in y recursive %}{% endfor %}", Unsupported, 1, 15, "recursive"},
		{"{{ f(*x) }}", Unsupported, 1, 6, "unpacking"},
		{"{{ lipsum() }}", Unsupported, 1, 4, "'lipsum'"},
		{"{{ é }}", Unsupported, 1, 4, "ASCII"},
		{"{{ '\\N{DASH}' }}", Unsupported, 1, 4, "\\N"},
		{"a\nb{{ x.y }}", Failed, 2, 6, "'x' is undefined"},
		{"{{ 1 + 'a' }}", Failed, 1, 6, "'int' and 'str'"},
		{"{% for a, b in [[1]] %}{% endfor %}", Failed, 1, 4, "not enough values"},
		{"{{ [].append(1) }}", Failed, 1, 13, "list.append changes the list"},
		{"{{ {}.update(x=1) }}", Failed, 1, 13, "dict.update changes the dict"},
		{"{{ raise_exception('no ' ~ 'way') }}", Raised, 1, 19, "no way"},
		{"{{ range(100001)|list }}", Failed, 1, 9, "longer than 100000"},
	}
	for _, tt := range tests {
		got, err := render(tt.template, Limits{}, nil)
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%q: got %q, %v, want a %v", tt.template, got, err, tt.kind)
			continue
		}
		if e.Kind != tt.kind || e.Line != tt.line || e.Col != tt.col || !strings.Contains(e.Error(), tt.msg) {
			t.Errorf("%q: %v (%v at %d:%d), want %v at %d:%d with %q", tt.template, err, e.Kind, e.Line, e.Col, tt.kind, tt.line, tt.col, tt.msg)
		}
	}
}

// TestHostile runs templates that would run, grow or recurse without end. All
// must end with a limit, and soon.
func TestHostile(t *testing.T) {
	long := strings.Repeat
	tests := map[string]string{
		"nested loops":        long("{% for i in range(100000) %}", 5) + "x" + long("{% endfor %}", 5),
		"silent loops":        long("{% for i in range(100000) %}", 5) + long("{% endfor %}", 5),
		"recursive macro":     "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"mutual macros":       "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ g() }}",
		"exponential macro":   "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(45) }}",
		"multiplied string":   "{{ 'a' * 10**9 }}",
		"multiplied string2":  "{{ 10**18 * 'abc' }}",
		"multiplied list":     "{{ ([0] * 10**9)|length }}",
		"doubled string":      "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
		"doubled list":        "{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
		"shared list":         "{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
		"shared list json":    "{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s|tojson }}",
		"shared list equal":   "{% set n = namespace(s=[1], t=[1]) %}{% for i in range(99) %}{% set n.s = [n.s, n.s] %}{% set n.t = [n.t, n.t] %}{% endfor %}{{ n.s == n.t }}",
		"deep list":           "{% set n = namespace(s=[1]) %}{% for i in range(9999) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s }}",
		"deep list json":      "{% set n = namespace(s=[1]) %}{% for i in range(9999) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s|tojson(indent=2) }}",
		"deep list sort":      "{% set n = namespace(s=[1], t=[2]) %}{% for i in range(9999) %}{% set n.s = [n.s] %}{% set n.t = [n.t] %}{% endfor %}{{ [n.s, n.t]|sort }}",
		"namespace in itself": "{% set n = namespace() %}{% set n.n = n %}{{ n }}",
		"padding":             "{{ 'x'.ljust(10**12) }}",
		"centering":           "{{ 'x'|center(10**12) }}",
		"indent":              "{{ ('\n' * 10**6)|indent(10**6, true, true) }}",
		"indent width":        "{{ 'x'|indent(10**10, true) }}",
		"json indent":         "{{ [1]|tojson(indent=10**10) }}",
		"json indent long":    "{{ [[[[[[1]]]]]]|tojson(indent=10**8) }}",
		"json separators":     "{{ range(100000)|list|tojson(separators=('x' * 10**6, ':')) }}",
		"replace":             "{{ ('a' * 10**5).replace('a', 'b' * 10**5) }}",
		"replace empty":       "{{ ('a' * 10**5)|replace('', 'b' * 10**5) }}",
		"join":                "{{ range(100000)|join('x' * 10**5) }}",
		"join method":         "{{ ('x' * 10**5).join(['a'] * 10**6) }}",
		"batch":               "{{ [1]|batch(10**12, 0)|list }}",
		"format":              "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = '%s%s' % (n.s, n.s) %}{% endfor %}",
		"macro output":        "{% macro f(s) %}{{ s }}{{ s }}{% endmacro %}{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = f(n.s) %}{% endfor %}",
		"set block":           "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s %}{{ n.s }}{{ n.s }}{% endset %}{% endfor %}",
		"output":              "{% set s = 'x' * 10**6 %}{% for i in range(100) %}{{ s }}{% endfor %}",
		"deep parentheses":    "{{ " + long("(", 50000) + "1" + long(")", 50000) + " }}",
		"deep lists":          "{{ " + long("[", 50000) + "1" + long("]", 50000) + " }}",
		"deep dicts":          "{{ " + long("{1:", 50000) + "1" + long("}", 50000) + " }}",
		"deep not":            "{{ " + long("not ", 50000) + "1 }}",
		"deep minus":          "{{ " + long("- ", 50000) + "1 }}",
		"deep sum":            "{{ 1" + long("+1", 50000) + " }}",
		"deep power":          "{{ 1" + long("**1", 50000) + " }}",
		"deep attributes":     "{{ x" + long(".x", 50000) + " }}",
		"deep items":          "{{ x" + long("[0]", 50000) + " }}",
		"deep calls":          "{{ x" + long("()", 50000) + " }}",
		"deep filters":        "{{ x" + long("|e", 50000) + " }}",
		"deep tests":          "{{ x" + long(" is defined", 20000) + " }}",
		"deep and":            "{{ x" + long(" and x", 30000) + " }}",
		"deep inline if":      "{{ " + long("x if x else ", 15000) + "x }}",
		"deep inline if2":     "{{ x" + long(" if x", 40000) + " }}",
		"deep if":             long("{% if x %}", 20000),
		"deep for":            long("{% for x in y %}", 15000),
		"deep target":         "{% set " + long("(", 50000) + "a" + long(")", 50000) + " = 1 %}",
		"deep macros":         long("{% macro f() %}", 15000),
		"long template":       long("x", 1<<20),
		"long lengths":        "{% set s = 'x' * 10**7 %}{% for i in range(100000) %}{% if s|length == 0 %}{% endif %}{% endfor %}",
		"long keys":           "{% set s = 'x' * 10**7 %}{% for i in range(100000) %}{% if {}[s] %}{% endif %}{% endfor %}",
		"long comparisons":    "{% set s = 'x' * 7000000 %}{% set t = 'x' * 7000000 %}{% for i in range(100000) %}{% if s != t %}{% endif %}{% endfor %}",
		"long titles":         "{% set s = 'é ' * 10**5 %}{% for i in range(100000) %}{% set t = s.title() %}{% endfor %}",
		"many ifs":            long("{% if a %}{% set a"+long("b", 10)+" = 1 %}{% endif %}", 5000) + "{{ 'a' * 10**9 }}",
	}
	// The defaults end these too, but take seconds where they are reached.
	lim := Limits{Steps: 1_000_000, AllocBytes: 16 << 20, OutputBytes: 1 << 20}
	for name, template := range tests {
		start := time.Now()
		got, err := render(template, lim, nil)
		if err == nil {
			t.Errorf("%s: got %d bytes, want an error", name, len(got))
			continue
		}
		if kind := kindOf(t, err); kind != Limit && name != "deep tests" {
			t.Errorf("%s: %.300v, want a limit", name, err)
		}
		if len(err.Error()) > 400 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
		if d := time.Since(start); d > 20*time.Second {
			t.Errorf("%s: took %v", name, d)
		}
	}
}

// TestManyNames bounds the analysis of the variables, which copies tables.
func TestManyNames(t *testing.T) {
	var b strings.Builder
	for i := range 3000 {
		name := "v" + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676))
		b.WriteString("{%if a%}{%set " + name + "=1%}{%endif%}")
	}
	if _, err := Parse(b.String(), Limits{TemplateBytes: 1 << 20}); err == nil || kindOf(t, err) != Limit {
		t.Errorf("got %v, want a limit", err)
	}
}

func TestSmallLimits(t *testing.T) {
	tests := []struct {
		lim      Limits
		template string
	}{
		{Limits{TemplateBytes: 3}, "1234"},
		{Limits{Depth: 5}, "{{ ((((1)))) }}"},
		{Limits{Calls: 2}, "{% macro f(n) %}{% if n %}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(2) }}"},
		{Limits{Steps: 10}, "{% for i in range(5) %}{{ i }}{% endfor %}"},
		{Limits{AllocBytes: 100}, "{% set x = 'a' * 101 %}"},
		{Limits{OutputBytes: 5}, "{{ 'abc' }}{{ 'def' }}"},
	}
	for _, tt := range tests {
		if _, err := render(tt.template, tt.lim, nil); err == nil || kindOf(t, err) != Limit {
			t.Errorf("%+v %s: %v, want a limit", tt.lim, tt.template, err)
		}
		if _, err := render(tt.template, Limits{}, nil); err != nil {
			t.Errorf("%s: %v with the default limits", tt.template, err)
		}
	}
}

func TestInput(t *testing.T) {
	const show = "{{ messages|tojson }}{{ tools }}{{ documents }}{{ bos_token is defined }}{{ eos_token }}{{ add_generation_prompt }}{{ x }}"
	tests := []struct {
		in   Input
		want string
	}{
		{Input{}, "[]NoneNoneFalseFalse"},
		{Input{Messages: []Message{{Role: "user", Content: "é\""}}, BOSToken: "b", EOSToken: "e", AddGenerationPrompt: true},
			`[{"role": "user", "content": "é\""}]NoneNoneTrueeTrue`},
		{Input{Messages: []Message{{Role: "x", JSON: json.RawMessage(`{"z": 1.50, "a": [null, 1e2, -0, "\ud83d\ude00"]}`)}}},
			`[{"z": 1.5, "a": [null, 100.0, 0, "😀"]}]NoneNoneFalseFalse`},
		{Input{Tools: json.RawMessage(`[{"b": 1, "a": 2, "b": 3}]`), Documents: json.RawMessage(`[]`)},
			"[][{'b': 3, 'a': 2}][]FalseFalse"},
		{Input{Extra: map[string]any{"x": map[string]any{"b": []any{1, int64(2), 3.0, nil, true, "s"}, "a": []string{"q"}, "c": json.Number("1.0"), "d": json.RawMessage(`{"z":1,"y":2}`)}}},
			"[]NoneNoneFalseFalse{'a': ['q'], 'b': [1, 2, 3.0, None, True, 's'], 'c': 1.0, 'd': {'z': 1, 'y': 2}}"},
		{Input{BOSToken: "b", Extra: map[string]any{"bos_token": "", "messages": "m"}}, `"m"NoneNoneTrueFalse`},
	}
	tmpl, err := Parse(show, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		if got, err := tmpl.Render(tt.in); err != nil || got != tt.want {
			t.Errorf("%+v:\n got %q, %v\nwant %q", tt.in, got, err, tt.want)
		}
	}
	deep := strings.Repeat("[", 10000) + strings.Repeat("]", 10000)
	var deepGo any = 1
	for range 500 {
		deepGo = []any{deepGo}
	}
	for name, in := range map[string]Input{
		"not JSON":          {Tools: json.RawMessage("{")},
		"two values":        {Tools: json.RawMessage("1 2")},
		"cut":               {Tools: json.RawMessage(`["a`)},
		"deep":              {Tools: json.RawMessage(deep)},
		"deep Go":           {Extra: map[string]any{"x": deepGo}},
		"not UTF-8":         {Tools: json.RawMessage("\"\xff\"")},
		"half pair":         {Tools: json.RawMessage(`"\ud800"`)},
		"half pair 2":       {Tools: json.RawMessage(`"\ud800\u0041"`)},
		"half pair 3":       {Tools: json.RawMessage(`"\udc00"`)},
		"large integer":     {Tools: json.RawMessage("99999999999999999999")},
		"message a list":    {Messages: []Message{{JSON: json.RawMessage("[]")}}},
		"message not UTF-8": {Messages: []Message{{Content: "\xff"}}},
		"token not UTF-8":   {BOSToken: "\xff"},
		"unknown type":      {Extra: map[string]any{"x": struct{}{}}},
		"extra not UTF-8":   {Extra: map[string]any{"x": "\xff"}},
		"key not UTF-8":     {Extra: map[string]any{"x": map[string]any{"\xff": 1}}},
	} {
		if got, err := tmpl.Render(in); err == nil || kindOf(t, err) != BadInput {
			t.Errorf("%s: got %q, %v, want bad input", name, got, err)
		}
	}
}

func TestMessageJSON(t *testing.T) {
	const text = `[{"role":"user","content":"hi","name":"n"},{"content":null,"role":"assistant"}]`
	var messages []Message
	if err := json.Unmarshal([]byte(text), &messages); err != nil {
		t.Fatal(err)
	}
	if messages[0].Role != "user" || messages[0].Content != "hi" || messages[1].Role != "assistant" || messages[1].Content != "" {
		t.Errorf("got %+v", messages)
	}
	messages = append(messages, Message{Role: "r", Content: "c"})
	data, err := json.Marshal(messages)
	if want := text[:len(text)-1] + `,{"role":"r","content":"c"}]`; err != nil || string(data) != want {
		t.Errorf("got %s, %v, want %s", data, err, want)
	}
	if err := json.Unmarshal([]byte(`["x"]`), &messages); err == nil {
		t.Error("a message that is a string was accepted")
	}
}

// TestConcurrent renders one template from several goroutines; the race
// detector watches.
func TestConcurrent(t *testing.T) {
	tmpl, err := Parse("{% set n = namespace(x=0) %}{% for m in messages %}{% set n.x = n.x + 1 %}{{ m.content|upper }}{% endfor %}{{ n.x }}", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				got, err := tmpl.Render(Input{Messages: []Message{{Content: "a"}, {Content: "b"}}})
				if err != nil || got != "AB2" {
					t.Errorf("got %q, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestKindString makes sure that every kind has a name.
func TestKindString(t *testing.T) {
	seen := map[string]bool{}
	for k := Syntax; k <= BadInput; k++ {
		s := k.String()
		if seen[s] || strings.HasPrefix(s, "Kind(") {
			t.Errorf("kind %d is called %q", int(k), s)
		}
		seen[s] = true
	}
}
