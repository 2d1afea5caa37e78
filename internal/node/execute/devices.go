package execute

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife"
	"carob/internal/core/resources"
)

// slowDevices is how long drivers and device plugins may take before an event says what a pod waits for: their calls
// end after minutes only.
const slowDevices = 10 * time.Second

// giveDevices has drivers and device plugins give a pod its devices.
func (e *Executor) giveDevices(ctx context.Context, pod *corev1.Pod) *podlife.Failure {
	if names := deviceRequests(pod); len(names) > 0 {
		slow := time.AfterFunc(slowDevices, func() {
			e.cfg.Event(pod, podlife.Event{Type: corev1.EventTypeWarning, Reason: "DevicesNotReady",
				Message: fmt.Sprintf("Waiting for %s: the device plugins or drivers have not answered for %s",
					strings.Join(names, ", "), slowDevices)})
		})
		defer slow.Stop()
	}
	if err := e.cfg.Devices.PrepareClaims(ctx, pod); err != nil {
		return failure("FailedPrepareDynamicResources", err)
	}
	if err := e.cfg.Devices.Allocate(ctx, pod); err != nil {
		return failure("CreatePodSandboxError", fmt.Errorf("allocate devices: %w", err))
	}
	return nil
}

// deviceRequests names the claims and the extended resources of a pod.
func deviceRequests(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.ResourceClaims {
		names = append(names, "resource claim "+pod.Spec.ResourceClaims[i].Name)
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for name := range list[i].Resources.Limits { // any order: they are sorted
				if resources.IsExtended(name) {
					names = append(names, string(name))
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
