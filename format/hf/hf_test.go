package hf

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/quant"
)

// folder writes files into a new folder. A value is the text of a file; or,
// for names in .safetensors, the names of its tensors, separated by blanks.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		var err error
		if strings.HasSuffix(name, ".safetensors") {
			err = safetensors.WriteFile(path, false, tensors(strings.Fields(content)...), nil)
		} else {
			err = os.WriteFile(path, []byte(content), 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// tensors makes a F32 vector of each name, holding the name's first byte.
func tensors(names ...string) []safetensors.Tensor {
	var list []safetensors.Tensor
	for _, name := range names {
		list = append(list, safetensors.Tensor{Name: name, DType: quant.F32, Shape: format.Shape{1}, Data: []byte{name[0], 0, 0, 0}})
	}
	return list
}

// index is an index.json of pairs of a tensor and a shard.
func index(pairs ...string) string {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	text, _ := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 8}, "weight_map": m})
	return string(text)
}

// The names of two shards.
const (
	shard1 = "model-00001-of-00002.safetensors"
	shard2 = "model-00002-of-00002.safetensors"
)

// mustOpen opens a checkpoint, closing it with the test.
func mustOpen(t *testing.T, path string, opts Options) *Checkpoint {
	t.Helper()
	c, err := Open(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// names of the tensors of a checkpoint, in its order.
func names(c *Checkpoint) string {
	var list []string
	for _, t := range c.Tensors() {
		list = append(list, t.Name)
	}
	return strings.Join(list, " ")
}

func TestOpenFolder(t *testing.T) {
	dir := folder(t, map[string]string{
		"model.safetensors":      "b a c",
		"config.json":            `{"model_type":"fpa"}`,
		"tokenizer.json":         `{"model":{"merges":[["a","b"]]}}`,
		"tokenizer_config.json":  `{"chat_template":"{{ x }}"}`,
		"generation_config.json": `{"eos_token_id":[1,2]}`,
		"merges.txt":             "#version: 0.2",
	})
	for _, path := range []string{dir, filepath.Join(dir, "model.safetensors")} {
		c := mustOpen(t, path, Options{})
		if names(c) != "a b c" || len(c.Shards()) != 1 || c.Shards()[0].Path() != filepath.Join(dir, "model.safetensors") {
			t.Errorf("tensors %s, %d shards", names(c), len(c.Shards()))
		}
		if b, ok := c.Lookup("b"); !ok || b.Data[0] != 'b' {
			t.Errorf("Lookup(b) = %+v, %v", b, ok)
		}
		if _, ok := c.Lookup("x"); ok {
			t.Error("Lookup(x) found a tensor")
		}
		if c.Dir() != dir || c.ConfigPath() != filepath.Join(dir, "config.json") || string(c.ConfigJSON()) != `{"model_type":"fpa"}` {
			t.Errorf("dir %q, config %q %s", c.Dir(), c.ConfigPath(), c.ConfigJSON())
		}
		if kind, err := c.Config().String("model_type", ""); err != nil || kind != "fpa" {
			t.Errorf("model_type %q, %v", kind, err)
		}
		if string(c.TokenizerJSON()) != `{"model":{"merges":[["a","b"]]}}` {
			t.Errorf("tokenizer %s", c.TokenizerJSON())
		}
		if c.ChatTemplate() != "{{ x }}" || string(c.GenerationConfig()) != `{"eos_token_id":[1,2]}` || c.TokenizerConfig() == nil {
			t.Errorf("template %q, generation %s, tokenizer config %s", c.ChatTemplate(), c.GenerationConfig(), c.TokenizerConfig())
		}
		if merges, err := c.ReadTokenizerFile("merges.txt"); err != nil || string(merges) != "#version: 0.2" {
			t.Errorf("merges.txt: %q, %v", merges, err)
		}
		if missing, err := c.ReadTokenizerFile("vocab.json"); err != nil || missing != nil {
			t.Errorf("vocab.json: %q, %v", missing, err)
		}
		if _, err := c.ReadTokenizerFile("../x"); err == nil {
			t.Error("ReadTokenizerFile left the folder")
		}
	}
}

func TestOpenMinimal(t *testing.T) {
	c := mustOpen(t, folder(t, map[string]string{"weights.safetensors": "a", "config.json": `{}`}), Options{})
	if names(c) != "a" || c.TokenizerJSON() != nil || c.TokenizerConfig() != nil || c.GenerationConfig() != nil || c.ChatTemplate() != "" {
		t.Errorf("%s %q %q %q %q, expected one tensor and nothing else", names(c), c.TokenizerJSON(), c.TokenizerConfig(), c.GenerationConfig(), c.ChatTemplate())
	}
}

func TestOptions(t *testing.T) {
	dir := folder(t, map[string]string{"model.safetensors": "a", "config.json": `{"x":1}`, "tokenizer.json": "inner"})
	other := folder(t, map[string]string{"my.json": `{"x":2}`, "tok.json": "outer", "tokenizer.json": "folder", "tokenizer_config.json": `{"chat_template":"T"}`})
	c := mustOpen(t, dir, Options{ConfigPath: filepath.Join(other, "my.json"), TokenizerPath: filepath.Join(other, "tok.json")})
	if string(c.ConfigJSON()) != `{"x":2}` || c.ConfigPath() != filepath.Join(other, "my.json") || string(c.TokenizerJSON()) != "outer" || c.ChatTemplate() != "T" {
		t.Errorf("config %s, tokenizer %s, template %q", c.ConfigJSON(), c.TokenizerJSON(), c.ChatTemplate())
	}
	c = mustOpen(t, dir, Options{TokenizerPath: other})
	if string(c.TokenizerJSON()) != "folder" {
		t.Errorf("tokenizer of a folder: %s", c.TokenizerJSON())
	}
	c = mustOpen(t, dir, Options{TokenizerPath: folder(t, map[string]string{"vocab.json": "elsewhere"})})
	if vocab, err := c.ReadTokenizerFile("vocab.json"); err != nil || string(vocab) != "elsewhere" || c.TokenizerJSON() != nil {
		t.Errorf("tokenizer of a folder: vocab.json %q, %v, tokenizer.json %q", vocab, err, c.TokenizerJSON())
	}
	for _, opts := range []Options{{ConfigPath: filepath.Join(other, "none")}, {TokenizerPath: filepath.Join(other, "none")}} {
		if _, err := Open(dir, opts); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%+v: %v, expected a missing file", opts, err)
		}
	}
}

func TestMetadataConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	write := func(metadata map[string]string) {
		t.Helper()
		if err := safetensors.WriteFile(path, true, tensors("a"), metadata); err != nil {
			t.Fatal(err)
		}
	}
	write(map[string]string{"config": `{"hidden_size": 8}`, "format": "pt"})
	c := mustOpen(t, path, Options{})
	if n, err := c.Config().RequiredInt("hidden_size"); err != nil || n != 8 {
		t.Errorf("hidden_size %d, %v", n, err)
	}
	if c.Metadata()["format"] != "pt" || c.ConfigPath() != path+` (metadata "config")` {
		t.Errorf("metadata %q, config of %q", c.Metadata(), c.ConfigPath())
	}
	write(map[string]string{"config": `[]`})
	if _, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), `(metadata "config"): at byte 0: found an array, expected a JSON object`) {
		t.Errorf("array as configuration: %v", err)
	}
	write(nil)
	if _, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), `config.json: missing, and the metadata of x.safetensors has no "config"`) {
		t.Errorf("no configuration: %v", err)
	}
}

