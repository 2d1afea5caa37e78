package podstatus

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Only the end of containers that start again lets a loss of readiness wait; a probe that fails beside it does not, nor
// does a gate of the pod's readiness, nor a container that waits, or that does not start again.
func TestUrgency(t *testing.T) {
	type state struct {
		ready, runs bool
		waits       string // the reason
	}
	status := func(phase corev1.PodPhase, ready bool, containers ...state) *corev1.PodStatus {
		s := &corev1.PodStatus{Phase: phase, Conditions: []corev1.PodCondition{{Type: corev1.PodReady,
			Status: corev1.ConditionFalse}}}
		if ready {
			s.Conditions[0].Status = corev1.ConditionTrue
		}
		for i, c := range containers {
			one := corev1.ContainerStatus{Name: string(rune('a' + i)), Ready: c.ready}
			switch {
			case c.runs:
				one.State.Running = &corev1.ContainerStateRunning{}
			case c.waits != "":
				one.State.Waiting = &corev1.ContainerStateWaiting{Reason: c.waits}
			default:
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
	up, ended, unready := state{ready: true, runs: true}, state{}, state{runs: true}
	created, crashes, pulls := state{waits: "ContainerCreating"}, state{waits: "CrashLoopBackOff"},
		state{waits: "ErrImagePull"}
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
		{"the next instance is created", ready, status(corev1.PodRunning, false, up, created, up), Ended},
		{"one ended, another crashes again and again", ready, status(corev1.PodRunning, false, up, ended, crashes), Major},
		{"the image of the next instance is missing", ready, status(corev1.PodRunning, false, up, pulls, up), Major},
		{"all ended for good", ready, status(corev1.PodSucceeded, false, ended, ended, ended), Major},
		{"ready again", status(corev1.PodRunning, false, up, ended, up), ready, Major},
		{"another ends while one has ended", status(corev1.PodRunning, false, up, ended, up),
			status(corev1.PodRunning, false, up, ended, ended), Minor},
		{"nothing was published", &corev1.PodStatus{}, ready, Major},
	} {
		if got := UrgencyOf(podOf(corev1.RestartPolicyAlways, c.have), c.want); got != c.urgency {
			t.Errorf("%s: %d, want %d", c.name, got, c.urgency)
		}
	}
	oneEnded := status(corev1.PodRunning, false, up, ended, up)
	for _, c := range []struct {
		policy  corev1.RestartPolicy
		deleted bool
		urgency Urgency
	}{
		{corev1.RestartPolicyAlways, false, Ended},
		{corev1.RestartPolicyNever, false, Major},
		{corev1.RestartPolicyOnFailure, false, Major}, // it ended with 0
		{corev1.RestartPolicyNever, true, Ended},      // the others end, too
	} {
		pod := podOf(c.policy, ready)
		if c.deleted {
			pod.DeletionTimestamp = &metav1.Time{}
		}
		if got := UrgencyOf(pod, oneEnded); got != c.urgency {
			t.Errorf("%s, deleted %t: %d, want %d", c.policy, c.deleted, got, c.urgency)
		}
	}
}

// podOf returns a pod of the sidecar a and the containers b and c.
func podOf(policy corev1.RestartPolicy, status *corev1.PodStatus) *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	return &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: policy,
		InitContainers: []corev1.Container{{Name: "a", RestartPolicy: &always}},
		Containers:     []corev1.Container{{Name: "b"}, {Name: "c"}}}, Status: *status}
}
