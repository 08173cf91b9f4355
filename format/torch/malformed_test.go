package torch

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
)

// member is a member of a zip archive.
type member struct{ name, data string }

// zipFile is an archive of stored members.
func zipFile(members ...member) []byte {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, m := range members {
		f, err := w.CreateHeader(&zip.FileHeader{Name: m.name, Method: zip.Store})
		if err == nil {
			_, err = f.Write([]byte(m.data))
		}
		if err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// sixFloats are the bytes of storage 0 in the checkpoints below.
const sixFloats = "\x00\x00\x00\x00\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x00\x00\x80\x40\x00\x00\xa0\x40"

// checkpoint is a zip checkpoint with one storage of six floats.
func checkpoint(pickle string) []byte {
	return zipFile(member{"a/data.pkl", pickle}, member{"a/byteorder", "little"},
		member{"a/data/0", sixFloats}, member{"a/version", "3\n"})
}

// legacy is a legacy file with an object, its storages' keys, and their bytes.
func legacy(object, keys, data string) []byte {
	return []byte("\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19." + "\x80\x02M\xe9\x03." +
		"\x80\x02}" + str("little_endian") + "\x88s." + "\x80\x02" + object + "." + "\x80\x02" + keys + "." + data)
}

// str, num and tup are pickles of a string, an integer and a tuple.
func str(s string) string {
	return "X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s
}
func num(n int64) string           { return fmt.Sprintf("I%d\n", n) }
func tup(items ...string) string   { return "(" + strings.Join(items, "") + "t" }
func name(module, n string) string { return "c" + module + "\n" + n + "\n" }
func nums(n ...int64) string {
	var s []string
	for _, n := range n {
		s = append(s, num(n))
	}
	return tup(s...)
}

// persistent is a reference to a storage.
func persistent(class, key string, elements int64) string {
	return tup(str("storage"), class, str(key), str("cpu"), num(elements)) + "Q"
}

var floats = name("torch", "FloatStorage")

// tensor is a view of a storage; extra follows the strides.
func tensorOf(storage string, offset int64, shape, strides string) string {
	return name("torch._utils", "_rebuild_tensor_v2") + tup(storage, num(offset), shape, strides, "\x89", name("collections", "OrderedDict")+")R") + "R"
}

// view6 is a view of storage 0.
func view6(offset int64, shape, strides string) string {
	return tensorOf(persistent(floats, "0", 6), offset, shape, strides)
}

// typedTensor is an F8_E4M3 vector of an untyped storage.
func typedTensor(dtype string, n int64) string {
	return name("torch._utils", "_rebuild_tensor_v3") +
		tup(persistent(name("torch.storage", "UntypedStorage"), "0", 24), num(0), nums(n), nums(1), "\x89", "N", dtype) + "R"
}

// badPickle is a pickle that must be refused.
type badPickle struct {
	name, pickle string
	msg          string // part of the error
	global       string // the name of a GlobalError
	unsupported  bool   // an UnsupportedError, else a FormatError
}

// manyKeys is n keys of a dict and their values.
func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(num(int64(i)) + "N")
	}
	return b.String()
}

// laughs is 2^n elements in n instructions or so: each container twice in
// the next.
func laughs(n int, container string) string {
	return "]" + strings.Repeat("q\x00h\x00"+container, n) + "."
}

