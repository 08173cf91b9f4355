package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// browser is a page in a headless Chromium, driven through its DevTools protocol
// over a pipe: JSON messages that end in a zero byte, on file descriptors 3 (to the
// browser) and 4 (from it). See
// https://chromedevtools.github.io/devtools-protocol/.
type browser struct {
	t       *testing.T
	ctx     context.Context
	to      *os.File
	session string

	mu       sync.Mutex
	id       int
	waiting  map[int]chan reply
	loaded   chan struct{} // a page has loaded
	problems []string      // console messages, exceptions and failed loads
}

// reply is a message of the browser: an answer, which has an id, or an event.
type reply struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// chromium is the browser's program: FPA_CHROMIUM, or what the PATH has.
func chromium(t *testing.T) string {
	t.Helper()
	if name := os.Getenv("FPA_CHROMIUM"); name != "" {
		return name
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("FPA_REQUIRE_ORACLES") != "" {
		t.Fatal("no Chromium on the PATH, and FPA_CHROMIUM names none")
	}
	t.Skip("no Chromium on the PATH, and FPA_CHROMIUM names none")
	return ""
}

// newBrowser starts a browser that ends with the test.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	program := chromium(t)
	limit, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	ctx, end := context.WithCancelCause(limit)
	// Its processes may still write to the profile when the first of them has
	// ended, which t.TempDir would take for a failure.
	profile, err := os.MkdirTemp("", "fpa-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	theirs, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// No sandbox: root cannot have one, nor can many containers, and the page is
	// our own. The other flags keep it from looking for its maker's servers.
	cmd := exec.CommandContext(limit, program, "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
		"--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--disable-dev-shm-usage", "--user-data-dir="+profile, "about:blank")
	cmd.ExtraFiles = []*os.File{theirs, theirOut}
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatalf("%s: %v", program, err)
	}
	theirs.Close()
	theirOut.Close()
	b := &browser{t: t, ctx: ctx, to: to, waiting: make(map[int]chan reply), loaded: make(chan struct{}, 1)}
	go func() {
		b.read(from)
		end(errors.New("the browser has ended"))
	}()
	t.Cleanup(func() {
		b.session = ""
		b.call("Browser.close", nil, nil)
		to.Close()
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Logf("the browser ended with %v:\n%s", err, log.Bytes())
		}
		from.Close()
		cancel()
		os.RemoveAll(profile)
	})

	var target struct{ TargetID string }
	b.must("Target.createTarget", params{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.must("Target.attachToTarget", params{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Runtime", "Log", "Page"} {
		b.must(domain+".enable", nil, nil)
	}
	return b
}

type params map[string]any

// read takes the browser's messages until it ends.
func (b *browser) read(from *os.File) {
	r := bufio.NewReader(from)
	for {
		data, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m reply
		if err := json.Unmarshal(data[:len(data)-1], &m); err != nil {
			m = reply{Method: "unreadable message", Params: data}
		}
		b.mu.Lock()
		if c := b.waiting[m.ID]; c != nil {
			c <- m
			delete(b.waiting, m.ID)
		}
		switch m.Method {
		case "Page.loadEventFired":
			b.loaded <- struct{}{}
		case "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "unreadable message":
			b.problems = append(b.problems, m.Method+": "+string(m.Params))
		}
		b.mu.Unlock()
	}
}

// call sends a command and waits for its answer, which goes to result.
func (b *browser) call(method string, p params, result any) error {
	c := make(chan reply, 1)
	b.mu.Lock()
	b.id++
	id := b.id
	b.waiting[id] = c
	b.mu.Unlock()
	if p == nil {
		p = params{}
	}
	message := params{"id": id, "method": method, "params": p}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if _, err := b.to.Write(append(data, 0)); err != nil {
		return err
	}
	select {
	case m := <-c:
		if m.Error != nil {
			return errors.New(m.Error.Message)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(m.Result, result)
	case <-b.ctx.Done():
		return context.Cause(b.ctx)
	}
}

func (b *browser) must(method string, p params, result any) {
	b.t.Helper()
	if err := b.call(method, p, result); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
}

// open shows a file at a size, in a colour scheme.
func (b *browser) open(path, scheme string, width, height int) {
	b.t.Helper()
	b.must("Emulation.setDeviceMetricsOverride", params{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	b.scheme(scheme)
	b.must("Page.navigate", params{"url": "file://" + filepath.ToSlash(path)}, nil)
	select {
	case <-b.loaded:
	case <-b.ctx.Done():
		b.t.Fatalf("the page does not load: %v", context.Cause(b.ctx))
	}
	b.settle()
}

// scheme switches between "light" and "dark".
func (b *browser) scheme(name string) {
	b.t.Helper()
	b.must("Emulation.setEmulatedMedia", params{"features": []params{{"name": "prefers-color-scheme", "value": name}}}, nil)
}

// settle waits until what has been asked for is drawn.
func (b *browser) settle() {
	b.t.Helper()
	b.eval(`new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`, nil)
}

// eval runs an expression in the page and reads its value.
func (b *browser) eval(expression string, result any) {
	b.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.must("Runtime.evaluate", params{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, r.ExceptionDetails)
	}
	if result != nil {
		if err := json.Unmarshal(r.Result.Value, result); err != nil {
			b.t.Fatalf("%s is %s: %v", expression, r.Result.Value, err)
		}
	}
}

// text is the text of an element.
func (b *browser) text(selector string) string {
	b.t.Helper()
	var s string
	b.eval(fmt.Sprintf("document.querySelector(%q).textContent", selector), &s)
	return s
}

// box is where an element is in the window, in pixels.
func (b *browser) box(selector string) (x, y, width, height float64) {
	b.t.Helper()
	var r [4]float64
	b.eval(fmt.Sprintf("(() => { const r = document.querySelector(%q).getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()", selector), &r)
	return r[0], r[1], r[2], r[3]
}

// mouse sends events of the kinds "mouseMoved", "mousePressed", "mouseReleased" and
// "mouseWheel" at a point of the window.
func (b *browser) mouse(x, y float64, kinds ...string) {
	b.t.Helper()
	for _, kind := range kinds {
		p := params{"type": kind, "x": x, "y": y}
		switch kind {
		case "mousePressed", "mouseReleased":
			p["button"], p["clickCount"] = "left", 1
		case "mouseWheel":
			p["deltaX"], p["deltaY"] = 0, -120
		}
		b.must("Input.dispatchMouseEvent", p, nil)
	}
	b.settle()
}

// key presses a key.
func (b *browser) key(name string) {
	b.t.Helper()
	for _, kind := range []string{"keyDown", "keyUp"} {
		b.must("Input.dispatchKeyEvent", params{"type": kind, "key": name}, nil)
	}
	b.settle()
}

// picture is the window as it looks; it is kept as an artifact of the test.
func (b *browser) picture(name string) *image.RGBA {
	b.t.Helper()
	var shot struct{ Data string }
	b.must("Page.captureScreenshot", params{"format": "png"}, &shot)
	data, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.t.ArtifactDir(), name+".png"), data, 0o666); err != nil {
		b.t.Fatal(err)
	}
	m, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		b.t.Fatal(err)
	}
	out := image.NewRGBA(m.Bounds())
	draw.Draw(out, m.Bounds(), m, m.Bounds().Min, draw.Src)
	return out
}

// quiet fails the test when the page has complained.
func (b *browser) quiet() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.problems) > 0 {
		b.t.Errorf("the page complains:\n%s", strings.Join(b.problems, "\n"))
	}
	b.problems = nil
}

