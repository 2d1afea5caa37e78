package native

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// onOwnThread runs f on a thread that ends with it, so that f may change the
// thread's namespaces. The main thread never ends, so it is left alone: a
// namespace it had entered would stay for good.
func onOwnThread(f func()) {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			defer close(done)
			onOwnThread(f) // while we hold the main thread it can't be chosen again
			return
		}
		defer close(done) // and stay locked: the thread ends with this goroutine
		f()
	}()
	<-done
}
