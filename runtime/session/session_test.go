package session_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/cpu"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/runtime/session"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

var update = flag.Bool("update", false, "write testdata anew")

const identity = "the identity of the model of the tests"

// newEngine runs a small random model, whose keys die fast.
func newEngine(t testing.TB) (*cpu.Engine, model.Config) {
	t.Helper()
	c := modeltest.Config()
	c.Blocks, c.KeyShift, c.KVHeads = 1, true, 2
	m, err := model.Build(c, modeltest.Random(c, 7, false).Tensors)
	if err != nil {
		t.Fatal(err)
	}
	for h := range m.Layers[0].Slope {
		m.Layers[0].Slope[h] *= 20
	}
	m.LogitBound = m.LogitBounds(quant.F16)
	e, err := cpu.New(m, cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e, c
}

// feed feeds ids in chunks and returns the logits of every position.
func feed(t testing.TB, s engine.Session, ids []int32, chunk int) []float32 {
	t.Helper()
	var out []float32
	for part := range slices.Chunk(ids, chunk) {
		err := s.Feed(part, func(int) bool { return true }, func(_ int, l []float32) error {
			out = append(out, l...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// save writes a session of which so many ids are fed.
func save(t testing.TB, path string, s engine.Session, typ string, p cache.Policy, ids []int32) session.Meta {
	t.Helper()
	m := session.Meta{
		Program: "test", Model: identity, Engine: "cpu", CacheType: typ, Cache: session.PolicyOf(p), Fed: s.Len(),
		Messages: []session.Message{{Role: "user", Content: "héllo\n\x00"}, {Role: "assistant", Content: "ah"}}, Reply: 3,
	}
	size, err := session.Write(path, m, ids, s)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != size {
		t.Fatalf("%v, the file has %d bytes, expected %d", err, info.Size(), size)
	}
	return m
}

// TestRoundTrip saves and restores with every mode and type of the cache. In the
// same chunks the logits are the same to the bit, in others nearly.
func TestRoundTrip(t *testing.T) {
	e, c := newEngine(t)
	ids := modeltest.Tokens(120, c.VocabSize, 3)
	path := filepath.Join(t.TempDir(), "a session")
	for _, p := range []cache.Policy{
		{Mode: cache.Off}, {Mode: cache.Exact}, {Mode: cache.Bounded, Eps: 1e-2}, {Mode: cache.Measured, Eps: 0.1},
		{Mode: cache.Budget, Keep: cache.Keep{Share: 0.4}}, {Mode: cache.Budget, Keep: cache.Keep{Bytes: 5000}},
	} {
		for name, typ := range map[string]quant.DType{"f16": quant.F16, "q8_0": quant.Q8_0, "f32": quant.F32} {
			s, err := e.NewSession(typ, p)
			if err != nil {
				t.Fatal(err)
			}
			feed(t, s, ids[:70], 30)
			meta := save(t, path, s, name, p, ids[:75])
			want := feed(t, s, ids[70:], 25)
			for _, chunk := range []int{25, 7, 1} {
				f, err := session.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if !reflect.DeepEqual(f.Meta, meta) || !slices.Equal(f.IDs, ids[:75]) {
					t.Errorf("saved %+v, %v, restored %+v, %v", meta, ids[:75], f.Meta, f.IDs)
				}
				restored, err := f.Restore(e, "cpu", identity, c.VocabSize)
				if err != nil {
					t.Fatal(err)
				}
				got := feed(t, restored, ids[70:], chunk)
				worst := 0.0
				for i := range want {
					worst = max(worst, math.Abs(float64(got[i])-float64(want[i])))
				}
				// Keys rounded to other neighbours, and dropped at other tokens, are
				// no matter of saving: only exact sums can be compared so closely.
				exact := typ == quant.F32 && (p.Mode == cache.Off || p.Mode == cache.Exact)
				if chunk == 25 && !slices.Equal(got, want) || exact && !(worst <= 1e-4) {
					t.Errorf("%s %s, chunks of %d: logits differ by %g", p.Mode, name, chunk, worst)
				}
			}
		}
	}
}

// example is a small session file, and the engine it belongs to.
func example(t testing.TB) (data []byte, e *cpu.Engine, c model.Config, ids []int32) {
	t.Helper()
	e, c = newEngine(t)
	ids = modeltest.Tokens(21, c.VocabSize, 3)
	p := cache.Policy{Mode: cache.Bounded, Eps: 1e-2}
	s, err := e.NewSession(quant.F16, p)
	if err != nil {
		t.Fatal(err)
	}
	feed(t, s, ids[:20], 8)
	path := filepath.Join(t.TempDir(), "session")
	save(t, path, s, "f16", p, ids)
	if data, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	return data, e, c, ids
}

// TestGolden reads a file of version 1, so that what is in one does not change
// while the version stays.
func TestGolden(t *testing.T) {
	const path = "testdata/version1.fpas"
	data, e, c, ids := example(t)
	if *update {
		if err := os.WriteFile(path, data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	f, err := session.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := f.Restore(e, "cpu", identity, c.VocabSize)
	if err != nil {
		t.Fatal(err)
	}
	got := feed(t, s, f.IDs[f.Fed:], 1)
	fresh, err := e.NewSession(quant.F16, cache.Policy{Mode: cache.Bounded, Eps: 1e-2})
	if err != nil {
		t.Fatal(err)
	}
	feed(t, fresh, ids[:20], 8)
	for i, want := range feed(t, fresh, ids[20:], 1) {
		// The file may come from a machine whose kernels sum in another order.
		if !(math.Abs(float64(got[i]-want)) < 1e-2) {
			t.Fatalf("logit %d is %g, expected %g", i, got[i], want)
		}
	}
}

func TestPermissions(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no such permissions")
	}
	e, c := newEngine(t)
	s, err := e.NewSession(quant.F16, cache.Policy{Mode: cache.Off})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "session")
	ids := modeltest.Tokens(5, c.VocabSize, 3)
	for _, want := range []fs.FileMode{0o600, 0o640} {
		save(t, path, s, "f16", cache.Policy{Mode: cache.Off}, ids)
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%v: the mode is %v, expected %v", err, info.Mode(), want)
		}
		if err := os.Chmod(path, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	m := session.Meta{Model: identity, Engine: "cpu", CacheType: "f16", Cache: session.Policy{Mode: cache.Off}}
	if _, err := session.Write(link, m, nil, s); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("%v: the link was replaced", err)
	}
	if f, err := session.Open(path); err != nil || len(f.IDs) != 0 {
		t.Errorf("%v: the file behind the link was not written", err)
	} else {
		f.Close()
	}
}

// TestWriteFails leaves the old file as it was.
func TestWriteFails(t *testing.T) {
	data, e, c, _ := example(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "session")
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	p := cache.Policy{Mode: cache.Off}
	s, err := e.NewSession(quant.F32, p)
	if err != nil {
		t.Fatal(err)
	}
	feed(t, s, modeltest.Tokens(300, c.VocabSize, 1), 64)
	good := session.Meta{Model: identity, Engine: "cpu", CacheType: "f32", Cache: session.PolicyOf(p), Fed: 300}
	audited, err := e.NewSession(quant.F16, cache.Policy{Mode: cache.Exact, Audit: true})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		says   string
		change func(*session.Meta)
		path   string
		s      engine.Session
	}{
		"fed":       {"300 tokens, not 299", func(m *session.Meta) { m.Fed = 299 }, path, s},
		"reply":     {"the answer begins", func(m *session.Meta) { m.Reply = 301 }, path, s},
		"type":      {"cache type", func(m *session.Meta) { m.CacheType = "F32" }, path, s},
		"int8":      {"activations", func(m *session.Meta) { m.Activations = "f32" }, path, s},
		"model":     {"identity", func(m *session.Meta) { m.Model = "" }, path, s},
		"mode":      {"mode", func(m *session.Meta) { m.Cache.Mode = "" }, path, s},
		"no answer": {"answer", func(m *session.Meta) { m.Messages = []session.Message{{Role: "user"}} }, path, s},
		"audited":   {"audited", func(m *session.Meta) { m.Fed = 0 }, path, audited},
		"folder":    {"folder", func(*session.Meta) {}, dir, s},
		"missing":   {"no such file", func(*session.Meta) {}, filepath.Join(dir, "missing", "x"), s},
	} {
		m := good
		c.change(&m)
		_, err := session.Write(c.path, m, modeltest.Tokens(300, 60, 1), c.s)
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Count(err.Error(), c.path) != 1 {
			t.Errorf("%s: %v, expected %q and the path, once", name, err, c.says)
		}
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, data) {
		t.Errorf("%v: the old file has changed", err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("%v: the folder holds %v", err, list)
	}
}

// seal puts the right checksum behind a file that has none.
func seal(body []byte) []byte {
	sum := sha256.Sum256(body)
	return append(slices.Clone(body), sum[:]...)
}

// try opens and restores a file, and runs what comes out.
func try(t testing.TB, path string, data []byte, e engine.Engine, vocabulary int) error {
	t.Helper()
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := session.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	s, err := f.Restore(e, "cpu", identity, vocabulary)
	if err != nil {
		return err
	}
	// Keys and values may be anything, so logits may come out not finite.
	_ = s.Feed([]int32{1, 2, 3, 4, 5, 6}, nil, func(int, []float32) error { return nil })
	s.CacheStats()
	return nil
}

// TestHostile gives files that are wrong, most of them with a right checksum.
func TestHostile(t *testing.T) {
	data, e, c, _ := example(t)
	body := data[:len(data)-sha256.Size]
	metaLen := int(binary.LittleEndian.Uint32(body[12:]))
	meta, rest := string(body[16:16+metaLen]), body[16+metaLen:]
	const ids = 21
	state := rest[8+4*ids:]
	build := func(meta string, list []int32, state []byte) []byte {
		b := binary.LittleEndian.AppendUint32(slices.Clone(body[:12]), uint32(len(meta)))
		b = append(b, meta...)
		b = binary.LittleEndian.AppendUint64(b, uint64(len(list)))
		for _, id := range list {
			b = binary.LittleEndian.AppendUint32(b, uint32(id))
		}
		return append(b, state...)
	}
	list := make([]int32, ids)
	if good := seal(build(meta, list, state)); try(t, filepath.Join(t.TempDir(), "s"), good, e, c.VocabSize) != nil {
		t.Fatal("the file that is taken apart and put together is not right")
	}
	put32 := func(at int, v uint32) []byte {
		b := slices.Clone(body)
		binary.LittleEndian.PutUint32(b[at:], v)
		return b
	}
	put64 := func(at int, v uint64) []byte {
		b := slices.Clone(body)
		binary.LittleEndian.PutUint64(b[at:], v)
		return b
	}
	inMeta := func(old, with string) []byte {
		if !strings.Contains(meta, old) {
			t.Fatalf("%s: no %s", meta, old)
		}
		return build(strings.Replace(meta, old, with, 1), list, state)
	}
	atIDs, atState := 16+metaLen, len(body)-len(state)
	cases := map[string]struct {
		says string
		data []byte
	}{
		"empty":                {"no session file", nil},
		"another kind of file": {"no session file", []byte("GGUF and more than enough bytes of something else, so that it is no stub")},
		"magic alone":          {"cut off", []byte("FPASESS\n")},
		"head alone":           {"cut off", body[:16]},
		"not sealed":           {"checksum", body},
		"one byte more":        {"checksum", append(slices.Clone(data), 0)},
		"newer version":        {"version 2", seal(put32(8, 2))},
		"version 0":            {"version 0", seal(put32(8, 0))},
		"version 2^32-1":       {"version 4294967295", seal(put32(8, math.MaxUint32))},
		"long metadata":        {"the metadata has 4294967295 bytes", seal(put32(12, math.MaxUint32))},
		"metadata of 2^28":     {"the metadata has 268435456 bytes", seal(put32(12, 1<<28))},
		"metadata to the end":  {"the metadata has", seal(put32(12, uint32(len(body)-16)))},
		"no metadata":          {"", seal(put32(12, 0))},
		"2^63 ids":             {"9223372036854775808 tokens", seal(put64(atIDs, 1<<63))},
		"2^62 ids":             {"tokens", seal(put64(atIDs, 1<<62))},
		"ids beyond the end":   {"tokens", seal(put64(atIDs, uint64(len(state))))},
		"no ids":               {"20 tokens are fed, of 0", seal(build(meta, nil, state))},
		"negative id":          {"token 3 is id 4294967295", seal(build(meta, []int32{0, 0, 0, -1, 0}, state))},
		"id of no vocabulary":  {"token 20 is id 67", seal(build(meta, append(slices.Clone(list[1:]), 67), state))},
		"not JSON":             {"metadata", seal(build("{", list, state))},
		"JSON null":            {"cache type", seal(build("null", list, state))},
		"two objects":          {"more than one", seal(build(meta+"{}", list, state))},
		"unknown field":        {"unknown field", seal(inMeta(`{"program"`, `{"extra":1,"program"`))},
		"wrong type":           {"metadata", seal(inMeta(`"fed":20`, `"fed":"20"`))},
		"fed is negative":      {"-1 tokens are fed", seal(inMeta(`"fed":20`, `"fed":-1`))},
		"fed beyond":           {"22 tokens are fed", seal(inMeta(`"fed":20`, `"fed":22`))},
		"fed is not the state": {"the engine's state has 20 tokens, the metadata 19", seal(inMeta(`"fed":20`, `"fed":19`))},
		"huge number":          {"metadata", seal(inMeta(`"fed":20`, `"fed":1e400`))},
		"reply":                {"the answer begins", seal(inMeta(`"reply":3`, `"reply":22`))},
		"cache type":           {"cache type", seal(inMeta(`"f16"`, `"q4"`))},
		"another cache type":   {"state of the engine", seal(inMeta(`"f16"`, `"f32"`))},
		"mode":                 {"mode", seal(inMeta(`"bounded"`, `"all"`))},
		"another mode":         {"state of the engine", seal(inMeta(`"bounded"`, `"off"`))},
		"eps":                  {"weight that may be removed", seal(inMeta(`"eps":0.01`, `"eps":7`))},
		"no eps":               {"weight that may be removed", seal(inMeta(`"eps":0.01`, `"eps":0`))},
		"another model":        {"another model", seal(inMeta(identity, "some other"))},
		"no model":             {"identity", seal(inMeta(identity, ""))},
		"another engine":       {"saved by the engine \"gpu\"", seal(inMeta(`"cpu"`, `"gpu"`))},
		"no engine":            {"engine is missing", seal(inMeta(`"cpu"`, `""`))},
		"last message":         {"last message", seal(inMeta(`"assistant"`, `"tool"`))},
		"no state":             {"state of the engine", seal(build(meta, list, nil))},
		"state goes on":        {"goes on after its end", seal(append(slices.Clone(body), 1))},
		"2^63 tokens":          {"state of the engine", seal(put64(atState, 1<<63))},
		"2^31 tokens":          {"state of the engine", seal(put64(atState, 1<<31-1))},
	}
	path := filepath.Join(t.TempDir(), "a session")
	for name, x := range cases {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := try(t, path, x.data, e, c.VocabSize)
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), x.says) || !strings.HasPrefix(err.Error(), path+": ") {
				t.Fatalf("%v, expected %q and the path", err, x.says)
			}
			if !strings.Contains(err.Error(), "to start anew") && !strings.Contains(err.Error(), "does not exist yet") {
				t.Errorf("%q does not say what to do", err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 2<<20 {
				t.Errorf("%d bytes were allocated", took)
			}
		})
	}
	for _, path := range []string{t.TempDir(), os.DevNull, filepath.Join(t.TempDir(), "missing")} {
		if _, err := session.Open(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestTruncated cuts a file at every place of its beginning and its end and at many
// between, and changes bytes; with a wrong checksum, and with a right one.
func TestTruncated(t *testing.T) {
	data, e, c, _ := example(t)
	body := data[:len(data)-sha256.Size]
	path := filepath.Join(t.TempDir(), "session")
	for n := 0; n < len(data); n++ {
		if n > 600 && n < len(data)-100 && n%53 != 0 {
			continue
		}
		if err := try(t, path, data[:n], e, c.VocabSize); err == nil {
			t.Errorf("cut to %d bytes: no error", n)
		}
		if n < len(body) {
			if err := try(t, path, seal(body[:n]), e, c.VocabSize); err == nil {
				t.Errorf("cut to %d bytes, with a checksum: no error", n)
			}
		}
		changed := slices.Clone(data)
		changed[n] ^= 1 << (n % 8)
		if err := try(t, path, changed, e, c.VocabSize); err == nil {
			t.Errorf("byte %d changed: no error", n)
		}
		if n < len(body) {
			_ = try(t, path, seal(changed[:len(body)]), e, c.VocabSize) // an error, or another session
		}
	}
}

// FuzzOpen gives anything, with a right checksum: an error, or a session that
// runs and is written back to the same metadata and tokens.
func FuzzOpen(f *testing.F) {
	data, e, c, _ := example(f)
	body := data[:len(data)-sha256.Size]
	f.Add(body)
	f.Add(body[:len(body)/2])
	f.Add(body[:20])
	f.Fuzz(func(t *testing.T, body []byte) {
		path := filepath.Join(t.TempDir(), "session")
		if err := try(t, path, seal(body), e, c.VocabSize); err != nil {
			return
		}
		a, err := session.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		s, err := a.Restore(e, "cpu", identity, c.VocabSize)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := session.Write(path, a.Meta, a.IDs, s); err != nil {
			t.Fatal(err)
		}
		b, err := session.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		x, _ := json.Marshal(a.Meta)
		y, _ := json.Marshal(b.Meta)
		if !bytes.Equal(x, y) || !slices.Equal(a.IDs, b.IDs) {
			t.Errorf("%s, %v became %s, %v", x, a.IDs, y, b.IDs)
		}
	})
}

func ExampleWrite() {
	p := modeltest.Random(modeltest.Config(), 1, false)
	m, err := model.Build(p.Config, p.Tensors)
	if err != nil {
		panic(err)
	}
	e, err := cpu.New(m, cpu.Options{})
	if err != nil {
		panic(err)
	}
	defer e.Close()
	s, err := e.NewSession(quant.F16, cache.Policy{Mode: cache.Exact})
	if err != nil {
		panic(err)
	}
	ids := []int32{5, 9, 2}
	if err := s.Feed(ids, nil, func(int, []float32) error { return nil }); err != nil {
		panic(err)
	}
	path := filepath.Join(os.TempDir(), fmt.Sprintf("example-%d.fpas", os.Getpid()))
	defer os.Remove(path)
	meta := session.Meta{Model: "abc", Engine: "cpu", CacheType: "f16", Cache: session.Policy{Mode: cache.Exact}, Fed: s.Len()}
	if _, err := session.Write(path, meta, ids, s); err != nil {
		panic(err)
	}

	f, err := session.Open(path)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	again, err := f.Restore(e, "cpu", "abc", m.VocabSize)
	if err != nil {
		panic(err)
	}
	fmt.Println(f.IDs, again.Len())
	// Output: [5 9 2] 3
}
