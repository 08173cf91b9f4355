// Package gguf reads and writes GGUF, the model file format of ggml and
// llama.cpp, as specified in
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
//
// # Format
//
// A file is, in this order and little-endian throughout:
//
//	"GGUF"    magic
//	uint32    version: 2 or 3 (the same layout)
//	uint64    number of tensors
//	uint64    number of metadata entries
//	entries   key string, uint32 value type, value
//	tensors   name string, uint32 number of dimensions, uint64 each dimension
//	          (innermost first), uint32 element type, uint64 offset
//	padding   to the alignment
//	data      the tensors one after the other, each padded to the alignment
//
// A string is a uint64 length and that many bytes. An array is a uint32
// element type, a uint64 length and the elements. Offsets count from the
// start of the data. The alignment is the entry general.alignment, or 32.
//
// This package turns the dimensions round: a Shape is outermost first, as in
// PyTorch and safetensors.
//
// A model may be split over several files named stem-00001-of-0000N.gguf.
// Open follows them and shows one model.
//
// # Strictness
//
// The reader refuses what ggml's own reader refuses, and in addition what the
// specification forbids or what would let two readers see different models:
// keys that are not printable ASCII, bool bytes other than 0 and 1, alignments
// below 8, tensor names that are empty, not UTF-8 or cut by a NUL, dimensions
// of zero, split.* entries that contradict each other, and bytes after the
// last tensor. Big-endian files and version 1 are refused as unsupported.
// String values are kept byte for byte, UTF-8 or not, and arrays of arrays,
// which ggml refuses, are read.
//
// # Security
//
// Files are untrusted. Nothing is allocated before the bytes that would fill
// it are known to be in the file, so memory is bounded by a small multiple of
// the header's size, which format.Limits bounds in turn. Every offset and
// size is checked for overflow and against the file before a view of tensor
// data exists. No name in a file is used as a path: the parts of a split
// model are found by the name of the first alone. No input makes the reader
// panic or loop. Values, among them chat templates, are data and are not
// interpreted here.
package gguf

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
)

const (
	magic = "GGUF"

	// Version is the version the Writer writes.
	Version = 3

	// DefaultAlignment is the alignment of tensor data in a file that has
	// no general.alignment entry.
	DefaultAlignment = 32

	// QuantizationVersion is the value of general.quantization_version
	// that goes with the block layouts of package quant.
	QuantizationVersion uint32 = 2

	minAlignment = 8       // the specification asks for a multiple of 8
	maxAlignment = 1 << 24 // far above any page size; keeps padding sane

	maxKeyBytes  = 1<<16 - 1 // by the specification
	maxNameBytes = 63        // ggml keeps names in 64 bytes with a final NUL
	maxDims      = 4         // ggml's GGML_MAX_DIMS

	// The fewest bytes an entry and a tensor description can take: they
	// bound the counts in the header before anything is allocated.
	minKVBytes     = 8 + 1 + 4 + 1
	minTensorBytes = 8 + 1 + 4 + 4 + 8
)

// KV is one metadata entry.
type KV struct {
	Key   string
	Value Value
}

// TensorInfo describes one tensor.
//
// Read and Open fill every field. For NewWriter Name, DType and Shape are
// given, the rest is ignored; see NewWriter about Type.
type TensorInfo struct {
	Name  string
	Type  GGMLType     // element type as numbered by ggml
	DType quant.DType  // Type as this module knows it, or quant.Invalid
	Shape format.Shape // outermost dimension first

	Offset int64 // of the first byte, from the start of its file
	Size   int64 // in bytes, without padding
	File   int   // index of the part that holds it; 0 unless the model is split
}

// checkKey reports what is wrong with a metadata key.
//
// The specification asks for lower_snake_case segments. Files in use have
// "-" and capitals too (architecture and template names), so all printable
// ASCII is accepted.
func checkKey(key string) error {
	if key == "" {
		return fmt.Errorf("the key is empty")
	}
	if len(key) > maxKeyBytes {
		return fmt.Errorf("the key has %d bytes, expected at most %d", len(key), maxKeyBytes)
	}
	for i := 0; i < len(key); i++ {
		if key[i] <= ' ' || key[i] > '~' {
			return fmt.Errorf("key %q has the byte 0x%02x at %d, expected printable ASCII", abbreviate(key), key[i], i)
		}
	}
	return nil
}

// checkName reports what is wrong with a tensor name.
func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the tensor name is empty")
	case len(name) > maxNameBytes:
		return fmt.Errorf("tensor name %q has %d bytes, expected at most %d", abbreviate(name), len(name), maxNameBytes)
	case !utf8.ValidString(name):
		return fmt.Errorf("tensor name %q is not UTF-8", name)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("tensor name %q contains a NUL", name)
	}
	return nil
}

// checkAlignment reports what is wrong with a value of general.alignment.
func checkAlignment(v Value) (int64, error) {
	a, ok := v.v.(uint32)
	if !ok {
		return 0, fmt.Errorf("has type %s, expected %s", v.TypeName(), TypeUint32)
	}
	if a < minAlignment || a > maxAlignment || a&(a-1) != 0 {
		return 0, fmt.Errorf("is %d, expected a power of two from %d to %d", a, minAlignment, maxAlignment)
	}
	return int64(a), nil
}

// pad rounds n up to a multiple of align, which is a power of two. The
// caller sees to it that n is at most 2^62.
func pad(n, align int64) int64 { return (n + align - 1) &^ (align - 1) }

// abbreviate shortens a string for an error message.
func abbreviate(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
