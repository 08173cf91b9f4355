package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/format/atomicfile"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/generate"
	"github.com/firstpassage/fpa/runtime/sample"
	"github.com/firstpassage/fpa/runtime/session"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// sessionFlags are the flags of a generation that is kept in a file.
type sessionFlags struct {
	file     string
	readOnly bool
}

func (f *sessionFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.file, "session", "", "keep the session in this `file`: go on from it where it exists, and save it at\nthe end; the prompt follows what it holds, and may be left out")
	fl.BoolVar(&f.readOnly, "session-ro", false, "with --session: do not save it")
}

// keeper keeps the session of a generation in a file.
type keeper struct {
	path     string
	readOnly bool
	old      *session.File // nil: the session is new
	meta     session.Meta
	known    []int32 // tokens of the file that the session has taken in
	pending  []int32 // those that come before the prompt
	report   sessionReport
}

// engineName names the engine whose state a session holds. That of every --backend
// reads and writes this one's.
const engineName = "cpu"

// sessionReport is what --stats and --json say about a session.
type sessionReport struct {
	File     string `json:"file"`
	Restored int    `json:"restored_tokens"`
	Hash     int64  `json:"model_hash_ns"`
	Restore  int64  `json:"restore_ns"`
	Saved    int    `json:"saved_tokens"` // 0: it was not saved
	Save     int64  `json:"save_ns"`
	Bytes    int64  `json:"saved_bytes"`
}

// newKeeper opens the session that the flags name, and takes from it what they
// leave open; nil when they name none. It finds what would keep the session from
// being saved before anything is computed.
func newKeeper(c *cobra.Command, f *generateFlags) (*keeper, error) {
	path := f.session.file
	switch {
	case path == "" && c.Flags().Changed("session"):
		return nil, cli.Usage("--session names no file")
	case path == "" && f.session.readOnly:
		return nil, cli.Usage("--session-ro is of use with --session alone")
	case path == "":
		return nil, nil
	case f.audit:
		return nil, cli.Usage("--session: an audited cache cannot be saved; leave --cache-audit out")
	}
	if err := cli.NotOneOf(path, "--session", f.model, f.text.file); err != nil {
		return nil, err
	}
	k := &keeper{path: path, readOnly: f.session.readOnly}
	k.report.File = path
	old, err := session.Open(path)
	if errors.Is(err, fs.ErrNotExist) && !k.readOnly {
		return k, k.mayWrite()
	}
	if err != nil {
		return nil, err
	}
	k.old, k.meta = old, old.Meta
	k.known, k.pending = old.IDs[:old.Fed], old.IDs[old.Fed:]
	if !k.readOnly {
		err = k.mayWrite()
	}
	if err == nil {
		err = k.adopt(c, f)
	}
	if err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

func (k *keeper) close() {
	if k != nil && k.old != nil {
		k.old.Close()
	}
}

// mayWrite says whether the file can be written.
func (k *keeper) mayWrite() error {
	f, err := atomicfile.CreateAtomic(k.path, true)
	if err != nil {
		return err
	}
	f.Abort()
	return nil
}

// adopt takes the settings of the cache, the activations, and whether this is a chat, from the
// session where the command line gives none, and refuses others.
func (k *keeper) adopt(c *cobra.Command, f *generateFlags) error {
	given := c.Flags().Changed
	p := k.meta.Cache
	differs := func(flag, has string) error {
		return cli.Usage("--%s: the session %s was made with %s, which cannot be changed; leave --%s out, or start another session", flag, k.path, has, flag)
	}
	if !given("cache-type") {
		f.typ = k.meta.CacheType
	} else if !strings.EqualFold(f.typ, k.meta.CacheType) {
		return differs("cache-type", k.meta.CacheType)
	}
	if has := cmp.Or(k.meta.Activations, activationsF32); !given("activations") {
		f.activations = has
	} else if f.activations != has {
		return differs("activations", has)
	}
	if !given("cache") {
		f.mode = string(p.Mode)
	} else if f.mode != string(p.Mode) {
		return differs("cache", string(p.Mode))
	}
	if p.Mode == cache.Bounded || p.Mode == cache.Measured {
		if !given("cache-eps") {
			f.eps = p.Eps
		} else if f.eps != p.Eps {
			return differs("cache-eps", strconv.FormatFloat(p.Eps, 'g', -1, 64))
		}
	}
	if p.Mode == cache.Budget {
		if !given("cache-keep") {
			f.keep = keepText(p)
		} else if keep, err := parseKeep(f.keep); err == nil && keep != p.Policy().Keep {
			return differs("cache-keep", keepText(p))
		}
	}
	chat := len(k.meta.Messages) > 0
	switch {
	case !given("chat"):
		f.chat = chat
	case f.chat && !chat:
		return cli.Usage("--chat: the session %s was not begun with --chat; leave it out, or start another session", k.path)
	}
	if f.system != "" && f.chat && (k.meta.Messages[0].Role != "system" || k.meta.Messages[0].Content != f.system) {
		return cli.Usage("--system: the session %s has begun without this system message; leave --system out, or start another session", k.path)
	}
	return nil
}

// keepText is a size as parseKeep reads it.
func keepText(p session.Policy) string {
	switch {
	case p.Bytes > 0:
		return strconv.FormatInt(p.Bytes, 10)
	case p.Share == 1:
		return "100%"
	}
	return strconv.FormatFloat(p.Share, 'g', -1, 64)
}

// restore gives r the session of the file, and notes the identity of the model.
func (k *keeper) restore(f *generateFlags, r *running) error {
	start := time.Now()
	id, err := r.file.Identity()
	if err != nil {
		return err
	}
	k.report.Hash = int64(time.Since(start))
	if k.old == nil {
		policy, err := f.policy()
		if err != nil {
			return err
		}
		k.meta = session.Meta{Model: id, Engine: engineName, CacheType: strings.ToLower(f.typ), Cache: session.PolicyOf(policy)}
		if f.activations != activationsF32 {
			k.meta.Activations = f.activations
		}
		return nil
	}
	start = time.Now()
	s, err := k.old.Restore(r.engine, engineName, id, r.model.VocabSize)
	k.close() // Windows does not replace an open file
	if err != nil {
		return err
	}
	r.session = s
	k.report.Restored, k.report.Restore = len(k.known), int64(time.Since(start))
	return nil
}

// prompt is the tokens to feed: those that wait, and the new text.
func (k *keeper) prompt(f *generateFlags, r *running, t *tokenizer.Tokenizer, text string, given bool) ([]int32, error) {
	ended := len(k.pending) > 0 && slices.Contains(r.file.EndTokens(), k.pending[len(k.pending)-1])
	switch {
	case !f.chat:
		k.meta.Messages, k.meta.Reply = nil, 0
		ids, err := t.Encode(text, tokenizer.EncodeOptions{AddSpecial: k.old == nil, ParseSpecial: true})
		if err != nil {
			return nil, err
		}
		return slices.Concat(k.pending, ids), nil
	case given:
		return k.chat(f, r, t, text, ended)
	case ended:
		return nil, cli.Usage("the answer that the session %s holds is complete; give the next message with --prompt or --file", k.path)
	}
	return k.pending, nil
}

// chat adds a message of the user and renders the conversation. What the session
// holds must be its beginning; the tokens of the rest are returned.
func (k *keeper) chat(f *generateFlags, r *running, t *tokenizer.Tokenizer, text string, ended bool) ([]int32, error) {
	system := f.system
	if k.old != nil {
		system = "" // it is there
	}
	k.meta.Messages = append(k.meta.Messages, chatMessages(system, text)...)
	rendered, err := renderChat(r.file, t, k.meta.Messages)
	if err != nil {
		return nil, err
	}
	if ended { // the template writes the end of an answer itself, and perhaps another one
		k.pending = k.pending[:len(k.pending)-1]
	}
	held := slices.Concat(k.known, k.pending)
	rest, err := continuation(t, held, rendered)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k.path, err)
	}
	k.meta.Messages = append(k.meta.Messages, session.Message{Role: "assistant"})
	k.meta.Reply = len(held) + len(rest)
	return slices.Concat(k.pending, rest), nil
}