func TestSharded(t *testing.T) {
	files := map[string]string{
		"config.json": `{}`, shard1: "c a", shard2: "b",
		indexFile: index("a", shard1, "b", shard2, "c", shard1),
	}
	dir := folder(t, files)
	for _, path := range []string{dir, filepath.Join(dir, indexFile)} {
		c := mustOpen(t, path, Options{})
		if names(c) != "a b c" || len(c.Shards()) != 2 {
			t.Fatalf("tensors %s, %d shards", names(c), len(c.Shards()))
		}
		for i, name := range []string{shard1, shard2} {
			if got := c.Shards()[i].Path(); got != filepath.Join(dir, name) {
				t.Errorf("shard %d is %s", i, got)
			}
		}
		for _, name := range []string{"a", "b", "c"} {
			if got, ok := c.Lookup(name); !ok || got.Data[0] != name[0] {
				t.Errorf("Lookup(%s) = %+v, %v", name, got, ok)
			}
		}
	}
	if _, err := Open(filepath.Join(dir, shard1), Options{}); err == nil || !strings.Contains(err.Error(), "is one shard of several") {
		t.Errorf("one shard: %v", err)
	}
	// As in transformers, a complete file comes first.
	files["model.safetensors"] = "whole"
	if c := mustOpen(t, folder(t, files), Options{}); names(c) != "whole" {
		t.Errorf("folder with both: %s", names(c))
	}
}

