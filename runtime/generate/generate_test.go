package generate

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/sample"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// script is a session that prefers the tokens of a list, one after the other.
type script struct {
	ids   []int32
	vocab int
	fed   []int32
	fail  error // of the Feed after the prompt
	said  int
}

func (s *script) Feed(ids []int32, want func(int) bool, each func(int, []float32) error) error {
	s.fed = append(s.fed, ids...)
	if want != nil && !want(len(s.fed)-1) {
		return nil
	}
	if s.said > 0 && s.fail != nil {
		return s.fail
	}
	logits := make([]float32, s.vocab)
	if s.said < len(s.ids) {
		logits[s.ids[s.said]] = 5
	}
	s.said++
	return each(len(s.fed)-1, logits)
}

func (s *script) Len() int                { return len(s.fed) }
func (s *script) CacheStats() cache.Stats { return cache.Stats{} }
func (s *script) Save(io.Writer) error    { return errors.New("not saved") }

func passkeyTokenizer(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	data, err := os.ReadFile("../../testmodels/passkey/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.FromJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// say runs a generation whose model would say text for ever and then the end.
func say(t *testing.T, text string, o Options) (Result, []string, error) {
	t.Helper()
	tok := passkeyTokenizer(t)
	ids, err := tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true})
	if err != nil {
		t.Fatal(err)
	}
	p := sample.Defaults()
	p.Temp = 0
	var pieces []string
	s := &script{ids: ids, vocab: tok.VocabSize()}
	res, err := Run(context.Background(), s, tok, sample.New(p, 0), []int32{0, 5, 9}, o, func(piece string) error {
		pieces = append(pieces, piece)
		return nil
	})
	return res, pieces, err
}

func TestStops(t *testing.T) {
	end := []int32{1}
	for _, c := range []struct {
		text   string
		o      Options
		want   string
		reason Reason
	}{
		{"The red key.<|end|>", Options{Predict: -1, End: end}, "The red key.", ByEnd},
		{"The red key.", Options{Predict: 2, End: end}, "The red", ByLimit},
		{"abc STOP def", Options{Predict: -1, Stop: []string{"STOP"}}, "abc ", ByStop},
		{"abc STO", Options{Predict: 7, Stop: []string{"STOP"}}, "abc STO", ByLimit},
		{"xx\n\nyy", Options{Predict: -1, Stop: []string{"zz", "\n\n", "y"}}, "xx", ByStop},
		{"aaab tail", Options{Predict: -1, Stop: []string{"aab"}}, "a", ByStop},
		{"later first", Options{Predict: -1, Stop: []string{"first", "later"}}, "", ByStop},
		{"Caffè 🎉 日本!<|end|>", Options{Predict: -1, End: end}, "Caffè 🎉 日本!", ByEnd},
		{"🎉🎉", Options{Predict: -1, Stop: []string{"🎉"}}, "", ByStop},
		{"anything", Options{Predict: 0}, "", ByLimit},
	} {
		res, pieces, err := say(t, c.text, c.o)
		if err != nil {
			t.Fatal(err)
		}
		if res.Text != c.want || res.Reason != c.reason {
			t.Errorf("%q with %+v: %q, ended by %s; expected %q, %s", c.text, c.o, res.Text, res.Reason, c.want, c.reason)
		}
		if strings.Join(pieces, "") != c.want {
			t.Errorf("%q: the pieces are %q", c.text, pieces)
		}
		for _, p := range pieces {
			if !utf8.ValidString(p) {
				t.Errorf("%q: a piece %q splits a character", c.text, p)
			}
		}
	}
}

