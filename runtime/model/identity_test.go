package model_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// TestIdentity changes everything that a model computes with, one at a time.
func TestIdentity(t *testing.T) {
	random := func() model.Parts { return modeltest.Random(modeltest.Config(), 3, false) }
	identity := func(p model.Parts) string {
		t.Helper()
		id, err := (&model.File{Path: "a model", Parts: p}).Identity()
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	want := identity(random())
	if again := identity(random()); again != want || len(want) != 64 {
		t.Errorf("the same model is %s and %s", want, again)
	}
	p := random()
	slices.Reverse(p.Tensors)
	for i := range p.Tensors {
		p.Tensors[i].Source = "elsewhere"
	}
	if got := identity(p); got != want {
		t.Error("the order of the tensors counts, or where they come from")
	}
	seen := map[string]string{want: "nothing"}
	for name, change := range map[string]func(p *model.Parts){
		"configuration": func(p *model.Parts) { p.Config.Scale *= 2 },
		"a logit bound": func(p *model.Parts) { p.Config.LogitBound = make([]float32, 8) },
		"a name":        func(p *model.Parts) { p.Tensors[3].Name += "x" },
		"a type":        func(p *model.Parts) { p.Tensors[3].DType = quant.I32 },
		"a shape":       func(p *model.Parts) { p.Tensors[0].Shape = format.Shape{36, 67} },
		"a bit":         func(p *model.Parts) { p.Tensors[5].Data[7] ^= 1 },
		"last bit":      func(p *model.Parts) { d := p.Tensors[len(p.Tensors)-1].Data; d[len(d)-1] ^= 128 },
		"one less":      func(p *model.Parts) { p.Tensors = p.Tensors[1:] },
		"two swapped":   func(p *model.Parts) { a, b := &p.Tensors[2], &p.Tensors[3]; a.Data, b.Data = b.Data, a.Data },
		"no tensors":    func(p *model.Parts) { p.Tensors = nil },
	} {
		p := random()
		change(&p)
		got := identity(p)
		if other, ok := seen[got]; ok {
			t.Errorf("%s gives the identity of %s", name, other)
		}
		seen[got] = name
	}
}

// TestIdentityFile takes the identity of a checkpoint, and of a copy with one
// byte changed.
func TestIdentityFile(t *testing.T) {
	const passkey = "../../testmodels/passkey"
	dir := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors"} {
		data, err := os.ReadFile(filepath.Join(passkey, name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "model.safetensors" {
			data = bytes.Clone(data)
			data[len(data)-9] ^= 1
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	var ids []string
	for _, path := range []string{passkey, passkey, dir} {
		f, err := model.Open(path, model.OpenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		id, err := f.Identity()
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if ids[0] != ids[1] || ids[0] == ids[2] {
		t.Errorf("the model twice, and with a bit changed: %q", ids)
	}
}

func BenchmarkIdentity(b *testing.B) {
	p := model.Parts{Config: modeltest.Config()}
	for range 16 {
		data := bytes.Repeat([]byte{1, 2, 3, 4}, 4<<20)
		p.Tensors = append(p.Tensors, model.Tensor{DType: quant.F32, Shape: format.Shape{4 << 20}, Data: data})
		b.SetBytes(int64(len(data)) * int64(len(p.Tensors)))
	}
	f := &model.File{Parts: p}
	for b.Loop() {
		if _, err := f.Identity(); err != nil {
			b.Fatal(err)
		}
	}
}
