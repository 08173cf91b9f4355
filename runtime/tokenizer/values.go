package tokenizer

import (
	"bytes"
	"encoding/json"
)

// A valueReader walks over JSON that checkJSON has found valid, several times
// faster than a json.Decoder: vocabularies have a million values. On anything
// else it gives odd values, but ends.
type valueReader struct {
	data []byte
	at   int
}

// peek is the next byte that is not white space, or 0 at the end.
func (r *valueReader) peek() byte {
	for ; r.at < len(r.data); r.at++ {
		switch c := r.data[r.at]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// accept skips a byte if it is next.
func (r *valueReader) accept(c byte) bool {
	if r.peek() != c {
		return false
	}
	r.at++
	return true
}

// value is the next value. It is part of the data.
func (r *valueReader) value() json.RawMessage {
	r.peek()
	start, depth := r.at, 0
	for r.at < len(r.data) {
		switch r.data[r.at] {
		case '"':
			r.skipString()
			if depth == 0 {
				return r.data[start:r.at]
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // the end of what is around a number
				return r.data[start:r.at]
			}
			if depth--; depth == 0 {
				r.at++
				return r.data[start:r.at]
			}
		case ',', ':', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return r.data[start:r.at]
			}
		}
		r.at++
	}
	return r.data[start:]
}

// skipString skips the string that begins here.
func (r *valueReader) skipString() {
	for r.at++; r.at < len(r.data); r.at++ {
		switch r.data[r.at] {
		case '\\':
			r.at++
		case '"':
			r.at++
			return
		}
	}
	r.at = len(r.data)
}

// stringValue is the string that a value is, if it is one.
func stringValue(raw json.RawMessage) (s string, ok bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), true
	}
	return s, json.Unmarshal(raw, &s) == nil
}

// members calls f with each member of a JSON object, in order.
func members(raw json.RawMessage, where string, f func(key string, value json.RawMessage) error) error {
	r := valueReader{data: raw}
	if !r.accept('{') {
		return malformed(where, "found %.20q, expected an object", string(raw))
	}
	for first := true; !r.accept('}'); first = false {
		if !first && !r.accept(',') {
			return malformed(where, "not JSON")
		}
		key, ok := stringValue(r.value())
		if !ok || !r.accept(':') {
			return malformed(where, "not JSON")
		}
		if err := f(key, r.value()); err != nil {
			return err
		}
	}
	return nil
}

// elements calls f with each element of a JSON array, in order.
func elements(raw json.RawMessage, where string, f func(i int, value json.RawMessage) error) error {
	r := valueReader{data: raw}
	if !r.accept('[') {
		return malformed(where, "found %.20q, expected an array", string(raw))
	}
	for i := 0; !r.accept(']'); i++ {
		if i > 0 && !r.accept(',') {
			return malformed(where, "not JSON")
		}
		if err := f(i, r.value()); err != nil {
			return err
		}
	}
	return nil
}
