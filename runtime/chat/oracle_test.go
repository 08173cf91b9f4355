package chat

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unicode"
)

// An oracle is a Python process that renders templates with Jinja2.
type oracle struct {
	in  io.WriteCloser
	out *bufio.Scanner
}

// startOracle starts Python, or skips the test where it or Jinja2 is missing.
func startOracle(t *testing.T) *oracle {
	t.Helper()
	python := os.Getenv("FPA_PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import jinja2").CombinedOutput(); err != nil {
		if os.Getenv("FPA_REQUIRE_ORACLES") == "1" {
			t.Fatalf("%s cannot import jinja2: %v\n%s", python, err, out)
		}
		t.Skipf("%s cannot import jinja2: %v", python, err)
	}
	cmd := exec.Command(python, "-B", "testdata/oracle.py")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", python, err)
		}
	})
	s := bufio.NewScanner(out)
	s.Buffer(nil, 64<<20)
	return &oracle{in, s}
}

// An answer is what Jinja2 makes of a template.
type answer struct {
	Text  *string
	Error string
}

func (o *oracle) render(t *testing.T, template string, vars map[string]any) answer {
	t.Helper()
	return o.ask(t, map[string]any{"template": template, "vars": vars})
}

func (o *oracle) ask(t *testing.T, question map[string]any) answer {
	t.Helper()
	request, err := json.Marshal(question)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.in.Write(append(request, '\n')); err != nil {
		t.Fatal(err)
	}
	if !o.out.Scan() {
		t.Fatalf("no answer to %s: %v", request, o.out.Err())
	}
	var a answer
	if err := json.Unmarshal(o.out.Bytes(), &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestOracleGoldens renders the goldens anew, so that they cannot go stale.
func TestOracleGoldens(t *testing.T) {
	o := startOracle(t)
	goldens, vars := readGoldens(t)
	for _, g := range goldens {
		if g.Refused {
			continue
		}
		a := o.render(t, g.Template, vars)
		if (a.Text == nil) != (g.Text == nil) || a.Text != nil && *a.Text != *g.Text {
			t.Errorf("%s: Jinja2 says now %+v", g.Template, a)
		}
	}
}

// TestOracleRandom compares on random templates. A template may be refused, but
// what is rendered must be the same, and what fails in Jinja2 must fail.
func TestOracleRandom(t *testing.T) {
	o := startOracle(t)
	_, vars := readGoldens(t)
	n := 200
	if os.Getenv("FPA_LONG_TESTS") == "1" {
		n = 20000
	}
	rendered, refusals := 0, 0
	for seed := range n {
		g := &generator{rand.New(rand.NewPCG(uint64(seed), 7))}
		template := g.block(2)
		a := o.render(t, template, vars)
		got, err := render(template, Limits{}, vars)
		switch {
		case err != nil && kindOf(t, err) == Unsupported:
			refusals++
		case err != nil && a.Text != nil:
			t.Errorf("seed %d: %v\n%s\nwant %q", seed, err, template, *a.Text)
		case err == nil && a.Text == nil:
			t.Errorf("seed %d: got %q, Jinja2 says %s\n%s", seed, got, a.Error, template)
		case err == nil && got != *a.Text:
			t.Errorf("seed %d:\n%s\n got %q\nwant %q", seed, template, got, *a.Text)
		case err == nil:
			rendered++
		}
	}
	t.Logf("%d templates: %d rendered the same, %d refused, the others failed in both", n, rendered, refusals)
	if rendered < n/3 || refusals > n/5 {
		t.Errorf("only %d of %d templates rendered, %d refused: the generator tests little", rendered, n, refusals)
	}
}

// TestOracleCharacters compares what Python and Go know of every character.
func TestOracleCharacters(t *testing.T) {
	o := startOracle(t)
	const template = "{% for c in s %}{{ c|upper }} {{ c|lower }} {{ c|capitalize }} {{ c.isalpha() }}{{ c.isspace() }}" +
		"{{ c.islower() }}{{ c.isupper() }}{{ [c] }} {{ (c ~ 'aA' ~ c ~ 'b')|title }}{{ ('a' ~ c ~ 'b').split() }}{{ ('a' ~ c).splitlines() }}\n{% endfor %}"
	last := rune(0x2fff)
	if os.Getenv("FPA_LONG_TESTS") == "1" {
		last = unicode.MaxRune
	}
	// Modifier letters that Unicode 15 made lower case; Python 3.11 knows 14.
	const newLower = "\u10fc\ua7f2\ua7f3\ua7f4\uab69"
	differ := 0
	for first := rune(1); first <= last; first += 1024 {
		var s strings.Builder
		for r := first; r < first+1024 && r <= last; r++ {
			if strings.ContainsRune(newLower, r) {
				continue
			}
			if (r < 0xd800 || r > 0xdfff) && unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S, unicode.Z, unicode.C) {
				s.WriteRune(r)
			}
		}
		known := o.ask(t, map[string]any{"assigned": s.String()})
		vars := map[string]any{"s": *known.Text}
		a := o.render(t, template, vars)
		got, err := render(template, Limits{}, vars)
		if err != nil || a.Text == nil {
			t.Fatalf("U+%04X: %v, %s", first, err, a.Error)
		}
		want := strings.Split(*a.Text, "\n")
		for i, line := range strings.Split(got, "\n") {
			if i >= len(want) || line != want[i] {
				if differ++; differ < 40 {
					t.Logf(" got %q\nwant %q", line, want[min(i, len(want)-1)])
				}
			}
		}
	}
	if differ > 0 {
		t.Errorf("%d lines differ", differ)
	}
}

// A generator makes random templates of which most render without an error.
type generator struct{ *rand.Rand }

func (g *generator) pick(options ...string) string { return options[g.IntN(len(options))] }

// block is a few random statements.
func (g *generator) block(depth int) string {
	var b strings.Builder
	for range 1 + g.IntN(4) {
		b.WriteString(g.pick("", "", " ", "\n", "\n  ", "a", "b \n", "\t", "\n\n"))
		b.WriteString(g.statement(depth))
	}
	return b.String() + g.pick("", "\n", " \n", "c")
}

// tag writes a block tag with random white space control.
func (g *generator) tag(format string, args ...any) string {
	return g.pick("{%", "{%", "{%", "{%-", "{%+") + " " + fmt.Sprintf(format, args...) + " " + g.pick("%}", "%}", "%}", "-%}", "+%}")
}

func (g *generator) statement(depth int) string {
	n := g.IntN(13)
	if depth <= 0 {
		n = g.IntN(4)
	}
	switch n {
	case 0, 1, 2:
		return g.pick("{{", "{{", "{{-") + " " + g.any(2) + " " + g.pick("}}", "}}", "-}}")
	case 3:
		return g.pick("{#", "{#-", "{#+") + " note " + g.pick("#}", "-#}", "+#}")
	case 4, 5:
		s := g.tag("if %s", g.any(2)) + g.block(depth-1)
		if g.IntN(3) == 0 {
			s += g.tag("elif %s", g.bool(2)) + g.block(depth-1)
		}
		if g.IntN(2) == 0 {
			s += g.tag("else") + g.block(depth-1)
		}
		return s + g.tag("endif")
	case 6, 7:
		filter := ""
		if g.IntN(4) == 0 {
			filter = " if " + g.pick("x", "x > 1", "x is string", "x in l")
		}
		body := g.block(depth-1) + g.pick("", "", "{{ x }}", "{{ loop.index }}", "{{ loop.last }}", "{{ loop.length }}",
			"{{ loop.previtem }}", "{{ loop.nextitem }}", "{{ ',' if not loop.last }}", "{% set y = x %}{{ y }}",
			"{% if loop.index0 == 1 %}{% break %}{% endif %}", "{% if loop.first %}{% continue %}{% endif %}y")
		s := g.tag("for x in %s%s", g.list(2), filter) + body
		if g.IntN(3) == 0 {
			s += g.tag("else") + g.block(depth-1)
		}
		return s + g.tag("endfor")
	case 8:
		return g.tag("set %s = %s", g.pick("x", "y", "n", "l2"), g.any(2))
	case 9:
		return g.tag("set %s%s", g.pick("x", "y"), g.pick("", " | upper", " | trim")) + g.block(depth-1) + g.tag("endset")
	case 10:
		return g.tag("with %s = %s", g.pick("x", "y", "s"), g.any(2)) + g.block(depth-1) + g.tag("endwith")
	case 11:
		name := g.pick("m1", "m2")
		return g.tag("macro %s(%s)", name, g.pick("", "x", "x, y=2", "x=1, y=x")) + g.block(depth-1) + g.tag("endmacro") +
			"{{ " + name + "(" + g.pick("", "", g.any(1)) + ") }}"
	}
	return g.tag("filter %s", g.pick("upper", "trim", "replace('a', 'b')", "indent(2)", "first")) + g.block(depth-1) + g.tag("endfilter")
}

func (g *generator) any(depth int) string {
	switch g.IntN(6) {
	case 0:
		return g.int(depth)
	case 1:
		return g.bool(depth)
	case 2:
		return g.list(depth)
	case 3:
		return g.pick("x", "y", "d", "d.a", "nope", "z", "messages[1]", "tools[0].function.name", "1.5", "f * 2", "f // 1", "f % 2", "loop")
	}
	return g.str(depth)
}

func (g *generator) str(depth int) string {
	if depth <= 0 {
		return g.pick("'a b'", `"it's"`, "''", "s", "u", "'\\n x \\t'", "bos_token", "e", "messages[0].content", "messages[-1]['role']")
	}
	d := depth - 1
	switch g.IntN(13) {
	case 0:
		return g.str(d) + " ~ " + g.any(d)
	case 1:
		return "(" + g.str(d) + " + " + g.str(d) + ")"
	case 2:
		return g.str(d) + "|" + g.pick("trim", "upper", "lower", "title", "capitalize", "reverse", "indent(1, true)", "replace('a', 'xy')",
			"truncate(4, true, leeway=0)", "e|string", "tojson", "default('q', true)", "string", "center(7)", "first", "last", "join('-')")
	case 3:
		return g.any(d) + "|" + g.pick("string", "tojson", "tojson(indent=2)", "default('x')", "d('x', true)", "trim", "upper", "safe")
	case 4:
		return "(" + g.str(d) + ")." + g.pick("strip()", "upper()", "lower()", "replace('a', '')", "split(' ')[0]", "split('a')[-1]",
			"lstrip(' a')", "rstrip()", "capitalize()", "title()", "strip('a \\n')", "center(5)", "zfill(4)", "partition(' ')[2]")
	case 5:
		return "(" + g.str(d) + ")[" + g.pick("0", "-1", "1:", ":2", "::-1", "1:-1", "::2", "5:1:-1", "9") + "]"
	case 6:
		return "(" + g.str(d) + " if " + g.bool(d) + g.pick("", " else "+g.str(d)) + ")"
	case 7:
		return g.list(d) + "|" + g.pick("join", "join(', ')", "join('x')", "first", "last", "map('string')|join")
	case 8:
		return "'%s-%s' % (" + g.any(d) + ", " + g.str(d) + ")"
	case 9:
		return g.str(d) + " * " + g.pick("2", "0", "3", "-1")
	case 10:
		return g.pick("d.nope", "messages[2].tool_calls[0].function.name", "x.y", "d['a']['x'][4]", "tools[0]['type']")
	}
	return g.str(0)
}

func (g *generator) int(depth int) string {
	if depth <= 0 {
		return g.pick("0", "1", "2", "-3", "7", "n", "l[0]", "l|length", "10")
	}
	d := depth - 1
	switch g.IntN(7) {
	case 0, 1:
		return "(" + g.int(d) + g.pick(" + ", " - ", " * ", " // ", " % ", " / ") + g.int(d) + ")"
	case 2:
		return "(" + g.int(d) + ")|" + g.pick("abs", "string|length", "int", "float", "round", "default(3)")
	case 3:
		return g.list(d) + "|" + g.pick("length", "count", "first", "last")
	case 4:
		return "-" + g.int(d)
	case 5:
		return "(" + g.str(d) + ")." + g.pick("find('a')", "count('a')", "rfind(' ')") + " ** " + g.pick("2", "0", "1")
	}
	return g.int(0)
}

func (g *generator) bool(depth int) string {
	if depth <= 0 {
		return g.pick("true", "false", "t", "nope is defined", "add_generation_prompt", "none", "x is defined")
	}
	d := depth - 1
	switch g.IntN(8) {
	case 0:
		return g.any(d) + g.pick(" == ", " != ") + g.any(d)
	case 1:
		return g.int(d) + g.pick(" < ", " <= ", " > ", " >= ") + g.int(d) + g.pick("", " < 5", " == true")
	case 2:
		return g.any(d) + " is " + g.pick("", "not ") + g.pick("defined", "none", "string", "mapping", "iterable", "sequence", "number",
			"boolean", "true", "false", "integer", "float", "undefined", "callable", "lower", "upper", "eq 1", "in [1, 'a']")
	case 3:
		return "(" + g.bool(d) + g.pick(" and ", " or ") + g.any(d) + ")"
	case 4:
		return "not " + g.any(d)
	case 5:
		return g.str(d) + g.pick(" in ", " not in ") + g.str(d)
	case 6:
		return g.any(d) + g.pick(" in ", " not in ") + g.list(d)
	}
	return "(" + g.str(d) + ")." + g.pick("startswith('a')", "endswith('b')", "isdigit()", "isalpha()", "isupper()")
}

func (g *generator) list(depth int) string {
	if depth <= 0 {
		return g.pick("l", "[]", "[1, 'a', none]", "(1, 2)", "range(3)", "messages", "d", "tools", "['b', 'A', 'a']", "'xyz'")
	}
	d := depth - 1
	switch g.IntN(8) {
	case 0:
		return "[" + g.any(d) + ", " + g.any(d) + "]"
	case 1:
		return g.list(d) + "|" + g.pick("list", "reverse|list", "unique|list", "select|list", "reject('none')|list", "map('string')|list",
			"batch(2)|list", "slice(2)|list", "sort", "select('string')|list", "map('default', 1)|list", "map('tojson')|list")
	case 2:
		return "(" + g.list(d) + ")[" + g.pick("1:", ":1", "::-1", "-2:", "::2", ":-1") + "]"
	case 3:
		return g.pick("messages|map(attribute='role')|list", "messages|selectattr('role', 'equalto', 'user')|list", "d.items()|list", "d|dictsort",
			"d|items|list", "messages|rejectattr('name', 'defined')|map(attribute='content')|list", "d.keys()|list", "d.values()",
			"messages|selectattr('content', 'string')|map(attribute='content')|map('trim')|list", "messages|map(attribute='name', default='?')|list")
	case 4:
		return "(" + g.str(d) + ")." + g.pick("split()", "split(' ')", "split('a', 1)", "splitlines()", "rsplit(' ', 1)", "partition('a')")
	case 5:
		return "{'k': " + g.any(d) + ", 1: " + g.any(d) + "}"
	case 6:
		return "([" + g.any(d) + "] + [" + g.any(d) + "])"
	}
	return g.list(0)
}
