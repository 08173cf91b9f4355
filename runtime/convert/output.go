package convert

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/firstpassage/fpa/format/atomicfile"
	"github.com/firstpassage/fpa/format/gguf"
)

// output is the file, or the parts, that a conversion writes. Nothing has its
// final name before commit.
type output struct {
	files   []*atomicfile.File
	writers []*gguf.Writer
	tensors []*gguf.TensorWriter // in the order of the plans
}

// create starts the file at path. It is called before the long part of a
// conversion: the name may be taken, the folder read-only.
func (o *output) create(path string, force bool) error {
	f, err := atomicfile.CreateAtomic(path, force)
	if err != nil {
		return err
	}
	o.files = append(o.files, f)
	return nil
}

// begin writes the headers. With maxBytes above 0 the model is split into parts
// of at most so many bytes of tensor data, named after path.
func (o *output) begin(path string, force bool, maxBytes int64, kv []gguf.KV, infos []gguf.TensorInfo) error {
	plan := gguf.PlanSplit(infos, maxBytes)
	if maxBytes <= 0 {
		return o.addPart(kv, infos)
	}
	stem := strings.TrimSuffix(path, ".gguf")
	for no, indexes := range plan {
		if err := o.create(gguf.SplitName(stem, no, len(plan)), force); err != nil {
			return err
		}
		partKV, err := gguf.SplitKV(kv, no, len(plan), len(infos))
		if err != nil {
			return err
		}
		first, last := indexes[0], indexes[len(indexes)-1]
		if err := o.addPart(partKV, infos[first:last+1]); err != nil {
			return err
		}
	}
	return nil
}

// addPart writes the header of the newest file.
func (o *output) addPart(kv []gguf.KV, infos []gguf.TensorInfo) error {
	w, err := gguf.NewWriter(o.files[len(o.files)-1], kv, infos)
	if err != nil {
		return err
	}
	o.writers = append(o.writers, w)
	for i := range infos {
		o.tensors = append(o.tensors, w.Tensor(i))
	}
	return nil
}

// finish checks that every tensor was written whole, and returns the size of all
// parts together.
func (o *output) finish() (size int64, err error) {
	for _, w := range o.writers {
		if err := w.Finish(); err != nil {
			return 0, err
		}
		size += w.Size()
	}
	return size, nil
}

// tempPaths are the names that the parts have until commit.
func (o *output) tempPaths() []string {
	var paths []string
	for _, f := range o.files {
		paths = append(paths, f.TempPath())
	}
	return paths
}

// commit gives the parts their names, the first part last: readers begin with
// it. When one fails, those that have their names are removed again.
func (o *output) commit() error {
	for i := len(o.files) - 1; i >= 0; i-- {
		if err := o.files[i].Commit(); err != nil {
			for _, f := range o.files[i+1:] {
				os.Remove(f.Path())
			}
			return err
		}
	}
	return nil
}

// abort removes what was not committed.
func (o *output) abort() {
	for _, f := range o.files {
		f.Abort()
	}
}

// hash is the SHA-256 of the parts' contents in order.
func (o *output) hash(ctx context.Context) (string, error) {
	return hashFiles(ctx, o.tempPaths())
}

// open opens what was written, before it has its name.
func (o *output) open() (*gguf.File, error) {
	f, err := gguf.OpenParts(o.tempPaths()...)
	if err != nil {
		return nil, fmt.Errorf("the written file cannot be read back: %w", err)
	}
	return f, nil
}
