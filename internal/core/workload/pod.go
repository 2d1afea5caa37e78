package workload

import (
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Terminal reports whether a pod has ended.
func Terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// Active reports whether a pod counts for its owner: it has not ended and is not being deleted.
func Active(p *corev1.Pod) bool { return !Terminal(p) && p.DeletionTimestamp == nil }

// Terminating reports whether a pod is being deleted and has not ended yet.
func Terminating(p *corev1.Pod) bool { return !Terminal(p) && p.DeletionTimestamp != nil }

// readySince returns when a pod became ready, nil when it is not.
func readySince(p *corev1.Pod) *metav1.Time {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			if c.Status == corev1.ConditionTrue {
				return &c.LastTransitionTime
			}
			return nil
		}
	}
	return nil
}

// Ready reports whether a pod's condition Ready is True.
func Ready(p *corev1.Pod) bool { return readySince(p) != nil }

// Available reports whether a pod has been ready for the owner's minReadySeconds (W0.60). If only
// time is missing, at is when it becomes available; otherwise it is zero.
func Available(p *corev1.Pod, minReadySeconds int32, now time.Time) (ok bool, at time.Time) {
	since := readySince(p)
	switch {
	case since == nil:
		return false, time.Time{}
	case minReadySeconds == 0:
		return true, time.Time{}
	case since.IsZero():
		return false, time.Time{}
	}
	at = since.Add(time.Duration(minReadySeconds) * time.Second)
	if at.After(now) {
		return false, at
	}
	return true, time.Time{}
}

// Earlier returns the earlier of two times at which a plan must be called again; zero is never.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// ErrNoLabels is the error of a template without labels (W0.33).
var ErrNoLabels = errors.New("unable to create pods, no labels")

// NewPod makes the pod of a template for an owner (W0.30, W0.31). It shares nothing with the template.
func NewPod(owner Owner, template *corev1.PodTemplateSpec) (*corev1.Pod, error) {
	if len(template.Labels) == 0 {
		return nil, ErrNoLabels
	}
	t := template.DeepCopy()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: owner.GetNamespace(), GenerateName: NamePrefix(owner.GetName()), Labels: t.Labels,
			Annotations: t.Annotations, Finalizers: t.Finalizers,
			OwnerReferences: []metav1.OwnerReference{owner.Reference()},
		},
		Spec: t.Spec,
	}, nil
}

// NamePrefix returns the prefix of the names of an owner's children (W0.31).
func NamePrefix(owner string) string {
	// A prefix ends in a dash, which no name may do.
	if prefix := owner + "-"; len(validation.IsDNS1123Subdomain(strings.TrimSuffix(prefix, "-")+"a")) == 0 {
		return prefix
	}
	return owner
}

// Waves returns the sizes of the batches in which n objects are created (slow start): 1, 2, 4 …
// (W0.41).
func Waves(n int) []int {
	var out []int
	for size := 1; n > 0; size *= 2 {
		out = append(out, min(size, n))
		n -= size
	}
	return slices.Clip(out)
}
