// Package torch reads checkpoints that PyTorch's torch.save wrote (.pt, .pth,
// .bin) without running anything that is in them.
//
// Such a file is a Python pickle that describes dictionaries and lists and
// refers to the tensors' bytes by key. Two containers are in use:
//
//	zip      since PyTorch 1.6; members NAME/data.pkl (the pickle),
//	         NAME/data/KEY (the bytes of one storage, not compressed),
//	         NAME/byteorder, NAME/version
//	legacy   before, and with _use_new_zipfile_serialization=False: five
//	         pickles one after the other (a magic number, the protocol version
//	         1001, facts about the machine, the object, the storages' keys),
//	         then for each key an int64 number of elements and the bytes
//
// A tensor is a view of a storage: an offset, a shape and strides, in
// elements. A contiguous tensor is given as a view of the file, any other one
// is copied into row-major order. Tied weights share their bytes.
//
// Not read, and refused with the reason: whole modules and other objects
// (save the state_dict), TorchScript programs, sparse and quantised tensors,
// complex numbers of other than 2x32 bits, compressed archives, big-endian
// files, dicts with tuples as keys.
//
// The pickle opcodes are described in Python's pickletools module
// (https://docs.python.org/3/library/pickletools.html), the containers in
// https://docs.pytorch.org/docs/stable/notes/serialization.html and in
// torch/serialization.py.
//
// # Security
//
// A pickle is a program: it can name any function of the Python installation
// and call it. This package is an interpreter that knows the handful of names
// in which tensors and plain containers are written; any other name is a
// [GlobalError], whatever it is used for, and no name leads to code outside
// this package. Instructions that make objects of classes are refused.
//
// Files are untrusted otherwise too. A length is compared with the bytes that
// are left before anything is allocated; instructions, stack, text and
// integers have limits. Objects may be used several times, as pickles can say,
// but not contain themselves, nor would the tree, with each use written out,
// be larger than in proportion to the pickle. Shapes, strides and offsets are
// checked, without overflow, against the storage, and storages against the
// container; copies of views, expanded ones included, are bounded by a small
// multiple of the file's size. Compressed zip members are refused, so there is
// nothing to inflate. A key given twice is refused. Check sums of zip members
// are not looked at, as PyTorch itself does not. See package filemap for files
// that change while they are mapped.
package torch

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/internal/filemap"
	"github.com/firstpassage/fpa/format/internal/strictjson"
	"github.com/firstpassage/fpa/quant"
)

// Tensor is one tensor of a file.
type Tensor struct {
	// Name is the path to the tensor, keys joined by dots. It is empty in the
	// tree that Root gives.
	Name  string
	DType quant.DType
	Shape format.Shape // outermost dimension first; empty for a scalar
	// Data is the elements, row-major, little-endian: a view of the file where
	// the tensor is contiguous there, else a copy. It is read-only, and tensors
	// may share it. Nothing is promised about its alignment.
	Data []byte
}

// File is an open file.
type File struct {
	path    string
	size    int64
	mapped  *filemap.File // nil for Parse
	root    Value
	tensors []Tensor
	byName  map[string]int // index in tensors
	limits  format.Limits
}

// Open maps the file at path and reads all of its description. Close it after
// the last use of a tensor's data.
func Open(path string) (*File, error) { return OpenLimits(path, format.Limits{}) }

// OpenLimits is Open with limits other than the default. HeaderBytes bounds
// the pickle.
func OpenLimits(path string, lim format.Limits) (*File, error) {
	m, err := filemap.Open(path)
	if err != nil {
		return nil, err
	}
	f, err := Parse(m.Bytes(), lim)
	if err != nil {
		m.Close()
		return nil, format.WithPath(err, path)
	}
	f.path, f.mapped = path, m
	return f, nil
}

