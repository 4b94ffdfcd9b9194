package rehearse

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// begin starts one of the parts of TestMain.
func begin(t *testing.T, name string) *part {
	t.Helper()
	p := &part{name: name, env: os.Environ(), log: filepath.Join(t.TempDir(), name+".log")}
	if err := p.start(); err != nil {
		t.Fatalf("start: got %v, want nil", err)
	}
	t.Cleanup(p.kill)
	return p
}

// ready waits until the part has said so in its log.
func ready(t *testing.T, p *part) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	return p.await(ctx, func(context.Context) error {
		text, err := os.ReadFile(p.log)
		if err == nil && string(text) != "ready\n" {
			err = errors.New("it is not ready")
		}
		return err
	})
}

func wantNamed(t *testing.T, err error, p *part) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), p.log) {
		t.Errorf("got %v, want an error that names %s", err, p.log)
	}
	if p.running() {
		t.Error("the part is running, want its end")
	}
}

func TestPart_EndIsToldUnlessItDrained(t *testing.T) {
	t.Parallel()
	for name, within := range map[string]time.Duration{"deaf": 50 * time.Millisecond, "failing": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := begin(t, name)
			if err := ready(t, p); err != nil {
				t.Fatalf("await: got %v, want nil", err)
			}
			wantNamed(t, p.end(syscall.SIGTERM, within), p)
			if err := p.trouble(); err != nil {
				t.Errorf("trouble of a part that was told to end: got %v, want nil", err)
			}
		})
	}
}

func TestPart_OneThatCannotStartIsNotAwaited(t *testing.T) {
	t.Parallel()
	p := begin(t, "nobody")
	wantNamed(t, ready(t, p), p)
	wantNamed(t, p.trouble(), p)
}
