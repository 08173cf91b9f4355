package model

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/format/hf"
	"github.com/firstpassage/fpa/format/onnx"
)

// What fpaconv writes into the metadata_props of an ONNX model is enough to read
// the model back without looking at its graph: the configuration and the
// generation settings under the names that they have in a GGUF file, each value as
// JSON. The initializers of the weights have the names, shapes and values of the
// tensors of a GGUF file. KeyArchitecture, as plain text, says that this is so.

// KeyONNXTensors is the metadata entry of an ONNX model that counts the tensors of
// the model, so that a weight which some other tool folded into the graph is missed.
const KeyONNXTensors = "fpaconv.tensors"

// ONNXName is the name of the model's file in a folder.
const ONNXName = "model.onnx"

// onnxIn is the ONNX model of a folder that has no other weights; empty when there
// is none.
func onnxIn(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	found := ""
	for _, e := range entries {
		switch name := e.Name(); {
		case name == ONNXName:
			found = filepath.Join(dir, name)
		case strings.HasSuffix(name, ".safetensors.index.json"):
			return "", nil
		default:
			switch filepath.Ext(name) {
			case ".safetensors", ".pt", ".pth", ".bin":
				return "", nil
			}
		}
	}
	return found, nil
}

// beginsAsONNX says whether the first 9 bytes of a file are those of an ONNX model
// as all writers make them: ir_version, field 1, a small number, and then one of the
// other fields of the message. The length that a .safetensors file begins with may
// look alike, but has zeros behind it, and then a brace.
func beginsAsONNX(head []byte) bool {
	if len(head) < 9 || head[0] != 1<<3 || head[1] == 0 || head[1] >= 0x80 {
		return false
	}
	if string(head[4:]) == "\x00\x00\x00\x00{" {
		return false
	}
	switch head[2] {
	case 2<<3 | 2, 3<<3 | 2, 4<<3 | 2, 5 << 3, 6<<3 | 2, 7<<3 | 2, 8<<3 | 2, 14<<3 | 2:
		return true
	}
	return false
}

// openONNX opens a model that fpaconv wrote. Its tokenizer is beside it.
func (f *File) openONNX(path string, o OpenOptions) (err error) {
	if o.ConfigPath != "" || o.MappingPath != "" {
		return fmt.Errorf("%s: an ONNX model has its configuration inside; leave --config and --map out", path)
	}
	if f.ONNX, err = onnx.Open(path, format.Limits{}); err != nil {
		return err
	}
	if err := f.ONNX.Check(); err != nil {
		return err
	}
	if f.Parts, err = FromONNX(f.ONNX.Model); err != nil {
		return format.WithPath(err, path)
	}
	keys, err := onnxMetadata(f.ONNX.Model)
	if err == nil {
		f.Generation, err = generationOfKV(keys)
	}
	if err != nil {
		return format.WithPath(err, path)
	}
	if o.TokenizerPath == "" {
		f.files, err = hf.OpenTokenizer(filepath.Dir(path), format.Limits{})
		return err
	}
	if f.files, err = hf.OpenTokenizer(o.TokenizerPath, format.Limits{}); err != nil {
		return err
	}
	return f.needTokenizer(o)
}

