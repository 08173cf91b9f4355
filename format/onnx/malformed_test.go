package onnx

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/firstpassage/fpa/format"
)

// msg is a message being made by hand.
type msg []byte

func (m msg) int(num protowire.Number, v int64) msg {
	return protowire.AppendVarint(protowire.AppendTag(m, num, protowire.VarintType), uint64(v))
}

func (m msg) str(num protowire.Number, s string) msg {
	return protowire.AppendString(protowire.AppendTag(m, num, protowire.BytesType), s)
}

func (m msg) sub(num protowire.Number, s msg) msg { return m.str(num, string(s)) }

func (m msg) add(s msg) msg { return append(m[:len(m):len(m)], s...) }

// raw appends bytes as they are.
func (m msg) raw(s string) msg { return m.add(msg(s)) }

// cat puts messages one after the other.
func cat(parts ...msg) msg { return msg(bytes.Join(bytesOf(parts), nil)) }

func bytesOf(parts []msg) [][]byte {
	out := make([][]byte, len(parts))
	for i, p := range parts {
		out[i] = p
	}
	return out
}

func opsetMsg(domain string, version int64) msg { return msg{}.str(1, domain).int(2, version) }

// modelMsg is a model of version 8 with opset 17 and a graph with these fields
// beside its name.
func modelMsg(graph ...msg) msg {
	return msg{}.int(1, 8).sub(7, msg{}.str(2, "g").add(cat(graph...))).sub(8, opsetMsg("", 17))
}

// valueMsg is a described F32 scalar.
func valueMsg(name string) msg {
	return msg{}.str(1, name).sub(2, msg{}.sub(1, msg{}.int(1, 1).sub(2, msg{})))
}

func inMsg(name string) msg  { return msg{}.sub(11, valueMsg(name)) }
func outMsg(name string) msg { return msg{}.sub(12, valueMsg(name)) }

// nodeBody is a node of the graph from one value to another.
func nodeBody(op, in, out string) msg { return msg{}.str(1, in).str(2, out).str(4, op) }

func nodeMsg(op, in, out string) msg { return msg{}.sub(1, nodeBody(op, in, out)) }

// tensorMsg is an initializer of the graph.
func tensorMsg(fields ...msg) msg { return msg{}.sub(5, msg{}.str(8, "w").add(cat(fields...))) }

func dims(d ...int64) msg {
	var m msg
	for _, x := range d {
		m = m.int(1, x)
	}
	return m
}

func elem(t DataType) msg { return msg{}.int(2, int64(t)) }

func rawData(n int) msg { return msg{}.str(tensorRaw, strings.Repeat("\x00", n)) }

// external is external data with these keys and values.
func external(pairs ...string) msg {
	m := msg{}.int(14, 1)
	for i := 0; i < len(pairs); i += 2 {
		m = m.sub(13, msg{}.str(1, pairs[i]).str(2, pairs[i+1]))
	}
	return m
}

// functionMsg is a function of domain d with a body of these nodes.
func functionMsg(name string, nodes ...msg) msg {
	f := msg{}.str(1, name).str(4, "a").str(5, "z")
	for _, n := range nodes {
		f = f.sub(7, n)
	}
	return msg{}.sub(25, f.sub(9, opsetMsg("", 17)).sub(9, opsetMsg("d", 1)).str(10, "d"))
}

// callMsg is a node that calls a function of domain d.
func callMsg(name, in, out string) msg { return nodeBody(name, in, out).str(7, "d") }

// nestedMsg is a node with graphs in one another.
func nestedMsg(depth int) msg {
	n := nodeBody("Relu", "x", "y")
	for i := range depth {
		body := msg{}.sub(1, n).str(2, fmt.Sprint("g", i))
		n = nodeBody("If", "x", fmt.Sprint("y", i)).sub(5, msg{}.str(1, "then_branch").sub(6, body).int(20, int64(KindGraph)))
	}
	return n
}

type malformed struct {
	name        string
	data        msg
	want        string // in the error
	unsupported bool   // the error is an UnsupportedError
}