// continuation is the tokens of a text that come after held, its beginning.
func continuation(t *tokenizer.Tokenizer, held []int32, text string) ([]int32, error) {
	encode := func(text string) ([]int32, error) {
		return t.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true})
	}
	ids, err := encode(text)
	if err != nil {
		return nil, err
	}
	if len(ids) >= len(held) && slices.Equal(ids[:len(held)], held) {
		return ids[len(held):], nil
	}
	// A model may write a text in other tokens than the tokenizer would.
	begin, err := t.Decode(held, false)
	if err != nil {
		return nil, err
	}
	if rest, ok := strings.CutPrefix(text, begin); ok {
		return encode(rest)
	}
	same := 0
	for same < min(len(ids), len(held)) && ids[same] == held[same] {
		same++
	}
	return nil, fmt.Errorf("the chat template does not repeat the conversation as the session holds it: it differs from token %d of %d on. "+
		"Some templates rewrite earlier messages, such as by leaving thoughts out; start another session, or go on without the template by --chat=false", same, len(held))
}

// accept shows the sampler the tokens that the session has taken in.
func (k *keeper) accept(s *sample.Sampler) {
	for _, id := range k.known[max(0, len(k.known)-sample.PenaltyWindow):] {
		s.Accept(id)
	}
}

// save writes the session after a generation from prompt.
func (k *keeper) save(r *running, t *tokenizer.Tokenizer, prompt []int32, res generate.Result) error {
	if k.readOnly {
		return nil
	}
	start := time.Now()
	ids := slices.Concat(k.known, prompt, res.Tokens)
	m := k.meta
	m.Program = cli.Version()
	m.Fed = len(ids) - len(res.Pending)
	if n := len(m.Messages); n > 0 {
		reply := ids[m.Reply:]
		if res.Reason == generate.ByEnd {
			reply = reply[:len(reply)-1]
		}
		content, err := t.Decode(reply, false)
		if err != nil {
			return err
		}
		m.Messages[n-1].Content = content
	}
	err := cli.Finish(func() (err error) {
		k.report.Bytes, err = session.Write(k.path, m, ids, r.session)
		return err
	})
	if err != nil {
		return fmt.Errorf("the session was not saved: %w", err)
	}
	k.report.Saved, k.report.Save = len(ids), int64(time.Since(start))
	return nil
}

// print is for --stats.
func (s *sessionReport) print(w io.Writer) {
	ms := func(ns int64) string { return fmt.Sprintf("%.1f ms", float64(ns)/1e6) }
	fmt.Fprintf(w, "session: %d tokens restored in %s", s.Restored, ms(s.Restore))
	if s.Saved > 0 {
		fmt.Fprintf(w, ", %d saved in %s (%s)", s.Saved, ms(s.Save), cli.Bytes(s.Bytes))
	}
	fmt.Fprintf(w, "; model hashed in %s\n", ms(s.Hash))
}
