package chat

import (
	"slices"
	"strings"
)

// A parser builds the tree of a template from its tokens, following the
// grammar of Jinja2's parser.
type parser struct {
	tokens []token
	at     int
	depth  int // of the recursion
	limit  int // of the recursion, and of the height of an expression
	loops  int // for loops that break and continue could leave
}

// parseTemplate parses all tokens.
func parseTemplate(tokens []token, depth int) ([]stmt, error) {
	p := &parser{tokens: tokens, limit: depth}
	return p.block(nil)
}

func (p *parser) cur() token { return p.tokens[p.at] }

// peek is the token after the current one.
func (p *parser) peek() token { return p.tokens[min(p.at+1, len(p.tokens)-1)] }

// next returns the current token and moves on.
func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != tokEOF {
		p.at++
	}
	return t
}

func (p *parser) isOp(op string) bool { t := p.cur(); return t.kind == tokOp && t.text == op }

func (p *parser) isName(name string) bool { t := p.cur(); return t.kind == tokName && t.text == name }

// skipOp moves past an operator if it stands here.
func (p *parser) skipOp(op string) bool {
	if p.isOp(op) {
		p.next()
		return true
	}
	return false
}

func (p *parser) skipName(name string) bool {
	if p.isName(name) {
		p.next()
		return true
	}
	return false
}

func (p *parser) expectOp(op string) error {
	if !p.skipOp(op) {
		return syntaxError(p.cur().pos, "expected '%s', got %s", op, p.cur().describe())
	}
	return nil
}

func (p *parser) expectKind(kind tokenKind) (token, error) {
	if t := p.cur(); t.kind != kind {
		return t, syntaxError(t.pos, "expected %s, got %s", token{kind: kind, text: "name"}.describe(), t.describe())
	}
	return p.next(), nil
}

// enter counts one level of recursion; the caller defers leave.
func (p *parser) enter() error {
	p.depth++
	if p.depth > p.limit {
		return errorAt(Limit, p.cur().pos, "nested more than %d deep", p.limit)
	}
	return nil
}

func (p *parser) leave() { p.depth-- }

// make fills in the base of a node from its position and its children.
func (p *parser) make(pos int, children ...expr) (base, error) {
	b := base{pos: pos, height: 1}
	for _, c := range children {
		if c != nil {
			b.height = max(b.height, c.node().height+1)
		}
	}
	if b.height > p.limit {
		return b, errorAt(Limit, pos, "expression nested more than %d deep", p.limit)
	}
	return b, nil
}

// block parses text, prints and statements up to a tag whose name is one of
// ends, which becomes the current token; without ends, to the end.
func (p *parser) block(ends []string) ([]stmt, error) {
	var body []stmt
	for {
		t := p.cur()
		switch t.kind {
		case tokEOF:
			if ends != nil {
				return nil, syntaxError(t.pos, "end of template, expected {%% %s %%}", strings.Join(ends, " %} or {% "))
			}
			return body, nil
		case tokData:
			p.next()
			body = append(body, &outputStmt{text: t.text})
		case tokVarBegin:
			p.next()
			x, err := p.tuple(true, false, nil)
			if err != nil {
				return nil, err
			}
			if _, err := p.expectKind(tokVarEnd); err != nil {
				return nil, err
			}
			body = append(body, &outputStmt{x: x})
		default: // tokBlockBegin: the lexer leaves nothing else between tags
			p.next()
			if p.cur().kind == tokName && slices.Contains(ends, p.cur().text) {
				return body, nil
			}
			s, err := p.statement()
			if err != nil {
				return nil, err
			}
			if _, err := p.expectKind(tokBlockEnd); err != nil {
				return nil, err
			}
			body = append(body, s...)
		}
	}
}

// body parses the rest of an opening tag and the block up to one of ends.
func (p *parser) body(ends ...string) ([]stmt, error) {
	p.skipOp(":")
	if _, err := p.expectKind(tokBlockEnd); err != nil {
		return nil, err
	}
	return p.block(ends)
}

// refusedTags are statements of Jinja2 that this package does not run.
var refusedTags = map[string]string{
	"include":    "a chat template stands alone, there is no loader",
	"import":     "a chat template stands alone, there is no loader",
	"from":       "a chat template stands alone, there is no loader",
	"extends":    "a chat template stands alone, there is no loader",
	"block":      "there is no template inheritance",
	"autoescape": "text is never escaped",
	"do":         "Hugging Face does not enable it either; use {% set _ = … %}",
	"trans":      "translation is not enabled",
	"debug":      "it is not enabled",
}

