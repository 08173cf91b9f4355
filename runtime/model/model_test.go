package model_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// write makes a GGUF file of metadata and tensors.
func write(t testing.TB, kv []gguf.KV, tensors []model.Tensor) []byte {
	t.Helper()
	var infos []gguf.TensorInfo
	for _, x := range tensors {
		infos = append(infos, gguf.TensorInfo{Name: x.Name, DType: x.DType, Shape: x.Shape})
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := gguf.NewWriter(f, kv, infos)
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range tensors {
		if _, err := w.Tensor(i).Write(x.Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func kvOf(c *model.Config) []gguf.KV {
	return append([]gguf.KV{{Key: gguf.KeyArchitecture, Value: gguf.ValueOf(gguf.ArchFPA)}}, c.KV()...)
}

// load opens and builds a file of these bytes.
func load(t testing.TB, data []byte) (*model.Model, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := model.Open(path, model.OpenOptions{})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { f.Close() })
	return f.Build()
}

// TestRoundTrip writes every option of the block to metadata and reads the same
// configuration back.
func TestRoundTrip(t *testing.T) {
	for name, option := range modeltest.Options() {
		c := modeltest.Config()
		option(&c)
		if c.Field == model.FieldNone {
			c.FieldActivation, c.Level = "", ""
		} else {
			c.LogitBound = make([]float32, c.Blocks*c.Heads)
			c.LogitBound[1] = 3.5
		}
		if c.QKNorm == model.NormNone {
			c.QKNormEps = 0
		}
		c.NormEps = float32(1e-6)
		p := modeltest.Random(c, 1, false)
		m, err := load(t, write(t, kvOf(&c), p.Tensors))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(m.Config, c) {
			t.Errorf("%s: read\n%+v, written\n%+v", name, m.Config, c)
		}
	}
}

// TestMalformed changes one thing of a valid file and wants an error that says
// what is wrong.
func TestMalformed(t *testing.T) {
	fpa := func(key string) string { return gguf.ArchKey(gguf.ArchFPA, key) }
	set := func(key string, v gguf.Value) func([]gguf.KV, []model.Tensor) ([]gguf.KV, []model.Tensor) {
		return func(kv []gguf.KV, ts []model.Tensor) ([]gguf.KV, []model.Tensor) {
			i := slices.IndexFunc(kv, func(e gguf.KV) bool { return e.Key == key })
			if i < 0 {
				return append(kv, gguf.KV{Key: key, Value: v}), ts
			}
			kv[i].Value = v
			return kv, ts
		}
	}
	drop := func(key string) func([]gguf.KV, []model.Tensor) ([]gguf.KV, []model.Tensor) {
		return func(kv []gguf.KV, ts []model.Tensor) ([]gguf.KV, []model.Tensor) {
			return slices.DeleteFunc(kv, func(e gguf.KV) bool { return e.Key == key }), ts
		}
	}
	tensor := func(name string, change func(*model.Tensor)) func([]gguf.KV, []model.Tensor) ([]gguf.KV, []model.Tensor) {
		return func(kv []gguf.KV, ts []model.Tensor) ([]gguf.KV, []model.Tensor) {
			for i := range ts {
				if ts[i].Name == name {
					ts[i].Data = slices.Clone(ts[i].Data)
					change(&ts[i])
				}
			}
			return kv, ts
		}
	}
	u := func(n uint32) gguf.Value { return gguf.ValueOf(n) }
	nan := gguf.ValueOf(float32(math.NaN()))
	for name, c := range map[string]struct {
		change func([]gguf.KV, []model.Tensor) ([]gguf.KV, []model.Tensor)
		says   string
	}{
		"other architecture":      {set(gguf.KeyArchitecture, gguf.ValueOf("gpt2")), "gpt2"},
		"no architecture":         {drop(gguf.KeyArchitecture), "architecture"},
		"block_count 0":           {set(fpa(gguf.BlockCount), u(0)), "block_count"},
		"block_count 100000":      {set(fpa(gguf.BlockCount), u(100000)), "block_count"},
		"block_count 2^32-1":      {set(fpa(gguf.BlockCount), u(math.MaxUint32)), "block_count"},
		"block_count string":      {set(fpa(gguf.BlockCount), gguf.ValueOf("2")), "block_count"},
		"block_count missing":     {drop(fpa(gguf.BlockCount)), "block_count"},
		"head_count 0":            {set(fpa(gguf.HeadCount), u(0)), "head_count"},
		"head_count array":        {set(fpa(gguf.HeadCount), gguf.ValueOf([]uint32{4, 4})), "head_count"},
		"head_count_kv 3":         {set(fpa(gguf.HeadCountKV), u(3)), "head_count_kv"},
		"head_count_kv 8":         {set(fpa(gguf.HeadCountKV), u(8)), "head_count_kv"},
		"key_length huge":         {set(fpa(gguf.AttnKeyLength), u(math.MaxUint32)), "key_length"},
		"eps NaN":                 {set(fpa(gguf.NormEpsilon), nan), "epsilon"},
		"qk eps negative":         {set(fpa(gguf.QKNormEpsilon), gguf.ValueOf(float32(-1))), "epsilon"},
		"scale NaN":               {set(fpa(gguf.AttentionScale), nan), "scale"},
		"rope without base":       {set(fpa(gguf.RopeDimensionCount), u(99)), "rope"},
		"field kind":              {set(fpa(gguf.FieldKind), gguf.ValueOf("hop")), "hop"},
		"field heads":             {set(fpa(gguf.FieldHeadCount), u(3)), "field.head_count"},
		"level on a walk":         {set(fpa(gguf.LevelKind), gguf.ValueOf("absolute")), "absolute"},
		"interval":                {set(fpa(gguf.Interval), gguf.ValueOf("open")), "open"},
		"activation":              {set(fpa(gguf.FeedForwardActivation), gguf.ValueOf("powlu")), "powlu"},
		"output gate":             {set(fpa(gguf.OutputGate), gguf.ValueOf("relu")), "relu"},
		"rope scaling":            {set(fpa(gguf.RopeScalingType), gguf.ValueOf("yarn")), "yarn"},
		"bound too short":         {set(fpa(gguf.LogitBound), gguf.ValueOf([]float32{1})), "logit_bound"},
		"bound NaN":               {set(fpa(gguf.LogitBound), gguf.ValueOf(slices.Repeat([]float32{float32(math.NaN())}, 8))), "logit_bound"},
		"bound infinite":          {set(fpa(gguf.LogitBound), gguf.ValueOf(slices.Repeat([]float32{float32(math.Inf(1))}, 8))), "logit_bound"},
		"bound negative":          {set(fpa(gguf.LogitBound), gguf.ValueOf(slices.Repeat([]float32{-1}, 8))), "logit_bound"},
		"bos outside":             {set(gguf.KeyBOS, u(1<<20)), "token"},
		"eos string":              {set(gguf.KeyEOS, gguf.ValueOf("end")), "eos"},
		"vocab rows":              {set(fpa(gguf.VocabSize), u(66)), "token_embd"},
		"missing tensor":          {tensor("blk.1.ffn_up.weight", func(x *model.Tensor) { x.Name = "blk.1.ffn_upp.weight" }), "blk.1.ffn_up.weight"},
		"extra tensor":            {tensor("blk.1.ffn_up.bias", func(x *model.Tensor) { x.Name = "blk.2.ffn_up.bias" }), "blk.2.ffn_up.bias"},
		"transposed tensor":       {tensor("blk.0.ffn_up.weight", func(x *model.Tensor) { x.Shape = format.Shape{x.Shape[1], x.Shape[0]} }), "blk.0.ffn_up.weight"},
		"norm NaN":                {tensor("output_norm.weight", func(x *model.Tensor) { binary.LittleEndian.PutUint32(x.Data, 0x7fc00000) }), "NaN"},
		"slope negative":          {tensor("blk.0.attn_slope.weight", func(x *model.Tensor) { binary.LittleEndian.PutUint32(x.Data, math.Float32bits(-2)) }), "slope"},
		"field infinite":          {tensor("blk.0.attn_field.bias", func(x *model.Tensor) { binary.LittleEndian.PutUint32(x.Data, math.Float32bits(float32(math.Inf(1)))) }), "attn_field"},
		"field matrix NaN":        {tensor("blk.0.attn_field.weight", func(x *model.Tensor) { binary.LittleEndian.PutUint32(x.Data, 0x7fc00000) }), "attn_field"},
		"field matrix in F16":     {tensor("blk.0.attn_field.weight", func(x *model.Tensor) { x.DType, x.Data = quant.F16, x.Data[:len(x.Data)/2] }), "F32"},
		"matrix of integers":      {tensor("blk.0.ffn_up.weight", func(x *model.Tensor) { x.DType, x.Data = quant.I64, slices.Repeat(x.Data, 2) }), "I64"},
		"row that fills no block": {tensor("blk.0.ffn_up.weight", func(x *model.Tensor) { x.DType, x.Data = quant.I8, x.Data[:len(x.Data)/4] }), "I8"},
	} {
		t.Run(name, func(t *testing.T) {
			config := modeltest.Config()
			p := modeltest.Random(config, 1, false)
			kv, tensors := c.change(kvOf(&config), p.Tensors)
			_, err := load(t, write(t, kv, tensors))
			var f *format.FormatError
			var u *format.UnsupportedError
			if err == nil || !strings.Contains(err.Error(), c.says) || !errors.As(err, &f) && !errors.As(err, &u) {
				t.Errorf("error %v, expected one of the format that says %q", err, c.says)
			} else if !strings.Contains(err.Error(), "model.gguf") {
				t.Errorf("error %v does not name the file", err)
			}
		})
	}
}

// FuzzModel feeds damaged GGUF files: an error or a model, never a panic.
func FuzzModel(f *testing.F) {
	c := modeltest.Config()
	c.VocabSize, c.Hidden, c.FeedForward, c.Blocks, c.KeyDim, c.ValDim = 5, 4, 4, 1, 2, 2
	c.LogitBound = []float32{1, 2, 3, 4}
	f.Add(write(f, kvOf(&c), modeltest.Random(c, 1, false).Tensors))
	c.Field, c.FieldHeads, c.RopeDim, c.RopeBase, c.LogitBound = model.FieldNone, 0, 2, 100, nil
	f.Add(write(f, kvOf(&c), modeltest.Random(c, 1, true).Tensors))
	llama := []gguf.KV{{Key: gguf.KeyArchitecture, Value: gguf.ValueOf(gguf.ArchLlama)}}
	for _, e := range c.KV() {
		llama = append(llama, gguf.KV{Key: strings.Replace(e.Key, "fpa.", "llama.", 1), Value: e.Value})
	}
	f.Add(write(f, llama, slices.DeleteFunc(modeltest.Random(c, 1, true).Tensors, func(x model.Tensor) bool { return strings.Contains(x.Name, "norm.") && strings.Contains(x.Name, "_q_") })))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 || !bytes.HasPrefix(data, []byte("GGUF")) {
			return
		}
		path := filepath.Join(t.TempDir(), "x.gguf")
		if err := os.WriteFile(path, data, 0o666); err != nil {
			t.Fatal(err)
		}
		file, err := model.Open(path, model.OpenOptions{})
		if err != nil {
			return
		}
		defer file.Close()
		if m, err := file.Build(); err == nil {
			m.LogitBounds(quant.F16)
			m.LogitBounds(quant.Q8_0)
		}
		file.Tokenizer()
	})
}
