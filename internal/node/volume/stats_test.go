package volume

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/node/spec"
)

// A local volume on a file system that does not respond has no statistics, and keeps a reader waiting for a second,
// whatever the number of such volumes; that of a second reader is not measured again. One that responds again has
// statistics.
func TestStatsOfHungVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{})
		hung, calls := make(chan struct{}), make(chan string, 100)
		m.local.statfs = func(path string, st *unix.Statfs_t) error {
			calls <- path
			if path != "/ok" {
				<-hung
			}
			st.Bsize, st.Blocks, st.Bfree, st.Bavail, st.Files, st.Ffree = 4096, 10, 5, 4, 8, 6
			return nil
		}
		set := map[string]spec.Volume{"emptydir": {HostPath: "/e"}}
		for _, path := range []string{"/hung1", "/ok", "/hung2"} {
			set[path[1:]] = spec.Volume{HostPath: path, Claim: "c" + path, Persistent: localPlugin}
		}
		p := m.entry(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: types.UID("u")}})
		p.ready.Store(&set)
		read := func(waits time.Duration, want ...string) {
			t.Helper()
			began, names := time.Now(), map[string]bool{}
			for _, s := range m.Stats() {
				names[s.Pod.Volume] = true
				if s.Namespace != "ns" || s.Claim != "c/"+s.Pod.Volume || s.Pod.UID != "u" || s.Capacity != 40960 ||
					s.Used != 20480 || s.Available != 16384 || s.Inodes != 8 || s.InodesUsed != 2 || s.InodesFree != 6 {
					t.Errorf("%+v", s)
				}
			}
			if got := slices.Sorted(maps.Keys(names)); !slices.Equal(got, want) || time.Since(began) != waits {
				t.Errorf("%v after %v, want %v after %v", got, time.Since(began), want, waits)
			}
		}
		read(statsPatience, "ok")
		read(statsPatience, "ok")
		if len(calls) != 4 {
			t.Errorf("%d measurements, want 4", len(calls))
		}
		close(hung)
		synctest.Wait()
		read(0, "hung1", "hung2", "ok")
	})
}
