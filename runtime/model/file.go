package model

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/format/hf"
	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// OpenOptions say where to look for what is not beside the model.
type OpenOptions struct {
	ConfigPath    string // config.json of a checkpoint
	TokenizerPath string // tokenizer.json of a checkpoint or ONNX model, or a folder with its tokenizer
	MappingPath   string // how to read a checkpoint of unknown naming, see Mapping
}

// File is an open model: a GGUF file, an ONNX model or a checkpoint, with all that
// belongs to it. Its tensors are mapped, not read; they are gone after Close.
type File struct {
	Path       string
	Parts      Parts
	Generation Generation

	// One of these is not nil, unless the model was made in memory.
	GGUF       *gguf.File
	ONNX       *onnx.File
	Checkpoint *hf.Checkpoint

	files *hf.TokenizerFiles // of a checkpoint or an ONNX model
}

// Open opens a model: a .gguf file, an ONNX model that fpaconv wrote, a
// .safetensors or PyTorch file, the index of a sharded checkpoint, or a folder in
// Hugging Face layout or with model.onnx. What kind it is is told by its content,
// not by its name.
func Open(path string, o OpenOptions) (*File, error) {
	kind, file, err := KindOf(path)
	if err != nil {
		return nil, err
	}
	f := &File{Path: path}
	switch kind {
	case KindGGUF:
		err = f.openGGUF(o)
	case KindONNX:
		err = f.openONNX(file, o)
	default:
		err = f.openCheckpoint(o)
	}
	if err == nil {
		err = format.WithPath(f.Generation.Validate(f.Parts.Config.VocabSize), path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Kind is a kind of model file.
type Kind string

// The kinds. A checkpoint is everything that package hf opens.
const (
	KindGGUF       Kind = "gguf"
	KindONNX       Kind = "onnx"
	KindCheckpoint Kind = "checkpoint"
)

// KindOf tells what kind of model is at path, by the first bytes of a file or else
// by its extension, and which file to open: path, or the model.onnx of a folder that
// has no other weights. It fails when path is neither a regular file nor a folder.
func KindOf(path string) (kind Kind, file string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", "", err
	}
	if info.IsDir() {
		file, err := onnxIn(path)
		if file == "" || err != nil {
			return KindCheckpoint, path, err
		}
		return KindONNX, file, nil
	}
	if !info.Mode().IsRegular() {
		return "", "", fmt.Errorf("%s: is no regular file, expected a model", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	head := make([]byte, 9)
	n, err := io.ReadFull(f, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return "", "", err
	}
	extension := strings.ToLower(filepath.Ext(path))
	switch {
	case string(head[:4]) == "GGUF":
		kind = KindGGUF
	case beginsAsONNX(head[:n]):
		kind = KindONNX
	case extension == ".gguf":
		kind = KindGGUF
	case extension == ".onnx":
		kind = KindONNX
	default:
		kind = KindCheckpoint
	}
	return kind, path, nil
}

func (f *File) openGGUF(o OpenOptions) (err error) {
	if o != (OpenOptions{}) {
		return fmt.Errorf("%s: a GGUF file has its configuration and tokenizer inside; leave --config, --tokenizer and --map out", f.Path)
	}
	if f.GGUF, err = gguf.Open(f.Path); err != nil {
		return err
	}
	if f.Parts, err = FromGGUF(f.GGUF); err != nil {
		return err
	}
	f.Generation, err = generationOfKV(f.GGUF)
	return err
}

func (f *File) openCheckpoint(o OpenOptions) (err error) {
	var mapping *Mapping
	if o.MappingPath != "" {
		if mapping, err = ReadMapping(o.MappingPath); err != nil {
			return err
		}
	}
	f.Checkpoint, err = hf.Open(f.Path, hf.Options{ConfigPath: o.ConfigPath, TokenizerPath: o.TokenizerPath, NoConfig: mapping != nil})
	if err != nil {
		return err
	}
	f.files = f.Checkpoint.TokenizerFiles
	if err := f.needTokenizer(o); err != nil {
		return err
	}
	if f.Parts, err = FromCheckpoint(f.Checkpoint, mapping); err != nil {
		return err
	}
	f.Generation, err = GenerationOf(f.Checkpoint)
	return err
}

// needTokenizer fails when a tokenizer was asked for and there is none.
func (f *File) needTokenizer(o OpenOptions) error {
	if o.TokenizerPath == "" {
		return nil
	}
	data, err := f.TokenizerJSON()
	if err == nil && data == nil {
		err = errors.New("found no tokenizer, expected tokenizer.json, or vocab.json and merges.txt")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", o.TokenizerPath, err)
	}
	return nil
}

// Close unmaps the file.
func (f *File) Close() error {
	var errs []error
	if f.GGUF != nil {
		errs = append(errs, f.GGUF.Close())
	}
	if f.ONNX != nil {
		errs = append(errs, f.ONNX.Close())
	}
	if f.Checkpoint != nil {
		errs = append(errs, f.Checkpoint.Close())
	}
	return errors.Join(errs...)
}

// Build makes the model. Errors name the file.
func (f *File) Build() (*Model, error) {
	m, err := Build(f.Parts.Config, f.Parts.Tensors)
	return m, format.WithPath(err, f.Path)
}

// Format is the kind of file: gguf, onnx or safetensors.
func (f *File) Format() string {
	switch {
	case f.GGUF != nil:
		return "gguf"
	case f.ONNX != nil:
		return "onnx"
	}
	return "safetensors"
}

// DataFiles are the files that hold the tensors.
func (f *File) DataFiles() []string {
	switch {
	case f.GGUF != nil:
		return f.GGUF.Paths()
	case f.ONNX != nil:
		return f.ONNX.Paths()
	}
	return f.Checkpoint.Files()
}

// TokenizerJSON is the whole tokenizer.json, nil when the model carries none. For
// a model with vocab.json and merges.txt beside it in its place, it is the same
// tokenizer as a tokenizer.json.
func (f *File) TokenizerJSON() ([]byte, error) {
	if f.GGUF != nil {
		s, present, err := f.GGUF.Str(gguf.KeyHFTokenizer)
		if !present || err != nil {
			return nil, err
		}
		return []byte(s), nil
	}
	if f.files == nil {
		return nil, nil
	}
	if data := f.files.TokenizerJSON(); data != nil {
		return data, nil
	}
	return tokenizerOfVocabMerges(f.files)
}

// TokenizerConfig is the tokenizer_config.json beside the model, nil where there is
// none.
func (f *File) TokenizerConfig() []byte {
	if f.files == nil {
		return nil
	}
	return f.files.TokenizerConfig()
}

// ChatTemplate is the model's chat template, empty when it has none.
func (f *File) ChatTemplate() (string, error) {
	switch {
	case f.GGUF != nil:
		s, _, err := f.GGUF.Str(gguf.KeyChatTemplate)
		return s, err
	case f.files != nil:
		return f.files.ChatTemplate(), nil
	}
	return "", nil
}

// ErrNoTokenizer says that a model carries no tokenizer, so that it takes and
// gives ids alone.
var ErrNoTokenizer = errors.New("the model carries no tokenizer, so it cannot take text; add a tokenizer.json, or vocab.json and merges.txt, and convert it again, or give token ids")

// Tokenizer reads the model's tokenizer: tokenizer.json where it is carried, or
// else the vocabulary in the GGUF metadata. Every id it gives is inside the
// model's vocabulary.
func (f *File) Tokenizer() (*tokenizer.Tokenizer, error) {
	t, err := f.readTokenizer()
	if err != nil {
		return nil, fmt.Errorf("%s: tokenizer: %w", f.Path, err)
	}
	if n := t.VocabSize(); n > f.Parts.Config.VocabSize {
		return nil, &format.FormatError{Path: f.Path, Offset: -1, Where: "tokenizer",
			Msg: fmt.Sprintf("has %d tokens, but the model has only %d embeddings", n, f.Parts.Config.VocabSize)}
	}
	return t, nil
}

func (f *File) readTokenizer() (*tokenizer.Tokenizer, error) {
	t, err := f.plainTokenizer()
	if err != nil {
		return nil, err
	}
	escape, err := f.textEscape()
	if err != nil {
		return nil, err
	}
	return t, t.SetTextEscape(escape)
}

// plainTokenizer reads the tokenizer but for its text escape.
func (f *File) plainTokenizer() (*tokenizer.Tokenizer, error) {
	data, err := f.TokenizerJSON()
	if err != nil {
		return nil, err
	}
	if data != nil {
		return tokenizer.FromJSON(data)
	}
	if f.GGUF == nil {
		return nil, ErrNoTokenizer
	}
	v, err := vocabOfGGUF(f.GGUF)
	if err != nil {
		return nil, err
	}
	return tokenizer.FromVocab(v)
}

// textEscape is how the model's tokenizer escapes text.
func (f *File) textEscape() (tokenizer.TextEscape, error) {
	if f.GGUF == nil {
		return tokenizer.TextEscapeOf(f.TokenizerConfig())
	}
	s, _, err := f.GGUF.Str(gguf.KeyTextEscape)
	return tokenizer.TextEscape(s), err
}

// tokenizerOfVocabMerges is the tokenizer of a folder without a tokenizer.json, as
// one; nil when it has no other kind that can be read.
func tokenizerOfVocabMerges(c *hf.TokenizerFiles) ([]byte, error) {
	v := tokenizer.VocabMerges{Config: c.TokenizerConfig()}
	for name, data := range map[string]*[]byte{
		"vocab.json": &v.Vocab, "merges.txt": &v.Merges, "special_tokens_map.json": &v.SpecialTokens, "added_tokens.json": &v.Added,
	} {
		var err error
		if *data, err = c.ReadTokenizerFile(name); err != nil {
			return nil, err
		}
	}
	switch {
	case v.Vocab == nil && v.Merges == nil:
		return nil, nil
	case v.Vocab == nil:
		return nil, errors.New("found merges.txt but no vocab.json, expected both, or a tokenizer.json")
	case v.Merges == nil:
		return nil, errors.New("found vocab.json but no merges.txt, expected both, or a tokenizer.json")
	}
	return v.JSON()
}

// EndTokens are the ids that end a generation: those that the model names, or
// else the tokenizer's end token.
func (f *File) EndTokens() []int32 {
	var ids []int32
	for _, id := range f.Generation.EOS {
		ids = append(ids, int32(id))
	}
	return ids
}
