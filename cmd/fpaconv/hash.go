package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/format/hf"
	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/runtime/model"
)

func newHash() *cobra.Command {
	var tensors bool
	c := &cobra.Command{
		Use:   "hash FILE",
		Short: "Print the SHA-256 of a model file, or of each tensor",
		Long: `hash prints the SHA-256 of each file that holds the weights of a model, in the form of
sha256sum. With --tensors it prints the SHA-256 of each tensor's bytes, which stays
the same when metadata change or the file is written anew.`,
		Example: "  fpaconv hash passkey.gguf --tensors",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return runHash(args[0], tensors, c.OutOrStdout())
		},
	}
	c.Flags().BoolVar(&tensors, "tensors", false, "hash each tensor")
	return c
}

func runHash(path string, tensors bool, w io.Writer) error {
	files, views, closeFile, err := openTensors(path)
	if err != nil {
		return err
	}
	defer closeFile()
	if tensors {
		for _, t := range views {
			if _, err := fmt.Fprintf(w, "%x  %s\n", sha256.Sum256(t.Data), cli.Clean(t.Name)); err != nil {
				return err
			}
		}
		return nil
	}
	for _, name := range files {
		if err := hashFile(name, w); err != nil {
			return err
		}
	}
	return nil
}

func hashFile(path string, w io.Writer) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%x  %s\n", h.Sum(nil), path)
	return err
}

// openTensors opens a file or checkpoint of any architecture.
func openTensors(path string) (files []string, tensors []safetensors.Tensor, closeFile func() error, err error) {
	isGGUF, err := model.IsGGUF(path)
	if err != nil {
		return nil, nil, nil, err
	}
	if isGGUF {
		f, err := gguf.Open(path)
		if err != nil {
			return nil, nil, nil, err
		}
		for _, t := range f.Tensors() {
			tensors = append(tensors, safetensors.Tensor{Name: t.Name, Data: f.Data(t)})
		}
		return f.Paths(), tensors, f.Close, nil
	}
	c, err := hf.Open(path, hf.Options{NoConfig: true})
	if err == nil {
		return c.Files(), c.Tensors(), c.Close, nil
	}
	f, fileErr := safetensors.Open(path)
	if fileErr != nil {
		return nil, nil, nil, err
	}
	return []string{path}, f.Tensors(), f.Close, nil
}
