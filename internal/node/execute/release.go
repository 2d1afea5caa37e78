package execute

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife"
)

// slowRelease is how long the release of what a pod has may take before an event says what the end of the pod waits
// for: calls of drivers end after minutes only.
const slowRelease = 10 * time.Second

// releaseDevices gives back the devices of a pod.
func (e *Executor) releaseDevices(ctx context.Context, pod *corev1.Pod) *podlife.Failure {
	e.cfg.Pinning.Release(pod.UID)
	return e.release(ctx, pod, "DevicesNotReleased", "Releasing the devices takes longer than "+slowRelease.String(),
		func() error { return e.cfg.Devices.Release(ctx, pod.UID) })
}

// removeVolumes removes the volumes of a pod, its cgroup, and its range of user ids.
func (e *Executor) removeVolumes(ctx context.Context, pod *corev1.Pod) *podlife.Failure {
	f := e.release(ctx, pod, "VolumesNotReleased", "Removing the volumes takes longer than "+slowRelease.String(),
		func() error { return e.cfg.Volumes.Remove(ctx, pod.UID) })
	if f != nil {
		return f
	}
	if err := e.cfg.Cgroups.Remove(ctx, pod.UID); err != nil {
		return failure("", err)
	}
	e.cfg.UserNS.Release(pod.UID)
	return nil
}

// release calls f, which gives back what a pod has. Events say why the pod does not end meanwhile.
func (e *Executor) release(ctx context.Context, pod *corev1.Pod, reason, slow string, f func() error) *podlife.Failure {
	event := func(message string) {
		e.cfg.Event(pod, podlife.Event{Type: corev1.EventTypeWarning, Reason: reason, Message: message})
	}
	timer := time.AfterFunc(slowRelease, func() { event(slow) })
	defer timer.Stop()
	err := f()
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		event(err.Error())
	}
	return failure("", err)
}
