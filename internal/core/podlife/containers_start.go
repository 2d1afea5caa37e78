package podlife

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife/allocation"
	"carob/internal/core/podlife/probes"
	"carob/internal/core/podlife/restart"
)

// nothingLeft returns why the pod must end without a request: none of its containers runs, and none
// will (L3.63, L3.69, L3.73e). It changes nothing; it is called before any action is begun for the
// pod.
func (m *machine) nothingLeft() string {
	switch {
	case m.hold() != nil:
		return ""
	case m.sandbox == nil:
		if m.inFlight(opCreateSandbox, "") == nil && m.nothingLeftToRun() {
			return "nothing is left to run in a new sandbox: " + m.sandboxProblem
		}
		return ""
	case m.anyTrigger():
		return "" // all containers start over
	case m.over():
		return "all containers have ended for good"
	}
	if failed := m.failedInit(); failed != "" {
		return "init container " + failed + " failed"
	}
	return ""
}

// sync works towards the spec.
//
// Containers progress independently: an image that is slow or missing holds back
// only its own container. Starts themselves happen one after the other in spec
// order, and a postStart hook holds back the containers after it (L3.56).
func (m *machine) sync() {
	if h := m.hold(); h != nil {
		m.reportHold(h)
		return
	}
	m.s.Held = waitingReason{}
	m.prepareVolumes()
	m.requestResize()
	if m.sandbox == nil {
		m.makeSandbox()
		return
	}
	m.s.Replaced = ""
	m.succeeded(opCreateSandbox, "")
	if m.restartAll() {
		return
	}
	m.killUnwanted()
	m.advanceResize()
	m.advancePostStart()
	initialized := m.initialize()
	for i := range m.containers {
		if c := &m.containers[i]; c.class == ephemeral {
			m.start(c, false, "ephemeral container was added")
		}
	}
	if initialized {
		m.startRegular()
	}
	m.advanceStops(false)
}

// hold returns why the pod must wait for resources on the node; nil: it need not wait. Resources of
// running containers are already counted.
func (m *machine) hold() *Hold {
	if len(m.in.Observed.Sandboxes)+len(m.in.Observed.Containers)+len(m.s.InFlight) > 0 {
		return nil
	}
	return m.in.Hold
}

// reportHold reports what the pod waits for until the node has resources for it.
func (m *machine) reportHold(h *Hold) {
	if m.s.Held.Reason != h.For || m.s.Held.Message != h.Object {
		if m.s.Held.Reason == "" {
			m.s.Held.At = m.now
			m.event(corev1.EventTypeNormal, "WaitingForRoom",
				fmt.Sprintf("Waits until these have ended: %s (%s)", h.Object, h.Why), "")
		}
		m.s.Held.Reason, m.s.Held.Message = h.For, h.Object
	}
	m.sandboxProblem = "waits for room on the node until these have ended: " + h.Object
	m.out.Waits = append(m.out.Waits, Wait{For: h.For, Object: h.Object, Since: m.s.Held.At, LastErr: h.Why})
}

// prepareVolumes sets up volumes, directories and cgroup (L3.50 steps 5–8).
func (m *machine) prepareVolumes() {
	if m.in.Observed.Volumes.Mounted {
		m.succeeded(opPrepareVolumes, "")
		return
	}
	m.do(PrepareVolumes{}, "the pod is bound to this node", "volumes", "")
}

// killUnwanted stops running containers that must not continue (L3.68, L3.73c).
func (m *machine) killUnwanted() {
	for i := range m.containers {
		c := &m.containers[i]
		if c.newest == nil || !mayHaveProcess(c.newest) || m.stopOf(c.newest.ID) != nil {
			continue
		}
		kind := "Container"
		if c.class == initial || c.class == sidecar {
			kind = "Init container"
		}
		if c.newest.State == ContainerUnknown {
			m.stop(c.newest, c, stopOrder{message: kind + ` is in "unknown" state, try killing it before restart`,
				cause: "state is unknown", grace: m.podGrace()})
			continue
		}
		if c.class != regular && c.class != sidecar {
			continue
		}
		var why string
		grace, again := m.podGrace(), true
		switch {
		case c.newest.Hash != "" && c.newest.Hash != DefinitionHash(c.spec.Name, c.spec.Image):
			why = "definition changed"
		case c.verdict(Liveness) == probes.Failure:
			why = "failed liveness probe"
			grace, again = m.probeGrace(c.spec.LivenessProbe), m.restartsAfterProbe(c)
		case c.verdict(Startup) == probes.Failure:
			why = "failed startup probe"
			grace, again = m.probeGrace(c.spec.StartupProbe), m.restartsAfterProbe(c)
		case c.record.Resize.Due && c.record.Resize.Restart && m.s.Resize.Stage == resizeContainers:
			why = "resize requires restart"
		default:
			continue
		}
		text := fmt.Sprintf("%s %s %s", kind, c.spec.Name, why)
		if again {
			c.record.Replace = c.newest.ID
			if c.class == regular {
				text += ", will be restarted"
			}
		}
		m.stop(c.newest, c, stopOrder{message: text, cause: why, grace: grace})
	}
}

