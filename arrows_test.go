package fpa_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/firstpassage/fpa"

// layers says for each top-level folder which others its packages may import.
// A folder may always import itself.
var layers = map[string][]string{
	"cmd":        {"runtime", "ops", "format", "quant"},
	"runtime":    {"ops", "format", "quant"},
	"ops":        {"quant"},
	"format":     {"quant"},
	"quant":      {},
	"testmodels": {"runtime", "ops", "format", "quant"},
}

// exceptions are imports that layers forbids and one package may make all the
// same: ops/onnxbody builds its function body as an ONNX graph, and ops/onnxgo
// makes gomlx graphs of ONNX models.
var exceptions = map[[2]string]bool{
	{"ops/onnxbody", "format"}:      true,
	{"ops/onnxbody", "format/onnx"}: true,
	{"ops/onnxgo", "format"}:        true,
	{"ops/onnxgo", "format/onnx"}:   true,
}

// fenced are modules that only the folders named may import, so that they can
// be replaced, and a build without them stays possible.
var fenced = map[string][]string{
	"github.com/gomlx":              {"ops/graph", "ops/onnxgo", "runtime/xla"},
	"github.com/owulveryck/onnx-go": {"ops/onnxgo"},
}

// within reports whether path is dir or lies below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}

// checkImport returns why the package importer may not import imported, or
// nil. Both are import paths; importer is a package of this module.
func checkImport(importer, imported string) error {
	from := strings.TrimPrefix(importer, module+"/")
	for prefix, allowed := range fenced {
		if !within(imported, prefix) {
			continue
		}
		for _, dir := range allowed {
			if within(from, dir) {
				return nil
			}
		}
		return fmt.Errorf("%s imports %s: only %s may", from, imported, strings.Join(allowed, ", "))
	}
	if !within(imported, module) {
		return nil
	}
	to := strings.TrimPrefix(imported, module+"/")
	fromTop, _, _ := strings.Cut(from, "/")
	toTop, _, _ := strings.Cut(to, "/")
	allowed, known := layers[fromTop]
	if !known {
		return fmt.Errorf("%s: the folder %s has no place among the layers; give it one in arrows_test.go", from, fromTop)
	}
	if fromTop == toTop || exceptions[[2]string{from, to}] {
		return nil
	}
	for _, dir := range allowed {
		if toTop == dir {
			return nil
		}
	}
	if len(allowed) == 0 {
		return fmt.Errorf("%s imports %s: packages of %s import nothing else of this module", from, to, fromTop)
	}
	return fmt.Errorf("%s imports %s: packages of %s may import %s only", from, to, fromTop, strings.Join(allowed, ", "))
}

// checkPlace returns why no package may have this import path, or nil.
func checkPlace(pkg string) error {
	if pkg == module+"/runtime" {
		return errors.New("a package in the folder runtime itself would hide the standard library's where it is imported")
	}
	top, _, _ := strings.Cut(strings.TrimPrefix(pkg, module+"/"), "/")
	if _, known := layers[top]; !known && pkg != module {
		return fmt.Errorf("%s: the folder %s has no place among the layers; give it one in arrows_test.go", pkg, top)
	}
	return nil
}

// listed is what `go list -json` prints of a package.
type listed struct {
	ImportPath string
	Imports    []string // of the non-test files, for one build configuration
	Module     *struct{ Main bool }
}

// goList lists packages and all that they depend on.
func goList(t *testing.T, env []string, patterns ...string) []listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Imports,Module"}, patterns...)...)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, &stderr)
	}
	var pkgs []listed
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p listed
		err := dec.Decode(&p)
		if err == io.EOF {
			return pkgs
		}
		if err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
		pkgs = append(pkgs, p)
	}
}

