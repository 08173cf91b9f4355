package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/format/hf"
	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/convert"
	"github.com/firstpassage/fpa/runtime/model"
)

func newInspect() *cobra.Command {
	var tensors, asJSON bool
	c := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Show what a model file or checkpoint holds",
		Long: `inspect shows the kind, size, configuration, tensors, tokenizer and provenance of a
GGUF file, an ONNX model, a .safetensors file or a checkpoint folder, of any
architecture, and whether this program can convert and run it.`,
		Example: "  fpaconv inspect passkey.gguf --tensors",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			d, err := describe(args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return encodeJSON(c.OutOrStdout(), d)
			}
			return d.print(c.OutOrStdout(), tensors)
		},
	}
	c.Flags().BoolVar(&tensors, "tensors", false, "list every tensor")
	c.Flags().BoolVar(&asJSON, "json", false, "print everything as JSON")
	return c
}

// description is what inspect tells of a file.
type description struct {
	Path       string         `json:"path"`
	Format     string         `json:"format"`
	Files      []string       `json:"files"`
	Bytes      int64          `json:"bytes"`
	Parameters int64          `json:"parameters"`
	Types      map[string]int `json:"types"` // tensors of each type
	Runs       bool           `json:"runs"`
	Reason     string         `json:"reason,omitempty"` // why it does not
	Tokenizer  string         `json:"tokenizer"`
	// Bounds sums up the proved bounds on the logits, by which the cache drops keys.
	Bounds   *convert.BoundSummary `json:"bounds,omitempty"`
	KeepsAll string                `json:"keeps_all,omitempty"` // why the cache drops no key
	Metadata []keyValue            `json:"metadata"`
	Tensors  []tensorLine          `json:"tensors"`
	// Mapping is a file to fill in for --map, for tensors of unknown names.
	Mapping *model.Mapping `json:"mapping,omitempty"`
}

type keyValue struct {
	Key   string `json:"key"`
	Type  string `json:"type,omitempty"`
	Value any    `json:"value"`
}

type tensorLine struct {
	Name   string  `json:"name"`
	Type   string  `json:"type"`
	Shape  []int64 `json:"shape"`
	Offset int64   `json:"offset"`
	Bytes  int64   `json:"bytes"`
}

// describe reads the header of a file of any kind.
func describe(path string) (*description, error) {
	d := &description{Path: path, Types: map[string]int{}}
	if err := d.read(path); err != nil {
		return nil, err
	}
	for _, f := range d.Files {
		info, err := os.Stat(f)
		if err != nil {
			return nil, err
		}
		d.Bytes += info.Size()
	}
	for _, t := range d.Tensors {
		d.Types[t.Type]++
		n, err := format.Shape(t.Shape).Elements()
		if err != nil {
			return nil, err
		}
		d.Parameters += n
	}
	d.tryModel(path)
	return d, nil
}

func (d *description) read(path string) error {
	kind, file, err := model.KindOf(path)
	if err != nil {
		return err
	}
	switch kind {
	case model.KindGGUF:
		return d.readGGUF(path)
	case model.KindONNX:
		return d.readONNX(file)
	}
	c, err := hf.Open(path, hf.Options{NoConfig: true})
	if err == nil {
		defer c.Close()
		d.readCheckpoint(c)
		return nil
	}
	// One shard of several can be shown all the same.
	f, fileErr := safetensors.Open(path)
	if fileErr != nil {
		return err
	}
	defer f.Close()
	d.Format, d.Files = "safetensors", []string{path}
	d.addMetadata(f.Metadata())
	d.addTensors(f.Tensors())
	return nil
}

func (d *description) readGGUF(path string) error {
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	d.Format, d.Files = fmt.Sprintf("gguf version %d", f.Version()), f.Paths()
	for _, e := range f.KV() {
		d.Metadata = append(d.Metadata, keyValue{e.Key, e.Value.TypeName(), e.Value.Any()})
	}
	for _, t := range f.Tensors() {
		d.Tensors = append(d.Tensors, tensorLine{t.Name, t.Type.String(), t.Shape, t.Offset, t.Size})
	}
	return nil
}

func (d *description) readONNX(path string) error {
	f, err := onnx.Open(path, format.Limits{})
	if err != nil {
		return err
	}
	defer f.Close()
	d.Format, d.Files = fmt.Sprintf("onnx, opset %d", f.Model.OpsetVersion("")), f.Paths()
	for _, e := range f.Model.Metadata {
		d.Metadata = append(d.Metadata, keyValue{e.Key, "string", e.Value})
	}
	tensors, err := onnxTensors(f)
	d.addTensors(tensors)
	return err
}

func (d *description) readCheckpoint(c *hf.Checkpoint) {
	d.Format = "safetensors checkpoint"
	if len(c.Shards()) == 0 {
		d.Format = "PyTorch file"
	}
	d.Files = c.Files()
	for _, key := range c.Config().Keys() {
		d.Metadata = append(d.Metadata, keyValue{"config." + key, "", c.Config().Raw(key)})
	}
	d.addMetadata(c.Metadata())
	d.addTensors(c.Tensors())
	var unknown *format.UnsupportedError
	if _, err := model.FromCheckpoint(c, nil); errors.As(err, &unknown) {
		m := model.Skeleton(c.Tensors())
		d.Mapping = &m
	}
}

