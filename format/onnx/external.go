package onnx

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/firstpassage/fpa/format/internal/filemap"
)

// openExternal maps the files that the model's tensors name and points the
// tensors into them.
func (f *File) openExternal() error {
	var root *os.Root
	defer func() {
		if root != nil {
			root.Close()
		}
	}()
	open := map[string]*filemap.File{}
	return eachTensor(f.Model, func(t *Tensor) error {
		if t.External == nil {
			return nil
		}
		if root == nil {
			var err error
			if root, err = os.OpenRoot(filepath.Dir(f.path)); err != nil {
				return err
			}
		}
		location := t.External.Location
		file := open[location]
		if file == nil {
			var err error
			if file, err = mapBeside(root, location); err != nil {
				return errorAt(-1, tensorPlace(t.Name), "external data in %s: %v", quote(location), err)
			}
			f.mapped = append(f.mapped, file)
			f.paths = append(f.paths, filepath.Join(filepath.Dir(f.path), filepath.FromSlash(location)))
			open[location] = file
		}
		size, err := t.Bytes()
		if err != nil {
			return err // the reader has computed it
		}
		off := t.External.Offset
		if size > file.Size() || off > file.Size()-size {
			return errorAt(-1, tensorPlace(t.Name), "external data: bytes %d to %d of %s, which has %d; it is another file or cut short", off, off+size, quote(location), file.Size())
		}
		t.Raw = file.Bytes()[off : off+size : off+size]
		if size == 0 {
			t.Raw = []byte{}
		}
		return nil
	})
}

// mapBeside maps a regular file below root that has no other name. Links may
// lead to it as long as they stay below root.
func mapBeside(root *os.Root, location string) (*filemap.File, error) {
	name := filepath.FromSlash(location)
	// Opening a FIFO waits for a writer, so ask what it is before opening.
	info, err := root.Stat(name)
	if err != nil {
		return nil, cause(err)
	}
	if err := plain(info); err != nil {
		return nil, err
	}
	file, err := root.Open(name)
	if err != nil {
		return nil, cause(err)
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return nil, cause(err)
	}
	if err := plain(info); err != nil {
		return nil, err
	}
	return filemap.Map(file)
}

// cause is an error without the path, which the caller says.
func cause(err error) error {
	if p, ok := err.(*fs.PathError); ok {
		return p.Err
	}
	return err
}

// plain fails unless info is of a regular file with one name. A second name
// may be that of a file outside the model's folder.
func plain(info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("it is no regular file (%v)", info.Mode().Type())
	}
	if n := linkCount(info); n > 1 {
		return fmt.Errorf("the file has %d names (hard links), expected one; copy it instead", n)
	}
	return nil
}

// eachTensor calls f for every tensor of a model, in attributes too.
func eachTensor(m *Model, f func(*Tensor) error) error {
	sparse := func(s *SparseTensor) error {
		for _, t := range []*Tensor{s.Values, s.Indices} {
			if t == nil {
				continue
			}
			if err := f(t); err != nil {
				return err
			}
		}
		return nil
	}
	attributes := func(list []*Attribute) error {
		for _, a := range list {
			var err error
			switch v := a.Value.(type) {
			case *Tensor:
				err = f(v)
			case []*Tensor:
				for _, t := range v {
					if err = f(t); err != nil {
						break
					}
				}
			case *SparseTensor:
				err = sparse(v)
			case []*SparseTensor:
				for _, s := range v {
					if err = sparse(s); err != nil {
						break
					}
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	for _, fn := range m.Functions {
		if err := attributes(fn.Defaults); err != nil {
			return err
		}
	}
	return m.Walk(func(g *Graph, nodes *[]*Node) error {
		if g != nil {
			for _, t := range g.Initializers {
				if err := f(t); err != nil {
					return err
				}
			}
			for _, s := range g.SparseInitializers {
				if err := sparse(s); err != nil {
					return err
				}
			}
		}
		for _, n := range *nodes {
			if err := attributes(n.Attributes); err != nil {
				return err
			}
		}
		return nil
	})
}
