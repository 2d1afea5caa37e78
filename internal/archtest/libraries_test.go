package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// inside lists the libraries of which carob uses more than what they promise, with the
// version that was read and where. A new version needs a look at those places; then the
// version here follows. docs/decisions/0011-inside-libraries.md says why each is worth it.
var inside = []struct{ module, version, where string }{
	{"go.etcd.io/etcd/server/v3", "v3.7.0",
		"internal/apiserver/storage/housekeeping.go: watchResyncPeriod and syncWatchers by go:linkname, " +
			"the store behind an interface; logfiles.go: which files its log writes to next"},
	{"go.etcd.io/raft/v3", "v3.7.0",
		"internal/apiserver/storage: the only member makes itself leader by MsgTimeoutNow"},
	{"github.com/emicklei/go-restful/v3", "v3.13.0",
		"internal/apiserver/routes.go: pathExpr of a route is cleared by reflection; " +
			"router.go: what the choice of a route depends on"},
	{"k8s.io/apiserver", "v0.37.2",
		"internal/apiserver/filters.go: which filters do nothing after the next one returned; " +
			"storage/sharedwatch.go: what a watch of the cache sends to a client that joins; " +
			"storage/zerocopy.go: the object in the events of a watch cache, by reflection; " +
			"storage/history.go: the ring of a watch cache, by reflection and unsafe"},
}

func TestLibrariesThatAreUsedFromInside(t *testing.T) {
	for _, l := range inside {
		out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", l.module).CombinedOutput()
		if err != nil {
			t.Fatalf("go list -m %s: %v: %s", l.module, err, out)
		}
		if got := strings.TrimSpace(string(out)); got != l.version {
			t.Errorf("%s is %s now, %s was read: look at %s, then change the version in this test", l.module, got,
				l.version, l.where)
		}
	}
}

// mayBeUnsafe are the files that use unsafe or go:linkname, each with its reason
// (docs/decisions/0011-inside-libraries.md).
var mayBeUnsafe = map[string]string{
	"internal/apiserver/storage/housekeeping.go":     "etcd's loop, by go:linkname",
	"internal/apiserver/storage/history.go":          "the ring of a watch cache",
	"internal/apiserver/storage/logfiles.go":         "atomic additions in a mapping",
	"internal/runtime/native/cgroups/devices_bpf.go": "bpf(2) takes pointers",
	"internal/node/localdisk/quota.go":               "quotactl_fd(2) and two ioctls take pointers",
	"internal/sim/clock.go":                          "times whose two readings disagree",
}

func TestUnsafeIsListed(t *testing.T) {
	found := 0
	for _, name := range tracked(t, "*.go") {
		text, err := os.ReadFile(filepath.Join(top, name))
		if err != nil || strings.HasSuffix(name, "_test.go") || !strings.HasPrefix(name, "internal/") {
			continue // removed and not committed yet, or no part of the program
		}
		if !strings.Contains(string(text), "\n\t\"unsafe\"") && !strings.Contains(string(text), "\n//go:linkname ") &&
			!strings.Contains(string(text), "\n\t_ \"unsafe\"") {
			continue
		}
		if found++; mayBeUnsafe[name] == "" {
			t.Errorf("%s uses unsafe or go:linkname: decision 11 says which files may", name)
		}
	}
	if found != len(mayBeUnsafe) {
		t.Errorf("%d files use unsafe, %d are listed", found, len(mayBeUnsafe))
	}
}
