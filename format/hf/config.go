package hf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/internal/strictjson"
)

// maxConfigBytes bounds a configuration; those of real models have a few
// kilobytes, and a tokenizer_config.json with many added tokens some hundred.
const maxConfigBytes = 16 << 20

// Config is a JSON object with typed access to its values. A value that is
// null counts as absent. Values of another type than asked for, and numbers
// that the type cannot hold, are a [format.FormatError] that names the file,
// the key and what was found; no getter turns them into a default or a zero.
type Config struct {
	path    string
	prefix  string // of key names in errors: "rope_scaling."
	lim     format.Limits
	keys    []string // in the order of the file
	members map[string]value
}

// value is the text of a JSON value, already checked for its syntax.
type value struct {
	kind   strictjson.Kind
	raw    []byte
	offset int64 // in the file
}

// ParseConfig checks that data is one JSON object and nothing else, in which
// no object has a key twice. path is what errors call the file; it is not
// opened. The Config refers to data.
func ParseConfig(data []byte, path string) (*Config, error) {
	return parseConfig(data, path, format.Limits{})
}

func parseConfig(data []byte, path string, lim format.Limits) (*Config, error) {
	lim = lim.WithDefaults()
	if len(data) > maxConfigBytes {
		return nil, &format.FormatError{Path: path, Offset: -1, Msg: fmt.Sprintf("the configuration has %d bytes, expected at most %d", len(data), maxConfigBytes)}
	}
	return newConfig(value{kind: strictjson.Object, raw: data}, path, "", lim)
}

// newConfig reads the members of the object v.
func newConfig(v value, path, prefix string, lim format.Limits) (*Config, error) {
	c := &Config{path: path, prefix: prefix, lim: lim, members: map[string]value{}}
	r := strictjson.NewReader(v.raw, lim.NestingDepth, lim.KeyValues)
	kind, err := r.Kind()
	if err != nil {
		return nil, syntaxError(err, path, v.offset)
	}
	if kind != strictjson.Object {
		return nil, &format.FormatError{Path: path, Offset: v.offset, Msg: fmt.Sprintf("found %s, expected a JSON object", kind)}
	}
	err = r.Object(func(key string, _ int) error {
		m, err := readValue(r, v.raw, v.offset)
		if err != nil {
			return err
		}
		c.keys = append(c.keys, key)
		c.members[key] = m
		return nil
	})
	if err == nil {
		err = r.End()
	}
	if err != nil {
		return nil, syntaxError(err, path, v.offset)
	}
	return c, nil
}

// readValue checks the next value of r, which reads text, and cuts it out.
func readValue(r *strictjson.Reader, text []byte, base int64) (value, error) {
	start := r.Offset()
	kind, err := r.Kind()
	if err != nil {
		return value{}, err
	}
	if err := r.Skip(); err != nil {
		return value{}, err
	}
	return value{kind: kind, raw: text[start:r.Consumed()], offset: base + int64(start)}, nil
}

// syntaxError turns a SyntaxError of a text that starts at base into a
// FormatError.
func syntaxError(err error, path string, base int64) error {
	var syntax *strictjson.SyntaxError
	if errors.As(err, &syntax) {
		return &format.FormatError{Path: path, Offset: base + int64(syntax.Offset), Msg: syntax.Msg}
	}
	return err
}

// lookup finds the value of key; ok is false when it is absent or null.
func (c *Config) lookup(key string) (v value, ok bool) {
	v, ok = c.members[key]
	return v, ok && v.kind != strictjson.Null
}

// wrong is the error of a value that is not what was expected.
func (c *Config) wrong(key string, v value, expected string) error {
	return &format.FormatError{
		Path: c.path, Offset: v.offset, Where: c.prefix + key,
		Msg: fmt.Sprintf("found %s, expected %s", describe(v), expected),
	}
}

// describe shows a value in an error message.
func describe(v value) string {
	switch v.kind {
	case strictjson.Number, strictjson.Bool, strictjson.Null, strictjson.String:
		return strictjson.Shorten(string(v.raw))
	}
	return v.kind.String()
}

// Missing is the error of a key that is required but absent or null.
// expected says what it should hold.
func (c *Config) Missing(key, expected string) error {
	found := "is missing"
	offset := int64(-1)
	if v, present := c.members[key]; present {
		found, offset = "found null", v.offset
	}
	return &format.FormatError{Path: c.path, Offset: offset, Where: c.prefix + key, Msg: found + ", expected " + expected}
}

// Invalid is the error of a key whose value the caller cannot accept.
// expected says what it should hold.
func (c *Config) Invalid(key, expected string) error {
	if v, ok := c.lookup(key); ok {
		return c.wrong(key, v, expected)
	}
	return c.Missing(key, expected)
}

// Path is what errors call the file.
func (c *Config) Path() string { return c.path }

// Keys is every key, in the order of the file, those that are null included.
func (c *Config) Keys() []string { return c.keys }

