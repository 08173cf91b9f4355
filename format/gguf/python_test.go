package gguf

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/firstpassage/fpa/format"
)

// findPython gives the interpreter, and why it cannot be used, if so.
var findPython = sync.OnceValues(func() (interpreter, problem string) {
	interpreter = os.Getenv("FPA_PYTHON")
	if interpreter == "" {
		interpreter = "python3"
	}
	if out, err := exec.Command(interpreter, "-c", "import gguf").CombinedOutput(); err != nil {
		problem = fmt.Sprintf("%s (FPA_PYTHON) cannot import gguf: %s: %.200s", interpreter, err, out)
	}
	return interpreter, problem
})

// python is the interpreter that has the package gguf. Without one the test
// is skipped, or fails when FPA_REQUIRE_ORACLES is 1.
func python(t *testing.T) string {
	t.Helper()
	interpreter, problem := findPython()
	if problem == "" {
		return interpreter
	}
	if os.Getenv("FPA_REQUIRE_ORACLES") == "1" {
		t.Fatal(problem)
	}
	t.Skip(problem)
	return ""
}

// script runs a script of testdata and gives its output.
func script(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(python(t), append([]string{filepath.Join("testdata", name)}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %s\n%s", name, err, &stderr)
	}
	return out
}

// checkPythonFiles reads the files that testdata/make.py writes.
func checkPythonFiles(t *testing.T, folder string) {
	// The Python package cannot write these.
	notInPython := []string{"a.none", "a.nested"}
	kv, tensors := allKinds(t)
	for name, alignment := range map[string]int64{"all.gguf": 32, "align128.gguf": 128} {
		f, err := Open(filepath.Join(folder, name))
		if err != nil {
			t.Error(err)
			continue
		}
		defer f.Close()
		if f.Alignment() != alignment {
			t.Errorf("%s: alignment %d, expected %d", name, f.Alignment(), alignment)
		}
		for _, want := range kv {
			if slices.Contains(notInPython, want.Key) {
				continue
			}
			if got, ok := f.Lookup(want.Key); !ok || !reflect.DeepEqual(got, want.Value) {
				t.Errorf("%s: key %s: %s %s, expected %s %s", name, want.Key, got.TypeName(), got, want.Value.TypeName(), want.Value)
			}
		}
		for _, want := range tensors {
			if want.Type == GGMLQ8_1 {
				continue
			}
			got, ok := f.Tensor(want.Name)
			if !ok || got.Type != want.Type || got.DType != want.DType || !got.Shape.Equal(want.Shape) {
				t.Errorf("%s: tensor %+v, expected %+v", name, got, want)
			} else if !bytes.Equal(f.Data(got), content(got)) {
				t.Errorf("%s: tensor %s: other data", name, got.Name)
			}
		}
	}

	f, err := Open(filepath.Join(folder, "split-00001-of-00003.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if name, _, err := f.Str(KeyName); name != "parts" || err != nil || len(f.Tensors()) != 5 {
		t.Errorf("split: name %q, %v, %d tensors", name, err, len(f.Tensors()))
	}
	for _, info := range f.Tensors() {
		if !bytes.Equal(f.Data(info), content(info)) {
			t.Errorf("split: tensor %s: other data", info.Name)
		}
	}
}

// The checked-in files were written by version 0.19 of the package.
func TestReadPythonFiles(t *testing.T) { checkPythonFiles(t, filepath.Join("testdata", "python")) }

// The same with the version that is installed.
func TestReadFreshPythonFiles(t *testing.T) {
	dir := t.TempDir()
	script(t, "make.py", dir)
	checkPythonFiles(t, dir)
}

// dumped is the output of testdata/dump.py.
type dumped struct {
	Alignment int64
	Fields    []struct {
		Key    string
		Types  []string
		Values []string // hex, an element each
	}
	Tensors []struct {
		Name, Type, SHA256 string
		Ne                 []int64
		Offset             int64
	}
}

// pythonTypes are the package's names of the value types.
var pythonTypes = [numTypes]string{"UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "FLOAT32", "BOOL", "STRING", "ARRAY", "UINT64", "INT64", "FLOAT64"}

// elements are the bytes of a value as the package lists them: one piece a
// scalar, string or element.
func elements(v Value) []string {
	if s, ok := v.Str(); ok {
		return []string{hex.EncodeToString([]byte(s))}
	}
	if list, ok := v.Strings(); ok {
		var out []string
		for _, s := range list {
			out = append(out, hex.EncodeToString([]byte(s)))
		}
		return out
	}
	b := appendValue(nil, v)
	size := len(b)
	if n, ok := v.Len(); ok {
		b = b[12:] // after the element type and the length
		size = len(b) / max(n, 1)
	}
	var out []string
	for ; len(b) > 0; b = b[size:] {
		out = append(out, hex.EncodeToString(b[:size]))
	}
	return out
}

// What the Writer writes the Python package reads: every key with its type
// and value, every tensor with its type, shape, place and bytes.
func TestPythonReads(t *testing.T) {
	python(t)
	kv, tensors := allKinds(t)
	kv = slices.DeleteFunc(kv, func(e KV) bool { return e.Key == "a.nested" }) // beyond the package
	tensors = slices.DeleteFunc(tensors, func(i TensorInfo) bool { return i.Type == GGMLQ8_1 })
	for _, alignment := range []uint32{32, 64} {
		if alignment != DefaultAlignment {
			kv = append(kv, KV{KeyAlignment, ValueOf(alignment)})
		}
		path := filepath.Join(t.TempDir(), "model.gguf")
		writeFile(t, path, kv, tensors)
		checkDump(t, path, kv, int64(alignment))
	}

	dir := t.TempDir()
	splitModel(t, dir, "m", "w")
	for no := range 3 {
		want, err := SplitKV([]KV{{KeyArchitecture, ValueOf("test")}}, no, 3, 6)
		if err != nil {
			t.Fatal(err)
		}
		checkDump(t, filepath.Join(dir, SplitName("m", no, 3)), want, 32)
	}
}

// checkDump compares what the package reads from the file at path with kv,
// and with the tensors that this package reads from it.
func checkDump(t *testing.T, path string, kv []KV, alignment int64) {
	t.Helper()
	var got dumped
	if err := json.Unmarshal(script(t, "dump.py", path), &got); err != nil {
		t.Fatal(err)
	}
	if got.Alignment != alignment {
		t.Errorf("alignment %d, expected %d", got.Alignment, alignment)
	}
	if len(got.Fields) != len(kv) {
		t.Fatalf("%d fields, expected %d", len(got.Fields), len(kv))
	}
	for i, want := range kv {
		var types []string
		typ, _ := want.Value.Type()
		types = append(types, pythonTypes[typ])
		n, _ := want.Value.Len()
		if elem, ok := want.Value.Elem(); ok && n > 0 { // of an empty array the package tells no type
			types = append(types, pythonTypes[elem])
		}
		f := got.Fields[i]
		if f.Key != want.Key || !slices.Equal(f.Types, types) || !slices.Equal(f.Values, elements(want.Value)) {
			t.Errorf("field %d: %+v, expected %s %v %v", i, f, want.Key, types, elements(want.Value))
		}
	}

	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Read(bytes.NewReader(raw), int64(len(raw)), format.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Tensors) != len(f.Tensors()) {
		t.Fatalf("%d tensors, expected %d", len(got.Tensors), len(f.Tensors()))
	}
	for i, want := range f.Tensors() {
		x := got.Tensors[i]
		sum := sha256.Sum256(content(want))
		ne := slices.Clone([]int64(want.Shape))
		slices.Reverse(ne)
		if x.Name != want.Name || x.Type != want.Type.String() || !slices.Equal(x.Ne, ne) || x.Offset != want.Offset || x.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("tensor %d: %+v, expected %+v", i, x, want)
		}
	}
}