var badPickles = []badPickle{
	// Code that would be executed.
	{name: "os.system", pickle: name("posix", "system") + "(" + str("touch pwned") + "tR.", global: "posix.system"},
	{name: "nt.system", pickle: name("nt", "system") + "(" + str("x") + "tR.", global: "nt.system"},
	{name: "eval", pickle: name("builtins", "eval") + "(" + str("1") + "tR.", global: "builtins.eval"},
	{name: "Python 2 eval", pickle: name("__builtin__", "eval") + "(" + str("1") + "tR.", global: "__builtin__.eval"},
	{name: "named, not called", pickle: name("builtins", "exec") + ".", global: "builtins.exec"},
	{name: "named and thrown away", pickle: name("builtins", "exec") + "0N.", global: "builtins.exec"},
	{name: "getattr", pickle: name("builtins", "getattr") + "(" + name("torch", "Size") + str("__class__") + "tR.", global: "builtins.getattr"},
	{name: "STACK_GLOBAL", pickle: "\x80\x04\x8c\x05posix\x8c\x06system\x93.", global: "posix.system"},
	{name: "STACK_GLOBAL from the memo", pickle: "\x80\x04\x8c\x06system\x940\x8c\x05posixh\x00\x93.", global: "posix.system"},
	{name: "STACK_GLOBAL with dots", pickle: "\x80\x04\x8c\x05torch\x8c\x0bSize.mro.im\x93.", global: "torch.Size.mro.im"},
	{name: "STACK_GLOBAL of numbers", pickle: "\x80\x04K\x01K\x02\x93.", msg: "STACK_GLOBAL of an int and an int, expected two strings"},
	{name: "STACK_GLOBAL of a computed string", pickle: "\x80\x04" + name("_codecs", "encode") + str("posix") + str("latin1") + "\x86R" + str("system") + "\x93.", msg: "STACK_GLOBAL of bytes and a str"},
	{name: "inside a tensor's arguments", pickle: name("torch._utils", "_rebuild_tensor_v2") + "(" + name("posix", "system") + str("x") + "\x85RtR.", global: "posix.system"},
	{name: "as a tensor's hooks", pickle: name("torch._utils", "_rebuild_parameter") + "(" + view6(0, nums(6), nums(1)) + "\x88" + name("os", "popen") + "tR.", global: "os.popen"},
	{name: "as a storage class", pickle: persistent(name("subprocess", "Popen"), "0", 6) + ".", global: "subprocess.Popen"},
	{name: "as an attribute", pickle: name("collections", "OrderedDict") + ")R}" + str("x") + name("shutil", "rmtree") + "sb.", global: "shutil.rmtree"},
	{name: "INST", pickle: "(" + str("touch pwned") + "iposix\nsystem\n.", global: "posix.system"},
	{name: "INST of an allowed name", pickle: "(icollections\nOrderedDict\n.", msg: "opcode INST", unsupported: true},
	{name: "OBJ", pickle: "(" + name("posix", "system") + str("x") + "o.", global: "posix.system"},
	{name: "OBJ of an allowed name", pickle: "(" + name("collections", "OrderedDict") + "o.", msg: "opcode OBJ", unsupported: true},
	{name: "NEWOBJ", pickle: name("collections", "OrderedDict") + ")\x81.", msg: "opcode NEWOBJ", unsupported: true},
	{name: "NEWOBJ_EX", pickle: name("collections", "OrderedDict") + ")}\x92.", msg: "opcode NEWOBJ_EX", unsupported: true},
	{name: "EXT1", pickle: "\x80\x02\x82\x01.", msg: "opcode EXT1", unsupported: true},
	{name: "EXT2", pickle: "\x80\x02\x83\x01\x00.", msg: "opcode EXT2", unsupported: true},
	{name: "EXT4", pickle: "\x80\x02\x84\x01\x00\x00\x00.", msg: "opcode EXT4", unsupported: true},
	{name: "PERSID", pickle: "P0\n.", msg: "opcode PERSID", unsupported: true},
	{name: "NEXT_BUFFER", pickle: "\x80\x05\x97.", msg: "opcode NEXT_BUFFER", unsupported: true},
	{name: "READONLY_BUFFER", pickle: "\x80\x05N\x98.", msg: "opcode READONLY_BUFFER", unsupported: true},
	{name: "torch.load in torch.load", pickle: name("torch.storage", "_load_from_bytes") + "(C\x01xtR.", global: "torch.storage._load_from_bytes"},
	{name: "BUILD of a tensor", pickle: view6(0, nums(6), nums(1)) + "}" + str("a") + "Nsb.", msg: "opcode BUILD changes a tensor", unsupported: true},
	{name: "BUILD of a dict", pickle: "}}b.", msg: "opcode BUILD changes a dict", unsupported: true},
	{name: "BUILD of a class", pickle: name("torch", "Size") + "}b.", msg: "opcode BUILD changes the name torch.Size", unsupported: true},
	{name: "BUILD with a tuple", pickle: name("collections", "OrderedDict") + ")R)b.", msg: "BUILD with a tuple", unsupported: true},
	{name: "BUILD twice", pickle: name("collections", "OrderedDict") + ")R}b}b.", msg: "given twice"},
	{name: "name of another class shown", pickle: name("numpy.core.multiarray", "scalar") + ".", global: "numpy.core.multiarray.scalar"},
	{name: "long name", pickle: name(strings.Repeat("m", 10000), "x") + ".", global: strings.Repeat("m", 10000) + ".x"},

	// Calls of what is allowed, with other arguments.
	{name: "REDUCE of a string", pickle: str("x") + ")R.", msg: "a str is called"},
	{name: "REDUCE of a result", pickle: name("collections", "OrderedDict") + ")R)R.", msg: "a dict is called"},
	{name: "REDUCE without a tuple", pickle: name("collections", "OrderedDict") + "]R.", msg: "with a list, expected a tuple"},
	{name: "REDUCE of a storage class", pickle: floats + ")R.", msg: "torch.FloatStorage is called", unsupported: true},
	{name: "REDUCE of a dtype", pickle: name("torch", "float32") + ")R.", msg: "a torch.dtype is called"},
	{name: "a name as the object", pickle: name("torch", "Size") + ".", msg: "the name torch.Size where a value was expected"},
	{name: "a name in the object", pickle: "]" + floats + "a.", msg: "the name torch.FloatStorage"},
	{name: "OrderedDict of a number", pickle: name("collections", "OrderedDict") + "K\x01\x85R.", msg: "argument 0 of collections.OrderedDict is an int"},
	{name: "OrderedDict of triples", pickle: name("collections", "OrderedDict") + "]NNN\x87a\x85R.", msg: "expected pairs"},
	{name: "OrderedDict of equal keys", pickle: name("collections", "OrderedDict") + "]NN\x86aNN\x86a\x85R.", msg: `key "None" of a dict is given twice`},
	{name: "OrderedDict of two", pickle: name("collections", "OrderedDict") + "NN\x86R.", msg: "is called with 2 arguments"},
	{name: "Counter of a list", pickle: name("collections", "Counter") + "]\x85R.", msg: "argument 0 of collections.Counter is a list"},
	{name: "set of a number", pickle: name("builtins", "set") + "K\x01\x85R.", msg: "set of an int"},
	{name: "bytes of a size", pickle: name("builtins", "bytes") + "J\xff\xff\xff\x7f\x85R.", msg: "bytes is called with 1 arguments"},
	{name: "encode to rot13", pickle: name("_codecs", "encode") + str("x") + str("rot13") + "\x86R.", msg: "another encoding", unsupported: true},
	{name: "encode beyond latin1", pickle: name("_codecs", "encode") + str("€") + str("latin1") + "\x86R.", msg: "the character '€'"},
	{name: "Size of a string", pickle: name("torch", "Size") + str("x") + "\x85R.", msg: "torch.Size of a str"},
	{name: "device of a number", pickle: name("torch", "device") + "K\x01\x85R.", msg: "argument 0 of torch.device is an int"},
	{name: "tensor of no storage", pickle: tensorOf("N", 0, nums(1), nums(1)) + ".", msg: "argument 0 of a tensor is None"},
	{name: "tensor of a tensor", pickle: tensorOf(view6(0, nums(6), nums(1)), 0, nums(1), nums(1)) + ".", msg: "argument 0 of a tensor is a tensor"},
	{name: "tensor of five arguments", pickle: name("torch._utils", "_rebuild_tensor_v2") + nums(1, 2, 3, 4, 5) + "R.", msg: "called with 5 arguments, expected 6 to 7"},
	{name: "parameter of a list", pickle: name("torch._utils", "_rebuild_parameter") + tup("]", "\x88", "N") + "R.", msg: "is a list"},
	{name: "metadata neg", pickle: name("torch._utils", "_rebuild_tensor_v2") + tup(persistent(floats, "0", 6), num(0), nums(6), nums(1), "\x89", "N", "}"+str("neg")+"\x88s") + "R.", msg: `metadata "neg"`, unsupported: true},
	{name: "metadata list", pickle: name("torch._utils", "_rebuild_tensor_v2") + tup(persistent(floats, "0", 6), num(0), nums(6), nums(1), "\x89", "N", "]") + "R.", msg: "metadata are a list"},
	{name: "v2 of an untyped storage", pickle: tensorOf(persistent(name("torch.storage", "UntypedStorage"), "0", 24), 0, nums(6), nums(1)) + ".", msg: "type is told twice or not at all"},
	{name: "v3 with a class", pickle: typedTensor(floats, 24) + ".", msg: "argument 6 of _rebuild_tensor_v3"},
	{name: "v3 beyond the storage", pickle: typedTensor(name("torch", "uint16"), 13) + ".", msg: "reaches to element 12 of a storage of 12"},

	// Storages and views of them.
	{name: "storage too small", pickle: persistent(floats, "0", 5) + ".", msg: "has 24 bytes, expected 20"},
	{name: "storage too large", pickle: persistent(floats, "0", 7) + ".", msg: "has 24 bytes, expected 28"},
	{name: "storage of 2^62", pickle: persistent(floats, "0", 1<<62) + ".", msg: "overflow"},
	{name: "storage of -1", pickle: persistent(floats, "0", -1) + ".", msg: "-1 elements"},
	{name: "storage missing", pickle: persistent(floats, "1", 6) + ".", msg: `zip member "a/data/1": not in the archive`},
	{name: "storage outside", pickle: persistent(floats, "../data.pkl", 6) + ".", msg: "not in the archive"},
	{name: "storage of two types", pickle: "(" + persistent(floats, "0", 6) + persistent(name("torch", "IntStorage"), "0", 6) + "l.", msg: "6 elements of I32 here, 6 of F32 before"},
	{name: "storage of a function", pickle: persistent(name("torch", "Size"), "0", 6) + ".", msg: "of class torch.Size, expected a storage"},
	{name: "storage of no class", pickle: persistent("N", "0", 6) + ".", msg: "argument 1 of a persistent id is None"},
	{name: "storage key a number", pickle: tup(str("storage"), floats, num(0), str("cpu"), num(6)) + "Q.", msg: "argument 2 of a persistent id is an int"},
	{name: "storage location a number", pickle: tup(str("storage"), floats, str("0"), num(0), num(6)) + "Q.", msg: "argument 3 of a persistent id is an int"},
	{name: "storage size a string", pickle: tup(str("storage"), floats, str("0"), str("cpu"), str("6")) + "Q.", msg: "argument 4 of a persistent id is a str"},
	{name: "persistent string", pickle: str("0") + "Q.", msg: "persistent id that is a str"},
	{name: "persistent nothing", pickle: ")Q.", msg: "called with 0 arguments"},
	{name: "persistent other", pickle: tup(str("file"), floats, str("0"), str("cpu"), num(6)) + "Q.", msg: `expected "storage"`},
	{name: "persistent module", pickle: tup(str("module"), "N") + "Q.", msg: "a whole module", unsupported: true},
	{name: "storage in a storage", pickle: tup(str("storage"), floats, str("0"), str("cpu"), num(6), nums(1, 2, 3)) + "Q.", msg: "part of another", unsupported: true},
	{name: "one element too far", pickle: view6(0, nums(7), nums(1)) + ".", msg: "reaches to element 6 of a storage of 6"},
	{name: "offset too far", pickle: view6(6, ")", ")") + ".", msg: "reaches to element 6"},
	{name: "offset and stride too far", pickle: view6(2, nums(2, 2), nums(3, 1)) + ".", msg: "reaches to element 6"},
	{name: "negative stride", pickle: view6(5, nums(6), nums(-1)) + ".", msg: "stride[0] is -1"},
	{name: "negative size", pickle: view6(0, nums(-6), nums(1)) + ".", msg: "size[0] is -6"},
	{name: "negative offset", pickle: view6(-1, nums(6), nums(1)) + ".", msg: "at offset -1"},
	{name: "offset wraps", pickle: view6(math.MaxInt64, nums(2), nums(1)) + ".", msg: "reaches beyond 2^63-1"},
	{name: "stride wraps", pickle: view6(0, nums(3), nums(1<<62)) + ".", msg: "reaches beyond 2^63-1"},
	{name: "stride wraps to 0", pickle: view6(0, nums(5), nums(1<<62)) + ".", msg: "reaches beyond 2^63-1"},
	{name: "strides wrap together", pickle: view6(0, nums(2, 2), nums(math.MaxInt64, 1)) + ".", msg: "reaches beyond 2^63-1"},
	{name: "product overflows", pickle: view6(0, nums(1<<32, 1<<32), nums(0, 0)) + ".", msg: "more than 2^63-1 elements"},
	{name: "bytes overflow", pickle: view6(0, nums(1<<62), nums(0)) + ".", msg: "overflow"},
	{name: "expanded to 4 TiB", pickle: view6(0, nums(1<<40), nums(0)) + ".", msg: "out of proportion to the file"},
	{name: "expanded many times", pickle: "(" + strings.Repeat(view6(0, nums(1<<18), nums(0)), 2) + "l.", msg: "out of proportion to the file"},
	{name: "stride 1 overlapping", pickle: view6(0, nums(1<<20, 3), nums(0, 1)) + ".", msg: "out of proportion to the file"},
	{name: "more strides", pickle: view6(0, nums(6), nums(1, 1)) + ".", msg: "1 dimensions with 2 strides"},
	{name: "65 dimensions", pickle: view6(0, nums(make([]int64, 65)...), ")") + ".", msg: "65 dimensions, expected at most 64"},
	{name: "size of floats", pickle: view6(0, "(F1.0\nt", nums(1)) + ".", msg: "size[0] is a float"},
	{name: "size of 2^64", pickle: view6(0, "(L18446744073709551616L\nt", nums(1)) + ".", msg: "size[0] is an int, expected an integer of 64 bits"},
	{name: "size a dict", pickle: view6(0, "}", nums(1)) + ".", msg: "size of a dict"},

	// Lengths.
	{name: "string of 1 TiB", pickle: "\x80\x04\x8d\x00\x00\x00\x00\x00\x01\x00\x00.", msg: "a length of 1099511627776 bytes, but only 1 follow"},
	{name: "string of 2^64-1", pickle: "\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", msg: "a length of 18446744073709551615 bytes"},
	{name: "string of 4 GiB", pickle: "X\xff\xff\xff\xff.", msg: "a length of 4294967295 bytes"},
	{name: "bytes of 1 TiB", pickle: "\x80\x04\x8e\x00\x00\x00\x00\x00\x01\x00\x00.", msg: "a length of 1099511627776"},
	{name: "bytearray of 1 TiB", pickle: "\x80\x05\x96\x00\x00\x00\x00\x00\x01\x00\x00.", msg: "a length of 1099511627776"},
	{name: "bytes of 4 GiB", pickle: "B\xff\xff\xff\xff.", msg: "a length of 4294967295"},
	{name: "Python 2 string of -1", pickle: "T\xff\xff\xff\xff.", msg: "a length of 4294967295"},
	{name: "integer of 2 GiB", pickle: "\x8b\xff\xff\xff\x7f.", msg: "a length of 2147483647"},
	{name: "integer of -1", pickle: "\x8b\xff\xff\xff\xff.", msg: "a length of 4294967295"},
	{name: "integer of 2000 bytes", pickle: "\x8b\xd0\x07\x00\x00" + strings.Repeat("x", 2000) + ".", msg: "expected at most 1024"},
	{name: "integer of a million digits", pickle: "L" + strings.Repeat("9", 1_000_000) + "L\n.", msg: "no newline within 1100 bytes"},
	{name: "integer of 1050 digits", pickle: "L" + strings.Repeat("9", 1050) + "L\n.", msg: "of at most 1024 digits"},
	{name: "frame of 1 TiB", pickle: "\x80\x04\x95\x00\x00\x00\x00\x00\x01\x00\x00N.", msg: "a length of 1099511627776"},
	{name: "name without end", pickle: "cposix", msg: "no newline"},

	// Damage.
	{name: "empty", pickle: "", msg: "the pickle ends after 0 of 1 bytes"},
	{name: "no STOP", pickle: "N", msg: "the pickle ends"},
	{name: "STOP only", pickle: ".", msg: "stops with 0 values"},
	{name: "two objects", pickle: "NN.", msg: "stops with 2 values"},
	{name: "a mark left", pickle: "(N.", msg: "and 1 marks"},
	{name: "bytes after", pickle: "N.N", msg: "1 bytes after the pickle"},
	{name: "protocol 6", pickle: "\x80\x06N.", msg: "pickle protocol 6", unsupported: true},
	{name: "no opcode", pickle: "\xff.", msg: "found byte 0xff, expected a pickle opcode"},
	{name: "POP of nothing", pickle: "0.", msg: "needs 1 values on the stack"},
	{name: "DUP of nothing", pickle: "2.", msg: "needs 1 values on the stack"},
	{name: "TUPLE without mark", pickle: "Nt.", msg: "needs a mark"},
	{name: "POP_MARK without mark", pickle: "N1.", msg: "needs a mark"},
	{name: "TUPLE2 across a mark", pickle: "N(N\x86.", msg: "needs 2 values on the stack, found 1"},
	{name: "APPEND across a mark", pickle: "](Na.", msg: "needs a value on the stack"},
	{name: "APPEND to a tuple", pickle: ")Na.", msg: "items are added to a tuple"},
	{name: "ADDITEMS to a dict", pickle: "}(N\x90.", msg: "items are added to a dict"},
	{name: "SETITEM of a list", pickle: "]NNs.", msg: "items are set in a list"},
	{name: "SETITEMS of three", pickle: "}(NNNu.", msg: "3 keys and values"},
	{name: "DICT of one", pickle: "(Nd.", msg: "1 keys and values"},
	{name: "key twice", pickle: "}" + str("a") + "Ns" + str("a") + "Ns.", msg: `key "a" of a dict is given twice`},
	{name: "key twice, of many", pickle: "}(" + "K\x01NK\x02NK\x03NK\x04NK\x05NK\x06NK\x07NK\x08NK\x09NK\x0aNK\x0bNK\x0aN" + "u.", msg: `key "10" of a dict is given twice`},
	{name: "key True and 1", pickle: "}\x88NsK\x01Ns.", msg: `key "1" of a dict is given twice`},
	{name: "key 1.0 and 1", pickle: "}F1.0\nNsK\x01Ns.", msg: `key "1" of a dict is given twice`},
	{name: "key a list", pickle: "}]Ns.", msg: "a list as key of a dict", unsupported: true},
	{name: "key a tensor", pickle: "}" + view6(0, nums(6), nums(1)) + "Ns.", msg: "a tensor as key of a dict", unsupported: true},
	{name: "key NaN", pickle: "}Fnan\nNs.", msg: "a float as key of a dict", unsupported: true},
	{name: "PUT of nothing", pickle: "q\x00.", msg: "needs a value on the stack"},
	{name: "GET of nothing", pickle: "h\x05.", msg: "nothing was put at 5"},
	{name: "GET of text", pickle: "gx\n.", msg: `found "x", expected a number of the memo`},
	{name: "PUT -1", pickle: "Np-1\n.", msg: "expected a number of the memo"},
	{name: "INT of text", pickle: "Ix\n.", msg: `found "x", expected an integer`},
	{name: "FLOAT of text", pickle: "Fx\n.", msg: `found "x", expected a number`},
	{name: "not UTF-8", pickle: "X\x01\x00\x00\x00\xff.", msg: "not UTF-8"},
	{name: "STRING without quotes", pickle: "Sabc\n.", msg: "expected a string in quotes"},
	{name: "STRING of one quote", pickle: "S'\n.", msg: "expected a string in quotes"},
	{name: "STRING with an escape", pickle: "S'\\x00'\n.", msg: "an escape", unsupported: true},
	{name: "two ways to one name", pickle: "}(" + str("a.b") + view6(0, nums(6), nums(1)) + str("a") + "}" + str("b") + view6(0, nums(6), nums(1)) + "su.", msg: `tensor "a.b": two tensors have this name`},

	// Abuse of the memo.
	{name: "list in itself", pickle: "]q\x00h\x00a.", msg: "a list contains itself"},
	{name: "dict in itself", pickle: "}q\x00Nh\x00s.", msg: "a dict contains itself"},
	{name: "tuple in itself", pickle: "]q\x00h\x00\x85q\x01a.", msg: "contains itself"},
	{name: "attributes in themselves", pickle: name("collections", "OrderedDict") + ")Rq\x00}Nh\x00sb.", msg: "contains itself"},
	{name: "billion laughs of tuples", pickle: laughs(60, "\x86"), msg: "containers are repeated inside each other"},
	{name: "billion laughs of lists", pickle: "]q\x00" + strings.Repeat("](h\x00h\x00h\x00h\x00h\x00h\x00h\x00h\x00h\x00h\x00eq\x00", 40) + "2\x86.", msg: "stops with"},
	{name: "billion laughs in a list", pickle: "]q\x00" + strings.Repeat("0](h\x00h\x00h\x00h\x00h\x00h\x00h\x00h\x00h\x00h\x00eq\x00", 40) + ".", msg: "containers are repeated inside each other"},
	{name: "nested 100000 deep", pickle: strings.Repeat("]", 100_000) + strings.Repeat("a", 99_999) + ".", msg: "nested more than 64 deep"},
	{name: "nested 65 deep", pickle: strings.Repeat("]", 65) + strings.Repeat("a", 64) + ".", msg: "nested more than 64 deep"},
	{name: "stack of two million", pickle: strings.Repeat("N", 2_000_000), msg: "more than 1048576 values on the stack"},
	{name: "two million marks", pickle: strings.Repeat("(", 2_000_000), msg: "more than 1048576 values on the stack"},
	{name: "string encoded many times", pickle: name("_codecs", "encode") + "q\x00(" + str(strings.Repeat("s", 100_000)) + str("latin1") + "tq\x01" + strings.Repeat("h\x00h\x01R", 1000) + ".", msg: "out of proportion to a pickle"},
	{name: "set made many times", pickle: name("builtins", "set") + "q\x00](" + strings.Repeat("N", 10_000) + "e\x85q\x01" + strings.Repeat("h\x00h\x01R", 1000) + ".", msg: "out of proportion to a pickle"},
	{name: "Counter made many times", pickle: name("collections", "Counter") + "q\x00}(" + manyKeys(2000) + "u\x85q\x01" + strings.Repeat("h\x00h\x01R", 1000) + ".", msg: "out of proportion to a pickle"},
	{name: "OrderedDict made many times", pickle: name("collections", "OrderedDict") + "q\x00](" + strings.Repeat("NN\x86", 2000) + "e\x85q\x01" + strings.Repeat("h\x00h\x01R", 1000) + ".", msg: "given twice"},
	{name: "tensor made many times", pickle: name("torch._utils", "_rebuild_tensor") + "q\x00(" + persistent(floats, "0", 6) + num(0) + nums(make([]int64, 64)...) + nums(make([]int64, 64)...) + "tq\x01(" + strings.Repeat("h\x00h\x01R", 10_000) + "l.", msg: "out of proportion to a pickle"},
	{name: "key of 65537 bytes", pickle: "}" + str(strings.Repeat("k", 65537)) + "Ns.", msg: "a key of 65537 bytes, expected at most 65536", unsupported: true},
	{name: "long key above many tensors", pickle: "}" + str(strings.Repeat("k", 60_000)) + "(" + view6(0, nums(6), nums(1)) + "q\x01" + strings.Repeat("h\x01", 1000) + "ls.", msg: "names of all tensors are much longer"},
}