// TestIgnoreEnd never samples an end token.
func TestIgnoreEnd(t *testing.T) {
	res, _, err := say(t, "ab<|end|>cd", Options{Predict: 6, End: []int32{1}, IgnoreEnd: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range res.Tokens {
		if id == 1 {
			t.Errorf("tokens %v hold an end token", res.Tokens)
		}
	}
	if res.Reason != ByLimit || len(res.Tokens) != 6 {
		t.Errorf("%+v", res)
	}
}

func TestFailures(t *testing.T) {
	tok := passkeyTokenizer(t)
	p := sample.Defaults()
	p.Temp = 0
	boom := errors.New("boom")
	ids, err := tok.Encode("one two three", tokenizer.EncodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := &script{ids: ids, vocab: tok.VocabSize(), fail: boom}
	res, err := Run(context.Background(), s, tok, sample.New(p, 0), []int32{0}, Options{Predict: -1}, nil)
	if !errors.Is(err, boom) || len(res.Tokens) != 1 || res.Text == "" {
		t.Errorf("error %v, result %+v", err, res)
	}
	full := errors.New("the pipe is closed")
	_, err = Run(context.Background(), &script{ids: ids, vocab: tok.VocabSize()}, tok, sample.New(p, 0), []int32{0}, Options{Predict: -1}, func(string) error { return full })
	if !errors.Is(err, full) {
		t.Errorf("error %v", err)
	}
	if _, err := Run(context.Background(), s, tok, sample.New(p, 0), nil, Options{}, nil); err == nil {
		t.Error("an empty prompt gives no error")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	res, err = Run(ctx, &script{ids: ids, vocab: tok.VocabSize()}, tok, sample.New(p, 0), []int32{0, 1}, Options{Predict: -1}, nil)
	if err != nil || res.Reason != ByCancel {
		t.Errorf("cancelled: %v, %+v", err, res)
	}
}

// TestProgress counts the whole prompt, in chunks.
func TestProgress(t *testing.T) {
	var fed []int
	_, _, err := say(t, "ab", Options{Predict: 1, Chunk: 2, Progress: func(n int) { fed = append(fed, n) }})
	if err != nil || len(fed) != 2 || fed[0] != 2 || fed[1] != 3 {
		t.Errorf("fed %v, %v", fed, err)
	}
}

// TestPending holds what was fed, with what waits, against all tokens.
func TestPending(t *testing.T) {
	tok := passkeyTokenizer(t)
	text, err := tok.Encode("The tall sailor<|end|>", tokenizer.EncodeOptions{ParseSpecial: true})
	if err != nil {
		t.Fatal(err)
	}
	prompt := []int32{0, 5, 9, 7, 8}
	p := sample.Defaults()
	p.Temp = 0
	for name, c := range map[string]struct {
		o       Options
		chunks  int // of the prompt, after which the run is cancelled
		reason  Reason
		pending []int32
	}{
		"limit":          {Options{Predict: 2}, -1, ByLimit, text[1:2]},
		"end":            {Options{Predict: -1, End: []int32{1}}, -1, ByEnd, []int32{1}},
		"stop":           {Options{Predict: -1, Stop: []string{"ta"}}, -1, ByStop, nil},
		"nothing":        {Options{}, -1, ByLimit, prompt[4:]},
		"cancelled":      {Options{Predict: -1, Chunk: 2}, 0, ByCancel, prompt},
		"cancelled at 4": {Options{Predict: -1, Chunk: 2}, 2, ByCancel, prompt[4:]},
		"cancelled at 5": {Options{Predict: -1, Chunk: 2}, 3, ByCancel, text[:1]},
		"nothing, at 2":  {Options{Chunk: 2}, 1, ByCancel, prompt[2:]},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		if c.chunks == 0 {
			cancel()
		}
		c.o.Progress = func(int) {
			if c.chunks--; c.chunks == 0 {
				cancel()
			}
		}
		s := &script{ids: text, vocab: tok.VocabSize()}
		res, err := Run(ctx, s, tok, sample.New(p, 0), prompt, c.o, nil)
		cancel()
		all := slices.Concat(prompt, res.Tokens)
		if c.pending == nil {
			c.pending = all[len(all)-1:]
		}
		if err != nil || res.Reason != c.reason || !slices.Equal(res.Pending, c.pending) {
			t.Errorf("%s: %v, %s, %v waits, expected %s, %v", name, err, res.Reason, res.Pending, c.reason, c.pending)
		}
		if got := slices.Concat(s.fed, res.Pending); !slices.Equal(got, all) {
			t.Errorf("%s: fed and waiting %v, expected %v", name, got, all)
		}
	}
}
