package quant

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// oracleScript quantises and dequantises with the gguf package. For each type it
// reads <type>.f32 and <type>.blocks where they exist and writes <type>.encoded
// and <type>.decoded.
const oracleScript = `
import os, sys, warnings
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import quantize, dequantize
warnings.simplefilter("ignore")
folder = sys.argv[1]
for name in sys.argv[2:]:
    path = os.path.join(folder, name)
    if os.path.exists(path + ".f32"):
        x = np.fromfile(path + ".f32", dtype=np.float32).reshape(-1, 256)
        quantize(x, T[name]).tofile(path + ".encoded")
    if os.path.exists(path + ".blocks"):
        b = np.fromfile(path + ".blocks", dtype=np.uint8)
        dequantize(b, T[name]).astype(np.float32).tofile(path + ".decoded")
`

// TestOracle compares with the gguf Python package: bytes of the encoders on
// numbers of every size, values of the decoders on random bytes and on what the
// encoders make, those of the K types too.
func TestOracle(t *testing.T) {
	python := os.Getenv("FPA_PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import gguf.quants").CombinedOutput(); err != nil {
		if os.Getenv("FPA_REQUIRE_ORACLES") == "1" {
			t.Fatalf("%s has no gguf package (FPA_PYTHON names another one): %v\n%s", python, err, out)
		}
		t.Skipf("%s has no gguf package (FPA_PYTHON names another one): %v", python, err)
	}
	const count = 1 << 16
	folder := t.TempDir()
	r := rand.New(rand.NewPCG(17, 18))
	x := make([]float32, count)
	for i := range x {
		if i%32 == 0 && r.IntN(8) == 0 {
			continue // an element of the block stays zero
		}
		x[i] = float32(math.Ldexp(r.NormFloat64(), i/32%28-20))
		if i/32%5 == 0 { // many ties
			x[i] = float32(r.IntN(17)-8) / 4
		}
	}
	encoded := []DType{F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0}
	decoded := append([]DType{Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL}, encoded...)
	blocks := make(map[DType][]byte)
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for _, d := range encoded {
		write(d.String()+".f32", f32Bytes(x))
	}
	args := []string{"-c", oracleScript, folder}
	for _, d := range decoded {
		b := make([]byte, size(d, 1<<14))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		if CanEncode(d) { // and what the encoder makes
			b = append(b, encodeAll(t, d, x)...)
		}
		blocks[d] = b
		write(d.String()+".blocks", b)
		args = append(args, d.String())
	}
	if out, err := exec.Command(python, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	eachPath(t, func(t *testing.T) {
		for _, d := range encoded {
			got := make([]byte, size(d, count))
			if err := Encode(got, d, x); err != nil {
				t.Fatal(err)
			}
			if want := read(d.String() + ".encoded"); !bytes.Equal(got, want) {
				i := firstDifference(got, want)
				t.Errorf("%s: byte %d is %#x, the gguf package has %#x", d, i, got[i], want[i])
			}
		}
		for _, d := range decoded {
			want := read(d.String() + ".decoded")
			for i, v := range decodeAll(t, d, blocks[d]) {
				w := math.Float32frombits(binary.LittleEndian.Uint32(want[4*i:]))
				if v != w && (v == v || w == w) {
					t.Errorf("%s: element %d is %v, the gguf package has %v", d, i, v, w)
					break
				}
			}
		}
	})
}
