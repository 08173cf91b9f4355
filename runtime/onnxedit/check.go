package onnxedit

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/onnxbody"
)

// Finding is something about a model that somebody should know.
type Finding struct {
	Place  string `json:"place,omitempty"` // the node or function concerned; empty: the model
	Text   string `json:"text"`            // what was found and what was expected
	Remedy string `json:"remedy,omitempty"`
}

// String is the finding in one line.
func (f Finding) String() string {
	s := f.Text
	if f.Place != "" {
		s = f.Place + ": " + s
	}
	if f.Remedy != "" {
		s += "; " + f.Remedy
	}
	return s
}

// States of the operator's function in a model.
const (
	FunctionAbsent  = "absent"  // no function: the runtime must have the operator
	FunctionCurrent = "current" // the body that this version writes
	FunctionOther   = "other"   // another body: of another version, or another's
)

// Report is what Inspect tells of a model.
type Report struct {
	IRVersion int64    `json:"ir_version"`
	Producer  string   `json:"producer"`
	Opsets    []Opset  `json:"opsets"`
	Inputs    []Value  `json:"inputs"`
	Outputs   []Value  `json:"outputs"`
	States    []State  `json:"states"`    // inputs that carry a past from call to call
	Nodes     []Node   `json:"nodes"`     // of the operator
	Function  string   `json:"function"`  // one of the states of the function
	AllNodes  int      `json:"all_nodes"` // of every operator, nested graphs and functions included
	Functions []string `json:"functions"` // other functions of the model

	Problems []Finding `json:"problems"` // without which the model does not run, or runs wrong
	Notes    []Finding `json:"notes"`
}

// Opset is an operator set in use.
type Opset struct {
	Domain  string `json:"domain"`
	Version int64  `json:"version"`
}

// Value is an input or output of the model with its type.
type Value struct {
	Name string `json:"name"`
	Type string `json:"type"` // such as float[batch, 4]
}

// State is an input of the model by which a node gets its past, and the output that
// gives the next call's.
type State struct {
	Input  string `json:"input"`
	Output string `json:"output,omitempty"`
}

// Node is a node of the operator.
type Node struct {
	Place    string   `json:"place"`
	Inputs   []string `json:"inputs"`
	Outputs  []string `json:"outputs"`
	Past     bool     `json:"past"`
	Interval string   `json:"interval"`
	Scale    float32  `json:"scale"` // 0: 1/sqrt of the keys' width
}

// Inspect checks the model against the rules of the format (onnx.Check), and all that
// can be known without running it of its nodes of the operator: their operator set,
// number of inputs and outputs, attributes, types, shapes, and whether they fit the
// function that defines them. It fails only when the model has no graph.
func Inspect(m *onnx.Model) (*Report, error) {
	r := &Report{
		IRVersion: m.IRVersion, Producer: strings.TrimSpace(m.ProducerName + " " + m.ProducerVersion), Function: FunctionAbsent,
		Opsets: []Opset{}, Inputs: []Value{}, Outputs: []Value{}, States: []State{}, Nodes: []Node{}, Functions: []string{},
		Problems: []Finding{}, Notes: []Finding{},
	}
	for _, o := range m.Opsets {
		r.Opsets = append(r.Opsets, Opset{o.Domain, o.Version})
	}
	c := &checker{model: m, report: r, called: map[functionID]*onnx.Function{}, bodies: map[*onnx.Function]body{}}
	c.functions()
	if err := visit(m, c.scope); err != nil {
		return nil, err
	}
	for _, v := range m.Graph.Inputs {
		r.Inputs = append(r.Inputs, Value{v.Name, typeString(typeOf(v.Type))})
	}
	for _, v := range m.Graph.Outputs {
		r.Outputs = append(r.Outputs, Value{v.Name, typeString(typeOf(v.Type))})
	}
	c.states()
	// What the checks above say is of more use than the format's own rule.
	if err := onnx.Check(m); err != nil && len(r.Problems) == 0 {
		c.problem("", "", "%v", err)
	}
	if len(r.Nodes) > 0 && r.Function == FunctionAbsent {
		c.note("", "run `fpaconv onnx inject` to add it", "the model has no function %s: it runs only where the operator is registered, as by the plugin for ONNX Runtime", operator)
	}
	if len(r.Nodes) == 0 && len(r.Problems) == 0 {
		c.note("", "", "the model has no node of %s%s", operator, others(m))
	}
	return r, nil
}