func (d *description) addMetadata(m map[string]string) {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		d.Metadata = append(d.Metadata, keyValue{"metadata." + k, "string", m[k]})
	}
}

func (d *description) addTensors(tensors []safetensors.Tensor) {
	for _, t := range tensors {
		d.Tensors = append(d.Tensors, tensorLine{t.Name, t.DType.String(), t.Shape, t.Offset, int64(len(t.Data))})
	}
}

// tryModel finds out whether the file is a model that this program runs, and
// what its tokenizer is.
func (d *description) tryModel(path string) {
	d.Tokenizer = "none"
	f, err := model.Open(path, model.OpenOptions{})
	if err != nil {
		d.Reason = err.Error()
		return
	}
	defer f.Close()
	m, err := f.Build()
	if err != nil {
		d.Reason = err.Error()
	} else {
		d.tellBounds(m)
	}
	d.Runs = d.Reason == ""
	t, err := f.Tokenizer()
	if err == nil {
		d.Tokenizer = fmt.Sprintf("%d tokens", t.VocabSize())
	} else if !errorsIsNoTokenizer(err) {
		d.Tokenizer = err.Error()
	}
}

// tellBounds says what the bounds on the model's logits are worth. A checkpoint
// carries none; they are computed, in seconds for a model of a billion parameters.
func (d *description) tellBounds(m *model.Model) {
	if m.LogitBound == nil {
		m.LogitBound = m.LogitBounds(quant.F16)
	}
	d.Bounds, d.KeepsAll = convert.SummariseBounds(m), m.KeepsAll()
}

func (d *description) print(out io.Writer, tensors bool) error {
	w := bufio.NewWriter(out)
	d.printAll(w, tensors)
	return w.Flush()
}

func (d *description) printAll(w io.Writer, tensors bool) {
	fmt.Fprintf(w, "file:       %s\nformat:     %s\n", d.Path, d.Format)
	if len(d.Files) > 1 {
		fmt.Fprintf(w, "parts:      %d\n", len(d.Files))
	}
	fmt.Fprintf(w, "size:       %s\nparameters: %s (%s)\n", cli.Bytes(d.Bytes), count(d.Parameters), gguf.SizeLabel(d.Parameters))
	types := make([]string, 0, len(d.Types))
	for name, n := range d.Types {
		types = append(types, fmt.Sprintf("%d %s", n, name))
	}
	sort.Strings(types)
	fmt.Fprintf(w, "tensors:    %d (%s)\ntokenizer:  %s\n", len(d.Tensors), strings.Join(types, ", "), d.Tokenizer)
	if d.Runs {
		fmt.Fprintln(w, "runs here:  yes")
	} else {
		fmt.Fprintf(w, "runs here:  no: %s\n", cli.Clean(d.Reason))
	}
	switch {
	case d.Bounds != nil:
		fmt.Fprintf(w, "bounds:     %s\n", strings.ReplaceAll(d.Bounds.String(), "\n", "\n            "))
	case d.KeepsAll != "":
		fmt.Fprintf(w, "bounds:     none, the cache keeps every key: %s\n", d.KeepsAll)
	}
	fmt.Fprintln(w)
	for _, m := range d.Metadata {
		fmt.Fprintf(w, "%-45s %s\n", cli.Clean(m.Key), short(m.Value))
	}
	if tensors {
		fmt.Fprintln(w)
		for _, t := range d.Tensors {
			fmt.Fprintf(w, "%-45s %-6s %-18s %12d bytes at %d\n", cli.Clean(t.Name), t.Type, format.Shape(t.Shape), t.Bytes, t.Offset)
		}
	}
	if d.Mapping != nil {
		d.printMapping(w)
	}
}

// printMapping prints a mapping to fill in, and names the tensors that have no
// place yet.
func (d *description) printMapping(w io.Writer) {
	var lost []string
	for _, r := range d.Mapping.Tensors {
		if r.To[0] == "" {
			lost = append(lost, r.From[0])
		}
	}
	fmt.Fprintf(w, "\n%d names without a place in a known layout ({} is a number):\n", len(lost))
	for _, name := range lost {
		fmt.Fprintf(w, "  %-50s %s\n", cli.Clean(name), d.shapeOf(name))
	}
	fmt.Fprintln(w, "\nA mapping to fill in, for fpaconv --map (docs/mapping.md):")
	encodeJSON(w, d.Mapping) //nolint:errcheck // the writer below keeps its error
}

// shapeOf is the shape of the first tensor whose name has numbers for {}.
func (d *description) shapeOf(name string) string {
	first := strings.ReplaceAll(name, "{}", "0")
	for _, t := range d.Tensors {
		if t.Name == first {
			return fmt.Sprintf("%s %s", format.Shape(t.Shape), t.Type)
		}
	}
	return ""
}

// short is a value in at most a line: long strings and arrays are cut.
func short(v any) string {
	const most = 80
	s := fmt.Sprint(v)
	if raw, ok := v.(json.RawMessage); ok {
		s = string(raw)
	}
	if r := []rune(s); len(r) > most {
		s = fmt.Sprintf("%s… (%d bytes)", string(r[:most]), len(s))
	}
	return cli.Clean(s)
}
