package safetensors

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
)

// python runs a script with the reference library, feeding it input. Without
// the library the test is skipped, or fails when FPA_REQUIRE_ORACLES is 1.
func python(t *testing.T, script string, input []byte) []byte {
	t.Helper()
	name := os.Getenv("FPA_PYTHON")
	if name == "" {
		name = "python3"
	}
	if out, err := exec.Command(name, "-c", "import safetensors").CombinedOutput(); err != nil {
		msg := fmt.Sprintf("%s cannot import safetensors (FPA_PYTHON names another Python): %v %s", name, err, bytes.TrimSpace(out))
		if os.Getenv("FPA_REQUIRE_ORACLES") == "1" {
			t.Fatal(msg)
		}
		t.Skip(msg)
	}
	cmd := exec.Command(name, "-c", script)
	cmd.Stdin = bytes.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, stderr.Bytes())
	}
	return out
}

// pack puts files one after the other, each with its length, as the scripts
// below read them.
func pack(files [][]byte) []byte {
	var b []byte
	for _, f := range files {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(f)))
		b = append(b, f...)
	}
	return b
}

// reader is a script that prints, for each file, the tensors that the
// reference library reads from it, or its error, as a line of JSON.
const reader = `
import sys, json, struct, hashlib, safetensors
data = sys.stdin.buffer.read()
at = 0
while at < len(data):
    n, = struct.unpack_from("<Q", data, at)
    f = data[at+8:at+8+n]
    at += 8 + n
    try:
        r = {n: [t["dtype"], list(t["shape"]), hashlib.sha256(bytes(t["data"])).hexdigest()]
             for n, t in safetensors.deserialize(f)}
    except Exception as e:
        r = str(e)
    print(json.dumps(r))
`

// verdict is what the reference library makes of a file: an error's text, or
// the tensors.
type verdict struct {
	err     string
	tensors map[string][3]any
}

// ask runs the reader over the files.
func ask(t *testing.T, files [][]byte) []verdict {
	t.Helper()
	lines := bytes.Split(bytes.TrimSpace(python(t, reader, pack(files))), []byte("\n"))
	if len(lines) != len(files) {
		t.Fatalf("%d answers for %d files", len(lines), len(files))
	}
	verdicts := make([]verdict, len(files))
	for i, line := range lines {
		if json.Unmarshal(line, &verdicts[i].err) == nil {
			continue
		}
		if err := json.Unmarshal(line, &verdicts[i].tensors); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
	}
	return verdicts
}

