package podlife

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife/allocation"
	"carob/internal/core/podlife/probes"
	"carob/internal/core/podlife/pull"
	"carob/internal/core/podlife/restart"
)

// State is what Step keeps between calls: only what cannot be observed. It is a serialisable value
// and has no pointer into an Input. The zero value is the state of a new pod. Step never changes
// the State that it receives; a driver keeps the one that Step returns.
//
// All times that decide something are on the clock of Step (Input.Now): machine.stepTime converts
// times of the runtime and of the API server when it first reads them. So no wait changes when the
// wall clock is set.
type State struct {
	Life       Life
	StartTime  time.Time // status.startTime (L1.75)
	Active     time.Time // the same on the clock of Step: activeDeadlineSeconds counts from here
	InFlight   []flight  // actions begun whose outcome is not known yet
	Retries    []retry   // back-off of actions that failed
	Containers []containerRecord
	Images     pull.Backoffs
	Stops      []containerStop
	Stopped    []string      // sandboxes that StopSandbox ended; removed ones are forgotten
	Replaced   string        // sandbox whose replacement was announced (L3.62)
	Network    waitingReason // the network problem already reported (L3.50 step 3)
	Held       waitingReason // why the pod waits for resources, as reported
	PodIPs     []string      // of the newest sandbox that had any (L7.27)
	End        termination
	RestartAll restartingAll
	Resize     resizing
	Resources  wholeResources
	Last       corev1.PodStatus // as published by the last Step
}

// op is the kind of an action, to find one in flight without computing its Key.
type op string

const (
	opPrepareVolumes op = "prepare-volumes"
	opCreateSandbox  op = "create-sandbox"
	opPull           op = "pull"
	opStart          op = "start"
	opPostStart      op = "post-start"
	opPreStop        op = "pre-stop"
	opProbe          op = "probe"
	opAdmitResize    op = "admit-resize"
	opResizePod      op = "resize-pod"
	opResize         op = "resize"
	opStop           op = "stop"
	opRemove         op = "remove"
	opStopSandbox    op = "stop-sandbox"
	opRemoveSandbox  op = "remove-sandbox"
	opReleaseDevices op = "release-devices"
	opRemoveVolumes  op = "remove-volumes"
	opDeletePod      op = "delete-pod"
)

// flight is an action whose outcome is awaited.
type flight struct {
	Key       Key
	Op        op
	Object    string // container name, or the ID of a container or sandbox for stop, remove and preStop
	Detail    string // image of a pull, type of a probe, container ID of a postStart hook, stage of a resize
	Attempt   int64  // of a start; generation of a resize
	Arrivals  int64  // Input.Arrivals when it was begun
	Since     time.Time
	Cancelled bool
}

// retry is the back-off of an action that failed.
type retry struct {
	Op     op
	Object string
	Fails  int
	Since  time.Time // of the first consecutive failure
	At     time.Time // next try
	Err    string

	// Missing: it failed for want of an object; the next try is at Soon once Input.Arrivals is not Arrivals any more.
	Missing  bool
	Soon     time.Time
	Arrivals int64
}

// retryDelay is the wait after n consecutive failures: 1 s, 2 s, 4 s, 8 s, then 10 s. Upstream
// retries the whole pod after 10–15 s, whatever failed (L0.34).
func retryDelay(n int) time.Duration {
	return min(time.Second<<min(n-1, 4), 10*time.Second)
}

// arrivalDelay is the wait after n consecutive failures of which the last was for want of an object, if that may have
// come: a tenth of the usual one. An object that changes all the time, and never has what is missing, ends no wait
// earlier.
func arrivalDelay(n int) time.Duration { return retryDelay(n) / 10 }

// containerRecord is the state of one container of the spec, over all its instances.
type containerRecord struct {
	Name      string
	Attempts  int           // the restart count that the next instance gets (L3.88)
	Waiting   waitingReason // why the last try to start it failed (L3.96)
	Adopted   string        // instance that ran when the agent started; its verdicts may be older (L4.42)
	Ended     observedExit
	Crash     restart.Backoff
	Lost      bool    // the newest instance ran, and vanished
	Pulled    string  // ID of the image that was pulled for the coming start
	PostStart hookRun // the running or due postStart hook
	Replace   string  // instance killed in order to be restarted, whatever its restart policy (L3.68)
	Resize    allocation.Change
	Probes    [3]probes.Record
}

// observedExit is when an instance ended, on the clock of Step.
type observedExit struct {
	ID string
	At time.Time
}

// waitingReason is a reason for state.waiting.
type waitingReason struct {
	Reason, Message string
	At              time.Time
}

// hookRun is the stage of a postStart hook.
//
//	(none) ──start succeeded──▶ due ──begun──▶ running ──success──▶ (none)
//	                                              └──failure, kill──▶ failed ──exit──▶ (none)
type hookRun struct {
	ContainerID string
	Stage       hookStage
}

type hookStage string

const (
	hookDue     hookStage = "due"
	hookRunning hookStage = "running"
	hookFailed  hookStage = "failed" // the container is being killed
)

// termination is why and how the pod ends.
type termination struct {
	Cause    string
	Since    time.Time
	Grace    time.Duration // effective grace period; it may only decrease (L7.15)
	NoHooks  bool          // no preStop: orphans and rejected pods (L7.17)
	Phase    corev1.PodPhase
	Reason   string
	Message  string
	Disrupt  *corev1.PodCondition // a copy
	Evicted  bool                 // dead containers go at once (L7.153)
	Stopped  bool                 // by Input.Stop
	Routed   bool                 // the data plane routed to the pod when it was deleted
	Settles  time.Time            // the data plane has stopped routing to it; the containers run on until then
	Drained  bool                 // the data plane has stopped routing to the pod, or need not be waited for (N8.13)
	Late     bool                 // an event has reported that the termination takes too long (L7.18)
	Rejected bool
	Deleted  bool // the API object was deleted by the agent
}

// record returns the record of a container, and creates it if missing.
func (s *State) record(name string) *containerRecord { return &s.Containers[s.recordAt(name, 0)] }

// recordAt returns the position of the record of a container, and creates it if missing. It looks first at the given
// position: the order of records is that of the containers, as far as these were not added later.
func (s *State) recordAt(name string, first int) int {
	n := len(s.Containers)
	for i := range n {
		if at := (first + i) % n; s.Containers[at].Name == name {
			return at
		}
	}
	s.Containers = append(s.Containers, containerRecord{Name: name})
	return n
}

// clone returns a State whose slices can be changed without touching s.
func (s State) clone() State {
	s.InFlight = slices.Clone(s.InFlight)
	s.Retries = slices.Clone(s.Retries)
	s.Containers = slices.Clone(s.Containers)
	s.Images = slices.Clone(s.Images)
	s.Stops = slices.Clone(s.Stops)
	s.Stopped = slices.Clone(s.Stopped)
	return s
}
