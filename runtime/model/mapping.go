package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/hf"
	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/quant"
)

// Mapping tells how a checkpoint of unknown naming becomes one in the layout of
// docs/checkpoints.md. docs/mapping.md describes its JSON form.
type Mapping struct {
	// Config holds keys of an FPA config.json. A value {"from": "n_embd"} is taken
	// from that key of the checkpoint's own configuration.
	Config map[string]json.RawMessage `json:"config"`
	// Tensors are rules; each tensor of the checkpoint is the business of exactly
	// one of them.
	Tensors []Rule `json:"tensors"`

	path string
}

// Rule makes tensors of the FPA layout out of tensors of the checkpoint. Names
// may hold {}, which stands for a number, the same in From and To. The steps are
// applied in the order of the fields.
type Rule struct {
	From      Names   `json:"from"`                // several are joined along the rows
	To        Names   `json:"to,omitempty"`        // several: the rows are cut, by Sizes or evenly
	Drop      bool    `json:"drop,omitempty"`      // the tensor is not needed; To is empty
	Transpose bool    `json:"transpose,omitempty"` // a matrix stored as [in, out]; before the cut
	Sizes     []int64 `json:"sizes,omitempty"`     // rows of each To
	Apply     string  `json:"apply,omitempty"`     // softplus, exp, sigmoid, log_sigmoid, negate

	patterns []*regexp.Regexp
}

// Names is one name, or a list of names, in JSON.
type Names []string

// UnmarshalJSON reads a string or a list of strings.
func (n *Names) UnmarshalJSON(b []byte) error {
	var one string
	if err := json.Unmarshal(b, &one); err == nil {
		*n = Names{one}
		return nil
	}
	var many []string
	if err := json.Unmarshal(b, &many); err != nil {
		return fmt.Errorf("expected a name or a list of names, found %.40s", b)
	}
	*n = many
	return nil
}

// MarshalJSON writes one name as a string.
func (n Names) MarshalJSON() ([]byte, error) {
	if len(n) == 1 {
		return json.Marshal(n[0])
	}
	return json.Marshal([]string(n))
}

// maxMappingBytes bounds a mapping file.
const maxMappingBytes = 16 << 20

// ReadMapping reads a mapping file. Errors name the file and the rule.
func ReadMapping(path string) (*Mapping, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxMappingBytes {
		return nil, &format.FormatError{Path: path, Offset: -1, Msg: fmt.Sprintf("has %d bytes, expected a mapping of at most %d", info.Size(), maxMappingBytes)}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m := &Mapping{path: path}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(m); err != nil {
		return nil, &format.FormatError{Path: path, Offset: d.InputOffset(), Msg: err.Error()}
	}
	if d.More() {
		return nil, &format.FormatError{Path: path, Offset: d.InputOffset(), Msg: "text after the mapping"}
	}
	for i := range m.Tensors {
		if err := m.Tensors[i].prepare(); err != nil {
			return nil, m.fail(i, "%v", err)
		}
	}
	return m, nil
}

// fail is an error about rule i.
func (m *Mapping) fail(i int, msg string, args ...any) error {
	return &format.FormatError{Path: m.path, Offset: -1, Where: fmt.Sprintf("rule %d (from %s)", i+1, strings.Join(m.Tensors[i].From, ", ")), Msg: fmt.Sprintf(msg, args...)}
}

// functions are what Apply can name.
var functions = map[string]func(float64) float64{
	"softplus":    func(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) },
	"exp":         math.Exp,
	"sigmoid":     func(x float64) float64 { return 1 / (1 + math.Exp(-x)) },
	"log_sigmoid": func(x float64) float64 { return -(max(-x, 0) + math.Log1p(math.Exp(-math.Abs(x)))) },
	"negate":      func(x float64) float64 { return -x },
}

// prepare checks a rule and compiles its patterns.
func (r *Rule) prepare() error {
	switch {
	case len(r.From) == 0:
		return fmt.Errorf("names no tensor; expected \"from\"")
	case slices.Contains(r.To, ""):
		return fmt.Errorf("\"to\" is still empty; fill in the name that docs/checkpoints.md has for it, or \"drop\": true")
	case r.Drop != (len(r.To) == 0):
		return fmt.Errorf("expected either \"to\" or \"drop\": true")
	case len(r.Sizes) > 0 && len(r.Sizes) != len(r.To):
		return fmt.Errorf("has %d sizes for %d names in \"to\"", len(r.Sizes), len(r.To))
	case r.Apply != "" && functions[r.Apply] == nil:
		return fmt.Errorf("\"apply\" is %q, expected one of %s", r.Apply, strings.Join(slices.Sorted(maps.Keys(functions)), ", "))
	}
	holes := strings.Count(r.From[0], "{}")
	for _, name := range append(slices.Clone(r.From), r.To...) {
		if strings.Count(name, "{}") != holes {
			return fmt.Errorf("%q has another number of {} than %q", name, r.From[0])
		}
	}
	for _, name := range r.From {
		p := strings.ReplaceAll(regexp.QuoteMeta(name), `\{\}`, `(\d+)`)
		r.patterns = append(r.patterns, regexp.MustCompile("^"+p+"$"))
	}
	return nil
}

