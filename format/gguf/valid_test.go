package gguf

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
)

// expectation is expected.json of a case.
type expectation struct {
	Open      string
	Version   uint32
	Alignment int64
	MayRefuse string `json:"may_refuse"`
	KV        [][]json.RawMessage
	Tensors   map[string]struct {
		DType  string
		Shape  format.Shape
		SHA256 string `json:"sha256_f32le"`
	}
}

// validCases are the folders of the hard but valid files: testdata/valid, and
// the shared cases where they are present.
func validCases(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("testdata/valid/*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no cases in testdata/valid: %v", err)
	}
	if shared := os.Getenv("FPA_SHARED"); shared != "" {
		more, err := filepath.Glob(filepath.Join(shared, "cases", "valid", "gguf_*"))
		if err != nil || len(more) == 0 {
			t.Fatalf("FPA_SHARED is set, but holds no cases/valid/gguf_*: %v", err)
		}
		dirs = append(dirs, more...)
	}
	return dirs
}

func TestValidCases(t *testing.T) {
	for _, dir := range validCases(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join(dir, "expected.json"))
			if err != nil {
				t.Fatal(err)
			}
			var want expectation
			if err := json.Unmarshal(raw, &want); err != nil {
				t.Fatal(err)
			}
			f, err := Open(filepath.Join(dir, want.Open))
			if want.MayRefuse == "unsupported" {
				var unsupported *format.UnsupportedError
				if !errors.As(err, &unsupported) || !strings.Contains(err.Error(), "big-endian") {
					t.Fatalf("%v, expected an UnsupportedError that names the byte order", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			checkExpected(t, f, &want)
		})
	}
}

func checkExpected(t *testing.T, f *File, want *expectation) {
	if want.Version != 0 && f.Version() != want.Version {
		t.Errorf("version %d, expected %d", f.Version(), want.Version)
	}
	if want.Alignment != 0 && f.Alignment() != want.Alignment {
		t.Errorf("alignment %d, expected %d", f.Alignment(), want.Alignment)
	}
	for _, kv := range want.KV {
		var key, typ string
		if err := errors.Join(json.Unmarshal(kv[0], &key), json.Unmarshal(kv[1], &typ)); err != nil {
			t.Fatal(err)
		}
		v, ok := f.Lookup(key)
		if !ok {
			t.Errorf("key %s is missing", key)
			continue
		}
		if v.TypeName() != typ {
			t.Errorf("key %s: type %s, expected %s", key, v.TypeName(), typ)
			continue
		}
		// Decode the expected value into the Go type found, so that the
		// comparison is exact for 64-bit integers too.
		x := reflect.New(reflect.TypeOf(v.Any()))
		raw := kv[2]
		if typ == "[u8]" { // JSON has no byte arrays; encoding/json wants base64
			var list []uint16
			if err := json.Unmarshal(raw, &list); err != nil {
				t.Fatal(err)
			}
			x.Elem().Set(reflect.ValueOf(narrow(list)))
		} else if err := json.Unmarshal(raw, x.Interface()); err != nil {
			t.Errorf("key %s: %s", key, err)
			continue
		}
		if got := v.Any(); !reflect.DeepEqual(got, x.Elem().Interface()) {
			t.Errorf("key %s: %v, expected %v", key, got, x.Elem().Interface())
		}
	}
	if got := len(f.Tensors()); got != len(want.Tensors) {
		t.Errorf("%d tensors, expected %d", got, len(want.Tensors))
	}
	for name, w := range want.Tensors {
		info, ok := f.Tensor(name)
		if !ok {
			t.Errorf("tensor %s is missing", name)
			continue
		}
		if info.Type.String() != w.DType || !info.Shape.Equal(w.Shape) {
			t.Errorf("tensor %s: %s %v, expected %s %v", name, info.Type, info.Shape, w.DType, w.Shape)
			continue
		}
		data := f.Data(info)
		i := slices.IndexFunc(f.Tensors(), func(x TensorInfo) bool { return x.Name == name })
		streamed, err := io.ReadAll(f.TensorReader(i))
		if err != nil || !bytes.Equal(streamed, data) || int64(len(data)) != info.Size {
			t.Errorf("tensor %s: TensorReader gives %d bytes (%v), Data %d, expected %d equal ones", name, len(streamed), err, len(data), info.Size)
		}
		if info.DType == quant.Invalid {
			continue // no decoder, and CheckTypes says so: see TestCheckTypes
		}
		got, err := hashF32(info, data)
		if err != nil {
			t.Errorf("tensor %s: %s", name, err)
		} else if got != w.SHA256 {
			t.Errorf("tensor %s: hash of the values %s, expected %s", name, got, w.SHA256)
		}
	}
}

func narrow(list []uint16) []uint8 {
	b := make([]uint8, len(list))
	for i, x := range list {
		b[i] = uint8(x)
	}
	return b
}

// hashF32 is the hash of a tensor's values as little-endian f32, every NaN
// as 0x7fc00000.
func hashF32(t TensorInfo, data []byte) (string, error) {
	n, err := t.Shape.Elements()
	if err != nil {
		return "", err
	}
	values := make([]float32, n)
	if err := quant.Decode(values, t.DType, data); err != nil {
		return "", err
	}
	h := sha256.New()
	var b [4]byte
	for _, x := range values {
		bits := math.Float32bits(x)
		if x != x {
			bits = 0x7fc00000
		}
		binary.LittleEndian.PutUint32(b[:], bits)
		h.Write(b[:])
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Every other GGUF file of the shared cases must open and be plausible, and
// come out of the Writer with the same content.
func TestSharedModels(t *testing.T) {
	shared := os.Getenv("FPA_SHARED")
	if shared == "" {
		t.Skip("FPA_SHARED is not set")
	}
	paths, err := filepath.Glob(filepath.Join(shared, "cases", "llama_tiny", "*", "*.gguf"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("FPA_SHARED holds no cases/llama_tiny: %v", err)
	}
	vocabs, err := filepath.Glob(filepath.Join(shared, "cases", "tokenizers", "*", "vocab.gguf"))
	if err != nil || len(vocabs) == 0 {
		t.Fatalf("FPA_SHARED holds no cases/tokenizers/*/vocab.gguf: %v", err)
	}
	for _, path := range append(paths, vocabs...) {
		t.Run(fmt.Sprint(filepath.Base(filepath.Dir(path))), func(t *testing.T) {
			f, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := f.CheckTypes(); err != nil {
				t.Error(err)
			}
			if _, present, err := f.Str(KeyArchitecture); !present || err != nil {
				t.Errorf("%s: present %v, %v", KeyArchitecture, present, err)
			}
			if tokens, present, err := f.Strings(KeyTokens); !present || err != nil || len(tokens) < 100 {
				t.Errorf("%s: %d strings, present %v, %v", KeyTokens, len(tokens), present, err)
			}
			if f.Version() == 3 {
				raw, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if again := encode(t, f); !bytes.Equal(again, raw) {
					t.Errorf("written again the file differs: %d bytes, expected %d", len(again), len(raw))
				}
			}
		})
	}
}
