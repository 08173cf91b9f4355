package model

import (
	"math"
	"reflect"
	"testing"

	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/ops/reference"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// TestLlama3Factors compares with the oracle's, at the values of Llama 3.1 and 3.2.
func TestLlama3Factors(t *testing.T) {
	for _, factor := range []float64{8, 32} {
		want := reference.Llama3Factors(128, 500000, factor, 1, 4, 8192)
		got := llama3Factors(128, 500000, factor, 1, 4, 8192)
		for i := range want {
			if !(math.Abs(float64(got[i])/want[i]-1) < 1e-6) {
				t.Errorf("factor %d of %g is %g, expected %g", i, factor, got[i], want[i])
			}
		}
	}
}

// TestVocabKV pads a vocabulary to the rows of the embedding with unused tokens.
func TestVocabKV(t *testing.T) {
	v := tokenizer.DefaultVocab("gpt2", "gpt-2")
	v.Tokens, v.Types = []string{"a", "b"}, []int32{1, 3}
	kv, err := VocabKV(v, 4)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]any{}
	for _, e := range kv {
		got[e.Key] = e.Value.Any()
	}
	if !reflect.DeepEqual(got[gguf.KeyTokens], []string{"a", "b", "[PAD2]", "[PAD3]"}) || !reflect.DeepEqual(got[gguf.KeyTokenType], []int32{1, 3, 5, 5}) {
		t.Errorf("tokens %v, types %v", got[gguf.KeyTokens], got[gguf.KeyTokenType])
	}
	if _, err := VocabKV(v, 1); err == nil {
		t.Error("more tokens than rows give no error")
	}
}
