package xla

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDeviceOf(t *testing.T) {
	for file, want := range map[string]Device{
		"pjrt_c_api_cpu_plugin.so": CPU, "pjrt_c_api_cuda_plugin.so": CUDA, "pjrt-plugin-cpu.dylib": CPU, "pjrt_plugin_cpu.dll": CPU,
		"xla_cuda_plugin.so": CUDA, "xla_cuda13_plugin.so": CUDA,
		"pjrt_c_api_tpu_plugin.so": "", "libcpu.so": "", "pjrt_c_api_cpu_plugin.so.1": "", "xla_extension.so": "", "cpu": "",
	} {
		if got := deviceOf(file); got != want {
			t.Errorf("%s: %q, expected %q", file, got, want)
		}
	}
}

// TestPlugins finds plugins in the places that have them, in order, and each once.
func TestPlugins(t *testing.T) {
	root := t.TempDir()
	at := func(parts ...string) string { return filepath.Join(append([]string{root}, parts...)...) }
	t.Setenv("HOME", at("home"))
	t.Setenv("XDG_CACHE_HOME", at("cache"))
	t.Setenv("VIRTUAL_ENV", at("odd [name]*"))
	t.Setenv("CONDA_PREFIX", "")
	t.Setenv("LD_LIBRARY_PATH", at("lib"))
	t.Setenv(PathVariable, at("first")+string(filepath.ListSeparator)+at("second"))
	installed, err := InstallDir(CPU)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		at("first", "pjrt_c_api_cpu_plugin.so"),
		at("second", "pjrt_c_api_cuda_plugin.so"),
		filepath.Join(installed, "some_package", "lib", "pjrt_c_api_cpu_plugin.so"),
		at("odd [name]*", "lib", "python3.12", "site-packages", "jax_plugins", "xla_cuda13", "xla_cuda_plugin.so"),
		at("home", ".local", "lib", "go-xla", "pjrt_c_api_cpu_plugin.so"),
		at("lib", "pjrt_plugin_cpu.so"),
	}
	for _, path := range append(want, at("first", "other.so")) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The same file under another name is not listed again.
	if err := os.Symlink(want[0], at("second", "pjrt_c_api_cpu_plugin.so")); err != nil {
		t.Skip(err)
	}
	var got []Plugin
	for _, p := range Plugins() {
		if rel, err := filepath.Rel(root, p.Path); err == nil && filepath.IsLocal(rel) {
			got = append(got, p) // and not what this machine has
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d plugins %+v, expected %q", len(got), got, want)
	}
	for i, p := range got {
		if p.Path != want[i] || p.Device != deviceOf(filepath.Base(want[i])) || p.Place == "" {
			t.Errorf("plugin %d: %+v, expected %s", i, p, want[i])
		}
	}
}
