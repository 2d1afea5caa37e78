package podgc

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// fail sets the phase of this pod, and the condition with the reason, if there is one.
func (c *Controller) fail(ctx context.Context, pod *corev1.Pod, condition *corev1.PodCondition) error {
	status := map[string]any{"phase": corev1.PodFailed, "observedGeneration": pod.Generation} // L0.6
	if condition != nil {
		stamped := *condition
		stamped.ObservedGeneration = pod.Generation
		status["conditions"] = []corev1.PodCondition{stamped}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	_, err = c.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	return err
}
