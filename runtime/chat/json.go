package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

func badInput(format string, args ...any) error { return errorAt(BadInput, noPos, format, args...) }

// decodeJSON turns JSON into values, objects in the order they have.
func decodeJSON(data []byte) (value, error) {
	if !utf8.Valid(data) {
		return nil, badInput("JSON is not UTF-8")
	}
	if err := checkSurrogates(data); err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := decodeValue(d, 0)
	if err != nil {
		var e *Error
		if errors.As(err, &e) {
			return nil, err
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, badInput("JSON: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, badInput("JSON: more after the first value, at byte %d", d.InputOffset())
	}
	return v, nil
}

// checkSurrogates refuses half surrogate pairs, which Python keeps and Go
// cannot hold in a string.
func checkSurrogates(data []byte) error {
	escape := func(i int) (uint64, bool) {
		if i+6 > len(data) || data[i] != '\\' || data[i+1] != 'u' {
			return 0, false
		}
		n, err := strconv.ParseUint(string(data[i+2:i+6]), 16, 32)
		return n, err == nil
	}
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		n, ok := escape(i)
		switch {
		case !ok:
			i++ // the character escaped
		case n >= 0xd800 && n < 0xdc00:
			if low, ok := escape(i + 6); !ok || low < 0xdc00 || low > 0xdfff {
				return badInput("JSON: half a surrogate pair at byte %d", i)
			}
			i += 11
		case n >= 0xdc00 && n <= 0xdfff:
			return badInput("JSON: half a surrogate pair at byte %d", i)
		default:
			i += 5
		}
	}
	return nil
}

// maxInputDepth bounds the nesting of JSON given to Render. It is less than
// what printing a value allows.
const maxInputDepth = 100

func decodeValue(d *json.Decoder, depth int) (value, error) {
	if depth > maxInputDepth {
		return nil, badInput("JSON nested more than %d deep", maxInputDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		return decodeNumber(string(t))
	case json.Delim:
		if t == '[' {
			l := &list{}
			for d.More() {
				v, err := decodeValue(d, depth+1)
				if err != nil {
					return nil, err
				}
				l.items = append(l.items, v)
			}
			_, err := d.Token()
			return l, err
		}
		o := newDict()
		for d.More() {
			k, err := d.Token()
			if err != nil {
				return nil, err
			}
			key, ok := k.(string)
			if !ok {
				return nil, badInput("JSON: object key is not a string")
			}
			v, err := decodeValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			o.setString(key, v)
		}
		_, err := d.Token()
		return o, err
	}
	return t, nil // nil, bool or string
}

// decodeNumber gives an int to a number without fraction and exponent.
func decodeNumber(s string) (value, error) {
	if strings.ContainsAny(s, ".eE") {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil && !isRange(err) {
			return nil, badInput("JSON: number %s", clip(s))
		}
		return f, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return nil, badInput("JSON: integer %s is outside 64 bits", clip(s))
	}
	return n, nil
}

// fromGo turns a Go value of Input.Extra into a value.
func fromGo(v any, depth int) (value, error) {
	if depth > maxInputDepth {
		return nil, badInput("nested more than %d deep", maxInputDepth)
	}
	switch v := v.(type) {
	case nil:
		return nil, nil
	case bool:
		return v, nil
	case string:
		if !utf8.ValidString(v) {
			return nil, badInput("text is not UTF-8")
		}
		return v, nil
	case int:
		return int64(v), nil
	case int64:
		return v, nil
	case float64:
		return v, nil
	case json.RawMessage:
		return decodeJSON(v)
	case json.Number:
		return decodeNumber(string(v))
	case []string:
		l := &list{}
		for _, s := range v {
			item, err := fromGo(s, depth+1)
			if err != nil {
				return nil, err
			}
			l.items = append(l.items, item)
		}
		return l, nil
	case []any:
		l := &list{}
		for _, x := range v {
			item, err := fromGo(x, depth+1)
			if err != nil {
				return nil, err
			}
			l.items = append(l.items, item)
		}
		return l, nil
	case map[string]any:
		d := newDict()
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			if !utf8.ValidString(k) {
				return nil, badInput("key is not UTF-8")
			}
			item, err := fromGo(v[k], depth+1)
			if err != nil {
				return nil, err
			}
			d.setString(k, item)
		}
		return d, nil
	}
	return nil, badInput("values of type %T are not known; pass json.RawMessage", v)
}

// A jsonWriter writes JSON as Python's json.dumps does.
type jsonWriter struct {
	e         *evaluator
	b         strings.Builder
	ascii     bool // ensure_ascii
	sortKeys  bool
	multiline bool // indent is given
	indent    string
	item, key string // what stands after an item and after a key
}

// newline begins a line, where there are lines.
func (w *jsonWriter) newline(depth int) error {
	if !w.multiline {
		return w.e.charge(1)
	}
	if err := w.e.alloc(1 + len(w.indent)*depth); err != nil {
		return err
	}
	w.b.WriteByte('\n')
	for range depth {
		w.b.WriteString(w.indent)
	}
	return nil
}

// between begins an item, after another one if more is set.
func (w *jsonWriter) between(more bool, depth int) error {
	if more {
		if err := w.e.alloc(len(w.item)); err != nil {
			return err
		}
		w.b.WriteString(w.item)
	}
	return w.newline(depth)
}

func (w *jsonWriter) write(v value, depth int) error {
	if err := w.e.deep(depth); err != nil {
		return err
	}
	start := w.b.Len()
	switch v := v.(type) {
	case nil:
		w.b.WriteString("null")
	case bool:
		w.b.WriteString(strconv.FormatBool(v))
	case int64:
		w.b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		w.b.WriteString(jsonFloat(v))
	case string:
		w.str(v)
	case markup:
		w.str(string(v))
	case *list:
		if len(v.items) == 0 {
			w.b.WriteString("[]")
			break
		}
		w.b.WriteByte('[')
		for i, item := range v.items {
			if err := w.between(i > 0, depth+1); err != nil {
				return err
			}
			if err := w.write(item, depth+1); err != nil {
				return err
			}
		}
		if err := w.newline(depth); err != nil {
			return err
		}
		w.b.WriteByte(']')
		return w.e.alloc(2)
	case *dict:
		return w.object(v, depth)
	default:
		return failed("Object of type %s is not JSON serializable", typeName(v))
	}
	return w.e.alloc(w.b.Len() - start)
}

func (w *jsonWriter) object(d *dict, depth int) error {
	if len(d.keys) == 0 {
		w.b.WriteString("{}")
		return w.e.alloc(2)
	}
	order := make([]int, len(d.keys))
	for i := range order {
		order[i] = i
	}
	if w.sortKeys {
		if err := w.e.sortStable(order, func(i int) value { return d.keys[i] }, false); err != nil {
			return err
		}
	}
	w.b.WriteByte('{')
	for n, i := range order {
		if err := w.between(n > 0, depth+1); err != nil {
			return err
		}
		key, err := jsonKey(d.keys[i])
		if err != nil {
			return err
		}
		if err := w.e.alloc(len(key) + len(w.key)); err != nil {
			return err
		}
		w.str(key)
		w.b.WriteString(w.key)
		if err := w.write(d.values[i], depth+1); err != nil {
			return err
		}
	}
	if err := w.newline(depth); err != nil {
		return err
	}
	w.b.WriteByte('}')
	return w.e.alloc(2)
}

// jsonKey is a key of an object: json.dumps takes numbers, booleans and None too.
func jsonKey(k value) (string, error) {
	switch k := k.(type) {
	case nil:
		return "null", nil
	case bool:
		return strconv.FormatBool(k), nil
	case int64:
		return strconv.FormatInt(k, 10), nil
	case float64:
		return jsonFloat(k), nil
	case string:
		return k, nil
	case markup:
		return string(k), nil
	}
	return "", failed("keys must be str, int, float, bool or None, not %s", typeName(k))
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return floatRepr(f)
}

var jsonEscapes = map[rune]string{
	'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`,
}

func (w *jsonWriter) str(s string) {
	w.b.WriteByte('"')
	for _, r := range s {
		switch esc := jsonEscapes[r]; {
		case esc != "":
			w.b.WriteString(esc)
		case r < 0x20 || w.ascii && r >= 0x7f && r < 0x10000:
			w.b.WriteString(`\u` + hex(r, 4))
		case w.ascii && r >= 0x10000:
			r -= 0x10000
			fmt.Fprintf(&w.b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			w.b.WriteRune(r)
		}
	}
	w.b.WriteByte('"')
}
