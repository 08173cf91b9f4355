package hf

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
)

func parse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := ParseConfig([]byte(text), "config.json")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestConfigGetters(t *testing.T) {
	c := parse(t, `{"i": -12, "whole": 2048.0, "exp": 1e3, "f": 1e-06, "b": true, "no": false, "s": "sw\u0069sh",
		"null": null, "one": 2, "many": [1, 2], "empty": [], "o": {"x": 1, "p": {"q": "deep"}}, "names": ["A", "B"],
		"max": 9223372036854775807, "min": -9223372036854775808}`)
	check := func(what string, got any, err error, want any) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %#v, %v; expected %#v", what, got, err, want)
		}
	}
	for key, want := range map[string]int64{"i": -12, "whole": 2048, "exp": 1000, "one": 2, "max": math.MaxInt64, "min": math.MinInt64, "null": 7, "absent": 7} {
		got, err := c.Int(key, 7)
		check(key, got, err, want)
	}
	n, err := c.RequiredInt("i")
	check("RequiredInt", n, err, int64(-12))
	for key, want := range map[string]float64{"i": -12, "f": 1e-6, "whole": 2048, "null": 0.5, "absent": 0.5} {
		got, err := c.Float(key, 0.5)
		check(key, got, err, want)
	}
	for key, want := range map[string]bool{"b": true, "no": false, "null": true, "absent": true} {
		got, err := c.Bool(key, true)
		check(key, got, err, want)
	}
	for key, want := range map[string]string{"s": "swish", "null": "def", "absent": "def"} {
		got, err := c.String(key, "def")
		check(key, got, err, want)
	}
	for key, want := range map[string][]int64{"one": {2}, "many": {1, 2}, "empty": nil, "null": nil, "absent": nil} {
		got, err := c.IntList(key)
		check(key, got, err, want)
	}
	for key, want := range map[string][]string{"s": {"swish"}, "names": {"A", "B"}, "null": nil, "absent": nil} {
		got, err := c.StringList(key)
		check(key, got, err, want)
	}
	for key, want := range map[string]bool{"i": true, "no": true, "empty": true, "null": false, "absent": false} {
		check("Has "+key, c.Has(key), nil, want)
	}
	o, err := c.Object("o")
	if err != nil {
		t.Fatal(err)
	}
	check("keys", o.Keys(), nil, []string{"x", "p"})
	p, err := o.Object("p")
	if err != nil {
		t.Fatal(err)
	}
	q, err := p.String("q", "")
	check("nested", q, err, "deep")
	for key, want := range map[string]string{"exp": "1e3", "many": "[1, 2]", "o": `{"x": 1, "p": {"q": "deep"}}`, "null": "null", "absent": ""} {
		check("Raw "+key, string(c.Raw(key)), nil, want)
	}
	none, err := c.Object("absent")
	if err != nil || none.Has("x") || len(none.Keys()) != 0 {
		t.Errorf("absent object: %+v, %v", none, err)
	}
}

