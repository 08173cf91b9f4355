package gguf_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/atomicfile"
	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/quant"
)

func ExampleOpen() {
	f, err := gguf.Open("testdata/valid/gguf_split3/part-00001-of-00003.gguf")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()

	tokens, present, err := f.Strings(gguf.KeyTokens)
	fmt.Println(tokens, present, err)
	for _, t := range f.Tensors()[:3] {
		fmt.Println(t.Name, t.DType, t.Shape, "in part", t.File+1, len(f.Data(t)), "bytes")
	}
	// Output:
	// [a b c] true <nil>
	// blk.0.w F32 [2, 3] in part 1 24 bytes
	// blk.1.w F32 [2, 3] in part 1 24 bytes
	// blk.2.w F32 [2, 3] in part 2 24 bytes
}

func ExampleNewWriter() {
	dir, err := os.MkdirTemp("", "gguf")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := gguf.FileName{BaseName: "FPA", SizeLabel: gguf.SizeLabel(124_000_000), Encoding: gguf.FileF32.String()}
	path := filepath.Join(dir, name.String())

	out, err := atomicfile.CreateAtomic(path, false)
	if err != nil {
		log.Fatal(err)
	}
	defer out.Abort()
	kv := []gguf.KV{
		{Key: gguf.KeyArchitecture, Value: gguf.ValueOf(gguf.ArchFPA)},
		{Key: gguf.ArchKey(gguf.ArchFPA, gguf.BlockCount), Value: gguf.ValueOf(uint32(12))},
		{Key: gguf.KeyVerifiedMaxAbsError, Value: gguf.ValueOf(float32(0))},
	}
	w, err := gguf.NewWriter(out, kv, []gguf.TensorInfo{
		{Name: "output_norm.weight", DType: quant.F32, Shape: format.Shape{2}},
	})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := w.Tensor(0).Write([]byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0x40}); err != nil {
		log.Fatal(err)
	}
	if err := w.Finish(); err != nil {
		log.Fatal(err)
	}
	if err := w.PatchFloat32(gguf.KeyVerifiedMaxAbsError, 0.001); err != nil {
		log.Fatal(err)
	}
	if err := out.Commit(); err != nil {
		log.Fatal(err)
	}

	f, err := gguf.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	fmt.Println(filepath.Base(path), f.Size(), "bytes")
	for _, e := range f.KV() {
		fmt.Println(e.Key, e.Value.TypeName(), e.Value)
	}
	// Output:
	// FPA-124M-v1.0-F32.gguf 256 bytes
	// general.architecture str "fpa"
	// fpa.block_count u32 12
	// fpaconv.verified.max_abs_error f32 0.001
}
