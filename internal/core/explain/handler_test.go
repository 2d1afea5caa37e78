package explain

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func handlerEventAt(at time.Time, cause string, handlers ...string) corev1.Event {
	kind, reason, message := HandlerEvent(handlers, "unix:///"+handlers[0]+".sock", cause)
	return corev1.Event{Type: kind, Reason: reason, Message: message, LastTimestamp: metav1.NewTime(at)}
}

// A node with a runtime that cannot be used has a problem until that runtime answers again, whatever becomes of others.
func TestHandlersOfNode(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: "True", LastTransitionTime: before(time.Hour)}}}}
	ready := "  has been ready for 60m\n"
	at := func(s int) time.Time { return now.Add(time.Duration(s-100) * time.Second) }
	down := handlerEventAt(at(1), "connection refused", "kata", "runc")
	other := handlerEventAt(at(2), "", "gvisor")
	text := "! The container runtime of handler kata, runc at unix:///kata.sock cannot be used: connection refused " +
		"(RuntimeHandlerNotReady)\n"
	expectLines(t, "none", Node(node, nil, now), ready)
	expectLines(t, "down", Node(node, []corev1.Event{other, down}, now), "\n"+ready+text)
	up := handlerEventAt(at(3), "", "kata", "runc")
	for _, list := range [][]corev1.Event{{down, up, other}, {up, other, down}} {
		expectLines(t, "up again", Node(node, list, now), ready)
	}
	up.LastTimestamp = down.LastTimestamp
	for _, list := range [][]corev1.Event{{down, up}, {up, down}} {
		expectLines(t, "up again in the same second", Node(node, list, now), ready)
	}
	down.LastTimestamp = metav1.NewTime(at(4)) // the same event, counted up
	expectLines(t, "down again", Node(node, []corev1.Event{up, down}, now), "\n"+ready+text)
}

// What another process sends as the cause is shortened, and valid UTF-8.
func TestCauseOfHandlerEvent(t *testing.T) {
	for _, cause := range []string{strings.Repeat("é", 1<<20), "\xff\x00\xfe", strings.Repeat("\x80", 4000)} {
		_, reason, message := HandlerEvent([]string{"a"}, "unix:///a", cause)
		if len(message) > 4*mostOfCause || !utf8.ValidString(message) || reason != handlerNotReady {
			t.Errorf("%d bytes: %.80q", len(message), message)
		}
	}
}

// A pod whose node does not list its handler has a problem, also while its containers run.
func TestHandlerOfPod(t *testing.T) {
	node := &corev1.Node{}
	if got := MissingHandler(node, "kata"); got != "" {
		t.Errorf("a node that lists none lacks %q", got)
	}
	node.Status.RuntimeHandlers = []corev1.NodeRuntimeHandler{{Name: ""}, {Name: "gvisor"}}
	if got := MissingHandler(node, "gvisor"); got != "" {
		t.Errorf("the node lacks %q", got)
	}
	if got := MissingHandler(node, "kata"); got != "kata" {
		t.Errorf("the node lacks %q, want kata", got)
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: corev1.PodRunning,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: "True",
			LastTransitionTime: before(time.Hour)}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "c", Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}}
	if Pod(pod, Beside{}, now).Problems() {
		t.Error("a pod that runs has a problem")
	}
	expectLines(t, "no runtime", Pod(pod, Beside{Handler: "kata", Events: []corev1.Event{
		{Type: "Warning", Reason: "FailedSync", Message: "no answer", LastTimestamp: metav1.NewTime(now)}}}, now), `
  runs on node n, and has been ready for 60m; 0 restarts
! its container runtime, that of handler kata, cannot be used on node n now: no container is started or stopped
! event 0s ago: no answer (FailedSync)
`)
	pod.Status.Phase = corev1.PodSucceeded
	if Pod(pod, Beside{Handler: "kata"}, now).Problems() {
		t.Error("a pod that has ended has a problem")
	}
}
