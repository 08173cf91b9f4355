package chat

import "slices"

// Jinja2 decides before it runs a template which scope each variable belongs
// to, and what a variable begins with where a scope stores to it: the value
// outside, the variable given to Render, or nothing. What a template prints
// depends on it (a loop that sets a variable, a macro that reads one which is
// set later), so the same is done here.

// How a variable of a scope gets its first value.
type loadKind int

const (
	loadParam     loadKind = iota // it is given when the scope is entered
	loadContext                   // from the variables of Render
	loadOuter                     // copied from the scope at level outer
	loadUndefined                 // not at all
)

type load struct {
	kind  loadKind
	outer int
}

// A scope is what is known of a scope once the template is parsed: its level
// (the template itself is 0) and the variables to set up on entering it.
type scope struct {
	level int
	loads map[string]load
}

// A symbolTable is a scope while it is being analyzed.
type symbolTable struct {
	parent *symbolTable
	level  int
	refs   map[string]bool // names that have a variable at this level
	loads  map[string]load
	stores map[string]bool
	work   *int // names that may still be copied for the branches of ifs
}

// maxCopies bounds the names copied for the branches of ifs, which is all that
// could make the analysis take longer than linear in the template. Templates
// in use need some ten thousand.
const maxCopies = 500_000

func newTable(parent *symbolTable) *symbolTable {
	t := &symbolTable{parent: parent, refs: map[string]bool{}, loads: map[string]load{}, stores: map[string]bool{}}
	if parent != nil {
		t.level = parent.level + 1
		t.work = parent.work
	}
	return t
}

// resolveNames analyzes a template and returns its outermost scope.
func resolveNames(body []stmt) (*scope, error) {
	t := newTable(nil)
	work := maxCopies
	t.work = &work
	t.analyze(body)
	if err := t.resolve(body); err != nil {
		return nil, err
	}
	if work < 0 {
		return nil, errorAt(Limit, noPos, "too many variables in too many branches")
	}
	return t.scope(), nil
}

// find is the level whose variable the name means here.
func (t *symbolTable) find(name string) (level int, ok bool) {
	for ; t != nil; t = t.parent {
		if t.refs[name] {
			return t.level, true
		}
	}
	return 0, false
}

func (t *symbolTable) define(name string, l load) {
	t.refs[name] = true
	t.loads[name] = l
}

func (t *symbolTable) param(name string) {
	t.stores[name] = true
	t.define(name, load{kind: loadParam})
}

func (t *symbolTable) read(name string) {
	if _, ok := t.find(name); !ok {
		t.define(name, load{kind: loadContext})
	}
}

func (t *symbolTable) store(name string) {
	t.stores[name] = true
	if t.refs[name] {
		return
	}
	if outer, ok := t.parent.find(name); ok {
		t.define(name, load{kind: loadOuter, outer: outer})
		return
	}
	t.define(name, load{kind: loadUndefined})
}

// copy is t as it stands, for a branch of an if.
func (t *symbolTable) copy() *symbolTable {
	c := newTable(t.parent)
	c.level, c.work = t.level, t.work
	if *c.work -= len(t.refs) + 1; *c.work >= 0 {
		c.merge(t)
	}
	return c
}

func (t *symbolTable) merge(from *symbolTable) {
	for name := range from.refs {
		t.refs[name] = true
	}
	for name, l := range from.loads {
		t.loads[name] = l
	}
	for name := range from.stores {
		t.stores[name] = true
	}
}

// join merges the branches of an if: a name that only branches store to begins
// with what it was outside, as no branch may be taken.
func (t *symbolTable) join(branches []*symbolTable) {
	var stored []string
	for _, b := range branches {
		for name := range b.stores {
			if !t.stores[name] {
				stored = append(stored, name)
			}
		}
	}
	for _, b := range branches {
		t.merge(b)
	}
	for _, name := range stored {
		if outer, ok := t.parent.find(name); ok {
			t.loads[name] = load{kind: loadOuter, outer: outer}
		} else {
			t.loads[name] = load{kind: loadContext}
		}
	}
}

