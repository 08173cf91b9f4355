package chat

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// fuzzLimits keep every run of a fuzz target short.
var fuzzLimits = Limits{TemplateBytes: 1 << 14, Depth: 100, Calls: 10, Steps: 20_000, AllocBytes: 1 << 18, OutputBytes: 1 << 16}

// addSeeds seeds a fuzz target with the templates in testdata.
func addSeeds(f *testing.F) {
	data, err := os.ReadFile("testdata/goldens.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var g golden
		if err := json.Unmarshal([]byte(line), &g); err != nil {
			f.Fatal(err)
		}
		f.Add(g.Template)
	}
	data, err = os.ReadFile("testdata/templates.json")
	if err != nil {
		f.Fatal(err)
	}
	var templates map[string]sharedTemplate
	if err := json.Unmarshal(data, &templates); err != nil {
		f.Fatal(err)
	}
	for _, tmpl := range templates {
		f.Add(tmpl.ChatTemplate)
	}
}

// checkError checks that an error is an *Error with a place inside the template.
func checkError(t *testing.T, template string, err error) {
	e, ok := err.(*Error)
	if !ok {
		t.Fatalf("error of type %T: %v", err, err)
	}
	if e.Line > 1+strings.Count(template, "\n")+strings.Count(template, "\r") || e.Col > 1+len(template) {
		t.Fatalf("%v: outside of the template", err)
	}
	if e.Kind < Syntax || e.Kind > BadInput {
		t.Fatalf("%v: kind %d", err, e.Kind)
	}
}

func FuzzParse(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, template string) {
		if _, err := Parse(template, fuzzLimits); err != nil {
			checkError(t, template, err)
		}
	})
}

func FuzzRender(f *testing.F) {
	addSeeds(f)
	in := Input{
		Messages: []Message{
			{Role: "system", Content: " be brief "},
			{JSON: json.RawMessage(`{"role": "user", "content": [{"type": "text", "text": "hé"}], "n": -1.5e3}`)},
			{JSON: json.RawMessage(`{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}`)},
		},
		Tools: json.RawMessage(`[{"type": "function", "function": {"name": "f"}}]`), AddGenerationPrompt: true,
		BOSToken: "<s>", EOSToken: "</s>", Now: testNow,
		Extra: map[string]any{"l": []any{3, 1, 2}, "n": 5, "f": 2.5, "s": "Hello World", "u": "àßΣǆ日😀", "d": map[string]any{"a": 1}},
	}
	f.Fuzz(func(t *testing.T, template string) {
		tmpl, err := Parse(template, fuzzLimits)
		if err != nil {
			return // FuzzParse looks at these
		}
		text, err := tmpl.Render(in)
		if err != nil {
			checkError(t, template, err)
			return
		}
		if len(text) > fuzzLimits.OutputBytes {
			t.Fatalf("%d bytes of output", len(text))
		}
		if again, err := tmpl.Render(in); err != nil || again != text {
			t.Fatalf("second run: %q, %v, first %q", again, err, text)
		}
	})
}

// FuzzJSON reads JSON, writes it as tojson does, and reads it again.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a": [1, -2.5e-7, "é\u00e9\ud83d\ude00", null, true], "b": {}}`, `"\ud800"`, "1e400", "[[", "-0.0"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := decodeJSON(data)
		if err != nil {
			checkError(t, "", err)
			return
		}
		e := &evaluator{lim: Limits{}.withDefaults()}
		w := &jsonWriter{e: e, item: ", ", key: ": "}
		if err := w.write(v, 0); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(w.b.String(), "Infinity") {
			return // 1e400, which Python writes in a way that is not JSON
		}
		again, err := decodeJSON([]byte(w.b.String()))
		if err != nil {
			t.Fatalf("%s: %v", w.b.String(), err)
		}
		if eq, err := e.equal(v, again); err != nil || !eq {
			t.Fatalf("%s became %s (%v)", data, w.b.String(), err)
		}
	})
}
