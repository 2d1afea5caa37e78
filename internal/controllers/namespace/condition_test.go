package namespace

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

func message(conditions []corev1.NamespaceCondition, t corev1.NamespaceConditionType) string {
	for _, c := range conditions {
		if c.Type == t && c.Status == corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// TestFailureMessages: what failed is counted and listed as upstream does it.
func TestFailureMessages(t *testing.T) {
	f := findings{content: []error{errors.New("b failed"), errors.New("a failed")},
		discovery: errors.Join(&discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{
			{Group: "down.io", Version: "v1"}: errors.New("stale")}})}
	for kind, want := range map[corev1.NamespaceConditionType]string{
		corev1.NamespaceDeletionContentFailure: "Failed to delete all resource types, 2 remaining: a failed, b failed",
		corev1.NamespaceDeletionDiscoveryFailure: "Discovery failed for some groups, 1 failing: unable to retrieve the " +
			"complete list of server APIs: down.io/v1: stale",
	} {
		if got := message(f.conditions(), kind); got != want {
			t.Errorf("%s: %q, want %q", kind, got, want)
		}
	}
}

// TestOrderOfFailures: kinds are deleted in parallel. The order in which they fail does not change the status: a
// write of the status would start the next pass at once, for ever.
func TestOrderOfFailures(t *testing.T) {
	results := []cleared{{err: errors.New("a failed")}, {err: errors.New("b failed")}, {err: errors.New("c failed")}}
	var status corev1.NamespaceStatus
	for pass := range 2 {
		f := findings{}
		for _, r := range results {
			f.add(r)
		}
		if changed := merge(&status, f.conditions(), time.Unix(0, 0)); changed != (pass == 0) {
			t.Errorf("pass %d changes the status: %v", pass, changed)
		}
		slices.Reverse(results)
	}
}
