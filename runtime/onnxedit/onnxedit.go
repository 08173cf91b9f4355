// Package onnxedit checks the nodes of the operator FirstPassageAttention in ONNX
// models that others made, and puts such nodes into them.
//
// [Inspect] tells what a model has and what is wrong with it. [Inject] writes the
// operator anew in the form that is asked for, see [Forms]: nodes of the operator,
// placeholders of another name that an exporter left, and parts of the graph that
// compute attention by standard operators and are given by their boundary, see
// [Pattern]. Everything else of the model stays as it is.
//
// Package onnxbody has the operator itself; operator sets and types are those of
// package onnx.
package onnxedit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/onnxbody"
)

// operator is the operator's full name.
const operator = onnxbody.Domain + "::" + onnxbody.Name

// isOperator reports whether a node is of the operator.
func isOperator(n *onnx.Node) bool {
	return n.Domain == onnxbody.Domain && n.OpType == onnxbody.Name
}

// fullName is a node's operator with its domain.
func fullName(n *onnx.Node) string {
	if d := plainDomain(n.Domain); d != "" {
		return d + "::" + n.OpType
	}
	return n.OpType
}

// plainDomain folds the two names of the standard's domain.
func plainDomain(domain string) string {
	if domain == "ai.onnx" {
		return ""
	}
	return domain
}

// quote is a name of a file for a message, quoted and of bearable length.
func quote(s string) string {
	const most = 100
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strconv.Quote(s)
}

// list is names for a message: at most a handful of them.
func list(names []string) string {
	const most = 6
	var out []string
	for i, n := range names {
		if i == most {
			return strings.Join(out, ", ") + fmt.Sprintf(" and %d more", len(names)-most)
		}
		out = append(out, quote(n))
	}
	return strings.Join(out, ", ")
}

// opsetOf is the version of a domain in a list of imports, 0 when it is not there.
func opsetOf(opsets []onnx.Opset, domain string) int64 {
	for _, o := range opsets {
		if plainDomain(o.Domain) == plainDomain(domain) {
			return o.Version
		}
	}
	return 0
}

// scope is a graph or the body of a function with what it sees.
type scope struct {
	outer    *scope
	graph    *onnx.Graph    // nil in the body of a function
	function *onnx.Function // the function around; nil in the model's own graph
	nodes    *[]*onnx.Node
	where    string // for messages: "" in the main graph
	opsets   *[]onnx.Opset
	values   map[string]known
}

// known is what the file says of a value.
type known struct {
	elem   onnx.DataType // Undefined: nothing
	ranked bool
	dims   []onnx.Dim
	tensor *onnx.Tensor // the value itself, when it is a constant
}

// value is what is known of a value by its name, in this scope or one around it.
func (s *scope) value(name string) known {
	for ; s != nil; s = s.outer {
		if k, ok := s.values[name]; ok {
			return k
		}
	}
	return known{}
}

// place names a node for messages.
func (s *scope) place(n *onnx.Node, index int) string {
	p := fmt.Sprintf("node %d (%s)", index, fullName(n))
	if n.Name != "" {
		p = fmt.Sprintf("node %s (%s)", quote(n.Name), fullName(n))
	}
	return s.where + p
}

// visit calls f for the main graph, the functions and all graphs nested in them,
// outer ones first. f may change the list of nodes; nested graphs are those of the
// list that it leaves.
func visit(m *onnx.Model, f func(s *scope) error) error {
	if m.Graph == nil {
		return fmt.Errorf("the model has no graph")
	}
	main := &scope{graph: m.Graph, nodes: &m.Graph.Nodes, opsets: &m.Opsets}
	if err := main.visit(f); err != nil {
		return err
	}
	for _, fn := range m.Functions {
		name := fn.Name
		if fn.Domain != "" {
			name = fn.Domain + "::" + name
		}
		s := &scope{function: fn, nodes: &fn.Nodes, opsets: &fn.Opsets, where: "function " + quote(name) + ": "}
		if err := s.visit(f); err != nil {
			return err
		}
	}
	return nil
}

func (s *scope) visit(f func(s *scope) error) error {
	s.learn()
	if err := f(s); err != nil {
		return err
	}
	for i, n := range *s.nodes {
		for _, a := range n.Attributes {
			for _, g := range a.Graphs() {
				inner := &scope{outer: s, graph: g, function: s.function, nodes: &g.Nodes, opsets: s.opsets}
				inner.where = s.place(n, i) + ": "
				if err := inner.visit(f); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// learn collects what is known of the values of the scope.
func (s *scope) learn() {
	s.values = make(map[string]known)
	var described []*onnx.ValueInfo
	if s.graph != nil {
		described = slices.Concat(s.graph.ValueInfo, s.graph.Outputs, s.graph.Inputs)
	} else {
		described = s.function.ValueInfo
		for _, name := range s.function.Inputs {
			s.values[name] = known{}
		}
	}
	for _, v := range described {
		s.values[v.Name] = typeOf(v.Type)
	}
	if s.graph != nil {
		inputs := make(map[string]bool, len(s.graph.Inputs))
		for _, v := range s.graph.Inputs {
			inputs[v.Name] = true
		}
		for _, t := range s.graph.Initializers {
			k := tensorKnown(t)
			if inputs[t.Name] {
				k.tensor = nil // a default that the caller may replace
			}
			s.values[t.Name] = k
		}
	}
	for _, n := range *s.nodes {
		for i, name := range n.Outputs {
			k, ok := s.values[name]
			if i == 0 && plainDomain(n.Domain) == "" {
				switch {
				case n.OpType == "Constant":
					if a := n.Attribute("value"); a != nil {
						if t, isTensor := a.Value.(*onnx.Tensor); isTensor {
							k = tensorKnown(t)
						}
					}
				case n.OpType == "Cast" && k.elem == onnx.Undefined:
					if a := n.Attribute("to"); a != nil {
						if to, isInt := a.Value.(int64); isInt && onnx.DataType(to).Valid() {
							k.elem = onnx.DataType(to)
						}
					}
				}
			}
			if name != "" && (!ok || k.elem != onnx.Undefined) {
				s.values[name] = k
			}
		}
	}
}

func typeOf(t *onnx.Type) known {
	if t == nil || t.Kind != onnx.TypeTensor {
		return known{}
	}
	return known{elem: t.Elem, ranked: t.Ranked, dims: t.Dims}
}

func tensorKnown(t *onnx.Tensor) known {
	k := known{elem: t.Type, ranked: true, tensor: t}
	for _, d := range t.Dims {
		k.dims = append(k.dims, onnx.Dim{Size: d})
	}
	return k
}

// dimsString is dimensions for a message: [2, heads, ?].
func dimsString(dims []onnx.Dim) string {
	parts := make([]string, len(dims))
	for i, d := range dims {
		switch {
		case d.Param != "":
			parts[i] = d.Param
		case d.Size >= 0:
			parts[i] = strconv.FormatInt(d.Size, 10)
		default:
			parts[i] = "?"
		}
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// typeString is a type for a summary: float32[batch, 4].
func typeString(k known) string {
	if k.elem == onnx.Undefined {
		return "?"
	}
	s := strings.ToLower(k.elem.String())
	if k.ranked {
		s += dimsString(k.dims)
	}
	return s
}
