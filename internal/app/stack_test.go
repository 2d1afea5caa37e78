package app

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestStackStopsInReverse(t *testing.T) {
	s := newStack()
	var order []string
	for _, name := range []string{"store", "server", "agent"} {
		s.start(t.Context(), name, func(ctx context.Context) error {
			<-ctx.Done()
			order = append(order, name) // stop waits for each part, so there is no race
			return ctx.Err()
		})
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if want := []string{"agent", "server", "store"}; !slices.Equal(order, want) {
		t.Errorf("stopped in order %v, want %v", order, want)
	}
}

func TestStackReturnsTheFirstFailure(t *testing.T) {
	s := newStack()
	s.start(t.Context(), "good", func(ctx context.Context) error { <-ctx.Done(); return nil })
	s.start(t.Context(), "bad", func(context.Context) error { return errors.New("no luck") })
	if err := s.await(t.Context(), make(chan struct{})); err == nil || err.Error() != "bad: no luck" {
		t.Errorf("await: %v", err)
	}
	s.start(t.Context(), "quiet", func(context.Context) error { return nil })
	if err := s.wait(t.Context()); err == nil || !strings.Contains(err.Error(), "quiet: ended by itself") {
		t.Errorf("wait: %v", err)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

func TestStackOutlivesTheCallersContext(t *testing.T) {
	s := newStack()
	ctx, cancel := context.WithCancel(t.Context())
	cancelled, looked := make(chan struct{}), make(chan struct{})
	s.start(ctx, "part", func(ctx context.Context) error {
		<-cancelled
		if ctx.Err() != nil {
			t.Error("the part's context ended with the caller's")
		}
		close(looked)
		<-ctx.Done()
		return nil
	})
	cancel()
	close(cancelled)
	<-looked
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}
