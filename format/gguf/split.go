package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/internal/filemap"
)

// Split is the place of a file in a split model, as its split.* entries tell.
type Split struct {
	No      int // this part, from 0
	Count   int // parts of the model; 0 when the file is no part of a split model
	Tensors int // tensors of all parts together
}

// maxParts is what the five digits in the name and the u16 of split.count
// allow together.
const maxParts = math.MaxUint16

// SplitName is the name of part no, counted from 0, of count:
// stem-00001-of-0000N.gguf.
func SplitName(stem string, no, count int) string {
	return fmt.Sprintf("%s-%05d-of-%05d.gguf", stem, no+1, count)
}

var splitPattern = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)

// ParseSplitName is the reverse of SplitName, on a path or a name alone; no
// counts from 0. ok is false for a name of another form.
func ParseSplitName(path string) (stem string, no, count int, ok bool) {
	dir, name := filepath.Split(path)
	m := splitPattern.FindStringSubmatch(name)
	if m == nil {
		return "", 0, 0, false
	}
	// Five digits always fit.
	no, _ = strconv.Atoi(m[2])
	count, _ = strconv.Atoi(m[3])
	if no < 1 || no > count {
		return "", 0, 0, false
	}
	return dir + m[1], no - 1, count, true
}

// readSplit checks the split.* entries.
func (f *File) readSplit() error {
	count, present, err := f.Uint32(KeySplitCount)
	if err != nil {
		return err
	}
	if !present {
		return nil
	}
	if count < 1 || count > maxParts {
		return f.badValue(KeySplitCount, "is %d, expected 1 to %d", count, maxParts)
	}
	no, present, err := f.Uint32(KeySplitNo)
	if err != nil {
		return err
	}
	if !present {
		return f.badValue(KeySplitNo, "is missing, expected beside %s", KeySplitCount)
	}
	if no >= count {
		return f.badValue(KeySplitNo, "is %d, expected less than %s, which is %d", no, KeySplitCount, count)
	}
	tensors, present, err := f.Uint32(KeySplitTensors)
	if err != nil {
		return err
	}
	if !present {
		return f.badValue(KeySplitTensors, "is missing, expected beside %s", KeySplitCount)
	}
	if tensors > math.MaxInt32 {
		return f.badValue(KeySplitTensors, "is %d, expected at most 2^31-1", tensors)
	}
	f.split = Split{No: int(no), Count: int(count), Tensors: int(tensors)}
	return nil
}

// Split tells which part of a split model the file is, or that the model was
// read from so many parts; ok is false when it is not split.
func (f *File) Split() (s Split, ok bool) { return f.split, f.split.Count > 0 }

// Open maps the model file at path and reads its header. Of a split model,
// path is the first part; the others are opened beside it, by name, and
// their tensors follow in order.
//
// Every error names the file. Close the File when its data is no longer used.
func Open(path string) (*File, error) {
	f, err := openPart(path)
	if err != nil {
		return nil, err
	}
	paths := []string{path}
	if f.split.Count > 1 {
		paths, err = f.partPaths(path)
	}
	return f.withOthers(paths, err)
}

// OpenParts is Open for a model whose parts have names of their own, all of
// them given in order; one path for a model that is not split.
func OpenParts(paths ...string) (*File, error) {
	if len(paths) == 0 {
		return nil, errors.New("no file to open")
	}
	f, err := openPart(paths[0])
	if err != nil {
		return nil, err
	}
	if count := max(f.split.Count, 1); count != len(paths) {
		err = f.badValue(KeySplitCount, "the model has %d parts, but %d files are given", count, len(paths))
	} else if f.split.No != 0 {
		err = f.badValue(KeySplitNo, "is %d, expected 0 in the first file", f.split.No)
	}
	return f.withOthers(paths, err)
}

// openPart maps and reads one file.
func openPart(path string) (*File, error) {
	m, err := filemap.Open(path)
	if err != nil {
		return nil, err
	}
	f, err := Read(bytes.NewReader(m.Bytes()), m.Size(), format.Limits{})
	if err != nil {
		m.Close() // the mapping was only read; the first error is the one to tell
		return nil, format.WithPath(err, path)
	}
	f.parts[0].path = path
	f.parts[0].mapped = m
	return f, nil
}

// partPaths are the paths of the parts of the model, whose part at path is f.
func (f *File) partPaths(path string) ([]string, error) {
	stem, no, count, ok := ParseSplitName(path)
	if !ok || count != f.split.Count || no != f.split.No {
		example := SplitName(strings.TrimSuffix(filepath.Base(path), ".gguf"), f.split.No, f.split.Count)
		return nil, f.badValue(KeySplitCount, "this is part %d of %d, so the parts must be named like %s; give the files their names back", f.split.No+1, f.split.Count, example)
	}
	if no != 0 {
		return nil, &format.UnsupportedError{Path: path, Offset: -1, Msg: fmt.Sprintf("this is part %d of %d of a split model; open the first part, %s", no+1, count, SplitName(stem, 0, count))}
	}
	paths := make([]string, count)
	for i := range paths {
		paths[i] = SplitName(stem, i, count)
	}
	return paths, nil
}