// Every wrong value is an error with file, byte, key, what was found and what
// was expected; none is taken for zero or a default.
func TestConfigWrongValues(t *testing.T) {
	const text = `{"int":1,"str":"x","real":1.5,"huge":100000000000000000000,"bool":true,"list":[1,"a"],"obj":{"in":{"x":"y"}},"null":null,"inf":1e999,"big":9007199254740993.0,"reals":[1,2.5],"objs":[{}]}`
	c := parse(t, text)
	in, err := c.Object("obj")
	if err == nil {
		in, err = in.Object("in")
	}
	if err != nil {
		t.Fatal(err)
	}
	drop := func(_ any, err error) error { return err }
	for _, test := range []struct {
		name string
		err  error
		at   string // the value in text; empty for no offset
		want string
	}{
		{"Int of string", drop(c.Int("str", 1)), `"x"`, `str: found "x", expected an integer`},
		{"Int of fraction", drop(c.Int("real", 1)), `1.5`, `real: found 1.5, expected an integer`},
		{"Int too large", drop(c.Int("huge", 1)), `1000`, `huge: found 100000000000000000000, expected an integer from -2^63 to 2^63-1`},
		{"Int beyond exact floats", drop(c.Int("big", 1)), `9007199254740993.0`, `big: found 9007199254740993.0, expected an integer`},
		{"Int infinite", drop(c.Int("inf", 1)), `1e999`, `inf: found 1e999, expected an integer`},
		{"Int of bool", drop(c.Int("bool", 1)), `true`, `bool: found true, expected an integer`},
		{"Int of list", drop(c.Int("list", 1)), `[1,"a"]`, `list: found an array, expected an integer`},
		{"Int of object", drop(c.Int("obj", 1)), `{"in"`, `obj: found an object, expected an integer`},
		{"RequiredInt absent", drop(c.RequiredInt("absent")), ``, `absent: is missing, expected an integer`},
		{"RequiredInt null", drop(c.RequiredInt("null")), `null,"inf`, `null: found null, expected an integer`},
		{"RequiredInt of string", drop(c.RequiredInt("str")), `"x"`, `str: found "x", expected an integer`},
		{"Float of string", drop(c.Float("str", 1)), `"x"`, `str: found "x", expected a number`},
		{"Float too large", drop(c.Float("inf", 1)), `1e999`, `inf: found 1e999, expected a number`},
		{"Float of bool", drop(c.Float("bool", 1)), `true`, `bool: found true, expected a number`},
		{"Bool of int", drop(c.Bool("int", false)), `1,`, `int: found 1, expected true or false`},
		{"Bool of string", drop(c.Bool("str", false)), `"x"`, `str: found "x", expected true or false`},
		{"String of int", drop(c.String("int", "")), `1,`, `int: found 1, expected a string`},
		{"String of list", drop(c.String("list", "")), `[1,"a"]`, `list: found an array, expected a string`},
		{"IntList with string", drop(c.IntList("list")), `"a"]`, `list: found "a", expected an integer`},
		{"IntList with fraction", drop(c.IntList("reals")), `2.5`, `reals: found 2.5, expected an integer`},
		{"IntList of string", drop(c.IntList("str")), `"x"`, `str: found "x", expected an integer`},
		{"IntList of object", drop(c.IntList("obj")), `{"in"`, `obj: found an object, expected an integer`},
		{"StringList with int", drop(c.StringList("list")), `1,"a"`, `list: found 1, expected a string`},
		{"StringList of objects", drop(c.StringList("objs")), `{}]`, `objs: found an object, expected a string`},
		{"Object of int", drop(c.Object("int")), `1,`, `int: found 1, expected an object`},
		{"Object of list", drop(c.Object("list")), `[1,"a"]`, `list: found an array, expected an object`},
		{"nested", drop(in.Int("x", 1)), `"y"`, `obj.in.x: found "y", expected an integer`},
		{"nested missing", drop(in.RequiredInt("z")), ``, `obj.in.z: is missing, expected an integer`},
		{"Invalid", c.Invalid("int", "at least 2"), `1,`, `int: found 1, expected at least 2`},
		{"Invalid absent", c.Invalid("absent", "at least 2"), ``, `absent: is missing, expected at least 2`},
	} {
		var fe *format.FormatError
		if !errors.As(test.err, &fe) {
			t.Errorf("%s: %v, expected a FormatError", test.name, test.err)
			continue
		}
		offset := int64(-1)
		if test.at != "" {
			offset = int64(strings.Index(text, test.at))
		}
		if fe.Path != "config.json" || fe.Offset != offset || !strings.Contains(fe.Error(), test.want) {
			t.Errorf("%s: %v; expected config.json, byte %d, %q", test.name, fe, offset, test.want)
		}
	}
}

