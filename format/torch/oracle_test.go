package torch

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
)

// python runs a script with PyTorch in a folder of its own. Without PyTorch the
// test is skipped, even when FPA_REQUIRE_ORACLES is 1: it is too large for
// where that is set. The files of testdata hold what PyTorch says there.
func python(t *testing.T, dir, script string, args ...string) []byte {
	t.Helper()
	name := os.Getenv("FPA_PYTHON")
	if name == "" {
		name = "python3"
	}
	if out, err := exec.Command(name, "-c", "import torch").CombinedOutput(); err != nil {
		t.Skipf("%s cannot import torch (FPA_PYTHON names another Python): %v %s", name, err, bytes.TrimSpace(out))
	}
	cmd := exec.Command(name, append([]string{"-c", script}, args...)...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	return out
}

// describe loads files, with Python's own unpickler but only the names that we
// know (PyTorch's restricted one takes protocol 2 alone), and walks a tree as
// flatten does.
const describe = `
import collections, hashlib, json, pickle, random, re, sys, types
import torch
torch.set_num_threads(1)
try: # PyTorch allocates what a damaged file claims
    import resource
    resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
except (ImportError, ValueError):
    pass
KNOWN = re.compile(r"collections (OrderedDict|Counter)|(builtins|__builtin__) (set|frozenset|bytes)|_codecs encode|"
    r"torch._utils _rebuild_(tensor|tensor_v2|tensor_v3|parameter|parameter_with_state)|torch.storage UntypedStorage|"
    r"torch (Size|device|[A-Z]\w*Storage|b?float\d+\w*|u?int\d+|bool|complex\d+)")
class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if not KNOWN.fullmatch(module + " " + name):
            raise pickle.UnpicklingError("refused " + module + "." + name)
        return super().find_class(module, name)
def load(f, **options):
    return Unpickler(f, **options).load()
restricted = types.SimpleNamespace(Unpickler=Unpickler, load=load, __name__="restricted")
def read(f):
    return torch.load(f, weights_only=False, pickle_module=restricted)
def walk(v, name, out):
    if isinstance(v, torch.Tensor):
        if v.numel() > 1 << 16:
            raise ValueError("large")
        dtype = str(v.dtype).removeprefix("torch.")
        if v.dtype == torch.bool:
            v = v.detach().view(torch.uint8) # a copy of bools would make each 0 or 1
        c = torch.empty(v.numel(), dtype=v.dtype).copy_(v.detach().reshape(-1))
        raw = bytes(c.view(torch.uint8).tolist()) if c.numel() else b""
        out.append({"name": name, "dtype": dtype, "shape": list(v.shape),
                    "sha256": hashlib.sha256(raw).hexdigest()})
    elif isinstance(v, dict):
        for k, x in v.items():
            walk(x, (name + "." if name else "") + str(k), out)
    elif isinstance(v, (list, tuple)):
        for i, x in enumerate(v):
            walk(x, (name + "." if name else "") + str(i), out)
    return out
`

// answer is what PyTorch says of a file.
type answer struct {
	Err     string
	Tensors []expectedTensor
}

// same compares what we read with what PyTorch did.
func (a answer) same(f *File) error {
	tensors := f.Tensors()
	if len(tensors) != len(a.Tensors) {
		return fmt.Errorf("%d tensors, PyTorch has %d", len(tensors), len(a.Tensors))
	}
	for i, w := range a.Tensors {
		g := tensors[i]
		sum := sha256.Sum256(g.Data)
		if g.Name != w.Name || g.DType != dtypes[DType(w.DType)] || !g.Shape.Equal(w.Shape) || hex.EncodeToString(sum[:]) != w.SHA256 {
			return fmt.Errorf("tensor %d is %q %s %v, PyTorch has %q %s %v; or the bytes differ", i, g.Name, g.DType, g.Shape, w.Name, w.DType, w.Shape)
		}
	}
	return nil
}

// Random trees of random views, saved by PyTorch in every form.
func TestAgainstTorch(t *testing.T) {
	const files = 120
	dir := t.TempDir()
	out := python(t, dir, describe+`
random.seed(5); torch.manual_seed(5)
TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
         torch.uint8, torch.complex64]
UNTYPED = [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]
def tensor(bases):
    if not bases or random.random() < .4:
        dtype = random.choice(TYPES if legacy else TYPES + UNTYPED)
        bases.append(torch.randint(0, 256, (8 * random.randrange(1, 60),), dtype=torch.uint8).view(dtype))
    t = random.choice(bases)
    n = t.numel()
    dims = random.randrange(5)
    shape = [random.choice([0, 1, 2, 3, 5]) for _ in range(dims)]
    strides, room = [], n - 1
    offset = random.randrange(min(n, 4)); room -= offset
    for d in shape:
        s = random.randrange(0, room // (d - 1) + 1) if d > 1 else random.randrange(100)
        s = min(s, random.choice([1, 3, 1000]))
        strides.append(s); room -= max(d - 1, 0) * s
    if random.random() < .3:
        return t[offset:]
    v = t.as_strided(shape, strides, offset)
    if v.is_floating_point() and v.element_size() > 1 and random.random() < .2:
        v = torch.nn.Parameter(v)
    return v
def tree(depth, bases):
    if depth == 0 or random.random() < .3:
        return tensor(bases) if random.random() < .8 else random.choice([1, 2.5, "s", None, True, b"x", 2**65, torch.Size([1]), torch.float16])
    children = [tree(depth - 1, bases) for _ in range(random.randrange(4))]
    kind = random.randrange(4)
    if kind == 0: return children
    if kind == 1: return tuple(children)
    keys = random.sample(["weight", "bias", "é", "x_1", "0", "q"], len(children))
    return (dict if kind == 2 else collections.OrderedDict)(zip(keys, children))
answers = []
for i in range(int(sys.argv[1])):
    legacy = random.random() < .4 # there PyTorch does not read the untyped ones that it writes
    bases = []
    root = {"a": tree(3, bases), "b": tree(3, bases), "c": tensor(bases)}
    if legacy:
        torch.save(root, f"{i}.pt", _use_new_zipfile_serialization=False)
    else:
        torch.save(root, f"{i}.pt", pickle_protocol=random.choice([2, 3, 4, 5]))
    answers.append({"tensors": walk(read(f"{i}.pt"), "", [])})
print(json.dumps(answers))
`, fmt.Sprint(files))
	var answers []answer
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatal(err)
	}
	tensors := 0
	for i, a := range answers {
		f, err := Open(filepath.Join(dir, fmt.Sprintf("%d.pt", i)))
		if err != nil {
			t.Errorf("file %d: %v", i, err)
			continue
		}
		if err := a.same(f); err != nil {
			t.Errorf("file %d: %v", i, err)
		}
		tensors += len(f.Tensors())
		f.Close()
	}
	t.Logf("%d files with %d tensors", len(answers), tensors)
	if tensors < 3*files {
		t.Errorf("only %d tensors", tensors)
	}
}