// others lists the operators of a model that are not the standard's, for a message.
func others(m *onnx.Model) string {
	var names []string
	visit(m, func(s *scope) error { //nolint:errcheck // the function never fails
		for _, n := range *s.nodes {
			if plainDomain(n.Domain) != "" && !isOperator(n) && !slices.Contains(names, fullName(n)) && len(names) < 100 {
				names = append(names, fullName(n))
			}
		}
		return nil
	})
	if len(names) == 0 {
		return ", and none of any domain but the standard's"
	}
	slices.Sort(names)
	return "; its operators beside the standard's are " + list(names)
}

// functionID tells functions apart.
type functionID struct{ domain, name, overload string }

// checker collects findings.
type checker struct {
	model  *onnx.Model
	report *Report
	called map[functionID]*onnx.Function
	bodies map[*onnx.Function]body // of the operator's functions
}

// body is what ours says of a function.
type body struct {
	interval string
	current  bool
}

func (c *checker) problem(place, remedy, format string, args ...any) {
	c.report.Problems = append(c.report.Problems, Finding{place, fmt.Sprintf(format, args...), remedy})
}

func (c *checker) note(place, remedy, format string, args ...any) {
	c.report.Notes = append(c.report.Notes, Finding{place, fmt.Sprintf(format, args...), remedy})
}

const injectAgain = "run `fpaconv onnx inject` to write it anew"

// functions looks at the functions of the model.
func (c *checker) functions() {
	for _, f := range c.model.Functions {
		c.called[functionID{plainDomain(f.Domain), f.Name, f.Overload}] = f
		name := f.Name
		if f.Domain != "" {
			name = f.Domain + "::" + name
		}
		if f.Domain != onnxbody.Domain || f.Name != onnxbody.Name {
			c.report.Functions = append(c.report.Functions, name)
			continue
		}
		place := "function " + quote(name)
		interval, current := ours(f)
		c.bodies[f] = body{interval, current}
		c.report.Function = FunctionOther
		if current {
			c.report.Function = FunctionCurrent
		} else {
			c.note(place, injectAgain, "its body is not the one that this version of fpaconv writes")
		}
		if n := len(f.Inputs); n != 6 && n != 10 {
			c.problem(place, injectAgain, "it takes %d inputs, expected 6, or 10 with the past", n)
		}
		if n := len(f.Outputs); n != len(onnxbody.OutputNames) {
			c.problem(place, injectAgain, "it gives %d outputs, expected %d", n, len(onnxbody.OutputNames))
		}
		if len(f.Defaults) > 0 && c.model.IRVersion < 9 {
			c.problem(place, "set ir_version to 9 or later, or "+injectAgain, "its attributes have defaults, which came with ir_version 9 of the format; found %d", c.model.IRVersion)
		}
		if interval == onnxbody.Inclusive {
			c.note(place, "", "it is for nodes of the inclusive interval")
		}
	}
}

// ours reports whether a function has the body that this version writes, and for
// which interval. Names of nodes and notes do not count.
func ours(f *onnx.Function) (interval string, current bool) {
	var scale float32
	for _, a := range f.Defaults {
		if v, ok := a.Value.(float32); ok && a.Name == "scale" {
			scale = v
		}
	}
	found, err := bare(f)
	if err != nil {
		return "", false
	}
	for _, interval := range []string{onnxbody.Exclusive, onnxbody.Inclusive} {
		// The default of the interval names it, but only the body counts.
		want, err := onnxbody.Function(opsetOf(f.Opsets, ""), len(f.Inputs) > 6, onnxbody.Options{Interval: interval, Scale: scale})
		if err != nil {
			return "", false
		}
		if b, err := bare(want); err == nil && bytes.Equal(found, b) {
			return interval, true
		}
	}
	return "", false
}

// bare is a function's inputs, outputs and body in the wire format.
func bare(f *onnx.Function) ([]byte, error) {
	c := onnx.Function{Name: f.Name, Domain: f.Domain, Inputs: f.Inputs, Outputs: f.Outputs}
	for _, n := range f.Nodes {
		plain := onnx.Node{Inputs: n.Inputs, Outputs: n.Outputs, OpType: n.OpType, Domain: plainDomain(n.Domain), Attributes: slices.Clone(n.Attributes)}
		// Some programs sort attributes.
		slices.SortFunc(plain.Attributes, func(a, b *onnx.Attribute) int { return strings.Compare(a.Name, b.Name) })
		c.Nodes = append(c.Nodes, &plain)
	}
	var b bytes.Buffer
	err := onnx.Encode(&b, &onnx.Model{Functions: []*onnx.Function{&c}})
	return b.Bytes(), err
}

