package torch

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/firstpassage/fpa/format"
)

// The pickle opcodes by their names in Python's pickletools, with what they
// take from the pickle.
const (
	opMark           = '('
	opStop           = '.'
	opPop            = '0'
	opPopMark        = '1'
	opDup            = '2'
	opFloat          = 'F' // line
	opInt            = 'I' // line
	opBinInt         = 'J' // int32
	opBinInt1        = 'K' // uint8
	opLong           = 'L' // line
	opBinInt2        = 'M' // uint16
	opNone           = 'N'
	opPersID         = 'P' // line
	opBinPersID      = 'Q'
	opReduce         = 'R'
	opString         = 'S' // line
	opBinString      = 'T' // int32 length
	opShortBinString = 'U' // uint8 length
	opUnicode        = 'V' // line
	opBinUnicode     = 'X' // uint32 length
	opAppend         = 'a'
	opBuild          = 'b'
	opGlobal         = 'c' // two lines
	opDict           = 'd'
	opAppends        = 'e'
	opGet            = 'g' // line
	opBinGet         = 'h' // uint8
	opInst           = 'i' // two lines
	opLongBinGet     = 'j' // uint32
	opList           = 'l'
	opObj            = 'o'
	opPut            = 'p' // line
	opBinPut         = 'q' // uint8
	opLongBinPut     = 'r' // uint32
	opSetItem        = 's'
	opTuple          = 't'
	opSetItems       = 'u'
	opBinFloat       = 'G' // big-endian float64
	opEmptyTuple     = ')'
	opEmptyList      = ']'
	opEmptyDict      = '}'

	// Protocol 2.
	opProto    = 0x80 // uint8
	opNewObj   = 0x81
	opExt1     = 0x82 // uint8
	opExt2     = 0x83 // uint16
	opExt4     = 0x84 // int32
	opTuple1   = 0x85
	opTuple2   = 0x86
	opTuple3   = 0x87
	opNewTrue  = 0x88
	opNewFalse = 0x89
	opLong1    = 0x8a // uint8 length
	opLong4    = 0x8b // int32 length

	// Protocol 3.
	opBinBytes      = 'B' // uint32 length
	opShortBinBytes = 'C' // uint8 length

	// Protocol 4.
	opShortBinUnicode = 0x8c // uint8 length
	opBinUnicode8     = 0x8d // uint64 length
	opBinBytes8       = 0x8e // uint64 length
	opEmptySet        = 0x8f
	opAddItems        = 0x90
	opFrozenSet       = 0x91
	opNewObjEx        = 0x92
	opStackGlobal     = 0x93
	opMemoize         = 0x94
	opFrame           = 0x95 // uint64 length

	// Protocol 5.
	opByteArray8     = 0x96 // uint64 length
	opNextBuffer     = 0x97
	opReadonlyBuffer = 0x98
)

// refused names the opcodes that make objects of classes or take them from
// elsewhere. torch.save writes none of them for tensors and containers.
var refused = map[byte]string{
	opPersID: "PERSID", opInst: "INST", opObj: "OBJ", opNewObj: "NEWOBJ", opNewObjEx: "NEWOBJ_EX",
	opExt1: "EXT1", opExt2: "EXT2", opExt4: "EXT4",
	opNextBuffer: "NEXT_BUFFER", opReadonlyBuffer: "READONLY_BUFFER",
}

const (
	highestProtocol = 5
	maxStack        = 1 << 20 // values on the stack; also marks
	maxIntBytes     = 1024    // bytes, or decimal digits, of an integer
	maxNumberLine   = 1100    // bytes of a number in decimal, its newline included
	maxKeyBytes     = 1 << 16 // bytes of a dict's key, which is hashed each time it is used
	// A tensor of a state dict takes about 25 opcodes.
	maxOpsPerTensor = 32
)