// The layout of the Hugging Face cache: all names are links to blobs outside
// of the snapshot's folder.
func TestSymlinkedCache(t *testing.T) {
	root := folder(t, map[string]string{
		"blobs/1.safetensors": "a", "blobs/2.safetensors": "b",
		"blobs/3": index("a", shard1, "b", shard2), "blobs/4": `{"x":1}`, "blobs/5": "tok",
	})
	snapshot := filepath.Join(root, "snapshots", "x")
	if err := os.MkdirAll(snapshot, 0o777); err != nil {
		t.Fatal(err)
	}
	link := func(name, blob string) {
		if err := os.Symlink(filepath.Join("..", "..", "blobs", blob), filepath.Join(snapshot, name)); err != nil {
			t.Skip("no symbolic links here:", err)
		}
	}
	link(shard1, "1.safetensors")
	link(indexFile, "3")
	link("config.json", "4")
	link("tokenizer.json", "5")
	link(shard2, "not yet there")
	if _, err := Open(snapshot, Options{}); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), shard2+" that it names is missing") {
		t.Errorf("a shard that is not downloaded: %v", err)
	}
	if err := os.Remove(filepath.Join(snapshot, shard2)); err != nil {
		t.Fatal(err)
	}
	link(shard2, "2.safetensors")
	for _, path := range []string{snapshot, filepath.Join(snapshot, indexFile)} {
		c := mustOpen(t, path, Options{})
		if names(c) != "a b" || string(c.ConfigJSON()) != `{"x":1}` || string(c.TokenizerJSON()) != "tok" {
			t.Errorf("tensors %s, config %s, tokenizer %s", names(c), c.ConfigJSON(), c.TokenizerJSON())
		}
	}
	link("model.safetensors", "gone")
	if _, err := Open(snapshot, Options{}); err == nil || !strings.Contains(err.Error(), "symbolic link to a file that does not exist") {
		t.Errorf("dangling model.safetensors: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string
		open  string // in the folder
		msg   string
	}{
		{"empty folder", nil, "", "found no weights, expected model.safetensors"},
		{"PyTorch only", map[string]string{"pytorch_model.bin": "x"}, "", "this is no PyTorch checkpoint"},
		{"two files", map[string]string{"x.safetensors": "a", "y.safetensors": "b"}, "", "found 2 .safetensors files"},
		{"shards without index", map[string]string{shard1: "a"}, "", "found 1 .safetensors files"},
		{"other file", map[string]string{"model.txt": "a"}, "model.txt", "expected a folder, a .safetensors file, a model"},
		{"weights are a folder", map[string]string{"model.safetensors/x": ""}, "", "is a directory, expected a regular file"},
		{"no config", map[string]string{"model.safetensors": "a"}, "", `config.json: missing, and the metadata`},
		{"config null", map[string]string{"model.safetensors": "a", "config.json": "null"}, "", "config.json: at byte 0: found null, expected a JSON object"},
		{"config array", map[string]string{"model.safetensors": "a", "config.json": "[]"}, "", "found an array, expected a JSON object"},
		{"config empty", map[string]string{"model.safetensors": "a", "config.json": ""}, "", "found the end of the text"},
		{"config is a folder", map[string]string{"model.safetensors": "a", "config.json/x": ""}, "", "is a directory"},
		{"config key twice", map[string]string{"model.safetensors": "a", "config.json": `{"x":1,"x":2}`}, "", `config.json: at byte 7: key "x" is given twice`},
		{"tokenizer config array", map[string]string{"model.safetensors": "a", "config.json": "{}", "tokenizer_config.json": "[]"}, "", "tokenizer_config.json: at byte 0: found an array"},
		{"template number", map[string]string{"model.safetensors": "a", "config.json": "{}", "tokenizer_config.json": `{"chat_template":1}`}, "", "chat_template: found 1, expected a string"},
		{"template list of numbers", map[string]string{"model.safetensors": "a", "config.json": "{}", "tokenizer_config.json": `{"chat_template":[1]}`}, "", "chat_template[0]: found 1, expected an object"},
		{"template without text", map[string]string{"model.safetensors": "a", "config.json": "{}", "tokenizer_config.json": `{"chat_template":[{"name":"default"}]}`}, "", "chat_template[0].template: is missing"},
		{"template not UTF-8", map[string]string{"model.safetensors": "a", "config.json": "{}", "chat_template.jinja": "\xff"}, "", "chat_template.jinja: is not UTF-8"},
		{"index null", map[string]string{indexFile: "null"}, "", "index.json: at byte 0: found null, expected an object"},
		{"index empty object", map[string]string{indexFile: "{}"}, "", "weight_map: is missing or empty"},
		{"index empty map", map[string]string{indexFile: `{"weight_map":{}}`}, "", "weight_map: is missing or empty"},
		{"index map a list", map[string]string{indexFile: `{"weight_map":["a"]}`}, "", "at byte 14: found an array, expected an object"},
		{"index number", map[string]string{indexFile: `{"weight_map":{"a":1}}`}, "", `weight_map["a"]: found a number, expected the name of a shard`},
		{"index tensor twice", map[string]string{indexFile: `{"weight_map":{"a":"x.safetensors","a":"y.safetensors"}}`}, "", `key "a" is given twice`},
		{"index PyTorch", map[string]string{indexFile: index("a", "pytorch_model.bin")}, "", `found "pytorch_model.bin", expected a .safetensors file`},
		{"index cut", map[string]string{indexFile: `{"weight_map":{"a":"x.safe`}, "", "string without a closing quote"},
		{"shard missing", map[string]string{indexFile: index("a", shard1, "b", shard2), shard1: "a", "config.json": "{}"}, "", "the shard " + shard2 + " that it names is missing"},
		{"tensor in index only", map[string]string{indexFile: index("a", shard1, "b", shard1), shard1: "a", "config.json": "{}"}, "", `tensor "b": is not in the shard ` + shard1},
		{"tensor in shard only", map[string]string{indexFile: index("a", shard1), shard1: "a b", "config.json": "{}"}, "", shard1 + `: tensor "b": is not in model.safetensors.index.json`},
		{"tensor in two shards", map[string]string{indexFile: index("a", shard1, "b", shard2), shard1: "a", shard2: "a b", "config.json": "{}"}, "", shard2 + `: tensor "a": is here, but the index places it in ` + shard1},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := folder(t, test.files)
			c, err := Open(filepath.Join(dir, test.open), Options{})
			if err == nil {
				t.Fatalf("opened: %s", names(c))
			}
			if !strings.Contains(err.Error(), test.msg) || !strings.Contains(err.Error(), dir) {
				t.Errorf("%v, expected the path and %q", err, test.msg)
			}
		})
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none"), Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing folder: %v", err)
	}
}

