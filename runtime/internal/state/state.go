// Package state writes and reads the numbers of a saved session: little-endian,
// without names or lengths, since both sides know the shape of what they save.
// Errors stick, so that only the end needs a look.
package state

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// Number is what a saved session is made of.
type Number interface {
	~int8 | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int64 | ~float32 | ~float64
}

// Writer writes numbers.
type Writer struct {
	w   *bufio.Writer
	buf []byte
	err error
}

// NewWriter writes to w; Flush ends it.
func NewWriter(w io.Writer) *Writer { return &Writer{w: bufio.NewWriterSize(w, 1<<16)} }

// Put writes numbers.
func Put[T Number](w *Writer, v ...T) {
	const step = 4096 // numbers encoded at a time
	for len(v) > 0 && w.err == nil {
		n := min(step, len(v))
		w.buf, w.err = binary.Append(w.buf[:0], binary.LittleEndian, v[:n])
		if w.err == nil {
			_, w.err = w.w.Write(w.buf)
		}
		v = v[n:]
	}
}

// PutInt writes a count.
func PutInt(w *Writer, v int) { Put(w, int64(v)) }

// Flush writes what is buffered and returns the first error.
func (w *Writer) Flush() error {
	if w.err == nil {
		w.err = w.w.Flush()
	}
	return w.err
}

// Reader reads what a Writer wrote.
type Reader struct {
	r   *bufio.Reader
	buf []byte
	err error
}

// NewReader reads from r, and may read beyond what is asked for.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, 1<<16)} }

// Get fills v. After an error it fills it with zeros.
func Get[T Number](r *Reader, v []T) {
	const step = 4096
	for len(v) > 0 {
		n := min(step, len(v))
		size := binary.Size(v[:n])
		if cap(r.buf) < size {
			r.buf = make([]byte, size)
		}
		if r.err == nil {
			_, r.err = io.ReadFull(r.r, r.buf[:size])
		}
		if r.err != nil {
			clear(v)
			return
		}
		_, r.err = binary.Decode(r.buf[:size], binary.LittleEndian, v[:n])
		v = v[n:]
	}
}

// One reads one number.
func One[T Number](r *Reader) T {
	var v [1]T
	Get(r, v[:])
	return v[0]
}

// Int reads a count from 0 to most.
func Int(r *Reader, what string, most int) int {
	v := One[int64](r)
	if v < 0 || v > int64(most) {
		r.Fail("%s is %d, expected 0 to %d", what, v, most)
		return 0
	}
	return int(v)
}

// Finite reads numbers that must not be NaN or infinite.
func Finite[T ~float32 | ~float64](r *Reader, what string, v []T) {
	Get(r, v)
	for _, x := range v {
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			r.Fail("%s is %g, expected a finite number", what, x)
			clear(v)
			return
		}
	}
}

// Fail notes an error, unless there is one.
func (r *Reader) Fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// Err is the first error; the end of the input is an error that says so.
func (r *Reader) Err() error {
	if errors.Is(r.err, io.EOF) || errors.Is(r.err, io.ErrUnexpectedEOF) {
		return errors.New("ends too early")
	}
	return r.err
}

// End expects the end of the input and returns the first error.
func (r *Reader) End() error {
	if r.err == nil {
		if _, err := r.r.ReadByte(); err == nil {
			r.Fail("goes on after its end")
		} else if err != io.EOF {
			r.err = err
		}
	}
	return r.Err()
}
