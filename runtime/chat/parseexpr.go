package chat

import (
	"slices"
	"strings"
)

// tuple parses an expression, or several with commas between them as a tuple.
// cond allows an inline if; parens says that parentheses stand around it, which
// alone may be empty; ends are names that end the tuple after a comma.
func (p *parser) tuple(cond, parens bool, ends []string) (expr, error) {
	return p.tupleOf(func() (expr, error) {
		if cond {
			return p.expression()
		}
		return p.or()
	}, parens, ends)
}

// simpleTuple is a tuple of names and literals: the target of an assignment.
func (p *parser) simpleTuple(namespace bool, ends []string) (expr, error) {
	return p.tupleOf(func() (expr, error) { return p.primary(namespace) }, false, ends)
}

func (p *parser) tupleOf(item func() (expr, error), parens bool, ends []string) (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	pos := p.cur().pos
	var items []expr
	isTuple := false
	for {
		if len(items) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		if p.tupleEnds(ends) {
			break
		}
		x, err := item()
		if err != nil {
			return nil, err
		}
		items = append(items, x)
		if !p.isOp(",") {
			break
		}
		isTuple = true
	}
	if !isTuple {
		if len(items) == 1 {
			return items[0], nil
		}
		if !parens {
			return nil, syntaxError(pos, "expected an expression, got %s", p.cur().describe())
		}
	}
	b, err := p.make(pos, items...)
	return &seqExpr{base: b, items: items, tuple: true}, err
}

// tupleEnds reports whether nothing more of a tuple follows.
func (p *parser) tupleEnds(ends []string) bool {
	switch t := p.cur(); t.kind {
	case tokVarEnd, tokBlockEnd:
		return true
	case tokOp:
		return t.text == ")"
	case tokName:
		return slices.Contains(ends, t.text)
	}
	return false
}

// expression parses an expression with inline if.
func (p *parser) expression() (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	pos := p.cur().pos
	x, err := p.or()
	if err != nil {
		return nil, err
	}
	for p.skipName("if") {
		test, err := p.or()
		if err != nil {
			return nil, err
		}
		var otherwise expr
		if p.skipName("else") {
			if otherwise, err = p.expression(); err != nil {
				return nil, err
			}
		}
		b, err := p.make(pos, test, x, otherwise)
		if err != nil {
			return nil, err
		}
		x = &condExpr{base: b, test: test, then: x, otherwise: otherwise}
	}
	return x, nil
}

func (p *parser) or() (expr, error)  { return p.logic("or", p.and) }
func (p *parser) and() (expr, error) { return p.logic("and", p.not) }

func (p *parser) logic(word string, operand func() (expr, error)) (expr, error) {
	x, err := operand()
	if err != nil {
		return nil, err
	}
	for p.isName(word) {
		pos := p.next().pos
		y, err := operand()
		if err != nil {
			return nil, err
		}
		b, err := p.make(pos, x, y)
		if err != nil {
			return nil, err
		}
		x = &logicExpr{base: b, and: word == "and", x: x, y: y}
	}
	return x, nil
}

func (p *parser) not() (expr, error) {
	if !p.isName("not") {
		return p.compare()
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	pos := p.next().pos
	x, err := p.not()
	if err != nil {
		return nil, err
	}
	b, err := p.make(pos, x)
	return &unaryExpr{base: b, op: "not", x: x}, err
}

// comparison reads a comparison operator, if one stands here.
func (p *parser) comparison() (op string, ok bool) {
	t := p.cur()
	switch {
	case t.kind == tokOp && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text):
		p.next()
		return t.text, true
	case p.skipName("in"):
		return "in", true
	case p.isName("not") && p.peek().kind == tokName && p.peek().text == "in":
		p.next()
		p.next()
		return "not in", true
	}
	return "", false
}