// fill puts the numbers of a match into the holes of a name.
func fill(name string, numbers []string) string {
	for _, n := range numbers {
		name = strings.Replace(name, "{}", n, 1)
	}
	return name
}

// apply turns a checkpoint's tensors into those of the FPA layout. It fails when
// a tensor is no rule's business, or several rules', or a rule finds nothing.
func (m *Mapping) apply(tensors []safetensors.Tensor) ([]safetensors.Tensor, error) {
	byName := make(map[string]safetensors.Tensor, len(tensors))
	for _, t := range tensors {
		byName[t.Name] = t
	}
	owner := make(map[string]int)
	var out []safetensors.Tensor
	var lost []string
	for _, t := range tensors {
		matched := false
		for i := range m.Tensors {
			r := &m.Tensors[i]
			for k, p := range r.patterns {
				match := p.FindStringSubmatch(t.Name)
				if match == nil {
					continue
				}
				if j, taken := owner[t.Name]; taken {
					return nil, m.fail(i, "%s is the business of rule %d too", t.Name, j+1)
				}
				owner[t.Name], matched = i, true
				if k > 0 || r.Drop {
					continue // joined to the first name's tensor, or not needed
				}
				made, err := r.make(byName, match[1:])
				if err != nil {
					return nil, m.fail(i, "%v", err)
				}
				out = append(out, made...)
			}
		}
		if !matched {
			lost = append(lost, t.Name)
		}
	}
	if len(lost) > 0 {
		return nil, &format.FormatError{Path: m.path, Offset: -1, Msg: fmt.Sprintf(
			"no rule for %d tensors of the checkpoint: %s; add rules, or \"drop\": true for those the model does not need", len(lost), strings.Join(lost, ", "))}
	}
	for i := range m.Tensors {
		if !slices.Contains(slices.Collect(maps.Values(owner)), i) {
			return nil, m.fail(i, "finds no tensor of the checkpoint")
		}
	}
	return out, nil
}

// make carries a rule out for one set of numbers.
func (r *Rule) make(byName map[string]safetensors.Tensor, numbers []string) ([]safetensors.Tensor, error) {
	var parts []safetensors.Tensor
	for _, name := range r.From {
		t, ok := byName[fill(name, numbers)]
		if !ok {
			return nil, fmt.Errorf("the checkpoint has no tensor %s to join", fill(name, numbers))
		}
		if r.Transpose {
			var err error
			if t, err = transpose(t); err != nil {
				return nil, err
			}
		}
		parts = append(parts, t)
	}
	t, err := join(parts)
	if err != nil {
		return nil, err
	}
	if r.Apply != "" {
		if t, err = applyFunction(t, functions[r.Apply]); err != nil {
			return nil, err
		}
	}
	return cut(t, r.Sizes, r.To, numbers)
}

// transpose turns a matrix [a, b] into [b, a].
func transpose(t safetensors.Tensor) (safetensors.Tensor, error) {
	if len(t.Shape) != 2 || t.DType.BlockLen() != 1 {
		return t, fmt.Errorf("%s has shape %v and type %s; only a matrix of plain numbers can be transposed", t.Name, t.Shape, t.DType)
	}
	rows, cols, size := int(t.Shape[0]), int(t.Shape[1]), t.DType.BlockBytes()
	data := make([]byte, len(t.Data))
	for i := range rows {
		for j := range cols {
			copy(data[(j*rows+i)*size:(j*rows+i+1)*size], t.Data[(i*cols+j)*size:])
		}
	}
	t.Shape, t.Data = format.Shape{t.Shape[1], t.Shape[0]}, data
	return t, nil
}

