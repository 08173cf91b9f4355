package torch

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
)

// Value is an object of a checkpoint:
//
//	nil, bool, int64, float64, string    None, bool, int, float, str
//	*big.Int                             an int outside int64
//	[]byte                               bytes
//	*List, *Tuple, *Set                  list, tuple, set and frozenset
//	*Dict                                dict, OrderedDict, Counter
//	*Tensor, *Storage                    a tensor or parameter, a bare storage
//	format.Shape                         torch.Size
//	DType, Device                        torch.dtype, torch.device
//
// The tree of values has no cycles; a value may appear in several places.
type Value any

// List is a Python list.
type List struct{ Items []Value }

// Tuple is a Python tuple.
type Tuple struct{ Items []Value }

// Set is a Python set or frozenset, in the order of the pickle.
type Set struct{ Items []Value }

// Dict is a Python dict, in order of insertion.
type Dict struct {
	Entries []Entry
	// Attributes are what a program hung onto an OrderedDict, such as the
	// _metadata of a module's state_dict; nil for none.
	Attributes *Dict

	ordered bool        // an OrderedDict
	index   map[any]int // by hashable(key), in Entries; nil for a small dict
}

// Entry is a key of a Dict, and its value. Keys are scalars, strings, bytes,
// DTypes and Devices.
type Entry struct{ Key, Value Value }

// DType is the name of a torch.dtype, such as "float32".
type DType string

// Device is a torch.device, such as "cpu" or "cuda:0".
type Device string

// Storage is the memory of tensors, saved by itself or below them.
type Storage struct {
	DType quant.DType // U8 for an untyped storage
	Data  []byte      // a view of the file, read-only

	elements int64
	untyped  bool
}

// smallDict is the number of entries that are searched one by one.
const smallDict = 8

// Get is the value of a key.
func (d *Dict) Get(key Value) (Value, bool) {
	h, ok := hashable(key)
	if !ok {
		return nil, false
	}
	i, ok := d.find(h)
	if !ok {
		return nil, false
	}
	return d.Entries[i].Value, true
}

// find is the place of the entry whose key has the hashable h.
func (d *Dict) find(h any) (int, bool) {
	if d.index != nil {
		i, ok := d.index[h]
		return i, ok
	}
	for i, e := range d.Entries {
		if other, _ := hashable(e.Key); other == h {
			return i, true
		}
	}
	return 0, false
}

// set adds an entry whose key is hashable. It reports whether the key is new.
func (d *Dict) set(key, value Value) bool {
	h, _ := hashable(key)
	if _, twice := d.find(h); twice {
		return false
	}
	d.Entries = append(d.Entries, Entry{key, value})
	if d.index != nil {
		d.index[h] = len(d.Entries) - 1
	} else if len(d.Entries) > smallDict {
		d.index = make(map[any]int, len(d.Entries))
		for i, e := range d.Entries {
			h, _ := hashable(e.Key)
			d.index[h] = i
		}
	}
	return true
}

// hashable maps a key to a Go value that is equal where the keys are equal in
// Python (1, 1.0 and True are). It fails for what is no key here.
func hashable(key Value) (any, bool) {
	type none struct{}
	type octets string
	type large string
	switch k := key.(type) {
	case nil:
		return none{}, true
	case bool:
		if k {
			return int64(1), true
		}
		return int64(0), true
	case float64:
		if k == math.Trunc(k) && math.Abs(k) < 1<<62 {
			return int64(k), true
		}
		return k, !math.IsNaN(k) // a NaN equals nothing
	case string, int64, DType, Device:
		return k, true
	case []byte:
		return octets(k), true
	case *big.Int:
		return large(k.String()), true
	}
	return nil, false
}

// keyBytes is the size of a key whose text or bytes have any length.
func keyBytes(key Value) int {
	switch k := key.(type) {
	case string:
		return len(k)
	case []byte:
		return len(k)
	}
	return 0
}

// keyText is a key as part of a tensor's name.
func keyText(key Value) string {
	switch k := key.(type) {
	case string:
		return k
	case []byte:
		return string(k)
	case int64:
		return strconv.FormatInt(k, 10)
	case nil:
		return "None"
	case bool:
		if k {
			return "True"
		}
		return "False"
	}
	return fmt.Sprint(key)
}

