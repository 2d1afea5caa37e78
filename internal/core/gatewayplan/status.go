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
		"InsecureFrontendValidationMode":
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

// Parents returns the parents to store in a route's status: those of other controllers stay as they are.
func Parents(stored, now []gatewayv1.RouteParentStatus, at metav1.Time) ([]gatewayv1.RouteParentStatus, bool) {
	out := []gatewayv1.RouteParentStatus{}
	for _, old := range stored {
		if old.ControllerName != GatewayController {
			out = append(out, old)
		}
	}
	for _, n := range now {
		var old []metav1.Condition
		for i := range stored {
			if stored[i].ControllerName == GatewayController &&
				equality.Semantic.DeepEqual(stored[i].ParentRef, n.ParentRef) {
				old = stored[i].Conditions
			}
		}
		n.Conditions = Conditions(old, n.Conditions, at)
		out = append(out, n)
	}
	return out, !equality.Semantic.DeepEqual(stored, out) && (len(stored) > 0 || len(out) > 0)
}

// Ancestors is Parents for a policy. A status has at most 16.
func Ancestors(stored, now []gatewayv1.PolicyAncestorStatus, at metav1.Time) ([]gatewayv1.PolicyAncestorStatus, bool) {
	out := []gatewayv1.PolicyAncestorStatus{}
	for _, old := range stored {
		if old.ControllerName != GatewayController {
			out = append(out, old)
		}
	}
	for _, n := range now {
		if len(out) == 16 {
			break
		}
		var old []metav1.Condition
		for i := range stored {
			if stored[i].ControllerName == GatewayController &&
				equality.Semantic.DeepEqual(stored[i].AncestorRef, n.AncestorRef) {
				old = stored[i].Conditions
			}
		}
		n.Conditions = Conditions(old, n.Conditions, at)
		out = append(out, n)
	}
	return out, !equality.Semantic.DeepEqual(stored, out) && (len(stored) > 0 || len(out) > 0)
}
