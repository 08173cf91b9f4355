package session_test

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/session"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// childFile names the session file to a test process that saves until it is killed.
const childFile = "FPA_TEST_SESSION_CHILD"

const killTokens = 600 // more than any child gets through

// TestKill kills a process that saves over and over, 40 times at random moments.
// The next process goes on from the file. The file is whole every time, holds at
// least what was reported as saved, and goes on to the very logits of a process
// that was never killed.
func TestKill(t *testing.T) {
	if path := os.Getenv(childFile); path != "" {
		saveForEver(t, path)
		return
	}
	e, c := newEngine(t)
	p := cache.Policy{Mode: cache.Exact}
	ids := modeltest.Tokens(killTokens, c.VocabSize, 8)
	fresh, err := e.NewSession(quant.F16, p)
	if err != nil {
		t.Fatal(err)
	}
	want := feed(t, fresh, ids, 1)

	dir := t.TempDir()
	path := filepath.Join(dir, "session")
	rng := rand.New(rand.NewPCG(1, 2))
	held, during := 0, 0
	for range 40 {
		reported := killChild(t, path, time.Duration(rng.IntN(20_000))*time.Microsecond)
		f, err := session.Open(path)
		if errors.Is(err, fs.ErrNotExist) && reported == 0 && held == 0 {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		s, err := f.Restore(e, "cpu", identity, c.VocabSize)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		n := s.Len()
		if n < held || n < reported || !slices.Equal(f.IDs, ids[:n]) {
			t.Fatalf("the file holds %d tokens, it held %d and %d were reported as saved", n, held, reported)
		}
		held = n
		if n == killTokens {
			break
		}
		v := c.VocabSize
		if got := feed(t, s, ids[n:n+1], 1); !slices.Equal(got, want[n*v:(n+1)*v]) {
			t.Fatalf("after %d tokens the logits differ", n)
		}
		// A killed process leaves its temporary file behind, which tells where it was.
		temps, err := filepath.Glob(filepath.Join(dir, ".session.tmp-*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, temp := range temps {
			during++
			if err := os.Remove(temp); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("40 kills, %d while a file was being written; %d tokens saved", during, held)
	if held == 0 || during == 0 {
		t.Errorf("%d tokens were saved and %d kills came while a file was being written, expected some", held, during)
	}
}

// killChild starts a child, kills it some time after it has begun to save, and
// returns the number of tokens it reported as saved last.
func killChild(t *testing.T, path string, after time.Duration) (reported int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(exe, "-test.run=^TestKill$")
	child.Env = append(os.Environ(), childFile+"="+path)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	begun := false
	for lines.Scan() {
		if !begun {
			begun = true
			time.AfterFunc(after, func() { child.Process.Kill() })
		}
		fmt.Sscanf(lines.Text(), "saved %d", &reported)
	}
	if err := child.Wait(); err == nil {
		t.Fatal("the child ended by itself")
	}
	if !begun {
		t.Fatal("the child did not begin")
	}
	return reported
}

// saveForEver feeds a token and saves, until it is killed.
func saveForEver(t *testing.T, path string) {
	e, c := newEngine(t)
	p := cache.Policy{Mode: cache.Exact}
	ids := modeltest.Tokens(killTokens, c.VocabSize, 8)
	s, err := engine.Session(nil), error(nil)
	switch f, openErr := session.Open(path); {
	case openErr == nil:
		s, err = f.Restore(e, "cpu", identity, c.VocabSize)
		f.Close()
	case errors.Is(openErr, fs.ErrNotExist):
		s, err = e.NewSession(quant.F16, p)
	default:
		err = openErr
	}
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("begins")
	for s.Len() < killTokens {
		feed(t, s, ids[s.Len():s.Len()+1], 1)
		m := session.Meta{Model: identity, Engine: "cpu", CacheType: "f16", Cache: session.PolicyOf(p), Fed: s.Len()}
		if _, err := session.Write(path, m, ids[:s.Len()], s); err != nil {
			t.Fatal(err)
		}
		fmt.Printf("saved %d\n", s.Len())
	}
	time.Sleep(time.Minute)
}