// statement parses one statement after its {%, up to but without the last %}.
func (p *parser) statement() ([]stmt, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	t := p.cur()
	if t.kind != tokName {
		return nil, syntaxError(t.pos, "expected the name of a statement, got %s", t.describe())
	}
	if why, ok := refusedTags[t.text]; ok {
		return nil, unsupported(t.pos, "statement '%s': %s", t.text, why)
	}
	p.next()
	var s stmt
	var err error
	switch t.text {
	case "set":
		s, err = p.set(t.pos)
	case "if":
		s, err = p.ifs()
	case "for":
		s, err = p.fors(t.pos)
	case "with":
		s, err = p.with(t.pos)
	case "macro":
		s, err = p.macro(t.pos)
	case "call":
		s, err = p.callBlock(t.pos)
	case "filter":
		s, err = p.filterBlock(t.pos)
	case "generation":
		s, err = p.generation(t.pos)
	case "print":
		return p.print()
	case "break", "continue":
		if p.loops == 0 {
			return nil, syntaxError(t.pos, "'%s' outside a loop", t.text)
		}
		s = &loopControlStmt{brk: t.text == "break"}
	default:
		return nil, syntaxError(t.pos, "unknown statement '%s'", clip(t.text))
	}
	if err != nil {
		return nil, err
	}
	return []stmt{s}, nil
}

func (p *parser) set(pos int) (stmt, error) {
	target, err := p.target(true, true, nil)
	if err != nil {
		return nil, err
	}
	if p.skipOp("=") {
		x, err := p.tuple(true, false, nil)
		return &setStmt{pos: pos, target: target, x: x}, err
	}
	s := &setBlockStmt{pos: pos, target: target}
	for p.isOp("|") {
		if s.filter, err = p.filter(s.filter); err != nil {
			return nil, err
		}
	}
	if s.body, err = p.body("endset"); err != nil {
		return nil, err
	}
	p.next()
	return s, nil
}