// unpickler interprets one pickle. Its memory is the stack, the marks (heights
// of the stack) and the memo (values to be used again, by number).
type unpickler struct {
	data  []byte // starts with the pickle
	base  int64  // offset of data in the file
	where string // what data is, for errors
	lim   format.Limits

	pos   int // in data, of the next byte
	at    int // of the opcode that is being executed
	ops   int64
	stack []Value
	marks []int
	memo  map[uint32]Value
	spent int64 // bytes that functions have allocated
	// tensors collects what refers to bytes outside the pickle; nil refuses it.
	tensors *tensors
}

// fail makes the FormatError of the current opcode.
func (u *unpickler) fail(msg string, args ...any) error {
	return fail(u.base+int64(u.at), u.place(), msg, args...)
}

// unsupported makes the UnsupportedError of the current opcode.
func (u *unpickler) unsupported(msg string, args ...any) error {
	return unsupported(u.base+int64(u.at), u.place(), msg, args...)
}

// place is the current opcode, counted in the pickle.
func (u *unpickler) place() string { return fmt.Sprintf("%s, opcode at %d", u.where, u.at) }

// unpickle runs the pickle at the start of data, up to its STOP. n is its
// length. t takes the tensors and storages; nil refuses them.
func unpickle(data []byte, base int64, where string, lim format.Limits, t *tensors) (v Value, n int, err error) {
	most := len(data)
	if int64(most) > lim.HeaderBytes {
		most = int(lim.HeaderBytes)
	}
	u := unpickler{data: data[:most], base: base, where: where, lim: lim, memo: map[uint32]Value{}, tensors: t}
	v, err = u.run()
	if err != nil {
		return nil, 0, err
	}
	if err := checkTree(v, lim.NestingDepth, 8*u.ops+1<<20); err != nil {
		return nil, 0, fail(base, where, "%s", err)
	}
	return v, u.pos, nil
}

// run executes opcodes until STOP, whose value it returns.
func (u *unpickler) run() (Value, error) {
	for {
		u.at = u.pos
		code, err := u.take(1)
		if err != nil {
			return nil, err
		}
		if u.ops++; u.ops/maxOpsPerTensor > u.lim.Tensors {
			return nil, u.fail("more than %d opcodes", maxOpsPerTensor*u.lim.Tensors)
		}
		if code[0] == opStop {
			break
		}
		if err := u.step(code[0]); err != nil {
			return nil, err
		}
		if len(u.stack) > maxStack || len(u.marks) > maxStack {
			return nil, u.fail("more than %d values on the stack", maxStack)
		}
	}
	if len(u.stack) != 1 || len(u.marks) != 0 {
		return nil, u.fail("the pickle stops with %d values and %d marks on the stack, expected the one object", len(u.stack), len(u.marks))
	}
	return u.stack[0], nil
}