// target notes the names of an assignment's target.
func (t *symbolTable) target(x expr, param bool) {
	switch x := x.(type) {
	case *nameExpr:
		if param {
			t.param(x.name)
		} else {
			t.store(x.name)
		}
	case *nsRefExpr:
		t.read(x.ns.name)
	case *seqExpr:
		for _, item := range x.items {
			t.target(item, param)
		}
	}
}

// expr notes the names an expression reads.
func (t *symbolTable) expr(x expr) {
	eachName(x, func(n *nameExpr) { t.read(n.name) })
}

// analyze notes what the statements of one scope read and store. It does not
// look into the scopes inside: those are analyzed when their turn comes.
func (t *symbolTable) analyze(body []stmt) {
	for _, s := range body {
		switch s := s.(type) {
		case *outputStmt:
			t.expr(s.x)
		case *setStmt:
			t.expr(s.x)
			t.target(s.target, false)
		case *setBlockStmt:
			t.target(s.target, false)
		case *ifStmt:
			t.analyzeIf(s)
		case *forStmt:
			t.expr(s.iter)
		case *withStmt:
			for _, x := range s.values {
				t.expr(x)
			}
		case *macroStmt:
			t.store(s.name.name)
		case *callStmt:
			t.expr(s.call)
		case *filterStmt:
			t.expr(s.filter)
		}
	}
}

func (t *symbolTable) analyzeIf(s *ifStmt) {
	t.expr(s.tests[0])
	body := t.copy()
	body.analyze(s.bodies[0])
	// Each elif is an if of its own; one after another they share a branch.
	elifs := t.copy()
	for i := 1; i < len(s.tests); i++ {
		elifs.analyzeIf(&ifStmt{tests: s.tests[i : i+1], bodies: s.bodies[i : i+1]})
	}
	otherwise := t.copy()
	otherwise.analyze(s.otherwise)
	t.join([]*symbolTable{body, elifs, otherwise})
}

// scope is the finished table.
func (t *symbolTable) scope() *scope { return &scope{level: t.level, loads: t.loads} }

// refusedGlobals are Jinja2's functions that a chat template has no use for.
var refusedGlobals = map[string]bool{"lipsum": true, "cycler": true, "joiner": true, "self": true}

// resolve gives every name in body the level of its variable, and every
// statement that opens a scope that scope.
func (t *symbolTable) resolve(body []stmt) error {
	for _, s := range body {
		if err := t.resolveStmt(s); err != nil {
			return err
		}
	}
	return nil
}

// inner is a table inside t, filled by fill.
func (t *symbolTable) inner(fill func(*symbolTable)) *symbolTable {
	c := newTable(t)
	fill(c)
	return c
}

func (t *symbolTable) resolveStmt(s stmt) error {
	switch s := s.(type) {
	case *outputStmt:
		return t.bind(s.x)
	case *setStmt:
		return t.bind(s.x, s.target)
	case *setBlockStmt:
		c := t.inner(func(c *symbolTable) { c.analyze(s.body) })
		s.scope = c.scope()
		if err := c.bind(s.filter); err != nil {
			return err
		}
		if err := c.resolve(s.body); err != nil {
			return err
		}
		return t.bind(s.target)
	case *ifStmt:
		if err := t.bind(s.tests...); err != nil {
			return err
		}
		for _, body := range s.bodies {
			if err := t.resolve(body); err != nil {
				return err
			}
		}
		return t.resolve(s.otherwise)
	case *forStmt:
		return t.resolveFor(s)
	case *withStmt:
		c := t.inner(func(c *symbolTable) {
			for _, x := range s.targets {
				c.target(x, true)
			}
			c.analyze(s.body)
		})
		s.scope = c.scope()
		if err := t.bind(s.values...); err != nil {
			return err
		}
		if err := c.bind(s.targets...); err != nil {
			return err
		}
		return c.resolve(s.body)
	case *macroStmt:
		if err := t.resolveMacro(s); err != nil {
			return err
		}
		return t.bind(s.name)
	case *callStmt:
		if err := t.resolveMacro(s.body); err != nil {
			return err
		}
		return t.bind(s.call)
	case *filterStmt:
		c := t.inner(func(c *symbolTable) {
			c.analyze(s.body)
			c.expr(s.filter)
		})
		s.scope = c.scope()
		if err := c.bind(s.filter); err != nil {
			return err
		}
		return c.resolve(s.body)
	case *generationStmt:
		c := t.inner(func(c *symbolTable) { c.analyze(s.body) })
		s.scope = c.scope()
		if names := undeclared(s.body, "kwargs", "varargs", "caller"); len(names) > 0 {
			return unsupported(s.pos, "'%s' inside a generation block", names[0])
		}
		return c.resolve(s.body)
	}
	return nil
}

