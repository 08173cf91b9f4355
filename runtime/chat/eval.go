package chat

import (
	"slices"
	"strings"
	"time"
)

// An evaluator renders one template once.
type evaluator struct {
	lim   Limits
	vars  map[string]value // the variables given to Render, and the functions
	act   *activation
	out   *strings.Builder
	now   time.Time
	steps int
	bytes int // allocated so far
	calls int // macros being run
}

// variable names a variable of a scope.
type variable struct {
	level int
	name  string
}

// An activation holds the variables of one run of the template or of a macro:
// those of the scopes from level base on. Scopes of the same level that follow
// each other share their variables, as they do in Jinja2, where a macro made in
// a loop sees the variables of the loop as they are when it is called.
type activation struct {
	base   int
	vars   map[variable]value
	parent *activation
}

// charge counts n steps of work.
func (e *evaluator) charge(n int) error {
	e.steps += n
	if e.steps > e.lim.Steps {
		return errorAt(Limit, noPos, "more than %d steps", e.lim.Steps)
	}
	return nil
}

// scan counts the work of reading n bytes of text.
func (e *evaluator) scan(n int) error { return e.charge(n / 32) }

// alloc counts n bytes of new values and text.
func (e *evaluator) alloc(n int) error {
	if n > e.lim.AllocBytes-e.bytes {
		return errorAt(Limit, noPos, "more than %d bytes of text and lists made", e.lim.AllocBytes)
	}
	e.bytes += n
	return e.charge(1 + n/256)
}

// newString counts and returns a string that was made.
func (e *evaluator) newString(s string) (value, error) { return s, e.alloc(len(s)) }

// maxValueDepth bounds how deep lists and dicts may nest where they are
// printed or compared; Python gives up a little later.
const maxValueDepth = 200

// deep counts one step, and checks the depth of a nested value.
func (e *evaluator) deep(depth int) error {
	if depth > maxValueDepth {
		return errorAt(Limit, noPos, "value nested more than %d deep", maxValueDepth)
	}
	return e.charge(1)
}

// lookup returns the variable a name means.
func (e *evaluator) lookup(level int, name string) (value, bool) {
	a := e.act
	for a.base > level {
		a = a.parent
	}
	v, ok := a.vars[variable{level, name}]
	return v, ok
}

// store sets a variable of the current activation.
func (e *evaluator) store(level int, name string, v value) {
	e.act.vars[variable{level, name}] = v
}

// enterScope gives the variables of a scope what they begin with.
func (e *evaluator) enterScope(s *scope) error {
	for name, l := range s.loads {
		switch l.kind {
		case loadParam:
			continue
		case loadContext:
			if v, ok := e.vars[name]; ok {
				e.store(s.level, name, v)
				continue
			}
		case loadOuter:
			if v, ok := e.lookup(l.outer, name); ok {
				e.store(s.level, name, v)
				continue
			}
		}
		delete(e.act.vars, variable{s.level, name})
	}
	return e.charge(1 + len(s.loads))
}

// leaveScope ends the variables of a scope, which macros made in it could read.
func (e *evaluator) leaveScope(s *scope) {
	for name := range s.loads {
		delete(e.act.vars, variable{s.level, name})
	}
}

// call runs f with an activation of its own, as a Python function would be.
func (e *evaluator) call(parent *activation, level int, f func() error) error {
	e.calls++
	if e.calls > e.lim.Calls {
		return errorAt(Limit, noPos, "macros nested more than %d deep", e.lim.Calls)
	}
	old := e.act
	e.act = &activation{base: level, vars: map[variable]value{}, parent: parent}
	err := f()
	e.act = old
	e.calls--
	return err
}

// capture runs f and returns what it printed.
func (e *evaluator) capture(f func() error) (string, error) {
	old := e.out
	var b strings.Builder
	e.out = &b
	err := f()
	e.out = old
	return b.String(), err
}

// write prints s.
func (e *evaluator) write(s string) error {
	if e.out.Len()+len(s) > e.lim.OutputBytes {
		return errorAt(Limit, noPos, "more than %d bytes of output", e.lim.OutputBytes)
	}
	e.out.WriteString(s)
	return e.alloc(len(s))
}

// control is how a block of statements ended.
type control int

const (
	normal control = iota
	breaking
	continuing
)

func (e *evaluator) run(body []stmt) (control, error) {
	for _, s := range body {
		if err := e.charge(1); err != nil {
			return normal, err
		}
		c, err := e.exec(s)
		if err != nil || c != normal {
			return c, err
		}
	}
	return normal, nil
}