func (m *machine) restartsAfterProbe(c *podContainer) bool {
	return c.class == sidecar || restart.AfterProbe(c.spec, m.pod.Spec.RestartPolicy)
}

// startRegular starts the regular containers that are due, in spec order.
func (m *machine) startRegular() {
	held := false
	for i := range m.containers {
		c := &m.containers[i]
		if c.class != regular {
			continue
		}
		if m.start(c, held, "") {
			held = true
		}
	}
}

// start brings a container that is due one step closer to running: crash back-off, retry back-off,
// image, start. held prevents the last of these. The result reports whether the containers after it
// must wait.
func (m *machine) start(c *podContainer, held bool, cause string) (hold bool) {
	name := c.spec.Name
	if f := m.inFlight(opStart, name); f != nil {
		m.waitFor(f, "start", name)
		return true
	}
	if c.running() {
		return c.record.PostStart.ContainerID == c.newest.ID && c.record.PostStart.Stage != hookFailed
	}
	if !m.due(c) || c.newest != nil && c.newest.State == ContainerUnknown {
		return false
	}
	if until, waits := m.crashWait(c); waits {
		m.reportCrash(c, until)
		return false
	}
	m.grantRestart(c)
	if r := m.resting(opStart, name); r != nil {
		m.waitOut(r, "start", name)
		return false
	}
	mounts := m.getVolumeImages(c)
	ref, present, busy := m.getImage(c)
	if ref != "" && !mounts {
		return false
	}
	if ref == "" {
		// Upstream starts the containers after one with a postStart hook only when the hook has
		// ended; users rely on that.
		return busy && c.spec.Lifecycle != nil && c.spec.Lifecycle.PostStart != nil
	}
	if held || !m.in.Observed.Volumes.Mounted {
		return held
	}
	if present {
		m.normal(c, "Pulled",
			fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", c.spec.Image))
	}
	c.record.Resize = allocation.Change{}
	m.do(StartContainer{Container: name, Attempt: c.record.Attempts, SandboxID: m.sandbox.ID, ImageRef: ref,
		PodIPs: m.podIPs()},
		m.startCause(c, cause), "start", name)
	return true
}

func (m *machine) startCause(c *podContainer, cause string) string {
	e, ended := m.lastExit(c)
	switch {
	case cause != "":
		return cause
	case ended:
		return fmt.Sprintf("restart after exit code %d (%s)", e.code, e.reason)
	case c.class == initial || c.class == sidecar:
		return "next init container"
	}
	return "the pod is initialized"
}

// forgetHooks drops the postStart hooks of containers that have ended.
func (m *machine) forgetHooks() {
	for i := range m.containers {
		c := &m.containers[i]
		if h := &c.record.PostStart; h.ContainerID != "" && (!c.running() || c.newest.ID != h.ContainerID) {
			m.cancel(m.postStart(h.ContainerID))
			*h = hookRun{}
		}
	}
}

// advancePostStart begins the postStart hooks that are due.
func (m *machine) advancePostStart() {
	for i := range m.containers {
		c := &m.containers[i]
		h := &c.record.PostStart
		if h.ContainerID == "" {
			continue
		}
		if m.stopOf(h.ContainerID) != nil {
			m.cancel(m.postStart(h.ContainerID))
			h.Stage = hookFailed
			continue
		}
		if h.Stage == hookDue {
			h.Stage = hookRunning
			m.begin(RunHook{Container: c.spec.Name, ContainerID: h.ContainerID, Kind: PostStart,
				Handler: c.spec.Lifecycle.PostStart, PodIP: m.podIP()},
				"container started")
		}
		if f := m.postStart(h.ContainerID); f != nil {
			m.waitFor(f, "postStart", c.spec.Name)
		}
	}
}

// postStart finds the hook of an instance in flight; that of an earlier one may
// still be on its way out.
func (m *machine) postStart(containerID string) *flight {
	for i := range m.s.InFlight {
		if f := &m.s.InFlight[i]; f.Op == opPostStart && f.Detail == containerID {
			return f
		}
	}
	return nil
}

// over reports that no regular container runs and none will (L3.69, L7.60).
func (m *machine) over() bool {
	for i := range m.containers {
		c := &m.containers[i]
		if c.class != regular {
			continue
		}
		if c.newest != nil && mayHaveProcess(c.newest) || m.due(c) || m.inFlight(opStart, c.spec.Name) != nil {
			return false
		}
	}
	return true
}

// probeGrace is the grace of a kill by a probe (L6.12).
func (m *machine) probeGrace(p *corev1.Probe) time.Duration {
	if p != nil && p.TerminationGracePeriodSeconds != nil && m.pod.DeletionGracePeriodSeconds == nil {
		return seconds(*p.TerminationGracePeriodSeconds)
	}
	return m.podGrace()
}