// canvas cuts the chart out of a picture of the window.
func (b *browser) canvas(m *image.RGBA) *image.RGBA {
	b.t.Helper()
	x, y, w, h := b.box("#canvas")
	r := image.Rect(int(x), int(y), int(x+w), int(y+h)).Intersect(m.Bounds())
	out := image.NewRGBA(image.Rect(0, 0, r.Dx(), r.Dy()))
	draw.Draw(out, out.Bounds(), m, r.Min, draw.Src)
	return out
}

// ink says how a picture looks: its brightness in the mean, from 0 to 1, the share
// of pixels that are not of its commonest colour, and the number of its colours.
func ink(m *image.RGBA) (brightness, share float64, colours int) {
	counts := make(map[[4]uint8]int)
	sum, n := 0, len(m.Pix)/4
	for p := m.Pix; len(p) > 0; p = p[4:] {
		counts[[4]uint8(p)]++
		sum += int(p[0]) + int(p[1]) + int(p[2])
	}
	most := slices.Max(slices.Collect(maps.Values(counts)))
	return float64(sum) / float64(3*255*n), 1 - float64(most)/float64(n), len(counts)
}

// same reports whether two pictures are equal.
func same(a, b *image.RGBA) bool {
	return a.Bounds() == b.Bounds() && bytes.Equal(a.Pix, b.Pix)
}

