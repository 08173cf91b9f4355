package state

import (
	"bytes"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestRoundTrip(t *testing.T) {
	long := make([]float32, 10_001) // more than one step
	for i := range long {
		long[i] = float32(i) / 3
	}
	var b bytes.Buffer
	w := NewWriter(&b)
	Put(w, long...)
	Put[int8](w, -128, 127)
	Put[uint8](w, 255)
	Put[uint16](w, 0x1234)
	Put[uint32](w, 0x12345678)
	Put[uint64](w, 1<<63+5)
	PutInt(w, 77)
	Put(w, math.Inf(-1), math.Copysign(0, -1))
	Put[float32](w) // nothing
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if want := 4*len(long) + 2 + 1 + 2 + 4 + 8 + 8 + 16; b.Len() != want {
		t.Errorf("%d bytes, expected %d", b.Len(), want)
	}
	if got := b.Bytes()[4*len(long)+3:][:2]; !bytes.Equal(got, []byte{0x34, 0x12}) {
		t.Errorf("0x1234 is written as % x, expected little-endian", got)
	}

	// Readers that give a byte at a time, or an end with the last bytes.
	for _, from := range []io.Reader{bytes.NewReader(b.Bytes()), iotest.OneByteReader(bytes.NewReader(b.Bytes())), iotest.DataErrReader(bytes.NewReader(b.Bytes()))} {
		r := NewReader(from)
		got := make([]float32, len(long))
		Finite(r, "long", got)
		small := make([]int8, 2)
		Get(r, small)
		ok := slices.Equal(got, long) && slices.Equal(small, []int8{-128, 127}) && One[uint8](r) == 255 && One[uint16](r) == 0x1234 &&
			One[uint32](r) == 0x12345678 && One[uint64](r) == 1<<63+5 && Int(r, "count", 77) == 77 &&
			One[float64](r) == math.Inf(-1) && math.Signbit(One[float64](r))
		if err := r.End(); err != nil || !ok {
			t.Errorf("%v, or other numbers than were written", err)
		}
	}
}

func TestErrors(t *testing.T) {
	write := func(v ...float64) []byte {
		var b bytes.Buffer
		w := NewWriter(&b)
		Put(w, v...)
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	count := func(v int) []byte {
		var b bytes.Buffer
		w := NewWriter(&b)
		PutInt(w, v)
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	three := make([]float64, 3)
	for name, c := range map[string]struct {
		data []byte
		read func(*Reader)
		says string
	}{
		"nothing":     {nil, func(r *Reader) { One[uint64](r) }, "ends too early"},
		"cut":         {write(1, 2, 3)[:20], func(r *Reader) { Get(r, three) }, "ends too early"},
		"goes on":     {write(1, 2, 3, 4), func(r *Reader) { Get(r, three) }, "goes on after its end"},
		"NaN":         {write(1, math.NaN(), 3), func(r *Reader) { Finite(r, "a level", three) }, "a level is NaN"},
		"infinite":    {write(1, 2, math.Inf(1)), func(r *Reader) { Finite(r, "a level", three) }, "a level is +Inf"},
		"negative":    {count(-1), func(r *Reader) { Int(r, "pages", 9) }, "pages is -1, expected 0 to 9"},
		"large":       {count(10), func(r *Reader) { Int(r, "pages", 9) }, "pages is 10, expected 0 to 9"},
		"first error": {count(10), func(r *Reader) { r.Fail("the %s", "first"); Int(r, "pages", 9) }, "the first"},
	} {
		r := NewReader(bytes.NewReader(c.data))
		c.read(r)
		if c.says != "goes on after its end" {
			// Errors stick, and what is read after one is 0.
			if x := One[float64](r); x != 0 || r.Err() == nil {
				t.Errorf("%s: reads %g after an error", name, x)
			}
		}
		if err := r.End(); err == nil || !strings.HasPrefix(err.Error(), c.says) {
			t.Errorf("%s: %v, expected %q", name, err, c.says)
		}
	}

	failed := errors.New("the disk failed")
	r := NewReader(iotest.ErrReader(failed))
	if Get(r, three); !errors.Is(r.End(), failed) || three[0] != 0 {
		t.Errorf("%v, expected the error of the input", r.Err())
	}
	r = NewReader(io.MultiReader(bytes.NewReader(write(1)), iotest.ErrReader(failed)))
	if One[float64](r); !errors.Is(r.End(), failed) {
		t.Errorf("%v, expected the error of the input at its end", r.Err())
	}
	w := NewWriter(failingWriter{failed})
	Put(w, make([]float32, 1<<16)...)
	Put(w, 1.0)
	if err := w.Flush(); !errors.Is(err, failed) {
		t.Errorf("%v, expected the error of the output", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }
