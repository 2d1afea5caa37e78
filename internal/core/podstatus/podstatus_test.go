package podstatus

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var began = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))

func at(seconds int) metav1.Time {
	return metav1.NewTime(began.Add(time.Duration(seconds) * time.Second))
}

// pod returns a pod with an init container, a sidecar, and two containers, all healthy.
func pod() *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u", Generation: 2},
		Spec: corev1.PodSpec{
			RestartPolicy:  corev1.RestartPolicyOnFailure,
			InitContainers: []corev1.Container{{Name: "init"}, {Name: "side", RestartPolicy: &always}},
			Containers: []corev1.Container{{Name: "b"},
				{Name: "a", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
			EphemeralContainers: []corev1.EphemeralContainer{
				{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}},
		},
		Status: corev1.PodStatus{
			ObservedGeneration: 2, Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBestEffort, StartTime: &began,
			HostIP: "192.168.0.1", HostIPs: []corev1.HostIP{{IP: "192.168.0.1"}}, PodIP: "10.0.0.5",
			PodIPs: []corev1.PodIP{{IP: "10.0.0.5"}},
		},
	}
	for _, t := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized,
		corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		p.Status.Conditions = append(p.Status.Conditions,
			corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: began,
				ObservedGeneration: 2})
	}
	running := func(name string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, Image: "nginx", ImageID: "sha256:1", ContainerID: "carob://" + name,
			Ready: true, Started: new(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: began}}}
	}
	init := running("init")
	init.Started, init.State = new(false), ended("carob://init", 0)
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{init, running("side")}
	a := running("a")
	a.VolumeMounts = []corev1.VolumeMountStatus{{Name: "data", MountPath: "/data"}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{a, running("b")}
	debug := running("debug")
	debug.Ready, debug.Started = false, nil
	p.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{debug}
	return p
}

func ended(id string, code int32) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: id, ExitCode: code,
		Reason: "Completed", StartedAt: began, FinishedAt: at(1)}}
}

func waits(reason string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
}

func set(p *corev1.Pod, t corev1.PodConditionType, s corev1.ConditionStatus, reason string) {
	c := Condition(p.Status.Conditions, t)
	c.Status, c.Reason = s, reason
}

// unready makes a container of the pod not ready, and adjusts the conditions.
func unready(p *corev1.Pod, s *corev1.ContainerStatus) {
	s.Ready, s.Started = false, new(false)
	set(p, corev1.PodReady, corev1.ConditionFalse, "ContainersNotReady")
	set(p, corev1.ContainersReady, corev1.ConditionFalse, "ContainersNotReady")
}

func rules(found []Breach) (list []string) {
	for _, b := range found {
		list = append(list, string(b.Rule))
	}
	return list
}

// Valid statuses: of a healthy pod, and of pods that are not assigned, in back-off, waiting, or
// rejected.
func TestAllowed(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"well": func(*corev1.Pod) {},
		"new": func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBestEffort}
		},
		"crash loop": func(p *corev1.Pod) {
			a := &p.Status.ContainerStatuses[0]
			unready(p, a)
			a.State, a.LastTerminationState, a.RestartCount = waits("CrashLoopBackOff"), ended("carob://a", 1), 3
		},
		"first end of an image error": func(p *corev1.Pod) {
			a := &p.Status.ContainerStatuses[0]
			unready(p, a)
			a.State, a.LastTerminationState = waits("ErrImagePull"), ended("carob://a", 1)
		},
		"refused": func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu",
				Message: "Pod was rejected: no cpu", QOSClass: corev1.PodQOSBestEffort,
				StartTime: &began, ObservedGeneration: 2}
		},
		"a gate of others": func(p *corev1.Pod) {
			set(p, corev1.PodReady, corev1.ConditionFalse, "ReadinessGatesNotReady")
		},
	} {
		p := pod()
		change(p)
		if found := Check(p); len(found) > 0 {
			t.Errorf("%s: %v", name, found)
		}
		if found := CheckChange(p, p); len(found) > 0 {
			t.Errorf("%s, twice: %v", name, found)
		}
	}
}

// Each rule is reported when it is violated.
func TestViolations(t *testing.T) {
	for _, tt := range []struct {
		rule   Rule
		change func(p *corev1.Pod, a *corev1.ContainerStatus)
	}{
		{Phase, func(p *corev1.Pod, _ *corev1.ContainerStatus) { p.Status.Phase = "" }},
		{Acknowledged, func(p *corev1.Pod, _ *corev1.ContainerStatus) { p.Status.StartTime = nil }},
		{Generation, func(p *corev1.Pod, _ *corev1.ContainerStatus) { p.Status.ObservedGeneration = 3 }},
		{QoS, func(p *corev1.Pod, _ *corev1.ContainerStatus) { p.Status.QOSClass = corev1.PodQOSBurstable }},
		{Addresses, func(p *corev1.Pod, _ *corev1.ContainerStatus) { p.Status.PodIP = "10.0.0.6" }},
		{Addresses, func(p *corev1.Pod, _ *corev1.ContainerStatus) { p.Status.PodIP, p.Status.PodIPs = "", nil }},
		{Rejected, func(p *corev1.Pod, _ *corev1.ContainerStatus) {
			p.Status.Phase, p.Status.Message = corev1.PodFailed, "Pod was rejected: x"
		}},
		{Entries, func(p *corev1.Pod, _ *corev1.ContainerStatus) { slices.Reverse(p.Status.ContainerStatuses) }},
		{Entries, func(p *corev1.Pod, _ *corev1.ContainerStatus) { p.Status.InitContainerStatuses = nil }},
		{OneState, func(_ *corev1.Pod,
			a *corev1.ContainerStatus) {
			a.State.Waiting = waits("ContainerCreating").Waiting
		}},
		{OneState, func(p *corev1.Pod, a *corev1.ContainerStatus) { unready(p, a); a.State = corev1.ContainerState{} }},
		// Between creation and start, as observed.
		{WaitReason, func(p *corev1.Pod, a *corev1.ContainerStatus) { unready(p, a); a.State = waits("") }},
		{EndReason, func(_ *corev1.Pod, a *corev1.ContainerStatus) {
			a.LastTerminationState, a.RestartCount = ended("x://y", 1), 1
			a.LastTerminationState.Terminated.Reason = ""
		}},
		{EndTime, func(_ *corev1.Pod, a *corev1.ContainerStatus) {
			a.LastTerminationState, a.RestartCount = ended("x://y", 1), 1
			a.LastTerminationState.Terminated.StartedAt = at(9)
		}},
		{LastEnd, func(_ *corev1.Pod, a *corev1.ContainerStatus) { a.LastTerminationState = ended("x://y", 1) }},
		{LastEnd, func(_ *corev1.Pod, a *corev1.ContainerStatus) {
			a.LastTerminationState, a.RestartCount = ended(a.ContainerID, 1), 1
		}},
		{Backoff, func(p *corev1.Pod,
			a *corev1.ContainerStatus) {
			unready(p, a)
			a.State = waits("CrashLoopBackOff")
		}},
		{IDs, func(_ *corev1.Pod, a *corev1.ContainerStatus) { a.ContainerID = "" }},
		{IDs, func(p *corev1.Pod, a *corev1.ContainerStatus) { unready(p, a); a.State = ended("x://other", 1) }},
		{Started, func(p *corev1.Pod, a *corev1.ContainerStatus) {
			unready(p, a)
			a.State, a.Started = waits("ContainerCreating"), new(true)
		}},
		{Started, func(p *corev1.Pod, _ *corev1.ContainerStatus) {
			p.Status.EphemeralContainerStatuses[0].Started = new(true)
		}},
		{ReadyRuns, func(_ *corev1.Pod, a *corev1.ContainerStatus) { a.State = waits("ContainerCreating") }},
		{ReadyRuns, func(p *corev1.Pod, _ *corev1.ContainerStatus) { p.Status.InitContainerStatuses[0].Ready = false }},
		{InitOrder, func(p *corev1.Pod, _ *corev1.ContainerStatus) {
			p.Status.InitContainerStatuses[0].State, p.Status.InitContainerStatuses[0].Ready = waits("PodInitializing"),
				false
		}},
		{Ephemeral, func(p *corev1.Pod, _ *corev1.ContainerStatus) {
			p.Status.EphemeralContainerStatuses[0].RestartCount = 1
		}},
		{Mounts, func(_ *corev1.Pod, a *corev1.ContainerStatus) { a.VolumeMounts = nil }},
		{Conditions, func(p *corev1.Pod, _ *corev1.ContainerStatus) { p.Status.Conditions = p.Status.Conditions[1:] }},
		{Conditions,
			func(p *corev1.Pod, _ *corev1.ContainerStatus) { set(p, corev1.PodReady, corev1.ConditionUnknown, "x") }},
		{FalseReason,
			func(p *corev1.Pod, _ *corev1.ContainerStatus) { set(p, corev1.PodReady, corev1.ConditionFalse, "") }},
		{Initialized, func(p *corev1.Pod, _ *corev1.ContainerStatus) {
			set(p, corev1.PodInitialized, corev1.ConditionFalse, "x")
		}},
		{Ready, func(_ *corev1.Pod, a *corev1.ContainerStatus) { a.Ready = false }},
		{Ready, func(p *corev1.Pod, _ *corev1.ContainerStatus) {
			set(p, corev1.ContainersReady, corev1.ConditionFalse, "x")
		}},
		{TerminalEnd, func(p *corev1.Pod, _ *corev1.ContainerStatus) { p.Status.Phase = corev1.PodFailed }},
		{Succeeded, func(p *corev1.Pod, _ *corev1.ContainerStatus) { p.Status.Phase = corev1.PodSucceeded }},
		{RunningPhase, func(p *corev1.Pod, _ *corev1.ContainerStatus) {
			p.Status.Phase = corev1.PodPending
			p.Status.InitContainerStatuses = nil
			p.Spec.InitContainers = nil
		}},
	} {
		p := pod()
		tt.change(p, &p.Status.ContainerStatuses[0])
		if found := rules(Check(p)); !slices.Contains(found, string(tt.rule)) {
			t.Errorf("%s: not among %q", tt.rule, found)
		}
	}
}