// badNames are names of shards that would leave the folder of the index, on
// one system or another.
var badNames = []string{
	"../x.safetensors", "a/../../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..", ".", "",
	`..\x.safetensors`, `sub\x.safetensors`, `C:\x.safetensors`, "C:x.safetensors", `\\host\share\x.safetensors`,
	"file:///x.safetensors", "x.safetensors:stream", "x\x00.safetensors", "..safetensors",
}

func TestIndexCannotLeaveFolder(t *testing.T) {
	root := folder(t, map[string]string{"x.safetensors": "a", "in/config.json": "{}", "in/sub/x.safetensors": "a"})
	dir := filepath.Join(root, "in")
	for _, name := range badNames {
		if err := os.WriteFile(filepath.Join(dir, indexFile), []byte(index("a", name)), 0o666); err != nil {
			t.Fatal(err)
		}
		_, err := Open(dir, Options{})
		var fe *format.FormatError
		if !errors.As(err, &fe) || !strings.Contains(err.Error(), "expected a plain file name") {
			t.Errorf("%q: %v, expected a refusal of the name", name, err)
		}
	}
}

func TestChatTemplate(t *testing.T) {
	base := map[string]string{"model.safetensors": "a", "config.json": "{}"}
	for _, test := range []struct{ jinja, config, want string }{
		{"", `{}`, ""},
		{"", `{"chat_template":null}`, ""},
		{"", `{"chat_template":"one"}`, "one"},
		{"", `{"chat_template":[]}`, ""},
		{"", `{"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]}`, "d"},
		{"", `{"chat_template":[{"name":"tool_use","template":"t"}]}`, ""},
		{"from jinja\n", `{"chat_template":"one"}`, "from jinja\n"},
	} {
		files := map[string]string{"tokenizer_config.json": test.config}
		for name, text := range base {
			files[name] = text
		}
		if test.jinja != "" {
			files["chat_template.jinja"] = test.jinja
		}
		if got := mustOpen(t, folder(t, files), Options{}).ChatTemplate(); got != test.want {
			t.Errorf("%+v: got %q", test, got)
		}
	}
}