// scope checks the nodes of one graph.
func (c *checker) scope(s *scope) error {
	for i, n := range *s.nodes {
		c.report.AllNodes++
		place := s.place(n, i)
		switch {
		case isOperator(n):
			c.node(s, n, place)
		case c.called[functionID{plainDomain(n.Domain), n.OpType, n.Overload}] != nil:
		case n.Domain == onnxbody.Domain:
			c.problem(place, "", "domain %s has no such operator, expected %s", n.Domain, onnxbody.Name)
		case n.OpType == onnxbody.Name:
			c.problem(place, fmt.Sprintf("run `fpaconv onnx inject --placeholder %s`", fullName(n)), "domain %s, expected %s", quote(n.Domain), onnxbody.Domain)
		}
	}
	return nil
}

// inputDims are the dimensions of the operator's inputs and outputs.
var (
	inputDims = [][]string{
		{"B", "Hq", "T", "D"}, {"B", "Hkv", "T", "D"}, {"B", "Hkv", "T", "Dv"}, {"B", "Hf", "T"}, {"B", "Hf", "T"}, {"Hf"},
		{"B", "Hkv", "P", "D"}, {"B", "Hkv", "P", "Dv"}, {"B", "Hf", "P"}, {"B", "Hf", "P"},
	}
	outputDims = [][]string{
		{"B", "Hq", "T", "Dv"}, {"B", "Hkv", "S", "D"}, {"B", "Hkv", "S", "Dv"}, {"B", "Hf", "S"}, {"B", "Hf", "S"},
	}
)

// sameType reports whether an input or output has the type of the query; the others
// are float32.
func sameType(i int) bool { return i < 3 || i == 6 || i == 7 }

// inputsOf are a node's ten inputs, "" for those left out, or why it has not them.
func inputsOf(n *onnx.Node) ([10]string, error) {
	var in [10]string
	if len(n.Inputs) > 10 {
		return in, fmt.Errorf("%d inputs, expected 6, or 10 with the past: %s", len(n.Inputs), strings.Join(onnxbody.InputNames, ", "))
	}
	copy(in[:], n.Inputs)
	past := 0
	for i, name := range in {
		switch {
		case i < 6 && name == "":
			return in, fmt.Errorf("the input %s is missing; expected %s", onnxbody.InputNames[i], strings.Join(onnxbody.InputNames[:6], ", "))
		case i >= 6 && name != "":
			past++
		}
	}
	if past != 0 && past != 4 {
		return in, fmt.Errorf("%d of the inputs past_key, past_value, past_level and past_low are there, expected all or none", past)
	}
	return in, nil
}

// node checks a node of the operator.
func (c *checker) node(s *scope, n *onnx.Node, place string) {
	info := Node{Place: place, Inputs: n.Inputs, Outputs: n.Outputs, Interval: onnxbody.Exclusive}
	switch v := opsetOf(*s.opsets, onnxbody.Domain); v {
	case onnxbody.Version:
	case 0:
		c.problem(place, injectAgain, "the model has no opset_import for domain %s, expected version %d", onnxbody.Domain, onnxbody.Version)
	default:
		c.problem(place, injectAgain, "the model imports version %d of domain %s, expected %d", v, onnxbody.Domain, onnxbody.Version)
	}
	in, err := inputsOf(n)
	if err != nil {
		c.problem(place, "", "%v", err)
	}
	info.Past = in[6] != ""
	if len(n.Outputs) > len(onnxbody.OutputNames) {
		c.problem(place, "", "%d outputs, expected at most %d: %s", len(n.Outputs), len(onnxbody.OutputNames), strings.Join(onnxbody.OutputNames, ", "))
	}
	c.attributes(s, n, place, &info)
	if err == nil {
		c.shapes(s, n, in, place)
		c.fits(n, place, info)
	}
	c.report.Nodes = append(c.report.Nodes, info)
}

// attributeKinds are the attributes of the operator. The last three are for
// runtimes that drop dead keys.
var attributeKinds = map[string]onnx.AttributeKind{
	"scale": onnx.KindFloat, "interval": onnx.KindString,
	"cache": onnx.KindString, "cache_eps": onnx.KindFloat, "logit_bound": onnx.KindFloats,
}

