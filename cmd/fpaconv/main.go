// Command fpaconv reads trained checkpoints and writes model files.
package main

import (
	"os"

	"github.com/firstpassage/fpa/cmd/internal/cli"
)

func main() { os.Exit(cli.Run(newRoot())) }
