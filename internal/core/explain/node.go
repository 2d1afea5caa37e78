package explain

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Node explains a Node; events are those about it.
func Node(n *corev1.Node, events []corev1.Event, now time.Time) (out Lines) {
	out.object(n, unrecorded, now)
	ready := false
	for _, c := range n.Status.Conditions {
		switch {
		case c.Type != corev1.NodeReady && c.Status == corev1.ConditionTrue:
			out.warn("%s: %s", c.Type, because(c.Reason, c.Message))
		case c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue:
			ready = true
			out.info("has been ready for %s", ago(now, c.LastTransitionTime.Time))
		case c.Type == corev1.NodeReady:
			ready = true // the other lines are the problems
			out.warn("has not been ready for %s: %s", ago(now, c.LastTransitionTime.Time), because(c.Reason, c.Message))
		}
	}
	if !ready {
		out.warn("its agent has not reported anything about it")
	}
	problems := out.Problems()
	if n.Spec.Unschedulable {
		out.warn("is cordoned: it gets no new pods until `kubectl uncordon %s`", n.Name)
	}
	for _, t := range n.Spec.Taints {
		if !strings.HasPrefix(t.Key, "node.kubernetes.io/") { // these repeat conditions
			out.warn("accepts only pods that tolerate its taint %s", t.ToString())
		}
	}
	out.handlers(events)
	if problems {
		out.events(events, now)
	}
	return out
}
