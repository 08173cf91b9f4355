package main

import (
	"fmt"
	"strings"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/atomicfile"
	"github.com/firstpassage/fpa/format/gguf"
)

// writeGGUF writes the model of kind llama as a GGUF file of the architecture
// llama, which llama.cpp runs; one tensor at a time is in memory. It is the same
// model as the checkpoint of the same spec.
func writeGGUF(path string, force bool, s spec) error {
	tensors := s.tensors()
	infos := make([]gguf.TensorInfo, len(tensors))
	for i, t := range tensors {
		infos[i] = gguf.TensorInfo{Name: t.gguf, DType: t.dtype, Shape: t.shape}
	}
	f, err := atomicfile.CreateAtomic(path, force)
	if err != nil {
		return err
	}
	defer f.Abort()
	w, err := gguf.NewWriter(f, s.metadata(), infos)
	if err != nil {
		return err
	}
	for i, t := range tensors {
		data, err := t.data(s.Seed)
		if err != nil {
			return err
		}
		if heads := s.rotaryHeads(t.shape, t.gguf); heads > 0 {
			data = interleave(data, heads, s.headDim())
		}
		if _, err := w.Tensor(i).Write(data); err != nil {
			return err
		}
	}
	if err := w.Finish(); err != nil {
		return err
	}
	return f.Commit()
}

// metadata is the header of the GGUF file, as llama.cpp wants it.
func (s spec) metadata() []gguf.KV {
	tokens, types, scores := s.vocabulary()
	arch := func(key string) string { return gguf.ArchKey(gguf.ArchLlama, key) }
	u32 := func(n int) gguf.Value { return gguf.ValueOf(uint32(n)) }
	return []gguf.KV{
		{Key: gguf.KeyArchitecture, Value: gguf.ValueOf(gguf.ArchLlama)},
		{Key: gguf.KeyType, Value: gguf.ValueOf("model")},
		{Key: gguf.KeyName, Value: gguf.ValueOf(s.name())},
		{Key: gguf.KeyDescription, Value: gguf.ValueOf("random weights, for measuring speed")},
		{Key: gguf.KeySizeLabel, Value: gguf.ValueOf(gguf.SizeLabel(s.parameters()))},
		{Key: gguf.KeyFileType, Value: gguf.ValueOf(uint32(gguf.FileF16))},
		{Key: arch(gguf.VocabSize), Value: u32(s.Vocab)},
		{Key: arch(gguf.ContextLength), Value: u32(contextLength)},
		{Key: arch(gguf.EmbeddingLength), Value: u32(s.Hidden)},
		{Key: arch(gguf.BlockCount), Value: u32(s.Blocks)},
		{Key: arch(gguf.FeedForwardLength), Value: u32(s.FeedForward)},
		{Key: arch(gguf.HeadCount), Value: u32(s.Heads)},
		{Key: arch(gguf.HeadCountKV), Value: u32(s.KVHeads)},
		{Key: arch(gguf.AttnKeyLength), Value: u32(s.headDim())},
		{Key: arch(gguf.AttnValueLength), Value: u32(s.headDim())},
		{Key: arch(gguf.NormEpsilon), Value: gguf.ValueOf(float32(normEps))},
		{Key: arch(gguf.RopeDimensionCount), Value: u32(s.headDim())},
		{Key: arch(gguf.RopeFreqBase), Value: gguf.ValueOf(float32(ropeBase))},
		{Key: gguf.KeyTokenizerModel, Value: gguf.ValueOf("llama")},
		{Key: gguf.KeyTokenizerPre, Value: gguf.ValueOf("default")},
		{Key: gguf.KeyTokens, Value: gguf.ValueOf(tokens)},
		{Key: gguf.KeyScores, Value: gguf.ValueOf(scores)},
		{Key: gguf.KeyTokenType, Value: gguf.ValueOf(types)},
		{Key: gguf.KeyUnknown, Value: u32(0)},
		{Key: gguf.KeyBOS, Value: u32(1)},
		{Key: gguf.KeyEOS, Value: u32(2)},
		{Key: gguf.KeyAddBOS, Value: gguf.ValueOf(true)},
		{Key: gguf.KeyAddEOS, Value: gguf.ValueOf(false)},
	}
}

// vocabulary is one of the kind SentencePiece makes, as far as a program needs it
// to load the model and to feed it text: special tokens, bytes, the mark of a
// space, letters, and numbered words.
func (s spec) vocabulary() (tokens []string, types []int32, scores []float32) {
	add := func(token string, t gguf.TokenType) {
		if len(tokens) == s.Vocab {
			return // a small vocabulary has what comes first
		}
		score := float32(0)
		if t == gguf.TokenNormal {
			score = -float32(len(tokens)) // the earlier, the sooner merged
		}
		tokens, types, scores = append(tokens, token), append(types, int32(t)), append(scores, score)
	}
	add("<unk>", gguf.TokenUnknown)
	add("<s>", gguf.TokenControl)
	add("</s>", gguf.TokenControl)
	for b := range 256 {
		add(fmt.Sprintf("<0x%02X>", b), gguf.TokenByte)
	}
	const space = "\u2581"
	add(space, gguf.TokenNormal)
	for c := '!'; c <= '~'; c++ {
		add(string(c), gguf.TokenNormal)
	}
	for len(tokens) < s.Vocab {
		add(fmt.Sprintf("%st%05d", space, len(tokens)), gguf.TokenNormal)
	}
	return tokens, types, scores
}

// rotaryHeads is the number of heads of a tensor that the rotary embedding turns,
// 0 for every other tensor.
func (s spec) rotaryHeads(shape format.Shape, name string) int {
	if strings.HasSuffix(name, ".attn_q.weight") || strings.HasSuffix(name, ".attn_k.weight") {
		return int(shape[0]) / s.headDim()
	}
	return 0
}

// interleave puts the rows of each head into the order of llama.cpp's llama
// architecture, where the rotary embedding turns neighbours: row i + j*dim/2 of
// the checkpoint (j = 0, 1) becomes row 2i+j.
func interleave(data []byte, heads, dim int) []byte {
	out := make([]byte, 0, len(data))
	row := len(data) / (heads * dim)
	for h := range heads {
		for r := range dim {
			from := h*dim + r/2 + r%2*(dim/2)
			out = append(out, data[from*row:(from+1)*row]...)
		}
	}
	return out
}
