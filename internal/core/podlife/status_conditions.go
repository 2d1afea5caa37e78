package podlife

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/podstatus"
)

// setConditions rebuilds the list in its order: those of other writers first, then the agent's
// (L4.8, L4.63).
func (m *machine) setConditions(st *corev1.PodStatus) {
	theirs := m.pod.Status.Conditions
	list := make([]corev1.PodCondition, 0, max(len(m.s.Last.Conditions), 6))
	for i := range theirs {
		if !podstatus.OwnCondition(theirs[i].Type) && theirs[i].Type != corev1.DisruptionTarget {
			list = append(list, theirs[i])
		}
	}
	list = append(list, m.resizeConditions()...)
	if c := m.disruption(st); c != nil {
		list = append(list, *c)
	}
	ready := m.containersReady(st)
	list = append(list,
		m.stamped(m.sandboxReady()),
		m.stamped(m.initialized(st)),
		m.stamped(m.podReady(ready)),
		m.stamped(ready),
		m.stamped(corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}))
	if m.hasRestartAllRule() {
		c := corev1.PodCondition{Type: corev1.AllContainersRestarting, Status: corev1.ConditionFalse}
		switch {
		case podstatus.Terminal(st.Phase):
			c.Reason = phaseReason(st.Phase)
		case m.s.RestartAll.Active:
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, "RestartAllContainersStarted",
				"container exited with restart policy rule"
		}
		c = m.stamped(c)
		c.ObservedGeneration = 0
		list = append(list, c)
	}
	st.Conditions = list
}

// stamped adds generation and transition time; the latter changes only with Status (L1.74).
func (m *machine) stamped(c corev1.PodCondition) corev1.PodCondition {
	c.ObservedGeneration = max(m.pod.Generation, m.s.Last.ObservedGeneration)
	old := podstatus.Condition(m.s.Last.Conditions, c.Type)
	if old != nil && old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	} else {
		c.LastTransitionTime = metav1.NewTime(m.now.Truncate(1e9))
	}
	return c
}

// disruption returns the DisruptionTarget of other writers, or the agent's own once the pod has
// ended (L4.59).
func (m *machine) disruption(st *corev1.PodStatus) *corev1.PodCondition {
	if ours := m.s.End.Disrupt; ours != nil && podstatus.Terminal(st.Phase) {
		c := m.stamped(*ours)
		return &c
	}
	return podstatus.Condition(m.pod.Status.Conditions, corev1.DisruptionTarget)
}

// sandboxReady is PodReadyToStartContainers (L4.51).
func (m *machine) sandboxReady() corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}
	if m.sandbox == nil {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "PodSandboxNotReady", m.sandboxProblem
		if old := podstatus.Condition(m.s.Last.Conditions, c.Type); old != nil && old.Status == c.Status &&
			podstatus.Terminal(m.s.Last.Phase) {
			c.Message = old.Message // cleaning up the pod does not change the message
		}
	}
	return c
}

// initialized is the Initialized condition (L4.52).
func (m *machine) initialized(st *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	if st.Phase == corev1.PodSucceeded {
		c.Reason = "PodCompleted"
		return c
	}
	if podstatus.ConditionTrue(m.s.Last.Conditions, corev1.PodInitialized) {
		return c
	}
	for i := range st.ContainerStatuses {
		if s := &st.ContainerStatuses[i]; s.State.Running != nil || s.State.Terminated != nil {
			return c
		}
	}
	var incomplete []string
	for i := range m.containers {
		o := &m.containers[i]
		s := o.entry
		switch {
		case o.class == initial && !s.Ready, o.class == sidecar && (s.Started == nil || !*s.Started):
			incomplete = append(incomplete, o.spec.Name)
		}
	}
	if len(incomplete) > 0 {
		c.Status, c.Reason = corev1.ConditionFalse, "ContainersNotInitialized"
		c.Message = nameList("containers with incomplete status", incomplete)
	}
	return c
}

// containersReady is the ContainersReady condition (L4.53, L4.58).
func (m *machine) containersReady(st *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}
	if podstatus.Terminal(st.Phase) {
		c.Status, c.Reason = corev1.ConditionFalse, phaseReason(st.Phase)
		return c
	}
	var unready []string
	for i := range m.containers {
		o := &m.containers[i]
		if o.class != regular && o.class != sidecar {
			continue
		}
		if s := o.entry; s == nil || !s.Ready {
			unready = append(unready, o.spec.Name)
		}
	}
	if len(unready) > 0 {
		c.Status, c.Reason = corev1.ConditionFalse, "ContainersNotReady"
		c.Message = nameList("containers with unready status", unready)
	}
	return c
}

// podReady is the Ready condition: the containers and the readiness gates (L4.54).
func (m *machine) podReady(containers corev1.PodCondition) corev1.PodCondition {
	c := containers
	c.Type = corev1.PodReady
	if c.Status != corev1.ConditionTrue {
		return c
	}
	var missing []string
	for _, g := range m.pod.Spec.ReadinessGates {
		switch t := podstatus.Condition(m.pod.Status.Conditions, g.ConditionType); {
		case t == nil:
			missing = append(missing,
				fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.",
					string(g.ConditionType)))
		case t.Status != corev1.ConditionTrue:
			missing = append(missing,
				fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", string(g.ConditionType),
					t.Status))
		}
	}
	if len(missing) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "ReadinessGatesNotReady", strings.Join(missing, ", ")
	}
	return c
}

func (m *machine) hasRestartAllRule() bool {
	for i := range m.containers {
		rules := m.containers[i].spec.RestartPolicyRules
		for j := range rules {
			if rules[j].Action == corev1.ContainerRestartRuleActionRestartAllContainers {
				return true
			}
		}
	}
	return false
}

func phaseReason(p corev1.PodPhase) string {
	if p == corev1.PodSucceeded {
		return "PodCompleted"
	}
	return "PodFailed"
}

// nameList formats "text: [a b]".
func nameList(text string, names []string) string {
	return text + ": [" + strings.Join(names, " ") + "]"
}
