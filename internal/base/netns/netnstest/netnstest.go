// Package netnstest is for tests only: it runs them in a network namespace of their own.
package netnstest

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"carob/internal/base/netns"
)

// Run runs f in a new network namespace, which ends with it; without root the test is skipped. f may
// end with t.FailNow. What it starts on other goroutines is not in the namespace.
func Run(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	err := netns.DoNew(func() error {
		ns, err := os.Open(netns.Current)
		if err != nil {
			return err
		}
		defer ns.Close()
		done := make(chan struct{}) // FailNow ends the goroutine, so f has another one
		go func() {
			defer close(done)
			runtime.LockOSThread()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				t.Error(err)
				return
			}
			f(t)
		}()
		<-done
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
