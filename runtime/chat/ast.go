package chat

// Expressions and statements of a parsed template. Nodes that open a scope
// carry the loads that the scope begins with; see scope.go.

// base is what every node has: where it stands, and how deep the tree below
// it is, which Parse bounds so that evaluating cannot exhaust the stack.
type base struct {
	pos    int
	height int
}

func (b *base) node() *base { return b }

type expr interface{ node() *base }

type (
	constExpr struct {
		base
		v value
	}
	// nameExpr reads or stores a variable; level is the scope it belongs to.
	nameExpr struct {
		base
		name  string
		store bool
		level int
	}
	// nsRefExpr is ns.attr as the target of an assignment.
	nsRefExpr struct {
		base
		ns   *nameExpr
		attr string
	}
	// seqExpr is a list or a tuple.
	seqExpr struct {
		base
		items []expr
		tuple bool
	}
	dictExpr struct {
		base
		keys, values []expr
	}
	unaryExpr struct {
		base
		op string // "-", "+" or "not"
		x  expr
	}
	binaryExpr struct {
		base
		op   string // + - * / // % **
		x, y expr
	}
	logicExpr struct {
		base
		and  bool
		x, y expr
	}
	// compareExpr is a chain: first ops[0] rest[0] ops[1] rest[1] …
	compareExpr struct {
		base
		first expr
		ops   []string // == != < <= > >= in, not in
		rest  []expr
	}
	concatExpr struct {
		base
		items []expr
	}
	condExpr struct {
		base
		test, then expr
		otherwise  expr // nil without else
	}
	attrExpr struct {
		base
		x    expr
		name string
	}
	itemExpr struct {
		base
		x, index expr
	}
	sliceExpr struct {
		base
		x                 expr
		start, stop, step expr // nil where absent
	}
	callExpr struct {
		base
		x    expr
		args callArgs
	}
	filterExpr struct {
		base
		x    expr // nil in {% filter %} and {% set x | f %}: the block's text
		name string
		f    *filter
		args callArgs
	}
	testExpr struct {
		base
		x    expr
		name string
		f    *test
		args callArgs
	}
)

// callArgs are the arguments of a call, a filter or a test.
type callArgs struct {
	positional []expr
	names      []string
	named      []expr
}

type stmt interface{ stmtNode() }

type (
	// outputStmt is template text, or an expression to print.
	outputStmt struct {
		text string
		x    expr // nil for text
	}
	setStmt struct {
		pos    int
		target expr // nameExpr, nsRefExpr or seqExpr of them
		x      expr
	}
	setBlockStmt struct {
		pos    int
		target expr
		filter expr // nil without one
		body   []stmt
		scope  *scope
	}
	ifStmt struct {
		tests     []expr
		bodies    [][]stmt
		otherwise []stmt
	}
	forStmt struct {
		pos       int
		target    expr
		iter      expr
		test      expr // nil without a filter
		body      []stmt
		otherwise []stmt

		scope     *scope // of the body
		testScope *scope
		elseScope *scope
		extended  bool // the body reads loop
	}
	withStmt struct {
		pos     int
		targets []expr
		values  []expr
		body    []stmt
		scope   *scope
	}
	macroStmt struct {
		pos      int
		name     *nameExpr // nil for the body of a call block
		params   []*nameExpr
		defaults []expr // of the last parameters
		body     []stmt

		scope           *scope
		kwargs, varargs bool // the body reads kwargs, varargs
		caller          bool // the body reads caller
	}
	// callStmt is {% call %}: a call that is given the body as the macro caller.
	callStmt struct {
		pos  int
		call *callExpr
		body *macroStmt
	}
	filterStmt struct {
		pos    int
		filter expr
		body   []stmt
		scope  *scope
	}
	// generationStmt is transformers' {% generation %}, which marks what the
	// model said and prints its body unchanged.
	generationStmt struct {
		pos   int
		body  []stmt
		scope *scope
	}
	loopControlStmt struct{ brk bool }
)

func (*outputStmt) stmtNode()      {}
func (*setStmt) stmtNode()         {}
func (*setBlockStmt) stmtNode()    {}
func (*ifStmt) stmtNode()          {}
func (*forStmt) stmtNode()         {}
func (*withStmt) stmtNode()        {}
func (*macroStmt) stmtNode()       {}
func (*callStmt) stmtNode()        {}
func (*filterStmt) stmtNode()      {}
func (*generationStmt) stmtNode()  {}
func (*loopControlStmt) stmtNode() {}
