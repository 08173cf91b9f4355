package model_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// bounded is a configuration with bounds on the logits, whose values do not matter.
func bounded(c model.Config) model.Config {
	c.LogitBound = slices.Repeat([]float32{1.25}, c.Blocks*c.Heads)
	return c
}

// onnxModel is what an exporter writes of a model, without the graph's nodes.
func onnxModel(t testing.TB, c model.Config) *onnx.Model {
	t.Helper()
	parts := modeltest.Random(c, 5, true)
	m := &onnx.Model{IRVersion: 8, Opsets: []onnx.Opset{{Version: 17}}, Graph: &onnx.Graph{Name: "decoder"}}
	m.Metadata = []onnx.Prop{{Key: gguf.KeyArchitecture, Value: gguf.ArchFPA}}
	count := gguf.KV{Key: model.KeyONNXTensors, Value: gguf.ValueOf(uint32(len(parts.Tensors)))}
	for _, kv := range append(c.KV(), count) {
		value, err := json.Marshal(kv.Value.Any())
		if err != nil {
			t.Fatal(err)
		}
		m.Metadata = append(m.Metadata, onnx.Prop{Key: kv.Key, Value: string(value)})
	}
	m.Graph.Initializers = []*onnx.Tensor{onnx.Int64Tensor("shape", []int64{1, 2})} // a constant of the graph
	for _, x := range parts.Tensors {
		m.Graph.Initializers = append(m.Graph.Initializers, &onnx.Tensor{Name: x.Name, Type: onnx.Float, Dims: x.Shape, Raw: x.Data})
	}
	return m
}

func TestFromONNX(t *testing.T) {
	c := bounded(modeltest.Config())
	got, err := model.FromONNX(onnxModel(t, c))
	if err != nil {
		t.Fatal(err)
	}
	if want := modeltest.Random(c, 5, true); !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, expected %+v", got.Config, want.Config)
	}
}

// TestFromONNXMalformed changes one thing a case.
func TestFromONNXMalformed(t *testing.T) {
	set := func(key, value string) func(*onnx.Model) {
		return func(m *onnx.Model) {
			for i := range m.Metadata {
				if m.Metadata[i].Key == key {
					m.Metadata[i].Value = value
					return
				}
			}
			panic("no key " + key)
		}
	}
	without := func(key string) func(*onnx.Model) {
		return func(m *onnx.Model) {
			m.Metadata = slices.DeleteFunc(m.Metadata, func(p onnx.Prop) bool { return p.Key == key })
		}
	}
	tensor := func(name string, change func(*onnx.Tensor)) func(*onnx.Model) {
		return func(m *onnx.Model) { change(m.Graph.Initializer(name)) }
	}
	for _, c := range []struct {
		name   string
		change func(*onnx.Model)
		says   string
	}{
		{"another program's", func(m *onnx.Model) { m.Metadata = nil }, "not an ONNX model that fpaconv wrote"},
		{"another architecture", set(gguf.KeyArchitecture, "llama"), `"llama" cannot be read`},
		{"key twice", func(m *onnx.Model) { m.Metadata = append(m.Metadata, m.Metadata[1]) }, "twice"},
		{"no size", without("fpa.block_count"), "fpa.block_count: the key is missing"},
		{"null", set("fpa.vocab_size", "null"), "expected a whole number"},
		{"fraction", set("fpa.vocab_size", "67.5"), "expected a whole number"},
		{"negative", set("fpa.vocab_size", "-1"), "expected a whole number"},
		{"too large", set("fpa.vocab_size", "4294967296"), "expected a whole number"},
		{"text for a number", set("fpa.vocab_size", `"67"`), "expected a whole number"},
		{"not JSON", set("fpa.vocab_size", "67 68"), "expected a whole number"},
		{"more layers than tensors", func(m *onnx.Model) {
			without("fpa.attention.logit_bound")(m)
			set("fpa.block_count", "200000000")(m)
		}, "tensors in all"},
		{"number for a text", set("fpa.attention.field.kind", "1"), "expected a text"},
		{"unknown kind", set("fpa.attention.field.kind", `"jump"`), `"jump" is not known`},
		{"number for true", set("fpa.attention.output_norm", "1"), "expected true or false"},
		{"infinite", set("fpa.attention.layer_norm_rms_epsilon", "1e999"), "expected a number"},
		{"null in a list", set("fpa.attention.logit_bound", "[1,null]"), "has a null"},
		{"short list", set("fpa.attention.logit_bound", "[1]"), "has 1 entries"},
		{"no count", without(model.KeyONNXTensors), "another tool has changed"},
		{"a bias less", func(m *onnx.Model) {
			m.Graph.Initializers = slices.DeleteFunc(m.Graph.Initializers, func(x *onnx.Tensor) bool { return x.Name == "blk.0.attn_q.bias" })
		}, "another tool has changed"},
		{"quantised", tensor("blk.0.attn_q.weight", func(x *onnx.Tensor) { x.Type = onnx.Int4 }), "INT4"},
		{"not opened", tensor("blk.0.attn_q.weight", func(x *onnx.Tensor) { x.Raw, x.External = nil, &onnx.External{Location: "x"} }), "blk.0.attn_q.weight"},
	} {
		m := onnxModel(t, bounded(modeltest.Config()))
		c.change(m)
		if _, err := model.FromONNX(m); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, expected %q", c.name, err, c.says)
		}
	}
	// What FromONNX leaves to Build.
	m := onnxModel(t, bounded(modeltest.Config()))
	tensor("blk.0.attn_q.weight", func(x *onnx.Tensor) { x.Dims = []int64{36, 40} })(m)
	p, err := model.FromONNX(m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := model.Build(p.Config, p.Tensors); err == nil || !strings.Contains(err.Error(), "shape") {
		t.Errorf("another shape: error %v", err)
	}
}

