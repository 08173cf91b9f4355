package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cpu"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/runtime/xla"
)

// What --backend may be.
const (
	backendAuto = "auto"
	backendCPU  = "cpu"
	backendXLA  = "xla:" // and a device
	backendGo   = "go"
)

var backends = []string{backendAuto, backendCPU, backendXLA + string(xla.CPU), backendXLA + string(xla.CUDA), backendGo}

// newEngine makes the engine that --backend asks for.
func (f *engineFlags) newEngine(m *model.Model) (engine.Engine, error) {
	// A nil engine of a type is not a nil interface.
	asEngine := func(e *xla.Engine, err error) (engine.Engine, error) {
		if err != nil {
			return nil, err
		}
		return e, nil
	}
	o := xla.Options{Chunk: f.batch, TensorParallel: f.tensorParallel, DataParallel: f.dataParallel, Packed: f.packed}
	switch {
	case f.backend == backendGo:
		return asEngine(xla.NewGo(m, o))
	case strings.HasPrefix(f.backend, backendXLA):
		p, err := findPlugin(xla.Device(strings.TrimPrefix(f.backend, backendXLA)))
		if err != nil {
			return nil, err
		}
		return asEngine(xla.New(m, p, o))
	case f.backend == backendAuto && f.fitsXLA() && xla.CanLoad && xla.HasGPU():
		if p, err := findPlugin(xla.CUDA); err == nil {
			e, err := xla.New(m, p, o)
			if err == nil {
				return e, nil
			}
			if f.severalDevices() {
				return nil, err
			}
			fmt.Fprintf(os.Stderr, "fparun: the GPU is not used: %v\n", err)
		}
	}
	if f.severalDevices() {
		return nil, errors.New("--tensor-parallel and --data-parallel need GPUs and an XLA plugin for them (fparun backends lists what there is), or --backend xla:cpu")
	}
	return cpu.New(m, cpu.Options{Threads: f.threads, Chunk: f.batch, NoRepack: f.noRepack, Copy: f.copying(), Int8: f.activations == activationsInt8})
}

// fitsXLA says whether a GPU serves what the flags ask for: XLA rounds no activations,
// and holds keys that are rounded to bytes as float32, which saves no memory.
func (f *engineFlags) fitsXLA() bool {
	t, err := f.cacheType()
	return err == nil && t != quant.Q8_0 && f.activations != activationsInt8
}

// findPlugin is the first plugin for a device, or an error that says how to get one.
func findPlugin(d xla.Device) (xla.Plugin, error) {
	if !xla.CanLoad {
		return xla.Plugin{}, errors.New("this fparun was built without cgo and cannot load XLA; use --backend cpu, the default, or build it with CGO_ENABLED=1")
	}
	for _, p := range xla.Plugins() {
		if p.Device == d {
			return p, nil
		}
	}
	return xla.Plugin{}, fmt.Errorf("no XLA plugin for %s is installed; use --backend cpu, the default, or install one: fparun backends install %s", d, d)
}

// backend is one line of the list.
type backend struct {
	Backend string   `json:"backend"`
	Usable  bool     `json:"usable"`
	Path    string   `json:"path,omitempty"`
	Found   string   `json:"found,omitempty"` // the sort of place
	Version string   `json:"version,omitempty"`
	Devices []string `json:"devices,omitempty"`
	Note    string   `json:"note,omitempty"` // what is wrong, or how to install it
}

func newBackends() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "backends",
		Short: "List the engines, and install XLA",
		Long: `backends lists what --backend can be on this machine. XLA comes as plugins, shared
libraries with the PJRT interface. They are looked for in the folders that the
environment variable ` + xla.PathVariable + ` names, in the user's cache folder, where
"fparun backends install" puts them, in Python packages (JAX has them), and in library
folders; the first one for a device is used. Nothing is ever downloaded unasked.`,
		Example: `  fparun backends
  fparun backends install cpu
  fparun -m passkey.gguf -f prompt.txt --backend xla:cpu`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			list := listBackends()
			if asJSON {
				e := json.NewEncoder(c.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(list)
			}
			printBackends(c.OutOrStdout(), list)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	c.AddCommand(newInstall())
	return c
}

// listBackends tries all plugins that it finds.
func listBackends() []backend {
	list := []backend{{
		Backend: backendCPU, Usable: true, Version: cli.Version(),
		Devices: []string{fmt.Sprintf("%s, %d processors", runtime.GOARCH, runtime.NumCPU())},
		Note:    "this program's own engine, and the default without a GPU",
	}}
	found := make(map[xla.Device]bool)
	for _, p := range xla.Plugins() {
		b := backend{Backend: backendXLA + string(p.Device), Path: p.Path, Found: p.Place}
		switch info, err := p.Probe(); {
		case !xla.CanLoad:
			b.Note = "this fparun was built without cgo and cannot load it"
		case found[p.Device]:
			b.Note = "not used, since another one comes first"
		case err != nil:
			b.Note = err.Error()
		default:
			b.Usable, b.Version, b.Devices = true, info.Version, info.Devices
		}
		found[p.Device] = true
		list = append(list, b)
	}
	for _, d := range []xla.Device{xla.CPU, xla.CUDA} {
		if found[d] {
			continue
		}
		b := backend{Backend: backendXLA + string(d)}
		switch {
		case !xla.CanLoad:
			b.Note = "this fparun was built without cgo; build it with CGO_ENABLED=1 to use XLA"
		case wheels[d].fits():
			b.Note = fmt.Sprintf("not installed; to install it: fparun backends install %s", d)
			if d == xla.CUDA && !xla.HasGPU() {
				b.Note += " (no GPU was found)"
			}
		default:
			b.Note = fmt.Sprintf("not installed; no package for %s/%s is known, name a folder with one in %s", runtime.GOOS, runtime.GOARCH, xla.PathVariable)
		}
		list = append(list, b)
	}
	return append(list, backend{Backend: backendGo, Usable: true, Note: "the graph of XLA without a plugin, to check it; very slow"})
}

func printBackends(w io.Writer, list []backend) {
	for _, b := range list {
		state := "yes"
		if !b.Usable {
			state = "no"
		}
		fmt.Fprintf(w, "%-9s %-4s", b.Backend, state)
		line := []string{}
		if b.Path != "" {
			line = append(line, fmt.Sprintf("%s (%s)", b.Path, b.Found))
		}
		// The plugin's own line names its file again.
		for _, s := range []string{strings.Replace(b.Version, " ("+b.Path+")", "", 1), b.Note} {
			if s != "" {
				line = append(line, s)
			}
		}
		fmt.Fprintln(w, strings.Join(line, "; "))
		for _, d := range b.Devices {
			fmt.Fprintf(w, "%-14s%s\n", "", d)
		}
	}
}