// FromONNX reads the parts of a model from an ONNX model that fpaconv wrote; one
// that something else wrote is an UnsupportedError. The graph is not interpreted.
// Data are views of the file. Errors name the key or tensor.
func FromONNX(m *onnx.Model) (Parts, error) {
	keys, err := onnxMetadata(m)
	if err != nil {
		return Parts{}, err
	}
	switch arch, found := keys[gguf.KeyArchitecture]; {
	case !found:
		return Parts{}, &format.UnsupportedError{Offset: -1, Where: "metadata_props",
			Msg: fmt.Sprintf("has no %s: this is not an ONNX model that fpaconv wrote, and only those can be read back; convert the checkpoint that it was exported from", gguf.KeyArchitecture)}
	case arch != gguf.ArchFPA:
		return Parts{}, &format.UnsupportedError{Offset: -1, Where: gguf.KeyArchitecture, Msg: fmt.Sprintf("%q cannot be read, expected %q", arch, gguf.ArchFPA)}
	}
	r := &metadata{f: keys, arch: gguf.ArchFPA}
	p := Parts{Config: r.config()}
	if r.err != nil {
		return p, r.err
	}
	if err := p.Config.Validate(); err != nil {
		return p, err
	}
	byName := make(map[string]*onnx.Tensor, len(m.Graph.Initializers))
	for _, t := range m.Graph.Initializers {
		byName[t.Name] = t
	}
	if p.Config.Blocks > len(byName) {
		return p, bad("block_count", "is %d, but the file has %d tensors in all", p.Config.Blocks, len(byName))
	}
	for _, s := range p.Config.Tensors() {
		t := byName[s.Name]
		if t == nil {
			continue // Build knows which may be absent
		}
		dtype, ok := t.Type.Quant()
		if !ok {
			return p, &format.UnsupportedError{Offset: -1, Where: s.Name, Msg: fmt.Sprintf("elements of type %s cannot be read, expected FLOAT or FLOAT16", t.Type)}
		}
		data, err := t.Data()
		if err != nil {
			return p, bad(s.Name, "%v", err)
		}
		p.Tensors = append(p.Tensors, Tensor{Name: s.Name, Source: s.Name, DType: dtype, Shape: t.Dims, Data: data})
	}
	count, _, err := keys.Int64(KeyONNXTensors)
	if err == nil && count != int64(len(p.Tensors)) {
		err = bad(KeyONNXTensors, "is %d, but the file has %d of the model's tensors; another tool has changed the model, convert it before that", count, len(p.Tensors))
	}
	return p, err
}

// onnxKeys is the metadata of an ONNX model. The values that the getters read are
// JSON.
type onnxKeys map[string]string

// onnxMetadata is the metadata by key.
func onnxMetadata(m *onnx.Model) (onnxKeys, error) {
	keys := make(onnxKeys, len(m.Metadata))
	for _, e := range m.Metadata {
		if _, twice := keys[e.Key]; twice {
			return nil, bad("metadata_props", "the key %.80q is there twice", e.Key)
		}
		keys[e.Key] = e.Value
	}
	return keys, nil
}

// jsonKey reads a value, which must be one that T holds exactly.
func jsonKey[T any](k onnxKeys, key, expected string) (v T, present bool, err error) {
	text, present := k[key]
	if !present {
		return v, false, nil
	}
	// null would leave the zero.
	if text == "null" || json.Unmarshal([]byte(text), &v) != nil {
		var zero T
		return zero, true, bad(key, "is %.80q, expected %s", text, expected)
	}
	return v, true, nil
}

func (k onnxKeys) Uint32(key string) (uint32, bool, error) {
	return jsonKey[uint32](k, key, "a whole number from 0 to "+strconv.Itoa(1<<32-1))
}

func (k onnxKeys) Int64(key string) (int64, bool, error) {
	return jsonKey[int64](k, key, "a whole number")
}

func (k onnxKeys) Float32(key string) (float32, bool, error) {
	return jsonKey[float32](k, key, "a number")
}

func (k onnxKeys) Floats(key string) ([]float32, bool, error) {
	list, present, err := jsonKey[[]*float32](k, key, "a list of numbers")
	var x []float32
	for _, v := range list {
		if v == nil {
			return nil, true, bad(key, "has a null, expected a list of numbers")
		}
		x = append(x, *v)
	}
	return x, present, err
}

func (k onnxKeys) Bool(key string) (value, present bool, err error) {
	return jsonKey[bool](k, key, "true or false")
}

func (k onnxKeys) Str(key string) (string, bool, error) {
	return jsonKey[string](k, key, "a text in quotes")
}
