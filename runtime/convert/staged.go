package convert

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/gguf"
	"github.com/firstpassage/fpa/runtime/model"
)

// stage is a folder beside an output, where its files wait until all of them are
// complete.
type stage struct {
	folder bool   // the output is a folder, not a file
	dir    string // where the files go
	name   string // of the model's file
	force  bool
	temp   string
}

// openStage finds out where an output goes, and makes the temporary folder beside
// it. An output that does not end in the extension, or is a folder, is a folder that
// gets a file model. A name that is taken is refused here, before the long part.
func openStage(output, extension string, force bool) (*stage, error) {
	info, err := os.Stat(output)
	s := &stage{dir: filepath.Dir(output), name: filepath.Base(output), force: force}
	s.folder = !strings.EqualFold(filepath.Ext(output), extension) || err == nil && info.IsDir()
	if s.folder {
		s.dir, s.name = output, "model"+extension
		if err := os.MkdirAll(output, 0o777); err != nil {
			return nil, err
		}
	}
	if err := s.checkTaken(s.name); err != nil {
		return nil, err
	}
	s.temp, err = os.MkdirTemp(s.dir, ".fpaconv-*.tmp")
	return s, err
}

// model is the path of the model's file until commit.
func (s *stage) model() string { return filepath.Join(s.temp, s.name) }

// checkTaken fails when there is something at a target that may not be replaced.
func (s *stage) checkTaken(name string) error {
	path := filepath.Join(s.dir, name)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return &fs.PathError{Op: "create", Path: path, Err: errors.New("this is a folder, expected a file")}
	case !s.force:
		return &fs.PathError{Op: "create", Path: path, Err: errors.New("the file exists already; use --force to replace it")}
	}
	return nil
}

// writeJSON writes a value into a file.
func (s *stage) writeJSON(name string, v any) error {
	if err := s.checkTaken(name); err != nil {
		return err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.temp, name), b.Bytes(), 0o666)
}

// files are the names of the files, the model's first, and their size together.
func (s *stage) files() (names []string, size int64, err error) {
	entries, err := os.ReadDir(s.temp)
	if err != nil {
		return nil, 0, err
	}
	names = []string{s.name}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, 0, err
		}
		size += info.Size()
		if e.Name() != s.name {
			names = append(names, e.Name())
		}
	}
	return names, size, nil
}

// commit gives the files their places, the model's last: readers begin with it. When
// one fails, those that have their places are removed again.
func (s *stage) commit(names []string) error {
	for _, name := range names {
		if err := s.checkTaken(name); err != nil {
			return err
		}
	}
	for i := len(names) - 1; i >= 0; i-- {
		if err := os.Rename(filepath.Join(s.temp, names[i]), filepath.Join(s.dir, names[i])); err != nil {
			for _, name := range names[i+1:] {
				os.Remove(filepath.Join(s.dir, name))
			}
			return err
		}
	}
	return nil
}

// close removes what was not committed.
func (s *stage) close() {
	if s.temp != "" {
		os.RemoveAll(s.temp)
	}
}

// staged is a conversion to files that appear together.
type staged struct {
	ctx        context.Context
	src        *model.File
	parts      *model.Parts // of the source, perhaps with more
	o          *Options
	model      *model.Model // of the source
	plans      []TensorPlan
	generation model.Generation
	stage      *stage
	report     Report
}

// stagedFormat is what the conversions to the formats differ in.
type stagedFormat interface {
	// chooseType settles the type of a tensor.
	chooseType(p *TensorPlan)
	// write writes the model's file.
	write(path string) error
	// companions are the files beside it: the JSON values that they hold.
	companions() (map[string]any, error)
}

// run converts to a format, whose files have the extension.
func (c *staged) run(extension string, to stagedFormat) error {
	start := time.Now()
	if c.o.Threads == 0 {
		c.o.Threads = runtime.GOMAXPROCS(0)
	}
	if c.o.Progress == nil {
		c.o.Progress = func(string, int64, int64) {}
	}
	err := c.convert(extension, to)
	if c.stage != nil {
		c.stage.close()
	}
	c.report.Seconds = time.Since(start).Seconds()
	return format.WithPath(err, c.src.Path)
}