func (t *symbolTable) resolveFor(s *forStmt) error {
	s.extended = len(undeclared(s.body, "loop")) > 0
	stored := 0 // where the name loop is assigned to
	eachStored(s.target, s.body, func(n *nameExpr) {
		if n.name == "loop" && stored == 0 {
			stored = n.pos
		}
	})
	eachStored(nil, s.otherwise, func(n *nameExpr) {
		if n.name == "loop" && stored == 0 {
			stored = n.pos
		}
	})
	if stored > 0 {
		return syntaxError(stored, "cannot assign to 'loop' within a loop")
	}
	c := t.inner(func(c *symbolTable) {
		if s.extended {
			c.param("loop")
		}
		c.target(s.target, true)
		c.analyze(s.body)
	})
	s.scope = c.scope()
	if err := t.bind(s.iter); err != nil {
		return err
	}
	if err := c.bind(s.target); err != nil {
		return err
	}
	if s.test != nil {
		tt := t.inner(func(tt *symbolTable) {
			tt.target(s.target, true)
			tt.expr(s.test)
		})
		s.testScope = tt.scope()
		if err := tt.bind(s.test); err != nil {
			return err
		}
	}
	if err := c.resolve(s.body); err != nil {
		return err
	}
	e := t.inner(func(e *symbolTable) { e.analyze(s.otherwise) })
	s.elseScope = e.scope()
	return e.resolve(s.otherwise)
}

func (t *symbolTable) resolveMacro(s *macroStmt) error {
	special := undeclared(s.body, "caller", "kwargs", "varargs")
	isParam := func(name string) bool {
		return slices.ContainsFunc(s.params, func(p *nameExpr) bool { return p.name == name })
	}
	c := t.inner(func(c *symbolTable) {
		for _, p := range s.params {
			c.target(p, true)
		}
		for _, x := range s.defaults {
			c.expr(x)
		}
		c.analyze(s.body)
		for _, name := range special {
			if !isParam(name) {
				c.param(name)
			}
		}
	})
	s.kwargs = slices.Contains(special, "kwargs") && !isParam("kwargs")
	s.varargs = slices.Contains(special, "varargs") && !isParam("varargs")
	s.caller = slices.Contains(special, "caller")
	s.scope = c.scope()
	for _, p := range s.params {
		p.level = c.level
	}
	if err := c.bind(s.defaults...); err != nil {
		return err
	}
	return c.resolve(s.body)
}

// bind gives the names in expressions their levels.
func (t *symbolTable) bind(xs ...expr) error {
	var err error
	for _, x := range xs {
		eachName(x, func(n *nameExpr) {
			level, ok := t.find(n.name)
			if !ok && err == nil && *t.work >= 0 {
				// Jinja2 fails here with an internal error: the names in the
				// filter of a set block were not looked at.
				err = unsupported(n.pos, "variable '%s' as the argument of the filter of a set block", clip(n.name))
			}
			n.level = level
			if refusedGlobals[n.name] && !n.store && t.isGlobal(n.name) && err == nil {
				err = unsupported(n.pos, "function '%s'", n.name)
			}
		})
	}
	return err
}

