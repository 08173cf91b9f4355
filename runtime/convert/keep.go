package convert

import (
	"strings"

	"github.com/firstpassage/fpa/format/gguf"
)

// keptFile is the source where it is to stay what it is, a GGUF file of the
// architecture llama, and only its matrices get another type; nil otherwise.
func (c *conversion) keptFile() *gguf.File {
	if !c.o.KeepArchitecture || c.src.GGUF == nil {
		return nil
	}
	if arch, _, err := c.src.GGUF.Str(gguf.KeyArchitecture); err != nil || arch != gguf.ArchLlama {
		return nil
	}
	return c.src.GGUF
}

// asInFile replaces the tensors of the model by those of the file it was read from,
// which hold the rows of queries and keys in another order. Tensors that stand for
// metadata of the file go.
func asInFile(plans []TensorPlan, f *gguf.File) []TensorPlan {
	kept := plans[:0]
	for _, p := range plans {
		info, ok := f.Tensor(p.Name)
		if !ok {
			continue
		}
		t := *p.tensor
		t.Data = f.Data(info)
		p.tensor = &t
		kept = append(kept, p)
	}
	return kept
}

// keptMetadata is the metadata of the file, without what describes how its tensors
// were written: types, alignment, parts, and an earlier conversion.
func keptMetadata(f *gguf.File) []gguf.KV {
	var kv []gguf.KV
	for _, e := range f.KV() {
		switch e.Key {
		case gguf.KeyFileType, gguf.KeyQuantizationVersion, gguf.KeyQuantizedBy, gguf.KeyAlignment:
			continue
		}
		if strings.HasPrefix(e.Key, "split.") || strings.HasPrefix(e.Key, "fpaconv.") && e.Key != gguf.KeyTextEscape {
			continue
		}
		kv = append(kv, e)
	}
	return kv
}