// A configuration that lies about the element type changes nothing: types are
// those of the tensors.
func TestLyingDType(t *testing.T) {
	c := mustOpen(t, folder(t, map[string]string{"model.safetensors": "a", "config.json": `{"torch_dtype":"float16"}`}), Options{})
	if a, _ := c.Lookup("a"); a.DType != quant.F32 {
		t.Errorf("type %v, expected F32", a.DType)
	}
}

func TestLimits(t *testing.T) {
	dir := folder(t, map[string]string{"model.safetensors": "a b", "config.json": `{"x":{"y":1}}`, "tokenizer.json": strings.Repeat("x", 2000)})
	for _, test := range []struct {
		lim format.Limits
		msg string
	}{
		{format.Limits{Tensors: 1}, "more than 1 tensors"},
		{format.Limits{NestingDepth: 1}, "nested more than 1 deep"},
		{format.Limits{HeaderBytes: 1000}, "tokenizer.json: the file has 2000 bytes, expected at most 1000"},
	} {
		if _, err := Open(dir, Options{Limits: test.lim}); err == nil || !strings.Contains(err.Error(), test.msg) {
			t.Errorf("%+v: %v, expected %q", test.lim, err, test.msg)
		}
	}
}

// Shards written by other software, with the values it reads from them.
func TestGolden(t *testing.T) {
	var want struct {
		Tensors map[string]struct {
			DType  string
			Shape  format.Shape
			SHA256 string `json:"sha256_f32le"`
		}
	}
	text, err := os.ReadFile("testdata/st_sharded/expected.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	c := mustOpen(t, "testdata/st_sharded/model.safetensors.index.json", Options{ConfigPath: "testdata/fox_config.json"})
	if len(c.Tensors()) != len(want.Tensors) || len(want.Tensors) != 3 {
		t.Fatalf("%d tensors, expected %d", len(c.Tensors()), len(want.Tensors))
	}
	for name, w := range want.Tensors {
		got, ok := c.Lookup(name)
		if !ok || got.DType.String() != w.DType || !got.Shape.Equal(w.Shape) {
			t.Fatalf("%s: %+v, %v", name, got, ok)
		}
		n, _ := got.Shape.Elements()
		values := make([]float32, n)
		if err := quant.Decode(values, got.DType, got.Data); err != nil {
			t.Fatal(err)
		}
		h := sha256.New()
		for _, v := range values {
			h.Write(binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)))
		}
		if hash := hex.EncodeToString(h.Sum(nil)); hash != w.SHA256 {
			t.Errorf("%s: values have hash %s, expected %s", name, hash, w.SHA256)
		}
	}
}

