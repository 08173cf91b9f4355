// Package cli is what the two commands share: how they start, fail and report.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/format/atomicfile"
)

// Exit codes.
const (
	exitFailed       = 1
	exitUsage        = 2
	exitVerification = 3
	exitInterrupted  = 130 // as shells report a process that Ctrl-C ended
)

// UsageError is a mistake in the command line.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Usage makes a UsageError.
func Usage(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }

// VerificationError makes the process end with the exit code for models that
// do not agree.
type VerificationError struct{ Err error }

func (e *VerificationError) Error() string { return e.Err.Error() }
func (e *VerificationError) Unwrap() error { return e.Err }

// Run runs a command with the process's arguments and returns the exit code.
// Ctrl-C and SIGTERM cancel the command's context, so that it can end cleanly;
// a second one ends the process.
func Run(root *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, func() {
		stop() // a second signal ends the process at once
		time.Sleep(patience)
		finishing.Lock()
		// The command is somewhere that does not look, such as reading a pipe.
		atomicfile.RemoveAll()
		fmt.Fprintf(os.Stderr, "%s: interrupted\n", root.Name())
		os.Exit(exitInterrupted)
	})
	err := Prepare(root).ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", root.Name(), message(err))
	return ExitCode(err)
}

// patience is how long an interrupted command may take to end by itself: some
// pieces of a large tensor, or a chunk of a prompt.
const patience = 5 * time.Second

// finishing is held, for reading, by what an interrupt must not cut off.
var finishing sync.RWMutex

// Finish runs f, which an interrupted command does before it ends, such as saving
// its work. It may take longer than an interrupt has patience; a second signal ends
// it all the same.
func Finish(f func() error) error {
	finishing.RLock()
	defer finishing.RUnlock()
	return f()
}

// Prepare sets what every command has in common, for itself and all its verbs.
func Prepare(root *cobra.Command) *cobra.Command {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.Version = Version()
	root.Flags().Bool("version", false, "print the version") // without cobra's -v, which means verbose elsewhere
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return Usage("%w; see %s --help", err, c.CommandPath())
	})
	wrapArgs(root)
	return root
}

// wrapArgs makes a usage error of what a command says of its arguments, for it
// and all verbs below it.
func wrapArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return Usage("%w; see %s --help", err, c.CommandPath())
			}
			return nil
		}
	}
	for _, verb := range c.Commands() {
		wrapArgs(verb)
	}
}

// Clean is a text of a file with its control characters written out, so that it
// cannot steer the terminal it is printed on.
func Clean(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case unicode.IsControl(r):
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// NotOneOf refuses to write to a file that is being read or written already. Names
// that are empty or of no file do not count.
func NotOneOf(output, flag string, others ...string) error {
	info, err := os.Stat(output)
	for _, name := range others {
		if name == "" {
			continue
		}
		other, otherErr := os.Stat(name)
		if filepath.Clean(name) == filepath.Clean(output) || err == nil && otherErr == nil && os.SameFile(info, other) {
			return Usage("%s %s is also the file %s, which it would destroy", flag, output, name)
		}
	}
	return nil
}

// ExitCode is the exit code for an error.
func ExitCode(err error) int {
	var usage *UsageError
	var verification *VerificationError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &verification):
		return exitVerification
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	return exitFailed
}

// message is the error in one line.
func message(err error) string {
	if errors.Is(err, context.Canceled) {
		return "interrupted"
	}
	return Clean(strings.ReplaceAll(err.Error(), "\n", "; "))
}

// Version is the module version that the binary was built from.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
