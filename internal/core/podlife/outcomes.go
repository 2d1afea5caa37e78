package podlife

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// applyResults applies the events since the last Step: outcomes first, then probes.
func (m *machine) applyResults() {
	for i := range m.in.Done {
		o := &m.in.Done[i]
		f, ok := m.land(o.Key)
		if !ok {
			continue // begun before the agent was restarted
		}
		m.applyOutcome(f, o)
	}
	for i := range m.in.Probes {
		r := &m.in.Probes[i]
		if f, ok := m.land(r.Key); !ok || !f.Cancelled {
			m.applyProbe(r)
		}
	}
	m.forgetStops()
	m.forgetHooks()
	m.noteEnds()
	m.cancelProbes()
	m.s.Stopped = slices.DeleteFunc(m.s.Stopped, func(id string) bool {
		return !slices.ContainsFunc(m.in.Observed.Sandboxes, func(s Sandbox) bool { return s.ID == id })
	})
}

// land removes an action from those in flight.
func (m *machine) land(k Key) (flight, bool) {
	for i := range m.s.InFlight {
		if m.s.InFlight[i].Key == k {
			f := m.s.InFlight[i]
			m.s.InFlight = slices.Delete(m.s.InFlight, i, i+1)
			m.find.flights = nil
			return f, true
		}
	}
	return flight{}, false
}

func (m *machine) applyOutcome(f flight, o *Outcome) {
	if o.Err != nil && o.Err.Reason == Aborted && f.Cancelled {
		if c := m.container(f.Object); f.Op == opStart && c != nil && c.newest != nil &&
			c.newest.Attempt == int(f.Attempt) {
			c.record.Waiting = waitingReason{} // what the container waited for before this instance was created
		}
		return // it was cancelled; if it is still needed, it begins again
	}
	switch f.Op {
	case opPull:
		m.applyPull(f, o)
		return
	case opStart:
		m.applyStart(f, o)
		return
	case opPostStart:
		m.applyPostStart(f, o)
		return
	case opPreStop:
		if o.Err != nil {
			if inst := m.instance(f.Object); inst != nil {
				if c := m.container(inst.Name); c != nil {
					m.warning(c, "FailedPreStopHook", "PreStopHook failed")
				}
			}
		}
		return
	case opAdmitResize:
		m.applyAdmission(f, o)
		return
	case opResizePod, opResize:
		m.applyResize(f, o)
		return
	case opProbe:
		return // the driver could not run it; it is due again after a period
	default: // other actions change what is observed
	}
	if o.Err == nil {
		if lack := m.lacks(f); lack != "" {
			m.failed(f.Op, f.Object, lack, o.At) // a runtime may report success without effect: no busy loop
			return
		}
		m.succeeded(f.Op, f.Object)
		switch f.Op {
		case opStopSandbox:
			m.s.Stopped = append(m.s.Stopped, f.Object)
		case opDeletePod:
			m.s.End.Deleted = true
		default: // visible in what is observed
		}
		return
	}
	m.failed(f.Op, f.Object, o.Err.Message, o.At)
	switch f.Op {
	case opPrepareVolumes:
		if o.Err.Reason != "" && o.Err.Reason != Aborted && m.s.Life == Syncing {
			m.event(corev1.EventTypeWarning, o.Err.Reason, o.Err.Message, "")
		}
	case opCreateSandbox:
		if m.s.Life == Syncing { // no event after a request to end (L3.51)
			reason := "FailedCreatePodSandBox"
			if o.Err.Reason == "FailedPrepareDynamicResources" {
				reason = o.Err.Reason
			}
			text := "Failed to create pod sandbox: " + o.Err.Message
			if reason != "FailedCreatePodSandBox" {
				text = "Failed to prepare dynamic resources: " + o.Err.Message
			}
			m.event(corev1.EventTypeWarning, reason, text, "")
		}
	case opStop, opStopSandbox:
		if m.s.Life == Syncing && m.sandbox != nil {
			return // a failure to stop one container is not a failure of the pod
		}
		m.event(corev1.EventTypeWarning, "FailedKillPod", "error killing pod: "+o.Err.Message, "")
	default: // tried again without an event
	}
}

