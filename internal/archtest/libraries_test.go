package archtest

import (
	"os/exec"
	"strings"
	"testing"
)

// inside lists the libraries of which carob uses more than what they promise, with the
// version that was read and where. A new version needs a look at those places; then the
// version here follows. docs/decisions/0011-inside-libraries.md says why each is worth it.
var inside = []struct{ module, version, where string }{
	{"go.etcd.io/etcd/server/v3", "v3.7.0",
		"internal/apiserver/storage/housekeeping.go: watchResyncPeriod and syncWatchers by go:linkname, " +
			"the store behind an interface"},
	{"go.etcd.io/raft/v3", "v3.7.0",
		"internal/apiserver/storage: the only member makes itself leader by MsgTimeoutNow"},
	{"github.com/emicklei/go-restful/v3", "v3.13.0",
		"internal/apiserver/routes.go: pathExpr of a route is cleared by reflection; " +
			"router.go: what the choice of a route depends on"},
	{"k8s.io/apiserver", "v0.37.2",
		"internal/apiserver/filters.go: which filters do nothing after the next one returned; " +
			"storage/sharedwatch.go: what a watch of the cache sends to a client that joins; " +
			"storage/handing.go: the object in the events of a watch cache, by reflection; " +
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
