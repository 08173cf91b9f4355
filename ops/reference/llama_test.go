package reference

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/quant"
)

// readGGUF reads a trusted little file of test data: the numbers of its
// metadata, and its tensors by name.
func readGGUF(t testing.TB, path string) (numbers map[string]float64, tensors map[string][]float64) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	u32 := func() uint32 { at += 4; return binary.LittleEndian.Uint32(data[at-4:]) }
	u64 := func() int { at += 8; return int(binary.LittleEndian.Uint64(data[at-8:])) }
	str := func() string { n := u64(); at += n; return string(data[at-n : at]) }
	if u32() != 0x46554747 || u32() != 3 {
		t.Fatalf("%s is no GGUF file of version 3", path)
	}
	var value func(kind uint32) float64
	value = func(kind uint32) float64 {
		switch kind {
		case 4, 5: // u32, i32
			return float64(u32())
		case 6: // f32
			return float64(math.Float32frombits(u32()))
		case 7: // bool
			at++
			return float64(data[at-1])
		case 8:
			str()
		case 9:
			element := u32()
			for range u64() {
				value(element)
			}
		default:
			t.Fatalf("%s: metadata of type %d", path, kind)
		}
		return math.NaN()
	}
	nTensors, nValues := u64(), u64()
	numbers = map[string]float64{}
	for range nValues {
		key := str()
		numbers[key] = value(u32())
	}
	types := map[uint32]quant.DType{0: quant.F32, 1: quant.F16, 2: quant.Q4_0, 3: quant.Q4_1, 6: quant.Q5_0, 7: quant.Q5_1, 8: quant.Q8_0}
	type entry struct {
		name     string
		elements int
		dtype    quant.DType
		offset   int
	}
	var entries []entry
	for range nTensors {
		e := entry{name: str(), elements: 1}
		for range u32() {
			e.elements *= u64()
		}
		kind := u32()
		e.dtype = types[kind]
		if e.dtype == quant.Invalid {
			t.Fatalf("%s: %s has type %d", path, e.name, kind)
		}
		e.offset = u64()
		entries = append(entries, e)
	}
	start := (at + 31) / 32 * 32
	tensors = map[string][]float64{}
	for _, e := range entries {
		n, err := e.dtype.Bytes(int64(e.elements))
		if err != nil {
			t.Fatal(err)
		}
		values := make([]float32, e.elements)
		if err := quant.Decode(values, e.dtype, data[start+e.offset:][:n]); err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			tensors[e.name] = append(tensors[e.name], float64(v))
		}
	}
	return numbers, tensors
}

// halfSplit reorders the rows of a query or key matrix from the order of llama
// files, where the pairs of the rotary embedding are neighbours, to half-split.
func halfSplit(w []float64, heads, d, width int) []float64 {
	out := make([]float64, len(w))
	for h := range heads {
		for i := range d {
			from := 2 * i
			if i >= d/2 {
				from = 2*(i-d/2) + 1
			}
			copy(out[(h*d+i)*width:(h*d+i+1)*width], w[(h*d+from)*width:(h*d+from+1)*width])
		}
	}
	return out
}

// testLlama checks plain softmax attention, grouped heads and the rotary
// embedding against goldens of a llama-architecture file.
func testLlama(t *testing.T, folder string) {
	t.Run(filepath.Base(folder), func(t *testing.T) {
		numbers, tensors := readGGUF(t, filepath.Join(folder, "model.gguf"))
		n := func(key string) int { return int(numbers["llama."+key]) }
		c := Config{
			Vocab: n("vocab_size"), Hidden: n("embedding_length"), FeedForward: n("feed_forward_length"), Layers: n("block_count"),
			Heads: n("attention.head_count"), KeyHeads: n("attention.head_count_kv"),
			NormEps: numbers["llama.attention.layer_norm_rms_epsilon"], QKNorm: NormNone, Activation: SiLU, FieldKind: NoField,
			Rotary: Rotary{Dim: n("rope.dimension_count"), Base: numbers["llama.rope.freq_base"], Factors: tensors["rope_freqs.weight"]},
		}
		c.KeyDim = c.Hidden / c.Heads
		c.ValueDim = c.KeyDim
		w, err := LoadWeights(c, func(name string) []float64 {
			x := tensors[name]
			switch {
			case strings.HasSuffix(name, "attn_q.weight"):
				return halfSplit(x, c.Heads, c.KeyDim, c.Hidden)
			case strings.HasSuffix(name, "attn_k.weight"):
				return halfSplit(x, c.KeyHeads, c.KeyDim, c.Hidden)
			}
			return x
		})
		if err != nil {
			t.Fatal(err)
		}
		golden := readSafetensors(t, filepath.Join(folder, "golden.safetensors"))
		logit, nll := checkGolden(t, &Decoder{Config: c, Weights: w}, golden, []int{1, 7, 64, 200}, goldenLimit)
		t.Logf("largest difference: logits %.2g, nll %.2g", logit, nll)
	})
}

func TestDecoderLlamaGoldens(t *testing.T) {
	testLlama(t, filepath.Join("testdata", "llama_tiny", "rope_freqs"))
}

func TestDecoderLlamaGoldensShared(t *testing.T) {
	shared := os.Getenv("FPA_SHARED")
	if shared == "" {
		t.Skip("FPA_SHARED is not set: the other llama cases are not at hand")
	}
	for _, name := range []string{"mixed_quants_small", "rope_freqs", "untied_gqa_f16"} {
		testLlama(t, filepath.Join(shared, "cases", "llama_tiny", name))
	}
}
