package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// stack runs parts and stops them in reverse: a part never outlives the parts it depends on. Each
// part has one lifecycle, Run(ctx), which returns when ctx is done and everything that the part
// started has stopped.
//
//	start ─▶ start ─▶ … ─▶ wait ──a part fails or ctx is done──▶ stop ◀─ stop ◀─ …
type stack struct {
	parts  []*part
	failed chan error
}

type part struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func newStack() *stack { return &stack{failed: make(chan error, 1)} }

// start runs a part until stop. Its context ends at its turn in stop, not with the caller's
// context.
func (s *stack) start(ctx context.Context, name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &part{name: name, cancel: cancel, done: make(chan struct{})}
	s.parts = append(s.parts, p)
	go func() {
		defer close(p.done)
		err := run(ctx)
		if ctx.Err() != nil {
			if err != nil && !errors.Is(err, context.Canceled) {
				p.err = fmt.Errorf("stop %s: %w", name, err)
			}
			return
		}
		if err == nil {
			err = errors.New("ended by itself")
		}
		select {
		case s.failed <- fmt.Errorf("%s: %w", name, err):
		default:
		}
	}()
}

// await waits for ready; it fails if a part fails first or ctx is done.
func (s *stack) await(ctx context.Context, ready <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	case err := <-s.failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait blocks until ctx is done or a part fails.
func (s *stack) wait(ctx context.Context) error {
	select {
	case err := <-s.failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// stop ends all parts, in reverse order of their start.
func (s *stack) stop() error {
	var errs []error
	for _, p := range slices.Backward(s.parts) {
		p.cancel()
		<-p.done
		errs = append(errs, p.err)
	}
	s.parts = nil
	return errors.Join(errs...)
}