func (p *parser) compare() (expr, error) {
	pos := p.cur().pos
	first, err := p.sum()
	if err != nil {
		return nil, err
	}
	var ops []string
	var rest []expr
	for {
		op, ok := p.comparison()
		if !ok {
			break
		}
		x, err := p.sum()
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
		rest = append(rest, x)
	}
	if len(ops) == 0 {
		return first, nil
	}
	b, err := p.make(pos, append([]expr{first}, rest...)...)
	return &compareExpr{base: b, first: first, ops: ops, rest: rest}, err
}

func (p *parser) sum() (expr, error)     { return p.binary(p.concat, "+", "-") }
func (p *parser) product() (expr, error) { return p.binary(p.power, "*", "/", "//", "%") }
func (p *parser) power() (expr, error) {
	return p.binary(func() (expr, error) { return p.unary(true) }, "**")
}

// binary parses a chain of operators of one precedence, all of them (the
// power too) from left to right.
func (p *parser) binary(operand func() (expr, error), ops ...string) (expr, error) {
	x, err := operand()
	if err != nil {
		return nil, err
	}
	for p.cur().kind == tokOp && slices.Contains(ops, p.cur().text) {
		t := p.next()
		y, err := operand()
		if err != nil {
			return nil, err
		}
		b, err := p.make(t.pos, x, y)
		if err != nil {
			return nil, err
		}
		x = &binaryExpr{base: b, op: t.text, x: x, y: y}
	}
	return x, nil
}

func (p *parser) concat() (expr, error) {
	pos := p.cur().pos
	x, err := p.product()
	if err != nil || !p.isOp("~") {
		return x, err
	}
	items := []expr{x}
	for p.skipOp("~") {
		if x, err = p.product(); err != nil {
			return nil, err
		}
		items = append(items, x)
	}
	b, err := p.make(pos, items...)
	return &concatExpr{base: b, items: items}, err
}

func (p *parser) unary(filters bool) (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	t := p.cur()
	var x expr
	var err error
	if t.kind == tokOp && (t.text == "-" || t.text == "+") {
		p.next()
		operand, err := p.unary(false)
		if err != nil {
			return nil, err
		}
		b, err := p.make(t.pos, operand)
		if err != nil {
			return nil, err
		}
		x = &unaryExpr{base: b, op: t.text, x: operand}
	} else if x, err = p.primary(false); err != nil {
		return nil, err
	}
	if x, err = p.postfix(x); err != nil {
		return nil, err
	}
	for filters {
		switch {
		case p.isOp("|"):
			x, err = p.filter(x)
		case p.isName("is"):
			x, err = p.test(x)
		case p.isOp("("):
			x, err = p.call(x)
		default:
			return x, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return x, nil
}

func (p *parser) primary(namespace bool) (expr, error) {
	t := p.cur()
	one := base{pos: t.pos, height: 1}
	switch t.kind {
	case tokName:
		p.next()
		switch t.text {
		case "true", "True":
			return &constExpr{one, true}, nil
		case "false", "False":
			return &constExpr{one, false}, nil
		case "none", "None":
			return &constExpr{one, nil}, nil
		}
		name := &nameExpr{base: one, name: t.text}
		if namespace && p.skipOp(".") {
			attr, err := p.expectKind(tokName)
			if err != nil {
				return nil, err
			}
			return &nsRefExpr{base: one, ns: name, attr: attr.text}, nil
		}
		return name, nil
	case tokString:
		var text strings.Builder
		for p.cur().kind == tokString {
			text.WriteString(p.next().text)
		}
		return &constExpr{one, text.String()}, nil
	case tokInt, tokFloat:
		p.next()
		return &constExpr{one, t.num}, nil
	case tokOp:
		switch t.text {
		case "(":
			p.next()
			x, err := p.tuple(true, true, nil)
			if err != nil {
				return nil, err
			}
			return x, p.expectOp(")")
		case "[":
			return p.list()
		case "{":
			return p.dict()
		}
	}
	return nil, syntaxError(t.pos, "unexpected %s", t.describe())
}

func (p *parser) list() (expr, error) {
	pos := p.next().pos
	var items []expr
	for !p.isOp("]") {
		if len(items) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
			if p.isOp("]") {
				break
			}
		}
		x, err := p.expression()
		if err != nil {
			return nil, err
		}
		items = append(items, x)
	}
	p.next()
	b, err := p.make(pos, items...)
	return &seqExpr{base: b, items: items}, err
}

func (p *parser) dict() (expr, error) {
	d := &dictExpr{}
	pos := p.next().pos
	for !p.isOp("}") {
		if len(d.keys) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
			if p.isOp("}") {
				break
			}
		}
		k, err := p.expression()
		if err != nil {
			return nil, err
		}
		if err := p.expectOp(":"); err != nil {
			return nil, err
		}
		v, err := p.expression()
		if err != nil {
			return nil, err
		}
		d.keys = append(d.keys, k)
		d.values = append(d.values, v)
	}
	p.next()
	var err error
	d.base, err = p.make(pos, append(slices.Clone(d.keys), d.values...)...)
	return d, err
}

