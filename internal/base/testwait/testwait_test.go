package testwait

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// failing is a test that fails.
type failing struct {
	testing.TB
	ctx     context.Context
	message string
}

func (f *failing) Helper()                  {}
func (f *failing) Context() context.Context { return f.ctx }
func (f *failing) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	panic(f)
}

func (f *failing) run(wait func()) (message string) {
	defer func() {
		if r := recover(); r != nil && r != any(f) {
			panic(r)
		}
		message = f.message
	}()
	wait()
	return ""
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		For(t, "at once", func() bool { return true })
		if time.Since(begin) != 0 {
			t.Error("what is so at once was waited for")
		}
		tries := 0
		Until(t, "late", func() error {
			if tries++; time.Since(begin) > Limit/2 {
				return nil
			}
			return errors.New("not yet")
		})
		if tries < 100 || tries > 1000 {
			t.Errorf("%d tries in a minute", tries)
		}
		f := &failing{ctx: t.Context()}
		if message := f.run(func() {
			For(f, "never", func() bool { return false })
		}); message != "never: not within 2m0s: the condition is false" {
			t.Errorf("%q", message)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		f = &failing{ctx: ctx}
		begin = time.Now()
		if message := f.run(func() {
			Until(f, "cut", func() error { return errors.New("no") })
		}); message != "cut: the test ended; the last try: no" {
			t.Errorf("%q", message)
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("ended after %v", took)
		}
	})
}
