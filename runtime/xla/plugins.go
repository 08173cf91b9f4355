package xla

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// Device is the kind of device that a plugin drives.
type Device string

// The devices.
const (
	CPU  Device = "cpu"
	CUDA Device = "cuda"
)

// Plugin is XLA for a kind of device: a shared library with the PJRT interface.
type Plugin struct {
	Device Device
	Path   string // absolute
	Place  string // what sort of place it was found in, for people
}

// PathVariable is the environment variable that names folders with plugins, the
// first to be looked at. It is the one that other programs know, too.
const PathVariable = "PJRT_PLUGIN_LIBRARY_PATH"

// InstallDir is the folder of the user's cache where plugins for a device are
// installed.
func InstallDir(d Device) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "fpa", "pjrt", string(d)), nil
}

// pluginName matches the names of plugins; one of the groups is the device's name.
var pluginName = regexp.MustCompile(`^(?:pjrt_c_api_(.+)_plugin|pjrt[-_]plugin[-_](.+)|(?:xla_(.+)_plugin))\.(?:so|dylib|dll)$`)

// deviceOf is the device that a file with a plugin's name is for; empty for other
// files and devices.
func deviceOf(file string) Device {
	parts := pluginName.FindStringSubmatch(file)
	if parts == nil {
		return ""
	}
	name := strings.ToLower(parts[1] + parts[2] + parts[3])
	for _, d := range []Device{CPU, CUDA} {
		if strings.Contains(name, string(d)) {
			return d
		}
	}
	return ""
}

// Plugins finds plugins, those first that are to be preferred: in the folders that
// PathVariable names, in InstallDir, in packages that pip installed, and where other
// programs keep them. It looks at names alone; whether one can be loaded is found out
// by loading it.
func Plugins() []Plugin {
	var found []Plugin
	seen := make(map[string]bool)
	look := func(place, pattern string) {
		dirs, _ := filepath.Glob(pattern) // its only error is a bad pattern
		for _, dir := range dirs {
			dir, err := filepath.Abs(dir)
			if err != nil {
				continue
			}
			entries, _ := os.ReadDir(dir) // a folder that is not there has no plugin
			for _, e := range entries {
				path := filepath.Join(dir, e.Name())
				real, err := filepath.EvalSymlinks(path)
				if d := deviceOf(e.Name()); d != "" && err == nil && !seen[real] {
					seen[real] = true
					found = append(found, Plugin{d, path, place})
				}
			}
		}
	}
	for _, dir := range filepath.SplitList(os.Getenv(PathVariable)) {
		look(PathVariable, dir)
	}
	for _, d := range []Device{CUDA, CPU} {
		if dir, err := InstallDir(d); err == nil {
			look("installed by fparun", escape(dir))
			look("installed by fparun", filepath.Join(escape(dir), "*"))
			look("installed by fparun", filepath.Join(escape(dir), "*", "*"))
		}
	}
	for _, dir := range sitePackages() {
		look("a Python package", filepath.Join(dir, "jax_plugins", "*"))
		look("a Python package", filepath.Join(dir, "*pjrt*"))
	}
	for _, dir := range libraryDirs() {
		look("a library folder", dir)
	}
	return found
}

// escape takes the meaning from what glob patterns give one; a folder's name may
// hold anything.
func escape(dir string) string {
	if runtime.GOOS == "windows" {
		return dir // there is no escaping there
	}
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// sitePackages are patterns of the folders where pip puts packages: those of the
// active environment, of the user and of the system.
func sitePackages() []string {
	var roots []string
	for _, v := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if dir := os.Getenv(v); dir != "" {
			roots = append(roots, escape(dir))
		}
	}
	if home, err := os.UserHomeDir(); err == nil {
		roots = append(roots, filepath.Join(escape(home), ".local"))
	}
	roots = append(roots, "/usr/local", "/usr")
	var dirs []string
	for _, root := range roots {
		for _, kind := range []string{"site-packages", "dist-packages"} {
			dirs = append(dirs, filepath.Join(root, "lib", "python3*", kind))
		}
	}
	return dirs
}

// libraryDirs are patterns of the folders where go-xla's installer puts plugins, and
// those that the dynamic linker is told of.
func libraryDirs() []string {
	var dirs []string
	if home, err := os.UserHomeDir(); err == nil {
		lib := filepath.Join(escape(home), ".local", "lib", "go-xla")
		dirs = append(dirs, lib, filepath.Join(lib, "nvidia"))
	}
	dirs = append(dirs, "/usr/local/lib/go-xla", "/usr/local/lib/go-xla/nvidia", "/usr/local/lib", "/usr/lib")
	for _, dir := range filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")) {
		if dir != "" {
			dirs = append(dirs, escape(dir))
		}
	}
	return dirs
}

// HasGPU guesses whether there is a GPU of NVIDIA, by the device files of its
// driver.
func HasGPU() bool {
	cards, _ := filepath.Glob("/dev/nvidia[0-9]*")
	_, err := os.Stat("/dev/dxg") // that of the Windows Subsystem for Linux
	return len(cards) > 0 || err == nil
}

// IsPlugin says whether a file's name is that of a plugin for a device of the list.
func IsPlugin(file string) bool { return deviceOf(file) != "" }
