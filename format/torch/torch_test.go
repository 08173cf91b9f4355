package torch

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
)

// expectedTensor is a tensor as testdata/make.py describes it.
type expectedTensor struct {
	Name, DType string
	Shape       []int64
	SHA256      string
}

// readJSON reads a file of testdata.
func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(path, err)
	}
}

// sameTensors compares tensors with their description.
func sameTensors(t *testing.T, got []Tensor, want []expectedTensor) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d tensors, expected %d", len(got), len(want))
		return
	}
	for i, w := range want {
		g := got[i]
		if g.Name != w.Name || g.DType.String() != w.DType || !g.Shape.Equal(w.Shape) {
			t.Errorf("tensor %d is %q %s %v, expected %q %s %v", i, g.Name, g.DType, g.Shape, w.Name, w.DType, w.Shape)
		}
		sum := sha256.Sum256(g.Data)
		if hex.EncodeToString(sum[:]) != w.SHA256 {
			t.Errorf("%s: the %d bytes differ", g.Name, len(g.Data))
		}
	}
}

// Every file that make.py wrote with PyTorch.
func TestFiles(t *testing.T) {
	var expected map[string]struct{ Tensors []expectedTensor }
	readJSON(t, "testdata/expected.json", &expected)
	if len(expected) < 20 {
		t.Fatalf("%d files", len(expected))
	}
	for name, want := range expected {
		t.Run(name, func(t *testing.T) {
			f, err := Open(filepath.Join("testdata", name))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			sameTensors(t, f.Tensors(), want.Tensors)
			for _, w := range want.Tensors {
				if g, ok := f.Lookup(w.Name); !ok || g.Name != w.Name {
					t.Errorf("Lookup(%q) = %q, %t", w.Name, g.Name, ok)
				}
			}
			if _, ok := f.Lookup("missing"); ok {
				t.Error("found a tensor that is missing")
			}
		})
	}
}

// sharedCase is the expected.json of a case.
type sharedCase struct {
	Open       string
	Tied       [][]string
	MustRefuse string   `json:"must_refuse"`
	MustNot    []string `json:"must_not_exist_after"`
	Tensors    map[string]struct {
		DType  string
		Shape  []int64
		SHA256 string `json:"sha256_f32le"`
	}
}

