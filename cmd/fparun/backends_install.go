package main

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/runtime/xla"
)

// wheel is a Python package that carries a plugin.
type wheel struct {
	requirement string   // as pip wants it
	libraries   bool     // the plugin needs others, which pip can install beside it
	platforms   []string // GOOS/GOARCH
}

// wheels are the packages that are installed. Both are under the Apache licence 2.0.
var wheels = map[xla.Device]wheel{
	xla.CPU:  {requirement: "lammps-jax-pjrt-cpu==0.11.2", platforms: []string{"linux/amd64"}},
	xla.CUDA: {requirement: "jax-cuda13-pjrt", libraries: true, platforms: []string{"linux/amd64", "linux/arm64"}},
}

// fits says whether there is such a package for this machine.
func (w wheel) fits() bool { return slices.Contains(w.platforms, runtime.GOOS+"/"+runtime.GOARCH) }

func newInstall() *cobra.Command {
	var python string
	var force bool
	c := &cobra.Command{
		Use:   "install cpu|cuda",
		Short: "Download an XLA plugin into the user's cache folder",
		Long: `install downloads the Python package that carries XLA's plugin for a device, shows
its checksum, and unpacks the plugin into the user's cache folder. pip does the
download, by its own settings (its index, proxy and certificates; PIP_INDEX_URL), so
Python with pip is needed; the package itself is not installed, and nothing of it is
run.

The plugin for CUDA needs NVIDIA's driver, CUDA 13 and cuDNN 9. Where these libraries
are not installed, the command that is printed at the end puts them beside it.`,
		Example: `  fparun backends install cpu
  fparun backends install cuda`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{string(xla.CPU), string(xla.CUDA)},
		RunE: func(c *cobra.Command, args []string) error {
			return install(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), xla.Device(args[0]), python, force)
		},
	}
	c.Flags().StringVar(&python, "python", "python3", "the Python `program` whose pip downloads")
	c.Flags().BoolVar(&force, "force", false, "replace a plugin that is installed already")
	return c
}

// install puts the plugin for a device into its folder.
func install(ctx context.Context, out, progress io.Writer, d xla.Device, python string, force bool) error {
	w := wheels[d]
	if !w.fits() {
		return fmt.Errorf("no package with XLA for %s on %s/%s is known; put a plugin into a folder and name it in %s", d, runtime.GOOS, runtime.GOARCH, xla.PathVariable)
	}
	dir, err := xla.InstallDir(d)
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); err == nil && !force {
		return fmt.Errorf("%s exists; use --force to replace it", dir)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	// On the same file system as the folder, which is put in its place when it is
	// whole.
	work, err := os.MkdirTemp(filepath.Dir(dir), ".install-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	path, err := download(ctx, progress, python, w.requirement, filepath.Join(work, "download"))
	if err != nil {
		return err
	}
	sum, err := checksum(path)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\nsha256 %s\n", filepath.Base(path), sum)
	fresh := filepath.Join(work, "plugin")
	plugin, err := unpack(path, fresh)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Rename(fresh, dir); err != nil {
		return err
	}
	fmt.Fprintf(out, "installed %s\n", filepath.Join(dir, plugin))
	if w.libraries {
		fmt.Fprintf(out, "It needs CUDA 13 and cuDNN 9. Where they are not installed, this puts them beside it:\n  %s -m pip install --no-deps --target %q nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvcc nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cusolver nvidia-cusparse nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvvm nvidia-cuda-crt\n", python, dir)
	}
	return nil
}

// download has pip fetch a wheel into a folder, and returns its path.
func download(ctx context.Context, progress io.Writer, python, requirement, dir string) (string, error) {
	c := exec.CommandContext(ctx, python, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--dest", dir, requirement)
	c.Stdout, c.Stderr = progress, progress
	if err := c.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return "", fmt.Errorf("there is no program %s; install Python with pip, or name one with --python", python)
		}
		return "", fmt.Errorf("pip could not download %s: %w; its own words are above", requirement, err)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("pip left %d wheels in %s, expected one", len(found), dir)
	}
	return found[0], nil
}

// checksum is the SHA-256 of a file.
func checksum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// unpack writes the plugin and the licences of a wheel to a new folder, at their
// places, since the plugin finds other libraries from where it is. It returns the
// place of the plugin.
func unpack(path, dir string) (plugin string, err error) {
	z, err := zip.OpenReader(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	defer z.Close()
	for _, f := range z.File {
		name := filepath.FromSlash(f.Name)
		if !filepath.IsLocal(name) {
			return "", fmt.Errorf("%s: entry %q leads out of the folder; this is no wheel to trust", path, f.Name)
		}
		isPlugin := xla.IsPlugin(filepath.Base(name))
		if !isPlugin && !strings.Contains(f.Name, ".dist-info/") {
			continue
		}
		if err := unpackFile(f, filepath.Join(dir, name)); err != nil {
			return "", fmt.Errorf("%s: %s: %w", path, f.Name, err)
		}
		if isPlugin {
			plugin = name
		}
	}
	if plugin == "" {
		return "", fmt.Errorf("%s: there is no XLA plugin in it", path)
	}
	return plugin, nil
}

// maxPlugin bounds what a wheel's entry may unpack to.
const maxPlugin = 4 << 30

func unpackFile(f *zip.File, to string) (err error) {
	if strings.HasSuffix(f.Name, "/") {
		return nil
	}
	if f.UncompressedSize64 > maxPlugin {
		return fmt.Errorf("has %d bytes, expected at most %d", f.UncompressedSize64, int64(maxPlugin))
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	from, err := f.Open()
	if err != nil {
		return err
	}
	defer from.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, from) // which checks size and CRC
	return err
}