// kindOf names the type of a value for an error.
func kindOf(v Value) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "a bool"
	case int64, *big.Int:
		return "an int"
	case float64:
		return "a float"
	case string:
		return "a str"
	case []byte:
		return "bytes"
	case *List:
		return "a list"
	case *Tuple:
		return "a tuple"
	case *Set:
		return "a set"
	case *Dict:
		return "a dict"
	case *Tensor:
		return "a tensor"
	case *Storage:
		return "a storage"
	case *global:
		return "the name " + v.name
	case format.Shape:
		return "a torch.Size"
	case DType:
		return "a torch.dtype"
	case Device:
		return "a torch.device"
	}
	return fmt.Sprintf("%T", v)
}

// children calls f for each value directly in the container v.
func children(v Value, f func(Value) error) error {
	var items []Value
	switch v := v.(type) {
	case *List:
		items = v.Items
	case *Tuple:
		items = v.Items
	case *Set:
		items = v.Items
	case *Dict:
		for _, e := range v.Entries {
			if err := f(e.Value); err != nil {
				return err
			}
		}
		if v.Attributes != nil {
			return f(v.Attributes)
		}
	}
	for _, item := range items {
		if err := f(item); err != nil {
			return err
		}
	}
	return nil
}

// isContainer reports whether v is one, and whether anything is in it.
func isContainer(v Value) (yes, filled bool) {
	switch v := v.(type) {
	case *List:
		return true, len(v.Items) > 0
	case *Tuple:
		return true, len(v.Items) > 0
	case *Set:
		return true, len(v.Items) > 0
	case *Dict:
		return true, len(v.Entries) > 0 || v.Attributes != nil
	}
	return false, false
}

// checkTree fails when root contains itself, is nested more than depth deep,
// holds a bare name, or would have more than size values if each appearance of
// a shared one is counted.
func checkTree(root Value, depth int, size int64) error {
	type measure struct {
		height int   // 1 when no container is in it; 0 while it is being measured
		size   int64 // with everything in it
	}
	seen := map[Value]measure{} // by pointer
	var visit func(v Value, level int) (measure, error)
	visit = func(v Value, level int) (measure, error) {
		if g, ok := v.(*global); ok {
			return measure{}, fmt.Errorf("the name %s where a value was expected", g.name)
		}
		container, filled := isContainer(v)
		if !container {
			return measure{size: 1}, nil
		}
		m, ok := seen[v]
		if ok && m.height == 0 {
			return m, fmt.Errorf("%s contains itself", kindOf(v))
		}
		if level+max(m.height, 1) > depth {
			return m, fmt.Errorf("containers are nested more than %d deep", depth)
		}
		if ok {
			return m, nil
		}
		if !filled { // nothing to remember
			return measure{height: 1, size: 1}, nil
		}
		seen[v] = measure{}
		m = measure{height: 1, size: 1}
		err := children(v, func(child Value) error {
			c, err := visit(child, level+1)
			if err != nil {
				return err
			}
			m.height = max(m.height, c.height+1)
			if m.size += c.size; m.size > size {
				return fmt.Errorf("a small description of more than %d values: containers are repeated inside each other", size)
			}
			return nil
		})
		seen[v] = m
		return m, err
	}
	_, err := visit(root, 0)
	return err
}

