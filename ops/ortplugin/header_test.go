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
// downloaded by this test alone, and no part of the build.
const headerModule = "github.com/yalue/onnxruntime_go@v1.27.0"

// TestHeader compiles the declarations of ort.h beside the real header and compares
// them. FPA_ORT_INCLUDE names the folder of another onnxruntime_c_api.h.
func TestHeader(t *testing.T) {
	missing := func(why ...any) {
		t.Helper()
		if os.Getenv("FPA_REQUIRE_ORACLES") == "1" {
			t.Fatal(why...)
		}
		t.Skip(why...)
	}
	cc, err := exec.Command("go", "env", "CC").Output()
	if err != nil {
		t.Fatal(err)
	}
	compiler := strings.TrimSpace(string(cc))
	if _, err := exec.LookPath(compiler); err != nil {
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
	program := filepath.Join(t.TempDir(), "header")
	cmd := exec.Command(compiler, "-std=gnu11", "-w", "-I", include, "-I", ".", "-o", program, filepath.Join("testdata", "header.c"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	out, err := exec.Command(program).CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}