// TestOpenONNX opens files: under any name, in a folder, and with options.
func TestOpenONNX(t *testing.T) {
	dir := t.TempDir()
	var b bytes.Buffer
	if err := onnx.Encode(&b, onnxModel(t, bounded(modeltest.Config()))); err != nil {
		t.Fatal(err)
	}
	put := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	put("a/model.onnx", b.Bytes())
	for _, path := range []string{put("model.bin", b.Bytes()), filepath.Join(dir, "a"), filepath.Join(dir, "a", "model.onnx")} {
		f, err := model.Open(path, model.OpenOptions{})
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := f.Build(); err != nil || f.Format() != "onnx" || len(f.DataFiles()) != 1 {
			t.Errorf("%s: %v, %s, %v", path, err, f.Format(), f.DataFiles())
		}
		if _, err := f.Tokenizer(); !errors.Is(err, model.ErrNoTokenizer) {
			t.Errorf("%s: tokenizer: %v", path, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	tokenizer, err := os.ReadFile("../../testmodels/passkey/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	put("a/tokenizer.json", tokenizer)
	f, err := model.Open(filepath.Join(dir, "a"), model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// It is the tokenizer of a model of 596 tokens, this one has 67.
	if _, err := f.Tokenizer(); err == nil || !strings.Contains(err.Error(), "has only 67 embeddings") {
		t.Errorf("tokenizer: %v", err)
	}
	for _, c := range []struct {
		path string
		o    model.OpenOptions
		says string
	}{
		{"a", model.OpenOptions{ConfigPath: "x"}, "leave --config"},
		{"a", model.OpenOptions{TokenizerPath: dir}, "found no tokenizer"},
		{"a", model.OpenOptions{TokenizerPath: filepath.Join(dir, "absent")}, "absent"},
		{filepath.Base(put("empty.onnx", nil)), model.OpenOptions{}, "empty.onnx"},
		{filepath.Base(put("cut.onnx", b.Bytes()[:b.Len()-3])), model.OpenOptions{}, "cut.onnx"},
	} {
		if _, err := model.Open(filepath.Join(dir, c.path), c.o); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %+v: error %v, expected %q", c.path, c.o, err, c.says)
		}
	}
}

// TestKindOf tells files by their first bytes, and folders by what is in them.
func TestKindOf(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name, head string
		want       model.Kind
	}{
		{"a.gguf", "GGUF\x03\x00\x00\x00\x00", model.KindGGUF},
		{"a.onnx", "GGUF\x03\x00\x00\x00\x00", model.KindGGUF},
		{"b.gguf", "", model.KindGGUF},
		{"b.ONNX", "", model.KindONNX},
		{"a.bin", "\x08\x0a\x12\x07fpaconv", model.KindONNX},
		{"a.safetensors", "\x08\x12\x00\x00\x00\x00\x00\x00{", model.KindCheckpoint},
		{"b.safetensors", "\x08\x12\x3a\x00\x00\x00\x00\x00{", model.KindCheckpoint},
		{"a.pt", "PK\x03\x04\x00\x00\x08\x08\x00", model.KindCheckpoint},
		{"one/model.onnx", "", model.KindONNX},
		{"two/model.onnx", "", model.KindONNX},
		{"two/model.safetensors", "", model.KindCheckpoint},
		{"three/decoder.onnx", "", model.KindONNX},
	} {
		path := filepath.Join(dir, c.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(c.head), 0o666); err != nil {
			t.Fatal(err)
		}
		if kind, file, err := model.KindOf(path); kind != c.want || file != path || err != nil {
			t.Errorf("%s: %s, %s, %v, expected %s", c.name, kind, file, err, c.want)
		}
	}
	for name, want := range map[string]model.Kind{"one": model.KindONNX, "two": model.KindCheckpoint, "three": model.KindCheckpoint} {
		file := filepath.Join(dir, name)
		if want == model.KindONNX {
			file = filepath.Join(file, "model.onnx")
		}
		if kind, got, err := model.KindOf(filepath.Join(dir, name)); kind != want || got != file || err != nil {
			t.Errorf("%s: %s, %s, %v, expected %s", name, kind, got, err, want)
		}
	}
	if _, _, err := model.KindOf(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// FuzzFromONNX reads any file: errors are those of formats, and what is read can be
// built or is refused.
func FuzzFromONNX(f *testing.F) {
	c := modeltest.Config()
	c.VocabSize, c.Hidden, c.FeedForward, c.Blocks = 5, 4, 2, 1
	c.Heads, c.KVHeads, c.FieldHeads, c.KeyDim, c.ValDim = 1, 1, 1, 2, 2
	m := onnxModel(f, c)
	var b bytes.Buffer
	if err := onnx.Encode(&b, m); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	m.Graph.Initializers = m.Graph.Initializers[:3]
	b.Reset()
	if err := onnx.Encode(&b, m); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := onnx.Parse(data, format.Limits{})
		if err != nil {
			return
		}
		p, err := model.FromONNX(m)
		if err == nil {
			_, err = model.Build(p.Config, p.Tensors)
		}
		var wrong *format.FormatError
		var unsupported *format.UnsupportedError
		if err != nil && !errors.As(err, &wrong) && !errors.As(err, &unsupported) {
			t.Errorf("error %T: %v", err, err)
		}
	})
}