// join puts tensors of one type and width under each other.
func join(parts []safetensors.Tensor) (safetensors.Tensor, error) {
	t := parts[0]
	if len(parts) == 1 {
		return t, nil
	}
	t.Data = slices.Clone(t.Data)
	t.Shape = slices.Clone(t.Shape)
	for _, p := range parts[1:] {
		if p.DType != t.DType || len(t.Shape) == 0 || len(p.Shape) != len(t.Shape) || !slices.Equal(p.Shape[1:], t.Shape[1:]) {
			return t, fmt.Errorf("%s (%s %v) and %s (%s %v) cannot be joined along the rows", t.Name, t.DType, t.Shape, p.Name, p.DType, p.Shape)
		}
		t.Data = append(t.Data, p.Data...)
		t.Shape[0] += p.Shape[0]
	}
	return t, nil
}

// applyFunction computes f of every element, in float64, and stores float32.
func applyFunction(t safetensors.Tensor, f func(float64) float64) (safetensors.Tensor, error) {
	n, err := t.Shape.Elements()
	if err != nil {
		return t, err
	}
	v := make([]float32, n)
	if err := quant.Decode(v, t.DType, t.Data); err != nil {
		return t, err
	}
	for i := range v {
		v[i] = float32(f(float64(v[i])))
	}
	t.DType, t.Data = quant.F32, make([]byte, 4*n)
	return t, quant.Encode(t.Data, quant.F32, v)
}

// cut gives the rows to the names, by sizes or evenly.
func cut(t safetensors.Tensor, sizes []int64, to Names, numbers []string) ([]safetensors.Tensor, error) {
	if len(to) == 1 && sizes == nil {
		t.Name = fill(to[0], numbers)
		return []safetensors.Tensor{t}, nil
	}
	if len(t.Shape) == 0 {
		return nil, fmt.Errorf("%s has no rows to cut", t.Name)
	}
	rows := t.Shape[0]
	if sizes == nil {
		if rows%int64(len(to)) != 0 {
			return nil, fmt.Errorf("the %d rows of %s do not divide into %d parts; give \"sizes\"", rows, t.Name, len(to))
		}
		sizes = slices.Repeat([]int64{rows / int64(len(to))}, len(to))
	}
	sum := int64(0)
	for _, n := range sizes {
		if n < 1 || n > rows {
			return nil, fmt.Errorf("a size is %d, %s has %d rows", n, t.Name, rows)
		}
		sum += n
	}
	if sum != rows {
		return nil, fmt.Errorf("the sizes add up to %d, %s has %d rows", sum, t.Name, rows)
	}
	rowBytes := int64(len(t.Data)) / rows
	var out []safetensors.Tensor
	from := int64(0)
	for i, n := range sizes {
		part := t
		part.Name = fill(to[i], numbers)
		part.Shape = append(format.Shape{n}, t.Shape[1:]...)
		part.Data = t.Data[from*rowBytes : (from+n)*rowBytes]
		from += n
		out = append(out, part)
	}
	return out, nil
}

// config is the configuration of the mapping, with values taken from the
// checkpoint's own where it says so.
func (m *Mapping) config(own *hf.Config) (*hf.Config, error) {
	out := map[string]json.RawMessage{"model_type": json.RawMessage(`"fpa"`)}
	for key, v := range m.Config {
		var ref struct {
			From string `json:"from"`
		}
		if bytes.HasPrefix(bytes.TrimSpace(v), []byte("{")) {
			if err := json.Unmarshal(v, &ref); err != nil || ref.From == "" {
				return nil, &format.FormatError{Path: m.path, Offset: -1, Where: "config." + key, Msg: `expected a value, or {"from": "key of the checkpoint's configuration"}`}
			}
			if own == nil || !own.Has(ref.From) {
				return nil, &format.FormatError{Path: m.path, Offset: -1, Where: "config." + key, Msg: fmt.Sprintf("the checkpoint's configuration has no key %q", ref.From)}
			}
			v = own.Raw(ref.From)
		}
		out[key] = v
	}
	data, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	return hf.ParseConfig(data, m.path)
}

// Skeleton is a mapping to fill in for tensors of unknown names: one rule a
// pattern of names, numbers replaced by {}, its place left empty where the name
// is not one of the FPA layout.
func Skeleton(tensors []safetensors.Tensor) Mapping {
	m := Mapping{Config: map[string]json.RawMessage{}}
	for _, key := range []string{"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"} {
		m.Config[key] = json.RawMessage("0")
	}
	number := regexp.MustCompile(`(^|\.)\d+(\.|$)`)
	seen := make(map[string]bool)
	for _, t := range tensors {
		name := number.ReplaceAllString(t.Name, "${1}{}${2}")
		if seen[name] {
			continue
		}
		seen[name] = true
		r := Rule{From: Names{name}, To: Names{""}}
		if fpaLayout.place(nil, t.Name) != nil {
			r.To = Names{name}
		}
		m.Tensors = append(m.Tensors, r)
	}
	return m
}
