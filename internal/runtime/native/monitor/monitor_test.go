package monitor

import (
	"context"
	"errors"
	"testing"
)

// TestMonitorDoesNotAnswer: a call of Shown waits no longer than its context.
func TestMonitorDoesNotAnswer(t *testing.T) {
	conn, theirs := connection(t)
	m := newMonitor(conn, nil)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := m.Shown(ctx, "id"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	theirs.Close()
	if err := m.Shown(context.Background(), "id"); !errors.Is(err, ErrGone) {
		t.Error(err)
	}
}
