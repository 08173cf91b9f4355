package torch

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
)

// maxDims is more dimensions than PyTorch's operators take.
const maxDims = 64

// What values take in memory, about; for charge.
const (
	valueBytes = 16
	entryBytes = 100 // an Entry and its place in the index
	viewBytes  = 300 // a Tensor and its view
)

// A global is a function or class that pickles may name.
type global struct {
	name  string
	dtype quant.DType // of a storage class; U8 for the untyped one
	// call makes a value of the arguments; nil for storage classes.
	call func(u *unpickler, args []Value) (Value, error)
}

// dtypes are the names of torch dtypes that have a quant.DType.
var dtypes = map[DType]quant.DType{
	"float64": quant.F64, "double": quant.F64,
	"float32": quant.F32, "float": quant.F32,
	"float16": quant.F16, "half": quant.F16,
	"bfloat16":      quant.BF16,
	"float8_e4m3fn": quant.F8E4M3, "float8_e5m2": quant.F8E5M2, "float8_e8m0fnu": quant.F8E8M0,
	"float8_e4m3fnuz": quant.F8E4M3FNUZ, "float8_e5m2fnuz": quant.F8E5M2FNUZ,
	"complex64": quant.C64, "cfloat": quant.C64,
	"int8": quant.I8, "int16": quant.I16, "short": quant.I16, "int32": quant.I32, "int": quant.I32,
	"int64": quant.I64, "long": quant.I64,
	"uint8": quant.U8, "uint16": quant.U16, "uint32": quant.U32, "uint64": quant.U64,
	"bool": quant.Bool,
}

// storageClasses are the typed storages of the modules torch and torch.cuda.
var storageClasses = map[string]quant.DType{
	"DoubleStorage": quant.F64, "FloatStorage": quant.F32, "HalfStorage": quant.F16,
	"BFloat16Storage": quant.BF16, "ComplexFloatStorage": quant.C64,
	"LongStorage": quant.I64, "IntStorage": quant.I32, "ShortStorage": quant.I16,
	"CharStorage": quant.I8, "ByteStorage": quant.U8, "BoolStorage": quant.Bool,
}

// untypedStorage is the class of storages whose tensors tell the type.
const untypedStorage = "torch.storage.UntypedStorage"

// globals is all that a pickle may name: functions and classes, and the dtypes.
var globals = func() map[string]Value {
	m := map[string]Value{}
	add := func(g *global) { m[g.name] = g }
	add(&global{name: "collections.OrderedDict", call: newOrderedDict})
	add(&global{name: "collections.Counter", call: newCounter})
	for _, module := range []string{"builtins", "__builtin__"} { // Python 3 and 2
		add(&global{name: module + ".set", call: newSet})
		add(&global{name: module + ".frozenset", call: newSet})
		add(&global{name: module + ".bytes", call: newBytes})
	}
	add(&global{name: "_codecs.encode", call: encode})
	add(&global{name: "torch.Size", call: newSize})
	add(&global{name: "torch.device", call: newDevice})
	add(&global{name: "torch._utils._rebuild_tensor", call: rebuildTensor})
	add(&global{name: "torch._utils._rebuild_tensor_v2", call: rebuildTensorV2})
	add(&global{name: "torch._utils._rebuild_tensor_v3", call: rebuildTensorV3})
	add(&global{name: "torch._utils._rebuild_parameter", call: rebuildParameter})
	add(&global{name: "torch._utils._rebuild_parameter_with_state", call: rebuildParameter})
	for class, dtype := range storageClasses {
		add(&global{name: "torch." + class, dtype: dtype})
		add(&global{name: "torch.cuda." + class, dtype: dtype})
	}
	add(&global{name: untypedStorage, dtype: quant.U8})
	for d := range dtypes {
		m["torch."+string(d)] = d
	}
	return m
}()