func (e *evaluator) exec(s stmt) (control, error) {
	switch s := s.(type) {
	case *outputStmt:
		if s.x == nil {
			return normal, e.write(s.text)
		}
		v, err := e.eval(s.x)
		if err != nil {
			return normal, err
		}
		text, err := e.str(v)
		if err == nil {
			err = e.write(text)
		}
		return normal, at(err, s.x.node().pos)
	case *setStmt:
		v, err := e.eval(s.x)
		if err != nil {
			return normal, err
		}
		return normal, at(e.assign(s.target, v), s.pos)
	case *setBlockStmt:
		return e.execSetBlock(s)
	case *ifStmt:
		for i, test := range s.tests {
			v, err := e.eval(test)
			if err != nil {
				return normal, err
			}
			if truth(v) {
				return e.run(s.bodies[i])
			}
		}
		return e.run(s.otherwise)
	case *forStmt:
		return e.execFor(s)
	case *withStmt:
		if err := e.enterScope(s.scope); err != nil {
			return normal, at(err, s.pos)
		}
		for i, x := range s.values {
			v, err := e.eval(x)
			if err == nil {
				err = e.assign(s.targets[i], v)
			}
			if err != nil {
				return normal, at(err, s.pos)
			}
		}
		c, err := e.run(s.body)
		e.leaveScope(s.scope)
		return c, err
	case *macroStmt:
		e.store(s.name.level, s.name.name, &macro{def: s, home: e.act})
		return normal, at(e.alloc(valueBytes), s.pos)
	case *callStmt:
		return normal, at(e.execCall(s), s.pos)
	case *filterStmt:
		if err := e.enterScope(s.scope); err != nil {
			return normal, at(err, s.pos)
		}
		c, v, err := e.filtered(s.body, s.filter)
		if err != nil || c != normal {
			return c, err
		}
		e.leaveScope(s.scope)
		return normal, at(e.writeText(v), s.pos)
	case *generationStmt:
		err := e.call(e.act, s.scope.level, func() error {
			if err := e.enterScope(s.scope); err != nil {
				return err
			}
			text, err := e.capture(func() error {
				_, err := e.run(s.body)
				return err
			})
			if err != nil {
				return err
			}
			return e.write(text)
		})
		return normal, at(err, s.pos)
	case *loopControlStmt:
		if s.brk {
			return breaking, nil
		}
		return continuing, nil
	}
	return normal, nil
}

// writeText prints what a filter block or a call block gives. Jinja2 does not
// turn it into text, as it does elsewhere.
func (e *evaluator) writeText(v value) error {
	s, ok := text(v)
	if !ok {
		return failed("expected text from the block, not %s", typeName(v))
	}
	return e.write(s)
}

func (e *evaluator) execCall(s *callStmt) error {
	f, err := e.eval(s.call.x)
	if err != nil {
		return err
	}
	args, err := e.evalArgs(s.call.args)
	if err != nil {
		return err
	}
	if slices.Contains(args.names, "caller") {
		return failed("argument 'caller' given twice")
	}
	args.names = append(slices.Clone(args.names), "caller")
	args.named = append(args.named, &macro{def: s.body, home: e.act})
	v, err := e.callValue(f, args)
	if err != nil {
		return err
	}
	return e.writeText(v)
}

func (e *evaluator) execSetBlock(s *setBlockStmt) (control, error) {
	if err := e.enterScope(s.scope); err != nil {
		return normal, at(err, s.pos)
	}
	c, v, err := e.filtered(s.body, s.filter)
	if err != nil || c != normal {
		return c, err
	}
	err = e.assign(s.target, v)
	e.leaveScope(s.scope)
	return normal, at(err, s.pos)
}

// filtered runs a block and gives what it printed to a chain of filters, which
// may be absent.
func (e *evaluator) filtered(body []stmt, filter expr) (control, value, error) {
	c := normal
	text, err := e.capture(func() error {
		var err error
		c, err = e.run(body)
		return err
	})
	if err != nil || c != normal {
		return c, nil, err
	}
	v, err := e.applyFilters(filter, text)
	return normal, v, err
}

// applyFilters evaluates a chain of filters whose innermost operand is v.
func (e *evaluator) applyFilters(x expr, v value) (value, error) {
	f, ok := x.(*filterExpr)
	if !ok {
		return v, nil
	}
	v, err := e.applyFilters(f.x, v)
	if err != nil {
		return nil, err
	}
	return e.filter(f, v)
}

