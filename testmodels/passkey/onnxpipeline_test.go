package passkey_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/convert"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// example is the n-th block of code in a language in docs/onnx.md.
func example(t *testing.T, language string, n int) string {
	t.Helper()
	data, err := os.ReadFile("../../docs/onnx.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(data), "```"+language+"\n")
	if len(blocks) < n+2 {
		t.Fatalf("docs/onnx.md has %d blocks of %s, expected %d", len(blocks)-1, language, n+1)
	}
	code, _, _ := strings.Cut(blocks[n+1], "```")
	return code
}

// onnxFolder is this folder's model as a folder for pipelines.
func onnxFolder(t *testing.T, dir string, packed bool) {
	t.Helper()
	src, _ := open(t, ".")
	o := convert.ONNXOptions{Options: convert.Options{Output: dir, Type: quant.F16, Version: "test"}, Packed: packed}
	if _, err := convert.ToONNX(context.Background(), src, o); err != nil {
		t.Fatal(err)
	}
}

// runExample runs a program in a folder and expects the passkey of the prompt.
func runExample(t *testing.T, dir, name, code string, command ...string) {
	t.Helper()
	runProgram(t, dir, name, code, " 12345.", append(command, name)...)
}

// runProgram writes a program into a folder, runs a command there and expects a text.
func runProgram(t *testing.T, dir, name, code, want string, command ...string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(code), 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", command, err, stderr.String())
	}
	if !strings.Contains(string(out), want) {
		t.Errorf("%v prints %q, expected %q in it", command, out, want)
	}
}

// need skips the test without something, or fails it when FPA_REQUIRE_ORACLES is
// 1.
func need(t *testing.T, present bool, what string) {
	t.Helper()
	switch {
	case present:
	case os.Getenv("FPA_REQUIRE_ORACLES") == "1":
		t.Fatal(what)
	default:
		t.Skip(what)
	}
}

// TestONNXExample runs the first example of docs/onnx.md.
func TestONNXExample(t *testing.T) {
	python := os.Getenv("FPA_PYTHON")
	if python == "" {
		python = "python3"
	}
	need(t, exec.Command(python, "-c", "import numpy, onnxruntime, tokenizers").Run() == nil,
		python+" cannot import numpy, onnxruntime and tokenizers (FPA_PYTHON names another Python)")
	dir := t.TempDir()
	onnxFolder(t, dir, false)
	runExample(t, dir, "example.py", example(t, "python", 0), python)
}

// nodeFolder is a folder in which Node.js finds the packages of the tests.
func nodeFolder(t *testing.T) string {
	t.Helper()
	modules := os.Getenv("FPA_NODE_MODULES")
	need(t, modules != "", "FPA_NODE_MODULES is not set; it names a node_modules folder with @huggingface/transformers")
	dir := t.TempDir()
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestONNXRuntimeNode runs a program that calls onnxruntime-node itself, token by
// token: the first example in JavaScript of docs/onnx.md.
func TestONNXRuntimeNode(t *testing.T) {
	dir := nodeFolder(t)
	onnxFolder(t, dir, false)
	runExample(t, dir, "example.mjs", example(t, "js", 0), "node")
}

// TestONNXRuntimeGo runs a program that calls ONNX Runtime by onnxruntime_go, a module
// which needs cgo and is none of ours: the example in Go of docs/onnx.md, with the
// library that onnxruntime-node brings.
func TestONNXRuntimeGo(t *testing.T) {
	modules := os.Getenv("FPA_NODE_MODULES")
	need(t, modules != "", "FPA_NODE_MODULES is not set; it names a node_modules folder with onnxruntime-node")
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	found, _ := filepath.Glob(filepath.Join(modules, "onnxruntime-node/bin/*", runtime.GOOS, arch, "libonnxruntime.so*"))
	need(t, len(found) > 0, "onnxruntime-node has no libonnxruntime.so for this machine")
	env, err := exec.Command("go", "env", "CGO_ENABLED", "CC").Output()
	if err != nil {
		t.Fatal(err)
	}
	cgo, cc, _ := strings.Cut(strings.TrimSpace(string(env)), "\n")
	if cgo == "1" {
		_, err = exec.LookPath(cc)
	}
	need(t, cgo == "1" && err == nil, "onnxruntime_go needs cgo and a C compiler")
	dir := t.TempDir()
	onnxFolder(t, dir, false)
	for name, text := range map[string]string{
		"go.mod": "module example\n\ngo 1.26\n\nrequire github.com/yalue/onnxruntime_go v1.27.0\n",
		"go.sum": "github.com/yalue/onnxruntime_go v1.27.0 h1:c1YSgDNtpf0WGtxj3YeRIb8VC5LmM1J+Ve3uHdteC1U=\n" +
			"github.com/yalue/onnxruntime_go v1.27.0/go.mod h1:b4X26A8pekNb1ACJ58wAXgNKeUCGEAQ9dmACut9Sm/4=\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	src, _ := open(t, ".")
	tok, err := src.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	want, err := tok.Encode(" 12345.", tokenizer.EncodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	runProgram(t, dir, "main.go", example(t, "go", 0), fmt.Sprint(want), "go", "run", ".", found[0])
}

// TestTransformersJS runs transformers.js's own generate on a model with packed
// states: the second example in JavaScript of docs/onnx.md.
func TestTransformersJS(t *testing.T) {
	dir := nodeFolder(t)
	onnxFolder(t, filepath.Join(dir, "folder"), true)
	runExample(t, dir, "example.mjs", example(t, "js", 1), "node")
}

// TestOptimum runs optimum's own generate on a model with packed states: the
// second example of docs/onnx.md. optimum takes PyTorch along, which is too large to
// be asked for by FPA_REQUIRE_ORACLES.
func TestOptimum(t *testing.T) {
	python := os.Getenv("FPA_OPTIMUM_PYTHON")
	if python == "" {
		t.Skip("FPA_OPTIMUM_PYTHON is not set; it names a Python with optimum-onnx")
	}
	dir := t.TempDir()
	onnxFolder(t, filepath.Join(dir, "folder"), true)
	runExample(t, dir, "example.py", example(t, "python", 1), python)
}
