// Package testwait is for tests only: it waits for changes that no event announces, such as a
// process of another program or a server that begins to listen. A test that can wait for an
// event, or in virtual time (testing/synctest), must not use it. It also measures processor time.
package testwait

import (
	"errors"
	"testing"
	"time"
)

// Limit bounds every wait. It is not a measure of speed: a test that waits this long has failed.
const Limit = 2 * time.Minute

// Pauses between two checks: short at first, so that a test of something quick is quick.
const (
	firstPause = time.Millisecond
	lastPause  = 250 * time.Millisecond
)

var errNotYet = errors.New("the condition is false")

// For waits until ok returns true, and fails the test if that does not happen within Limit.
func For(t testing.TB, what string, ok func() bool) {
	t.Helper()
	Until(t, what, func() error {
		if ok() {
			return nil
		}
		return errNotYet
	})
}

// Until calls try until it returns no error, and fails the test with the last error after Limit.
// It ends early with the test's context.
func Until(t testing.TB, what string, try func() error) {
	t.Helper()
	limit := time.NewTimer(Limit)
	defer limit.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	wait := firstPause
	for {
		err := try()
		if err == nil {
			return
		}
		pause.Reset(wait)
		wait = min(2*wait, lastPause)
		select {
		case <-pause.C:
		case <-t.Context().Done():
			t.Fatalf("%s: the test ended; the last try: %v", what, err)
		case <-limit.C:
			t.Fatalf("%s: not within %v: %v", what, Limit, err)
		}
	}
}