// TestTraceBrowser looks at the page of a passkey prompt of 2,040 tokens as a user
// does, in both colour schemes.
func TestTraceBrowser(t *testing.T) {
	b := newBrowser(t)
	path, html, data := trace(t, "-m", gguf(t), "-f", filepath.Join(passkey, "prompt-8x.txt"))
	chosen := data.Heads[data.Chosen]
	if chosen.Layer != 1 || chosen.Head != 3 {
		t.Errorf("the page begins with layer %d, head %d, expected the one that keeps the passkeys, 1 and 3", chosen.Layer, chosen.Head)
	}
	pictures := map[string]*image.RGBA{}
	for _, scheme := range []string{"light", "dark"} {
		b.open(path, scheme, 1400, 1400)
		m := b.picture(scheme)
		brightness, share, colours := ink(b.canvas(m))
		if share < 0.05 || share > 0.5 || colours < 20 || (brightness > 0.5) != (scheme == "light") {
			t.Errorf("%s: the chart has %d colours, %.1f %% of it are drawn on, brightness %.2f", scheme, colours, 100*share, brightness)
		}
		pictures[scheme] = m
	}
	b.quiet()
	b.scheme("light") // while the page is open
	b.settle()
	if !same(b.picture("switched"), pictures["light"]) {
		t.Error("after a switch to light the page does not look as if opened in it")
	}

	// Every head, at several queries: what the script counts is what Go counts.
	for k, h := range data.Heads {
		l := lives{decodeInts(t, h.Fades), decodeInts(t, h.Dies)}
		live, kept := l.counts()
		b.eval(fmt.Sprintf("document.querySelector('.head[data-head=\"%d\"]').click()", k), nil)
		for _, i := range []int{0, 1, 700, len(live) - 1} {
			b.eval(fmt.Sprintf("(() => { const q = document.querySelector('#query'); q.value = %d; q.dispatchEvent(new Event('input')); })()", i), nil)
			want := fmt.Sprintf("%d live, %d fading, %s dead.", live[i], kept[i]-live[i], count(i+1-kept[i]))
			if status := b.text("#status"); !strings.HasPrefix(status, fmt.Sprintf("Layer %d, head %d,", h.Layer, h.Head)) || !strings.HasSuffix(status, want) {
				t.Errorf("the status is %q, expected layer %d, head %d and %s", status, h.Layer, h.Head, want)
			}
			var rows int
			b.eval("document.querySelectorAll('#kept tbody tr').length", &rows)
			if rows != kept[i] {
				t.Errorf("the table has %d rows for %d keys", rows, kept[i])
			}
		}
	}
	if want := strings.Count(html, `class="head"`); want != 8 {
		t.Errorf("the overview has %d heads", want)
	}

	hover(b)
	zoomAndQuery(b)
	b.quiet()
}

