package job

import (
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The grace of a pod may be any number of seconds: its end is never after its deletion, or the back-off would last for
// centuries.
func TestEndOfAPodWithALongGrace(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC))
	for _, grace := range []int64{0, 30, math.MaxInt64/int64(time.Second) + 1, math.MaxInt64} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &at, DeletionGracePeriodSeconds: &grace}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c"}}
		if end := finishedAt(p); end.After(at.Time) || grace > 0 && !end.Before(at.Time) {
			t.Errorf("grace %d: it ended at %v", grace, end)
		}
	}
}
