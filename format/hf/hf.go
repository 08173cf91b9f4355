// Package hf opens a checkpoint in the layout of Hugging Face transformers: a
// folder, or its local cache, with
//
//	config.json                       the model's configuration
//	model.safetensors                 the weights, or
//	model.safetensors.index.json      which shard holds which tensor, and
//	model-00001-of-00002.safetensors  the shards
//	tokenizer.json, tokenizer_config.json, chat_template.jinja,
//	generation_config.json            all optional
//
// The weights may also be one PyTorch file, see package torch.
//
// The layout is described at
// https://huggingface.co/docs/transformers/main/en/models and
// https://huggingface.co/docs/safetensors/metadata_parsing. This package
// brings the files together and checks them against each other; what the
// configuration means is the caller's business.
//
// # Security
//
// All files are untrusted. An index can name shards of its own folder only,
// by plain file names; symbolic links are followed, as the Hugging Face cache
// is made of them. JSON is read strictly (see [ParseConfig]), sizes are
// bounded before anything is read, FIFOs and devices are refused, and no code
// of the checkpoint is ever run.
package hf

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/internal/filemap"
	"github.com/firstpassage/fpa/format/internal/strictjson"
	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/format/torch"
)

// The file names of the layout.
const (
	configFile           = "config.json"
	weightsFile          = "model.safetensors"
	indexFile            = "model.safetensors.index.json"
	tokenizerFile        = "tokenizer.json"
	tokenizerConfigFile  = "tokenizer_config.json"
	chatTemplateFile     = "chat_template.jinja"
	generationConfigFile = "generation_config.json"
)

// Options says where to find what is not beside the weights.
type Options struct {
	ConfigPath    string        // in place of config.json; may be empty
	TokenizerPath string        // a tokenizer.json, or a folder with one or other files of a tokenizer; may be empty
	NoConfig      bool          // a missing configuration is an empty one
	Limits        format.Limits // the zero value is the default
}

// Checkpoint is an open checkpoint.
type Checkpoint struct {
	dir     string
	lim     format.Limits
	shards  []*safetensors.File
	pickle  *torch.File          // in place of shards: a PyTorch file
	tensors []safetensors.Tensor // sorted by name
	byName  map[string]int       // index in tensors

	metadata         map[string]string
	configPath       string
	configJSON       []byte
	config           *Config
	generationConfig []byte

	*TokenizerFiles
}

// Open opens the checkpoint at path: a folder, a .safetensors file, a
// model.safetensors.index.json, or a PyTorch file (.pt, .pth, .bin) that holds
// a state dict. It maps the weights, reads the small files,
// and checks all headers; Close it after the last use of a tensor's data.
//
// In a folder, model.safetensors comes before an index, as in transformers.
// The configuration is Options.ConfigPath, else config.json, else the JSON
// text of the entry "config" in the weights' own metadata; one of them must
// exist.
func Open(path string, opts Options) (*Checkpoint, error) {
	c := &Checkpoint{lim: opts.Limits.WithDefaults()}
	err := c.open(path, opts)
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Checkpoint) open(path string, opts Options) error {
	weights, err := findWeights(path)
	if err != nil {
		return err
	}
	c.dir = filepath.Dir(weights)
	switch {
	case strings.HasSuffix(weights, ".json"):
		err = c.openIndex(weights)
	case isPyTorch(weights):
		err = c.openPyTorch(weights)
	default:
		err = c.openSingle(weights)
	}
	if err != nil {
		return err
	}
	if err := c.readConfig(weights, opts); err != nil {
		return err
	}
	if c.generationConfig, err = optional(c.dir, generationConfigFile, maxConfigBytes); err != nil {
		return err
	}
	path = opts.TokenizerPath
	if path == "" {
		path = c.dir
	}
	c.TokenizerFiles, err = OpenTokenizer(path, opts.Limits)
	return err
}

// shardName is the form of the name of one shard of several.
var shardName = regexp.MustCompile(`-\d{5}-of-(\d{5})\.safetensors$`)

// findWeights is the weights file or the index that path stands for.
func findWeights(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if info.IsDir() {
		return weightsIn(path)
	}
	base := filepath.Base(path)
	switch {
	case strings.HasSuffix(base, ".safetensors.index.json"):
		return path, nil
	case isPyTorch(base):
		return path, nil
	case strings.HasSuffix(base, ".safetensors"):
		if m := shardName.FindStringSubmatch(base); m != nil && m[1] != "00001" {
			return "", fmt.Errorf("%s: is one shard of several; open the folder or the %s instead", path, indexFile)
		}
		return path, nil
	}
	return "", fmt.Errorf("%s: expected a folder, a .safetensors file, a %s or a PyTorch file (.pt, .pth, .bin)", path, indexFile)
}