// hover moves the pointer over the chart and the text.
func hover(b *browser) {
	b.t.Helper()
	x, y, w, h := b.box("#canvas")
	tip := func(at string) string {
		var hidden bool
		b.eval("document.querySelector('#tooltip').hidden", &hidden)
		if hidden {
			b.t.Errorf("%s: no tooltip", at)
		}
		return b.text("#tooltip")
	}
	b.mouse(x+w*0.3, y+h*0.2, "mouseMoved")
	first := tip("a third of the way")
	if !strings.Contains(first, "token 5") || !strings.Contains(first, "penalty ") || !strings.Contains(first, "field ") || !strings.Contains(first, "level ") {
		b.t.Errorf("the tooltip says %q", first)
	}
	b.picture("hover")
	b.mouse(x+w*0.6, y+h*0.2, "mouseMoved")
	if second := tip("further on"); second == first {
		b.t.Errorf("the tooltip says %q in two places", second)
	}
	// A row of the lower part: the first key that was kept to the end.
	b.mouse(x+w*0.9, y+h-60, "mouseMoved")
	if row := tip("a life"); !strings.Contains(row, "live at query 2,039: penalty 0") || !strings.Contains(row, "dead at not in this text") {
		b.t.Errorf("the tooltip of a life says %q", row)
	}
	// The line of a kept key's level, far from its token.
	var lineY float64
	b.eval("levelY(view.kept[0])", &lineY)
	b.mouse(x+w*0.8, y+lineY, "mouseMoved")
	if line := tip("a level"); !strings.Contains(line, "live at query 2,039: penalty 0") {
		b.t.Errorf("the tooltip of a kept key's level says %q", line)
	}
	// The penalty of a kept key; two tokens share a pixel there.
	var at [3]float64
	b.eval("[view.kept[3], xOf(layout(), view.kept[3]), penaltyY(view.kept[3])]", &at)
	b.mouse(x+1+at[1], y+1+at[2], "mouseMoved") // within a border of a pixel
	if key := tip("a penalty"); !strings.Contains(key, fmt.Sprintf("token %.0f of", at[0])) {
		b.t.Errorf("the tooltip of token %.0f's penalty says %q", at[0], key)
	}
	b.mouse(2, 2, "mouseMoved")
	var hidden bool
	b.eval("document.querySelector('#tooltip').hidden", &hidden)
	if !hidden {
		b.t.Error("the tooltip stays when the pointer leaves the chart")
	}
}

// zoomAndQuery uses wheel, drag, click, keyboard and the text.
func zoomAndQuery(b *browser) {
	b.t.Helper()
	x, y, w, h := b.box("#canvas")
	stretch := func() (from, to float64) {
		var r [2]float64
		b.eval("[view.from, view.to]", &r)
		return r[0], r[1]
	}
	whole := b.canvas(b.picture("whole"))
	for range 6 {
		b.mouse(x+w/2, y+h/3, "mouseWheel")
	}
	from, to := stretch()
	if to-from > 600 || to-from < 300 {
		b.t.Errorf("six notches of the wheel show tokens %g to %g, expected a quarter", from, to)
	}
	zoomed := b.canvas(b.picture("zoomed"))
	if same(whole, zoomed) {
		b.t.Error("the wheel does not change the chart")
	}
	b.mouse(x+w/2, y+h/3, "mousePressed")
	b.mouse(x+w/2+200, y+h/3, "mouseMoved", "mouseReleased")
	if moved, _ := stretch(); moved >= from {
		b.t.Errorf("after a drag to the right the chart begins at %g, before at %g", moved, from)
	}
	if status := b.text("#status"); !strings.Contains(status, "token 2,039") {
		b.t.Errorf("a drag moves the query: %s", status)
	}
	b.mouse(x+w/2, y+h/3, "mousePressed", "mouseReleased")
	clicked := b.text("#status")
	if strings.Contains(clicked, "token 2,039") {
		b.t.Errorf("a click leaves the query where it was: %s", clicked)
	}
	b.eval("document.querySelector('#canvas').focus()", nil)
	b.key("Home")
	if status := b.text("#status"); !strings.Contains(status, "token 0 “<|bos|>”") {
		b.t.Errorf("the key Home: %s", status)
	}
	if from, to := stretch(); from != 0 || to > 700 {
		b.t.Errorf("the query at 0 is not in sight: tokens %g to %g", from, to)
	}
	b.key("ArrowRight")
	if status := b.text("#status"); !strings.Contains(status, "token 1 “The”") {
		b.t.Errorf("the right arrow: %s", status)
	}
	b.key("0")
	if from, to := stretch(); from != 0 || to != 2039 {
		b.t.Errorf("the key 0 shows tokens %g to %g", from, to)
	}
	b.eval("document.querySelector('#text span[data-token=\"3\"]').click()", nil)
	if status := b.text("#status"); !strings.Contains(status, "token 3 “ painter”") {
		b.t.Errorf("a click on the text: %s", status)
	}
	b.eval("document.querySelector('#text').scrollIntoView()", nil)
	b.settle()
	tx, ty, _, _ := b.box("#text span[data-token=\"3\"]")
	b.mouse(tx+4, ty+8, "mouseMoved")
	if tip := b.text("#tooltip"); !strings.Contains(tip, "“ painter”") {
		b.t.Errorf("the tooltip over the text says %q", tip)
	}
	b.picture("text")
}

