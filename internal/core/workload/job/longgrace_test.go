package job

import (
	"math"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
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

// Users may write any number of failures into a pod: the next one still waits the longest time, and counts further.
func TestHugeFailureCount(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		batchv1.JobIndexFailureCountAnnotation:        "2147483647",
		batchv1.JobIndexIgnoredFailureCountAnnotation: "2147483647"}}}
	if n := failuresBefore(pod) + 1; n <= 0 || left(n, now, now) != lastWait {
		t.Errorf("%d failures: the next pod waits %v", n, left(n, now, now))
	}
	if n := counted(pod, batchv1.JobIndexFailureCountAnnotation) + 1; n <= 0 {
		t.Errorf("%d failures", n)
	}
}
