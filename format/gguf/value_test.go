package gguf

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
)

// fileOf is a model with this metadata alone.
func fileOf(kv ...KV) *File {
	f := &File{kv: kv, keys: map[string]int{}, parts: []part{{path: "some.gguf"}}}
	for i, e := range kv {
		f.keys[e.Key] = i
	}
	return f
}

// get calls a getter by reflection and gives value, present and error.
func get(f *File, getter, key string) (value any, present bool, err error) {
	out := reflect.ValueOf(f).MethodByName(getter).Call([]reflect.Value{reflect.ValueOf(key)})
	err, _ = out[2].Interface().(error)
	return out[0].Interface(), out[1].Bool(), err
}

func TestGetters(t *testing.T) {
	// Per value what each getter must give; absent here means an error.
	type results map[string]any
	tests := []struct {
		value Value
		want  results
	}{
		{ValueOf(uint8(7)), results{"Uint32": uint32(7), "Uint64": uint64(7), "Int64": int64(7)}},
		{ValueOf(int8(-7)), results{"Int64": int64(-7)}},
		{ValueOf(int8(7)), results{"Uint32": uint32(7), "Uint64": uint64(7), "Int64": int64(7)}},
		{ValueOf(uint16(7)), results{"Uint32": uint32(7), "Uint64": uint64(7), "Int64": int64(7)}},
		{ValueOf(int16(7)), results{"Uint32": uint32(7), "Uint64": uint64(7), "Int64": int64(7)}},
		{ValueOf(uint32(math.MaxUint32)), results{"Uint32": uint32(math.MaxUint32), "Uint64": uint64(math.MaxUint32), "Int64": int64(math.MaxUint32)}},
		{ValueOf(int32(0)), results{"Uint32": uint32(0), "Uint64": uint64(0), "Int64": int64(0)}},
		{ValueOf(int64(1 << 32)), results{"Uint64": uint64(1 << 32), "Int64": int64(1 << 32)}},
		{ValueOf(uint64(7)), results{"Uint32": uint32(7), "Uint64": uint64(7), "Int64": int64(7)}},
		{ValueOf(uint64(math.MaxUint64)), results{"Uint64": uint64(math.MaxUint64)}},
		{ValueOf(float32(0.1)), results{"Float32": float32(0.1)}},
		{ValueOf(float64(0.1)), results{"Float32": float32(0.1)}},
		{ValueOf(float64(1e300)), results{}},
		{ValueOf(math.Inf(-1)), results{"Float32": float32(math.Inf(-1))}},
		{ValueOf(true), results{"Bool": true}},
		{ValueOf(false), results{"Bool": false}},
		{ValueOf("7"), results{"Str": "7"}},
		{ValueOf([]string{"a", ""}), results{"Strings": []string{"a", ""}}},
		{ValueOf([]float32{0.1}), results{"Floats": []float32{0.1}}},
		{ValueOf([]float64{0.1}), results{"Floats": []float32{0.1}}},
		{ValueOf([]float64{0, 1e300}), results{}},
		{ValueOf([]uint8{1}), results{"Int32s": []int32{1}, "Uint32s": []uint32{1}}},
		{ValueOf([]int8{-1}), results{"Int32s": []int32{-1}}},
		{ValueOf([]uint16{1}), results{"Int32s": []int32{1}, "Uint32s": []uint32{1}}},
		{ValueOf([]int16{1}), results{"Int32s": []int32{1}, "Uint32s": []uint32{1}}},
		{ValueOf([]uint32{math.MaxUint32}), results{"Uint32s": []uint32{math.MaxUint32}}},
		{ValueOf([]int32{math.MinInt32}), results{"Int32s": []int32{math.MinInt32}}},
		{ValueOf([]int64{1, 1 << 32}), results{}},
		{ValueOf([]uint64{1}), results{"Int32s": []int32{1}, "Uint32s": []uint32{1}}},
		{ValueOf([]uint64{math.MaxUint64}), results{}},
		{ValueOf([]bool{true}), results{}},
		{Value{[]Value{ValueOf([]int32{1})}}, results{}},
	}
	getters := []string{"Uint32", "Uint64", "Int64", "Float32", "Str", "Bool", "Strings", "Floats", "Int32s", "Uint32s"}
	for _, test := range tests {
		f := fileOf(KV{"a.key", test.value})
		for _, getter := range getters {
			got, present, err := get(f, getter, "a.key")
			if !present {
				t.Errorf("%s of %s: not present", getter, test.value.TypeName())
			}
			want, ok := test.want[getter]
			if ok {
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("%s of %s %v: %v, %v, expected %v", getter, test.value.TypeName(), test.value, got, err, want)
				}
				continue
			}
			var fe *format.FormatError
			if !errors.As(err, &fe) || fe.Path != "some.gguf" || !strings.Contains(err.Error(), "key a.key: ") || !strings.Contains(err.Error(), "expected") {
				t.Errorf("%s of %s %v: %v, %v, expected a FormatError that names file and key", getter, test.value.TypeName(), test.value, got, err)
			}
		}
	}
	for _, getter := range getters {
		if _, present, err := get(fileOf(), getter, "a.key"); present || err != nil {
			t.Errorf("%s of a missing key: present %v, %v", getter, present, err)
		}
	}
	_, _, err := fileOf(KV{"a.key", ValueOf("x")}).Uint32("a.key")
	if want := `some.gguf: key a.key: has type str ("x"), expected u32, or another integer from 0 to 2^32-1`; err == nil || err.Error() != want {
		t.Errorf("the error is\n%v, expected\n%s", err, want)
	}
}

