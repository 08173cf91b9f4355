package model_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/runtime/model"
)

const passkeyFolder = "../../testmodels/passkey"

// renamed writes the passkey model under other names: fused and transposed
// projections, raw slopes, a tensor that nobody needs.
func renamed(t *testing.T) string {
	t.Helper()
	src, err := safetensors.Open(filepath.Join(passkeyFolder, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	var out []safetensors.Tensor
	fused := map[string][]byte{}
	for _, x := range src.Tensors() {
		name := strings.Replace(x.Name, "model.layers.", "h.", 1)
		switch {
		case strings.Contains(name, "q_proj"), strings.Contains(name, "k_proj"), strings.Contains(name, "v_proj"):
			fused[name] = x.Data
			continue
		case strings.HasSuffix(name, "mlp.down_proj.weight"):
			x.Data, x.Shape = transposed(x.Data, int(x.Shape[0]), int(x.Shape[1])), format.Shape{x.Shape[1], x.Shape[0]}
		}
		x.Name = name
		out = append(out, x)
	}
	for _, layer := range []string{"0", "1"} {
		var data []byte
		for _, p := range []string{"q", "k", "v"} {
			data = append(data, fused["h."+layer+".self_attn."+p+"_proj.weight"]...)
		}
		out = append(out, safetensors.Tensor{Name: "h." + layer + ".qkv", DType: out[0].DType, Shape: format.Shape{288, 96}, Data: data})
	}
	out = append(out, safetensors.Tensor{Name: "junk", DType: out[0].DType, Shape: format.Shape{1}, Data: make([]byte, 4)})
	dir := t.TempDir()
	if err := safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), false, out, nil); err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(passkeyFolder, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	config = bytes.Replace(config, []byte(`"hidden_size"`), []byte(`"n_embd"`), 1)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o666); err != nil {
		t.Fatal(err)
	}
	return dir
}

func transposed(data []byte, rows, cols int) []byte {
	out := make([]byte, len(data))
	for i := range rows {
		for j := range cols {
			copy(out[4*(j*rows+i):], data[4*(i*cols+j):4*(i*cols+j+1)])
		}
	}
	return out
}