// stricter are the reasons for which we refuse what PyTorch reads.
var stricter = []string{
	"given twice",                     // of equal keys the last one counts there
	"two tensors have this name",      // which is a question of our names
	"after the pickle",                // there the rest is not read
	"after the last storage",          //
	"expected the one object",         // there it is the top of the stack
	"as key of a dict",                // tuples and the like
	"of F32 before",                   // a storage in two types or sizes
	"storages, expected the",          // bytes of a storage that are missing
	"elements, expected",              //
	"bytes, expected",                 //
	"contains itself",                 //
	"where a value was expected",      // a class in the tree
	"argument 3 of a persistent id",   // the device
	"no truth value little_endian",    // the facts are not looked at there
	"to another encoding than latin1", //
	"version: found",                  //
	"big-endian data",                 //
}

// Damaged files: what both read must be the same.
func TestDamagedAgainstTorch(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var seeds [][]byte
	var names []string
	for path := range smallFiles(t) {
		names = append(names, path)
	}
	slices.Sort(names)
	for _, path := range names {
		if data := smallFiles(t)[path]; !strings.Contains(path, "evil") && !strings.Contains(path, "refused") {
			seeds = append(seeds, data)
		}
	}
	dir := t.TempDir()
	var files [][]byte
	for len(files) < 1500 {
		data := bytes.Clone(seeds[rng.IntN(len(seeds))])
		// Readers of zip archives differ much in which damage to the directory
		// they see; the data before it are what this test is about. Most damage
		// goes where the pickle is.
		end := len(data)
		if i := bytes.Index(data, []byte("PK\x01\x02")); i >= 0 {
			end = i
		}
		if rng.IntN(4) > 0 {
			end = min(end, 600)
		}
		data[rng.IntN(end)] ^= byte(1) << rng.IntN(8)
		files = append(files, data)
	}
	var all []byte
	for _, data := range files {
		all = append(binary.LittleEndian.AppendUint32(all, uint32(len(data))), data...)
	}
	if err := os.WriteFile(filepath.Join(dir, "all"), all, 0o600); err != nil {
		t.Fatal(err)
	}
	out := python(t, dir, describe+`
import io, struct, warnings
warnings.simplefilter("ignore")
data, at, answers = open("all", "rb").read(), 0, []
while at < len(data):
    (n,) = struct.unpack_from("<I", data, at)
    try:
        v = read(io.BytesIO(data[at + 4:at + 4 + n]))
        answers.append({"err": "", "tensors": walk(v, "", [])})
    except Exception as e:
        answers.append({"err": (type(e).__name__ + ": " + str(e))[:300]})
    at += 4 + n
print(json.dumps(answers))
`)
	var answers []answer
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatal(err)
	}
	both, we, they := 0, 0, 0
	for i, a := range answers {
		f, err := Parse(files[i], format.Limits{})
		switch {
		case err == nil && a.Err == "":
			both++
			if err := a.same(f); err != nil {
				t.Errorf("file %d: %v", i, err)
			}
		case err == nil:
			we++
			t.Logf("file %d: we read it, PyTorch says %s", i, a.Err)
		case a.Err == "":
			they++
			t.Logf("file %d: %v", i, err)
			var g *GlobalError
			known := func(reason string) bool { return strings.Contains(err.Error(), reason) }
			if !errors.As(err, &g) && !slices.ContainsFunc(stricter, known) {
				t.Errorf("file %d: PyTorch reads it, but %v", i, err)
			}
		}
	}
	if both < len(files)/10 {
		t.Errorf("only %d files were read by both, the damage is too great to test much", both)
	}
	t.Logf("%d files: %d read by both, %d by us alone, %d by PyTorch alone", len(files), both, we, they)
}
