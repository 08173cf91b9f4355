package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// Progress shows how far a long step is, with its rate and the time left, on
// stderr: one line that is drawn over on a terminal, and plain lines elsewhere.
// Steps that are over soon show nothing there.
type Progress struct {
	mu    sync.Mutex
	out   io.Writer        // nil: show nothing
	width func() int       // columns of the terminal; nil when out is none
	now   func() time.Time // a clock
	stage string
	start time.Time
	drawn time.Time
	shown int64 // done, in hundredths, when last drawn
	dirty bool
}

// NewProgress makes a Progress; a quiet one shows nothing.
func NewProgress(quiet bool) *Progress {
	p := &Progress{now: time.Now}
	if quiet {
		return p
	}
	p.out = os.Stderr
	if fd := int(os.Stderr.Fd()); term.IsTerminal(fd) {
		p.width = func() int {
			columns, _, err := term.GetSize(fd)
			if err != nil || columns <= 0 {
				return 80
			}
			return columns
		}
	}
	return p
}

// A terminal is drawn anew often enough to look steady. Plain lines come for every
// tenth of the step, but never faster than plainLeast, and never slower than
// plainMost, so that the log of a long step stays short and shows that it lives.
const (
	redraw     = 100 * time.Millisecond
	plainLeast = 10 * time.Second
	plainMost  = time.Minute
)

// Bytes notes that a stage has done so many bytes of a total.
func (p *Progress) Bytes(stage string, done, total int64) {
	p.show(stage, done, total, func(rate float64) string {
		return fmt.Sprintf("%s of %s, %s/s", Bytes(done), Bytes(total), Bytes(int64(rate)))
	})
}

// Tokens notes that a stage has done so many tokens of a total.
func (p *Progress) Tokens(stage string, done, total int64) {
	p.show(stage, done, total, func(rate float64) string {
		return fmt.Sprintf("%d of %d tokens, %.0f tokens/s", done, total, rate)
	})
}

// Count notes that a stage has done so many things of a total.
func (p *Progress) Count(stage string, done, total int64) {
	p.show(stage, done, total, func(rate float64) string {
		return fmt.Sprintf("%d of %d, %.3g/s", done, total, rate)
	})
}

func (p *Progress) show(stage string, done, total int64, describe func(rate float64) string) {
	if p.out == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if stage != p.stage {
		p.clear()
		p.stage, p.start, p.drawn, p.shown = stage, now, now, 0
	}
	done = min(max(done, 0), max(total, 0)) // the bar has no other place
	percent := 100 * done / max(total, 1)
	if !p.due(now.Sub(p.drawn), percent) {
		return
	}
	p.drawn, p.shown = now, percent
	rate := float64(done) / now.Sub(p.start).Seconds()
	line := fmt.Sprintf("%s %3d%%  %s", stage, percent, describe(rate))
	if rate > 0 && done < total {
		left := time.Duration(float64(total-done) / rate * float64(time.Second))
		line += fmt.Sprintf(", %s left", left.Round(time.Second))
	}
	if p.width == nil {
		fmt.Fprintln(p.out, line)
		return
	}
	const bar = 20
	filled := int(bar * done / max(total, 1))
	line = fmt.Sprintf("[%s%s] %s", strings.Repeat("#", filled), strings.Repeat("-", bar-filled), line)
	// A line that wraps could not be drawn over.
	if most := p.width() - 1; len(line) > most {
		line = line[:max(most, 0)]
	}
	fmt.Fprint(p.out, "\r\x1b[K"+line)
	p.dirty = true
}

// due reports whether to draw again, so long after the last time.
func (p *Progress) due(since time.Duration, percent int64) bool {
	if p.width != nil {
		return since >= redraw
	}
	return since >= plainMost || since >= plainLeast && percent >= p.shown+10
}

// Done removes the line, so that what follows starts clean.
func (p *Progress) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

func (p *Progress) clear() {
	if p.dirty {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.dirty = false
	}
}