// withOthers opens paths from the second on, adds their tensors to f, which
// is the first, and returns f. When that fails, or err is an error already,
// it closes f instead.
func (f *File) withOthers(paths []string, err error) (*File, error) {
	for no := 1; no < len(paths) && err == nil; no++ {
		err = f.openOther(paths[no], no)
	}
	if err == nil && f.split.Count > 0 && len(f.tensors) != f.split.Tensors {
		err = f.badValue(KeySplitTensors, "is %d, but the model has %d tensors in %d files; is one from another model?", f.split.Tensors, len(f.tensors), f.split.Count)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openOther opens part no and adds its tensors to f.
func (f *File) openOther(path string, no int) error {
	p, err := openPart(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("part %d of %d of the model is missing: %w", no+1, f.split.Count, err)
	}
	if err != nil {
		return err
	}
	// From here on f.Close closes the part too.
	f.parts = append(f.parts, p.parts[0])
	if want := (Split{no, f.split.Count, f.split.Tensors}); p.split != want {
		return &format.FormatError{Path: path, Offset: -1, Msg: fmt.Sprintf(
			"the file says it is part %d of %d with %d tensors in all, expected part %d of %d with %d as the first part says; is it from another model?",
			p.split.No+1, p.split.Count, p.split.Tensors, want.No+1, want.Count, want.Tensors)}
	}
	if theirs, ok := p.Lookup(KeyArchitecture); ok {
		ours, _ := f.Lookup(KeyArchitecture)
		if theirs.v != ours.v {
			return p.badValue(KeyArchitecture, "is %s, expected %s as in the first part", theirs, ours)
		}
	}
	for _, t := range p.tensors {
		if _, dup := f.names[t.Name]; dup {
			return &format.FormatError{Path: path, Offset: -1, Where: tensorPlace(t.Name), Msg: "the tensor is in an earlier part too, expected once; is the file from another model?"}
		}
		t.File = no
		f.names[t.Name] = len(f.tensors)
		f.tensors = append(f.tensors, t)
	}
	return nil
}

// PlanSplit distributes tensors, in their order, over parts of at most
// maxBytes of tensor data with its padding (the header comes on top, as in
// llama.cpp). The result holds the indexes of each part's tensors. A tensor
// larger than maxBytes gets a part of its own. maxBytes of 0 or less means
// one part.
func PlanSplit(tensors []TensorInfo, maxBytes int64) [][]int {
	parts := [][]int{nil}
	var size int64 // of the last part
	for i, t := range tensors {
		bytes := pad(min(t.Size, 1<<62), DefaultAlignment)
		last := &parts[len(parts)-1]
		// Written so that no sum can overflow.
		if maxBytes > 0 && len(*last) > 0 && bytes > maxBytes-size {
			parts = append(parts, nil)
			last = &parts[len(parts)-1]
			size = 0
		}
		*last = append(*last, i)
		size += bytes
	}
	return parts
}

// SplitKV is the metadata of part no, counted from 0, of count parts with so
// many tensors in all. Part 0 carries kv, the others only what a reader needs
// to put the parts together. split.* entries in kv are replaced.
//
// general.alignment, when it is in kv, goes into every part, since each is
// laid out by its own.
func SplitKV(kv []KV, no, count, tensors int) ([]KV, error) {
	if count < 1 || count > maxParts || no < 0 || no >= count || tensors < 0 || tensors > math.MaxInt32 {
		return nil, fmt.Errorf("part %d of %d with %d tensors in all, expected at most %d parts", no+1, count, tensors, maxParts)
	}
	var out []KV
	for _, e := range kv {
		if !isSplitKey(e.Key) && (no == 0 || e.Key == KeyAlignment) {
			out = append(out, e)
		}
	}
	return append(out,
		KV{KeySplitNo, ValueOf(uint16(no))},
		KV{KeySplitCount, ValueOf(uint16(count))},
		KV{KeySplitTensors, ValueOf(int32(tensors))},
	), nil
}

// WithoutSplit is kv without its split.* entries, for a model that is written
// as one file again.
func WithoutSplit(kv []KV) []KV {
	var out []KV
	for _, e := range kv {
		if !isSplitKey(e.Key) {
			out = append(out, e)
		}
	}
	return out
}

func isSplitKey(key string) bool {
	return key == KeySplitNo || key == KeySplitCount || key == KeySplitTensors
}
