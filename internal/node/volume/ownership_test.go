package volume

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A change of the group that takes long is reported after 30 s, then each minute with how far it is, until its end
// (S4.72). One that is fast is not.
func TestSlowChangeOfGroup(t *testing.T) {
	const dir = "u1/volumes/v"
	for lasts, want := range map[time.Duration][]string{
		29 * time.Second: nil,
		3 * time.Minute: {
			"30s Setting volume ownership for u1/volumes/v is taking longer than expected, consider using " +
				"OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/" +
				"#configure-volume-permission-and-ownership-change-policy-for-pods",
			"1m30s Setting volume ownership for u1/volumes/v, processed 7 files.",
			"2m30s Setting volume ownership for u1/volumes/v, processed 7 files.",
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			var files atomic.Int64
			files.Store(7)
			var got []string
			began, done, ended := time.Now(), make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				reportProgress(done, shownDir("/data/pods/"+dir, "u1"), &files, func(message string) {
					got = append(got, time.Since(began).String()+" "+message)
				})
			}()
			time.Sleep(lasts)
			close(done)
			<-ended
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("after %v: %s", lasts, diff)
			}
		})
	}
	if got := shownDir("/mnt/disk", "u1"); got != "/mnt/disk" {
		t.Errorf("a directory elsewhere is shown as %s", got)
	}
}
