package onnxedit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/onnxbody"
)

// Pattern is a part of the main graph that computes attention by other operators,
// given by the names of the values at its boundary. The values must have the shapes
// of the operator's inputs and outputs. In all names {} stands for a number: then
// the pattern is for each number for which the graph has a value of the name of
// Output.
type Pattern struct {
	Query string `json:"query"`
	Key   string `json:"key"`
	Value string `json:"value"`
	Field string `json:"field"`
	Level string `json:"level,omitempty"` // empty: the field
	Slope string `json:"slope,omitempty"` // the value with the slopes, or
	// Slopes are the slopes themselves: one for each field head, or one for all.
	Slopes []float32 `json:"slopes,omitempty"`

	PastKey   string `json:"past_key,omitempty"` // the four all or none
	PastValue string `json:"past_value,omitempty"`
	PastLevel string `json:"past_level,omitempty"`
	PastLow   string `json:"past_low,omitempty"`

	Output       string `json:"output"`
	PresentKey   string `json:"present_key,omitempty"` // where the graph has them
	PresentValue string `json:"present_value,omitempty"`
	PresentLevel string `json:"present_level,omitempty"`
	PresentLow   string `json:"present_low,omitempty"`

	Scale    float32 `json:"scale,omitempty"`    // of the logits; 0: 1/sqrt of the keys' width
	Interval string  `json:"interval,omitempty"` // empty: exclusive

	// Ignore are values that the part uses beside the boundary, such as a mask, and
	// that the operator does without.
	Ignore []string `json:"ignore,omitempty"`
}