func TestConfigMalformed(t *testing.T) {
	for _, test := range []struct {
		text   string
		offset int64
		msg    string
	}{
		{``, 0, "found the end of the text where a JSON value is expected"},
		{`null`, 0, "found null, expected a JSON object"},
		{` [1]`, 0, "found an array, expected a JSON object"},
		{`12`, 0, "found a number, expected a JSON object"},
		{`{"a":1,"a":2}`, 7, `key "a" is given twice`},
		{`{"x":{"a":1,"a":2}}`, 12, `key "a" is given twice`},
		{`{"x":[{"a":1,"a":2}]}`, 13, `key "a" is given twice`},
		{`{"a":1} x`, 8, "after the end of the JSON value"},
		{`{"a":NaN}`, 5, "found 'N' where a JSON value is expected"},
		{`{"a":1,}`, 7, "key in quotes"},
		{`{"a`, 1, "string without a closing quote"},
		{"{\"\xff\":1}", 2, "not UTF-8"},
		{"\ufeff{}", 0, "found '\\ufeff'"},
		{strings.Repeat(`{"a":`, 100_000), 5 * 64, "nested more than 64 deep"},
		{`{"a":` + strings.Repeat("[", 100_000), 5 + 63, "nested more than 64 deep"},
	} {
		_, err := ParseConfig([]byte(test.text), "x/config.json")
		var fe *format.FormatError
		if !errors.As(err, &fe) {
			t.Errorf("%.40q: %v, expected a FormatError", test.text, err)
			continue
		}
		if fe.Path != "x/config.json" || fe.Offset != test.offset || !strings.Contains(fe.Msg, test.msg) {
			t.Errorf("%.40q: %v, expected byte %d, %q", test.text, err, test.offset, test.msg)
		}
	}
	if _, err := ParseConfig(make([]byte, maxConfigBytes+1), "c"); err == nil || !strings.Contains(err.Error(), "expected at most 16777216") {
		t.Errorf("17 MB of configuration: %v", err)
	}
}

// FuzzConfig holds every value that the getters return against encoding/json.
func FuzzConfig(f *testing.F) {
	text, err := os.ReadFile("testdata/fox_config.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	for _, seed := range []string{
		`{}`, `null`, `[]`, `{"a":1,"a":2}`, `{"a":{"b":[1,"x",null,2.0]}}`, `{"a":1e999}`, `{"a":[1,2]}`, `{"a":["x"]}`,
		`{"a":100000000000000000000}`, `{"a":-0.0}`, `{"a":"\ud83d\ude00"}`, `{"chat_template":[{"name":"default","template":"x"}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data, "config.json")
		if err != nil {
			var fe *format.FormatError
			if !errors.As(err, &fe) || fe.Offset > int64(len(data)) {
				t.Fatalf("%#v, expected a FormatError within the text", err)
			}
			return
		}
		var want map[string]any
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber()
		if err := d.Decode(&want); err != nil {
			t.Fatalf("accepted, but encoding/json says %v", err)
		}
		_, _ = chatTemplate(c)
		compareConfig(t, c, want)
	})
}

// compareConfig compares a Config with the same object from encoding/json.
func compareConfig(t *testing.T, c *Config, want map[string]any) {
	if len(c.Keys()) != len(want) {
		t.Fatalf("keys %q, expected those of %v", c.Keys(), want)
	}
	for key, w := range want {
		if c.Has(key) != (w != nil) {
			t.Fatalf("Has(%q) is %v for %v", key, c.Has(key), w)
		}
		if w == nil {
			continue
		}
		if s, err := c.String(key, ""); reflect.TypeOf(w) == reflect.TypeFor[string]() != (err == nil) || err == nil && s != w {
			t.Fatalf("String(%q) is %q, %v for %v", key, s, err, w)
		}
		if b, err := c.Bool(key, false); reflect.TypeOf(w) == reflect.TypeFor[bool]() != (err == nil) || err == nil && b != w {
			t.Fatalf("Bool(%q) is %v, %v for %v", key, b, err, w)
		}
		number, isNumber := w.(json.Number)
		float, floatErr := number.Float64()
		if f, err := c.Float(key, 0); (isNumber && floatErr == nil) != (err == nil) || err == nil && f != float {
			t.Fatalf("Float(%q) is %v, %v for %v", key, f, err, w)
		}
		if n, err := c.Int(key, 0); err == nil && (!isNumber || float64(n) != float) {
			t.Fatalf("Int(%q) is %v for %v", key, n, w)
		}
		ints, intsErr := c.IntList(key)
		strs, strsErr := c.StringList(key)
		list, isList := w.([]any)
		if isList && intsErr == nil && len(ints) != len(list) || isList && strsErr == nil && len(strs) != len(list) {
			t.Fatalf("lists at %q: %v, %q for %v", key, ints, strs, w)
		}
		if isList && strsErr == nil && !slices.EqualFunc(strs, list, func(s string, w any) bool { return s == w }) {
			t.Fatalf("StringList(%q) is %q for %v", key, strs, w)
		}
		object, isObject := w.(map[string]any)
		sub, err := c.Object(key)
		if isObject != (err == nil) {
			t.Fatalf("Object(%q): %v for %v", key, err, w)
		}
		if isObject {
			compareConfig(t, sub, object)
		}
	}
}