// sum is the SHA-256 of data in hexadecimal.
func sum(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

// same fails unless the file has the tensors of the verdict.
func same(t *testing.T, f *File, v verdict) {
	t.Helper()
	if v.err != "" {
		t.Errorf("the reference library refuses it: %s", v.err)
		return
	}
	if len(f.Tensors()) != len(v.tensors) {
		t.Errorf("%d tensors, the reference library reads %d", len(f.Tensors()), len(v.tensors))
	}
	for _, got := range f.Tensors() {
		want, ok := v.tensors[got.Name]
		shape, _ := json.Marshal(want[1])
		mine, _ := json.Marshal(got.Shape)
		if !ok || got.DType.String() != want[0] || !bytes.Equal(mine, shape) || sum(got.Data) != want[2] {
			t.Errorf("%q: %v %s, the reference library reads %v", got.Name, got.DType, mine, want)
		}
	}
}

// What we write, the reference library reads; and it is, byte for byte, what
// that library writes of the same tensors. The latter is without F6, which
// its Python side cannot write, and with at most one metadata entry, as its
// order of several is random.
func TestOracleWrite(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	write := func(tensors []Tensor, metadata map[string]string) []byte {
		var b bytes.Buffer
		if err := Write(&b, tensors, metadata); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	var files, comparable [][]byte
	var sets []map[string]any
	for range 100 {
		tensors, metadata := random(rng)
		files = append(files, write(tensors, metadata))
		for len(metadata) > 1 {
			delete(metadata, slices.Sorted(maps.Keys(metadata))[0])
		}
		tensors = slices.DeleteFunc(tensors, func(t Tensor) bool {
			return t.DType == quant.F6E2M3 || t.DType == quant.F6E3M2
		})
		comparable = append(comparable, write(tensors, metadata))
		list := []any{}
		for _, t := range tensors {
			list = append(list, map[string]any{"name": t.Name, "dtype": t.DType.String(), "shape": t.Shape, "data": t.Data})
		}
		sets = append(sets, map[string]any{"tensors": list, "metadata": metadata})
	}
	for i, v := range ask(t, files) {
		f, err := Parse(files[i], format.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		same(t, f, v)
	}
	input, err := json.Marshal(sets)
	if err != nil {
		t.Fatal(err)
	}
	out := python(t, `
import sys, json, struct, base64, ctypes, safetensors
names = {"BOOL": "bool", "F4": "float4_e2m1fn_x2", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
  "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
  "BF16": "bfloat16", "C64": "complex64"}
names.update({l + str(b): w + str(b) for l, w in [("I", "int"), ("U", "uint"), ("F", "float")] for b in (8, 16, 32, 64)})
for s in json.load(sys.stdin):
    specs, keep = {}, []
    for t in s["tensors"]:
        shape = list(t["shape"])
        if t["dtype"] == "F4": shape[-1] //= 2 # this interface counts pairs
        data = base64.b64decode(t["data"])
        keep.append(ctypes.create_string_buffer(data, max(1, len(data))))
        specs[t["name"]] = safetensors.TensorSpec(dtype=names[t["dtype"]], shape=shape,
            data_ptr=ctypes.addressof(keep[-1]), data_len=len(data))
    out = safetensors.serialize(specs, s["metadata"])
    sys.stdout.buffer.write(struct.pack("<Q", len(out)) + out)
`, input)
	if want := pack(comparable); !bytes.Equal(out, want) {
		for _, want := range comparable {
			n := min(8+binary.LittleEndian.Uint64(out), uint64(len(out)))
			if got := out[8:n]; !bytes.Equal(got, want) {
				t.Fatalf("wrote\n%q\nthe reference library writes\n%q", want, got)
			}
			out = out[n:]
		}
	}
}

// The reference library refuses every malformed case too, except those where
// it is known to be lax.
func TestOracleMalformed(t *testing.T) {
	var files [][]byte
	for _, test := range malformed {
		files = append(files, test.data)
	}
	for i, v := range ask(t, files) {
		if test := malformed[i]; (v.err == "") != test.lax {
			t.Errorf("%s: the reference library: %q %v, expected it to be lax: %v", test.name, v.err, v.tensors, test.lax)
		}
	}
}

// laxReasons are parts of our errors that the reference library does not
// have; see the package comment.
var laxReasons = []string{"given twice", "starting with '{'", "after the JSON object", "more than 2^63-1 elements", "header: found null, expected an object"}

// Files with random damage: what we accept, the reference library accepts and
// reads alike; what we alone refuse has one of the known reasons.
func TestOracleMutations(t *testing.T) {
	paths, err := filepath.Glob("testdata/*/*.safetensors")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no seeds: %v", err)
	}
	var valid, invalid [][]byte
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		valid = append(valid, data)
	}
	for _, test := range malformed {
		if 8 <= len(test.data) && len(test.data) < 1000 {
			invalid = append(invalid, test.data)
		}
	}
	rng := rand.New(rand.NewPCG(7, 8))
	pieces := []string{"0", "1", "-", ".", "e", ",", ":", "{", "}", "[", "]", `"`, " ", "\n", `\u0061`, `\ud83d\ude00`,
		`\ud83d`, "null", "4", "8", "F16", "U8", "shape", "\x00", "\xff", "é", `"x":[{"a":1}],`, "1,", `"shape":[1],`}
	var files [][]byte
	for len(files) < 5000 {
		seeds := valid
		if rng.IntN(4) == 0 {
			seeds = invalid
		}
		seed := seeds[rng.IntN(len(seeds))]
		n := min(binary.LittleEndian.Uint64(seed), uint64(len(seed)-8))
		header, data := slices.Clone(seed[8:8+n]), seed[8+n:]
		for range 1 + rng.IntN(2) {
			at := rng.IntN(len(header) + 1)
			piece := pieces[rng.IntN(len(pieces))]
			switch rng.IntN(4) {
			case 0:
				if at < len(header) {
					header[at] ^= 1 << rng.IntN(8)
				}
			case 1:
				header = slices.Delete(header, at, min(at+1+rng.IntN(3), len(header)))
			case 2:
				header = slices.Insert(header, at, []byte(piece)...)
			case 3:
				copy(header[at:], piece)
			}
		}
		files = append(files, file(string(header), string(data)))
	}
	accepted, stricter := 0, 0
	for i, v := range ask(t, files) {
		f, err := Parse(files[i], format.Limits{})
		switch {
		case err == nil:
			accepted++
			same(t, f, v)
		case v.err == "":
			stricter++
			known := func(reason string) bool { return strings.Contains(err.Error(), reason) }
			if !slices.ContainsFunc(laxReasons, known) {
				t.Errorf("refused with %v, but the reference library reads %v", err, v.tensors)
			}
		}
		if t.Failed() {
			t.Fatalf("file: %q", files[i])
		}
	}
	t.Logf("%d files, %d accepted by both, %d refused by us alone", len(files), accepted, stricter)
	if accepted < 100 {
		t.Errorf("only %d files were accepted, the damage is too great to test much", accepted)
	}
}