// TestArrows holds the layering that docs/ARCHITECTURE.md describes, for the
// non-test files of every package and build configuration.
func TestArrows(t *testing.T) {
	for _, env := range [][]string{
		{"CGO_ENABLED=1"},
		{"CGO_ENABLED=0"},
		{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=arm64"},
		{"CGO_ENABLED=0", "GOOS=darwin", "GOARCH=arm64"},
		{"CGO_ENABLED=0", "GOOS=windows", "GOARCH=amd64"},
	} {
		t.Run(strings.Join(env, ","), func(t *testing.T) {
			own := 0
			for _, p := range goList(t, env, "./...") {
				if env[0] == "CGO_ENABLED=0" && within(p.ImportPath, "github.com/gomlx/go-xla") {
					t.Errorf("%s is part of a build without cgo; the file that imports it needs //go:build cgo", p.ImportPath)
				}
				if p.Module == nil || !p.Module.Main {
					continue
				}
				own++
				if err := checkPlace(p.ImportPath); err != nil {
					t.Error(err)
				}
				for _, imported := range p.Imports {
					if err := checkImport(p.ImportPath, imported); err != nil {
						t.Error(err)
					}
				}
			}
			if own == 0 {
				t.Error("go list named no package of this module")
			}
		})
	}
}

// TestWithoutCgo keeps XLA out of the tests of a build without a C compiler too,
// so that the graph packages can be tested there on gomlx's pure-Go backend.
func TestWithoutCgo(t *testing.T) {
	gomlx := false
	for _, p := range goList(t, []string{"CGO_ENABLED=0"}, "-test", "./ops/...", "./runtime/...") {
		gomlx = gomlx || within(p.ImportPath, "github.com/gomlx/gomlx")
		if within(p.ImportPath, "github.com/gomlx/go-xla") {
			t.Errorf("%s is part of a test without cgo; the file that imports it needs //go:build cgo", p.ImportPath)
		}
	}
	if !gomlx {
		t.Error("no test depends on gomlx, so this one proves nothing")
	}
}

// TestBinaries keeps out of the two commands what is only good for tests, and
// gomlx, which is for engines, out of the converter.
func TestBinaries(t *testing.T) {
	for _, p := range goList(t, nil, "./cmd/fpaconv") {
		if within(p.ImportPath, "github.com/gomlx") {
			t.Errorf("fpaconv depends on %s", p.ImportPath)
		}
	}
	for _, p := range goList(t, nil, "./cmd/...") {
		if within(p.ImportPath, "github.com/owulveryck/onnx-go") || within(p.ImportPath, module+"/testmodels") {
			t.Errorf("a command depends on %s", p.ImportPath)
		}
	}
}

func TestCheckImport(t *testing.T) {
	for _, tt := range []struct {
		from, to string
		ok       bool
	}{
		{"cmd/fparun", "runtime/generate", true},
		{"cmd/fpaconv", "format/gguf", true},
		{"runtime/cpu", "ops/kernels", true},
		{"runtime/model", "format/gguf", true},
		{"runtime/model", "runtime/tokenizer", true},
		{"format/gguf", "quant", true},
		{"format/gguf", "format", true},
		{"format/gguf", "format/internal/filemap", true},
		{"ops/kernels", "quant", true},
		{"ops/onnxbody", "format/onnx", true},
		{"ops/onnxgo", "format/onnx", true},
		{"ops/ortplugin", "ops/kernels", true},
		{"quant", "quant/internal/table", true},
		{"testmodels", "runtime/model", true},

		{"format/gguf", "runtime/model", false},
		{"format/onnx", "ops/onnxbody", false},
		{"ops/kernels", "format/gguf", false},
		{"ops/kernels", "runtime/cache", false},
		{"ops/onnxbody", "format/gguf", false},
		{"ops/onnxbody", "runtime/convert", false},
		{"ops/onnxgo", "format/gguf", false},
		{"quant", "format", false},
		{"quant", "ops/kernels", false},
		{"runtime/generate", "cmd/fparun", false},
		{"runtime/cpu", "testmodels", false},
		{"cmd/fparun", "testmodels", false},
		{"testmodels", "cmd/fparun", false},
		{"tools/x", "quant", false},
		{"runtime/model", "tools/x", false},
		{"runtime/model", "quantum", false}, // a prefix of a name is no folder
	} {
		if err := checkImport(module+"/"+tt.from, module+"/"+tt.to); (err == nil) != tt.ok {
			t.Errorf("%s imports %s: %v, want allowed %v", tt.from, tt.to, err, tt.ok)
		}
	}
	for _, tt := range []struct {
		from, to string
		ok       bool
	}{
		{"quant", "math", true},
		{"quant", "github.com/x448/float16", true},
		{"ops/graph", "github.com/gomlx/gomlx/graph", true},
		{"ops/graph/internal/scan", "github.com/gomlx/gomlx/graph", true},
		{"ops/onnxgo", "github.com/gomlx/gomlx/graph", true},
		{"ops/onnxgo", "github.com/owulveryck/onnx-go/backend", true},
		{"runtime/xla", "github.com/gomlx/gomlx/backends/xla", true},
		{"runtime/xla", "github.com/gomlx/go-xla/pkg/pjrt", true},

		{"runtime/cpu", "github.com/gomlx/gomlx/graph", false},
		{"runtime/xlatools", "github.com/gomlx/gomlx/graph", false},
		{"ops/kernels", "github.com/gomlx/onnx-gomlx/onnx", false},
		{"cmd/fparun", "github.com/gomlx/go-xla", false},
		{"ops/graph", "github.com/owulveryck/onnx-go", false},
		{"runtime/convert", "github.com/owulveryck/onnx-go/backend", false},
	} {
		if err := checkImport(module+"/"+tt.from, tt.to); (err == nil) != tt.ok {
			t.Errorf("%s imports %s: %v, want allowed %v", tt.from, tt.to, err, tt.ok)
		}
	}
}

func TestCheckPlace(t *testing.T) {
	for pkg, ok := range map[string]bool{
		"quant": true, "format": true, "testmodels": true, "runtime/sample": true, "cmd/fparun": true,
		"format/internal/filemap": true,
		"runtime":                 false, "tools": false, "internal/x": false,
	} {
		if err := checkPlace(module + "/" + pkg); (err == nil) != ok {
			t.Errorf("%s: %v, want allowed %v", pkg, err, ok)
		}
	}
}