// weightsIn finds the weights of a folder.
func weightsIn(dir string) (string, error) {
	for _, name := range []string{weightsFile, indexFile} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		} else if _, err := os.Lstat(path); err == nil {
			return "", fmt.Errorf("%s: is a symbolic link to a file that does not exist; the download is not complete", path)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var found []string
	var pytorch []string
	for _, e := range entries {
		if filepath.Ext(e.Name()) == ".safetensors" {
			found = append(found, e.Name())
		} else if isPyTorch(e.Name()) {
			pytorch = append(pytorch, e.Name())
		}
	}
	switch {
	case len(found) == 1 && !shardName.MatchString(found[0]):
		return filepath.Join(dir, found[0]), nil
	case len(found) > 0:
		return "", fmt.Errorf("%s: found %d .safetensors files (%s, ...), expected %s or %s; name one file, or fetch the index", dir, len(found), strictjson.Shorten(found[0]), weightsFile, indexFile)
	case len(pytorch) == 1:
		return filepath.Join(dir, pytorch[0]), nil
	case len(pytorch) > 1:
		return "", fmt.Errorf("%s: found no %s but %d PyTorch files (%s, ...); name the one to read", dir, weightsFile, len(pytorch), strictjson.Shorten(pytorch[0]))
	}
	return "", fmt.Errorf("%s: found no weights, expected %s or %s", dir, weightsFile, indexFile)
}

// openSingle opens the one file of weights.
func (c *Checkpoint) openSingle(path string) error {
	f, err := safetensors.OpenLimits(path, c.lim)
	if err != nil {
		return err
	}
	c.shards = []*safetensors.File{f}
	c.gather()
	return nil
}

// isPyTorch says whether a name is one that PyTorch files have.
func isPyTorch(name string) bool {
	switch filepath.Ext(name) {
	case ".pt", ".pth", ".bin":
		return true
	}
	return false
}

// openPyTorch opens a PyTorch file and finds the state dict in it.
func (c *Checkpoint) openPyTorch(path string) (err error) {
	if c.pickle, err = torch.OpenLimits(path, c.lim); err != nil {
		return err
	}
	tensors, err := c.pickle.StateDict("")
	if err != nil {
		return err
	}
	for _, t := range tensors {
		c.tensors = append(c.tensors, safetensors.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Data: t.Data, Offset: -1})
	}
	c.gather()
	return nil
}

// gather collects the tensors and the metadata of all shards, whose names are
// known to differ.
func (c *Checkpoint) gather() {
	c.metadata = map[string]string{}
	for _, f := range c.shards {
		c.tensors = append(c.tensors, f.Tensors()...)
		for key, v := range f.Metadata() {
			if _, ok := c.metadata[key]; !ok {
				c.metadata[key] = v
			}
		}
	}
	slices.SortFunc(c.tensors, func(a, b safetensors.Tensor) int { return cmp.Compare(a.Name, b.Name) })
	c.byName = make(map[string]int, len(c.tensors))
	for i := range c.tensors {
		c.byName[c.tensors[i].Name] = i
	}
}

// openIndex opens the shards that an index names, and checks that index and
// shards agree.
func (c *Checkpoint) openIndex(path string) error {
	data, err := readSmall(path, c.lim.HeaderBytes)
	if err != nil {
		return err
	}
	index, err := parseIndex(data, path, c.lim)
	if err != nil {
		return err
	}
	names := map[string]struct{}{}
	for _, shard := range index {
		names[shard] = struct{}{}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		shard := filepath.Join(c.dir, name)
		f, err := safetensors.OpenLimits(shard, c.lim)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: the shard %s that it names is missing: %w", path, name, err)
		}
		if err != nil {
			return err
		}
		c.shards = append(c.shards, f)
		for _, t := range f.Tensors() {
			home, ok := index[t.Name]
			if !ok {
				return mismatch(shard, t.Name, "is not in "+indexFile+"; index and shards are not of one checkpoint")
			}
			if home != name {
				return mismatch(shard, t.Name, "is here, but the index places it in "+home)
			}
		}
	}
	c.gather()
	for _, tensor := range slices.Sorted(maps.Keys(index)) {
		if _, ok := c.byName[tensor]; !ok {
			return mismatch(path, tensor, "is not in the shard "+index[tensor]+" that the index names; index and shards are not of one checkpoint")
		}
	}
	return nil
}

// mismatch is the error of an index and a shard that disagree on a tensor.
func mismatch(path, tensor, msg string) error {
	return &format.FormatError{Path: path, Offset: -1, Where: fmt.Sprintf("tensor %q", strictjson.Shorten(tensor)), Msg: msg}
}