// argument is args[i] as a T, or the error that says so.
func argument[T any](u *unpickler, function string, args []Value, i int) (T, error) {
	v, ok := args[i].(T)
	if !ok {
		return v, u.fail("argument %d of %s is %s", i, function, kindOf(args[i]))
	}
	return v, nil
}

// count fails when there are fewer than least or more than most arguments.
func count(u *unpickler, function string, args []Value, least, most int) error {
	if len(args) < least || len(args) > most {
		return u.fail("%s is called with %d arguments, expected %d to %d", function, len(args), least, most)
	}
	return nil
}

// newOrderedDict makes an OrderedDict, empty or, as Python 2 wrote it, of a
// list of pairs.
func newOrderedDict(u *unpickler, args []Value) (Value, error) {
	const name = "collections.OrderedDict"
	if err := count(u, name, args, 0, 1); err != nil {
		return nil, err
	}
	d := &Dict{ordered: true}
	if len(args) == 0 {
		return d, nil
	}
	pairs, err := argument[*List](u, name, args, 0)
	if err != nil {
		return nil, err
	}
	if err := u.charge(len(pairs.Items) * entryBytes); err != nil {
		return nil, err
	}
	for _, pair := range pairs.Items {
		items, ok := sequence(pair)
		if !ok || len(items) != 2 {
			return nil, u.fail("%s of %s, expected pairs", name, kindOf(pair))
		}
		if err := u.setItem(d, items[0], items[1]); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// newCounter makes a Counter, which is saved as a dict of counts.
func newCounter(u *unpickler, args []Value) (Value, error) {
	const name = "collections.Counter"
	if err := count(u, name, args, 0, 1); err != nil {
		return nil, err
	}
	d := &Dict{}
	if len(args) == 0 {
		return d, nil
	}
	counts, err := argument[*Dict](u, name, args, 0)
	if err != nil {
		return nil, err
	}
	if err := u.charge(len(counts.Entries) * entryBytes); err != nil {
		return nil, err
	}
	for _, e := range counts.Entries {
		d.set(e.Key, e.Value)
	}
	return d, nil
}

// newSet makes a set of a list.
func newSet(u *unpickler, args []Value) (Value, error) {
	if err := count(u, "set", args, 0, 1); err != nil {
		return nil, err
	}
	if len(args) == 0 {
		return &Set{}, nil
	}
	items, ok := sequence(args[0])
	if !ok {
		return nil, u.fail("set of %s, expected a list", kindOf(args[0]))
	}
	if err := u.charge(len(items) * valueBytes); err != nil {
		return nil, err
	}
	return &Set{slices.Clone(items)}, nil
}

// newBytes makes empty bytes; others are written with _codecs.encode.
func newBytes(u *unpickler, args []Value) (Value, error) {
	return []byte{}, count(u, "bytes", args, 0, 0)
}

// encode makes bytes of a string that has one character a byte.
func encode(u *unpickler, args []Value) (Value, error) {
	const name = "_codecs.encode"
	if err := count(u, name, args, 2, 2); err != nil {
		return nil, err
	}
	text, err := argument[string](u, name, args, 0)
	if err != nil {
		return nil, err
	}
	if args[1] != "latin1" {
		return nil, u.unsupported("%s to another encoding than latin1", name)
	}
	if err := u.charge(len(text)); err != nil {
		return nil, err
	}
	b := make([]byte, 0, len(text))
	for _, r := range text {
		if r > 0xff {
			return nil, u.fail("%s of the character %q, expected one below 256", name, r)
		}
		b = append(b, byte(r))
	}
	return b, nil
}

// newSize makes a torch.Size of a tuple or list.
func newSize(u *unpickler, args []Value) (Value, error) {
	if err := count(u, "torch.Size", args, 1, 1); err != nil {
		return nil, err
	}
	dims, err := u.ints(args[0], "torch.Size")
	return format.Shape(dims), err
}

// newDevice makes a torch.device of its type and, where it has one, its number.
func newDevice(u *unpickler, args []Value) (Value, error) {
	const name = "torch.device"
	if err := count(u, name, args, 1, 2); err != nil {
		return nil, err
	}
	kind, err := argument[string](u, name, args, 0)
	if err != nil || len(args) == 1 {
		return Device(kind), err
	}
	i, err := argument[int64](u, name, args, 1)
	return Device(kind + ":" + strconv.FormatInt(i, 10)), err
}

// sequence is the items of a list or tuple.
func sequence(v Value) ([]Value, bool) {
	switch v := v.(type) {
	case *List:
		return v.Items, true
	case *Tuple:
		return v.Items, true
	}
	return nil, false
}

// ints reads sizes or strides.
func (u *unpickler) ints(v Value, what string) ([]int64, error) {
	if s, ok := v.(format.Shape); ok {
		return s, nil
	}
	items, ok := sequence(v)
	if !ok {
		return nil, u.fail("%s of %s, expected a tuple of integers", what, kindOf(v))
	}
	if len(items) > maxDims {
		return nil, u.fail("%s of %d dimensions, expected at most %d", what, len(items), maxDims)
	}
	if err := u.charge(8 * len(items)); err != nil {
		return nil, err
	}
	ints := make([]int64, len(items))
	for i, item := range items {
		n, ok := item.(int64)
		if !ok {
			return nil, u.fail("%s[%d] is %s, expected an integer of 64 bits", what, i, kindOf(item))
		}
		if n < 0 {
			return nil, u.fail("%s[%d] is %d, expected 0 or more", what, i, n)
		}
		ints[i] = n
	}
	return ints, nil
}

// view is a tensor that is to be cut out of its storage.
type view struct {
	tensor  *Tensor
	storage *Storage
	offset  int64   // elements
	strides []int64 // elements, not negative
	at      int64   // of the opcode that made it, in the file
	where   string
}

// tensors is what a pickle refers to outside itself.
type tensors struct {
	// fetch finds the bytes of a storage; nil when they are read later.
	fetch    func(key string) ([]byte, error)
	storages map[string]*Storage
	views    []view
}

// storage is the meaning of a persistent id:
//
//	("storage", class, key, location, elements [, nil])
//
// The location is the device where it was; it has no meaning here. The sixth item is of the legacy
// format: a view of another storage, which PyTorch wrote before 0.4.
func (u *unpickler) storage(id Value) (Value, error) {
	const name = "a persistent id"
	if u.tensors == nil {
		return nil, u.fail("%s where no tensor is expected", name)
	}
	tuple, ok := id.(*Tuple)
	if !ok {
		return nil, u.fail("%s that is %s, expected a tuple", name, kindOf(id))
	}
	args := tuple.Items
	if len(args) > 0 && args[0] == "module" {
		return nil, u.unsupported("%s of a module: a whole module was saved, not its state_dict. %s", name, remedy)
	}
	if err := count(u, name, args, 5, 6); err != nil {
		return nil, err
	}
	if args[0] != "storage" {
		return nil, u.fail("%s that starts with %s, expected \"storage\"", name, kindOf(args[0]))
	}
	class, err := argument[*global](u, name, args, 1)
	if err != nil {
		return nil, err
	}
	if class.call != nil {
		return nil, u.fail("%s of class %s, expected a storage", name, class.name)
	}
	key, err := argument[string](u, name, args, 2)
	if err != nil {
		return nil, err
	}
	if _, err := argument[string](u, name, args, 3); err != nil {
		return nil, err
	}
	elements, err := argument[int64](u, name, args, 4)
	if err != nil {
		return nil, err
	}
	if len(args) == 6 && args[5] != nil {
		return nil, u.unsupported("a storage that is part of another, as PyTorch before 0.4 wrote it. %s", remedy)
	}
	bytes, err := class.dtype.Bytes(elements)
	if err != nil {
		return nil, u.fail("storage %s: %s", quote(key), err)
	}
	s := &Storage{DType: class.dtype, elements: elements, untyped: class.name == untypedStorage}
	if old, ok := u.tensors.storages[key]; ok {
		if old.DType != s.DType || old.elements != s.elements || old.untyped != s.untyped {
			return nil, u.fail("storage %s is %d elements of %s here, %d of %s before", quote(key), s.elements, s.DType, old.elements, old.DType)
		}
		return old, nil
	}
	if u.tensors.fetch != nil {
		if s.Data, err = u.tensors.fetch(key); err != nil {
			return nil, err
		}
		if int64(len(s.Data)) != bytes {
			return nil, u.fail("storage %s has %d bytes, expected %d for %d elements of %s", quote(key), len(s.Data), bytes, elements, s.DType)
		}
	}
	u.tensors.storages[key] = s
	return s, nil
}

// rebuildTensor is (storage, offset, size, stride).
func rebuildTensor(u *unpickler, args []Value) (Value, error) {
	if err := count(u, "_rebuild_tensor", args, 4, 4); err != nil {
		return nil, err
	}
	return u.rebuild(args, nil)
}

// rebuildTensorV2 is (storage, offset, size, stride, requires_grad, hooks
// [, metadata]).
func rebuildTensorV2(u *unpickler, args []Value) (Value, error) {
	if err := count(u, "_rebuild_tensor_v2", args, 6, 7); err != nil {
		return nil, err
	}
	if len(args) == 7 {
		if err := u.checkMetadata(args[6]); err != nil {
			return nil, err
		}
	}
	return u.rebuild(args, nil)
}

// rebuildTensorV3 is (storage, offset, size, stride, requires_grad, hooks,
// dtype [, metadata]).
func rebuildTensorV3(u *unpickler, args []Value) (Value, error) {
	if err := count(u, "_rebuild_tensor_v3", args, 7, 8); err != nil {
		return nil, err
	}
	if len(args) == 8 {
		if err := u.checkMetadata(args[7]); err != nil {
			return nil, err
		}
	}
	dtype, err := argument[DType](u, "_rebuild_tensor_v3", args, 6)
	if err != nil {
		return nil, err
	}
	return u.rebuild(args, &dtype)
}

// checkMetadata fails when the bits of a tensor are not its values.
func (u *unpickler) checkMetadata(v Value) error {
	if v == nil {
		return nil
	}
	d, ok := v.(*Dict)
	if !ok {
		return u.fail("a tensor's metadata are %s, expected a dict", kindOf(v))
	}
	for _, e := range d.Entries {
		if e.Value != false {
			return u.unsupported("a tensor with the metadata %s (conj: conjugated, neg: negated when read); resolve it with resolve_conj() or resolve_neg() and save again", quote(keyText(e.Key)))
		}
	}
	return nil
}

// rebuildParameter is (tensor, requires_grad, hooks [, state]). The state, what
// a program hung onto the parameter, is let go.
func rebuildParameter(u *unpickler, args []Value) (Value, error) {
	const name = "_rebuild_parameter"
	if err := count(u, name, args, 3, 4); err != nil {
		return nil, err
	}
	return argument[*Tensor](u, name, args, 0)
}

// rebuild makes a tensor of its first four arguments. dtype is that of an
// untyped storage's tensor.
func (u *unpickler) rebuild(args []Value, dtype *DType) (Value, error) {
	const name = "a tensor"
	s, err := argument[*Storage](u, name, args, 0)
	if err != nil {
		return nil, err
	}
	offset, err := argument[int64](u, name, args, 1)
	if err != nil {
		return nil, err
	}
	shape, err := u.ints(args[2], "size")
	if err != nil {
		return nil, err
	}
	strides, err := u.ints(args[3], "stride")
	if err != nil {
		return nil, err
	}
	if len(shape) != len(strides) {
		return nil, u.fail("a tensor of %d dimensions with %d strides", len(shape), len(strides))
	}
	if offset < 0 {
		return nil, u.fail("a tensor at offset %d of its storage, expected 0 or more", offset)
	}
	if s.untyped != (dtype != nil) {
		return nil, u.fail("a tensor whose type is told twice or not at all")
	}
	if err := u.charge(viewBytes); err != nil {
		return nil, err
	}
	t := &Tensor{DType: s.DType, Shape: shape}
	if dtype != nil {
		t.DType = dtypes[*dtype] // all that pickles can name are there
	}
	u.tensors.views = append(u.tensors.views, view{
		tensor: t, storage: s, offset: offset, strides: strides,
		at: u.base + int64(u.at), where: u.place(),
	})
	return t, nil
}

// finish cuts the tensors out of their storages, whose bytes are there now.
// fileSize bounds the copies of tensors that are not contiguous.
func (t *tensors) finish(fileSize int64) error {
	// A transposed matrix is copied once. Expanded tensors, which repeat
	// elements, are seldom saved and then small.
	budget := min(8*fileSize+1<<20, math.MaxInt)
	for i := range t.views {
		v := &t.views[i]
		if err := v.cut(&budget); err != nil {
			return fail(v.at, v.where, "a tensor of shape %v, strides %v, offset %d: %s", v.tensor.Shape, v.strides, v.offset, err)
		}
	}
	return nil
}

// cut sets the data of v's tensor.
func (v *view) cut(budget *int64) error {
	shape, data := v.tensor.Shape, v.storage.Data
	size := int64(v.tensor.DType.BlockBytes())
	elements, err := shape.Elements()
	if err != nil {
		return err
	}
	bytes, err := v.tensor.DType.Bytes(elements)
	if err != nil {
		return err
	}
	if elements == 0 {
		v.tensor.Data = []byte{}
		return nil
	}
	last := v.offset // the element furthest into the storage
	for i, d := range shape {
		if d > 1 && v.strides[i] > (math.MaxInt64-last)/(d-1) {
			return fmt.Errorf("reaches beyond 2^63-1 elements")
		}
		last += (d - 1) * v.strides[i]
	}
	if have := int64(len(data)) / size; last >= have {
		return fmt.Errorf("reaches to element %d of a storage of %d", last, have)
	}
	start := v.offset * size // fits: offset <= last < have
	if contiguous(shape, v.strides) {
		v.tensor.Data = data[start : start+bytes : start+bytes]
		return nil
	}
	if bytes > *budget {
		return fmt.Errorf("a copy takes %d bytes, which is out of proportion to the file; save the tensor after contiguous()", bytes)
	}
	*budget -= bytes
	byteStrides := make([]int64, len(v.strides))
	for i, s := range v.strides {
		if shape[i] > 1 { // others count for nothing, and may be large
			byteStrides[i] = s * size
		}
	}
	v.tensor.Data = gather(make([]byte, 0, bytes), data[start:], shape, byteStrides, size)
	return nil
}

// contiguous reports whether elements follow each other in row-major order.
func contiguous(shape format.Shape, strides []int64) bool {
	next := int64(1) // the stride of a dimension that follows the inner ones
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] != 1 && strides[i] != next {
			return false
		}
		next *= shape[i]
	}
	return true
}

// gather appends the elements of a view to out, in row-major order. The view
// has at least one dimension. Strides are in bytes here.
func gather(out, data []byte, shape format.Shape, strides []int64, size int64) []byte {
	stride := strides[0]
	switch {
	case len(shape) > 1:
		for i := range shape[0] {
			out = gather(out, data[i*stride:], shape[1:], strides[1:], size)
		}
	case stride == size:
		out = append(out, data[:shape[0]*size]...)
	default:
		for i := range shape[0] {
			out = append(out, data[i*stride:i*stride+size]...)
		}
	}
	return out
}