func (p *parser) ifs() (stmt, error) {
	s := &ifStmt{}
	for {
		test, err := p.tuple(false, false, nil)
		if err != nil {
			return nil, err
		}
		body, err := p.body("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		s.tests = append(s.tests, test)
		s.bodies = append(s.bodies, body)
		switch p.next().text {
		case "elif":
			continue
		case "else":
			if s.otherwise, err = p.body("endif"); err != nil {
				return nil, err
			}
			p.next()
		}
		return s, nil
	}
}

func (p *parser) fors(pos int) (stmt, error) {
	s := &forStmt{pos: pos}
	var err error
	if s.target, err = p.target(true, false, []string{"in"}); err != nil {
		return nil, err
	}
	if !p.skipName("in") {
		return nil, syntaxError(p.cur().pos, "expected 'in', got %s", p.cur().describe())
	}
	if s.iter, err = p.tuple(false, false, []string{"recursive"}); err != nil {
		return nil, err
	}
	if p.skipName("if") {
		if s.test, err = p.expression(); err != nil {
			return nil, err
		}
	}
	if p.isName("recursive") {
		return nil, unsupported(p.cur().pos, "recursive loop")
	}
	p.loops++
	s.body, err = p.body("endfor", "else")
	p.loops--
	if err != nil {
		return nil, err
	}
	if p.next().text == "else" {
		if s.otherwise, err = p.body("endfor"); err != nil {
			return nil, err
		}
		p.next()
	}
	return s, nil
}

func (p *parser) with(pos int) (stmt, error) {
	s := &withStmt{pos: pos}
	for p.cur().kind != tokBlockEnd {
		if len(s.targets) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		target, err := p.target(true, false, nil)
		if err != nil {
			return nil, err
		}
		if err := p.expectOp("="); err != nil {
			return nil, err
		}
		x, err := p.expression()
		if err != nil {
			return nil, err
		}
		s.targets = append(s.targets, target)
		s.values = append(s.values, x)
	}
	var err error
	if s.body, err = p.body("endwith"); err != nil {
		return nil, err
	}
	p.next()
	return s, nil
}

func (p *parser) macro(pos int) (stmt, error) {
	s := &macroStmt{pos: pos}
	var err error
	if s.name, err = p.storeName(); err != nil {
		return nil, err
	}
	if err := p.signature(s); err != nil {
		return nil, err
	}
	s.body, err = p.outsideLoop("endmacro")
	return s, err
}

func (p *parser) callBlock(pos int) (stmt, error) {
	body := &macroStmt{pos: pos}
	if p.isOp("(") {
		if err := p.signature(body); err != nil {
			return nil, err
		}
	}
	x, err := p.expression()
	if err != nil {
		return nil, err
	}
	call, ok := x.(*callExpr)
	if !ok {
		return nil, syntaxError(x.node().pos, "expected a call")
	}
	body.body, err = p.outsideLoop("endcall")
	return &callStmt{pos: pos, call: call, body: body}, err
}

// signature parses the parameters of a macro.
func (p *parser) signature(s *macroStmt) error {
	if err := p.expectOp("("); err != nil {
		return err
	}
	for !p.isOp(")") {
		if len(s.params) > 0 {
			if err := p.expectOp(","); err != nil {
				return err
			}
		}
		param, err := p.storeName()
		if err != nil {
			return err
		}
		for _, other := range s.params {
			if other.name == param.name {
				return syntaxError(param.pos, "parameter '%s' twice", param.name)
			}
		}
		if param.name == "caller" {
			return unsupported(param.pos, "macro parameter named 'caller'")
		}
		if p.skipOp("=") {
			x, err := p.expression()
			if err != nil {
				return err
			}
			s.defaults = append(s.defaults, x)
		} else if len(s.defaults) > 0 {
			return syntaxError(param.pos, "parameter '%s' without a default follows one with", param.name)
		}
		s.params = append(s.params, param)
	}
	p.next()
	return nil
}

// outsideLoop parses a body that break and continue cannot leave, and its end.
func (p *parser) outsideLoop(end string) ([]stmt, error) {
	loops := p.loops
	p.loops = 0
	body, err := p.body(end)
	p.loops = loops
	if err != nil {
		return nil, err
	}
	p.next()
	return body, nil
}

func (p *parser) filterBlock(pos int) (stmt, error) {
	s := &filterStmt{pos: pos}
	var err error
	if s.filter, err = p.filterCall(nil); err != nil {
		return nil, err
	}
	for p.isOp("|") {
		if s.filter, err = p.filter(s.filter); err != nil {
			return nil, err
		}
	}
	if s.body, err = p.body("endfilter"); err != nil {
		return nil, err
	}
	p.next()
	return s, nil
}

func (p *parser) generation(pos int) (stmt, error) {
	body, err := p.outsideLoop("endgeneration")
	return &generationStmt{pos: pos, body: body}, err
}

func (p *parser) print() ([]stmt, error) {
	var out []stmt
	for p.cur().kind != tokBlockEnd {
		if len(out) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		x, err := p.expression()
		if err != nil {
			return nil, err
		}
		out = append(out, &outputStmt{x: x})
	}
	return out, nil
}

// storeName parses a single name to assign to.
func (p *parser) storeName() (*nameExpr, error) {
	t := p.cur()
	if t.kind != tokName {
		return nil, syntaxError(t.pos, "expected a name, got %s", t.describe())
	}
	p.next()
	if isReserved(t.text) {
		return nil, syntaxError(t.pos, "cannot assign to '%s'", t.text)
	}
	return &nameExpr{base: base{pos: t.pos, height: 1}, name: t.text, store: true}, nil
}

// isReserved reports names that Jinja2 or Python does not let a template store to.
func isReserved(name string) bool {
	switch name {
	case "true", "false", "none", "True", "False", "None":
		return true
	}
	return false
}

// target parses what an assignment assigns to.
func (p *parser) target(tuple, namespace bool, ends []string) (expr, error) {
	x, err := p.simpleTuple(namespace, ends)
	if err != nil {
		return nil, err
	}
	if err := markStore(x); err != nil {
		return nil, err
	}
	return x, nil
}

// markStore turns an expression into the target of an assignment.
func markStore(x expr) error {
	switch x := x.(type) {
	case *nameExpr:
		x.store = true
		return nil
	case *nsRefExpr:
		return nil
	case *seqExpr:
		if !x.tuple {
			break
		}
		for _, item := range x.items {
			if err := markStore(item); err != nil {
				return err
			}
		}
		return nil
	}
	return syntaxError(x.node().pos, "cannot assign to this expression")
}
