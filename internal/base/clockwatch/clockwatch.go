// Package clockwatch reports that the wall clock was set, or that the machine was suspended. Timers of Go follow the
// monotonic clock, so they do not notice either. It must never read or set the clock.
package clockwatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Run calls changed after the clock was set by other than small steps, and after the machine was suspended, until ctx
// is done. Calls never overlap. Changes that follow one another quickly may lead to one call.
func Run(ctx context.Context, changed func()) error {
	timer, err := open()
	if err != nil {
		return fmt.Errorf("watch the clock of the host: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = timer.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		stop()
		_ = timer.Close()
	}()
	expirations := make([]byte, 8)
	for ctx.Err() == nil {
		_, err := timer.Read(expirations)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil, errors.Is(err, unix.ECANCELED):
			changed()
		default:
			return fmt.Errorf("watch the clock of the host: %w", err)
		}
	}
	return nil
}

// open returns a timer that ends in a far future. A read fails with ECANCELED when the clock was set.
func open() (*os.File, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	end, err := unix.TimeToTimespec(time.Date(2200, time.January, 1, 0, 0, 0, 0, time.UTC))
	if err == nil {
		err = unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET,
			&unix.ItimerSpec{Value: end}, nil)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "timer"), nil // uses the runtime's poller: no thread blocks in it
}