// wellFormed are inputs like those below, without the mistake.
func wellFormed() map[string]msg {
	bomb := msg{}
	for range 1000 {
		bomb = bomb.int(1, 1)
	}
	return map[string]msg{
		"smallest":        modelMsg(),
		"one node":        modelMsg(inMsg("x"), nodeMsg("Relu", "x", "y"), outMsg("y")),
		"scalar":          modelMsg(tensorMsg(elem(Float), rawData(4))),
		"no elements":     modelMsg(tensorMsg(elem(Float), dims(3, 0))),
		"packed dims":     modelMsg(tensorMsg(elem(Uint8), msg{}.str(1, "\x02\x03"), rawData(6))),
		"half byte":       modelMsg(tensorMsg(elem(Int4), dims(3), rawData(2))),
		"many dims":       modelMsg(tensorMsg(elem(Float), bomb, rawData(4))),
		"typed":           modelMsg(tensorMsg(elem(Float16), dims(2), msg{}.str(5, "\x80\x78\x00"))),
		"typed, negative": modelMsg(tensorMsg(elem(Int8), dims(2), msg{}.int(5, -1).int(5, 127))),
		"typed, 2 ways":   modelMsg(tensorMsg(elem(Int64), dims(3), msg{}.str(7, "\x01\x02").int(7, 3))),
		"unknown fields":  modelMsg().int(1000, 3).str(1001, "x").raw("\xc5\x3e\x01\x02\x03\x04"),
		"floats":          modelMsg(inMsg("x"), msg{}.sub(1, nodeBody("Op", "x", "y").sub(5, msg{}.str(1, "f").raw("\x15\x00\x00\xc0\x7f").int(20, 1)).sub(5, msg{}.str(1, "l").str(7, "\xff\xff\xff\xff")))),
		"nested":          modelMsg(inMsg("x"), msg{}.sub(1, nestedMsg(10))),
		"functions": modelMsg(inMsg("x"), msg{}.sub(1, callMsg("F", "x", "y"))).sub(8, opsetMsg("d", 1)).
			add(functionMsg("F", callMsg("G", "a", "z"))).add(functionMsg("G", nodeBody("Relu", "a", "z"))),
		"external": modelMsg(tensorMsg(elem(Float), dims(4), external("location", "a/b.data", "offset", "4096", "length", "16", "checksum", "0"))),
	}
}