// TestTraceBrowserTexts opens pages of other texts and models: hostile, of one
// token, long, without proof of deaths, on a narrow window.
func TestTraceBrowserTexts(t *testing.T) {
	b := newBrowser(t)
	hostile := "</script><script>window.taken = 1</script><img src=x onerror='taken = 2'>\u202e\x01\xff é漢😀\nnew line\tand tab"
	for _, test := range []struct {
		name          string
		width, height int
		args          []string
	}{
		{"hostile", 1400, 1900, []string{"-m", gguf(t), "-p", hostile}},
		{"one-token", 1400, 1900, []string{"-m", gguf(t), "-p", ""}},
		{"long", 1400, 1900, []string{"-m", gguf(t), "-f", filepath.Join(passkey, "prompt-64x.txt")}},
		{"without-proof", 1400, 1900, []string{"-m", variant(t, map[string]any{"field_interval": "inclusive"}), "-f", filepath.Join(passkey, "prompt-1x.txt")}},
		{"narrow", 390, 844, []string{"-m", gguf(t), "-f", filepath.Join(passkey, "prompt-1x.txt")}},
	} {
		path, _, data := trace(t, test.args...)
		b.open(path, "light", test.width, test.height)
		b.quiet()
		var taken, wide bool
		b.eval("'taken' in window", &taken)
		b.eval("document.documentElement.scrollWidth > innerWidth", &wide)
		if taken || wide {
			t.Errorf("%s: a text ran as a script: %v; the page is wider than the window: %v", test.name, taken, wide)
		}
		var spans []string
		b.eval("[...document.querySelectorAll('#text span')].map((s) => s.textContent)", &spans)
		from := len(data.Tokens) / 4096 * 4096 // the script shows so many at once
		for i, s := range spans {
			if want := strings.ReplaceAll(data.Tokens[from+i], "\n", "↵\n"); s != want && want != "" {
				t.Fatalf("%s: token %d reads %q, expected %q", test.name, from+i, s, want)
			}
		}
		if len(spans) != len(data.Tokens)-from {
			t.Errorf("%s: %d of %d tokens are shown", test.name, len(spans), len(data.Tokens))
		}
		b.eval("document.querySelector('#canvas').scrollIntoView({ block: 'center' })", nil)
		b.settle()
		if _, share, colours := ink(b.canvas(b.picture(test.name))); share < 0.01 || colours < 10 {
			t.Errorf("%s: the chart has %d colours, %.1f %% of it are drawn on", test.name, colours, 100*share)
		}
	}
}
