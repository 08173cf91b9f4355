package safetensors

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/firstpassage/fpa/format/atomicfile"
	"github.com/firstpassage/fpa/format/internal/strictjson"
)

// bufferBytes is the size of the buffer of WriteFile.
const bufferBytes = 1 << 20

// Write writes a file of the given tensors to w; their Offset is not used.
// metadata may be nil.
//
// The bytes depend on the tensors and the metadata alone, not on the order of
// tensors: they are sorted as the reference library sorts them, by descending
// size of the element type, then by name, so that every tensor is aligned to
// its element size. Metadata is sorted by key.
//
// Write fails, before it writes anything, when a name is repeated, reserved or
// not UTF-8, when a type has no name in the format, when data and shape do not
// agree, or when the header would be larger than readers accept. It fails in the
// middle when a source does, or does not give what the shape asks for.
func Write(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	sorted := slices.Clone(tensors)
	slices.SortFunc(sorted, func(a, b Tensor) int {
		byType := cmp.Compare(dtypeRank[b.DType], dtypeRank[a.DType])
		return cmp.Or(byType, cmp.Compare(a.Name, b.Name))
	})
	header, err := encodeHeader(sorted, metadata)
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return fmt.Errorf("safetensors: write the header: %w", err)
	}
	for _, t := range sorted {
		if err := t.write(w); err != nil {
			return fmt.Errorf("safetensors: write %s: %w", where(t.Name), err)
		}
	}
	return nil
}

// size is the size of the elements in bytes.
func (t *Tensor) size() (int64, error) {
	elements, err := t.Shape.Elements()
	if err != nil {
		return 0, err
	}
	return t.DType.Bytes(elements)
}

// write writes the elements, whose size encodeHeader has checked.
func (t *Tensor) write(w io.Writer) error {
	if t.Source == nil {
		_, err := w.Write(t.Data)
		return err
	}
	n := &counter{w: w}
	if err := t.Source(n); err != nil {
		return err
	}
	if size, err := t.size(); err != nil || n.written != size {
		return fmt.Errorf("the source gave %d bytes, expected %d for %s of shape %v", n.written, size, t.DType, t.Shape)
	}
	return nil
}

// counter counts what goes through it.
type counter struct {
	w       io.Writer
	written int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.written += int64(n)
	return n, err
}

// WriteFile is Write to a file, which appears under its name only once it is
// complete and on disk. It fails when a file of that name exists, unless force is
// set: then that file is replaced.
func WriteFile(path string, force bool, tensors []Tensor, metadata map[string]string) error {
	f, err := atomicfile.CreateAtomic(path, force)
	if err != nil {
		return err
	}
	defer f.Abort()
	w := bufio.NewWriterSize(f, bufferBytes) // small tensors are many
	if err := Write(w, tensors, metadata); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Commit()
}

// encodeHeader is the length and the header of a file of the tensors, which
// are in the order of the data.
func encodeHeader(tensors []Tensor, metadata map[string]string) ([]byte, error) {
	b := make([]byte, lengthBytes)
	b = append(b, '{')
	if metadata != nil {
		b = appendString(b, metadataKey)
		b = append(b, ":{"...)
		for i, key := range slices.Sorted(maps.Keys(metadata)) {
			if !utf8.ValidString(key) || !utf8.ValidString(metadata[key]) {
				return nil, fmt.Errorf("safetensors: metadata %q is not UTF-8", strictjson.Shorten(key))
			}
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, key)
			b = append(b, ':')
			b = appendString(b, metadata[key])
		}
		b = append(b, '}')
	}
	names := make(map[string]struct{}, len(tensors))
	var offset int64
	for _, t := range tensors {
		size, err := check(t, names)
		if err != nil {
			return nil, fmt.Errorf("safetensors: %s: %w", where(t.Name), err)
		}
		if len(b) > lengthBytes+1 {
			b = append(b, ',')
		}
		end := offset + size
		b = appendString(b, t.Name)
		b = append(b, `:{"dtype":"`...)
		b = append(b, t.DType.String()...)
		b = append(b, `","shape":[`...)
		for i, d := range t.Shape {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, d, 10)
		}
		b = append(b, `],"data_offsets":[`...)
		b = strconv.AppendInt(b, offset, 10)
		b = append(b, ',')
		b = strconv.AppendInt(b, end, 10)
		b = append(b, "]}"...)
		offset = end
	}
	b = append(b, '}')
	for len(b)%lengthBytes != 0 {
		b = append(b, ' ') // so that the data are aligned
	}
	n := len(b) - lengthBytes
	if n > maxHeaderBytes {
		return nil, fmt.Errorf("safetensors: the header would have %d bytes, readers accept at most %d", n, maxHeaderBytes)
	}
	binary.LittleEndian.PutUint64(b, uint64(n))
	return b, nil
}

// check fails when t cannot be written, and adds its name to names. It gives the
// size of the elements in bytes.
func check(t Tensor, names map[string]struct{}) (size int64, err error) {
	if _, twice := names[t.Name]; twice {
		return 0, fmt.Errorf("the name is given twice")
	}
	names[t.Name] = struct{}{}
	_, known := dtypeRank[t.DType]
	switch {
	case t.Name == metadataKey:
		return 0, fmt.Errorf("the name is reserved")
	case !utf8.ValidString(t.Name):
		return 0, fmt.Errorf("the name is not UTF-8")
	case !known:
		return 0, fmt.Errorf("the format has no type %s; convert the tensor first", t.DType)
	}
	if size, err = t.size(); err != nil {
		return 0, err
	}
	if t.Source == nil && size != int64(len(t.Data)) {
		return 0, fmt.Errorf("%d bytes of data, expected %d for %s of shape %v", len(t.Data), size, t.DType, t.Shape)
	}
	return size, nil
}

// appendString appends s in quotes, escaped as the reference library does.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	plain := 0 // start of the stretch not yet appended
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[plain:i]...)
		plain = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, `\b`...)
		case '\f':
			b = append(b, `\f`...)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			b = append(b, `\u00`...)
			b = append(b, hex[c>>4], hex[c&15])
		}
	}
	b = append(b, s[plain:]...)
	return append(b, '"')
}
