// Package onnxgo runs ONNX models on gomlx: as functions of its own graphs,
// and as a backend of github.com/owulveryck/onnx-go.
//
// [Convert] makes a gomlx function of a model that package onnx of this module
// has read. It knows the usual operators of the standard (docs/onnx-go.md lists
// them), the control flow and functions of models, and FirstPassageAttention of
// domain ai.firstpassage, which becomes that of package graph: the body that
// models carry for other programs is not looked at.
//
//	f, err := onnx.Open("model.onnx", format.Limits{})
//	p, err := onnxgo.Convert(f.Model)
//	s, err := onnxgo.NewSession(backend, p) // nil: gomlx's pure-Go backend
//	out, err := s.Run(map[string]*tensors.Tensor{"x": x})
//
// [Program.Call] adds the model to a graph of one's own instead, where it can be
// differentiated and trained like any other.
//
// [New] makes the backend for onnx-go. Both do the same, with one exception:
// onnx-go's decoder loses parts of models, which [Decode] keeps.
//
// # Shapes
//
// gomlx's graphs have fixed shapes. A graph is built for each set of input
// shapes; whatever follows from shapes and constants (the sizes of reshapes,
// lengths of loops, conditions of branches) is computed while it is built, and
// loops are unrolled. A model whose shapes depend on the values of its inputs is
// refused when it is called. Values without elements, like the past of a decoder
// at its first call, are allowed everywhere.
//
// # Errors
//
// Models may come from anywhere. The functions that return errors panic on none:
// what gomlx and onnx-go say by a panic is recovered here and returned. Of
// gomlx's pure-Go backend that holds for its sequential mode, "go:ops_sequential",
// which a nil backend stands for; in its parallel mode an error in an operator,
// such as a division of integers by zero, ends the process.
package onnxgo