// mapping is the rules for what renamed wrote, with changes.
func mapping(t *testing.T, change func(*model.Mapping)) string {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(passkeyFolder, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	m := &model.Mapping{}
	if err := json.Unmarshal(config, &m.Config); err != nil {
		t.Fatal(err)
	}
	m.Config["hidden_size"] = json.RawMessage(`{"from": "n_embd"}`)
	for _, name := range []string{
		"input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.q_norm.weight", "self_attn.k_norm.weight", "self_attn.o_proj.weight",
		"self_attn.field_proj.weight", "self_attn.field_proj.bias", "self_attn.level_proj.weight", "self_attn.level_proj.bias", "self_attn.slope",
		"mlp.gate_proj.weight", "mlp.up_proj.weight",
	} {
		m.Tensors = append(m.Tensors, model.Rule{From: model.Names{"h.{}." + name}, To: model.Names{"model.layers.{}." + name}})
	}
	for _, name := range []string{"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"} {
		m.Tensors = append(m.Tensors, model.Rule{From: model.Names{name}, To: model.Names{name}})
	}
	p := "model.layers.{}.self_attn."
	m.Tensors = append(m.Tensors,
		model.Rule{From: model.Names{"h.{}.qkv"}, To: model.Names{p + "q_proj.weight", p + "k_proj.weight", p + "v_proj.weight"}},
		model.Rule{From: model.Names{"h.{}.mlp.down_proj.weight"}, To: model.Names{"model.layers.{}.mlp.down_proj.weight"}, Transpose: true},
		model.Rule{From: model.Names{"junk"}, Drop: true})
	if change != nil {
		change(m)
	}
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "map.json")
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestMapping reads the renamed model back and finds the same tensors.
func TestMapping(t *testing.T) {
	want, err := model.Open(passkeyFolder, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()
	got, err := model.Open(renamed(t), model.OpenOptions{MappingPath: mapping(t, nil)})
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if _, err := got.Build(); err != nil {
		t.Fatal(err)
	}
	for _, w := range want.Parts.Tensors {
		i := slices.IndexFunc(got.Parts.Tensors, func(x model.Tensor) bool { return x.Name == w.Name })
		if i < 0 || !bytes.Equal(got.Parts.Tensors[i].Data, w.Data) || !got.Parts.Tensors[i].Shape.Equal(w.Shape) {
			t.Errorf("tensor %s is missing, or another", w.Name)
		}
	}
	if got.Parts.Config.Hidden != want.Parts.Config.Hidden {
		t.Errorf("hidden size %d", got.Parts.Config.Hidden)
	}
}

func TestMappingErrors(t *testing.T) {
	dir := renamed(t)
	rule := func(from string) func(*model.Mapping, func(*model.Rule)) {
		return func(m *model.Mapping, f func(*model.Rule)) {
			for i := range m.Tensors {
				if m.Tensors[i].From[0] == from {
					f(&m.Tensors[i])
				}
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*model.Mapping)
		says   string
	}{
		"no rule": {func(m *model.Mapping) { m.Tensors = m.Tensors[:len(m.Tensors)-1] }, "junk"},
		"no tensor": {func(m *model.Mapping) {
			m.Tensors = append(m.Tensors, model.Rule{From: model.Names{"more"}, Drop: true})
		}, "more"},
		"two rules": {func(m *model.Mapping) {
			m.Tensors = append(m.Tensors, model.Rule{From: model.Names{"junk"}, Drop: true})
		}, "junk"},
		"holes": {func(m *model.Mapping) {
			rule("junk")(m, func(r *model.Rule) { r.Drop, r.To = false, model.Names{"{}"} })
		}, "{}"},
		"sizes":         {func(m *model.Mapping) { rule("h.{}.qkv")(m, func(r *model.Rule) { r.Sizes = []int64{96, 96, 95} }) }, "add up"},
		"a size of 0":   {func(m *model.Mapping) { rule("h.{}.qkv")(m, func(r *model.Rule) { r.Sizes = []int64{288, 0, 0} }) }, "size is 0"},
		"sizes too few": {func(m *model.Mapping) { rule("h.{}.qkv")(m, func(r *model.Rule) { r.Sizes = []int64{288} }) }, "sizes"},
		"function":      {func(m *model.Mapping) { rule("junk")(m, func(r *model.Rule) { r.Apply = "sqrt" }) }, "sqrt"},
		"vector":        {func(m *model.Mapping) { rule("model.norm.weight")(m, func(r *model.Rule) { r.Transpose = true }) }, "transposed"},
		"join": {func(m *model.Mapping) {
			rule("junk")(m, func(r *model.Rule) { r.From, r.Drop, r.To = model.Names{"junk", "gone"}, false, model.Names{"x"} })
		}, "gone"},
		"neither":     {func(m *model.Mapping) { rule("junk")(m, func(r *model.Rule) { r.Drop = false }) }, "drop"},
		"unknown key": {func(m *model.Mapping) { m.Config["hidden_size"] = json.RawMessage(`{"from": "width"}`) }, "width"},
		"unknown target": {func(m *model.Mapping) {
			rule("junk")(m, func(r *model.Rule) { r.Drop, r.To = false, model.Names{"model.junk"} })
		}, "model.junk"},
		"no transpose": {func(m *model.Mapping) {
			rule("h.{}.mlp.down_proj.weight")(m, func(r *model.Rule) { r.Transpose = false })
		}, "shape"},
		"config of words": {func(m *model.Mapping) { m.Config["hidden_size"] = json.RawMessage(`"wide"`) }, "hidden_size"},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := model.Open(dir, model.OpenOptions{MappingPath: mapping(t, c.change)})
			if err == nil {
				defer f.Close()
				_, err = f.Build()
			}
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, expected one that says %q", err, c.says)
			}
		})
	}
}

// TestSkeleton fills a printed mapping in by hand and uses it.
func TestSkeleton(t *testing.T) {
	f, err := safetensors.Open(filepath.Join(renamed(t), "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m := model.Skeleton(f.Tensors())
	names := map[string]string{}
	for _, r := range m.Tensors {
		names[r.From[0]] = r.To[0]
	}
	if to, ok := names["h.{}.qkv"]; !ok || to != "" {
		t.Errorf("h.{}.qkv goes to %q, %v", to, ok)
	}
	if names["model.norm.weight"] != "model.norm.weight" {
		t.Errorf("a known name goes to %q", names["model.norm.weight"])
	}
	if len(names) != len(m.Tensors) {
		t.Error("a name twice")
	}
}