// step executes one opcode other than STOP.
func (u *unpickler) step(code byte) error {
	switch code {
	case opProto:
		version, err := u.uint(1)
		if err == nil && version > highestProtocol {
			err = u.unsupported("pickle protocol %d, expected at most %d", version, highestProtocol)
		}
		return err
	case opFrame: // announces that so many bytes may be read at once
		_, err := u.length(8, math.MaxInt64)
		return err

	case opNone:
		u.push(nil)
	case opNewTrue:
		u.push(true)
	case opNewFalse:
		u.push(false)
	case opInt, opLong, opBinInt, opBinInt1, opBinInt2, opLong1, opLong4:
		return u.pushResult(u.integer(code))
	case opFloat, opBinFloat:
		return u.pushResult(u.float(code))
	case opBinUnicode, opShortBinUnicode, opBinUnicode8, opBinString, opShortBinString, opUnicode, opString:
		return u.pushResult(u.text(code))
	case opBinBytes, opShortBinBytes, opBinBytes8, opByteArray8:
		return u.pushResult(u.bytes(code))

	case opMark:
		u.marks = append(u.marks, len(u.stack))
	case opPop:
		// As in Python, POP right after MARK takes the mark.
		if n := len(u.marks); n > 0 && u.marks[n-1] == len(u.stack) {
			u.marks = u.marks[:n-1]
			return nil
		}
		_, err := u.pop(1)
		return err
	case opPopMark:
		_, err := u.popMark()
		return err
	case opDup:
		top, err := u.pop(1)
		if err != nil {
			return err
		}
		u.push(top[0])
		u.push(top[0])
	case opMemoize:
		return u.put(uint32(len(u.memo))) // at most as many as opcodes
	case opPut, opBinPut, opLongBinPut:
		i, err := u.memoIndex(code)
		if err != nil {
			return err
		}
		return u.put(i)
	case opGet, opBinGet, opLongBinGet:
		i, err := u.memoIndex(code)
		if err != nil {
			return err
		}
		v, ok := u.memo[i]
		if !ok {
			return u.fail("nothing was put at %d of the memo", i)
		}
		u.push(v)

	case opEmptyTuple:
		u.push(&Tuple{})
	case opTuple1, opTuple2, opTuple3:
		items, err := u.pop(int(code-opTuple1) + 1)
		if err != nil {
			return err
		}
		u.push(&Tuple{slices.Clone(items)})
	case opTuple:
		items, err := u.popMark()
		if err != nil {
			return err
		}
		u.push(&Tuple{slices.Clone(items)})
	case opEmptyList:
		u.push(&List{})
	case opList:
		items, err := u.popMark()
		if err != nil {
			return err
		}
		u.push(&List{slices.Clone(items)})
	case opEmptySet:
		u.push(&Set{})
	case opFrozenSet:
		items, err := u.popMark()
		if err != nil {
			return err
		}
		u.push(&Set{slices.Clone(items)})
	case opEmptyDict:
		u.push(&Dict{})
	case opDict:
		items, err := u.popMark()
		if err != nil {
			return err
		}
		d := &Dict{}
		if err := u.setItems(d, items); err != nil {
			return err
		}
		u.push(d)
	case opAppend:
		items, err := u.pop(1)
		if err != nil {
			return err
		}
		return u.extend(items)
	case opAppends, opAddItems:
		items, err := u.popMark()
		if err != nil {
			return err
		}
		return u.extend(items)
	case opSetItem, opSetItems:
		var items []Value
		var err error
		if code == opSetItem {
			items, err = u.pop(2)
		} else {
			items, err = u.popMark()
		}
		if err != nil {
			return err
		}
		top, err := u.top()
		if err != nil {
			return err
		}
		d, ok := top.(*Dict)
		if !ok {
			return u.fail("items are set in %s, expected a dict", kindOf(top))
		}
		return u.setItems(d, items)

	case opGlobal:
		module, err := u.line(u.lim.StringBytes)
		if err != nil {
			return err
		}
		name, err := u.line(u.lim.StringBytes)
		if err != nil {
			return err
		}
		return u.pushResult(u.global(string(module), string(name)))
	case opStackGlobal:
		names, err := u.pop(2)
		if err != nil {
			return err
		}
		module, isText := names[0].(string)
		name, isText2 := names[1].(string)
		if !isText || !isText2 {
			return u.fail("STACK_GLOBAL of %s and %s, expected two strings", kindOf(names[0]), kindOf(names[1]))
		}
		return u.pushResult(u.global(module, name))
	case opReduce:
		return u.reduce()
	case opBuild:
		return u.build()
	case opBinPersID:
		id, err := u.pop(1)
		if err != nil {
			return err
		}
		return u.pushResult(u.storage(id[0]))

	default:
		return u.refuse(code)
	}
	return nil
}

// refuse is the error of an opcode that is not executed.
func (u *unpickler) refuse(code byte) error {
	name, known := refused[code]
	if !known {
		return u.fail("found byte %#02x, expected a pickle opcode", code)
	}
	switch code {
	case opInst:
		module, err := u.line(u.lim.StringBytes)
		if err != nil {
			return err
		}
		class, err := u.line(u.lim.StringBytes)
		if err != nil {
			return err
		}
		if _, err := u.global(string(module), string(class)); err != nil {
			return err
		}
	case opExt1, opExt2, opExt4:
		return u.unsupported("opcode %s refers to a name registered in the program that saved; it was not looked for. %s", name, remedy)
	}
	return u.unsupported("opcode %s, which torch.save does not write for tensors and containers, was not executed. %s", name, remedy)
}