// testShared runs the cases pt_* below dir.
func testShared(t *testing.T, dir string) {
	cases, err := filepath.Glob(filepath.Join(dir, "pt_*"))
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases in %s (%v)", dir, err)
	}
	for _, dir := range cases {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var want sharedCase
			readJSON(t, filepath.Join(dir, "expected.json"), &want)
			for _, path := range want.MustNot {
				if exists(path) {
					t.Skip(path, "is there before the test")
				}
			}
			f, err := Open(filepath.Join(dir, want.Open))
			for _, path := range want.MustNot {
				if exists(path) {
					t.Error("executed: there is a file", path)
				}
			}
			if want.MustRefuse != "" {
				var unsafe *GlobalError
				if want.MustRefuse != "unsafe_pickle" || !errors.As(err, &unsafe) {
					t.Errorf("%v, expected the error of %s", err, want.MustRefuse)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			tensors, err := f.StateDict("")
			if err != nil || len(tensors) != len(want.Tensors) {
				t.Fatalf("%d tensors, expected %d: %v", len(tensors), len(want.Tensors), err)
			}
			for _, g := range tensors {
				w := want.Tensors[g.Name]
				if g.DType.String() != w.DType || !g.Shape.Equal(w.Shape) {
					t.Errorf("%s is %s %v, expected %s %v", g.Name, g.DType, g.Shape, w.DType, w.Shape)
				}
				if sum := sha256.Sum256(asF32(t, g)); hex.EncodeToString(sum[:]) != w.SHA256 {
					t.Errorf("%s: the values differ", g.Name)
				}
			}
			for _, names := range want.Tied {
				first, _ := f.Lookup(names[0])
				for _, name := range names[1:] {
					if other, _ := f.Lookup(name); &other.Data[0] != &first.Data[0] {
						t.Errorf("%s and %s do not share their bytes", names[0], name)
					}
				}
			}
		})
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// asF32 is the values as little-endian F32, any NaN as 0x7fc00000.
func asF32(t *testing.T, tensor Tensor) []byte {
	t.Helper()
	n, err := tensor.Shape.Elements()
	if err != nil {
		t.Fatal(err)
	}
	values := make([]float32, n)
	switch tensor.DType {
	case quant.I64:
		for i := range values {
			values[i] = float32(int64(binary.LittleEndian.Uint64(tensor.Data[8*i:])))
		}
	case quant.Bool:
		for i := range values {
			values[i] = float32(tensor.Data[i])
		}
	default:
		if err := quant.Decode(values, tensor.DType, tensor.Data); err != nil {
			t.Fatal(err)
		}
	}
	var out []byte
	for _, v := range values {
		bits := math.Float32bits(v)
		if v != v {
			bits = 0x7fc00000
		}
		out = binary.LittleEndian.AppendUint32(out, bits)
	}
	return out
}

// The copy of the shared cases.
func TestSharedCases(t *testing.T) { testShared(t, "testdata/shared") }

// The shared cases as they are today.
func TestSharedCasesInPlace(t *testing.T) {
	dir := os.Getenv("FPA_SHARED")
	if dir == "" {
		t.Skip("FPA_SHARED is not set")
	}
	testShared(t, filepath.Join(dir, "cases", "valid"))
}

// The values of a dict of everything plain, in every protocol.
func TestRoot(t *testing.T) {
	for _, name := range []string{"plain.pt", "plain_p4.pt", "plain_p5.pt", "plain_legacy.pt"} {
		f, err := Open(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		root := f.Root().(*Dict)
		list := func(v ...Value) *List { return &List{v} }
		tuple := func(v ...Value) *Tuple { return &Tuple{v} }
		power := new(big.Int).Lsh(big.NewInt(1), 70)
		for _, want := range []Entry{
			{"int", int64(-5)}, {"big", power}, {"negative", new(big.Int).Neg(power)}, {"long", int64(1 << 40)},
			{"float", 0.1}, {"str", "ä\n"}, {"bytes", []byte{0, 255}}, {"no_bytes", []byte{}},
			{"list", list(int64(1), list(int64(2), tuple(int64(3))))},
			{"tuple", tuple(int64(1), int64(2), int64(3), int64(4))},
			{"set", &Set{[]Value{int64(1)}}}, {"frozenset", &Set{[]Value{int64(2)}}},
			{"size", format.Shape{2, 3}}, {"dtype", DType("bfloat16")}, {"device", Device("cuda:1")}, {"cpu", Device("cpu")},
			{int64(7), "seven"}, {1.5, "float key"}, {7.0, "seven"},
		} {
			got, ok := root.Get(want.Key)
			if !ok || !reflect.DeepEqual(got, want.Value) {
				t.Errorf("%s: %v is %#v, expected %#v", name, want.Key, got, want.Value)
			}
		}
		for key, want := range map[string][]Entry{"ordered": {{"a", int64(1)}}, "counter": {{"a", int64(2)}, {"b", int64(1)}}} {
			if v, _ := root.Get(key); !reflect.DeepEqual(v.(*Dict).Entries, want) {
				t.Errorf("%s: %s is %v, expected %v", name, key, v, want)
			}
		}
		for _, key := range []Value{"missing", int64(8), nil, list(), 2.5} {
			if v, ok := root.Get(key); ok {
				t.Errorf("%s: %v is %v", name, key, v)
			}
		}
	}
}

// A module's _metadata hang on its state dict and are no tensors of it.
func TestAttributes(t *testing.T) {
	f, err := Open("testdata/shared/pt_module/pytorch_model.bin")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	attributes := f.Root().(*Dict).Attributes
	if attributes == nil {
		t.Fatal("no attributes")
	}
	v, ok := attributes.Get("_metadata")
	if metadata, isDict := v.(*Dict); !ok || !isDict || len(metadata.Entries) != 3 {
		t.Errorf("_metadata are %v", v)
	}
}

func TestStateDict(t *testing.T) {
	names := func(tensors []Tensor) string {
		var names []string
		for _, t := range tensors {
			names = append(names, t.Name)
		}
		return strings.Join(names, " ")
	}
	const linear = "0.weight 0.bias 1.weight 1.bias 1.running_mean 1.running_var 1.num_batches_tracked"
	for _, test := range []struct{ file, prefix, want, err string }{
		{"training.pt", "", linear, ""},
		{"training_legacy.pt", "model", linear, ""},
		{"training.pt", "optimizer.state.0", "step exp_avg exp_avg_sq", ""},
		{"training.pt", "nothing", "", `"nothing": no dict is at this path; the file holds a dict with the keys "model", "optimizer"`},
		{"training.pt", "model.0.weight", "", "no dict is at this path"},
		{"training.pt", "modelx", "", "no dict is at this path"},
		{"tensor.pt", "", "", "found the saved object is a tensor"},
		{"tensor.pt", "model", "", "the file holds a tensor"},
		{"plain.pt", "", "", "found no dict whose values are all tensors"},
		{"dtypes.pt", "", "float64 float32 float16 bfloat16", ""},
	} {
		f, err := Open(filepath.Join("testdata", test.file))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		tensors, err := f.StateDict(test.prefix)
		if test.err != "" {
			var ue *format.UnsupportedError
			if !errors.As(err, &ue) || !strings.Contains(err.Error(), test.err) || ue.Path != f.Path() {
				t.Errorf("%s, %q: %v, expected %q", test.file, test.prefix, err, test.err)
			}
			continue
		}
		if err != nil || !strings.HasPrefix(names(tensors), test.want) {
			t.Errorf("%s, %q: %q, %v; expected %q", test.file, test.prefix, names(tensors), err, test.want)
		}
	}
}

// The rule by which a state dict is found.
func TestStateDictRule(t *testing.T) {
	one := func() *Tensor { return &Tensor{DType: quant.U8, Data: []byte{}} }
	dict := func(entries ...any) *Dict {
		d := &Dict{}
		for i := 0; i < len(entries); i += 2 {
			if !d.set(entries[i], entries[i+1]) {
				t.Fatal("twice")
			}
		}
		return d
	}
	for _, test := range []struct {
		root   Value
		prefix string
		want   string // the tensors' names; or part of the error
		fails  bool
	}{
		{dict("a", one(), "b", one()), "", "a b", false},
		{dict("module", dict("m", one()), "model", dict("a", one()), "x", int64(1)), "", "a", false},
		{dict("state_dict", dict("s", one()), "module", dict("m", one())), "", "s", false},
		{dict("model", dict("a", one(), "n", int64(1)), "module", dict("m", one())), "", "m", false},
		{dict("model", dict(), "net", dict("m", one())), "", "m", false},
		{dict("model_state_dict", dict("m", one()), "ema", dict("m", one())), "", "m", false},
		{dict("net", dict("m", one()), "ema", dict("m", one())), "", `several dicts of tensors ("net", "ema")`, true},
		{dict(), "", "no dict whose values are all tensors", true},
		{dict("a", &List{[]Value{one()}}), "", "no dict", true},
		{dict("a.b", dict("c", one()), "a", dict("b", dict("d", one()))), "a.b", "c", false},
		{dict("a", dict("x", one()), "a.b", dict("c", one())), "a.b", "c", false},
		{dict("a", dict("n", nil, "l", &List{[]Value{one(), &Tuple{[]Value{one()}}}}, "s", &Set{[]Value{one()}})), "a", "l.0 l.1.0 s.0", false},
		{dict(true, dict("b", one()), nil, one()), "True", "b", false},
	} {
		f := &File{root: test.root, limits: format.Limits{}.WithDefaults()}
		tensors, err := f.StateDict(test.prefix)
		var names []string
		for _, t := range tensors {
			names = append(names, t.Name)
		}
		got := strings.Join(names, " ")
		if test.fails {
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, expected %q", err, test.want)
			}
		} else if err != nil || got != test.want {
			t.Errorf("%q %v, expected %q", got, err, test.want)
		}
	}
}

// Tensors that are views of the file lie in it; the others have their own
// bytes.
func TestViewsOfTheFile(t *testing.T) {
	data, err := os.ReadFile("testdata/views.pt")
	if err != nil {
		t.Fatal(err)
	}
	f, err := Parse(data, format.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if f.Path() != "" || f.Size() != int64(len(data)) || f.Close() != nil {
		t.Error("path, size or Close of a parsed file")
	}
	before := map[string][]byte{}
	for _, tensor := range f.Tensors() {
		before[tensor.Name] = bytes.Clone(tensor.Data)
	}
	for i := range data {
		data[i] ^= 0xff
	}
	inPlace := map[string]bool{"element": true, "one_dim_of_one": true, "tied_a": true, "tied_b": true, "tied_view": true}
	for _, tensor := range f.Tensors() {
		changed := !bytes.Equal(before[tensor.Name], tensor.Data)
		if changed != inPlace[tensor.Name] {
			t.Errorf("%s: in the file %t, expected %t", tensor.Name, changed, inPlace[tensor.Name])
		}
		if cap(tensor.Data) != len(tensor.Data) {
			t.Errorf("%s: an append would write into the file", tensor.Name)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	path := "testdata/shared/pt_evil_os_system/pytorch_model.bin"
	_, err := Open(path)
	var g *GlobalError
	var u *format.UnsupportedError
	if !errors.As(err, &g) || !errors.As(err, &u) {
		t.Fatalf("%v, expected a GlobalError that is an UnsupportedError", err)
	}
	if g.Name != "posix.system" || u.Path != path {
		t.Errorf("%+v", g)
	}
	for _, part := range []string{path, "opcode at 169", "posix.system", "safetensors", "nothing of the file was executed"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v, expected %q in it", err, part)
		}
	}
	data, _ := os.ReadFile(path)
	if !bytes.HasPrefix(data[u.Offset:], []byte("cposix\nsystem\n")) {
		t.Errorf("byte %d of the file is not where the name is", u.Offset)
	}
}

// What PyTorch saves and we refuse, by the reason.
func TestRefusedFiles(t *testing.T) {
	for name, reason := range map[string]string{
		"refused_module.pt":     "torch.nn.modules.linear.Linear",
		"refused_conj.pt":       `the metadata "conj"`,
		"refused_sparse.pt":     "torch._utils._rebuild_sparse_tensor",
		"refused_complex128.pt": "torch.ComplexDoubleStorage",
		"refused_tuple_key.pt":  "a tuple as key of a dict",
	} {
		_, err := Open(filepath.Join("testdata", name))
		var u *format.UnsupportedError
		if !errors.As(err, &u) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v, expected an UnsupportedError with %q", name, err, reason)
		}
	}
}

func ExampleFile_StateDict() {
	f, err := Open("testdata/training.pt")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	weights, err := f.StateDict("") // finds the key "model"
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, t := range weights[:2] {
		fmt.Println(t.Name, t.DType, t.Shape, len(t.Data), "bytes")
	}
	step, _ := f.Root().(*Dict).Get("step")
	fmt.Println("step", step)
	// Output:
	// 0.weight F32 [2, 3] 24 bytes
	// 0.bias F32 [2] 8 bytes
	// step 2
}
