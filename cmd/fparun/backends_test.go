package main

import (
	"archive/zip"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/runtime/cpu"
	"github.com/firstpassage/fpa/runtime/xla"
)

// noPlugins hides the plugins that this machine may have.
func noPlugins(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	for _, v := range []string{xla.PathVariable, "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH"} {
		t.Setenv(v, "")
	}
}

// TestBackends lists the engines, with a plugin that cannot be loaded among them.
func TestBackends(t *testing.T) {
	noPlugins(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "pjrt_c_api_cpu_plugin.so")
	if err := os.WriteFile(path, []byte("no library"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv(xla.PathVariable, dir)
	var list []backend
	out, _ := mustRun(t, "backends", "--json")
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if list[0].Backend != "cpu" || !list[0].Usable {
		t.Errorf("the first engine is %+v", list[0])
	}
	if b := list[1]; b.Backend != "xla:cpu" || b.Usable || b.Path != path || b.Note == "" {
		t.Errorf("a plugin that is no library: %+v", b)
	}
	if b := list[len(list)-1]; b.Backend != "go" || !b.Usable {
		t.Errorf("the last engine is %+v", b)
	}
}

// TestUnpack takes the plugin and the metadata out of a wheel, and nothing that
// leads out of the folder.
func TestUnpack(t *testing.T) {
	wheel := func(names ...string) string {
		path := filepath.Join(t.TempDir(), "x.whl")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		z := zip.NewWriter(f)
		for _, name := range names {
			w, err := z.Create(name)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		return path
	}
	dir := filepath.Join(t.TempDir(), "plugin")
	plugin, err := unpack(wheel("jax_plugins/xla_cuda13/xla_cuda_plugin.so", "jax_plugins/xla_cuda13/run.py", "x.dist-info/METADATA"), dir)
	if err != nil {
		t.Fatal(err)
	}
	if plugin != filepath.FromSlash("jax_plugins/xla_cuda13/xla_cuda_plugin.so") {
		t.Errorf("the plugin is %s", plugin)
	}
	for name, there := range map[string]bool{plugin: true, "x.dist-info/METADATA": true, "jax_plugins/xla_cuda13/run.py": false} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != there {
			t.Errorf("%s: %v, expected to be there: %v", name, err, there)
		}
	}
	for names, want := range map[string]string{"../xla_cuda_plugin.so": "leads out", "x.py": "no XLA plugin"} {
		if _, err := unpack(wheel(names), filepath.Join(t.TempDir(), "plugin")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected an error with %q", names, err, want)
		}
	}
}

// TestXLAFlags asks for engines that are not there.
func TestXLAFlags(t *testing.T) {
	noPlugins(t)
	for _, backend := range []string{"xla:cuda", "xla:tpu"} {
		f := engineFlags{model: "x.gguf", batch: 512, tensorParallel: 1, dataParallel: 1, backend: backend, activations: activationsF32, mode: "exact", eps: 1e-3, typ: "f16"}
		err := f.check()
		if err == nil {
			_, err = findPlugin(xla.CUDA)
		}
		if err == nil {
			t.Skip("this machine has a plugin for CUDA in a system folder")
		}
		want := map[string]string{"xla:cuda": "--backend cpu", "xla:tpu": "expected one of"}[backend]
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected an error with %q", backend, err, want)
		}
	}
	for f, want := range map[engineFlags]cpu.Copying{{}: cpu.CopyIfSmall, {mmap: true}: cpu.CopyNever, {noMmap: true}: cpu.CopyAlways} {
		if got := f.copying(); got != want {
			t.Errorf("--mmap %v, --no-mmap %v: copying %d, expected %d", f.mmap, f.noMmap, got, want)
		}
	}
	for typ, want := range map[string]bool{"f16": true, "f32": true, "q8_0": false} {
		f := engineFlags{typ: typ, activations: activationsF32}
		if f.fitsXLA() != want {
			t.Errorf("a GPU is used with cache type %s: %v", typ, !want)
		}
	}
}