// Raw is the JSON text of the value of key, null included; nil when the object
// has no such key.
func (c *Config) Raw(key string) json.RawMessage { return json.RawMessage(c.members[key].raw) }

// Has reports whether key is present and not null.
func (c *Config) Has(key string) bool {
	_, ok := c.lookup(key)
	return ok
}

// anInt is what errors call the values that Int accepts.
const anInt = "an integer from -2^63 to 2^63-1"

// Int is the integer at key, or def when it is absent. A number written with
// a fraction or an exponent is accepted when it is integral: 2048.0.
func (c *Config) Int(key string, def int64) (int64, error) {
	v, ok := c.lookup(key)
	if !ok {
		return def, nil
	}
	n, ok := v.int()
	if !ok {
		return 0, c.wrong(key, v, anInt)
	}
	return n, nil
}

// RequiredInt is Int for a key that must be present.
func (c *Config) RequiredInt(key string) (int64, error) {
	if !c.Has(key) {
		return 0, c.Missing(key, anInt)
	}
	return c.Int(key, 0)
}

// int is the value as an integer, if it is one.
func (v value) int() (int64, bool) {
	if v.kind != strictjson.Number {
		return 0, false
	}
	if n, err := strconv.ParseInt(string(v.raw), 10, 64); err == nil {
		return n, true
	}
	if !bytes.ContainsAny(v.raw, ".eE") {
		return 0, false // out of range
	}
	// Below 2^53 every integer is a float64 of its own.
	f, err := strconv.ParseFloat(string(v.raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<53 {
		return 0, false
	}
	return int64(f), true
}

// Float is the number at key, or def when it is absent. It is finite.
func (c *Config) Float(key string, def float64) (float64, error) {
	v, ok := c.lookup(key)
	if !ok {
		return def, nil
	}
	if v.kind == strictjson.Number {
		if f, err := strconv.ParseFloat(string(v.raw), 64); err == nil {
			return f, nil
		}
	}
	return 0, c.wrong(key, v, "a number within the range of float64")
}

// Bool is the boolean at key, or def when it is absent.
func (c *Config) Bool(key string, def bool) (bool, error) {
	v, ok := c.lookup(key)
	if !ok {
		return def, nil
	}
	if v.kind != strictjson.Bool {
		return false, c.wrong(key, v, "true or false")
	}
	return v.raw[0] == 't', nil
}

// String is the string at key, or def when it is absent.
func (c *Config) String(key string, def string) (string, error) {
	v, ok := c.lookup(key)
	if !ok {
		return def, nil
	}
	s, ok := v.string()
	if !ok {
		return "", c.wrong(key, v, "a string")
	}
	return s, nil
}

// string is the value as a string, if it is one.
func (v value) string() (string, bool) {
	if v.kind != strictjson.String {
		return "", false
	}
	s, err := strictjson.NewReader(v.raw, 0, 0).String()
	return s, err == nil
}

// Object is the object at key; an empty one when it is absent.
func (c *Config) Object(key string) (*Config, error) {
	v, ok := c.lookup(key)
	if !ok {
		return &Config{path: c.path, prefix: c.prefix + key + ".", lim: c.lim}, nil
	}
	if v.kind != strictjson.Object {
		return nil, c.wrong(key, v, "an object")
	}
	return newConfig(v, c.path, c.prefix+key+".", c.lim)
}

// list is the elements of the array at key, or the one value that is there
// in place of an array; nil when it is absent.
func (c *Config) list(key string) ([]value, error) {
	v, ok := c.lookup(key)
	if !ok {
		return nil, nil
	}
	if v.kind != strictjson.Array {
		return []value{v}, nil
	}
	var list []value
	r := strictjson.NewReader(v.raw, c.lim.NestingDepth, c.lim.KeyValues)
	err := r.Array(func(int) error {
		element, err := readValue(r, v.raw, v.offset)
		list = append(list, element)
		return err
	})
	return list, syntaxError(err, c.path, v.offset)
}

// IntList is the integers at key, where a single integer stands for a list of
// one, as in eos_token_id; nil when it is absent or an empty list.
func (c *Config) IntList(key string) ([]int64, error) {
	list, err := c.list(key)
	if err != nil || list == nil {
		return nil, err
	}
	ints := make([]int64, len(list))
	for i, v := range list {
		n, ok := v.int()
		if !ok {
			return nil, c.wrong(key, v, anInt+", or a list of them")
		}
		ints[i] = n
	}
	return ints, nil
}

// StringList is the strings at key, where a single string stands for a list
// of one; nil when it is absent or an empty list.
func (c *Config) StringList(key string) ([]string, error) {
	list, err := c.list(key)
	if err != nil || list == nil {
		return nil, err
	}
	strs := make([]string, len(list))
	for i, v := range list {
		s, ok := v.string()
		if !ok {
			return nil, c.wrong(key, v, "a string, or a list of them")
		}
		strs[i] = s
	}
	return strs, nil
}
