package scheduler

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"carob/internal/core/podstatus"
)

// maxNote is the maximum length of an event message; longer ones end in " ..." (L2.42). maxMessage is that of a
// condition, as the API defines it for others: extenders and drivers give a reason for each node, and a pod that is
// too large would not be stored.
const maxNote, maxMessage = 1024, 32768

func truncated(note string, most int) string {
	const suffix = " ..."
	if len(note) <= most {
		return note
	}
	return strings.ToValidUTF8(note[:most-len(suffix)], "") + suffix
}

// nomination is the change of a pod's status.nominatedNodeName.
type nomination struct {
	change bool
	node   string // empty: removed
}

func (n nomination) changes(pod *corev1.Pod) bool {
	return n.change && n.node != pod.Status.NominatedNodeName
}

// unscheduled publishes why a pod cannot be scheduled: condition and event have the same text
// (L2.42). The condition is written only if it has changed.
func (s *Scheduler) unscheduled(ctx context.Context, pod *corev1.Pod, reason, message string, n nomination) {
	s.eventf(pod, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", "%s", truncated(message, maxNote))
	condition := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason,
		Message: truncated(message, maxMessage)}
	if hasCondition(pod, condition) && !n.changes(pod) {
		return
	}
	s.patchStatus(ctx, pod, statusPatch(pod, &condition, n, time.Now()))
}

// patchStatus writes to a pod's status in the background. A deleted pod is ignored.
func (s *Scheduler) patchStatus(ctx context.Context, pod *corev1.Pod, patch []byte) {
	s.calls.Do(pod.UID, func() {
		_, err := s.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{}, "status")
		if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Writing a pod's status failed", "pod", klog.KObj(pod), "patch",
				string(patch))
		}
	})
}

// hasCondition reports whether the pod already has the condition with this status, reason, and message.
func hasCondition(pod *corev1.Pod, c corev1.PodCondition) bool {
	old := podstatus.Condition(pod.Status.Conditions, c.Type)
	return old != nil && old.Status == c.Status && old.Reason == c.Reason && old.Message == c.Message
}

// statusPatch is a strategic merge patch that sets a condition, unless it is nil, and the nominated
// node if that changes. It applies only to this pod, not to a later one of the same name. The
// transition time stays when the status does.
func statusPatch(pod *corev1.Pod, c *corev1.PodCondition, n nomination, now time.Time) []byte {
	status := map[string]any{}
	if c != nil {
		c.LastTransitionTime = metav1.NewTime(now)
		if old := podstatus.Condition(pod.Status.Conditions, c.Type); old != nil && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		c.ObservedGeneration = pod.Generation
		status["conditions"] = []corev1.PodCondition{*c}
	}
	if n.change && n.node != "" {
		status["nominatedNodeName"] = n.node
	} else if n.changes(pod) {
		status["nominatedNodeName"] = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		panic("scheduler: cannot encode a condition: " + err.Error())
	}
	return patch
}
