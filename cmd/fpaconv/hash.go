package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/format/hf"
	"github.com/firstpassage/fpa/format/onnx"
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
	kind, file, err := model.KindOf(path)
	if err != nil {
		return nil, nil, nil, err
	}
	switch kind {
	case model.KindGGUF:
		f, err := gguf.Open(path)
		if err != nil {
			return nil, nil, nil, err
		}
		for _, t := range f.Tensors() {
			tensors = append(tensors, safetensors.Tensor{Name: t.Name, Data: f.Data(t)})
		}
		return f.Paths(), tensors, f.Close, nil
	case model.KindONNX:
		f, err := onnx.Open(file, format.Limits{})
		if err != nil {
			return nil, nil, nil, err
		}
		if tensors, err = onnxTensors(f); err != nil {
			f.Close()
			return nil, nil, nil, err
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

// onnxTensors are the weights of an ONNX model that fpaconv wrote, in the order of a
// GGUF file, or all initializers of another one.
func onnxTensors(f *onnx.File) (tensors []safetensors.Tensor, err error) {
	if parts, err := model.FromONNX(f.Model); err == nil {
		for _, t := range parts.Tensors {
			tensors = append(tensors, safetensors.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Data: t.Data, Offset: -1})
		}
		return tensors, nil
	}
	for _, t := range f.Model.Graph.Initializers {
		if t.Type == onnx.String {
			continue // has no bytes to speak of
		}
		data, err := t.Data()
		if err != nil {
			return nil, err
		}
		dtype, _ := t.Type.Quant()
		tensors = append(tensors, safetensors.Tensor{Name: t.Name, DType: dtype, Shape: t.Dims, Data: data, Offset: -1})
	}
	return tensors, nil
}
