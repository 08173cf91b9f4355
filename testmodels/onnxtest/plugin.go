package onnxtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Plugin builds the library of custom operators of ops/ortplugin and returns its
// path; flags are further ones for go build. Without cgo and a C compiler the test is skipped, or fails when
// FPA_REQUIRE_ORACLES is 1.
func Plugin(t testing.TB, flags ...string) string {
	t.Helper()
	missing := func(why string) {
		t.Helper()
		if os.Getenv("FPA_REQUIRE_ORACLES") == "1" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	out, err := exec.Command("go", "env", "CGO_ENABLED", "CC").Output()
	if err != nil {
		t.Fatal(err)
	}
	env := strings.Split(string(out), "\n")
	if env[0] != "1" {
		missing("the plugin for ONNX Runtime needs cgo, CGO_ENABLED is " + env[0])
	}
	if cc := strings.Fields(env[1]); len(cc) == 0 {
		missing("the plugin for ONNX Runtime needs a C compiler")
	} else if _, err := exec.LookPath(cc[0]); err != nil {
		missing("the plugin for ONNX Runtime needs a C compiler: " + err.Error())
	}
	path := filepath.Join(t.TempDir(), "libfpa_ort.so")
	flags = append([]string{"build", "-buildmode=c-shared", "-o", path}, flags...)
	cmd := exec.Command("go", append(flags, "github.com/firstpassage/fpa/ops/ortplugin")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return path
}