// remedy is what to do about a checkpoint that is refused.
const remedy = "If you trust the file, load it with PyTorch and export the weights with safetensors"

// take returns the next n bytes of the pickle.
func (u *unpickler) take(n int) ([]byte, error) {
	if n > len(u.data)-u.pos {
		if int64(len(u.data)) == u.lim.HeaderBytes {
			return nil, u.fail("the pickle is longer than the limit of %d bytes", u.lim.HeaderBytes)
		}
		return nil, u.fail("the pickle ends after %d of %d bytes; the file is cut short", len(u.data)-u.pos, n)
	}
	b := u.data[u.pos : u.pos+n]
	u.pos += n
	return b, nil
}

// uint reads an unsigned little-endian integer of 1, 2, 4 or 8 bytes.
func (u *unpickler) uint(size int) (uint64, error) {
	b, err := u.take(size)
	if err != nil {
		return 0, err
	}
	var wide [8]byte
	copy(wide[:], b)
	return binary.LittleEndian.Uint64(wide[:]), nil
}

// length reads the length, in an integer of the given size, of bytes that
// follow.
func (u *unpickler) length(size int, most int64) (int, error) {
	n, err := u.uint(size)
	if err != nil {
		return 0, err
	}
	if rest := len(u.data) - u.pos; n > uint64(rest) {
		return 0, u.fail("a length of %d bytes, but only %d follow; the file is cut short or damaged", n, rest)
	}
	if n > uint64(most) {
		return 0, u.fail("a length of %d bytes, expected at most %d", n, most)
	}
	return int(n), nil
}

// sized reads a length and that many bytes.
func (u *unpickler) sized(size int) ([]byte, error) {
	n, err := u.length(size, u.lim.StringBytes)
	if err != nil {
		return nil, err
	}
	return u.take(n)
}

// line reads up to a newline, which is left out; at most so many bytes.
func (u *unpickler) line(most int64) ([]byte, error) {
	rest := u.data[u.pos:]
	if int64(len(rest)) > most {
		rest = rest[:most]
	}
	n := bytes.IndexByte(rest, '\n')
	if n < 0 {
		return nil, u.fail("no newline within %d bytes", len(rest))
	}
	u.pos += n + 1
	return rest[:n], nil
}

// integer reads the argument of an opcode for integers; INT has bools too.
func (u *unpickler) integer(code byte) (Value, error) {
	switch code {
	case opBinInt1:
		n, err := u.uint(1)
		return int64(n), err
	case opBinInt2:
		n, err := u.uint(2)
		return int64(n), err
	case opBinInt:
		n, err := u.uint(4)
		return int64(int32(n)), err
	case opLong1, opLong4:
		size := 1
		if code == opLong4 {
			size = 4
		}
		n, err := u.length(size, maxIntBytes)
		if err != nil {
			return nil, err
		}
		b, err := u.take(n)
		if err != nil {
			return nil, err
		}
		return twosComplement(b), nil
	}
	line, err := u.line(maxNumberLine)
	if err != nil {
		return nil, err
	}
	text := string(line)
	switch {
	case code == opInt && text == "00":
		return false, nil
	case code == opInt && text == "01":
		return true, nil
	case code == opLong && len(text) > 0 && text[len(text)-1] == 'L':
		text = text[:len(text)-1]
	}
	n, ok := new(big.Int).SetString(text, 10)
	if !ok || len(text) > maxIntBytes {
		return nil, u.fail("found %s, expected an integer of at most %d digits", quote(text), maxIntBytes)
	}
	return shrink(n), nil
}

// twosComplement is a signed little-endian integer of any length.
func twosComplement(b []byte) Value {
	if len(b) == 0 {
		return int64(0)
	}
	big256 := slices.Clone(b)
	slices.Reverse(big256)
	n := new(big.Int).SetBytes(big256)
	if big256[0] >= 0x80 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	return shrink(n)
}

// shrink is n as an int64 where it fits.
func shrink(n *big.Int) Value {
	if n.IsInt64() {
		return n.Int64()
	}
	return n
}

