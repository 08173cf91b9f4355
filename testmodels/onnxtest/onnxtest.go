// Package onnxtest runs ONNX models in other people's programs, for tests: ONNX
// Runtime and the standard's reference evaluator, both in Python.
package onnxtest

import (
	"bufio"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
)

//go:embed run.py
var script string

// Tensor is an input or output. Type is numpy's name of the element type:
// float32, float16, float64, int64, bool.
type Tensor struct {
	Name  string  `json:"name"`
	Type  string  `json:"type"`
	Shape []int64 `json:"shape"`
	Data  []byte  `json:"-"` // row-major, little-endian
	Bytes int     `json:"bytes"`
}

// Float32 is a tensor of float32.
func Float32(name string, v []float32, shape ...int64) Tensor {
	data := make([]byte, 0, 4*len(v))
	for _, x := range v {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
	}
	return Tensor{Name: name, Type: "float32", Shape: shape, Data: data}
}

// Int64 is a tensor of int64.
func Int64(name string, v []int64, shape ...int64) Tensor {
	data := make([]byte, 0, 8*len(v))
	for _, x := range v {
		data = binary.LittleEndian.AppendUint64(data, uint64(x))
	}
	return Tensor{Name: name, Type: "int64", Shape: shape, Data: data}
}

// Zeros is a tensor of zeros of a type of size bytes.
func Zeros(name, typ string, size int, shape ...int64) Tensor {
	for _, d := range shape {
		size *= int(d)
	}
	return Tensor{Name: name, Type: typ, Shape: shape, Data: make([]byte, size)}
}

// Floats are the elements of a float32 or float64 tensor.
func (x Tensor) Floats(t testing.TB) []float64 {
	t.Helper()
	var v []float64
	switch x.Type {
	case "float32":
		for i := 0; i < len(x.Data); i += 4 {
			v = append(v, float64(math.Float32frombits(binary.LittleEndian.Uint32(x.Data[i:]))))
		}
	case "float64":
		for i := 0; i < len(x.Data); i += 8 {
			v = append(v, math.Float64frombits(binary.LittleEndian.Uint64(x.Data[i:])))
		}
	default:
		t.Fatalf("%s has type %s, expected float32 or float64", x.Name, x.Type)
	}
	return v
}

// Engine names a program that runs models.
type Engine string

// The engines.
const (
	Runtime   Engine = "onnxruntime" // on the CPU, one thread
	Reference Engine = "reference"   // onnx.reference.ReferenceEvaluator; slow
)

// Python is a Python process with both engines.
type Python struct {
	in  *bufio.Writer
	out *bufio.Reader
}

// Start starts the process; sessions of ONNX Runtime register the libraries of custom
// operators named. Without Python, onnx or onnxruntime the test is skipped, or fails
// when FPA_REQUIRE_ORACLES is 1. With -short it is skipped: what ONNX Runtime computes
// depends on nothing that such a run varies.
func Start(t testing.TB, libraries ...string) *Python {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: models are not run in ONNX Runtime")
	}
	name := os.Getenv("FPA_PYTHON")
	if name == "" {
		name = "python3"
	}
	if out, err := exec.Command(name, "-c", "import numpy, onnx, onnxruntime").CombinedOutput(); err != nil {
		msg := fmt.Sprintf("%s cannot import onnx and onnxruntime (FPA_PYTHON names another Python): %v %s", name, err, out)
		if os.Getenv("FPA_REQUIRE_ORACLES") == "1" {
			t.Fatal(msg)
		}
		t.Skip(msg)
	}
	cmd := exec.Command(name, append([]string{"-c", script}, libraries...)...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return &Python{bufio.NewWriter(in), bufio.NewReaderSize(out, 1<<20)}
}

// request is a line of JSON, followed by the data of its tensors; answers are
// the same.
type message struct {
	Do      string   `json:"do,omitempty"`
	Path    string   `json:"path,omitempty"`
	Engine  Engine   `json:"engine,omitempty"`
	Session int      `json:"session"`
	Tensors []Tensor `json:"tensors"`
	Inputs  []Input  `json:"inputs,omitempty"`
	Error   string   `json:"error,omitempty"`
}

func (p *Python) ask(t testing.TB, m message) (message, error) {
	t.Helper()
	for i := range m.Tensors {
		m.Tensors[i].Bytes = len(m.Tensors[i].Data)
	}
	line, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	p.in.Write(append(line, '\n'))
	for _, x := range m.Tensors {
		p.in.Write(x.Data)
	}
	if err := p.in.Flush(); err != nil {
		t.Fatal(err)
	}
	if line, err = p.out.ReadBytes('\n'); err != nil {
		t.Fatalf("the Python process ended: %v", err)
	}
	var a message
	if err := json.Unmarshal(line, &a); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	for i := range a.Tensors {
		a.Tensors[i].Data = make([]byte, a.Tensors[i].Bytes)
		if _, err := io.ReadFull(p.out, a.Tensors[i].Data); err != nil {
			t.Fatal(err)
		}
	}
	if a.Error != "" {
		return a, fmt.Errorf("%s", strings.TrimSpace(a.Error))
	}
	return a, nil
}

// Check runs onnx.checker with full_check, which infers every type and shape.
func (p *Python) Check(t testing.TB, path string) {
	t.Helper()
	if _, err := p.ask(t, message{Do: "check", Path: path}); err != nil {
		t.Fatalf("onnx.checker: %s: %v", path, err)
	}
}

// Session is a model that was loaded.
type Session struct {
	p      *Python
	id     int
	Inputs []Input
}

// Input is an input that a model declares. A dimension is a number or, where
// it is known at run time only, a string.
type Input struct {
	Name string `json:"name"`
	Type string `json:"type"`
	Dims []any  `json:"dims"`
}

// Load loads a model; it is kept until the test ends.
func (p *Python) Load(t testing.TB, path string, e Engine) *Session {
	t.Helper()
	s, err := p.TryLoad(t, path, e)
	if err != nil {
		t.Fatalf("%s: %s: %v", e, path, err)
	}
	return s
}

// TryLoad is Load with the engine's error as an error.
func (p *Python) TryLoad(t testing.TB, path string, e Engine) (*Session, error) {
	t.Helper()
	a, err := p.ask(t, message{Do: "load", Path: path, Engine: e})
	if err != nil {
		return nil, err
	}
	return &Session{p, a.Session, a.Inputs}, nil
}

// Run runs the model and gives all outputs in order.
func (s *Session) Run(t testing.TB, inputs []Tensor) []Tensor {
	t.Helper()
	out, err := s.TryRun(t, inputs)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TryRun is Run with the engine's error as an error.
func (s *Session) TryRun(t testing.TB, inputs []Tensor) ([]Tensor, error) {
	t.Helper()
	a, err := s.p.ask(t, message{Do: "run", Session: s.id, Tensors: inputs})
	return a.Tensors, err
}