// isGlobal reports whether the name is nowhere a variable of the template.
func (t *symbolTable) isGlobal(name string) bool {
	for ; t != nil; t = t.parent {
		if l, ok := t.loads[name]; ok && l.kind != loadContext {
			return false
		}
	}
	return true
}

// eachName calls f for every name in an expression, stored or read.
func eachName(x expr, f func(*nameExpr)) {
	all := func(xs ...expr) {
		for _, x := range xs {
			eachName(x, f)
		}
	}
	switch x := x.(type) {
	case *nameExpr:
		f(x)
	case *nsRefExpr:
		f(x.ns)
	case *seqExpr:
		all(x.items...)
	case *dictExpr:
		all(x.keys...)
		all(x.values...)
	case *unaryExpr:
		all(x.x)
	case *binaryExpr:
		all(x.x, x.y)
	case *logicExpr:
		all(x.x, x.y)
	case *compareExpr:
		all(x.first)
		all(x.rest...)
	case *concatExpr:
		all(x.items...)
	case *condExpr:
		all(x.test, x.then, x.otherwise)
	case *attrExpr:
		all(x.x)
	case *itemExpr:
		all(x.x, x.index)
	case *sliceExpr:
		all(x.x, x.start, x.stop, x.step)
	case *callExpr:
		all(x.args.children(x.x)...)
	case *filterExpr:
		all(x.args.children(x.x)...)
	case *testExpr:
		all(x.args.children(x.x)...)
	}
}

// eachStored calls f for every name that a target or statements, those of inner
// scopes included, assign to. The name of a macro does not count.
func eachStored(target expr, body []stmt, f func(*nameExpr)) {
	eachNameIn(target, body, func(n *nameExpr) {
		if n.store {
			f(n)
		}
	})
}

// eachNameIn calls f for the names in a target and in statements, in the order
// in which Jinja2 looks at them: targets come before values.
func eachNameIn(target expr, body []stmt, f func(*nameExpr)) {
	eachName(target, f)
	for _, s := range body {
		switch s := s.(type) {
		case *outputStmt:
			eachName(s.x, f)
		case *setStmt:
			eachName(s.target, f)
			eachName(s.x, f)
		case *setBlockStmt:
			eachName(s.target, f)
			eachName(s.filter, f)
			eachNameIn(nil, s.body, f)
		case *ifStmt:
			for i, test := range s.tests {
				eachName(test, f)
				eachNameIn(nil, s.bodies[i], f)
			}
			eachNameIn(nil, s.otherwise, f)
		case *forStmt:
			eachName(s.target, f)
			eachName(s.iter, f)
			eachNameIn(nil, s.body, f)
			eachNameIn(nil, s.otherwise, f)
			eachName(s.test, f)
		case *withStmt:
			for _, x := range slices.Concat(s.targets, s.values) {
				eachName(x, f)
			}
			eachNameIn(nil, s.body, f)
		case *macroStmt:
			eachNameInMacro(s, f)
		case *callStmt:
			eachName(s.call, f)
			eachNameInMacro(s.body, f)
		case *filterStmt:
			eachNameIn(nil, s.body, f)
			eachName(s.filter, f)
		case *generationStmt:
			eachNameIn(nil, s.body, f)
		}
	}
}

func eachNameInMacro(s *macroStmt, f func(*nameExpr)) {
	for _, p := range s.params {
		f(p)
	}
	for _, x := range s.defaults {
		eachName(x, f)
	}
	eachNameIn(nil, s.body, f)
}

// undeclared is those of names that body reads before anything in it, inner
// scopes included, stores to them.
func undeclared(body []stmt, names ...string) []string {
	var found []string
	open := slices.Clone(names)
	eachNameIn(nil, body, func(n *nameExpr) {
		i := slices.Index(open, n.name)
		if i < 0 {
			return
		}
		if !n.store {
			if !slices.Contains(found, n.name) {
				found = append(found, n.name)
			}
			return
		}
		open = slices.Delete(open, i, i+1)
	})
	return found
}