// ParsePattern reads patterns: JSON, one object or an array of them, or, without
// quotes, key=value pairs with commas between, such as
//
//	query=q_{},key=k_{},value=v_{},field=f_{},slopes=1,output=y_{}
//
// In pairs, "ignore" may come several times, and slopes are separated by "/".
func ParsePattern(s string) ([]Pattern, error) {
	s = strings.TrimSpace(s)
	if s == "" || s[0] != '{' && s[0] != '[' {
		p, err := parsePairs(s)
		return []Pattern{p}, err
	}
	d := json.NewDecoder(strings.NewReader(s))
	d.DisallowUnknownFields()
	var err error
	var list []Pattern
	if s[0] == '[' {
		err = d.Decode(&list)
	} else {
		list = make([]Pattern, 1)
		err = d.Decode(&list[0])
	}
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows it, expected one object or one array")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the pattern at byte %d: %w", d.InputOffset(), err)
	}
	for i := range list {
		if err := list[i].check(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// parsePairs reads one pattern of key=value pairs, by way of JSON.
func parsePairs(s string) (Pattern, error) {
	fields := map[string]any{}
	var ignore []string
	for _, pair := range strings.Split(s, ",") {
		key, value, ok := strings.Cut(pair, "=")
		key = strings.TrimSpace(key)
		if !ok {
			return Pattern{}, fmt.Errorf("the pattern has %s, expected key=value; names with a comma need the form in JSON", quote(pair))
		}
		if _, twice := fields[key]; twice {
			return Pattern{}, fmt.Errorf("the pattern gives %s twice", quote(key))
		}
		switch key {
		case "ignore":
			ignore = append(ignore, value)
		case "scale":
			v, err := strconv.ParseFloat(value, 32)
			if err != nil {
				return Pattern{}, fmt.Errorf("the pattern's scale is %s, expected a number", quote(value))
			}
			fields[key] = v
		case "slopes":
			var slopes []float64
			for _, part := range strings.Split(value, "/") {
				v, err := strconv.ParseFloat(part, 32)
				if err != nil {
					return Pattern{}, fmt.Errorf("the pattern's slopes are %s, expected numbers with / between", quote(value))
				}
				slopes = append(slopes, v)
			}
			fields[key] = slopes
		default:
			fields[key] = value
		}
	}
	if ignore != nil {
		fields["ignore"] = ignore
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return Pattern{}, fmt.Errorf("the pattern: %w", err) // a number that is none
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var p Pattern
	if err := d.Decode(&p); err != nil {
		return p, fmt.Errorf("the pattern: %w", err)
	}
	return p, p.check()
}

// check checks what does not depend on the model.
func (p *Pattern) check() error {
	for _, f := range []struct{ name, value string }{
		{"query", p.Query}, {"key", p.Key}, {"value", p.Value}, {"field", p.Field}, {"output", p.Output},
	} {
		if f.value == "" {
			return fmt.Errorf("the pattern lacks %s, the name of a value", f.name)
		}
	}
	if (p.Slope == "") == (p.Slopes == nil) {
		return errors.New("the pattern needs one of slope, the name of a value, and slopes, numbers")
	}
	for _, v := range p.Slopes {
		if !finite(v) || v < 0 {
			return fmt.Errorf("the pattern's slopes have %g, expected finite numbers of at least 0", v)
		}
	}
	if p.Slopes != nil && len(p.Slopes) == 0 {
		return errors.New("the pattern's slopes are empty, expected one for each field head, or one for all")
	}
	if p.Interval != "" && p.Interval != onnxbody.Exclusive && p.Interval != onnxbody.Inclusive {
		return fmt.Errorf("the pattern's interval is %s, expected %q or %q", quote(p.Interval), onnxbody.Exclusive, onnxbody.Inclusive)
	}
	return nil
}

// names are the pattern's names of values, to be filled in.
func (p *Pattern) names() []*string {
	list := []*string{
		&p.Query, &p.Key, &p.Value, &p.Field, &p.Level, &p.Slope, &p.PastKey, &p.PastValue, &p.PastLevel, &p.PastLow,
		&p.Output, &p.PresentKey, &p.PresentValue, &p.PresentLevel, &p.PresentLow,
	}
	for i := range p.Ignore {
		list = append(list, &p.Ignore[i])
	}
	return list
}

const hole = "{}"

// expand gives the patterns that one with {} stands for.
func (p *Pattern) expand(values map[string]bool) ([]Pattern, error) {
	if !strings.Contains(p.Output, hole) {
		for _, name := range p.names() {
			if strings.Contains(*name, hole) && !values[*name] {
				return nil, fmt.Errorf("the pattern has {} in %s, but not in the output %s, whose numbers count", quote(*name), quote(p.Output))
			}
		}
		return []Pattern{*p}, nil
	}
	before, after, _ := strings.Cut(p.Output, hole)
	// Each further {} is the same number.
	re, err := regexp.Compile("^" + regexp.QuoteMeta(before) + `(0|[1-9][0-9]{0,8})` + strings.ReplaceAll(regexp.QuoteMeta(after), regexp.QuoteMeta(hole), "[0-9]+") + "$")
	if err != nil {
		return nil, err
	}
	var numbers []int
	for name := range values {
		if m := re.FindStringSubmatch(name); m != nil && name == strings.ReplaceAll(p.Output, hole, m[1]) {
			n, err := strconv.Atoi(m[1])
			if err != nil {
				return nil, err
			}
			numbers = append(numbers, n)
		}
	}
	if numbers == nil {
		return nil, fmt.Errorf("the main graph has no value %s for any number in place of {}", quote(p.Output))
	}
	sort.Ints(numbers)
	var list []Pattern
	for _, n := range numbers {
		q := *p
		q.Ignore = slices.Clone(p.Ignore)
		for _, name := range q.names() {
			*name = strings.ReplaceAll(*name, hole, strconv.Itoa(n))
		}
		list = append(list, q)
	}
	return list, nil
}

// cut replaces the parts that a pattern stands for.
func (e *editor) cut(p *Pattern) error {
	if err := p.check(); err != nil {
		return err
	}
	values := map[string]bool{}
	for name := range e.makers() {
		values[name] = true
	}
	list, err := p.expand(values)
	if err != nil {
		return err
	}
	for i := range list {
		if err := e.cutOne(&list[i]); err != nil {
			return fmt.Errorf("pattern with output %s: %w", quote(list[i].Output), err)
		}
	}
	return nil
}

// makers maps the values of the main graph to their nodes, nil for inputs and
// initializers.
func (e *editor) makers() map[string]*onnx.Node {
	g := e.model.Graph
	m := map[string]*onnx.Node{}
	for _, v := range g.Inputs {
		m[v.Name] = nil
	}
	for _, t := range g.Initializers {
		m[t.Name] = nil
	}
	for _, t := range g.SparseInitializers {
		if t.Values != nil {
			m[t.Values.Name] = nil
		}
	}
	for _, n := range g.Nodes {
		for _, name := range n.Outputs {
			if name != "" {
				m[name] = n
			}
		}
	}
	return m
}

// sizeOnly reports whether a node looks at nothing of its inputs but their size.
func sizeOnly(n *onnx.Node) bool {
	return plainDomain(n.Domain) == "" && (n.OpType == "Shape" || n.OpType == "Size")
}

// region is a part of the main graph between values.
type region struct {
	makers   map[string]*onnx.Node
	boundary map[string]bool // where the part begins; ignored values too
	nodes    map[*onnx.Node]bool
	reached  map[string]bool // of the boundary
}

// cutOne replaces one part: it goes back from the outputs to the boundary, puts the
// operator's node there, and removes what is no longer used.
func (e *editor) cutOne(p *Pattern) error {
	if p.Level == "" {
		p.Level = p.Field
	}
	r := &region{makers: e.makers(), boundary: map[string]bool{}, nodes: map[*onnx.Node]bool{}, reached: map[string]bool{}}
	inputs := []string{p.Query, p.Key, p.Value, p.Field, p.Level, p.Slope, p.PastKey, p.PastValue, p.PastLevel, p.PastLow}
	outputs := []string{p.Output, p.PresentKey, p.PresentValue, p.PresentLevel, p.PresentLow}
	if err := e.exist(r, slices.Concat(inputs, outputs, p.Ignore)); err != nil {
		return err
	}
	for _, name := range slices.Concat(inputs, p.Ignore) {
		r.boundary[name] = name != ""
	}
	for i, name := range outputs {
		switch {
		case name == "":
		case r.boundary[name]:
			return fmt.Errorf("%s is named as an input and as an output of the part", quote(name))
		case slices.Contains(outputs[:i], name):
			return fmt.Errorf("%s is named twice as an output of the part", quote(name))
		case r.makers[name] == nil:
			return fmt.Errorf("%s is an input or a constant of the model, expected a value that a node makes", quote(name))
		}
	}
	for _, name := range outputs {
		if name != "" {
			if err := r.goBack(e.model.Graph, name); err != nil {
				return err
			}
		}
	}
	for i, name := range inputs[:3] {
		if !r.reached[name] {
			return fmt.Errorf("the output does not depend on the %s %s", onnxbody.InputNames[i], quote(name))
		}
	}
	if err := e.private(r, outputs); err != nil {
		return err
	}
	return e.replace(p, r, inputs, outputs)
}

// exist fails unless the main graph has all the values, "" excepted.
func (e *editor) exist(r *region, names []string) error {
	for _, name := range names {
		if _, ok := r.makers[name]; ok || name == "" {
			continue
		}
		for i, n := range e.model.Graph.Nodes {
			if n.Name == name {
				return fmt.Errorf("%s is the name of a node, expected that of a value; the node (number %d, %s) makes %s", quote(name), i, fullName(n), list(n.Outputs))
			}
		}
		if e.names[name] {
			return fmt.Errorf("the value %s is not in the main graph, but in a nested graph or a function; onnx.inliner puts functions into the graph", quote(name))
		}
		return fmt.Errorf("the main graph has no value %s; an editor such as Netron shows their names", quote(name))
	}
	return nil
}

// goBack collects the nodes that make a value from the boundary. It fails when
// something else goes in.
func (r *region) goBack(g *onnx.Graph, output string) error {
	inputs := map[string]bool{}
	for _, v := range g.Inputs {
		inputs[v.Name] = true
	}
	user := map[string]string{} // on the way back from each value
	pending := []string{output}
	seen := map[string]bool{output: true}
	for len(pending) > 0 {
		name := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		n := r.makers[name]
		if n == nil {
			if !inputs[name] {
				continue // a constant
			}
			var way []string
			for v := name; v != output && len(way) < 8; v = user[v] {
				way = append(way, quote(v))
			}
			return fmt.Errorf("it also depends on the input %s of the model, by way of %s; name what the operator takes, or what it does without by ignore (padding belongs into the level, as +inf)", quote(name), strings.Join(append(way, quote(output)), " -> "))
		}
		r.nodes[n] = true
		if sizeOnly(n) {
			continue
		}
		uses(n, func(in string) {
			if r.boundary[in] {
				r.reached[in] = true
			} else if !seen[in] {
				seen[in] = true
				user[in] = name
				pending = append(pending, in)
			}
		})
	}
	return nil
}

// private fails when a value inside the part that depends on the boundary is used
// outside: then the old attention would have to stay beside the new.
func (e *editor) private(r *region, outputs []string) error {
	inside := map[string]bool{}
	for _, n := range e.model.Graph.Nodes { // sorted, or Check fails later
		if !r.nodes[n] || sizeOnly(n) {
			continue
		}
		depends := false
		uses(n, func(name string) { depends = depends || r.boundary[name] || inside[name] })
		for _, name := range n.Outputs {
			inside[name] = depends && name != "" && !slices.Contains(outputs, name)
		}
	}
	const advice = "; the part must be used by its outputs alone: move the boundary, or make it an output that the operator has"
	for i, n := range e.model.Graph.Nodes {
		if r.nodes[n] {
			continue
		}
		var found string
		uses(n, func(name string) {
			if inside[name] {
				found = name
			}
		})
		if found != "" {
			s := &scope{}
			return fmt.Errorf("%s, inside the part, is also used by %s%s", quote(found), s.place(n, i), advice)
		}
	}
	for _, v := range e.model.Graph.Outputs {
		if inside[v.Name] {
			return fmt.Errorf("%s, inside the part, is also an output of the model%s", quote(v.Name), advice)
		}
	}
	return nil
}

// replace puts the node in and takes the part out.
func (e *editor) replace(p *Pattern, r *region, inputs, outputs []string) error {
	g := e.model.Graph
	at := len(g.Nodes)
	for i, n := range g.Nodes {
		for j, name := range n.Outputs {
			if name != "" && slices.Contains(outputs, name) {
				at = min(at, i)
				n.Outputs[j] = e.fresh(name + "_replaced")
			}
		}
	}
	var added []*onnx.Node
	if p.Slopes != nil {
		added, inputs[5] = e.slopes(p)
	}
	node := &onnx.Node{
		Name: e.fresh(p.Output + "/" + onnxbody.Name), Domain: onnxbody.Domain, OpType: onnxbody.Name, Inputs: inputs, Outputs: outputs,
		Attributes: []*onnx.Attribute{onnx.FloatAttr("scale", p.Scale)},
	}
	if p.Interval != "" {
		node.Attributes = append(node.Attributes, onnx.StringAttr("interval", p.Interval))
	}
	for len(node.Outputs) > 0 && node.Outputs[len(node.Outputs)-1] == "" {
		node.Outputs = node.Outputs[:len(node.Outputs)-1]
	}
	g.Nodes = slices.Insert(g.Nodes, at, append(added, node)...)
	if err := sortNodes(g.Nodes); err != nil {
		return fmt.Errorf("%w: one of the inputs depends on the output", err)
	}
	main := &scope{graph: g, nodes: &g.Nodes, opsets: &e.model.Opsets}
	removed := prune(main, r.nodes)
	counts := map[string]int{}
	for _, n := range removed {
		counts[fullName(n)]++
	}
	e.patterns[node] = &Replacement{Place: main.place(node, 0), Was: "pattern", Removed: counts}
	if counts["Softmax"]+counts["Attention"]+counts["com.microsoft::MultiHeadAttention"]+counts["com.microsoft::GroupQueryAttention"] == 0 {
		e.note(node, "no Softmax went with the part; is it an attention, and its output the right one?")
	}
	if !r.reached[p.Field] {
		e.note(node, fmt.Sprintf("the part did not use the field %s: the model's results change", quote(p.Field)))
	}
	return nil
}

func (e *editor) note(n *onnx.Node, text string) {
	e.result.Notes = append(e.result.Notes, Finding{Place: (&scope{}).place(n, 0), Text: text})
}

// slopes makes the value of slopes that a pattern gives as numbers, by operators of
// every operator set.
func (e *editor) slopes(p *Pattern) ([]*onnx.Node, string) {
	name := e.fresh(p.Output + "/slope")
	t := onnx.FloatTensor(name, p.Slopes)
	if len(p.Slopes) > 1 {
		return []*onnx.Node{{OpType: "Constant", Name: name, Outputs: []string{name}, Attributes: []*onnx.Attribute{onnx.TensorAttr("value", t)}}}, name
	}
	// One for all: as many as the field has heads.
	one, axis := e.fresh(name+"_one"), e.fresh(name+"_axis")
	shape, heads := e.fresh(name+"_shape"), e.fresh(name+"_heads")
	t.Name = one
	return []*onnx.Node{
		{OpType: "Constant", Name: one, Outputs: []string{one}, Attributes: []*onnx.Attribute{onnx.TensorAttr("value", t)}},
		{OpType: "Constant", Name: axis, Outputs: []string{axis}, Attributes: []*onnx.Attribute{onnx.TensorAttr("value", onnx.Int64Tensor(axis, []int64{1}))}},
		{OpType: "Shape", Name: shape, Inputs: []string{p.Field}, Outputs: []string{shape}},
		{OpType: "Gather", Name: heads, Inputs: []string{shape, axis}, Outputs: []string{heads}},
		{OpType: "Expand", Name: name, Inputs: []string{one, heads}, Outputs: []string{name}},
	}, name
}