// parseIndex reads the weight_map of an index: the shard of each tensor.
func parseIndex(data []byte, path string, lim format.Limits) (map[string]string, error) {
	lim = lim.WithDefaults()
	r := strictjson.NewReader(data, lim.NestingDepth, lim.Tensors)
	fail := func(offset int, where, msg string, args ...any) error {
		return &format.FormatError{Path: path, Offset: int64(offset), Where: where, Msg: fmt.Sprintf(msg, args...)}
	}
	var index map[string]string
	err := r.Object(func(key string, _ int) error {
		if key != "weight_map" {
			return r.Skip()
		}
		index = map[string]string{}
		return r.Object(func(tensor string, _ int) error {
			at := r.Offset()
			where := fmt.Sprintf("weight_map[%q]", strictjson.Shorten(tensor))
			kind, err := r.Kind()
			if err != nil {
				return err
			}
			if kind != strictjson.String {
				return fail(at, where, "found %s, expected the name of a shard", kind)
			}
			shard, err := r.String()
			if err != nil {
				return err
			}
			if err := checkName(shard); err != nil {
				return fail(at, where, "found %q, %s", strictjson.Shorten(shard), err)
			}
			if !strings.HasSuffix(shard, ".safetensors") {
				return fail(at, where, "found %q, expected a .safetensors file", strictjson.Shorten(shard))
			}
			index[tensor] = shard
			return nil
		})
	})
	if err == nil {
		err = r.End()
	}
	if err != nil {
		return nil, syntaxError(err, path, 0)
	}
	if len(index) == 0 {
		return nil, fail(-1, "weight_map", "is missing or empty, expected an object that maps tensors to shards")
	}
	return index, nil
}

// checkName fails unless name is a plain file name, which cannot lead out of
// its folder on any system: no separator of any kind, no drive, no "..".
func checkName(name string) error {
	if name == "" || name == "." || strings.Contains(name, "..") ||
		strings.ContainsAny(name, "/\\:\x00") || !filepath.IsLocal(name) {
		return errors.New("expected a plain file name without separators or \"..\"")
	}
	return nil
}

// readConfig finds and parses the configuration.
func (c *Checkpoint) readConfig(weights string, opts Options) (err error) {
	path := opts.ConfigPath
	switch {
	case path != "":
		c.configPath = path
		if c.configJSON, err = readSmall(path, maxConfigBytes); err != nil {
			return err
		}
	default:
		c.configPath = filepath.Join(c.dir, configFile)
		if c.configJSON, err = optional(c.dir, configFile, maxConfigBytes); err != nil {
			return err
		}
		if c.configJSON != nil {
			break
		}
		text, ok := c.metadata["config"]
		if !ok && opts.NoConfig {
			text, ok = "{}", true
		}
		if !ok {
			return fmt.Errorf("%s: missing, and the metadata of %s has no \"config\"; name the file with --config, or map the tensors with --map", c.configPath, filepath.Base(weights))
		}
		c.configPath = weights + " (metadata \"config\")"
		c.configJSON = []byte(text)
	}
	c.config, err = parseConfig(c.configJSON, c.configPath, c.lim)
	return err
}

// TokenizerFiles are the files of a tokenizer, and the chat template.
type TokenizerFiles struct {
	lim      format.Limits
	dir      string
	json     []byte
	config   []byte
	template string
}

// OpenTokenizer reads the tokenizer at path: a tokenizer.json, or a folder with one
// or other files of a tokenizer, all of which may be absent.
func OpenTokenizer(path string, lim format.Limits) (*TokenizerFiles, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	t := &TokenizerFiles{lim: lim.WithDefaults(), dir: path}
	if info.IsDir() {
		t.json, err = optional(path, tokenizerFile, t.lim.HeaderBytes)
	} else {
		t.dir = filepath.Dir(path)
		t.json, err = readSmall(path, t.lim.HeaderBytes)
	}
	if err != nil {
		return nil, err
	}
	if t.config, err = optional(t.dir, tokenizerConfigFile, maxConfigBytes); err != nil {
		return nil, err
	}
	if t.template, err = t.readTemplate(); err != nil {
		return nil, err
	}
	return t, nil
}

// readTemplate finds the chat template.
func (t *TokenizerFiles) readTemplate() (string, error) {
	template, err := optional(t.dir, chatTemplateFile, maxConfigBytes)
	if err != nil {
		return "", err
	}
	if template != nil {
		if !utf8.Valid(template) {
			return "", &format.FormatError{Path: filepath.Join(t.dir, chatTemplateFile), Offset: -1, Msg: "is not UTF-8 text"}
		}
		return string(template), nil
	}
	if t.config == nil {
		return "", nil
	}
	config, err := parseConfig(t.config, filepath.Join(t.dir, tokenizerConfigFile), t.lim)
	if err != nil {
		return "", err
	}
	return chatTemplate(config)
}