func (c *staged) convert(extension string, to stagedFormat) error {
	var err error
	if c.model, err = c.src.Build(); err != nil {
		return err
	}
	c.generation = c.src.Generation
	c.plans = order(c.parts)
	c.report.Source, c.report.SourceFormat = c.src.Path, c.src.Format()
	c.report.Version, c.report.Type = c.o.Version, c.o.Type.String()
	for i := range c.plans {
		to.chooseType(&c.plans[i])
		c.report.Parameters += elements(c.plans[i].Shape)
	}
	if c.o.Output == "" {
		c.o.Output = baseName(c.src.Path) + extension
	}
	c.report.Output = c.o.Output
	if c.stage, err = openStage(c.o.Output, extension, c.o.Force); err != nil {
		return err
	}
	files, err := to.companions() // early: their names may be taken
	if err != nil {
		return err
	}
	for name, v := range files {
		if err := c.stage.writeJSON(name, v); err != nil {
			return err
		}
	}
	if !c.o.NoCheck || c.o.Measure {
		if c.report.SourceSHA256, err = hashFiles(c.ctx, c.src.DataFiles()); err != nil {
			return err
		}
	}
	if err := c.writeAll(to); err != nil {
		return err
	}
	c.report.Tensors = c.plans
	c.report.Notes = append(c.report.Notes, typeNotes(c.plans)...)
	if !c.o.NoCheck {
		if err := c.verify(); err != nil {
			return err
		}
	}
	return c.finish()
}

// writeAll writes the model; a second time when a value turned up that the type
// chosen for its tensor cannot hold.
func (c *staged) writeAll(to stagedFormat) error {
	for {
		if err := to.write(c.stage.model()); err != nil {
			return err
		}
		again := false
		for i := range c.plans {
			before := c.plans[i].dtype
			to.chooseType(&c.plans[i])
			again = again || c.plans[i].dtype != before
		}
		if !again {
			return nil
		}
	}
}

// progress is told the bytes of the source that are written.
func (c *staged) progress() func(int64) {
	total := int64(0)
	for _, p := range c.plans {
		total += int64(len(p.tensor.Data))
	}
	return counter(func(done int64) { c.o.Progress("writing", done, total) })
}

// verify reads the written model back: its configuration and tensors must be those
// of the source, converted, byte for byte, and give the source's logits.
func (c *staged) verify() error {
	written, err := model.Open(c.stage.model(), model.OpenOptions{})
	if err != nil {
		return fmt.Errorf("the written file cannot be read back: %w", err)
	}
	defer written.Close()
	if got, want := configKV(written.Parts.Config), configKV(c.src.Parts.Config); !reflect.DeepEqual(got, want) {
		return fmt.Errorf("the written file has another configuration: %v, expected %v", got, want)
	}
	for i := range c.plans {
		p := &c.plans[i]
		at := slices.IndexFunc(written.Parts.Tensors, func(t model.Tensor) bool { return t.Name == p.Name })
		if at < 0 {
			return fmt.Errorf("the written file lacks the tensor %s", p.Name)
		}
		t := &written.Parts.Tensors[at]
		same := &comparer{want: t.Data}
		if err := p.write(c.ctx, same, false, func(int64) {}); err != nil {
			return err
		}
		if t.DType != p.dtype || len(same.want) > 0 {
			return fmt.Errorf("the tensor %s was written with other values than the source has", p.Name)
		}
	}
	m, err := written.Build()
	if err != nil {
		return fmt.Errorf("the written file cannot be read back: %w", err)
	}
	return c.compare(m)
}

// configKV is a configuration without what is computed from weights.
func configKV(c model.Config) []gguf.KV {
	c.LogitBound = nil
	return c.KV()
}

// comparer is a writer that takes the bytes it wants off, and fails on others.
type comparer struct{ want []byte }

func (c *comparer) Write(b []byte) (int, error) {
	if !bytes.HasPrefix(c.want, b) {
		return 0, errors.New("the written values are not those of the source")
	}
	c.want = c.want[len(b):]
	return len(b), nil
}

// compare runs the written weights beside the source's.
func (c *staged) compare(written *model.Model) error {
	total, done := int64(0), int64(0)
	for _, n := range Lengths {
		total += int64(n)
	}
	for _, n := range Lengths {
		d, err := Compare(c.ctx, c.model, written, n, c.o.Threads)
		if err != nil {
			return err
		}
		c.report.Verification = append(c.report.Verification, d)
		if allowed := d.Allowed(c.o.Type, c.o.Atol); !(d.MaxAbs <= allowed) {
			return &VerifyError{d, allowed}
		}
		done += int64(n)
		c.o.Progress("verifying", done, total)
	}
	return nil
}

// finish gives everything its place.
func (c *staged) finish() error {
	names, size, err := c.stage.files()
	if err != nil {
		return err
	}
	c.report.OutputBytes = size
	if c.o.Measure {
		if c.report.OutputSHA256, err = hashFiles(c.ctx, []string{c.stage.model()}); err != nil {
			return err
		}
	}
	for _, name := range names {
		c.report.Files = append(c.report.Files, filepath.Join(c.stage.dir, name))
	}
	return c.stage.commit(names)
}
