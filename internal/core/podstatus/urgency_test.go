package podstatus

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Only the end of containers lets a loss of readiness wait; a probe that fails beside it does not, nor does a gate of
// the pod's readiness.
func TestUrgency(t *testing.T) {
	type state struct{ ready, runs bool }
	status := func(phase corev1.PodPhase, ready bool, containers ...state) *corev1.PodStatus {
		s := &corev1.PodStatus{Phase: phase, Conditions: []corev1.PodCondition{{Type: corev1.PodReady,
			Status: corev1.ConditionFalse}}}
		if ready {
			s.Conditions[0].Status = corev1.ConditionTrue
		}
		for i, c := range containers {
			one := corev1.ContainerStatus{Name: string(rune('a' + i)), Ready: c.ready}
			if c.runs {
				one.State.Running = &corev1.ContainerStateRunning{}
			} else {
				one.State.Terminated = &corev1.ContainerStateTerminated{}
			}
			if i == 0 { // a sidecar
				s.InitContainerStatuses = append(s.InitContainerStatuses, one)
				continue
			}
			s.ContainerStatuses = append(s.ContainerStatuses, one)
		}
		return s
	}
	up, ended, unready := state{true, true}, state{}, state{false, true}
	ready := status(corev1.PodRunning, true, up, up, up)
	for _, c := range []struct {
		name       string
		have, want *corev1.PodStatus
		urgency    Urgency
	}{
		{"the same", ready, ready, Minor},
		{"a container ended", ready, status(corev1.PodRunning, false, up, ended, up), Ended},
		{"a sidecar ended", ready, status(corev1.PodRunning, false, ended, up, up), Ended},
		{"all ended", ready, status(corev1.PodRunning, false, ended, ended, ended), Ended},
		{"a probe failed", ready, status(corev1.PodRunning, false, up, unready, up), Major},
		{"one ended, the probe of another failed", ready, status(corev1.PodRunning, false, up, ended, unready), Major},
		{"a readiness gate", ready, status(corev1.PodRunning, false, up, up, up), Major},
		{"all ended for good", ready, status(corev1.PodSucceeded, false, ended, ended, ended), Major},
		{"ready again", status(corev1.PodRunning, false, up, ended, up), ready, Major},
		{"another ends while one has ended", status(corev1.PodRunning, false, up, ended, up),
			status(corev1.PodRunning, false, up, ended, ended), Minor},
		{"nothing was published", &corev1.PodStatus{}, ready, Major},
	} {
		if got := UrgencyOf(c.have, c.want); got != c.urgency {
			t.Errorf("%s: %d, want %d", c.name, got, c.urgency)
		}
	}
}