// attributes checks a node's attributes and notes their values.
func (c *checker) attributes(s *scope, n *onnx.Node, place string, info *Node) {
	given := map[string]any{}
	for _, a := range n.Attributes {
		kind, ok := attributeKinds[a.Name]
		switch {
		case !ok:
			c.problem(place, "remove it", "attribute %s is none of the operator's, which are scale, interval, cache, cache_eps and logit_bound", quote(a.Name))
		case a.Kind != kind:
			c.problem(place, "", "attribute %s is of kind %s, expected %s", a.Name, a.Kind, kind)
		case a.Ref == "":
			given[a.Name] = a.Value
		}
	}
	bad := func(format string, args ...any) { c.problem(place, "", format, args...) }
	if v, ok := given["scale"].(float32); ok {
		info.Scale = v
		if !finite(v) {
			bad("attribute scale is %g, expected a finite number, or 0 for 1/sqrt of the keys' width", v)
		}
	}
	if v, ok := given["interval"].(string); ok {
		info.Interval = v
		if v != onnxbody.Exclusive && v != onnxbody.Inclusive {
			bad("attribute interval is %s, expected %q or %q", quote(v), onnxbody.Exclusive, onnxbody.Inclusive)
		}
	}
	cache, _ := given["cache"].(string)
	switch cache {
	case "", "off":
		return
	case "exact":
	case "bounded":
		if eps, ok := given["cache_eps"].(float32); !ok || !(eps > 0 && eps < 1) {
			bad("attribute cache_eps is %v, expected a number above 0 and below 1 with cache \"bounded\"", given["cache_eps"])
		}
	default:
		bad("attribute cache is %s, expected \"off\", \"exact\" or \"bounded\"", quote(cache))
		return
	}
	if info.Interval == onnxbody.Inclusive {
		bad("attribute cache is %s with the inclusive interval, in which no key can be dropped safely; expected \"off\"", quote(cache))
	}
	bounds, _ := given["logit_bound"].([]float32)
	if len(bounds) == 0 {
		bad("attribute cache is %s without logit_bound, expected a bound for each query head", quote(cache))
	}
	for i, u := range bounds {
		if !finite(u) || u < 0 {
			bad("attribute logit_bound[%d] is %g, expected a finite number that is not negative", i, u)
			break
		}
	}
	if q := s.value(firstOf(n.Inputs)); len(bounds) > 0 && len(q.dims) == 4 {
		if heads, ok := sizeOf(q.dims[1]); ok && heads != int64(len(bounds)) {
			bad("attribute logit_bound has %d bounds, expected one for each of the %d query heads", len(bounds), heads)
		}
	}
}

func finite(v float32) bool { return math.Abs(float64(v)) <= math.MaxFloat32 }

