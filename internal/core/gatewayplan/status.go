package gatewayplan

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// condition makes one without a time.
func condition[T, R ~string](kind T, status bool, reason R, message string, generation int64) metav1.Condition {
	c := metav1.Condition{Type: string(kind), Status: metav1.ConditionFalse, Reason: string(reason), Message: message,
		ObservedGeneration: generation}
	if status {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// Conditions returns the conditions to store: the new ones, with the time of the stored ones that
// are equal, and those of types that other controllers write.
func Conditions(stored, now []metav1.Condition, at metav1.Time) []metav1.Condition {
	out := slices.Clone(now)
	for i := range out {
		out[i].LastTransitionTime = at
	}
	for _, old := range stored {
		same := slices.IndexFunc(out, func(c metav1.Condition) bool { return c.Type == old.Type })
		switch {
		case same >= 0:
			if out[same].Status == old.Status {
				out[same].LastTransitionTime = old.LastTransitionTime
			}
		case !ours(old.Type):
			out = append(out, old)
		}
	}
	return out
}

// ours reports whether the plan writes conditions of a type.
func ours(kind string) bool {
	switch kind {
	case "Accepted", "Programmed", "ResolvedRefs", "Conflicted", "PartiallyInvalid", "OverlappingTLSConfig",
		"InsecureFrontendValidationMode", "Exported":
		return true
	}
	return false
}

// GatewayStatus returns the status to store, or false when the stored one is the same.
func GatewayStatus(stored *gatewayv1.GatewayStatus, now gatewayv1.GatewayStatus,
	at metav1.Time) (gatewayv1.GatewayStatus, bool) {
	now.Conditions = Conditions(stored.Conditions, now.Conditions, at)
	now.Listeners = slices.Clone(now.Listeners)
	for i := range now.Listeners {
		l := &now.Listeners[i]
		var old []metav1.Condition
		for j := range stored.Listeners {
			if stored.Listeners[j].Name == l.Name {
				old = stored.Listeners[j].Conditions
			}
		}
		l.Conditions = Conditions(old, l.Conditions, at)
	}
	return now, !equality.Semantic.DeepEqual(*stored, now)
}

// maxParents and maxAncestors are the most entries that the API takes in the statuses of a route and of a policy.
const (
	maxParents   = 32
	maxAncestors = 16
)

// Parents returns the parents to store in a route's status: those of other controllers stay as they are.
func Parents(stored, now []gatewayv1.RouteParentStatus, at metav1.Time) ([]gatewayv1.RouteParentStatus, bool) {
	return merged(stored, now, at, maxParents, func(s *gatewayv1.RouteParentStatus) entry {
		return entry{s.ControllerName == GatewayController, &s.ParentRef, &s.Conditions}
	})
}

// Ancestors is Parents for a policy.
func Ancestors(stored, now []gatewayv1.PolicyAncestorStatus, at metav1.Time) ([]gatewayv1.PolicyAncestorStatus, bool) {
	return merged(stored, now, at, maxAncestors, func(s *gatewayv1.PolicyAncestorStatus) entry {
		return entry{s.ControllerName == GatewayController, &s.AncestorRef, &s.Conditions}
	})
}

// entry is what the entries of all statuses that controllers share have.
type entry struct {
	own        bool
	ref        *gatewayv1.ParentReference
	conditions *[]metav1.Condition
}

// merged replaces carob's entries of a status that several controllers share. All keep their places: controllers that
// each move their own entries to the end would write in turns without an end. Of new entries, as many are added as the
// status holds.
func merged[T any](stored, now []T, at metav1.Time, most int, of func(*T) entry) ([]T, bool) {
	out := make([]T, 0, len(stored))
	now = slices.Clone(now)
	for i := range stored {
		old := of(&stored[i])
		if !old.own {
			out = append(out, stored[i])
			continue
		}
		n := slices.IndexFunc(now, func(t T) bool { return equality.Semantic.DeepEqual(of(&t).ref, old.ref) })
		if n < 0 {
			continue
		}
		next := now[n]
		now = slices.Delete(now, n, n+1)
		*of(&next).conditions = Conditions(*old.conditions, *of(&next).conditions, at)
		out = append(out, next)
	}
	for _, next := range now[:max(0, min(len(now), most-len(out)))] {
		*of(&next).conditions = Conditions(nil, *of(&next).conditions, at)
		out = append(out, next)
	}
	return out, !equality.Semantic.DeepEqual(stored, out) && (len(stored) > 0 || len(out) > 0)
}
