package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/firstpassage/fpa/format/atomicfile"
	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/quant"
)

// data is a tensor's elements, encoded. They depend on the seed and the tensor's
// name alone, so that kinds and file formats share what they have in common.
func (t tensor) data(seed uint64) ([]byte, error) {
	size, err := t.dtype.Bytes(t.elements())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.name, err)
	}
	h := fnv.New64a()
	h.Write([]byte(t.name))
	rng := rand.NewPCG(seed, h.Sum64())
	out := make([]byte, size)
	const piece = 4096
	values := make([]float32, piece)
	width := size / t.elements()
	for done := int64(0); done < t.elements(); {
		n := min(piece, t.elements()-done)
		for i := range values[:n] {
			values[i] = float32(t.mean + t.std*normal(rng))
		}
		if err := quant.Encode(out[done*width:(done+n)*width], t.dtype, values[:n]); err != nil {
			return nil, fmt.Errorf("%s: %w", t.name, err)
		}
		done += n
	}
	return out, nil
}

// normal is a random number of mean 0 and variance 1, nearly normal: the sum of
// four uniform ones, from the four quarters of one random word. Unlike the
// library's it is bound to stay the same, and it has no outliers, being within 3.5.
func normal(rng *rand.PCG) float64 {
	x := rng.Uint64()
	sum := int(x&0xffff) + int(x>>16&0xffff) + int(x>>32&0xffff) + int(x>>48)
	return float64(sum-2*0xffff) * unit
}

// unit is one over the deviation of the sum of four uniform numbers from 0 to
// 65,535: each has variance (65,536² - 1)/12.
var unit = 1 / math.Sqrt((65536.0*65536-1)/3)

// writeCheckpoint writes a folder in Hugging Face layout. The weights are in
// memory once.
func writeCheckpoint(folder string, force bool, s spec) error {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	config, err := json.MarshalIndent(s.config(), "", "  ")
	if err != nil {
		return err
	}
	var tensors []safetensors.Tensor
	for _, t := range s.tensors() {
		data, err := t.data(s.Seed)
		if err != nil {
			return err
		}
		tensors = append(tensors, safetensors.Tensor{Name: t.name, DType: t.dtype, Shape: t.shape, Data: data})
	}
	if err := safetensors.WriteFile(filepath.Join(folder, "model.safetensors"), force, tensors, map[string]string{"format": "pt", "name": s.name()}); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(folder, "config.json"), force, append(config, '\n')); err != nil {
		return err
	}
	return writeFile(filepath.Join(folder, "README.md"), force, s.readme())
}

// writeFile writes a small file whole or not at all.
func writeFile(path string, force bool, data []byte) error {
	f, err := atomicfile.CreateAtomic(path, force)
	if err != nil {
		return err
	}
	defer f.Abort()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Commit()
}

// readme says, in the folder itself, what the model is.
func (s spec) readme() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n\nA synthetic model: %d random weights, for measuring speed and memory. It was never\ntrained, and its text means nothing.\n\n", s.name(), s.parameters())
	switch s.Kind {
	case levelOff:
		fmt.Fprintf(&b, "Its fields fall steadily, by %.4g a token, so that the cache mode exact keeps about\n%d keys a head however long the context is.\n", s.fall(), s.Live)
	case share:
		fmt.Fprintf(&b, "About %.3g %% of its keys have a level below every field and live for ever; the rest\nare dead at the next token.\n", 100*s.Share)
	case llama:
		fmt.Fprint(&b, "A Llama block with plain softmax: every key lives for ever.\n")
	}
	fmt.Fprintf(&b, "\nMade by testmodels/synthetic with\n\n    --kind %s --seed %d --hidden %d --blocks %d --heads %d --kv-heads %d --ffn %d --vocab %d --live %d --share %g\n",
		s.Kind, s.Seed, s.Hidden, s.Blocks, s.Heads, s.KVHeads, s.FeedForward, s.Vocab, s.Live, s.Share)
	return b.Bytes()
}
