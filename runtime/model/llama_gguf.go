package model

import (
	"fmt"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/gguf"
)

// llamaParts reads a GGUF file of the architecture llama: plain softmax heads,
// with the query and key rows in the order that interleaved rotary pairs ask
// for. They are put into the half-split order of this package; everything else
// stays in the mapped file.
func llamaParts(f *gguf.File) (Parts, error) {
	m := &metadata{f: f, arch: gguf.ArchLlama}
	c := Config{
		ContextLength: m.required(gguf.ContextLength),
		Hidden:        m.required(gguf.EmbeddingLength),
		Blocks:        m.required(gguf.BlockCount),
		FeedForward:   m.required(gguf.FeedForwardLength),
		Heads:         m.required(gguf.HeadCount),
		NormEps:       get(m, gguf.NormEpsilon, f.Float32, 1e-5),
		Field:         FieldNone,
		Interval:      Exclusive,
		QKNorm:        NormNone,
		OutputGate:    GateNone,
		Activation:    Silu,
	}
	if embed, ok := f.Tensor(nameEmbed); ok && len(embed.Shape) == 2 {
		c.VocabSize = int(embed.Shape[0]) // the key may be absent
	}
	if m.err != nil || c.Heads < 1 {
		return Parts{Config: c}, m.err // Validate names what is wrong
	}
	c.KVHeads = m.int(gguf.HeadCountKV, c.Heads)
	c.KeyDim = m.int(gguf.AttnKeyLength, c.Hidden/c.Heads)
	c.ValDim = m.int(gguf.AttnValueLength, c.KeyDim)
	c.Scale = get(m, gguf.AttentionScale, f.Float32, defaultScale(c.KeyDim))
	c.RopeDim = m.int(gguf.RopeDimensionCount, c.KeyDim)
	c.RopeBase = float64(get(m, gguf.RopeFreqBase, f.Float32, 10000))
	p := Parts{Config: c}
	if m.err != nil {
		return p, m.err
	}
	if err := c.Validate(); err != nil {
		return p, err
	}
	if err := p.addGGUF(f); err != nil {
		return p, err
	}
	if err := p.scaleRope(f, m); err != nil {
		return p, err
	}
	return p, p.unpermute()
}

// scaleRope turns linear rope scaling into frequency factors.
func (p *Parts) scaleRope(f *gguf.File, m *metadata) error {
	switch kind := m.string(gguf.RopeScalingType, "none"); kind {
	case "none":
		return m.err
	case "linear":
		factor := get(m, gguf.RopeScalingFactor, m.f.Float32, 1)
		if m.err != nil {
			return m.err
		}
		if _, ok := f.Tensor(nameRopeFreqs); ok || !(factor > 0) {
			return bad(gguf.ArchKey(m.arch, gguf.RopeScalingFactor), "is %g, expected a positive number, and no tensor %s beside it", factor, nameRopeFreqs)
		}
		t, err := ropeFactorTensor(p.Config.RopeDim/2, factor)
		p.Tensors = append(p.Tensors, t)
		return err
	default:
		return &format.UnsupportedError{Offset: -1, Where: gguf.ArchKey(m.arch, gguf.RopeScalingType),
			Msg: fmt.Sprintf("rope scaling %q cannot be run, expected none or linear", kind)}
	}
}

// unpermute reorders the rows of the query and key projections. In the file, row
// 2i+j of a head's rotated part (j = 0, 1) is row i + j*RopeDim/2 of the
// half-split order.
func (p *Parts) unpermute() error {
	c := &p.Config
	for i := range p.Tensors {
		t := &p.Tensors[i]
		var layer int
		var kind string
		if n, err := fmt.Sscanf(t.Name, "blk.%d.attn_%s", &layer, &kind); n != 2 || err != nil {
			continue
		}
		var heads int
		switch kind {
		case "q.weight", "q.bias":
			heads = c.Heads
		case "k.weight", "k.bias":
			heads = c.KVHeads
		default:
			continue
		}
		rows := heads * c.KeyDim
		if len(t.Shape) == 0 || t.Shape[0] != int64(rows) || len(t.Data)%rows != 0 {
			return bad(t.Name, "has shape %v, expected %d rows", t.Shape, rows)
		}
		t.Data = unpermuteRows(t.Data, heads, c.KeyDim, c.RopeDim)
	}
	return nil
}

func unpermuteRows(data []byte, heads, dim, rotated int) []byte {
	out := append([]byte(nil), data...)
	row := len(data) / (heads * dim)
	for h := range heads {
		for r := range rotated {
			from := h*dim + r
			to := h*dim + r/2 + r%2*(rotated/2)
			copy(out[to*row:(to+1)*row], data[from*row:(from+1)*row])
		}
	}
	return out
}