func TestBadPickles(t *testing.T) {
	for _, test := range badPickles {
		t.Run(test.name, func(t *testing.T) {
			file := checkpoint(test.pickle)
			err := parseBounded(t, file)
			var g *GlobalError
			var u *format.UnsupportedError
			var f *format.FormatError
			switch {
			case err == nil:
				t.Fatal("accepted")
			case test.global != "":
				if !errors.As(err, &g) || g.Name != test.global || !errors.As(err, &u) {
					t.Fatalf("%v, expected a GlobalError of %s", err, test.global)
				}
			case test.unsupported:
				if !errors.As(err, &u) {
					t.Errorf("%v, expected an UnsupportedError", err)
				}
			case !errors.As(err, &f):
				t.Errorf("%v, expected a FormatError", err)
			}
			if !strings.Contains(err.Error(), test.msg) {
				t.Errorf("%v, expected %q", err, test.msg)
			}
			if len(err.Error()) > 700 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}

// parseBounded is the error of Parse, whose memory is measured.
func parseBounded(t *testing.T, file []byte) error {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Parse(file, format.Limits{})
	runtime.ReadMemStats(&after)
	if spent, most := after.TotalAlloc-before.TotalAlloc, uint64(192*len(file)+1<<20); spent > most {
		t.Errorf("allocated %d bytes for a file of %d", spent, len(file))
	}
	return err
}

// Right pickles that make much of few bytes take no more memory than in
// proportion to them.
func TestMemory(t *testing.T) {
	const n = 300_000
	for what, pickle := range map[string]string{
		"dicts":               "](" + strings.Repeat("}", n) + "e.",
		"lists, one by one":   "]" + strings.Repeat("]a", n) + ".",
		"tuples of one":       "](" + strings.Repeat("N\x85", n) + "e.",
		"dicts of one":        "](" + strings.Repeat("}NNs", n) + "e.",
		"memo":                "N" + strings.Repeat("\x94", n) + ".",
		"one list many times": "]q\x00(" + strings.Repeat("h\x00", n) + "t2\x86.",
		"integers":            "](" + strings.Repeat("\x8a\x09xxxxxxxxx", n/4) + "e.",
		"nested and dropped":  strings.Repeat("]", n) + strings.Repeat("0", n) + "N.",
		"tensors":             "](" + strings.Repeat(view6(0, nums(2, 3), nums(1, 2)), n/100) + "e.",
	} {
		if err := parseBounded(t, checkpoint(pickle)); err != nil && what != "one list many times" {
			t.Errorf("%s: %v", what, err)
		}
		if t.Failed() {
			t.Fatal(what)
		}
	}
}

// Unusual pickles that are right.
func TestGoodPickles(t *testing.T) {
	for _, test := range []struct{ name, pickle, want string }{
		{"one", view6(0, nums(6), nums(1)), "[6] " + sixFloats},
		{"scalar", view6(5, ")", ")"), "[] " + sixFloats[20:]},
		{"stride without meaning", view6(3, nums(1, 1), nums(math.MaxInt64, math.MaxInt64)), "[1, 1] " + sixFloats[12:16]},
		{"stride without meaning, copied", view6(0, nums(1, 2), nums(math.MaxInt64, 3)), "[1, 2] " + sixFloats[:4] + sixFloats[12:16]},
		{"empty, far away", view6(99, nums(0, 1<<62), nums(1, 1)), "[0, 4611686018427387904] "},
		{"expanded", view6(1, nums(2, 2), nums(0, 0)), "[2, 2] " + strings.Repeat(sixFloats[4:8], 4)},
		{"torch.Size", view6(0, name("torch", "Size")+nums(2)+"\x85R", nums(3)), "[2] " + sixFloats[:4] + sixFloats[12:16]},
		{"old rebuild", name("torch._utils", "_rebuild_tensor") + tup(persistent(name("torch.cuda", "FloatStorage"), "0", 6), num(1), nums(1), nums(1)) + "R", "[1] " + sixFloats[4:8]},
		{"parameter with state", name("torch._utils", "_rebuild_parameter_with_state") + tup(view6(0, nums(1), nums(1)), "\x88", "N", "}") + "R", "[1] " + sixFloats[:4]},
		{"untyped", typedTensor(name("torch", "float8_e5m2"), 24), "[24] " + sixFloats},
		{"v2 with empty metadata", name("torch._utils", "_rebuild_tensor_v2") + tup(persistent(floats, "0", 6), num(0), nums(1), nums(1), "\x89", "N", "}"+str("conj")+"\x89s") + "R", "[1] " + sixFloats[:4]},
		{"marks and pops", "(NN1N0(0" + view6(0, nums(1), nums(1)) + "20", "[1] " + sixFloats[:4]},
		{"PUT anywhere", "N" + "r\xff\xff\xff\xff" + "0" + view6(0, nums(1), nums(1)), "[1] " + sixFloats[:4]},
	} {
		f, err := Parse(checkpoint(test.pickle+"."), format.Limits{})
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		tensor := f.Root().(*Tensor)
		if got := tensor.Shape.String() + " " + string(tensor.Data); got != test.want {
			t.Errorf("%s: %q, expected %q", test.name, got, test.want)
		}
	}
}

// A storage that was saved by itself, in both containers.
func TestBareStorage(t *testing.T) {
	for _, file := range [][]byte{
		checkpoint(persistent(floats, "0", 6) + "."),
		legacy(persistent(floats, "0", 6), "]"+str("0")+"a", "\x06\x00\x00\x00\x00\x00\x00\x00"+sixFloats),
	} {
		f, err := Parse(file, format.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		s, ok := f.Root().(*Storage)
		if !ok || s.DType != quant.F32 || string(s.Data) != sixFloats || len(f.Tensors()) != 0 {
			t.Errorf("%#v, expected a storage of six floats and no tensor", f.Root())
		}
	}
}

// Names of the file do not reach the terminal as they are.
func TestErrorsArePrintable(t *testing.T) {
	const evil = "\x1b[31m"
	for _, file := range [][]byte{
		zipFile(member{"a" + evil + "/data.pkl", "}"}),
		zipFile(member{"a" + evil + "/data.pkl", persistent(floats, evil, 6)}),
		zipFile(member{"../" + evil, ""}),
		checkpoint(name("m"+evil, "x")),
		checkpoint("}" + str(evil) + "Ns" + str(evil) + "Ns."),
		checkpoint("I" + evil + "\n."),
		[]byte(evil),
	} {
		_, err := Parse(file, format.Limits{})
		if err == nil || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q", err)
		}
	}
}

// Each opcode of the plain ones, by its value.
func TestOpcodes(t *testing.T) {
	for _, test := range []struct{ pickle, want string }{
		{"I01\n", "true"}, {"I00\n", "false"}, {"I-7\n", "-7"}, {"L-7L\n", "-7"}, {"L7\n", "7"},
		{"J\xff\xff\xff\xff", "-1"}, {"J\x00\x00\x00\x80", "-2147483648"}, {"K\xff", "255"}, {"M\xff\xff", "65535"},
		{"\x8a\x00", "0"}, {"\x8a\x01\xff", "-1"}, {"\x8a\x02\xff\x00", "255"}, {"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00", "9223372036854775808"},
		{"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80", "-9223372036854775808"}, {"\x8b\x01\x00\x00\x00\x80", "-128"},
		{"F-1.5\n", "-1.5"}, {"F1e999\n", "+Inf"}, {"G\xbf\xf8\x00\x00\x00\x00\x00\x00", "-1.5"},
		{"N", "<nil>"}, {"\x88", "true"}, {"\x89", "false"},
		{"S'a b'\n", "a b"}, {"S\"a'\"\n", "a'"}, {"Va\xc3\xa9\n", "aé"}, {"U\x01a", "a"}, {"T\x01\x00\x00\x00a", "a"},
		{"\x8c\x01a", "a"}, {"\x8d\x01\x00\x00\x00\x00\x00\x00\x00a", "a"},
		{"C\x01\xff", "[255]"}, {"B\x01\x00\x00\x00\xff", "[255]"}, {"\x8e\x01\x00\x00\x00\x00\x00\x00\x00\xff", "[255]"}, {"\x96\x01\x00\x00\x00\x00\x00\x00\x00\xff", "[255]"},
		{")", "&{[]}"}, {"N\x85", "&{[<nil>]}"}, {"K\x01K\x02\x86", "&{[1 2]}"}, {"K\x01K\x02K\x03\x87", "&{[1 2 3]}"}, {"(K\x01t", "&{[1]}"},
		{"]", "&{[]}"}, {"(K\x01l", "&{[1]}"}, {"]K\x01a", "&{[1]}"}, {"](K\x01K\x02e", "&{[1 2]}"},
		{"\x8f(K\x01\x90", "&{[1]}"}, {"(K\x01\x91", "&{[1]}"}, {"(K\x01K\x02d", "[{1 2}]"}, {"}K\x01K\x02s", "[{1 2}]"},
		{"K\x05p300\n0g300\n", "5"}, {"K\x05q\x070h\x07", "5"}, {"K\x05r\x00\x01\x00\x000j\x00\x01\x00\x00", "5"}, {"\x80\x04K\x05\x940h\x00", "5"},
		{"\x80\x04\x95\x01\x00\x00\x00\x00\x00\x00\x00N", "<nil>"},
		{name("torch", "device") + str("cuda") + "K\x02\x86R", "cuda:2"}, {name("torch", "bfloat16"), "bfloat16"},
		{name("__builtin__", "set") + "]K\x01a\x85R", "&{[1]}"}, {name("builtins", "frozenset") + ")R", "&{[]}"}, {name("__builtin__", "bytes") + ")R", "[]"},
		{name("_codecs", "encode") + "X\x02\x00\x00\x00\xc3\xbf" + str("latin1") + "\x86R", "[255]"},
		{name("collections", "OrderedDict") + "](K\x01K\x02la\x85R", "[{1 2}]"}, // a pair is a list in Python 2
	} {
		f, err := Parse(checkpoint(test.pickle+"."), format.Limits{})
		if err != nil {
			t.Errorf("%q: %v", test.pickle, err)
			continue
		}
		got := fmt.Sprint(f.Root())
		if d, ok := f.Root().(*Dict); ok {
			got = fmt.Sprint(d.Entries)
		}
		if got != test.want {
			t.Errorf("%q: %s, expected %s", test.pickle, got, test.want)
		}
	}
}

// Limits other than the defaults.
func TestLimits(t *testing.T) {
	file := checkpoint("(" + view6(0, nums(6), nums(1)) + view6(0, nums(6), nums(1)) + "]]a" + str(strings.Repeat("s", 40)) + "l.")
	if _, err := Parse(file, format.Limits{}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		lim format.Limits
		msg string
	}{
		{format.Limits{Tensors: 1}, "more than"},
		{format.Limits{NestingDepth: 2}, "nested more than 2 deep"},
		{format.Limits{HeaderBytes: 100}, "limit of 100 bytes"},
		{format.Limits{StringBytes: 39}, "a length of 40 bytes, expected at most 39"},
	} {
		if _, err := Parse(file, test.lim); err == nil || !strings.Contains(err.Error(), test.msg) {
			t.Errorf("%+v: %v, expected %q", test.lim, err, test.msg)
		}
	}
	many := checkpoint("(" + strings.Repeat("N", 100) + "l.")
	if _, err := Parse(many, format.Limits{Tensors: 2}); err == nil || !strings.Contains(err.Error(), "more than 64 opcodes") {
		t.Error(err)
	}
}

var oneTensor = view6(0, nums(6), nums(1)) + "."

// rawZip is an archive of one member whose directory entry may lie.
func rawZip(change func(h *zip.FileHeader)) []byte {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, m := range []member{{"a/data.pkl", oneTensor}, {"a/data/0", sixFloats}} {
		h := &zip.FileHeader{Name: m.name, Method: zip.Store, CRC32: crc32.ChecksumIEEE([]byte(m.data)),
			CompressedSize64: uint64(len(m.data)), UncompressedSize64: uint64(len(m.data))}
		if m.name == "a/data/0" {
			change(h)
		}
		f, err := w.CreateRaw(h)
		if err == nil {
			_, err = f.Write([]byte(m.data))
		}
		if err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// zip64File is an archive in the form for more than 4 GiB: every size and
// offset is in the extra fields.
func zip64File(members ...member) []byte {
	le := binary.LittleEndian
	const far = math.MaxUint32
	var out, directory []byte
	for _, m := range members {
		at, size := uint64(len(out)), uint64(len(m.data))
		common := func(b []byte, extra int) []byte { // from the version needed on
			b = le.AppendUint16(b, 45)
			b = append(b, make([]byte, 8)...) // flags, method, time
			b = le.AppendUint32(b, crc32.ChecksumIEEE([]byte(m.data)))
			b = le.AppendUint32(le.AppendUint32(b, far), far)
			b = le.AppendUint16(b, uint16(len(m.name)))
			return le.AppendUint16(b, uint16(extra))
		}
		out = common(append(out, "PK\x03\x04"...), 20)
		out = append(out, m.name...)
		out = le.AppendUint16(le.AppendUint16(out, 1), 16)
		out = le.AppendUint64(le.AppendUint64(out, size), size)
		out = append(out, m.data...)
		directory = le.AppendUint16(append(directory, "PK\x01\x02"...), 45)
		directory = common(directory, 28)
		directory = append(directory, make([]byte, 10)...) // comment, disk, attributes
		directory = le.AppendUint32(directory, far)
		directory = append(directory, m.name...)
		directory = le.AppendUint16(le.AppendUint16(directory, 1), 24)
		directory = le.AppendUint64(le.AppendUint64(directory, size), size)
		directory = le.AppendUint64(directory, at)
	}
	start, n := uint64(len(out)), uint64(len(members))
	out = append(out, directory...)
	end := uint64(len(out))
	out = le.AppendUint64(append(out, "PK\x06\x06"...), 44)
	out = le.AppendUint16(le.AppendUint16(out, 45), 45)
	out = append(out, make([]byte, 8)...) // disks
	out = le.AppendUint64(le.AppendUint64(out, n), n)
	out = le.AppendUint64(le.AppendUint64(out, uint64(len(directory))), start)
	out = append(out, "PK\x06\x07\x00\x00\x00\x00"...)
	out = le.AppendUint64(out, end)
	out = le.AppendUint32(out, 1)
	out = append(out, "PK\x05\x06\x00\x00\x00\x00\xff\xff\xff\xff"...)
	out = le.AppendUint32(le.AppendUint32(out, far), far)
	return append(out, 0, 0)
}

func TestContainers(t *testing.T) {
	basic := []member{{"a/data.pkl", oneTensor}, {"a/data/0", sixFloats}}
	with := func(more ...member) []byte { return zipFile(append(basic[:2:2], more...)...) }
	deflated := func() []byte {
		var out bytes.Buffer
		w := zip.NewWriter(&out)
		f, err := w.Create("a/data.pkl") // Create compresses
		if err == nil {
			_, err = f.Write(bytes.Repeat([]byte("N0"), 1<<20))
		}
		if err != nil || w.Close() != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	object := tensorOf(persistent(floats, "7", 6), 0, nums(6), nums(1))
	keys := "]" + str("7") + "a"
	six := "\x06\x00\x00\x00\x00\x00\x00\x00"
	for _, test := range []struct {
		name        string
		file        []byte
		msg         string // empty: must be read
		unsupported bool
	}{
		{"zip", with(), "", false},
		{"zip64", zip64File(basic...), "", false},
		{"zip with folders", with(member{"a/", ""}, member{"a/data/", ""}), "", false},
		{"zip with a comment after", append(with()[:len(with())-2], "\x02\x00hi"...), "", false},
		{"zip, other members", with(member{"a/.data/serialization_id", "1"}, member{"b/x/data.pkl", "N."}), "", false},
		{"version 10", with(member{"a/version", "10\n"}), "", false},
		{"version 11", with(member{"a/version", "11\n"}), "version 11 of the container", true},
		{"version three", with(member{"a/version", "three"}), `found "three", expected a number`, false},
		{"big-endian", with(member{"a/byteorder", "big"}), "big-endian data", true},
		{"other byte order", with(member{"a/byteorder", "middle"}), `found "middle", expected little or big`, false},
		{"two pickles", with(member{"b/data.pkl", "N."}), `2 pickles ("a, b"), expected one`, false},
		{"one pickle twice", with(member{"a/data.pkl", "N."}), `two members with the name "a/data.pkl"`, false},
		{"one storage twice", with(member{"a/data/0", sixFloats}), "two members with the name", false},
		{"TorchScript", with(member{"a/constants.pkl", "N."}), "a TorchScript program", true},
		{"no pickle", zipFile(member{"a/b", ""}), "no member NAME/data.pkl among 1", false},
		{"pickle at the top", zipFile(member{"data.pkl", "N."}), "no member NAME/data.pkl", false},
		{"no members", zipFile(), "no member NAME/data.pkl among 0", false},
		{"path up", with(member{"a/../../etc/passwd", ""}), `name "a/../../etc/passwd", expected a plain path`, false},
		{"path absolute", with(member{"/etc/passwd", ""}), "expected a plain path", false},
		{"path with backslash", with(member{`a\data.pkl`, ""}), "expected a plain path", false},
		{"path with NUL", with(member{"a/data/0\x00", ""}), "expected a plain path", false},
		{"path with dot", with(member{"a/./data.pkl", ""}), "expected a plain path", false},
		{"path empty", with(member{"", ""}), "expected a plain path", false},
		{"zip bomb", deflated(), "compressed (method 8)", true},
		{"storage compressed", rawZip(func(h *zip.FileHeader) { h.Method = zip.Deflate }), "compressed (method 8)", true},
		{"storage encrypted", rawZip(func(h *zip.FileHeader) { h.Flags |= 1 }), "encrypted", true},
		{"two sizes", rawZip(func(h *zip.FileHeader) { h.UncompressedSize64 = 1 << 40 }), "24 stored bytes of 1099511627776", false},
		{"1 TiB stored", rawZip(func(h *zip.FileHeader) { h.CompressedSize64, h.UncompressedSize64 = 1<<40, 1<<40 }), "reach beyond the end", false},
		{"2^64-1 stored", rawZip(func(h *zip.FileHeader) {
			h.CompressedSize64, h.UncompressedSize64 = math.MaxUint64, math.MaxUint64
		}), "", false},
		{"bytes before the zip", append([]byte("#!"), with()...), "expected a zip archive or a pickle", false},
		{"PK only", []byte("PK"), "zip: not a valid zip file", false},
		{"PK\\x03\\x04 only", []byte("PK\x03\x04"), "zip: not a valid zip file", false},

		{"legacy", legacy(object, keys, six+sixFloats), "", false},
		{"legacy without storages", legacy("}", "]", ""), "", false},
		{"legacy, protocol 0", bytes.Replace(legacy("}", "]", ""), []byte("\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"), []byte("L119547037146038801333356L\n"), 1), "", false},
		{"legacy, one byte short", legacy(object, keys, six+sixFloats[:23]), "only 23 bytes are left", false},
		{"legacy, one byte more", legacy(object, keys, six+sixFloats+"x"), "1 bytes after the last storage", false},
		{"legacy, other length", legacy(object, keys, "\x05"+six[1:]+sixFloats), "5 elements, expected 6 as in the pickle", false},
		{"legacy, length of 1 TiB", legacy(object, keys, "\x00\x00\x00\x00\x00\x01\x00\x00"+sixFloats), "1099511627776 elements, expected 6", false},
		{"legacy, 1 TiB in both", legacy(tensorOf(persistent(floats, "7", 1<<40), 0, nums(6), nums(1)), keys, "\x00\x00\x00\x00\x00\x01\x00\x00"+sixFloats), "but only 24 bytes are left", false},
		{"legacy, no length", legacy(object, keys, six[:7]), "7 bytes are left, expected a number of elements", false},
		{"legacy, key missing", legacy(object, "]", ""), "0 storages, expected the 1", false},
		{"legacy, key unknown", legacy(object, "]"+str("8")+"a", six+sixFloats), `found "8", which the object does not use`, false},
		{"legacy, key twice", legacy(object, "]("+str("7")+str("7")+"e", six+sixFloats+six+sixFloats), "listed twice", false},
		{"legacy, key a number", legacy(object, "]K\x07a", six+sixFloats), "found an int as a key", false},
		{"legacy, keys a dict", legacy(object, "}", ""), "found a dict, expected a list", false},
		{"legacy, keys a tensor", legacy(object, object, ""), "a persistent id where no tensor is expected", false},
		{"legacy, view too large", legacy(tensorOf(persistent(floats, "7", 6), 1, nums(6), nums(1)), keys, six+sixFloats), "reaches to element 6", false},
		{"legacy, evil object", legacy(name("posix", "system")+str("x")+"\x85R", "]", ""), "posix.system", true},
		{"legacy, big-endian", bytes.Replace(legacy("}", "]", ""), []byte("\x88s."), []byte("\x89s."), 1), "big-endian data", true},
		{"legacy, no byte order", bytes.Replace(legacy("}", "]", ""), []byte("\x88s."), []byte("Ns."), 1), "no truth value little_endian", false},
		{"legacy, machine a list", bytes.Replace(legacy("}", "]", ""), []byte("\x80\x02}X"), []byte("\x80\x02].\x80\x02}X"), 1), "found a list, expected a dict", false},
		{"legacy, protocol 1002", bytes.Replace(legacy("}", "]", ""), []byte("M\xe9\x03"), []byte("M\xea\x03"), 1), "found another value than 1001", false},
		{"plain pickle", []byte("\x80\x02}."), "found a dict, expected the magic number of torch.save", true},
		{"plain pickle, evil", []byte("cposix\nsystem\n(S'id'\ntR."), "posix.system", true},
		{"plain pickle, mark first", []byte("(lp0\n."), "a pickle that Python wrote without PyTorch", true},
		{"other number", []byte("\x80\x02K\x01."), "expected the magic number", true},

		{"empty", nil, "the file is empty", false},
		{"Git LFS", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"), "git lfs pull", false},
		{"GGUF", []byte("GGUF\x03\x00\x00\x00"), `starts with "GGUF", expected a zip archive or a pickle`, false},
		{"JSON", []byte("{}"), `starts with "{}"`, false},
		{"tar", append(append(make([]byte, 257), "ustar\x0000"...), make([]byte, 300)...), "a tar archive", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := parseBounded(t, test.file)
			var u *format.UnsupportedError
			var f *format.FormatError
			switch {
			case test.msg == "" && test.name != "2^64-1 stored":
				if err != nil {
					t.Error(err)
				}
			case err == nil:
				t.Error("accepted")
			case !strings.Contains(err.Error(), test.msg):
				t.Errorf("%v, expected %q", err, test.msg)
			case test.unsupported && !errors.As(err, &u), !test.unsupported && !errors.As(err, &f):
				t.Errorf("%v is a %T", err, err)
			}
		})
	}
}

// smallFiles are the files of testdata and of the shared cases.
func smallFiles(t testing.TB) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for _, pattern := range []string{"testdata/*.pt", "testdata/shared/*/*.bin"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatal(pattern, err)
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files[path] = data
		}
	}
	return files
}

// No beginning of a file is a file.
func TestTruncated(t *testing.T) {
	for path, data := range smallFiles(t) {
		if strings.Contains(path, "refused") || strings.Contains(path, "evil") {
			continue
		}
		for n := range data {
			_, err := Parse(data[:n], format.Limits{})
			var f *format.FormatError
			if !errors.As(err, &f) {
				t.Fatalf("%s, first %d of %d bytes: %v, expected a FormatError", path, n, len(data), err)
			}
			if f.Offset > int64(n) {
				t.Errorf("%s, first %d bytes: %v is beyond the end", path, n, err)
			}
		}
	}
}

// A changed byte is an error of this package, or harmless. Every fourth byte
// of each file, all with FPA_LONG_TESTS=1.
func TestChangedBytes(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	step := 4
	if os.Getenv("FPA_LONG_TESTS") == "1" {
		step = 1
	}
	for path, data := range smallFiles(t) {
		for i := rng.IntN(step); i < len(data); i += step {
			changed := bytes.Clone(data)
			changed[i] ^= byte(1 + rng.IntN(255))
			check(t, path, changed)
		}
	}
}

// check parses a file that may be damaged, and looks at what comes out.
func check(t *testing.T, what string, file []byte) {
	t.Helper()
	f, err := Parse(file, format.Limits{})
	if err != nil {
		var u *format.UnsupportedError
		var fe *format.FormatError
		if !errors.As(err, &u) && !errors.As(err, &fe) {
			t.Fatalf("%s: a %T: %v", what, err, err)
		}
		return
	}
	for _, tensor := range f.Tensors() {
		n, err := tensor.Shape.Elements()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if bytes, err := tensor.DType.Bytes(n); err != nil || bytes != int64(len(tensor.Data)) {
			t.Fatalf("%s: %s has %d bytes for %v of %s (%v)", what, tensor.Name, len(tensor.Data), tensor.Shape, tensor.DType, err)
		}
	}
	tensors, err := f.StateDict("")
	if err == nil && len(tensors) > len(f.Tensors()) {
		t.Fatalf("%s: a state dict of %d of %d tensors", what, len(tensors), len(f.Tensors()))
	}
}

// Views with random shapes, strides and offsets, against an index by hand.
func TestRandomViews(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	read := 0
	for range 3000 {
		dims := rng.IntN(5)
		shape, strides := make([]int64, dims), make([]int64, dims)
		for i := range dims {
			shape[i], strides[i] = rng.Int64N(4), rng.Int64N(4)
		}
		offset := rng.Int64N(4)
		// The elements' places, by counting through all indices.
		places := []int64{offset}
		for i := range dims {
			var next []int64
			for _, p := range places {
				for j := range shape[i] {
					next = append(next, p+j*strides[i])
				}
			}
			places = next
		}
		var want []byte
		fits := true
		for _, p := range places {
			if p >= 6 {
				fits = false
				break
			}
			want = append(want, sixFloats[4*p:4*p+4]...)
		}
		f, err := Parse(checkpoint(view6(offset, nums(shape...), nums(strides...))+"."), format.Limits{})
		if (err == nil) != fits {
			t.Fatalf("shape %v, strides %v, offset %d: %v, expected it to fit: %t", shape, strides, offset, err, fits)
		}
		if err != nil {
			continue
		}
		read++
		if got := f.Tensors()[0].Data; !bytes.Equal(got, want) {
			t.Fatalf("shape %v, strides %v, offset %d: % x, expected % x", shape, strides, offset, got, want)
		}
	}
	if read < 500 {
		t.Errorf("only %d views fitted", read)
	}
}

func FuzzReader(f *testing.F) {
	for _, data := range smallFiles(f) {
		f.Add(data)
	}
	f.Add(zip64File(member{"a/data.pkl", oneTensor}, member{"a/data/0", sixFloats}))
	f.Fuzz(func(t *testing.T, data []byte) { check(t, "file", data) })
}

func FuzzPickle(f *testing.F) {
	for _, p := range badPickles {
		if len(p.pickle) < 1000 {
			f.Add(p.pickle)
		}
	}
	f.Add(oneTensor)
	f.Fuzz(func(t *testing.T, pickle string) { check(t, "pickle", checkpoint(pickle)) })
}