// flatten lists the tensors below root, named by their paths from there.
func (f *File) flatten(root Value) ([]Tensor, error) {
	var tensors []Tensor
	seen := map[string]bool{}
	// A long key above many tensors would be repeated in each of their names.
	text := 16*f.size + 1<<20
	var visit func(v Value, name string) error
	child := func(v Value, name, key string) error {
		switch v.(type) {
		case *Tensor, *List, *Tuple, *Set, *Dict:
		default:
			return nil
		}
		if name != "" {
			key = name + "." + key
		}
		if text -= int64(len(key)); text < 0 {
			return &format.FormatError{Path: f.path, Offset: -1, Where: "names", Msg: fmt.Sprintf("the names of all tensors are much longer than the file of %d bytes", f.size)}
		}
		return visit(v, key)
	}
	visit = func(v Value, name string) error {
		var items []Value
		switch v := v.(type) {
		case *Tensor:
			if int64(len(tensors)) >= f.limits.Tensors {
				return &format.FormatError{Path: f.path, Offset: -1, Where: "tensors", Msg: fmt.Sprintf("found more than %d", f.limits.Tensors)}
			}
			if seen[name] {
				return &format.FormatError{Path: f.path, Offset: -1, Where: "tensor " + quote(name), Msg: "two tensors have this name: dots in keys make it ambiguous"}
			}
			seen[name] = true
			t := *v
			t.Name = name
			tensors = append(tensors, t)
			return nil
		case *Dict:
			for _, e := range v.Entries {
				if err := child(e.Value, name, keyText(e.Key)); err != nil {
					return err
				}
			}
			return nil
		case *List:
			items = v.Items
		case *Tuple:
			items = v.Items
		case *Set:
			items = v.Items
		}
		for i, item := range items {
			if err := child(item, name, strconv.Itoa(i)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := visit(root, ""); err != nil {
		return nil, err
	}
	return tensors, nil
}

// stateDictKeys are the usual keys of a model's weights in a checkpoint.
var stateDictKeys = []string{"model", "state_dict", "module", "model_state_dict"}

// StateDict is the weights of a model, named as the model names them.
//
// With a prefix, such as "model" or "ema.model", it is every tensor in the
// dict at that path; values that are no tensors are left out.
//
// With the empty prefix the dict is looked for. A state dict is a dict with
// at least one entry, all of whose values are tensors. It is, in this order:
// the saved object itself; the value of the first of the keys model,
// state_dict, module, model_state_dict that is one; the only value of the
// saved dict that is one.
func (f *File) StateDict(prefix string) ([]Tensor, error) {
	if prefix != "" {
		v, ok := lookup(f.root, prefix)
		d, isDict := v.(*Dict)
		if !ok || !isDict {
			return nil, &format.UnsupportedError{Path: f.path, Offset: -1, Where: quote(prefix), Msg: "no dict is at this path; " + f.contents()}
		}
		return f.flatten(d)
	}
	root, ok := f.root.(*Dict)
	if !ok {
		return nil, f.noStateDict("the saved object is " + kindOf(f.root))
	}
	if isStateDict(root) {
		return f.flatten(root)
	}
	for _, key := range stateDictKeys {
		if v, ok := root.Get(key); ok && isStateDict(v) {
			return f.flatten(v)
		}
	}
	var found []string
	var only Value
	for _, e := range root.Entries {
		if isStateDict(e.Value) {
			found, only = append(found, quote(keyText(e.Key))), e.Value
		}
	}
	if len(found) == 1 {
		return f.flatten(only)
	}
	if len(found) > 1 {
		return nil, f.noStateDict("several dicts of tensors (" + shortList(found) + ")")
	}
	return nil, f.noStateDict("no dict whose values are all tensors")
}

// noStateDict says that the weights could not be told.
func (f *File) noStateDict(found string) error {
	return &format.UnsupportedError{Path: f.path, Offset: -1, Where: "state dict",
		Msg: "found " + found + "; name the path to the weights; " + f.contents()}
}

// contents describes the saved object in an error.
func (f *File) contents() string {
	root, ok := f.root.(*Dict)
	if !ok {
		return "the file holds " + kindOf(f.root)
	}
	var keys []string
	for _, e := range root.Entries {
		keys = append(keys, quote(keyText(e.Key)))
		if len(keys) > shortListItems {
			break
		}
	}
	return "the file holds a dict with the keys " + shortList(keys)
}

const shortListItems = 8

// shortList joins the first items of a list.
func shortList(items []string) string {
	if len(items) > shortListItems {
		items = append(items[:shortListItems:shortListItems], "...")
	}
	return strings.Join(items, ", ")
}

// isStateDict reports whether v is a dict of tensors only.
func isStateDict(v Value) bool {
	d, ok := v.(*Dict)
	if !ok || len(d.Entries) == 0 {
		return false
	}
	for _, e := range d.Entries {
		if _, ok := e.Value.(*Tensor); !ok {
			return false
		}
	}
	return true
}

// lookup finds the value at a path of keys joined by dots. A key may have
// dots itself; of several readings the first that leads somewhere counts.
func lookup(v Value, path string) (Value, bool) {
	d, ok := v.(*Dict)
	if !ok {
		return nil, false
	}
	for _, e := range d.Entries {
		rest, ok := strings.CutPrefix(path, keyText(e.Key))
		if !ok {
			continue
		}
		if rest == "" {
			return e.Value, true
		}
		if rest, ok = strings.CutPrefix(rest, "."); ok {
			if found, ok := lookup(e.Value, rest); ok {
				return found, true
			}
		}
	}
	return nil, false
}