// float reads the argument of an opcode for floats.
func (u *unpickler) float(code byte) (Value, error) {
	if code == opBinFloat {
		b, err := u.take(8)
		if err != nil {
			return nil, err
		}
		return math.Float64frombits(binary.BigEndian.Uint64(b)), nil
	}
	line, err := u.line(maxNumberLine)
	if err != nil {
		return nil, err
	}
	f, err := strconv.ParseFloat(string(line), 64)
	if err != nil && !math.IsInf(f, 0) { // 1e999 is infinite in Python
		return nil, u.fail("found %s, expected a number", quote(string(line)))
	}
	return f, nil
}

// text reads the argument of an opcode for strings. Those of Python 2 are
// read as UTF-8, as torch.load does.
func (u *unpickler) text(code byte) (Value, error) {
	var b []byte
	var err error
	switch code {
	case opShortBinString, opShortBinUnicode:
		b, err = u.sized(1)
	case opBinString, opBinUnicode:
		b, err = u.sized(4)
	case opBinUnicode8:
		b, err = u.sized(8)
	case opString:
		if b, err = u.line(u.lim.StringBytes); err != nil {
			return nil, err
		}
		if len(b) < 2 || b[0] != b[len(b)-1] || b[0] != '\'' && b[0] != '"' {
			return nil, u.fail("found %s, expected a string in quotes", quote(string(b)))
		}
		b = b[1 : len(b)-1]
	case opUnicode:
		b, err = u.line(u.lim.StringBytes)
	}
	if err != nil {
		return nil, err
	}
	if (code == opString || code == opUnicode) && bytes.IndexByte(b, '\\') >= 0 {
		return nil, u.unsupported("an escape in a string of pickle protocol 0; save the file with protocol 2, the default")
	}
	if !utf8.Valid(b) {
		return nil, u.fail("found a string that is not UTF-8")
	}
	return string(b), nil
}

// bytes reads the argument of an opcode for byte strings.
func (u *unpickler) bytes(code byte) (Value, error) {
	size := 8
	switch code {
	case opShortBinBytes:
		size = 1
	case opBinBytes:
		size = 4
	}
	b, err := u.sized(size)
	return slices.Clone(b), err
}

// memoIndex reads the argument of an opcode for the memo.
func (u *unpickler) memoIndex(code byte) (uint32, error) {
	switch code {
	case opBinGet, opBinPut:
		n, err := u.uint(1)
		return uint32(n), err
	case opLongBinGet, opLongBinPut:
		n, err := u.uint(4)
		return uint32(n), err
	}
	line, err := u.line(maxNumberLine)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(line), 10, 32)
	if err != nil {
		return 0, u.fail("found %s, expected a number of the memo", quote(string(line)))
	}
	return uint32(n), nil
}

// put stores the top of the stack in the memo.
func (u *unpickler) put(i uint32) error {
	v, err := u.top()
	if err != nil {
		return err
	}
	u.memo[i] = v
	return nil
}

func (u *unpickler) push(v Value) { u.stack = append(u.stack, v) }

// pushResult pushes v unless there was an error.
func (u *unpickler) pushResult(v Value, err error) error {
	if err == nil {
		u.push(v)
	}
	return err
}

// floor is the height of the stack below which nothing can be popped: that of
// the last mark.
func (u *unpickler) floor() int {
	if n := len(u.marks); n > 0 {
		return u.marks[n-1]
	}
	return 0
}

// top is the value on top of the stack.
func (u *unpickler) top() (Value, error) {
	if len(u.stack) == u.floor() {
		return nil, u.fail("needs a value on the stack, found none")
	}
	return u.stack[len(u.stack)-1], nil
}

// pop takes n values from the stack. The slice is good until the next push.
func (u *unpickler) pop(n int) ([]Value, error) {
	have := len(u.stack) - u.floor()
	if have < n {
		return nil, u.fail("needs %d values on the stack, found %d", n, have)
	}
	items := u.stack[len(u.stack)-n:]
	u.stack = u.stack[:len(u.stack)-n]
	return items, nil
}

