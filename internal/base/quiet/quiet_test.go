package quiet

import (
	"runtime"
	"strings"
	"testing"

	"k8s.io/client-go/util/workqueue"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // gives a provider, too
)

func TestNamedQueuesSleep(t *testing.T) {
	q := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Name: "named"})
	defer q.ShutDown()
	q.Add("a")
	if got, _ := q.Get(); got != "a" {
		t.Errorf("got %q", got)
	}
	q.Done("a")
	all := make([]byte, 1<<20)
	if s := string(all[:runtime.Stack(all, true)]); strings.Contains(s, "updateUnfinishedWorkLoop") {
		t.Errorf("the queue has a loop:\n%s", s)
	}
}