// lacks returns which effect of a successful action is missing.
func (m *machine) lacks(f flight) string {
	o := &m.in.Observed
	switch f.Op {
	case opPrepareVolumes:
		if !o.Volumes.Mounted {
			return "the volumes are not mounted after they were set up"
		}
	case opReleaseDevices:
		if o.Devices.Held {
			return "the pod has devices after they were given back"
		}
	case opRemoveVolumes:
		if o.Volumes.Present {
			return "something of the volumes is left after they were removed"
		}
	case opCreateSandbox:
		if m.sandbox == nil {
			return m.sandboxProblem
		}
	case opStop:
		if m.alive(f.Object) {
			return "the container still runs after it was stopped"
		}
	case opRemove:
		if m.instance(f.Object) != nil {
			return "the container is still there after it was removed"
		}
	case opStopSandbox, opRemoveSandbox:
		for i := range o.Sandboxes {
			if s := &o.Sandboxes[i]; s.ID == f.Object && (f.Op == opRemoveSandbox || s.Ready) {
				return "the sandbox is still there"
			}
		}
	default: // already applied, or not visible
	}
	return ""
}

// applyStart applies the end of a start (L3.85–L3.96).
func (m *machine) applyStart(f flight, o *Outcome) {
	c := m.container(f.Object)
	if c == nil {
		return
	}
	if o.Err == nil || o.Err.Created {
		c.record.Attempts = max(c.record.Attempts, int(f.Attempt)+1)
		c.record.Pulled = ""
		m.normal(c, "Created", "Container created")
	}
	if o.Err == nil {
		if c.newest == nil || c.newest.Attempt < int(f.Attempt) {
			m.failed(opStart, f.Object, "the container is not there after it was started", o.At)
		} else {
			m.succeeded(opStart, f.Object)
		}
		c.record.Waiting = waitingReason{}
		m.normal(c, "Started", "Container started")
		if h := c.spec.Lifecycle; h != nil && h.PostStart != nil && c.running() && c.newest.Attempt == int(f.Attempt) {
			c.record.PostStart = hookRun{ContainerID: c.newest.ID, Stage: hookDue}
		}
		return
	}
	reason := o.Err.Reason
	if reason == "" {
		reason = "RunContainerError"
	}
	m.failed(opStart, f.Object, o.Err.Message, o.At)
	if o.Err.Missing {
		r := m.retry(opStart, f.Object)
		r.Missing, r.Arrivals, r.Soon = true, f.Arrivals, o.At.Add(arrivalDelay(r.Fails))
	}
	c.record.Waiting = waitingReason{Reason: reason, Message: o.Err.Message, At: o.At}
	m.forgetRemoved(c)
	text := o.Err.Message
	if text == "" {
		text = reason
	}
	m.warning(c, "Failed", "Error: "+text)
}

// applyPostStart applies the end of a postStart hook (L6.2).
func (m *machine) applyPostStart(f flight, o *Outcome) {
	c := m.container(f.Object)
	if c == nil || c.record.PostStart.ContainerID != f.Detail {
		return
	}
	if o.Err == nil || !c.running() || c.newest.ID != f.Detail {
		c.record.PostStart = hookRun{}
		return
	}
	c.record.PostStart.Stage = hookFailed
	c.record.Waiting = waitingReason{Reason: "PostStartHookError", Message: o.Err.Message, At: o.At}
	m.warning(c, "FailedPostStartHook", "PostStartHook failed")
	if m.s.Life == Syncing {
		m.stop(c.newest, c, stopOrder{message: "FailedPostStartHook", grace: m.podGrace(),
			cause: "postStart hook failed"})
	}
}

// applyPull applies the end of a pull (L3.107–L3.112).
func (m *machine) applyPull(f flight, o *Outcome) {
	c := m.container(f.Object)
	if c == nil {
		return
	}
	image := f.Detail
	if c.spec.Image != image {
		return // the spec has changed
	}
	if o.Err == nil {
		m.s.Images.Forget(image)
		p := Pulled{}
		if o.Pulled != nil {
			p = *o.Pulled
		}
		c.record.Pulled = p.Ref
		if p.Ref == "" {
			c.record.Pulled = image
		}
		m.normal(c, "Pulled",
			fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.",
				image, truncate(p.Took), truncate(p.Waited), p.Size))
		return
	}
	reason := o.Err.Reason
	if reason == "" || reason == Aborted {
		reason = reasonErrImagePull
	}
	if reason == reasonInvalidImageName {
		m.warning(c, "InspectFailed", o.Err.Message)
	} else {
		m.warning(c, "Failed", fmt.Sprintf("Failed to pull image %q: %v", image, o.Err.Message))
	}
	m.warning(c, "Failed", "Error: "+reason)
	c.record.Waiting = waitingReason{Reason: reason, Message: o.Err.Message, At: o.At}
	m.s.Images.Failed(image, reason, o.Err.Message, o.At)
}
