package gguf

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/dlclark/regexp2"
)

// specification is the regular expression that the convention gives for
// validating a name, with the look-ahead Go's regexp lacks.
var specification = regexp2.MustCompile(`^(?:(?<Sidecar>mmproj|mtp)-)?(?<BaseName>[A-Za-z0-9\s]*(?:(?:-(?:(?:[A-Za-z\s][A-Za-z0-9\s]*)|(?:[0-9\s]*)))*))-(?:(?<SizeLabel>(?:\d+x)?(?:\d+\.)?\d+[A-Za-z](?:-[A-Za-z]+(\d+\.)?\d+[A-Za-z]+)?)(?:-(?<FineTune>[A-Za-z0-9\s-]+))?)?-(?:(?<Version>v\d+(?:\.\d+)*))(?:-(?<Encoding>(?!LoRA|vocab)[\w_]+))?(?:-(?<Type>LoRA|vocab))?(?:-(?<Shard>\d{5}-of-\d{5}))?\.gguf$`, regexp2.ECMAScript)

// parseBySpecification takes a name apart by the convention's own expression.
// It makes SizeLabel optional, against the convention's words; such names are
// left out here as they are in ParseFileName.
func parseBySpecification(t *testing.T, name string) (n FileName, ok bool) {
	m, err := specification.FindStringMatch(name)
	if err != nil {
		t.Fatal(err)
	}
	if m == nil {
		return FileName{}, false
	}
	get := func(group string) string { return m.GroupByName(group).String() }
	return FileName{get("Sidecar"), get("BaseName"), get("SizeLabel"), get("FineTune"), get("Version"), get("Encoding"), get("Type"), get("Shard")}, get("SizeLabel") != ""
}

func TestParseFileName(t *testing.T) {
	tests := []struct {
		name string
		want FileName
	}{
		{"FPA-124M-v1.0-Q8_0.gguf", FileName{BaseName: "FPA", SizeLabel: "124M", Version: "v1.0", Encoding: "Q8_0"}},
		{"Mixtral-8x7B-v0.1-KQ2.gguf", FileName{BaseName: "Mixtral", SizeLabel: "8x7B", Version: "v0.1", Encoding: "KQ2"}},
		{"Grok-100B-v1.0-Q4_0-00003-of-00009.gguf", FileName{BaseName: "Grok", SizeLabel: "100B", Version: "v1.0", Encoding: "Q4_0", Shard: "00003-of-00009"}},
		{"Hermes-2-Pro-Llama-3-8B-v1.0-F16.gguf", FileName{BaseName: "Hermes-2-Pro-Llama-3", SizeLabel: "8B", Version: "v1.0", Encoding: "F16"}},
		{"Phi-3-mini-3.8B-ContextLength4k-instruct-v1.0.gguf", FileName{BaseName: "Phi-3-mini", SizeLabel: "3.8B-ContextLength4k", FineTune: "instruct", Version: "v1.0"}},
		{"mtp-Qwen3-27B-v1.0-Q4_K_M.gguf", FileName{Sidecar: "mtp", BaseName: "Qwen3", SizeLabel: "27B", Version: "v1.0", Encoding: "Q4_K_M"}},
		{"mmproj-Qwen2-VL-7B-v1.0-F16.gguf", FileName{Sidecar: "mmproj", BaseName: "Qwen2-VL", SizeLabel: "7B", Version: "v1.0", Encoding: "F16"}},
		{"A-1.5B-chat-v2-LoRA.gguf", FileName{BaseName: "A", SizeLabel: "1.5B", FineTune: "chat", Version: "v2", Type: "LoRA"}},
		{"A-1.5B-v2-F16-vocab.gguf", FileName{BaseName: "A", SizeLabel: "1.5B", Version: "v2", Encoding: "F16", Type: "vocab"}},
	}
	for _, test := range tests {
		got, ok := ParseFileName(test.name)
		if !ok || got != test.want {
			t.Errorf("%s: %+v, %v, expected %+v", test.name, got, ok, test.want)
		}
		if spec, ok := parseBySpecification(t, test.name); !ok || spec != test.want {
			t.Errorf("%s: the specification says %+v, %v", test.name, spec, ok)
		}
		if test.want.String() != test.name {
			t.Errorf("String is %s, expected %s", test.want, test.name)
		}
	}
	for _, name := range []string{"", "not-a-known-arrangement.gguf", "A-v1.0.gguf", "A-1B-F16.gguf", "A-1B-v1.0.bin", "A-1B-v1.0-vocabulary.gguf", "A-1B-v1.0-F16-0001-of-0002.gguf", "x/A-1B-v1.0.gguf"} {
		if n, ok := ParseFileName(name); ok {
			t.Errorf("%q: %+v, expected a refusal", name, n)
		}
	}
}

// Names put together at random from the parts that decide are read as the
// convention's own expression reads them.
func TestParseFileNameAgainstSpecification(t *testing.T) {
	words := []string{"A", "Llama", "3", "v1", "v1.0", "8B", "8x7B", "1.5B", "F16", "Q4_K_M", "LoRA", "vocab", "vocab2", "LoRAX", "mtp", "mmproj", "00001-of-00002", "x y", "", "é", "ctx4k"}
	rng := rand.New(rand.NewPCG(1, 2))
	accepted := 0
	for range 5000 {
		var parts []string
		for range 2 + rng.IntN(6) {
			parts = append(parts, words[rng.IntN(len(words))])
		}
		name := strings.Join(parts, "-") + ".gguf"
		want, wantOK := parseBySpecification(t, name)
		if !wantOK {
			want = FileName{}
		} else {
			accepted++
		}
		if got, ok := ParseFileName(name); ok != wantOK || got != want {
			t.Errorf("%q: %+v, %v, expected %+v, %v", name, got, ok, want, wantOK)
		}
	}
	if accepted < 100 {
		t.Errorf("only %d of the names were valid: the test says too little", accepted)
	}
}

func TestFileNameString(t *testing.T) {
	tests := []struct {
		name FileName
		want string
	}{
		{FileName{}, "model-v1.0.gguf"},
		{FileName{BaseName: "My model 2.5/x", SizeLabel: "124M", FineTune: "it_chat", Version: "1.2", Encoding: "F16"}, "My-model-2-5-x-124M-it-chat-v1.2-F16.gguf"},
		{FileName{BaseName: "../../etc", SizeLabel: "1.0B"}, "etc-1.0B-v1.0.gguf"},
	}
	for _, test := range tests {
		if got := test.name.String(); got != test.want {
			t.Errorf("%s, expected %s", got, test.want)
		}
	}
}

func TestSizeLabel(t *testing.T) {
	tests := []struct {
		n    int64
		want string
	}{
		{-1, "0.00K"}, {0, "0.00K"}, {346, "0.35K"}, {994, "0.99K"}, {999, "1.0K"}, {1000, "1.0K"}, {9949, "9.9K"}, {9951, "10K"},
		{12_345, "12K"}, {999_499, "999K"}, {999_500, "1.0M"}, {124_439_808, "124M"}, {134_515_008, "135M"}, {999_999_999, "1.0B"},
		{1_000_000_000, "1.0B"}, {1_540_000_000, "1.5B"}, {7_241_732_096, "7.2B"}, {70_553_706_496, "71B"},
		{405_853_388_800, "406B"}, {1_000_000_000_000, "1.0T"}, {1<<63 - 1, "9223372T"},
	}
	for _, test := range tests {
		if got := SizeLabel(test.n); got != test.want {
			t.Errorf("SizeLabel(%d) = %s, expected %s", test.n, got, test.want)
		}
	}
}