// chatTemplate is the chat template in a tokenizer_config.json: a string, or
// the one named default in a list of {"name": ..., "template": ...}.
func chatTemplate(config *Config) (string, error) {
	const key = "chat_template"
	v, ok := config.lookup(key)
	if !ok {
		return "", nil
	}
	if v.kind != strictjson.Array {
		return config.String(key, "")
	}
	list, err := config.list(key)
	if err != nil {
		return "", err
	}
	for i, element := range list {
		where := fmt.Sprintf("%s[%d]", key, i)
		if element.kind != strictjson.Object {
			return "", config.wrong(where, element, "an object with name and template")
		}
		named, err := newConfig(element, config.path, where+".", config.lim)
		if err != nil {
			return "", err
		}
		name, err := named.String("name", "")
		if err != nil {
			return "", err
		}
		if name == "default" {
			if !named.Has("template") {
				return "", named.Missing("template", "a string")
			}
			return named.String("template", "")
		}
	}
	return "", nil
}

// optional is the content of a file, nil when there is none.
func optional(dir, name string, most int64) ([]byte, error) {
	data, err := readSmall(filepath.Join(dir, name), most)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// readSmall is the content of a regular file of at most so many bytes; never
// nil.
func readSmall(path string, most int64) ([]byte, error) {
	f, err := filemap.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Size() > most {
		return nil, &format.FormatError{Path: path, Offset: -1, Msg: fmt.Sprintf("the file has %d bytes, expected at most %d", f.Size(), most)}
	}
	return append([]byte{}, f.Bytes()...), nil
}

// ReadTokenizerFile is the content of another file beside tokenizer.json, or in
// the folder where it would be, such as vocab.json or merges.txt; nil without an
// error when there is none. name is a plain file name.
func (t *TokenizerFiles) ReadTokenizerFile(name string) ([]byte, error) {
	if err := checkName(name); err != nil {
		return nil, fmt.Errorf("%q: %w", name, err)
	}
	return optional(t.dir, name, t.lim.HeaderBytes)
}

// TokenizerJSON is the content of tokenizer.json, unchecked; nil when there is
// none.
func (t *TokenizerFiles) TokenizerJSON() []byte { return t.json }

// TokenizerConfig is the content of tokenizer_config.json; nil when there is
// none.
func (t *TokenizerFiles) TokenizerConfig() []byte { return t.config }

// ChatTemplate is the text of chat_template.jinja, else the chat_template of
// tokenizer_config.json (of several, the one named default); empty when there
// is none.
func (t *TokenizerFiles) ChatTemplate() string { return t.template }

// Tensors is every tensor of all shards, sorted by name. The slice is the
// checkpoint's own. Tensor.Offset counts from the start of its shard.
func (c *Checkpoint) Tensors() []safetensors.Tensor { return c.tensors }

// Lookup finds a tensor by its name.
func (c *Checkpoint) Lookup(name string) (safetensors.Tensor, bool) {
	i, ok := c.byName[name]
	if !ok {
		return safetensors.Tensor{}, false
	}
	return c.tensors[i], true
}

// Shards is the files of weights, sorted by name.
func (c *Checkpoint) Shards() []*safetensors.File { return c.shards }

// Files are the paths of the files that hold the weights.
func (c *Checkpoint) Files() []string {
	if c.pickle != nil {
		return []string{c.pickle.Path()}
	}
	var paths []string
	for _, s := range c.shards {
		paths = append(paths, s.Path())
	}
	return paths
}

// Dir is the folder that the weights are in, as it was named.
func (c *Checkpoint) Dir() string { return c.dir }

// Metadata is the metadata of the weights; of several shards that have a key,
// the first one's value.
func (c *Checkpoint) Metadata() map[string]string { return c.metadata }

// Config is the parsed configuration.
func (c *Checkpoint) Config() *Config { return c.config }

// ConfigJSON is the text of the configuration.
func (c *Checkpoint) ConfigJSON() []byte { return c.configJSON }

// ConfigPath says where the configuration was found, for messages.
func (c *Checkpoint) ConfigPath() string { return c.configPath }

// GenerationConfig is the content of generation_config.json, unchecked; nil
// when there is none.
func (c *Checkpoint) GenerationConfig() []byte { return c.generationConfig }

// Close ends the mapping of all shards. The data of the tensors must not be
// touched afterwards.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.shards {
		errs = append(errs, f.Close())
	}
	if c.pickle != nil {
		errs = append(errs, c.pickle.Close())
	}
	return errors.Join(errs...)
}