// popMark takes the values above the last mark, and the mark. The slice is
// good until the next push.
func (u *unpickler) popMark() ([]Value, error) {
	n := len(u.marks)
	if n == 0 {
		return nil, u.fail("needs a mark on the stack, found none")
	}
	items := u.stack[u.marks[n-1]:]
	u.stack = u.stack[:u.marks[n-1]]
	u.marks = u.marks[:n-1]
	return items, nil
}

// extend adds items to the list or set on top of the stack.
func (u *unpickler) extend(items []Value) error {
	v, err := u.top()
	if err != nil {
		return err
	}
	switch c := v.(type) {
	case *List:
		c.Items = append(c.Items, items...)
	case *Set:
		c.Items = append(c.Items, items...)
	default:
		return u.fail("items are added to %s, expected a list or set", kindOf(v))
	}
	return nil
}

// setItems adds keys and values, in turns, to a dict.
func (u *unpickler) setItems(d *Dict, items []Value) error {
	if len(items)%2 != 0 {
		return u.fail("%d keys and values of a dict, expected an even number", len(items))
	}
	for i := 0; i < len(items); i += 2 {
		if err := u.setItem(d, items[i], items[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// setItem adds an entry to a dict.
func (u *unpickler) setItem(d *Dict, key, value Value) error {
	if _, ok := hashable(key); !ok {
		return u.unsupported("%s as key of a dict, expected a string, a number or bytes. %s", kindOf(key), remedy)
	}
	if n := keyBytes(key); n > maxKeyBytes {
		return u.unsupported("a key of %d bytes, expected at most %d", n, maxKeyBytes)
	}
	if !d.set(key, value) {
		return u.fail("key %s of a dict is given twice", quote(keyText(key)))
	}
	return nil
}

// charge counts bytes that a function is about to allocate. Its arguments may
// come from the memo, so that a few instructions could copy much, many times.
func (u *unpickler) charge(bytes int) error {
	if u.spent += int64(bytes); u.spent > 16*int64(len(u.data))+1<<20 {
		return u.fail("copies of %d bytes, which is out of proportion to a pickle of %d", u.spent, len(u.data))
	}
	return nil
}

// global is the meaning of a name of the pickle.
func (u *unpickler) global(module, name string) (Value, error) {
	full := module + "." + name
	if v, ok := globals[full]; ok {
		return v, nil
	}
	return nil, &GlobalError{Name: full, err: &format.UnsupportedError{
		Offset: u.base + int64(u.at), Where: u.place(),
		Msg: fmt.Sprintf("the pickle refers to %s, which is none of the functions that rebuild tensors and plain containers; it was not called, nothing of the file was executed. %s", shorten(full), remedy),
	}}
}

// reduce calls a function of globals.
func (u *unpickler) reduce() error {
	items, err := u.pop(2)
	if err != nil {
		return err
	}
	g, ok := items[0].(*global)
	if !ok {
		return u.fail("%s is called, expected a function", kindOf(items[0]))
	}
	args, ok := items[1].(*Tuple)
	if !ok {
		return u.fail("%s is called with %s, expected a tuple", g.name, kindOf(items[1]))
	}
	if g.call == nil {
		return u.unsupported("%s is called, which torch.save does not write. %s", g.name, remedy)
	}
	return u.pushResult(g.call(u, args.Items))
}

// build sets the state of an object: attributes of an OrderedDict.
func (u *unpickler) build() error {
	items, err := u.pop(1)
	if err != nil {
		return err
	}
	v, err := u.top()
	if err != nil {
		return err
	}
	d, ok := v.(*Dict)
	if !ok || !d.ordered {
		return u.unsupported("opcode BUILD changes %s; only an OrderedDict can have attributes here. %s", kindOf(v), remedy)
	}
	state, ok := items[0].(*Dict)
	if !ok {
		return u.unsupported("opcode BUILD with %s, expected the dict of an OrderedDict's attributes", kindOf(items[0]))
	}
	if d.Attributes != nil {
		return u.fail("the attributes of an OrderedDict are given twice")
	}
	d.Attributes = state
	return nil
}
