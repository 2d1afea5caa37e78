package podlife

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// findSandbox decides whether the newest sandbox can be used (L3.57–L3.61).
// Observed.Sandboxes is newest first.
func (m *machine) findSandbox() {
	all := m.in.Observed.Sandboxes
	if len(all) == 0 {
		m.sandboxProblem = "no pod sandbox exists"
		return
	}
	for i := range all {
		if len(all[i].IPs) > 0 && !m.pod.Spec.HostNetwork {
			if !slices.Equal(m.s.PodIPs, all[i].IPs) {
				m.s.PodIPs = slices.Clone(all[i].IPs)
			}
			break
		}
	}
	ready := 0
	for i := range all {
		if all[i].Ready {
			ready++
		}
	}
	newest := &all[0]
	switch {
	case ready > 1:
		m.sandboxProblem = "multiple pod sandboxes are ready and need to be reconciled"
	case !newest.Ready:
		m.sandboxProblem = "pod sandbox is not ready"
	case newest.HostNetwork != m.pod.Spec.HostNetwork:
		m.sandboxProblem = "network namespace mode changed and sandbox needs to be recreated"
	case !newest.HostNetwork && len(newest.IPs) == 0:
		m.sandboxProblem = "pod sandbox has no IP address"
	case m.hasRunElsewhere(newest.ID):
		m.sandboxProblem = "the sandbox in which the pod's containers have run was replaced"
	default:
		m.sandbox = newest
	}
}

// hasRunElsewhere reports whether containers of a pod that never restarts exist in another sandbox than the given one,
// which a late call has created. Such a pod has one sandbox: in a second one, its init containers would run again, and
// leave their terminated state (L3.63, L4.34).
func (m *machine) hasRunElsewhere(id string) bool {
	return m.pod.Spec.RestartPolicy == corev1.RestartPolicyNever &&
		slices.ContainsFunc(m.containers, func(c podContainer) bool {
			return c.newest != nil && c.newest.SandboxID != id
		})
}

// leaveStopping abandons a sandbox that is being stopped, because a container started in it would
// end with it.
func (m *machine) leaveStopping() {
	if m.sandbox != nil && m.inFlight(opStopSandbox, m.sandbox.ID) != nil {
		m.sandbox, m.sandboxProblem = nil, "pod sandbox is not ready"
	}
}

// makeSandbox works towards a sandbox that can be used: it stops and removes the old ones and
// creates a new one.
func (m *machine) makeSandbox() {
	old := m.in.Observed.Sandboxes
	if f := m.inFlight(opCreateSandbox, ""); f != nil {
		m.waitFor(f, "sandbox", "")
		return
	}
	if len(old) > 0 && !m.endSandboxes() {
		return
	}
	if p := m.in.Node.NetworkProblem; p != "" && !m.pod.Spec.HostNetwork {
		if m.s.Network.Message != p {
			m.s.Network = waitingReason{Message: p, At: m.now}
			m.event(corev1.EventTypeWarning, "NetworkNotReady", "network is not ready: "+p, "")
		}
		m.out.Waits = append(m.out.Waits, Wait{For: "network", Since: m.s.Network.At, LastErr: p})
		return
	}
	m.s.Network = waitingReason{}
	var attempt uint32
	cause := "the pod has no sandbox"
	if len(old) > 0 {
		attempt = old[0].Attempt + 1
		cause = m.sandboxProblem
	}
	m.do(CreateSandbox{Attempt: attempt}, cause, "sandbox", "")
}

// nothingLeftToRun reports whether a new sandbox would be useless: the pod never restarts and
// has already run, or every regular container has ended for good (L3.63).
func (m *machine) nothingLeftToRun() bool {
	created, wanted := false, false
	for i := range m.containers {
		c := &m.containers[i]
		_, ended := m.lastExit(c)
		exists := ended || c.newest != nil
		if exists && m.pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
			return true // also if the runtime has lost the sandbox (L7.81)
		}
		if c.class == regular {
			created = created || exists
			wanted = wanted || c.running() || m.due(c) || m.inFlight(opStart, c.spec.Name) != nil
		}
	}
	return created && !wanted
}

// endSandboxes kills the containers of the old sandboxes, stops them and removes the init
// containers, so that init starts over (L3.62). It returns true when all of this is done.
func (m *machine) endSandboxes() bool {
	newest := &m.in.Observed.Sandboxes[0]
	if m.s.Replaced != newest.ID {
		m.s.Replaced = newest.ID
		if newest.HostNetwork == m.pod.Spec.HostNetwork { // not for a changed network mode (L3.60)
			m.event(corev1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.",
				"")
		}
	}
	done := true
	for i := range m.s.InFlight {
		switch f := &m.s.InFlight[i]; f.Op {
		case opStart, opPostStart:
			m.cancel(f)
			done = false
		default: // stopAll and stopSandboxes wait for the others
		}
	}
	m.spareKilled()
	if m.stopAll("sandbox is replaced: "+m.sandboxProblem, m.podGrace(), false) {
		done = false
	}
	if !done || !m.stopSandboxes(m.sandboxProblem) {
		return false
	}
	for i := range m.in.Observed.Containers {
		o := &m.in.Observed.Containers[i]
		if c := m.container(o.Name); c != nil && (c.class == initial || c.class == sidecar) {
			m.remove(o, true, "init starts over in a new sandbox")
			done = false
		}
	}
	return done
}

// spareKilled records that containers in the old sandboxes are killed for another reason than their
// own failure: they are restarted with any exit code, without back-off (L3.62).
func (m *machine) spareKilled() {
	for i := range m.containers {
		if c := &m.containers[i]; c.newest != nil && mayHaveProcess(c.newest) {
			c.record.Replace, c.record.Crash.Granted = c.newest.ID, c.newest.ID
		}
	}
}

// stopSandboxes stops every sandbox once. It returns true when all are stopped.
func (m *machine) stopSandboxes(cause string) bool {
	done := true
	for i := range m.in.Observed.Sandboxes {
		s := &m.in.Observed.Sandboxes[i]
		if slices.Contains(m.s.Stopped, s.ID) {
			continue
		}
		done = false
		m.do(StopSandbox{SandboxID: s.ID}, cause, "sandbox", s.ID)
	}
	return done
}

// podIPs are the addresses of the pod: of its sandbox, or of the node (L4.9).
func (m *machine) podIPs() []string {
	if m.pod.Spec.HostNetwork {
		return m.in.Node.HostIPs
	}
	return m.s.PodIPs
}

// podIP is the primary address of the pod, for probes and hooks.
func (m *machine) podIP() string {
	if ips := m.podIPs(); len(ips) > 0 {
		return ips[0]
	}
	return ""
}