// malformedInputs are refused by Parse or by Check.
func malformedInputs() []malformed {
	one := func(t msg) msg { return modelMsg(tensorMsg(t)) }
	ext := func(pairs ...string) msg { return one(cat(elem(Float), dims(4), external(pairs...))) }
	at := func(location string) msg { return ext("location", location) }
	relu := nodeBody("Relu", "a", "z")
	withD := modelMsg().sub(8, opsetMsg("d", 1))
	attr := func(a msg) msg { return modelMsg(inMsg("x"), msg{}.sub(1, nodeBody("Op", "x", "y").sub(5, a))) }
	bomb := func(b string) msg { return modelMsg().raw(b) }
	return []malformed{
		{"empty", nil, "empty", false},
		{"no graph", msg{}.int(1, 8), "no graph", false},
		{"text", msg("not an onnx file"), "at byte 0", false},
		{"a zip", msg("PK\x03\x04\x14\x00\x00\x00"), "at byte", false},

		{"78 parent", at("../w"), "leads out", false},
		{"78 parent below", at("a/../../x"), `leads out`, false},
		{"78 parent at the end", at("a/.."), `leads out`, false},
		{"78 absolute", at("/etc/passwd"), "is absolute", false},
		{"78 backslash", at(`..\w`), "backslash", false},
		{"78 NUL", at("w\x00.data"), "NUL", false},
		{"78 empty", at(""), "is empty", false},
		{"78 none", ext("offset", "0"), "is empty", false},
		{"78 twice", ext("location", "a", "location", "b"), "twice", false},
		{"79 offset negative", ext("location", "w", "offset", "-1"), "offset -1", false},
		{"79 offset huge", ext("location", "w", "offset", "9223372036854775807"), "offset", false},
		{"79 offset beyond 2^64", ext("location", "w", "offset", "99999999999999999999"), "offset", false},
		{"79 offset no number", ext("location", "w", "offset", "0x10"), "offset", false},
		{"79 length negative", ext("location", "w", "length", "-16"), "expected 16", false},
		{"79 length not the shape's", ext("location", "w", "length", "17"), "expected 16", false},
		{"79 inside too", one(cat(elem(Float), dims(4), external("location", "w"), rawData(16))), "inside too", false},
		{"79 strings", one(cat(elem(String), dims(1), external("location", "w"))), "STRING", false},
		{"80 short", one(cat(elem(Float), dims(2, 3), rawData(23))), `tensor "w": raw_data has 23 bytes, expected 24 for FLOAT of shape [2, 3]`, false},
		{"80 long", one(cat(elem(Float16), dims(2), rawData(5))), "expected 4", false},
		{"80 half bytes", one(cat(elem(Uint4), dims(3), rawData(1))), "expected 2", false},
		{"80 none", one(cat(elem(Float), dims(2))), "no data", false},
		{"80 data of nothing", one(cat(elem(Float), dims(0), rawData(4))), "expected 0", false},
		{"80 typed short", one(cat(elem(Int64), dims(3), msg{}.str(7, "\x01\x02"))), "2 entries, expected 3", false},
		{"80 typed long", one(cat(elem(Bool), dims(1), msg{}.str(5, "\x01\x01"))), "2 entries, expected 1", false},
		{"80 typed floats", one(cat(elem(Float), dims(3), msg{}.str(4, "01234567"))), "8 bytes", false},
		{"80 typed, wrong field", one(cat(elem(Float), dims(1), msg{}.str(7, "\x01"))), "field 7, expected field 4", false},
		{"80 typed, out of range", one(cat(elem(Uint8), dims(1), msg{}.str(5, "\x80\x02"))), "256", false},
		{"80 typed, half an integer", one(cat(elem(Int32), dims(1), msg{}.str(5, "\x80"))), "element 0", false},
		{"80 two forms", one(cat(elem(Float), dims(1), rawData(4), msg{}.str(4, "0123"))), "two fields", false},
		{"80 bool 2", one(cat(elem(Bool), dims(2), msg{}.str(tensorRaw, "\x01\x02"))), "bool byte 2", false},
		{"80 strings", one(cat(elem(String), dims(2), msg{}.str(6, "a"))), "1 strings, expected 2", false},
		{"80 no type", one(cat(dims(1), rawData(4))), "no element type", false},
		{"80 unknown type", one(cat(elem(99), dims(1), rawData(4))), "element type 99", true},
		{"80 segment", one(cat(elem(Float), msg{}.sub(3, msg{}.int(1, 0)))), "segment", true},
		{"81 negative", one(cat(elem(Float), dims(-1), rawData(4))), "negative", false},
		{"81 elements overflow", one(cat(elem(Float), dims(1<<32, 1<<32), rawData(4))), "2^63", false},
		{"81 bytes overflow", one(cat(elem(Double), dims(1<<60), rawData(4))), "overflow", false},
		{"81 elements negative as product", one(cat(elem(Float), dims(-2, -2), rawData(16))), "negative", false},
		{"81 huge and empty", one(cat(elem(Float), dims(math.MaxInt64, 2), rawData(0))), "2^63", false},
		{"81 value", modelMsg(msg{}.sub(11, msg{}.str(1, "x").sub(2, msg{}.sub(1, msg{}.int(1, 1).sub(2, msg{}.sub(1, msg{}.int(1, -2))))))), "dimension 0 is -2", false},
		{"81 sparse", modelMsg(msg{}.sub(15, msg{}.sub(1, cat(elem(Float), dims(0))).sub(2, cat(elem(Int64), dims(0))).int(3, -1))), "negative", false},

		{"82 function calls itself", withD.add(functionMsg("F", callMsg("F", "a", "z"))), `"F" calling "F"`, false},
		{"82 functions call one another", withD.add(functionMsg("F", callMsg("G", "a", "z"))).add(functionMsg("G", callMsg("H", "a", "z"))).add(functionMsg("H", callMsg("F", "a", "z"))), "recursion", false},
		{"82 through a nested graph", withD.add(functionMsg("F", relu, nodeBody("If", "a", "b").sub(5, msg{}.str(1, "then_branch").sub(6, msg{}.sub(1, callMsg("F", "a", "c")).str(2, "t")).int(20, 5)))), "recursion", false},
		{"82 function twice", withD.add(functionMsg("F", relu)).add(functionMsg("F", relu)), "declared twice", false},
		{"82 graphs 1000 deep", modelMsg(inMsg("x"), msg{}.sub(1, nestedMsg(1000))), "nested deeper", true},
		{"82 types 1000 deep", modelMsg(msg{}.sub(11, msg{}.str(1, "x").sub(2, nestedType(1000)))), "nested deeper", true},
		{"83 no opset", msg{}.int(1, 8).sub(7, msg{}.str(2, "g")), "opset_import", false},
		{"83 domain", modelMsg(inMsg("x"), msg{}.sub(1, nodeBody("FirstPassageAttention", "x", "y").str(3, "attn").str(7, "ai.firstpassage"))), `node "attn" (ai.firstpassage::FirstPassageAttention): no opset_import for domain "ai.firstpassage"`, false},
		{"83 domain in a function", withD.add(functionMsg("F", nodeBody("Op", "a", "z").str(7, "e"))), `domain "e"`, false},
		{"83 domain in a nested graph", modelMsg(inMsg("x"), msg{}.sub(1, nodeBody("If", "x", "y").sub(5, msg{}.str(1, "then_branch").sub(6, msg{}.sub(1, callMsg("F", "x", "c")).str(2, "t")).int(20, 5)))), `domain "d"`, false},
		{"83 opset twice", modelMsg().sub(8, opsetMsg("ai.onnx", 18)), "twice", false},
		{"83 opset 0", msg{}.int(1, 8).sub(7, msg{}.str(2, "g")).sub(8, opsetMsg("", 0)), "version 0", false},
		{"84 cycle", modelMsg(nodeMsg("A", "p", "q"), nodeMsg("B", "q", "p")), "cycle", false},
		{"84 own output", modelMsg(nodeMsg("A", "p", "p")), "cycle", false},
		{"84 not sorted", modelMsg(inMsg("x"), nodeMsg("A", "p", "q"), nodeMsg("B", "x", "p")), "not sorted", false},
		{"84 nothing makes it", modelMsg(nodeMsg("A", "p", "q")), `nothing makes its input "p"`, false},
		{"84 output not made", modelMsg(outMsg("y")), `output "y"`, false},
		{"84 duplicate initializer", modelMsg(tensorMsg(elem(Float), dims(0)), tensorMsg(elem(Float), dims(0))), "twice among the initializers", false},
		{"84 duplicate input", modelMsg(inMsg("x"), inMsg("x")), "twice among the inputs", false},
		{"84 duplicate output", modelMsg(inMsg("x"), outMsg("x"), outMsg("x")), "twice among the outputs", false},
		{"84 value made twice", modelMsg(inMsg("x"), nodeMsg("A", "x", "y"), nodeMsg("A", "x", "y")), "exists already", false},
		{"84 value of an input", modelMsg(inMsg("x"), nodeMsg("A", "x", "x")), "exists already", false},
		{"84 initializer without name", modelMsg(msg{}.sub(5, cat(elem(Float), dims(0)))), "no name", false},
		{"84 value used outside its graph", modelMsg(inMsg("x"), msg{}.sub(1, nestedMsg(2)), nodeMsg("A", "y", "z")), `nothing makes its input "y"`, false},
		{"84 initializer no input, version 3", msg{}.int(1, 3).sub(7, msg{}.str(2, "g").add(tensorMsg(elem(Float), dims(0)))).sub(8, opsetMsg("", 8)), "no input of the graph", false},
		{"84 described twice", modelMsg(msg{}.sub(13, valueMsg("v")), msg{}.sub(13, valueMsg("v"))), "described twice", false},
		{"functions in version 7", msg{}.int(1, 7).sub(7, msg{}.str(2, "g")).sub(8, opsetMsg("", 17)).add(functionMsg("F", relu)), "ir_version 8", false},
		{"version 0", msg{}.sub(7, msg{}.str(2, "g")).sub(8, opsetMsg("", 17)), "ir_version is 0", false},
		{"version 15", msg{}.int(1, 15).sub(7, msg{}.str(2, "g")).sub(8, opsetMsg("", 17)), "ir_version 15", true},
		{"graph without name", msg{}.int(1, 8).sub(7, msg{}).sub(8, opsetMsg("", 17)), "name is empty", false},
		{"input without type", modelMsg(msg{}.sub(11, msg{}.str(1, "x"))), "no type", false},

		{"86 varint without end", bomb("\x28" + strings.Repeat("\xff", 20)), "field 5", false},
		{"86 varint cut", bomb("\x28\x80"), "cut short", false},
		{"86 varint of 2^64", bomb("\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"), "field 5", false},
		{"86 tag without end", bomb(strings.Repeat("\xff", 20)), "no tag", false},
		{"86 field number 0", bomb("\x00\x00"), "no tag", false},
		{"86 field number 2^29", bomb("\x80\x80\x80\x80\x10\x00"), "field number 536870912", false},
		{"86 length 2^64-1", bomb("\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "18446744073709551615 bytes", false},
		{"86 length 2^31", bomb("\x12\x80\x80\x80\x80\x08abc"), "2147483648 bytes, but 3 are left", false},
		{"86 length one too large", bomb("\x12\x04abc"), "4 bytes, but 3 are left", false},
		{"86 groups", bomb(strings.Repeat("\x0b", 10_000)), "wire type 3", false},
		{"86 end of a group", bomb("\x0c"), "wire type 4", false},
		{"86 wire type 7", bomb("\x0f"), "wire type 7", false},
		{"86 fixed cut", bomb("\x0d\x00\x00"), "cut short", false},
		{"86 graph twice", modelMsg().sub(7, msg{}.str(2, "h")), "field 7 of the message occurs twice", false},
		{"86 name twice", modelMsg(msg{}.str(2, "h")), "field 2 of the message occurs twice", false},
		{"86 wrong wire type", bomb("\x3a\x00")[len(modelMsg()):].add(msg{}.int(7, 1)), "field 7", false},
		{"86 graph as integer", msg{}.int(1, 8).int(7, 1), "graph (field 7) has wire type 0", false},
		{"86 version as text", msg{}.str(1, "8"), "ir_version (field 1) has wire type 2", false},
		{"not UTF-8", modelMsg(inMsg("\xff")), "UTF-8", false},
		{"node name not UTF-8", modelMsg(msg{}.sub(1, nodeBody("A", "", "").str(3, "\xc3"))), "UTF-8", false},
		{"op_type missing", modelMsg(msg{}.sub(1, msg{}.str(1, "x").str(3, "n"))), "no op_type", false},
		{"node of nothing", modelMsg(msg{}.sub(1, msg{}.str(4, "Op"))), "neither inputs nor outputs", false},
		{"attribute of two kinds", attr(msg{}.str(1, "a").int(3, 1).str(4, "s").int(20, 2)), `attribute "a": more than one kind`, false},
		{"attribute of another type", attr(msg{}.str(1, "a").int(3, 1).int(20, 1)), "value is of type INT", false},
		{"attribute type 99", attr(msg{}.str(1, "a").int(20, 99)), "attribute type", true},
		{"attribute type negative", attr(msg{}.str(1, "a").int(20, -1)), "type is -1", false},
		{"attribute without tensor", attr(msg{}.str(1, "a").int(20, int64(KindTensor))), "no value", false},
		{"attribute without type or value", attr(msg{}.str(1, "a")), "no value", false},
		{"attribute twice", modelMsg(inMsg("x"), msg{}.sub(1, nodeBody("Op", "x", "y").sub(5, msg{}.str(1, "a").int(3, 1).int(20, 2)).sub(5, msg{}.str(1, "a").int(3, 1).int(20, 2)))), "occurs twice", false},
		{"attribute without name", attr(msg{}.int(3, 1).int(20, 2)), "no name", false},
		{"reference and value", attr(msg{}.str(1, "a").int(3, 1).int(20, 2).str(21, "r")), "both a value and a reference", false},
		{"reference outside a function", attr(msg{}.str(1, "a").int(20, 2).str(21, "r")), "is in none", false},
		{"reference to nothing", withD.add(functionMsg("F", nodeBody("Relu", "a", "z").sub(5, msg{}.str(1, "p").int(20, 2).str(21, "r")))), "no attribute of the function", false},
		{"floats of 5 bytes", attr(msg{}.str(1, "a").str(7, "12345").int(20, 6)), "multiple of 4", false},
		{"ints cut", attr(msg{}.str(1, "a").str(8, "\x80").int(20, 7)), "no integer", false},
		{"dimension with two sizes", modelMsg(msg{}.sub(11, msg{}.str(1, "x").sub(2, msg{}.sub(1, msg{}.int(1, 1).sub(2, msg{}.sub(1, msg{}.int(1, 2).str(2, "n"))))))), "both a size and a name", false},
		{"type of two kinds", modelMsg(msg{}.sub(11, msg{}.str(1, "x").sub(2, msg{}.sub(1, msg{}).sub(4, msg{})))), "more than one kind of type", false},
	}
}

// nestedType is a sequence of sequences.
func nestedType(depth int) msg {
	t := msg{}.sub(1, msg{}.int(1, 1))
	for range depth {
		t = msg{}.sub(4, msg{}.sub(1, t))
	}
	return t
}

func parseAndCheck(data []byte) error {
	m, err := Parse(data, format.Limits{})
	if err != nil {
		return err
	}
	return Check(m)
}

func TestWellFormed(t *testing.T) {
	for name, data := range wellFormed() {
		m, err := Parse(data, format.Limits{})
		if err == nil {
			err = Check(m)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		encodeParseEqual(t, m)
	}
}

// encodeParseEqual fails unless a model that was read is read again from what
// Encode makes of it.
func encodeParseEqual(t *testing.T, m *Model) {
	t.Helper()
	var out, out2 bytes.Buffer
	if err := Encode(&out, m); err != nil {
		t.Fatalf("Encode: %v", err)
	}
	again, err := Parse(out.Bytes(), format.Limits{})
	if err != nil {
		t.Fatalf("Parse of what Encode wrote: %v", err)
	}
	if err := Encode(&out2, again); err != nil || !bytes.Equal(out.Bytes(), out2.Bytes()) {
		t.Fatalf("Encode gives other bytes the second time (%v)", err)
	}
	for _, x := range []*Model{m, again} {
		if err := eachTensor(x, rawOnly); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(withoutNaN(m), withoutNaN(again)) {
		t.Fatalf("the model differs after Encode and Parse")
	}
}

// rawOnly replaces a Source, which cannot be compared, by its bytes.
func rawOnly(t *Tensor) error {
	if t.Source == nil {
		return nil
	}
	data, err := t.Data()
	t.Raw, t.Source = data, nil
	return err
}

// withoutNaN replaces floats by their bits, for NaN differs from itself.
func withoutNaN(m *Model) *Model {
	attributes := func(list []*Attribute) {
		for _, a := range list {
			switch v := a.Value.(type) {
			case float32:
				a.Value = math.Float32bits(v)
			case []float32:
				bits := make([]uint32, len(v))
				for i := range v {
					bits[i] = math.Float32bits(v[i])
				}
				a.Value = bits
			}
		}
	}
	for _, f := range m.Functions {
		attributes(f.Defaults)
	}
	_ = m.Walk(func(_ *Graph, nodes *[]*Node) error { // the function never fails
		for _, n := range *nodes {
			attributes(n.Attributes)
		}
		return nil
	})
	return m
}

func TestMalformed(t *testing.T) {
	for _, tt := range malformedInputs() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := parseAndCheck(tt.data)
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: accepted, expected an error with %q", tt.name, tt.want)
			continue
		}
		if !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %q, expected it to contain %q", tt.name, err, tt.want)
		}
		_, wrong := errors.AsType[*format.FormatError](err)
		_, unsupported := errors.AsType[*format.UnsupportedError](err)
		if wrong == unsupported || unsupported != tt.unsupported {
			t.Errorf("%s: error %T, expected unsupported %v", tt.name, err, tt.unsupported)
		}
		if got, most := after.TotalAlloc-before.TotalAlloc, uint64(64<<10+40*len(tt.data)); got > most {
			t.Errorf("%s: %d bytes allocated for a file of %d", tt.name, got, len(tt.data))
		}
	}
}

// TestLimits: many small things in a small file are refused before they fill
// the memory.
func TestLimits(t *testing.T) {
	repeat := func(m msg, n int) msg { return msg(bytes.Repeat(m, n)) }
	lim := format.Limits{HeaderBytes: 100_000, Tensors: 50, KeyValues: 20, StringBytes: 1000, ArrayLength: 500}
	for name, tt := range map[string]struct {
		data msg
		want string
	}{
		"nodes":      {modelMsg(inMsg("x"), repeat(nodeMsg("A", "x", "y"), 51)), "more than 50 nodes"},
		"tensors":    {modelMsg(repeat(tensorMsg(elem(Float), dims(0)), 51)), "more than 50 tensors"},
		"values":     {modelMsg(repeat(inMsg("x"), 51)), "more than 50 described values"},
		"attributes": {modelMsg(msg{}.sub(1, nodeBody("A", "", "y").add(repeat(msg{}.sub(5, msg{}.str(1, "a").int(3, 1)), 51)))), "more than 50 attributes"},
		"metadata":   {modelMsg().add(repeat(msg{}.sub(14, msg{}), 21)), "more than 20 entries"},
		"opsets":     {modelMsg().add(repeat(msg{}.sub(8, msg{}), 21)), "more than 20 opset"},
		"text":       {modelMsg().str(6, strings.Repeat("d", 1001)), "1001 bytes, the limit is 1000"},
		"ints":       {modelMsg(msg{}.sub(1, nodeBody("A", "", "y").sub(5, msg{}.str(1, "a").str(8, strings.Repeat("\x01", 501))))), "more than 500 elements"},
		"floats":     {modelMsg(msg{}.sub(1, nodeBody("A", "", "y").sub(5, msg{}.str(1, "a").str(7, strings.Repeat("\x01", 4*501))))), "more than 500 elements"},
		"names":      {modelMsg(msg{}.sub(1, nodeBody("A", "", "y").add(repeat(msg{}.str(1, ""), 6000)))), "more than 100000 bytes beside tensor data"},
		"dims":       {modelMsg(msg{}.sub(11, msg{}.str(1, "x").sub(2, msg{}.sub(1, msg{}.sub(2, repeat(msg{}.sub(1, msg{}), 1000)))))), "more than 100000 bytes beside tensor data"},
		"unknown":    {modelMsg().str(1000, strings.Repeat("u", 100_001)), "more than 100000 bytes beside tensor data"},
	} {
		_, err := Parse(tt.data, lim)
		if _, ok := errors.AsType[*format.UnsupportedError](err); !ok || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, expected an UnsupportedError with %q", name, err, tt.want)
		}
	}
	// Tensor data do not count.
	if _, err := Parse(modelMsg(tensorMsg(elem(Uint8), dims(200_000), rawData(200_000))), lim); err != nil {
		t.Error(err)
	}
}

