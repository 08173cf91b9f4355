//go:build unix

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// TestFinish interrupts a process whose work is saved for longer than an interrupt
// has patience: it is saved all the same. What is not in Finish is cut off.
func TestFinish(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for longer than an interrupt's patience, 5 s")
	}
	const child = "FPA_TEST_CLI_CHILD"
	if path := os.Getenv(child); path != "" {
		os.Args = os.Args[:1]
		os.Exit(Run(&cobra.Command{RunE: func(c *cobra.Command, _ []string) error {
			fmt.Println("ready")
			<-c.Context().Done()
			err := Finish(func() error {
				time.Sleep(patience + 500*time.Millisecond)
				return os.WriteFile(path, []byte("saved"), 0o666)
			})
			if err != nil {
				return err
			}
			time.Sleep(time.Minute)
			return context.Canceled
		}}))
	}
	path := filepath.Join(t.TempDir(), "work")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe, "-test.run=^TestFinish$")
	c.Env = append(os.Environ(), child+"="+path)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var ready [6]byte
	if _, err := out.Read(ready[:]); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := c.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitInterrupted {
		t.Errorf("%v, expected exit code %d", err, exitInterrupted)
	}
	if took := time.Since(start); took > 40*time.Second {
		t.Errorf("the process ended after %s, expected to be cut off", took)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "saved" {
		t.Errorf("%v: the file holds %q", err, data)
	}
}
