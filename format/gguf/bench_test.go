package gguf

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/firstpassage/fpa/format"
)

// BenchmarkRead reads a header with a vocabulary of usual size.
func BenchmarkRead(b *testing.B) {
	tokens := make([]string, 50_000)
	for i := range tokens {
		tokens[i] = fmt.Sprint("token", i)
	}
	var m memory
	_, err := NewWriter(&m, []KV{
		{KeyTokens, ValueOf(tokens)},
		{KeyMerges, ValueOf(tokens)},
		{KeyTokenType, ValueOf(make([]int32, len(tokens)))},
	}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(m.b)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Read(bytes.NewReader(m.b), int64(len(m.b)), format.Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}
