// Package cli is what the two commands share: how they start, fail and report.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
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
	context.AfterFunc(ctx, stop)
	err := Prepare(root).ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", root.Name(), message(err))
	return ExitCode(err)
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
	for _, c := range append(root.Commands(), root) {
		if check := c.Args; check != nil {
			c.Args = func(c *cobra.Command, args []string) error {
				if err := check(c, args); err != nil {
					return Usage("%w; see %s --help", err, c.CommandPath())
				}
				return nil
			}
		}
	}
	return root
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
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

// Version is the module version that the binary was built from.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
