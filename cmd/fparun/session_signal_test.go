//go:build unix

package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/cmd/internal/cli"
)

// childArgs are the arguments, a line each, of a test process that is fparun.
const childArgs = "FPA_TEST_FPARUN_CHILD"

// TestSessionSignal presses Ctrl-C, as a terminal does, while fparun generates
// without end: it saves the session and leaves with the exit code for that. The
// text goes on from there.
func TestSessionSignal(t *testing.T) {
	if args := os.Getenv(childArgs); args != "" {
		os.Args = append([]string{"fparun"}, strings.Split(args, "\n")...)
		os.Exit(cli.Run(newRoot()))
	}
	m, dir := gguf(t), t.TempDir()
	args := func(name string, more ...string) []string {
		common := []string{"-m", m, "--temp", "0", "--repeat-penalty", "1.2", "--ignore-eos", "--session", filepath.Join(dir, name)}
		return slices.Concat(common, more)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(exe, "-test.run=^TestSessionSignal$")
	child.Env = append(os.Environ(), childArgs+"="+strings.Join(args("cut", "-p", "The old bridge", "-n", "-1"), "\n"))
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	begin := make([]byte, 200)
	if _, err := io.ReadFull(out, begin); err != nil {
		t.Fatal(err)
	}
	if err := child.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := child.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Fatalf("%v, expected the exit code 130", err)
	}
	text := strings.TrimSuffix(string(begin)+string(rest), "\n")
	ids, fed := sessionTokens(t, filepath.Join(dir, "cut"))
	if fed != len(ids)-1 {
		t.Errorf("%d of %d tokens are fed", fed, len(ids))
	}
	next, _ := mustRun(t, args("cut", "-n", "20")...)

	mustRun(t, args("whole", "-p", "The old bridge", "-n", "0")...)
	prompt, _ := sessionTokens(t, filepath.Join(dir, "whole"))
	whole, _ := mustRun(t, args("whole", "-n", strconv.Itoa(len(ids)-len(prompt)+20))...)
	if text+next != whole {
		t.Errorf("interrupted %q and then %q, in one run %q", text, next, whole)
	}
}
