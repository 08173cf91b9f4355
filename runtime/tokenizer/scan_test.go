package tokenizer

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// pieces are what stages make of a text.
func pieces(t *testing.T, stages []preTokenizer, text string) []string {
	t.Helper()
	var all []string
	if err := preTokenize(&Tokenizer{preTokenizers: stages}, text, func(s string) { all = append(all, s) }); err != nil {
		t.Fatal(err)
	}
	return all
}

// bySplits are stages that isolate the matches of each pattern, by the regular
// expression engine.
func bySplits(t *testing.T, sources ...string) []preTokenizer {
	t.Helper()
	var stages []preTokenizer
	for _, source := range sources {
		p, err := newRegex(source)
		if err != nil {
			t.Fatal(err)
		}
		stages = append(stages, patternSplit{p, isolated, false})
	}
	return stages
}

// scanTexts are random words, and random sequences of the characters that the
// patterns tell apart.
func scanTexts() []string {
	texts := soups(21, 300)
	rng := rand.New(rand.NewPCG(21, 2))
	alphabet := []rune("aé字1²' \n\r\t\u00a0!.srtvlmdeLſSK")
	for range 700 {
		text := ""
		for range rng.IntN(12) {
			text += string(alphabet[rng.IntN(len(alphabet))])
		}
		texts = append(texts, text)
	}
	return texts
}

// TestScanners compares the scanners with the patterns they stand for.
func TestScanners(t *testing.T) {
	texts := scanTexts()
	compare := func(name string, got, want []preTokenizer) {
		for _, text := range texts {
			if got, want := pieces(t, got, text), pieces(t, want, text); !slices.Equal(got, want) {
				t.Errorf("%s: %q\n got %q\nwant %q", name, text, got, want)
				return
			}
		}
	}
	for source, scanner := range knownPatterns {
		compare(source, []preTokenizer{scanSplit{scanner}}, bySplits(t, source))
	}
	compare("digits", []preTokenizer{scanSplit{digitScanner{}}}, bySplits(t, `\p{N}`))
	gpt2 := splitPatterns[0]
	for name, sources := range map[string][]string{
		"gpt-2": {gpt2}, "smollm": {`\p{N}`, gpt2}, "llama-bpe": {splitPatterns[1]}, "qwen2": {splitPatterns[2]},
		"default": {`[\p{P}\$\+<=>\^~\|]+`, gpt2, `\p{N}+`, `[0-9][0-9][0-9]`},
	} {
		p := preSplits[name]
		stages := p.stages
		if p.gpt2Pattern {
			stages = append(slices.Clone(stages), scanSplit{gpt2Scanner{}})
		}
		compare(name, stages, bySplits(t, sources...))
	}
}
