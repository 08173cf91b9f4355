package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// headerModule is a Go module in which the header of ONNX Runtime lies. It is
// downloaded by tests alone, and no part of the build.
const headerModule = "github.com/yalue/onnxruntime_go@v1.27.0"

// compile compiles a C file of testdata with the header of ONNX Runtime and returns
// the program's path. FPA_ORT_INCLUDE names the folder of another onnxruntime_c_api.h.
func compile(t *testing.T, source string, args ...string) string {
	t.Helper()
	missing := func(why ...any) {
		t.Helper()
		if os.Getenv("FPA_REQUIRE_ORACLES") == "1" {
			t.Fatal(why...)
		}
		t.Skip(why...)
	}
	out, err := exec.Command("go", "env", "CC").Output()
	if err != nil {
		t.Fatal(err)
	}
	cc := strings.TrimSpace(string(out))
	if _, err := exec.LookPath(cc); err != nil {
		missing("no C compiler: ", err)
	}
	include := os.Getenv("FPA_ORT_INCLUDE")
	if include == "" {
		cmd := exec.Command("go", "mod", "download", "-json", headerModule)
		cmd.Dir = t.TempDir() // outside of this module, whose go.mod stays as it is
		out, err := cmd.Output()
		var module struct{ Dir, Error string }
		if jsonErr := json.Unmarshal(out, &module); err != nil || jsonErr != nil || module.Dir == "" {
			missing("no header of ONNX Runtime: ", cmd, ": ", err, module.Error, "; FPA_ORT_INCLUDE names the folder of one")
		}
		include = module.Dir
	}
	program := filepath.Join(t.TempDir(), "program")
	args = append([]string{"-std=gnu11", "-w", "-I", include, "-I", ".", "-o", program, filepath.Join("testdata", source)}, args...)
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", cc, args, err, out)
	}
	return program
}

// TestHeader compares the declarations of ort.h with the real header.
func TestHeader(t *testing.T) {
	out, err := exec.Command(compile(t, "header.c")).CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}