// Parse reads a file that is in memory. Contiguous tensors are views of data.
//
// The error of a file that is damaged or contradicts itself is a
// [format.FormatError], that of one which holds something that this package
// does not read a [format.UnsupportedError], among them the [GlobalError] of
// a pickle that wants to call something.
func Parse(data []byte, lim format.Limits) (*File, error) {
	lim = lim.WithDefaults()
	root, err := readContainer(data, lim)
	if err != nil {
		return nil, err
	}
	f := &File{size: int64(len(data)), root: root, limits: lim}
	if f.tensors, err = f.flatten(root); err != nil {
		return nil, err
	}
	f.byName = make(map[string]int, len(f.tensors))
	for i, t := range f.tensors {
		f.byName[t.Name] = i
	}
	return f, nil
}

// readContainer reads the object that a file holds.
func readContainer(data []byte, lim format.Limits) (Value, error) {
	const tarMagicAt = 257 // in the header block of the first member
	switch {
	case bytes.HasPrefix(data, []byte("PK")):
		return readZip(data, lim)
	case len(data) > tarMagicAt && bytes.HasPrefix(data[tarMagicAt:], []byte("ustar")):
		return nil, unsupported(0, "file", "a tar archive, as PyTorch before 0.2 wrote them; load it there and save it again")
	case bytes.HasPrefix(data, []byte("version https://git-lfs")):
		return nil, fail(0, "file", "found the pointer that Git LFS keeps in place of a large file; fetch the file itself with git lfs pull")
	case len(data) == 0:
		return nil, fail(0, "file", "the file is empty, expected a zip archive or a pickle")
	}
	switch data[0] {
	case opProto, opLong, opGlobal, opMark: // the ways in which a pickle starts
		return readLegacy(data, lim)
	}
	return nil, fail(0, "file", "starts with %q, expected a zip archive or a pickle of torch.save; this is no PyTorch checkpoint", data[:min(4, len(data))])
}

// Tensors is every tensor of the file, in order of appearance, wherever in
// the tree it is: {"model": {"a.weight": t}, "step": 1} has the tensor
// model.a.weight. Elements of lists are numbered from 0. The slice is the
// file's own.
func (f *File) Tensors() []Tensor { return f.tensors }

// Lookup finds a tensor of Tensors by its name.
func (f *File) Lookup(name string) (Tensor, bool) {
	i, ok := f.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Root is the object that was saved.
func (f *File) Root() Value { return f.root }

// Path is what the file was opened as; empty after Parse.
func (f *File) Path() string { return f.path }

// Size is the size of the file in bytes.
func (f *File) Size() int64 { return f.size }

// Close ends the mapping of an opened file. The data of its tensors must not
// be touched afterwards.
func (f *File) Close() error {
	if f.mapped == nil {
		return nil
	}
	return f.mapped.Close()
}

// GlobalError refuses a pickle for a name in it: a function or class that is
// none of those in which tensors and plain containers are written. Nothing was
// called. It is a [format.UnsupportedError] also.
type GlobalError struct {
	Name string // with its module, such as "posix.system"
	err  *format.UnsupportedError
}

func (e *GlobalError) Error() string { return e.err.Error() }

// Unwrap is the UnsupportedError that has the place.
func (e *GlobalError) Unwrap() error { return e.err }

// fail makes a FormatError.
func fail(offset int64, where, msg string, args ...any) error {
	return &format.FormatError{Offset: offset, Where: where, Msg: fmt.Sprintf(msg, args...)}
}

// unsupported makes an UnsupportedError.
func unsupported(offset int64, where, msg string, args ...any) error {
	return &format.UnsupportedError{Offset: offset, Where: where, Msg: fmt.Sprintf(msg, args...)}
}

// quote is text of a file as an error shows it.
func quote(s string) string { return strconv.Quote(strictjson.Shorten(s)) }

// shorten is a name of the file as an error shows it: quoted where it holds
// more than plain characters.
func shorten(name string) string {
	if q := quote(name); q != `"`+name+`"` {
		return q
	}
	return name
}