// Each rule about changes is reported when it is violated.
func TestChangeViolations(t *testing.T) {
	for _, tt := range []struct {
		rule   Rule
		change func(before, after *corev1.Pod, a *corev1.ContainerStatus)
	}{
		{PhaseLatched,
			func(before, _ *corev1.Pod, _ *corev1.ContainerStatus) { before.Status.Phase = corev1.PodFailed }},
		{Fixed, func(_, after *corev1.Pod, _ *corev1.ContainerStatus) { after.Status.StartTime = new(at(5)) }},
		{Fixed, func(_, after *corev1.Pod,
			_ *corev1.ContainerStatus) {
			after.Status.QOSClass = corev1.PodQOSGuaranteed
		}},
		{GenerationRises,
			func(_, after *corev1.Pod, _ *corev1.ContainerStatus) { after.Status.ObservedGeneration = 1 }},
		{CountsRise, func(before, _ *corev1.Pod, _ *corev1.ContainerStatus) {
			before.Status.ContainerStatuses[0].RestartCount = 1
		}},
		{CountsRise, func(_, _ *corev1.Pod, a *corev1.ContainerStatus) { a.ContainerID = "carob://another" }},
		{AddressesKept, func(_, after *corev1.Pod, _ *corev1.ContainerStatus) {
			after.Status.PodIP, after.Status.PodIPs = "", nil
		}},
		{TransitionTime, func(_, after *corev1.Pod, _ *corev1.ContainerStatus) {
			Condition(after.Status.Conditions, corev1.PodReady).LastTransitionTime = at(3)
		}},
		{InitializedOnce, func(_, after *corev1.Pod, _ *corev1.ContainerStatus) {
			set(after, corev1.PodInitialized, corev1.ConditionFalse, "x")
		}},
		{FinalEnd, func(before, _ *corev1.Pod, _ *corev1.ContainerStatus) {
			before.Status.ContainerStatuses[0].State = ended("carob://a", 0)
		}},
		{OneLife, func(before, _ *corev1.Pod, _ *corev1.ContainerStatus) {
			before.Status.ContainerStatuses[0].State = ended("carob://a", 1)
		}},
		{OneLife, func(_, _ *corev1.Pod, a *corev1.ContainerStatus) {
			a.State.Running = &corev1.ContainerStateRunning{StartedAt: at(4)}
		}},
		{StartedStays, func(_, after *corev1.Pod, a *corev1.ContainerStatus) {
			unready(after, a)
			a.Started = new(false)
		}},
		{EndShown, func(_, after *corev1.Pod, a *corev1.ContainerStatus) {
			unready(after, a)
			a.State = waits("ContainerCreating")
		}},
	} {
		before, after := pod(), pod()
		tt.change(before, after, &after.Status.ContainerStatuses[0])
		if found := rules(CheckChange(before, after)); !slices.Contains(found, string(tt.rule)) {
			t.Errorf("%s: not among %q", tt.rule, found)
		}
	}
}

// Each rule cites its clause.
func TestClauses(t *testing.T) {
	for _, r := range []Rule{Phase, Entries, WaitReason, Ready, PhaseLatched, EndShown} {
		if !strings.HasSuffix(string(r), ")") || !strings.Contains(string(r), "(L") {
			t.Errorf("%q has no clause", r)
		}
	}
}