func (p *parser) postfix(x expr) (expr, error) {
	for {
		var err error
		switch {
		case p.isOp("."):
			x, err = p.attr(x)
		case p.isOp("["):
			x, err = p.subscript(x)
		case p.isOp("("):
			x, err = p.call(x)
		default:
			return x, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) attr(x expr) (expr, error) {
	pos := p.next().pos
	b, err := p.make(pos, x)
	if err != nil {
		return nil, err
	}
	t := p.next()
	switch t.kind {
	case tokName:
		if len(t.text) > 1 && t.text[:2] == "__" {
			return nil, unsupported(t.pos, "attribute '%s': names that begin with two underscores are Python's own", clip(t.text))
		}
		return &attrExpr{base: b, x: x, name: t.text}, nil
	case tokInt:
		return &itemExpr{base: b, x: x, index: &constExpr{base{t.pos, 1}, t.num}}, nil
	}
	return nil, syntaxError(t.pos, "expected a name or a number after '.', got %s", t.describe())
}

func (p *parser) subscript(x expr) (expr, error) {
	pos := p.next().pos
	var bounds [3]expr
	var err error
	colons := 0
	for !p.isOp("]") {
		if p.isOp(",") {
			return nil, unsupported(p.cur().pos, "subscript of several values")
		}
		if p.isOp(":") && colons < 2 {
			p.next()
			colons++
			continue
		}
		if bounds[colons] != nil {
			return nil, syntaxError(p.cur().pos, "expected ']', got %s", p.cur().describe())
		}
		if bounds[colons], err = p.expression(); err != nil {
			return nil, err
		}
	}
	p.next()
	b, err := p.make(pos, x, bounds[0], bounds[1], bounds[2])
	if err != nil {
		return nil, err
	}
	if colons > 0 {
		return &sliceExpr{base: b, x: x, start: bounds[0], stop: bounds[1], step: bounds[2]}, nil
	}
	if bounds[0] == nil {
		return nil, unsupported(pos, "empty subscript")
	}
	return &itemExpr{base: b, x: x, index: bounds[0]}, nil
}

func (p *parser) call(x expr) (expr, error) {
	pos := p.cur().pos
	args, err := p.args()
	if err != nil {
		return nil, err
	}
	if a, ok := x.(*attrExpr); ok && !knownMethods[a.name] {
		return nil, unsupported(a.pos, "method '%s'", clip(a.name))
	}
	b, err := p.make(pos, args.children(x)...)
	return &callExpr{base: b, x: x, args: args}, err
}

// children is all the expressions of a call.
func (a *callArgs) children(x expr) []expr {
	return slices.Concat([]expr{x}, a.positional, a.named)
}

func (p *parser) args() (callArgs, error) {
	var a callArgs
	p.next()
	for first := true; !p.isOp(")"); first = false {
		if !first {
			if err := p.expectOp(","); err != nil {
				return a, err
			}
			if p.isOp(")") {
				break
			}
		}
		t := p.cur()
		if t.kind == tokOp && (t.text == "*" || t.text == "**") {
			return a, unsupported(t.pos, "argument unpacking ('%s')", t.text)
		}
		if next := p.peek(); t.kind == tokName && next.kind == tokOp && next.text == "=" {
			p.next()
			p.next()
			if slices.Contains(a.names, t.text) {
				return a, syntaxError(t.pos, "argument '%s' given twice", clip(t.text))
			}
			x, err := p.expression()
			if err != nil {
				return a, err
			}
			a.names = append(a.names, t.text)
			a.named = append(a.named, x)
			continue
		}
		if len(a.names) > 0 {
			return a, syntaxError(t.pos, "positional argument after a named one")
		}
		x, err := p.expression()
		if err != nil {
			return a, err
		}
		a.positional = append(a.positional, x)
	}
	p.next()
	return a, nil
}

// filter parses a '|' and the filter after it.
func (p *parser) filter(x expr) (expr, error) {
	p.next()
	return p.filterCall(x)
}

// dottedName reads the name of a filter or test, which may hold dots.
func (p *parser) dottedName() (string, int, error) {
	t, err := p.expectKind(tokName)
	if err != nil {
		return "", t.pos, err
	}
	name := t.text
	for p.skipOp(".") {
		part, err := p.expectKind(tokName)
		if err != nil {
			return "", t.pos, err
		}
		name += "." + part.text
	}
	return name, t.pos, nil
}

func (p *parser) filterCall(x expr) (expr, error) {
	name, pos, err := p.dottedName()
	if err != nil {
		return nil, err
	}
	f, ok := filters[name]
	if !ok {
		return nil, unsupported(pos, "filter '%s'", clip(name))
	}
	n := &filterExpr{x: x, name: name, f: f}
	if p.isOp("(") {
		if n.args, err = p.args(); err != nil {
			return nil, err
		}
	}
	if err := checkNamed(name, n.args); err != nil {
		return nil, err
	}
	n.base, err = p.make(pos, n.args.children(x)...)
	return n, err
}

// checkNamed refuses unknown filters and tests that map, select and their kin
// are given by name, as far as the name is a literal.
func checkNamed(name string, args callArgs) error {
	at := 0
	if name == "selectattr" || name == "rejectattr" {
		at = 1
	}
	if len(args.positional) <= at {
		return nil
	}
	c, ok := args.positional[at].(*constExpr)
	if !ok {
		return nil
	}
	s, ok := c.v.(string)
	if !ok {
		return nil
	}
	switch name {
	case "map":
		if filters[s] == nil {
			return unsupported(c.pos, "filter '%s'", clip(s))
		}
	case "select", "reject", "selectattr", "rejectattr":
		if tests[s] == nil {
			return unsupported(c.pos, "test '%s'", clip(s))
		}
	}
	return nil
}

// test parses 'is' and the test after it.
func (p *parser) test(x expr) (expr, error) {
	p.next()
	negated := p.skipName("not")
	name, pos, err := p.dottedName()
	if err != nil {
		return nil, err
	}
	f, ok := tests[name]
	if !ok {
		return nil, unsupported(pos, "test '%s'", clip(name))
	}
	n := &testExpr{x: x, name: name, f: f}
	if p.isOp("(") {
		if n.args, err = p.args(); err != nil {
			return nil, err
		}
	} else if p.argFollows() {
		if p.isName("is") {
			return nil, syntaxError(p.cur().pos, "tests cannot be chained with 'is'")
		}
		arg, err := p.primary(false)
		if err != nil {
			return nil, err
		}
		if arg, err = p.postfix(arg); err != nil {
			return nil, err
		}
		n.args.positional = []expr{arg}
	}
	if n.base, err = p.make(pos, n.args.children(x)...); err != nil || !negated {
		return n, err
	}
	b, err := p.make(pos, n)
	return &unaryExpr{base: b, op: "not", x: n}, err
}

// argFollows reports whether an argument without parentheses follows a test.
func (p *parser) argFollows() bool {
	switch t := p.cur(); t.kind {
	case tokName:
		return t.text != "else" && t.text != "or" && t.text != "and"
	case tokString, tokInt, tokFloat:
		return true
	case tokOp:
		return t.text == "[" || t.text == "{"
	}
	return false
}