func firstOf(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

// sizeOf is a dimension's size where the file has it.
func sizeOf(d onnx.Dim) (int64, bool) { return d.Size, d.Param == "" && d.Size >= 0 }

// shapes checks types and shapes of inputs and outputs, as far as the file tells.
func (c *checker) shapes(s *scope, n *onnx.Node, in [10]string, place string) {
	bad := func(remedy, format string, args ...any) { c.problem(place, remedy, format, args...) }
	query := s.value(in[0])
	elem := query.elem
	switch elem {
	case onnx.Undefined, onnx.Float, onnx.Float16, onnx.BFloat16:
	default:
		bad("", "query %s is of type %s, expected FLOAT, FLOAT16 or BFLOAT16", quote(in[0]), elem)
		elem = onnx.Undefined
	}
	type size struct {
		n    int64
		from string
	}
	sizes := map[string]size{}
	match := func(kind, what, name string, k known, dims []string) {
		if !k.ranked {
			return
		}
		if len(k.dims) != len(dims) {
			bad("", "%s %s has shape %s, expected %d dimensions: [%s]", kind, quote(name), dimsString(k.dims), len(dims), strings.Join(dims, ", "))
			return
		}
		for i, d := range k.dims {
			v, ok := sizeOf(d)
			if !ok {
				continue
			}
			first, seen := sizes[dims[i]]
			if !seen {
				sizes[dims[i]] = size{v, what}
			} else if first.n != v {
				bad("", "%s %s has shape %s, expected [%s] with %s = %d as in %s", kind, quote(name), dimsString(k.dims), strings.Join(dims, ", "), dims[i], first.n, first.from)
				return
			}
		}
	}
	for i, name := range in {
		if name == "" {
			continue
		}
		what := onnxbody.InputNames[i]
		k := s.value(name)
		switch {
		case k.elem == onnx.Undefined:
		case !sameType(i) && k.elem != onnx.Float:
			remedy := "cast it"
			if what == "field" || what == "level" {
				remedy = "take the running sum in DOUBLE and cast that: a narrower one is off after a few hundred positions"
			}
			bad(remedy, "%s %s is of type %s, expected FLOAT", what, quote(name), k.elem)
		case sameType(i) && i > 0 && elem != onnx.Undefined && k.elem != elem:
			bad("cast one of them", "%s %s is of type %s, the query of type %s; expected the same", what, quote(name), k.elem, elem)
		}
		match(what, what, name, k, inputDims[i])
	}
	heads := func(name string) int64 {
		if v, ok := sizes[name]; ok {
			return v.n
		}
		return -1
	}
	hq, hkv, hf := heads("Hq"), heads("Hkv"), heads("Hf")
	if hq == 0 || hkv == 0 || hf == 0 {
		bad("", "a number of heads is 0: query %d, key %d, field %d (-1: not known); expected 1 or more", hq, hkv, hf)
	} else {
		if hq > 0 && hkv > 0 && hq%hkv != 0 {
			bad("", "%d query heads over %d key heads, expected a multiple", hq, hkv)
		}
		if hf > 1 && hq > 0 && hkv > 0 && hf != hq && hf != hkv {
			bad("", "%d field heads, expected %d as the query, %d as the key, or 1", hf, hq, hkv)
		}
		if hf > 1 && hq > 0 && hkv <= 0 && hq%hf != 0 {
			bad("", "%d query heads over %d field heads, expected a multiple", hq, hf)
		}
	}
	for i, name := range n.Outputs {
		if name == "" || i >= len(outputDims) {
			continue
		}
		what := onnxbody.OutputNames[i]
		k := s.value(name)
		want := elem
		if i > 2 {
			want = onnx.Float
		}
		if k.elem != onnx.Undefined && want != onnx.Undefined && k.elem != want {
			bad("correct its value_info or the output's type", "%s %s is declared as %s, expected %s", what, quote(name), k.elem, want)
		}
		match("the declaration of "+what, what, name, k, outputDims[i])
	}
	c.slope(s, in[5], place)
}

// slope checks the slopes where they are constant.
func (c *checker) slope(s *scope, name, place string) {
	k := s.value(name)
	if k.tensor == nil || k.elem != onnx.Float {
		return
	}
	const most = 1 << 20 // more would be no slopes
	if n, err := k.tensor.Elements(); err != nil || n > most {
		return
	}
	values, err := k.tensor.Float32s()
	if err != nil {
		c.problem(place, "", "slope %s: %v", quote(name), err)
		return
	}
	for i, v := range values {
		if !finite(v) || v < 0 {
			c.problem(place, "", "slope %s of head %d is %g, expected a finite number of at least 0", quote(name), i, v)
			return
		}
	}
}

// fits checks a node against the function that it calls.
func (c *checker) fits(n *onnx.Node, place string, info Node) {
	f := c.called[functionID{onnxbody.Domain, onnxbody.Name, n.Overload}]
	if f == nil {
		return
	}
	switch {
	case len(f.Inputs) == 10 && !info.Past:
		c.problem(place, injectAgain, "the model's function takes the past, the node leaves it out, which a function cannot see")
	case len(f.Inputs) == 6 && info.Past:
		c.problem(place, injectAgain, "the model's function takes no past, the node gives one")
	}
	if b := c.bodies[f]; b.current && b.interval != info.Interval {
		c.problem(place, injectAgain, "attribute interval is %q, the model's function is for %q", info.Interval, b.interval)
	}
	for _, name := range f.Attributes {
		if n.Attribute(name) == nil {
			c.problem(place, injectAgain, "attribute %s is missing, for which the model's function has no default", quote(name))
		}
	}
}

// states finds the inputs of the model that carry the past of a node, and the
// outputs that belong to them: the past of a name with past_key_values. is matched
// with present., any other with the node's own output if the model gives it.
func (c *checker) states() {
	inputs, outputs := map[string]bool{}, map[string]bool{}
	for _, v := range c.model.Graph.Inputs {
		inputs[v.Name] = true
	}
	for _, v := range c.model.Graph.Outputs {
		outputs[v.Name] = true
	}
	present := map[string]string{}
	for _, n := range c.report.Nodes {
		for i := 6; i < len(n.Inputs) && i < 10; i++ {
			if out := i - 5; inputs[n.Inputs[i]] && out < len(n.Outputs) && outputs[n.Outputs[out]] {
				present[n.Inputs[i]] = n.Outputs[out]
			} else if inputs[n.Inputs[i]] {
				present[n.Inputs[i]] = ""
			}
		}
	}
	for _, v := range c.model.Graph.Inputs {
		output, state := present[v.Name]
		if rest, ok := strings.CutPrefix(v.Name, "past_key_values."); ok {
			state = true
			if named := "present." + rest; outputs[named] {
				output = named
			}
		}
		if state {
			c.report.States = append(c.report.States, State{v.Name, output})
			if output == "" {
				c.note("", "", "the input %s carries a past, but no output of the model gives the next one", quote(v.Name))
			}
		}
	}
}
