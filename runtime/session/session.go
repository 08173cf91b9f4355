// Package session keeps a sequence in a file: the compressed cache of an engine,
// the tokens it holds and which model they belong to, so that a conversation goes
// on later without being fed again.
//
// A file is, with every number little-endian:
//
//	bytes  what
//	8      "FPASESS\n"
//	4      version of the format, 1
//	4      length of the metadata
//	…      metadata, a JSON object; see Meta
//	8      number of token ids
//	4 each token ids, those that are fed first
//	…      state of the engine, as engine.Session.Save writes it
//	32     SHA-256 of all before
//
// The version covers the state of the engine too: it goes up with every change of
// either, and a file of another version is refused.
//
// # Security
//
// A file is not trusted. Its checksum is compared before anything in it is
// looked at, and whoever makes a file with a right checksum still gets an error:
// lengths are compared with the size of the file before memory is taken, and the
// engine checks every number that it uses to find another. What no check can tell
// is whether the keys and values are those of the tokens; a forged file can
// put words into a conversation, as can whoever may write to its folder.
package session

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/firstpassage/fpa/format/atomicfile"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
)

const (
	magic   = "FPASESS\n"
	version = 1

	headBytes    = len(magic) + 4 + 4
	maxMetaBytes = 1 << 28 // as long as the longest prompt may be
)

// Meta is what a file says about its sequence.
type Meta struct {
	// Program is the version of the program that wrote the file, for people.
	Program string `json:"program"`
	// Model is the identity of the model; see model.File.Identity.
	Model string `json:"model"`
	// Engine is the name of the engine whose state the file holds, such as cpu.
	Engine string `json:"engine"`
	// CacheType is the type of K and V: f16, q8_0 or f32.
	CacheType string `json:"cache_type"`
	// Activations is int8 where the engine rounded them, and empty where they are f32.
	// The bounds by which keys were dropped depend on it.
	Activations string `json:"activations,omitempty"`
	// Cache is the policy by which keys were dropped.
	Cache Policy `json:"cache"`
	// Fed is the number of tokens that the engine has taken in. Those after them
	// wait: the token that was sampled last, or what is left of a prompt.
	Fed int `json:"fed"`
	// Messages are those of a chat, in order. The last one is the answer whose
	// tokens begin at Reply; it may be empty, and cut off.
	Messages []Message `json:"messages,omitempty"`
	Reply    int       `json:"reply,omitempty"`
}

// Message is one message of a chat.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Policy is the part of a cache.Policy that a user chooses.
type Policy struct {
	Mode  cache.Mode `json:"mode"`
	Eps   float64    `json:"eps,omitempty"`        // of the modes bounded and measured
	Share float64    `json:"keep_share,omitempty"` // of the mode budget, either
	Bytes int64      `json:"keep_bytes,omitempty"` // of the two
}

// PolicyOf is the part of p that is kept; what the mode does not use is left out.
func PolicyOf(p cache.Policy) Policy {
	out := Policy{Mode: p.Mode}
	switch p.Mode {
	case cache.Bounded, cache.Measured:
		out.Eps = p.Eps
	case cache.Budget:
		out.Share, out.Bytes = p.Keep.Share, p.Keep.Bytes
	}
	return out
}

// Policy is the policy for an engine.
func (p Policy) Policy() cache.Policy {
	return cache.Policy{Mode: p.Mode, Eps: p.Eps, Keep: cache.Keep{Share: p.Share, Bytes: p.Bytes}}
}

// types are the cache types by name.
var types = map[string]quant.DType{"f16": quant.F16, "q8_0": quant.Q8_0, "f32": quant.F32}

