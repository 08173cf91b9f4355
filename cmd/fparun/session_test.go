package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/runtime/cpu"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/runtime/session"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// sessionTokens are the tokens of a session file, and how many are fed.
func sessionTokens(t *testing.T, path string) (ids []int32, fed int) {
	t.Helper()
	f, err := session.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return f.IDs, f.Fed
}

// sessionLogits restores a session, feeds what waits, and returns the last logits.
func sessionLogits(t *testing.T, modelPath, path string) []float32 {
	t.Helper()
	file, err := model.Open(modelPath, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	m, err := file.Build()
	if err != nil {
		t.Fatal(err)
	}
	e, err := cpu.New(m, cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	id, err := file.Identity()
	if err != nil {
		t.Fatal(err)
	}
	f, err := session.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := f.Restore(e, engineName, id, m.VocabSize)
	if err != nil {
		t.Fatal(err)
	}
	var logits []float32
	err = s.Feed(f.IDs[f.Fed:], nil, func(_ int, l []float32) error {
		logits = slices.Clone(l)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return logits
}

// TestSession generates in one run and in several, which must end in the same
// file, byte by byte: the same tokens, and the same state of the engine.
func TestSession(t *testing.T) {
	m, dir := gguf(t), t.TempDir()
	prompt := filepath.Join(passkey, "prompt-8x.txt")
	for i, cache := range [][]string{
		nil, {"--cache", "off", "--cache-type", "q8_0"}, {"--cache", "bounded", "--cache-eps", "0.01"},
		{"--cache", "measured", "--cache-eps", "0.1", "--cache-type", "f32"},
		{"--cache", "budget", "--cache-keep", "7%"}, {"--cache", "budget", "--cache-keep", "30K"},
	} {
		once, again := filepath.Join(dir, fmt.Sprint("once", i)), filepath.Join(dir, fmt.Sprint("again", i))
		// The penalty makes the tokens depend on those before the first run's end.
		common := []string{"-m", m, "--temp", "0", "--repeat-penalty", "1.4", "--ignore-eos"}
		first := slices.Concat(common, cache, []string{"-f", prompt})
		want, _ := mustRun(t, slices.Concat(first, []string{"--session", once, "-n", "40"})...)
		var got string
		text, _ := mustRun(t, slices.Concat(first, []string{"--session", again, "-n", "15"})...)
		got += strings.TrimSuffix(text, "\n")
		for _, n := range []string{"1", "24"} { // the flags of the cache come from the file
			text, _ := mustRun(t, slices.Concat(common, []string{"--prompt-cache", again, "-n", n})...)
			got += strings.TrimSuffix(text, "\n")
		}
		if got+"\n" != want {
			t.Errorf("%s: in three runs %q, in one %q", cache, got, want)
		}
		if !bytes.Equal(readFile(t, once), readFile(t, again)) {
			t.Errorf("%s: the sessions differ", cache)
		}
		// Read-only: the text goes on, the file stays.
		for range 2 {
			text, _ := mustRun(t, slices.Concat(common, []string{"--session", again, "--prompt-cache-ro", "-n", "3"})...)
			if text == "\n" || !bytes.Equal(readFile(t, once), readFile(t, again)) {
				t.Errorf("%s: --session-ro gives %q, or changes the file", cache, text)
			}
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("%v: %q are left", err, left)
	}
}

// TestSessionChunks feeds a prompt in several ways, over one run or two.
func TestSessionChunks(t *testing.T) {
	m, dir := gguf(t), t.TempDir()
	text := strings.TrimSpace(string(readFile(t, filepath.Join(passkey, "prompt-1x.txt"))))
	half := strings.LastIndex(text[:len(text)/2], ". ") + 1
	run := func(name string, texts []string, args ...string) []float32 {
		path := filepath.Join(dir, name)
		for i, text := range texts {
			extra := args
			if i > 0 { // the cache is the session's
				extra = []string{"-b", "50"}
			}
			out, _ := mustRun(t, slices.Concat([]string{"-m", m, "--session", path, "-n", "0", "-p", text}, extra)...)
			if out != "\n" {
				t.Errorf("%s: prints %q", name, out)
			}
		}
		return sessionLogits(t, m, path)
	}
	for _, mode := range []string{"off", "exact"} {
		cache := []string{"--cache-type", "f32", "--cache", mode}
		want := run(mode+" whole", []string{text}, cache...)
		for name, got := range map[string][]float32{
			"chunks of 7":   run(mode+" 7", []string{text}, append(cache, "-b", "7")...),
			"single tokens": run(mode+" 1", []string{text}, append(cache, "-b", "1")...),
			"two runs":      run(mode+" two", []string{text[:half], text[half:]}, cache...),
			"two, 11":       run(mode+" 11", []string{text[:half], text[half:]}, append(cache, "-b", "11")...),
		} {
			worst := 0.0
			for i := range want {
				worst = max(worst, math.Abs(float64(got[i])-float64(want[i])))
			}
			if !(worst <= 1e-4) {
				t.Errorf("%s, %s: logits differ by %g", mode, name, worst)
			}
		}
	}
	one, _ := sessionTokens(t, filepath.Join(dir, "exact whole"))
	two, fed := sessionTokens(t, filepath.Join(dir, "exact two"))
	if !slices.Equal(one, two) || fed != len(two)-1 {
		t.Errorf("in two runs the tokens are others, or %d of %d are fed", fed, len(two))
	}
}

// canceller is an output that cancels after some writes.
type canceller struct {
	bytes.Buffer
	writes int
	cancel func()
}

func (c *canceller) Write(b []byte) (int, error) {
	if c.writes--; c.writes == 0 {
		c.cancel()
	}
	return c.Buffer.Write(b)
}

// TestSessionInterrupted goes on after Ctrl-C came before the prompt was fed, and
// among the generated tokens.
func TestSessionInterrupted(t *testing.T) {
	m, dir := gguf(t), t.TempDir()
	prompt := filepath.Join(passkey, "prompt-1x.txt")
	want, _ := mustRun(t, "-m", m, "-f", prompt, "--ignore-eos", "-n", "20", "--session", filepath.Join(dir, "once"))
	for writes := range 4 {
		path := filepath.Join(dir, fmt.Sprint("interrupted", writes))
		ctx, cancel := context.WithCancel(context.Background())
		out := &canceller{writes: writes, cancel: cancel}
		if writes == 0 {
			cancel()
		}
		root := cli.Prepare(newRoot())
		root.SetOut(out)
		root.SetErr(io.Discard)
		root.SetArgs([]string{"-m", m, "-f", prompt, "--ignore-eos", "--session", path})
		if err := root.ExecuteContext(ctx); cli.ExitCode(err) != 130 {
			t.Errorf("error %v, exit code %d", err, cli.ExitCode(err))
		}
		cancel()
		ids, fed := sessionTokens(t, path)
		if writes == 0 && fed != 0 || writes > 0 && fed != len(ids)-1 {
			t.Errorf("%d of %d tokens are fed", fed, len(ids))
		}
		begin := strings.TrimSuffix(out.String(), "\n")
		rest, _ := mustRun(t, "-m", m, "--session", path, "--ignore-eos", "-n", fmt.Sprint(20-writes))
		if begin+rest != want {
			t.Errorf("interrupted after %d writes: %q and then %q, expected %q", writes, begin, rest, want)
		}
		if writes > 0 && !bytes.Equal(readFile(t, path), readFile(t, filepath.Join(dir, "once"))) {
			t.Errorf("interrupted after %d writes: another session than without", writes)
		}
	}
}

func TestSessionReport(t *testing.T) {
	m, path := gguf(t), filepath.Join(t.TempDir(), "s")
	prompt := filepath.Join(passkey, "prompt-1x.txt")
	_, stderr := mustRun(t, "-m", m, "-f", prompt, "--session", path, "-n", "2", "--stats")
	if !strings.Contains(stderr, "session: 0 tokens restored") || !strings.Contains(stderr, " saved in ") {
		t.Errorf("--stats prints %s", stderr)
	}
	ids, fed := sessionTokens(t, path)
	stdout, _ := mustRun(t, "-m", m, "--session", path, "--json")
	var r struct {
		Text, Reason string
		PromptTokens int `json:"prompt_tokens"`
		Tokens       []int32
		Cache        struct{ Tokens int }
		Session      struct {
			File         string
			Restored     int   `json:"restored_tokens"`
			Restore      int64 `json:"restore_ns"`
			Saved        int   `json:"saved_tokens"`
			Bytes        int   `json:"saved_bytes"`
			Hash, Saving int64
		}
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	s := r.Session
	if r.PromptTokens != 1 || s.File != path || s.Restored != fed || s.Restore <= 0 || s.Saved != len(ids)+len(r.Tokens) || s.Bytes != len(readFile(t, path)) {
		t.Errorf("%+v, after %d of %d tokens", r, fed, len(ids))
	}
	if r.Text == "" || r.Reason != "end" || r.Cache.Tokens != len(ids)+len(r.Tokens)-1 {
		t.Errorf("%+v", r)
	}
	if stdout, _ := mustRun(t, "-m", m, "-f", prompt, "--json"); strings.Contains(stdout, "session") {
		t.Errorf("without a session: %s", stdout)
	}
}

// TestSessionRefused is for every reason not to use a session. The file must stay
// as it was.
func TestSessionRefused(t *testing.T) {
	m, dir := gguf(t), t.TempDir()
	path := filepath.Join(dir, "s")
	mustRun(t, "-m", m, "-p", "The old bridge", "--session", path, "-n", "5", "--cache", "bounded")
	budget := filepath.Join(dir, "budget")
	mustRun(t, "-m", m, "-p", "The old bridge", "--session", budget, "-n", "5", "--cache", "budget", "--cache-keep", "0.5")
	int8 := filepath.Join(dir, "int8")
	mustRun(t, "-m", m, "-p", "The old bridge", "--session", int8, "-n", "5", "--activations", "int8")
	mustRun(t, "-m", m, "--session", int8, "-n", "5") // it goes on as it began
	before := readFile(t, path)

	// A model whose last weight has changed by a bit, and a damaged session.
	data := readFile(t, m)
	data[len(data)-40] ^= 1
	changed, damaged, newer := filepath.Join(dir, "changed.gguf"), filepath.Join(dir, "damaged"), filepath.Join(dir, "newer")
	for name, data := range map[string][]byte{changed: data, damaged: before[:len(before)/2], newer: append([]byte("FPASESS\n\x02"), before[9:]...)} {
		if err := os.WriteFile(name, data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{1, path + ": belongs to another model", []string{"-m", changed, "--session", path}},
		{1, path + ": belongs to another model", []string{"-m", passkey, "--session", path}}, // not rounded to F16
		{1, damaged + ": is damaged or cut off", []string{"-m", m, "--session", damaged}},
		{1, newer + ": has version 2", []string{"-m", m, "--session", newer}},
		{1, "is no session file", []string{"-m", m, "--session", "fparun_test.go", "-p", "x"}},
		{2, "destroy", []string{"-m", m, "--session", m, "-p", "x"}},
		{2, "destroy", []string{"-m", m, "--session", path, "-f", path}},
		{1, "no such file", []string{"-m", m, "--session", filepath.Join(dir, "none", "s"), "-p", "x"}},
		{1, "regular", []string{"-m", m, "--session", dir + "/", "-p", "x"}},
		{1, "regular", []string{"-m", m, "--session", dir, "-p", "x"}},
		{1, "no such file", []string{"-m", m, "--session", filepath.Join(dir, "none"), "--session-ro", "-p", "x"}},
		{2, "no prompt", []string{"-m", m, "--session", filepath.Join(dir, "none")}},
		{2, "no file", []string{"-m", m, "--session", "", "-p", "x"}},
		{2, "--session alone", []string{"-m", m, "--session-ro", "-p", "x"}},
		{2, "audited", []string{"-m", m, "--session", path, "--cache-audit"}},
		{2, "--cache: the session " + path + " was made with bounded", []string{"-m", m, "--session", path, "--cache", "exact"}},
		{2, "made with 0.001", []string{"-m", m, "--session", path, "--cache-eps", "0.002"}},
		{2, "made with f16", []string{"-m", m, "--session", path, "--cache-type", "f32"}},
		{2, "--activations: the session " + path + " was made with f32", []string{"-m", m, "--session", path, "--activations", "int8"}},
		{2, "--activations: the session " + int8 + " was made with int8", []string{"-m", m, "--session", int8, "--activations", "f32"}},
		{2, "--activations int8 is of use with --backend cpu", []string{"-m", m, "--session", int8, "--backend", "go"}},
		{2, "--cache-keep", []string{"-m", m, "--session", path, "--cache-keep", "0.5"}},
		{2, "made with 0.5", []string{"-m", m, "--session", budget, "--cache-keep", "0.6"}},
		{2, "neither a share", []string{"-m", m, "--session", budget, "--cache-keep", "x"}},
		{2, "not begun with --chat", []string{"-m", m, "--session", path, "--chat", "-p", "x"}},
		{2, "--chat alone", []string{"-m", m, "--session", path, "--system", "x", "-p", "x"}},
	} {
		mustFail(t, c.code, c.says, c.args...)
	}
	if !bytes.Equal(readFile(t, path), before) {
		t.Error("the session has changed")
	}
	if _, err := os.Stat(filepath.Join(dir, "none")); err == nil {
		t.Error("a session was made by a command that failed")
	}
	// The same settings, however they are written, are no contradiction.
	mustRun(t, "-m", m, "--session", path, "-n", "1", "--cache", "bounded", "--cache-eps", "1e-3", "--cache-type", "F16")
	mustRun(t, "-m", m, "--session", budget, "-n", "1", "--cache-keep", "50%")
}

// chatModel is the passkey model with a chat template.
func chatModel(t *testing.T, template string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} {
		data := readFile(t, filepath.Join(passkey, name))
		if name == "tokenizer_config.json" {
			quoted, err := json.Marshal(template)
			if err != nil {
				t.Fatal(err)
			}
			data = []byte(strings.Replace(string(data), "{", `{"chat_template": `+string(quoted)+",", 1))
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const testTemplate = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"

// TestSessionChat leads a conversation over several runs. Each feeds what is new
// alone, and what the session holds is what the template makes of the messages.
func TestSessionChat(t *testing.T) {
	m, path := chatModel(t, testTemplate), filepath.Join(t.TempDir(), "chat")
	f, err := model.Open(m, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	var messages []session.Message
	// turn runs a command and holds the file against the messages.
	turn := func(fed int, args ...string) {
		t.Helper()
		all := slices.Concat([]string{"-m", m, "--session", path, "--json", "--temp", "0"}, args)
		var r struct {
			Text         string
			Reason       string
			PromptTokens int `json:"prompt_tokens"`
			Session      struct {
				Restored int `json:"restored_tokens"`
			}
		}
		stdout, _ := mustRun(t, all...)
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatal(err)
		}
		if fed >= 0 && r.Session.Restored != fed {
			t.Errorf("%d tokens restored, expected %d", r.Session.Restored, fed)
		}
		if n := len(messages); n > 0 && messages[n-1].Role == "assistant" {
			messages[n-1].Content += r.Text
		} else {
			messages = append(messages, session.Message{Role: "assistant", Content: r.Text})
		}
		s, err := session.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if !slices.Equal(s.Messages, messages) {
			t.Errorf("the file holds the messages %q, expected %q", s.Messages, messages)
		}
		text, err := renderChat(f, tok, messages)
		if err != nil {
			t.Fatal(err)
		}
		// The end of the answer, or the template's where it was cut, and "[assistant] ".
		held, err := tok.Decode(s.IDs, false)
		if err != nil || !strings.HasPrefix(text, held) {
			t.Errorf("%v: the session holds %q, the template makes %q of it", err, held, text)
		}
		if reply, err := tok.Decode(s.IDs[s.Reply:], true); err != nil || reply != messages[len(messages)-1].Content {
			t.Errorf("%v: the answer's tokens are %q", err, reply)
		}
	}
	say := func(text string) []string {
		messages = append(messages, session.Message{Role: "user", Content: text})
		return []string{"-p", text}
	}
	fed := func() int {
		_, n := sessionTokens(t, path)
		return n
	}
	messages = []session.Message{{Role: "system", Content: "Be brief."}}
	turn(0, append(say("The red key is 123. What is the red key?"), "--chat", "--system", "Be brief.", "-n", "40")...)
	turn(fed(), append(say("The tall sailor worked."), "-n", "4", "--ignore-eos")...) // cut off
	turn(fed(), "-n", "3", "--ignore-eos")                                            // and on
	turn(fed(), append(say("Caffè 🎉, <|end|> or not?"), "-n", "0", "--system", "Be brief.")...)
	turn(fed(), "-n", "6", "--ignore-eos")
	turn(fed(), append(say(""), "-n", "5", "--chat")...)

	mustFail(t, 2, "begun without this system message", "-m", m, "--session", path, "-p", "x", "--system", "Be long.")
	// On without the template: plain text follows, and the messages are over.
	ids, _ := sessionTokens(t, path)
	mustRun(t, "-m", m, "--session", path, "--chat=false", "-p", " and", "-n", "1")
	if s, err := session.Open(path); err != nil || len(s.Messages) > 0 || !slices.Equal(s.IDs[:len(ids)], ids) {
		t.Errorf("%v: %v", err, s)
	} else {
		s.Close()
	}
}

// TestSessionChatEnds is for answers that are complete, and for templates that
// write what was said in another way later.
func TestSessionChatEnds(t *testing.T) {
	// The model ends its answer to this prompt at once.
	prompt := strings.TrimSpace(string(readFile(t, filepath.Join(passkey, "prompt-1x.txt"))))
	raw := "{{ bos_token }}{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
	m, path := chatModel(t, raw), filepath.Join(t.TempDir(), "chat")
	answer, _ := mustRun(t, "-m", m, "--session", path, "--chat", "-p", prompt)
	if want := answers(t)["prompt-1x.txt"] + "\n"; answer != want {
		t.Fatalf("the answer is %q, expected %q", answer, want)
	}
	before := readFile(t, path)
	mustFail(t, 2, "complete", "-m", m, "--session", path)
	ids, fed := sessionTokens(t, path)
	mustRun(t, "-m", m, "--session", path, "-p", " What is the red key? The red key is", "-n", "1", "--session-ro")
	mustRun(t, "-m", m, "--session", path, "-p", " What is the red key? The red key is", "-n", "1")
	now, _ := sessionTokens(t, path)
	if fed != len(ids)-1 || ids[fed] != 1 || !slices.Equal(now[:len(ids)], ids) || now[len(ids)] == 1 {
		t.Errorf("%v of which %d are fed became %v, expected the end token once", ids, fed, now)
	}

	for name, template := range map[string]string{
		"leaves earlier answers out": strings.Replace(raw, "{{ m.content }}", "{% if m.role != 'assistant' %}{{ m.content }}{% endif %}", 1),
		"begins otherwise":           strings.Replace(raw, "{{ bos_token }}", "{{ bos_token }}{{ messages | length }}", 1),
		"cuts earlier messages":      strings.Replace(raw, "m.content", "m.content[:20]", 1),
	} {
		if err := os.WriteFile(path, before, 0o600); err != nil {
			t.Fatal(err)
		}
		other := chatModel(t, template)
		_, _, code, err := command("", "-m", other, "--session", path, "-p", "More")
		if err == nil || code != 1 || !strings.Contains(err.Error(), path+": the chat template does not repeat") {
			t.Errorf("%s: %v, exit code %d", name, err, code)
		}
		if !bytes.Equal(readFile(t, path), before) {
			t.Errorf("%s: the session has changed", name)
		}
	}
	mustFail(t, 1, "no chat template", "-m", passkey, "--session", filepath.Join(t.TempDir(), "s"), "--chat", "-p", "x")
}

// TestContinuation is for texts that a model wrote in other tokens than the
// tokenizer would.
func TestContinuation(t *testing.T) {
	f, err := model.Open(passkey, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	encode := func(text string) []int32 {
		ids, err := tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true})
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	odd := slices.Concat(encode("The"), encode(" sai"), encode("lor")) // one token where it is encoded whole
	if slices.Equal(odd, encode("The sailor")) {
		t.Fatal("the tokens are those of the tokenizer")
	}
	for _, c := range []struct {
		held []int32
		text string
		want []int32
	}{
		{nil, "The sailor", encode("The sailor")},
		{encode("The sailor"), "The sailor<|end|> worked", encode("<|end|> worked")},
		{odd, "The sailor<|end|> worked", encode("<|end|> worked")},
		{odd, "The sailor", nil},
	} {
		if got, err := continuation(tok, c.held, c.text); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%v in %q: %v, %v, expected %v", c.held, c.text, got, err, c.want)
		}
	}
	for _, text := range []string{"The bridge", "The sai", ""} {
		if got, err := continuation(tok, odd, text); err == nil {
			t.Errorf("%q goes on with %v", text, got)
		}
	}
}
