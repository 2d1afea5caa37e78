package filewatch

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A file that is written, replaced, or missing is checked after each change, and again when look
// requests it.
func TestFollow(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config")
	ctx, cancel := context.WithCancel(t.Context())
	seen, polls := make(chan string, 100), 2
	done := make(chan struct{})
	go func() {
		defer close(done)
		Follow(ctx, file, func(context.Context) time.Duration {
			text, err := os.ReadFile(file)
			if err != nil {
				text = []byte("none")
			}
			seen <- string(text)
			if string(text) == "one" && polls > 0 {
				polls--
				return time.Millisecond
			}
			return 0
		})
	}()
	until := func(want string, times int) {
		t.Helper()
		for got := range seen {
			if got == want {
				if times--; times == 0 {
					return
				}
			}
		}
	}
	until("none", 1)
	if err := os.WriteFile(file, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	until("one", 3)
	if err := os.WriteFile(file+".new", []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	until("two", 1)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	until("none", 1)
	cancel()
	<-done
}

// The file is also checked if its directory is missing.
func TestNoDirectory(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	Follow(ctx, filepath.Join(t.TempDir(), "none", "config"), func(context.Context) time.Duration {
		cancel()
		return 0
	})
}