// assign stores v in the target of an assignment.
func (e *evaluator) assign(target expr, v value) error {
	switch t := target.(type) {
	case *nameExpr:
		e.store(t.level, t.name, v)
		return nil
	case *nsRefExpr:
		owner, _ := e.lookup(t.ns.level, t.ns.name)
		ns, ok := owner.(*namespace)
		if !ok {
			return failed("cannot assign to an attribute of '%s': it is no namespace", t.ns.name)
		}
		ns.attrs.setString(t.attr, v)
		return e.alloc(2 * valueBytes)
	case *seqExpr:
		next, err := e.iterate(v)
		if err != nil {
			return failed("cannot unpack non-iterable %s object", typeName(v))
		}
		values := make([]value, 0, len(t.items))
		for {
			item, ok, err := next()
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			if len(values) == len(t.items) {
				return failed("too many values to unpack (expected %d)", len(t.items))
			}
			values = append(values, item)
		}
		if len(values) < len(t.items) {
			return failed("not enough values to unpack (expected %d, got %d)", len(t.items), len(values))
		}
		for i, item := range t.items {
			if err := e.assign(item, values[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *evaluator) execFor(s *forStmt) (control, error) {
	v, err := e.eval(s.iter)
	if err != nil {
		return normal, err
	}
	next, err := e.iterate(v)
	if err != nil {
		return normal, at(err, s.pos)
	}
	l := &loop{next: next, known: -1}
	if s.test != nil {
		l.next = e.selected(s, next)
	} else if n, ok := length(v); ok {
		l.known = n
	}
	ran := false
	for {
		item, ok, err := l.advance(e)
		if err != nil {
			return normal, at(err, s.pos)
		}
		if !ok {
			break
		}
		if err := e.assign(s.target, item); err != nil {
			return normal, at(err, s.pos)
		}
		if s.extended {
			e.store(s.scope.level, "loop", l)
		}
		if err := e.enterScope(s.scope); err != nil {
			return normal, at(err, s.pos)
		}
		c, err := e.run(s.body)
		if err != nil {
			return normal, err
		}
		if c == breaking {
			break
		}
		// Jinja2 notes that the loop ran at the end of its body, which
		// continue and break jump over.
		ran = ran || c == normal
	}
	e.leaveScope(s.scope)
	if ran {
		return normal, nil
	}
	if err := e.enterScope(s.elseScope); err != nil {
		return normal, at(err, s.pos)
	}
	return e.run(s.otherwise)
}

// selected is the items of a loop with a condition. The condition runs in an
// activation of its own, made when the first item is asked for.
func (e *evaluator) selected(s *forStmt, next func() (value, bool, error)) func() (value, bool, error) {
	home := e.act
	own := &activation{base: s.testScope.level, vars: map[variable]value{}, parent: home}
	started := false
	return func() (item value, ok bool, err error) {
		old := e.act
		e.act = own
		defer func() { e.act = old }()
		if !started {
			started = true
			if err := e.enterScope(s.testScope); err != nil {
				return nil, false, err
			}
		}
		for {
			if item, ok, err = next(); err != nil || !ok {
				return nil, false, err
			}
			if err := e.assign(s.target, item); err != nil {
				return nil, false, err
			}
			v, err := e.eval(s.test)
			if err != nil {
				return nil, false, err
			}
			if truth(v) {
				return item, true, nil
			}
		}
	}
}

// loop is the variable loop within a for loop. It reads its items one at a
// time, and ahead only when it is asked about what follows.
type loop struct {
	next    func() (value, bool, error)
	known   int64 // how many items there are; negative when not known
	index0  int64
	started bool
	ahead   []value // read, but not yet given
	ended   bool    // nothing is left after ahead
	current value
	before  value
	changed []value // the last arguments of loop.changed
	called  bool
}

// advance moves to the next item.
func (l *loop) advance(e *evaluator) (value, bool, error) {
	if _, err := l.peek(); err != nil {
		return nil, false, err
	}
	if len(l.ahead) == 0 {
		return nil, false, nil
	}
	item := l.ahead[0]
	l.ahead = l.ahead[1:]
	if l.started {
		l.index0++
	}
	l.started = true
	l.before, l.current = l.current, item
	return item, true, e.charge(1)
}

// peek reports whether another item follows.
func (l *loop) peek() (bool, error) {
	if len(l.ahead) == 0 && !l.ended {
		item, ok, err := l.next()
		if err != nil {
			return false, err
		}
		if ok {
			l.ahead = append(l.ahead, item)
		}
		l.ended = !ok
	}
	return len(l.ahead) > 0, nil
}

// length reads all items that are left, unless their number is known.
func (l *loop) length(e *evaluator) (int64, error) {
	for l.known < 0 && !l.ended {
		item, ok, err := l.next()
		if err != nil {
			return 0, err
		}
		if !ok {
			l.ended = true
			break
		}
		if err := e.alloc(valueBytes); err != nil {
			return 0, err
		}
		l.ahead = append(l.ahead, item)
	}
	if l.known < 0 {
		l.known = l.index0 + 1 + int64(len(l.ahead))
	}
	return l.known, nil
}

// attr is an attribute of loop.
func (l *loop) attr(e *evaluator, name string) (value, bool, error) {
	switch name {
	case "index":
		return l.index0 + 1, true, nil
	case "index0":
		return l.index0, true, nil
	case "first":
		return l.index0 == 0, true, nil
	case "last":
		more, err := l.peek()
		return !more, true, err
	case "length":
		n, err := l.length(e)
		return n, true, err
	case "revindex":
		n, err := l.length(e)
		return n - l.index0, true, err
	case "revindex0":
		n, err := l.length(e)
		return n - l.index0 - 1, true, err
	case "depth":
		return int64(1), true, nil
	case "depth0":
		return int64(0), true, nil
	case "previtem":
		if l.index0 == 0 {
			return &undefined{"there is no previous item"}, true, nil
		}
		return l.before, true, nil
	case "nextitem":
		more, err := l.peek()
		if err != nil || !more {
			return &undefined{"there is no next item"}, true, err
		}
		return l.ahead[0], true, nil
	case "cycle", "changed":
		return &method{self: l, name: name, m: loopMethods[name]}, true, nil
	}
	return nil, false, nil
}

// loopMethods are the methods of loop.
var loopMethods = map[string]*methodDef{
	"cycle": {variadic: func(e *evaluator, self value, a arguments) (value, error) {
		if len(a.named) > 0 {
			return nil, failed("cycle takes no named arguments")
		}
		if len(a.positional) == 0 {
			return nil, failed("no items for cycling given")
		}
		return a.positional[self.(*loop).index0%int64(len(a.positional))], nil
	}},
	"changed": {variadic: func(e *evaluator, self value, a arguments) (value, error) {
		if len(a.named) > 0 {
			return nil, failed("changed takes no named arguments")
		}
		l := self.(*loop)
		if l.called {
			same, err := e.equal(&list{items: l.changed, tuple: true}, &list{items: a.positional, tuple: true})
			if err != nil || same {
				return false, err
			}
		}
		l.called, l.changed = true, slices.Clone(a.positional)
		return true, e.alloc(valueBytes * len(a.positional))
	}},
}

// macro is a macro of the template, with the activation it was made in.
type macro struct {
	def  *macroStmt
	home *activation
}

// title is the name of a macro in messages.
func (s *macroStmt) title() string {
	if s.name == nil {
		return "caller"
	}
	return s.name.name
}

// call runs the macro and returns what it prints.
func (m *macro) call(e *evaluator, args arguments) (value, error) {
	def := m.def
	level := def.scope.level
	names, named := args.names, args.named
	var out string
	err := e.call(m.home, level, func() error {
		given := len(args.positional)
		if given > len(def.params) && !def.varargs {
			return failed("macro '%s' takes not more than %d argument(s)", def.title(), len(def.params))
		}
		missing := []int{}
		for i, p := range def.params {
			if i < given {
				e.store(level, p.name, args.positional[i])
				continue
			}
			at := slices.Index(names, p.name)
			if at < 0 {
				missing = append(missing, i)
				continue
			}
			e.store(level, p.name, named[at])
			names = slices.Delete(slices.Clone(names), at, at+1)
			named = slices.Delete(slices.Clone(named), at, at+1)
		}
		if def.caller {
			var caller value
			if at := slices.Index(names, "caller"); at >= 0 {
				caller = named[at]
				names = slices.Delete(slices.Clone(names), at, at+1)
				named = slices.Delete(slices.Clone(named), at, at+1)
			}
			if caller == nil {
				caller = &undefined{"No caller defined"}
			}
			e.store(level, "caller", caller)
		}
		if def.kwargs {
			d := newDict()
			for i, name := range names {
				d.setString(name, named[i])
			}
			e.store(level, "kwargs", d)
		} else if len(names) > 0 {
			return failed("macro '%s' takes no keyword argument '%s'", def.title(), names[0])
		}
		if def.varargs {
			rest := args.positional[min(given, len(def.params)):]
			e.store(level, "varargs", &list{items: rest, tuple: true})
		}
		if err := e.enterScope(def.scope); err != nil {
			return err
		}
		for _, i := range missing {
			p := def.params[i]
			d := i - (len(def.params) - len(def.defaults))
			if d < 0 {
				e.store(level, p.name, &undefined{"parameter '" + p.name + "' was not provided"})
				continue
			}
			v, err := e.eval(def.defaults[d])
			if err != nil {
				return err
			}
			e.store(level, p.name, v)
		}
		var err error
		out, err = e.capture(func() error {
			_, err := e.run(def.body)
			return err
		})
		return err
	})
	return out, err
}
