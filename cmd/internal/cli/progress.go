package cli

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// Progress shows how far a long step is, on stderr: one line that is drawn over
// on a terminal, and a plain line every few seconds elsewhere.
type Progress struct {
	mu       sync.Mutex
	quiet    bool
	terminal bool
	stage    string
	start    time.Time
	drawn    time.Time
	dirty    bool
}

// NewProgress makes a Progress; a quiet one shows nothing.
func NewProgress(quiet bool) *Progress {
	return &Progress{quiet: quiet, terminal: term.IsTerminal(int(os.Stderr.Fd()))}
}

const (
	redrawTerminal = 100 * time.Millisecond
	redrawPlain    = 5 * time.Second
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
	p.show(stage, done, total, func(float64) string { return fmt.Sprintf("%d of %d", done, total) })
}

func (p *Progress) show(stage string, done, total int64, describe func(rate float64) string) {
	if p.quiet {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if stage != p.stage {
		p.clear()
		p.stage, p.start, p.drawn = stage, now, now
	}
	wait := redrawPlain
	if p.terminal {
		wait = redrawTerminal
	}
	if now.Sub(p.drawn) < wait {
		return
	}
	p.drawn = now
	seconds := now.Sub(p.start).Seconds()
	rate := float64(done) / seconds
	line := fmt.Sprintf("%s %3d%%  %s", stage, 100*done/max(total, 1), describe(rate))
	if rate > 0 && done < total {
		left := time.Duration(float64(total-done) / rate * float64(time.Second))
		line += fmt.Sprintf(", %s left", left.Round(time.Second))
	}
	if p.terminal {
		const width = 20
		filled := int(width * done / max(total, 1))
		fmt.Fprintf(os.Stderr, "\r\x1b[K[%s%s] %s", strings.Repeat("#", filled), strings.Repeat("-", width-filled), line)
		p.dirty = true
		return
	}
	fmt.Fprintln(os.Stderr, line)
}

// Done removes the line, so that what follows starts clean.
func (p *Progress) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

func (p *Progress) clear() {
	if p.dirty {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
		p.dirty = false
	}
}

// Bytes is a number of bytes for people: 12 B, 3.4 kB, 5.6 MB.
func Bytes(n int64) string {
	v := float64(n)
	for _, unit := range []string{"B", "kB", "MB"} {
		if v < 999.5 {
			if unit == "B" {
				return fmt.Sprintf("%d B", n)
			}
			return fmt.Sprintf("%.3g %s", v, unit)
		}
		v /= 1000
	}
	return fmt.Sprintf("%.3g GB", v)
}
