package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// decode reads a whole text into the types of encoding/json.
func decode(data []byte) (any, error) {
	r := NewReader(data, 64, 1000)
	v, err := decodeValue(r)
	if err != nil {
		return nil, err
	}
	return v, r.End()
}

func decodeValue(r *Reader) (any, error) {
	kind, err := r.Kind()
	if err != nil {
		return nil, err
	}
	switch kind {
	case Object:
		m := map[string]any{}
		err := r.Object(func(key string, _ int) error {
			v, err := decodeValue(r)
			m[key] = v
			return err
		})
		return m, err
	case Array:
		list := []any{}
		err := r.Array(func(int) error {
			v, err := decodeValue(r)
			list = append(list, v)
			return err
		})
		return list, err
	case String:
		return r.String()
	case Number:
		n, err := r.Number()
		return json.Number(n), err
	case Bool:
		return r.Bool()
	default:
		return nil, r.Null()
	}
}

// seeds are texts that both this package and encoding/json judge.
var seeds = []string{
	`{}`, `[]`, `{"a":[1,2,{"b":null}],"c":true}`, ` [ 1 , -0 , 1.5e+3 , 0.25E-2 ] `, `"x"`, `12`, `null`,
	`"\"\\\/\b\f\n\r\t\u00e9\u6CB3\ud83d\ude00"`, `"é 河 😀"`, ``, ` `, `{`, `[`, `"`, `"\`, `"\u12`, `"\x"`,
	`{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `{a:1}`, `[1,]`, `[1 2]`, `[,1]`, `01`, `-`, `1.`, `.5`, `1e`, `+1`,
	`tru`, `nul`, `falsey`, `NaN`, `Infinity`, "\"\x01\"", "\"\xff\"", "\xff", `{} {}`, `{}x`, `]`, `}`, "\ufeff{}",
	strings.Repeat("[", 64) + strings.Repeat("]", 64), strings.Repeat(`{"a":`, 64) + "1" + strings.Repeat("}", 64),
}

// compare holds Reader against encoding/json: the same value for what both
// take, and no text taken that encoding/json refuses.
func compare(t *testing.T, data []byte) {
	got, err := decode(data)
	r := NewReader(data, 64, 1000)
	skipErr := r.Skip()
	if skipErr == nil {
		skipErr = r.End()
	}
	if (skipErr == nil) != (err == nil) {
		t.Fatalf("%q: Skip: %v, reading: %v", data, skipErr, err)
	}
	r = NewReader(data, 64, 1000)
	skipErr = r.SkipIgnored()
	if skipErr == nil {
		skipErr = r.End()
	}
	if (skipErr == nil) != (err == nil) && !aboutKeys(err) {
		t.Fatalf("%q: SkipIgnored: %v, reading: %v", data, skipErr, err)
	}
	var want any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	wantErr := d.Decode(&want)
	valid := wantErr == nil && json.Valid(data) && utf8.Valid(data)
	if err != nil {
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || syntax.Offset < 0 || syntax.Offset > len(data) {
			t.Fatalf("%q: %#v, expected a SyntaxError within the text", data, err)
		}
		if valid && !strict(syntax.Msg) {
			t.Fatalf("%q: %v, but encoding/json takes it", data, err)
		}
		return
	}
	if !valid {
		t.Fatalf("%q: taken, but encoding/json says %v", data, wantErr)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%q: read %#v, encoding/json reads %#v", data, got, want)
	}
}

// aboutKeys reports whether err is one that SkipIgnored lets pass.
func aboutKeys(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "given twice") || strings.Contains(err.Error(), "keys in one object"))
}

// strict reports whether msg is one of the reasons for which this package
// refuses what encoding/json takes.
func strict(msg string) bool {
	for _, reason := range []string{"given twice", "surrogate", "nested more than", "keys in one object"} {
		if strings.Contains(msg, reason) {
			return true
		}
	}
	return false
}

func TestAgainstEncodingJSON(t *testing.T) {
	for _, s := range seeds {
		compare(t, []byte(s))
	}
}

// Every text that encoding/json lets pass and this package exists to refuse.
func TestStrict(t *testing.T) {
	for _, test := range []struct {
		text   string
		offset int
		msg    string
	}{
		{`{"a":1,"b":2,"a":3}`, 13, `key "a" is given twice`},
		{`{"a":1,"\u0061":3}`, 7, `key "a" is given twice`},
		{`[{"x":{"a":1,"a":1}}]`, 13, `key "a" is given twice`},
		{`{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"b":1}`, 37, `key "b" is given twice`},
		{`{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"e":1}`, 37, `key "e" is given twice`},
		{`["\ud800"]`, 2, "half a surrogate pair"},
		{`["\ud800\u0041"]`, 2, "half a surrogate pair"},
		{`["\udc00\ud800"]`, 2, "half a surrogate pair"},
		{"[\"\xc3\"]", 2, "byte 0xc3 in a string is not UTF-8"},
		{strings.Repeat("[", 65) + strings.Repeat("]", 65), 64, "nested more than 64 deep"},
		{`{"a":1} ,`, 8, `found ',' after the end`},
	} {
		_, err := decode([]byte(test.text))
		var syntax *SyntaxError
		if !errors.As(err, &syntax) {
			t.Errorf("%q: %v, expected a SyntaxError", test.text, err)
			continue
		}
		if syntax.Offset != test.offset || !strings.Contains(syntax.Msg, test.msg) {
			t.Errorf("%q: %v, expected %q at byte %d", test.text, err, test.msg, test.offset)
		}
	}
}

func TestKeyLimit(t *testing.T) {
	const text = `{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6}`
	for limit := range int64(8) {
		err := NewReader([]byte(text), 8, limit).Skip()
		if refused := err != nil && strings.Contains(err.Error(), fmt.Sprintf("more than %d keys", limit)); refused != (limit < 6) {
			t.Errorf("six keys with a limit of %d: %v", limit, err)
		}
	}
}

// A text of nothing but brackets must not exhaust the stack.
func TestDeepNesting(t *testing.T) {
	for _, open := range []string{"[", `{"a":`} {
		r := NewReader([]byte(strings.Repeat(open, 1_000_000)), 64, 1000)
		if err := r.SkipIgnored(); err == nil || !strings.Contains(err.Error(), "nested more than 64 deep") {
			t.Errorf("a million %q: %v", open, err)
		}
	}
}

func TestWrongKind(t *testing.T) {
	if _, err := NewReader([]byte(` {}`), 8, 8).String(); err == nil || err.Error() != "at byte 1: found an object, expected a string" {
		t.Errorf("String of an object: %v", err)
	}
}

func TestShorten(t *testing.T) {
	for _, s := range []string{"", "short", strings.Repeat("x", 80)} {
		if got := Shorten(s); got != s {
			t.Errorf("Shorten(%q) = %q", s, got)
		}
	}
	long := strings.Repeat("河", 40)
	if got := Shorten(long); !utf8.ValidString(got) || len(got) > 83 || !strings.HasSuffix(got, "...") {
		t.Errorf("Shorten(%q) = %q", long, got)
	}
}

func FuzzReader(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Add([]byte(`{"a":1,"a":2}`))
	f.Add([]byte(`{"a":0,"a"`))
	f.Add([]byte(`"\ud800"`))
	f.Fuzz(compare)
}