// The shared checkpoints: all open, and the sharded copy of each equals the
// single file.
func TestSharedCheckpoints(t *testing.T) {
	shared := os.Getenv("FPA_SHARED")
	if shared == "" {
		t.Skip("FPA_SHARED is not set")
	}
	cases, err := filepath.Glob(filepath.Join(shared, "cases", "fox", "*", "f32"))
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases/fox in FPA_SHARED: %v", err)
	}
	for _, single := range cases {
		dir := filepath.Dir(single)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			one := mustOpen(t, single, Options{})
			sharded := mustOpen(t, filepath.Join(dir, "f32_sharded"), Options{})
			half := mustOpen(t, filepath.Join(dir, "bf16"), Options{})
			if len(sharded.Shards()) != 2 || names(one) != names(sharded) || names(one) != names(half) {
				t.Fatalf("%d shards, %s\nagainst %s\nand %s", len(sharded.Shards()), names(sharded), names(one), names(half))
			}
			for i, a := range one.Tensors() {
				b, h := sharded.Tensors()[i], half.Tensors()[i]
				if !bytes.Equal(a.Data, b.Data) || a.DType != quant.F32 || b.DType != quant.F32 || !slices.Equal(a.Shape, b.Shape) {
					t.Errorf("%s differs between the single file and the shards", a.Name)
				}
				if h.DType != quant.BF16 || !slices.Equal(a.Shape, h.Shape) || 2*len(h.Data) != len(a.Data) {
					t.Errorf("%s: %v %v in bf16, %v %v in f32", a.Name, h.DType, h.Shape, a.DType, a.Shape)
				}
			}
			for _, c := range []*Checkpoint{one, sharded, half} {
				if n, err := c.Config().RequiredInt("num_hidden_layers"); err != nil || n < 1 {
					t.Errorf("num_hidden_layers %d, %v", n, err)
				}
				if _, err := c.Config().Float("hidden_ratio", 4); err != nil {
					t.Error(err)
				}
				if c.GenerationConfig() == nil || c.Metadata()["format"] != "pt" {
					t.Errorf("generation config %q, metadata %q", c.GenerationConfig(), c.Metadata())
				}
			}
		})
	}
}

// FuzzIndex: whatever an index says, no shard has a name that leads elsewhere.
func FuzzIndex(f *testing.F) {
	text, err := os.ReadFile("testdata/st_sharded/model.safetensors.index.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	for _, name := range badNames {
		f.Add([]byte(index("a", name)))
	}
	for _, seed := range []string{`{}`, `null`, `{"weight_map":{}}`, `{"weight_map":{"a":1}}`, `{"weight_map":{"a":"x.safetensors"},"weight_map":{}}`, `{"metadata":[[[]]],"weight_map":{"":"x.safetensors"}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		index, err := parseIndex(data, "i.json", format.Limits{})
		if err != nil {
			var fe *format.FormatError
			if !errors.As(err, &fe) || fe.Path != "i.json" || fe.Offset > int64(len(data)) {
				t.Fatalf("%#v, expected a FormatError within the text", err)
			}
			return
		}
		var members map[string]json.RawMessage // a struct would match keys of other case too
		var want map[string]string
		if err := json.Unmarshal(data, &members); err != nil {
			t.Fatalf("accepted, but encoding/json says %v", err)
		}
		if err := json.Unmarshal(members["weight_map"], &want); err != nil {
			t.Fatalf("accepted, but encoding/json says %v", err)
		}
		if len(index) == 0 || len(index) != len(want) {
			t.Fatalf("read %q, encoding/json %q", index, want)
		}
		for tensor, shard := range index {
			if want[tensor] != shard {
				t.Fatalf("%q is in %q, encoding/json says %q", tensor, shard, want[tensor])
			}
			if filepath.Dir(filepath.Join("dir", shard)) != "dir" || strings.ContainsAny(shard, `/\:`) {
				t.Fatalf("shard %q is not in the folder", shard)
			}
		}
	})
}
