// Package podstatus checks which pod statuses are valid: each alone (Check), and one after another
// (CheckChange). Every rule cites its clause of the specification. It also decides how soon a change
// must be published (UrgencyOf).
//
// It is pure and does not depend on the code that computes statuses. The simulator checks every
// published status with it, tests check real pods, and it can check the pods of any cluster. It
// must never import core/podlife.
//
// Contract: docs/spec/pod-lifecycle.md.
package podstatus

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Rule is an invariant of every status, with its clause.
type Rule string

// Rules for one status.
const (
	Phase        Rule = "the phase is Pending, Running, Succeeded or Failed (L4.3)"
	Acknowledged Rule = "what the agent writes has a start time, a QoS class, the node's address and a generation (L4.64, L1.75)"
	Generation   Rule = "observedGeneration is not ahead of the pod's generation (L0.6)"
	QoS          Rule = "the QoS class is that of the spec (L1.40)"
	Addresses    Rule = "podIP is the first of podIPs, hostIP of hostIPs, at most one of each family; a pod with a running container has one (L4.2, L4.9, L4.64)"
	Rejected     Rule = "a pod that the node refused has no containers and no conditions of the agent (L3.12)"
	Entries      Rule = "each container of the spec has one entry: by name, init containers in the order of the spec (L4.25)"
	OneState     Rule = "a container waits, runs or has terminated, one of them (L4.29)"
	WaitReason   Rule = "a waiting container has a known reason (L3.85–L3.111, L4.25, L12.12)"
	EndReason    Rule = "a terminated container has a reason (L4.29c)"
	EndTime      Rule = "an end is not before its start, unless the clock was set back (L4.29c)"
	LastEnd      Rule = "lastState is an end of another instance, and there are restarts then, or the container waits (L4.31, L4.35)"
	Backoff      Rule = "CrashLoopBackOff shows the end that it backs off from, of the container that is named (L4.62)"
	IDs          Rule = "a running container has IDs of container and image and a start time; a terminated one has its container ID (L4.29, L4.30)"
	Started      Rule = "only a running container has started; ephemeral containers do not report it (L4.40)"
	ReadyRuns    Rule = "a ready container runs and has started; an init container is ready when it ended with 0 (L4.41, L4.43)"
	InitOrder    Rule = "no container runs before the init containers before it are done or, if sidecars, have started (L3.72–L3.74)"
	Ephemeral    Rule = "an ephemeral container is never restarted (L3.71)"
	Mounts       Rule = "volumeMounts are those of the spec (L4.32)"
	Conditions   Rule = "the agent's conditions are there once, in their order, with a time; True and False only (L4.8, L4.63)"
	FalseReason  Rule = "a False condition has a reason (L4.51–L4.54)"
	Initialized  Rule = "Initialized is False only while no regular container has run and an init container is not done (L4.52)"
	Ready        Rule = "ContainersReady is True when all regular containers and sidecars are ready, Ready only then (L4.53, L4.54)"
	TerminalEnd  Rule = "in a terminal phase nothing runs, waits to run or is ready, and no resize is reported (L4.58, L4.59)"
	Succeeded    Rule = "Succeeded is when every container ended with 0 (L4.18)"
	RunningPhase Rule = "Running is when a container runs or has run, Pending not when all run (L4.18)"
)

// Rules for consecutive statuses.
const (
	PhaseLatched    Rule = "a terminal phase is never left (L4.4, L4.7)"
	Fixed           Rule = "start time and QoS class are set once (L1.75, L1.40)"
	GenerationRises Rule = "observedGeneration never falls (L0.6)"
	CountsRise      Rule = "restartCount never falls, and rises with each instance (L3.88, L4.30)"
	AddressesKept   Rule = "addresses are not taken back (L7.27)"
	TransitionTime  Rule = "lastTransitionTime moves with the status of the condition, and with it alone (L1.74)"
	InitializedOnce Rule = "Initialized stays True (L4.52)"
	StartedStays    Rule = "a running instance without a startup probe that has started stays started (L4.40)"
	FinalEnd        Rule = "a container that may not restart stays terminated (L4.34)"
	OneLife         Rule = "an ended instance does not run again, and keeps its start and a real end (L4.27, L4.29)"
	EndShown        Rule = "a container that ran and waits shows how it ended (L4.27, L4.35)"
)

// Breach is a violation of a rule by a status.
type Breach struct {
	Rule   Rule
	Detail string
}

func (b Breach) String() string { return fmt.Sprintf("%s: %s", b.Rule, b.Detail) }

// rejectedPrefix is the beginning of the message of a pod that the node rejected (L3.12).
const rejectedPrefix = "Pod was rejected: "

// report collects breaches.
type report struct{ found []Breach }

func (r *report) broken(rule Rule, format string, args ...any) {
	r.found = append(r.found, Breach{rule, fmt.Sprintf(format, args...)})
}

// class is the role of a container in its pod.
type class int

const (
	initial class = iota
	sidecar
	regular
	ephemeral
)

// container is one container of the spec with its entry in the status.
type container struct {
	spec   *corev1.Container
	class  class
	status *corev1.ContainerStatus // nil: there is none
}

// containersOf are the containers of a pod in the order of the spec.
func containersOf(pod *corev1.Pod) []container {
	spec, st := &pod.Spec, &pod.Status
	all := make([]container, 0, len(spec.InitContainers)+len(spec.Containers)+len(spec.EphemeralContainers))
	for i := range spec.InitContainers {
		k := initial
		if p := spec.InitContainers[i].RestartPolicy; p != nil && *p == corev1.ContainerRestartPolicyAlways {
			k = sidecar
		}
		all = append(all, container{&spec.InitContainers[i], k,
			find(st.InitContainerStatuses, spec.InitContainers[i].Name)})
	}
	for i := range spec.Containers {
		all = append(all, container{&spec.Containers[i], regular, find(st.ContainerStatuses, spec.Containers[i].Name)})
	}
	for i := range spec.EphemeralContainers {
		c := (*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon)
		all = append(all, container{c, ephemeral, find(st.EphemeralContainerStatuses, c.Name)})
	}
	return all
}

func find(list []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}

// Terminal reports whether a phase is final: a pod never leaves it (L4.4).
func Terminal(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }
