package seatctl

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress tells how far the reading of a file is: a bar on a terminal, and elsewhere
// a line each ten seconds.
type progress struct {
	to    io.Writer
	bar   *progressbar.ProgressBar // nil where there is no terminal
	size  int64                    // of the file in bytes; -1 when nobody knows
	now   func() time.Time
	began time.Time
	told  time.Time
}

const tellEvery = 10 * time.Second

func newProgress(to io.Writer, size int64, now func() time.Time) *progress {
	p := &progress{to: to, size: size, now: now, began: now()}
	p.told = p.began
	if f, ok := to.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		// No change of the spinner by itself: that would be a goroutine without an end.
		p.bar = progressbar.NewOptions64(size, progressbar.OptionSetWriter(to), progressbar.OptionFullWidth(),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(), progressbar.OptionSetSpinnerChangeInterval(0))
	}
	return p
}

// at says that so many rows and bytes of the file have been read.
func (p *progress) at(rows int, bytes int64) {
	now := p.now()
	text := fmt.Sprintf("%d rows", rows)
	if took := now.Sub(p.began).Seconds(); took > 0 {
		text += fmt.Sprintf(", %.0f rows/s", float64(rows)/took)
	}
	switch {
	case p.bar != nil:
		p.bar.Describe(text)
		_ = p.bar.Set64(bytes) // nothing hangs on it
	case now.Sub(p.told) >= tellEvery:
		p.told = now
		if p.size > 0 {
			text += fmt.Sprintf(", %d %% of the file", 100*bytes/p.size)
		}
		fmt.Fprintln(p.to, text)
	}
}

// end takes the bar away.
func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}