// The zero Value fails everywhere and panics nowhere.
func TestZeroValue(t *testing.T) {
	var v Value
	_, ok1 := v.Type()
	_, ok2 := v.Elem()
	_, ok3 := v.Len()
	_, ok4 := v.Uint64()
	_, ok5 := v.Int64()
	_, ok6 := v.Float64()
	_, ok7 := v.Bool()
	_, ok8 := v.Str()
	_, ok9 := v.Strings()
	_, ok10 := v.Int64s()
	_, ok11 := v.Float64s()
	if ok1 || ok2 || ok3 || ok4 || ok5 || ok6 || ok7 || ok8 || ok9 || ok10 || ok11 || v.Any() != nil {
		t.Error("an accessor of the zero Value succeeds")
	}
	if v.TypeName() != "invalid" || v.String() != "invalid" {
		t.Error(v.TypeName(), v.String())
	}
}

func TestValueString(t *testing.T) {
	nested, err := NestedArray([]Value{ValueOf([]uint8{1, 2}), ValueOf([]uint8{})})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		value          Value
		typ, printed   string
		length         int
		isArray, isInt bool
	}{
		{ValueOf(int8(-3)), "i8", "-3", 0, false, true},
		{ValueOf(float32(0.1)), "f32", "0.1", 0, false, false},
		{ValueOf("a\n"), "str", `"a\n"`, 0, false, false},
		{ValueOf(strings.Repeat("x", 200)), "str", `"` + strings.Repeat("x", 80) + `..."`, 0, false, false},
		{ValueOf([]uint64{1, 2, 3, 4}), "[u64]", "[1, 2, 3, 4]", 4, true, false},
		{ValueOf([]int16{1, 2, 3, 4, 5}), "[i16]", "[1, 2, 3, 4, ... 5 in all]", 5, true, false},
		{ValueOf([]string{"a", "b c"}), "[str]", `["a", "b c"]`, 2, true, false},
		{ValueOf([]bool{}), "[bool]", "[]", 0, true, false},
		{nested, "[[u8]]", "[[1, 2], []]", 2, true, false},
		{Value{[]Value{}}, "[array]", "[]", 0, true, false},
	}
	for _, test := range tests {
		n, isArray := test.value.Len()
		_, isInt := test.value.Int64()
		if test.value.TypeName() != test.typ || test.value.String() != test.printed || n != test.length || isArray != test.isArray || isInt != test.isInt {
			t.Errorf("%s %s, length %d, array %v, integer %v; expected %+v", test.value.TypeName(), test.value, n, isArray, isInt, test)
		}
	}
	if got := Type(13).String(); got != "Type(13)" {
		t.Error(got)
	}
}

// The block shapes here and in package quant are told twice; they must agree.
func TestTypesAgreeWithQuant(t *testing.T) {
	seen := map[quant.DType]bool{}
	for i := range typeInfos {
		info, known := GGMLType(i).info()
		if !known || info.dtype == quant.Invalid {
			continue
		}
		d := info.dtype
		if seen[d] {
			t.Errorf("%s has two numbers", d)
		}
		seen[d] = true
		if d.String() != info.name || int64(d.BlockLen()) != info.length || int64(d.BlockBytes()) != info.bytes {
			t.Errorf("%s: blocks of %d elements in %d bytes; quant says %s, %d, %d", info.name, info.length, info.bytes, d, d.BlockLen(), d.BlockBytes())
		}
		if back, ok := TypeOf(d); !ok || back != GGMLType(i) {
			t.Errorf("TypeOf(%s) = %d, %v, expected %d", d, back, ok, i)
		}
	}
	for d := quant.DType(1); d.Valid(); d++ {
		if d.Quantised() && !seen[d] {
			t.Errorf("quant knows %s, GGUF does not", d)
		}
		if ft, ok := FileTypeOf(d); ok && !strings.HasPrefix(ft.String(), d.String()) {
			t.Errorf("FileTypeOf(%s) = %s", d, ft)
		}
	}
	for _, d := range []quant.DType{quant.Invalid, quant.Bool, quant.F8E4M3} {
		if _, ok := TypeOf(d); ok {
			t.Errorf("TypeOf(%s) succeeds", d)
		}
		if _, ok := FileTypeOf(d); ok {
			t.Errorf("FileTypeOf(%s) succeeds", d)
		}
	}
}

func TestCheckTypes(t *testing.T) {
	f, err := Open("testdata/valid/gguf_quants_k/model.gguf")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = f.CheckTypes()
	var u *format.UnsupportedError
	if !errors.As(err, &u) || !strings.Contains(err.Error(), "IQ4_XS") || !strings.Contains(err.Error(), "t.IQ4_XS") {
		t.Errorf("%v, expected an UnsupportedError that names the tensor and its type", err)
	}
	f, err = Open("testdata/valid/gguf_quants_simple/model.gguf")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.CheckTypes(); err != nil {
		t.Error(err)
	}
	if f.TensorReader(-1) != nil || f.TensorReader(13) != nil {
		t.Error("TensorReader of no tensor is not nil")
	}
	for _, info := range []TensorInfo{{File: -1}, {File: 1}, {Offset: -1}, {Offset: 1 << 40}, {Size: -1}, {Offset: 1, Size: math.MaxInt64}} {
		if f.Data(info) != nil {
			t.Errorf("Data of %+v is not nil", info)
		}
	}
}