// Write saves a sequence: what m says of it, the ids of its tokens, of which m.Fed
// are fed, and the engine's state. An existing file stays whole until the new one
// is, and keeps its permissions; a new one is for its owner alone, since it holds
// what was said. It returns the size of the file.
func Write(path string, m Meta, ids []int32, s engine.Session) (int64, error) {
	if m.Fed != s.Len() {
		return 0, fmt.Errorf("%s: the session has taken in %d tokens, not %d", path, s.Len(), m.Fed)
	}
	if err := m.check(len(ids)); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	meta, err := json.Marshal(m)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	if len(meta) > maxMetaBytes {
		return 0, fmt.Errorf("%s: the conversation has %d bytes, at most %d can be saved", path, len(meta), maxMetaBytes)
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // the file is replaced, not the link to it
	}
	mode := fs.FileMode(0o600)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	f, err := atomicfile.CreateAtomic(path, true)
	if err != nil {
		return 0, err
	}
	defer f.Abort()
	if err := os.Chmod(f.TempPath(), mode); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	sum := sha256.New()
	size := &counter{}
	to := io.MultiWriter(f, sum, size)

	head := append([]byte(magic), make([]byte, 8)...)
	binary.LittleEndian.PutUint32(head[len(magic):], version)
	binary.LittleEndian.PutUint32(head[len(magic)+4:], uint32(len(meta)))
	list := binary.LittleEndian.AppendUint64(nil, uint64(len(ids)))
	for _, id := range ids {
		list = binary.LittleEndian.AppendUint32(list, uint32(id))
	}
	for _, part := range [][]byte{head, meta, list} {
		if _, err := to.Write(part); err != nil {
			return 0, err
		}
	}
	if err := s.Save(to); err != nil {
		var named *fs.PathError // of the file itself
		if errors.As(err, &named) {
			return 0, err
		}
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	if _, err := f.Write(sum.Sum(nil)); err != nil {
		return 0, err
	}
	return size.n + sha256.Size, f.Commit()
}

// counter counts bytes.
type counter struct{ n int64 }

func (c *counter) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return len(b), nil
}

// File is an open session file.
type File struct {
	Meta
	IDs []int32 // tokens; IDs[Meta.Fed:] are not fed yet

	path  string
	f     *os.File
	state *io.SectionReader
}

// remedy ends an error about a file that cannot be used.
const remedy = "remove the file, or name another one, to start anew"

