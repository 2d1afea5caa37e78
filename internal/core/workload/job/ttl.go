package job

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// Expires returns when a finished Job is to be deleted (W10.1); ok is false for one that has not
// finished, has no ttlSecondsAfterFinished or is being deleted (W10.2).
func Expires(j *batchv1.Job) (at time.Time, ok bool, err error) {
	if j.DeletionTimestamp != nil || j.Spec.TTLSecondsAfterFinished == nil {
		return time.Time{}, false, nil
	}
	for _, c := range j.Status.Conditions {
		if c.Type != batchv1.JobComplete && c.Type != batchv1.JobFailed || c.Status != corev1.ConditionTrue {
			continue
		}
		if c.LastTransitionTime.IsZero() {
			// W10.3
			return time.Time{}, false,
				fmt.Errorf("unable to find the time when the Job %s/%s finished", j.Namespace, j.Name)
		}
		return c.LastTransitionTime.Add(time.Duration(*j.Spec.TTLSecondsAfterFinished) * time.Second), true, nil
	}
	return time.Time{}, false, nil
}
