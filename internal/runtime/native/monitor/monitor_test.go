package monitor

import (
	"context"
	"errors"
	"testing"
)

// TestMonitorDoesNotAnswer: a call about a shown log waits no longer than its caller wants.
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