// TestDamaged cuts and damages good files everywhere: whatever is accepted
// must survive being written and read.
func TestDamaged(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for name, data := range wellFormed() {
		for n := range len(data) {
			if m, err := Parse(data[:n], format.Limits{}); err == nil && Check(m) == nil {
				encodeParseEqual(t, m)
			}
		}
		for range 300 {
			bad := bytes.Clone(data)
			for range 1 + rng.IntN(3) {
				bad[rng.IntN(len(bad))] = byte(rng.Uint32())
			}
			if m, err := Parse(bad, format.Limits{}); err == nil && Check(m) == nil {
				encodeParseEqual(t, m)
			}
		}
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

// TestExternalFiles is cases 78 and 79 where they need files.
func TestExternalFiles(t *testing.T) {
	floats := make([]byte, 0, 64)
	for i := range 16 {
		floats = binary.LittleEndian.AppendUint32(floats, math.Float32bits(float32(i)))
	}
	top := t.TempDir()
	dir := filepath.Join(top, "model")
	for _, d := range []string{dir, filepath.Join(dir, "sub"), filepath.Join(top, "outside")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"model/w.data", "model/sub/w.data", "outside/secret", "outside/hard", "model/short"} {
		data := floats
		if strings.HasSuffix(f, "short") {
			data = floats[:31]
		}
		if err := os.WriteFile(filepath.Join(top, f), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) bool {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Log("no symbolic links here:", err)
			return false
		}
		return true
	}
	links := link("w.data", "inner") && link("../outside/secret", "outer") && link(filepath.Join(top, "outside", "secret"), "absolute") && link("../outside", "outdir")
	hard := os.Link(filepath.Join(top, "outside", "hard"), filepath.Join(dir, "hard")) == nil
	if info, err := os.Stat(filepath.Join(dir, "hard")); err != nil || linkCount(info) == 0 {
		hard = false // names are not counted here
	}

	open := func(pairs ...string) ([]float32, error) {
		data := modelMsg(tensorMsg(elem(Float), dims(2, 4), external(pairs...)))
		path := filepath.Join(dir, "m.onnx")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path, format.Limits{})
		if err != nil {
			if _, ok := errors.AsType[*format.FormatError](err); !ok || !strings.Contains(err.Error(), path+":") {
				t.Errorf("%v: error %v (%T), expected a FormatError with the path", pairs, err, err)
			}
			return nil, err
		}
		defer f.Close()
		if want := int64(len(data) + len(floats)); f.Size() != want {
			t.Errorf("%v: size %d, expected %d", pairs, f.Size(), want)
		}
		return f.Model.Graph.Initializers[0].Float32s()
	}
	good := [][]string{
		{"location", "w.data"},
		{"location", "./sub/w.data", "offset", "4"},
		{"location", "w.data", "offset", "32", "length", "32"},
	}
	if links {
		good = append(good, []string{"location", "inner"})
	}
	for _, pairs := range good {
		got, err := open(pairs...)
		first := float32(0)
		if len(pairs) > 2 {
			fmt.Sscan(pairs[3], &first)
			first /= 4
		}
		if err != nil || len(got) != 8 || got[0] != first || got[7] != first+7 {
			t.Errorf("%v: %v, %v", pairs, got, err)
		}
	}
	bad := map[string][]string{
		"no regular file": {"location", "sub"},
		"no such file":    {"location", "missing"},
		"bytes 0 to 32":   {"location", "short"},
		"bytes 33 to 65":  {"location", "w.data", "offset", "33"},
		"bytes 9223372036854775775 to 9223372036854775807": {"location", "w.data", "offset", "9223372036854775775"},
	}
	if hard {
		bad["2 names"] = []string{"location", "hard"}
	}
	if links {
		bad["escapes"] = []string{"location", "outer"}
		bad["path escapes"] = []string{"location", "absolute"}
		bad["escapes from parent"] = []string{"location", "outdir/secret"}
	}
	for want, pairs := range bad {
		if got, err := open(pairs...); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `tensor "w"`) {
			t.Errorf("%v: %v, %v, expected an error with %q", pairs, got, err, want)
		}
	}
}

// TestOver2GiB is case 85; the file has a hole, so it takes no space.
func TestOver2GiB(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := os.WriteFile(path, modelMsg(), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<31); err != nil {
		t.Skip("no files with holes here:", err)
	}
	_, err := Open(path, format.Limits{})
	if _, ok := errors.AsType[*format.UnsupportedError](err); !ok || !strings.Contains(err.Error(), "external data") {
		t.Errorf("%v, expected an UnsupportedError that advises external data", err)
	}
}

func FuzzOpen(f *testing.F) {
	for _, data := range wellFormed() {
		f.Add([]byte(data))
	}
	for _, tt := range malformedInputs() {
		f.Add([]byte(tt.data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Parse(data, format.Limits{HeaderBytes: 1 << 20})
		if err != nil {
			_, wrong := errors.AsType[*format.FormatError](err)
			_, unsupported := errors.AsType[*format.UnsupportedError](err)
			if !wrong && !unsupported {
				t.Fatalf("error %v of type %T", err, err)
			}
			return
		}
		_ = Check(m) // either way, without a panic
		encodeParseEqual(t, m)
	})
}
