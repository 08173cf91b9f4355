// Command fparun runs model files.
package main

import (
	"fmt"
	"os"

	"github.com/firstpassage/fpa/cmd/internal/cli"
)

func main() {
	if err := checkSingleDash(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "fparun: %s\n", err)
		os.Exit(cli.ExitCode(err))
	}
	os.Exit(cli.Run(newRoot()))
}
