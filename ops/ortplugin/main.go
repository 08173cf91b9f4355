// Command ortplugin is the operator FirstPassageAttention as a library of custom
// operators for ONNX Runtime 1.17 and later, on the CPU:
//
//	go build -buildmode=c-shared -o libfpa_ort.so ./ops/ortplugin
//
// ONNX Runtime loads it by the function RegisterCustomOps, in Python with
// SessionOptions.register_custom_ops_library. From then on nodes
// ai.firstpassage::FirstPassageAttention of float32 and float16 run on the kernels of
// ops/kernels, also where the model carries the operator as a function of its own.
// docs/onnx-plugin.md says how to build and to load it, and what the attributes mean.
//
// The plumbing is in C (plugin.c), with its own declarations of the few functions of
// ONNX Runtime that it uses (ort.h): Go is called for a node's attributes and for each
// piece of work, and calls nothing back. Work is spread by ONNX Runtime's own loop over
// its own threads; no goroutine is started, and once working memory has grown to the
// sizes in use nothing is allocated.
//
// Inputs are checked before anything is read. What does not fit is an ONNX Runtime
// status, as is a panic of this code.
package main

import (
	"fmt"
	"os"
)

// main is what a build without -buildmode=c-shared runs.
func main() {
	fmt.Fprintln(os.Stderr, "ortplugin is a library, build it with cgo: go build -buildmode=c-shared -o libfpa_ort.so ./ops/ortplugin")
	os.Exit(2)
}