// Open opens a session file and checks it, all but the state of the engine. An
// error about what it holds names the file and says what to do.
func Open(path string) (*File, error) {
	info, err := os.Stat(path) // before it is opened: a pipe would wait
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is no regular file, expected a session", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	f := &File{path: path, f: file}
	if err := f.read(); err != nil {
		file.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// read reads all before the state.
func (f *File) read() error {
	info, err := f.f.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	head := make([]byte, min(int64(headBytes), size))
	if _, err := f.f.ReadAt(head, 0); err != nil {
		return err
	}
	if !bytes.HasPrefix(head, []byte(magic)) {
		return errors.New("is no session file (it begins with other bytes); give --session a file that fparun has saved, or one that does not exist yet")
	}
	if size < int64(headBytes+8+sha256.Size) {
		return fmt.Errorf("is cut off after %d bytes; %s", size, remedy)
	}
	if v := binary.LittleEndian.Uint32(head[len(magic):]); v != version {
		return fmt.Errorf("has version %d of the session format, this program reads and writes version %d; use the program that wrote it, or %s", v, version, remedy)
	}
	if err := f.checkSum(size); err != nil {
		return err
	}
	meta := int64(binary.LittleEndian.Uint32(head[len(magic)+4:]))
	end := size - sha256.Size
	at := int64(headBytes)
	if meta > maxMetaBytes || meta > end-at-8 {
		return wrong("the metadata has %d bytes, the file has %d in all", meta, size)
	}
	text := make([]byte, meta)
	if _, err := f.f.ReadAt(text, at); err != nil {
		return err
	}
	at += meta
	if err := f.readIDs(&at, end); err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&f.Meta); err != nil {
		return wrong("metadata: %v", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return wrong("metadata: there is more than one JSON object")
	}
	if err := f.Meta.check(len(f.IDs)); err != nil {
		return wrong("metadata: %v", err)
	}
	f.state = io.NewSectionReader(f.f, at, end-at)
	return nil
}

// checkSum compares the checksum of a file.
func (f *File) checkSum(size int64) error {
	sum := sha256.New()
	if _, err := io.CopyBuffer(sum, io.NewSectionReader(f.f, 0, size-sha256.Size), make([]byte, 1<<18)); err != nil {
		return err
	}
	var want [sha256.Size]byte
	if _, err := f.f.ReadAt(want[:], size-sha256.Size); err != nil {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), want[:]) {
		return fmt.Errorf("is damaged or cut off: its checksum is wrong; %s", remedy)
	}
	return nil
}

// readIDs reads the token ids at at and moves at behind them.
func (f *File) readIDs(at *int64, end int64) error {
	var b [1 << 12]byte
	if _, err := f.f.ReadAt(b[:8], *at); err != nil {
		return err
	}
	*at += 8
	n := binary.LittleEndian.Uint64(b[:8])
	if n > uint64(end-*at)/4 {
		return wrong("it has %d tokens, more than fit into the file", n)
	}
	f.IDs = make([]int32, 0, n)
	for len(f.IDs) < int(n) {
		part := b[:4*min(len(b)/4, int(n)-len(f.IDs))]
		if _, err := f.f.ReadAt(part, *at); err != nil {
			return err
		}
		*at += int64(len(part))
		for ; len(part) > 0; part = part[4:] {
			id := binary.LittleEndian.Uint32(part)
			if id > 1<<31-1 {
				return wrong("token %d is id %d", len(f.IDs), id)
			}
			f.IDs = append(f.IDs, int32(id))
		}
	}
	return nil
}

// wrong is an error about a file whose checksum is right.
func wrong(format string, args ...any) error {
	return fmt.Errorf("is no session that fparun wrote: %s; %s", fmt.Sprintf(format, args...), remedy)
}

// check holds the metadata against itself and the number of tokens.
func (m *Meta) check(tokens int) error {
	if m.Fed < 0 || m.Fed > tokens {
		return fmt.Errorf("%d tokens are fed, of %d", m.Fed, tokens)
	}
	if m.Reply < 0 || m.Reply > tokens {
		return fmt.Errorf("the answer begins at token %d, of %d", m.Reply, tokens)
	}
	if _, ok := types[m.CacheType]; !ok {
		return fmt.Errorf("cache type %q is not known, expected f16, q8_0 or f32", m.CacheType)
	}
	if m.Activations != "" && m.Activations != "int8" {
		return fmt.Errorf("activations %q are not known, expected int8 or none", m.Activations)
	}
	if m.Model == "" || m.Engine == "" {
		return errors.New("the identity of the model or the name of the engine is missing")
	}
	if n := len(m.Messages); n > 0 && m.Messages[n-1].Role != "assistant" {
		return fmt.Errorf("the last message is by %q, expected an answer by \"assistant\"", m.Messages[n-1].Role)
	}
	return m.Cache.Policy().Validate()
}

// Restore makes a session of the engine that goes on where the saved one ended.
// name is the engine's, model the identity of its model, and vocabulary the size
// of that.
func (f *File) Restore(e engine.Engine, name, model string, vocabulary int) (engine.Session, error) {
	if name != f.Engine {
		return nil, fmt.Errorf("%s: was saved by the engine %q, this is %q; use --backend %[2]s, or %[4]s", f.path, f.Engine, name, remedy)
	}
	if model != f.Model {
		return nil, fmt.Errorf("%s: belongs to another model, or its model file has changed since (identity %.16s…, this model is %.16s…); use the model it was made with, or %s",
			f.path, f.Model, model, remedy)
	}
	for i, id := range f.IDs {
		if int(id) >= vocabulary {
			return nil, fmt.Errorf("%s: %w", f.path, wrong("token %d is id %d, the vocabulary has %d entries", i, id, vocabulary))
		}
	}
	if _, err := f.state.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	s, err := e.RestoreSession(f.state, types[f.CacheType], f.Cache.Policy())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.path, wrong("state of the engine: %v", err))
	}
	if s.Len() != f.Fed {
		return nil, fmt.Errorf("%s: %w", f.path, wrong("the engine's state has %d tokens, the metadata %d", s.Len(), f.Fed))
	}
	return s, nil
}

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }
