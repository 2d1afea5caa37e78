package podlife

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Input is everything that Step may use.
type Input struct {
	Now    time.Time   // the only clock: from time.Now, whose monotonic reading never runs backwards
	Pod    *corev1.Pod // the newest version of the spec; Status is the one in the API server; read only
	Gone   bool        // the object left its source (force delete, manifest removed): end the pod, publish nothing
	Hold   *Hold       // the node has no room yet: no action is begun for the pod until it has
	Stop   *Stop       // eviction, preemption or shutdown requests that the pod ends
	Reject *Rejection  // node admission refused the pod (L3.12): it never runs
	// Routed means that a part of the data plane may still open new connections to the pod as if it were not being
	// deleted (N8.14). It is false when all parts have applied the deletion, even if the pod is still used because
	// there is no other endpoint (N8.16). Before the deletion it is not used.
	Routed bool
	// DrainTimeout is the longest wait for the data plane that the pod's InferencePools set. It replaces
	// Node.DrainTimeout; nil if none sets one.
	DrainTimeout *time.Duration
	Node         Node          // facts about the machine
	Observed     Observed      // the runtime as a whole, not what changed in it
	Arrivals     int64         // increases when an object that a container lacks may have come (Failure.Missing)
	Probes       []ProbeResult // probes finished since the last Step
	Done         []Outcome     // actions finished since the last Step
}

// Node has the facts about the machine that Step may use.
type Node struct {
	Name            string
	HostIPs         []string      // primary family first, at most two
	RuntimeName     string        // prefix of a containerID: "carob", "containerd"
	AgentStarted    time.Time     // probes of older containers keep their verdict (L4.42, L5.11)
	NetworkProblem  string        // why the pod network is not ready; empty when it is (L3.50 step 3)
	Vacated         int64         // increases when resources are freed: deferred resizes are tried again (L3.123)
	CrashBackoffMax time.Duration // maximum of the crash back-off; zero means 300 s (L3.75, L3.78)
	ClusterDomain   string        // "cluster.local"
	DrainTimeout    time.Duration // the longest wait of a deleted pod for the data plane; zero: none (N8.13)
	CgroupV2        bool          // the unified hierarchy only: cpu requests are rounded (L4.32a)
	NoCPUQuota      bool          // the node does not enforce CPU limits, and its runtime reports none (S11.56)
	DiskShort       bool          // pods that ended lose their containers before others are evicted (L7.147)
	// RecursiveReadOnly means that the runtime can make a mount and all mounts below it read-only.
	RecursiveReadOnly bool
}

// Stop requests the end of a pod that its owner did not delete (L7.150, L7.156, L3.40).
type Stop struct {
	Reason    string // status.reason: Evicted, Preempting, Terminated
	Message   string
	Condition *corev1.PodCondition // DisruptionTarget, if the cause has one
	Grace     *time.Duration       // replaces the pod's own grace when shorter
}

// Hold delays the start of a pod until other pods have ended and freed resources: pods that are preempted for it
// (L3.40), and pods whose objects were deleted by force while their containers still run.
type Hold struct {
	For    string // what it waits for: "preemption", "room"
	Object string // the pods that it waits for
	Why    string // which resource is short, for users
}

// Rejection is a refusal of the pod by the node (L3.12).
type Rejection struct{ Reason, Message string }

// Observed is a snapshot of the runtime. It is never older than the newest Outcome of the same Input: the driver
// takes a new snapshot after an action has ended and before it reports the end. So Step never decides on outdated
// facts.
type Observed struct {
	Taken      time.Time
	Sandboxes  []Sandbox    // newest first
	Containers []Container  // every attempt that the runtime still has, oldest first
	Images     []ImageState // one for every image the pod names
	Volumes    VolumeState
	Devices    DeviceState
	Logs       []LogFile // of containers without an instance in the runtime; only in the first snapshot of a pod
}

// LogFile is the newest log file that a container of the pod left on the disk.
type LogFile struct {
	Container string
	Attempt   int // the restart count in its name, N.log (L3.88)
}

// Sandbox is one pod sandbox as the runtime reports it.
type Sandbox struct {
	ID          string
	Attempt     uint32
	CreatedAt   time.Time
	Ready       bool
	IPs         []string // primary first; empty for host network
	HostNetwork bool
}

// ContainerState is the state of a container in the runtime.
type ContainerState string

// The states of CRI v1.
const (
	ContainerCreated ContainerState = "created"
	ContainerRunning ContainerState = "running"
	ContainerExited  ContainerState = "exited"
	ContainerUnknown ContainerState = "unknown"
)

// Container is one attempt of one container of the pod.
type Container struct {
	ID         string
	Name       string
	Attempt    int // the restart count it was created with
	SandboxID  string
	State      ContainerState
	CreatedAt  time.Time
	StartedAt  time.Time
	FinishedAt time.Time
	ExitCode   int32
	Reason     string                       // Completed, Error, OOMKilled, StartError …
	Message    string                       // termination message, already read and truncated (L3.150–152)
	Image      string                       // as the runtime names it
	ImageRef   string                       // status.imageID
	Hash       string                       // of name and image, when it was created (L3.66)
	Resources  *corev1.ResourceRequirements // as the runtime runs it; nil when unknown
	User       *corev1.ContainerUser
}

// ImageState is whether an image that the pod names is on this machine.
type ImageState struct {
	Image       string // as written in the spec
	Ref         string // resolved id; empty when absent
	Err         string // why the look-up failed (ImageInspectError); empty if it did not
	InvalidName string // why Image is not a valid image name; empty when it is (L3.102)
}

// DeviceState is what the pod uses of the node's devices.
type DeviceState struct {
	Held bool // the pod has devices that must be released after its containers have ended (S9.55)
	// Status is the health of the devices of its regular containers, by container name (S8.60,
	// S9.70).
	Status map[string][]corev1.ResourceStatus
}

// VolumeState is the state of the pod's volumes on this machine.
type VolumeState struct {
	Mounted bool // all are set up and may be used
	Present bool // the pod still has something to remove: volumes, directories, a cgroup
}

// Output is everything Step decided.
type Output struct {
	Begin  []Begin          // actions to begin now; at most one at a time for a Key
	Cancel []Key            // actions in flight to abort; each still reports an Outcome
	Status corev1.PodStatus // to publish as it is
	Events []Event          // to record; each once
	Life   Life
	// Allocated is the pod with the resources that it may use now: the actions in Begin use it, and the node counts
	// it. It is Input.Pod unless a resize waits to be granted; then its generation is the granted one (L3.120).
	Allocated *corev1.Pod
	Wake      time.Time // call Step again by then; zero when no time matters
	// Look is when the snapshot becomes too old: take a new one by then, and call Step. It may be now. It is zero
	// unless the pod waits for something without an event: an image may arrive from anywhere (L3.104).
	Look  time.Time
	Waits []Wait // what the pod waits for; empty when it waits for nothing
}

// Begin is an action with its cause, for the timeline.
type Begin struct {
	Action Action
	Cause  string
}

// Wait is an event that a pod waits for. A pod that waits always has a Wait (docs/design.md, principle 4).
type Wait struct {
	For     string // "image", "back-off", "probe", "init container", "sandbox", "volumes", "grace" …
	Object  string // container, image or volume
	Since   time.Time
	Until   time.Time // next try or deadline; zero when an event ends it
	LastErr string
}

// Life is the stage of a pod on its node (L7.1). It never goes back.
//
//	Syncing ──delete, stop, terminal phase──▶ Terminating ──all stopped──▶ Terminated ──cleaned──▶ Finished
type Life string

// The stages of a pod on its node.
const (
	Syncing     Life = "syncing"     // working towards the spec
	Terminating Life = "terminating" // stopping containers and sandboxes
	Terminated  Life = "terminated"  // nothing runs; cleaning up, last status, API delete
	Finished    Life = "finished"    // the driver may forget the pod
)

// Event is a Kubernetes event to record about the pod (L10).
type Event struct {
	Type      string // corev1.EventTypeNormal or EventTypeWarning
	Reason    string
	Message   string
	FieldPath string // spec.containers{name}; empty for the whole pod (L3.95)
}

// Key names an action of one pod: "start/web/3". Beginning a Key twice is harmless.
type Key string

// Action is one of PrepareVolumes, CreateSandbox, PullImage, StartContainer, RunProbe, RunHook, AdmitResize, ResizePod,
// Resize, StopContainer, RemoveContainer, StopSandbox, RemoveSandbox, ReleaseDevices, RemoveVolumes, and DeletePod.
type Action interface {
	Key() Key
	flight() flight
}

// Outcome reports that the action with this Key ended. Every action begun
// reports exactly one, aborted ones too (Err.Reason = Aborted).
type Outcome struct {
	Key    Key
	At     time.Time
	Err    *Failure
	Pulled *Pulled // PullImage only
}

// Pulled is the result of a successful pull.
type Pulled struct {
	Ref          string
	Size         int64         // bytes
	Took, Waited time.Duration // Waited includes queueing
}

// Failure is why an action failed.
type Failure struct {
	Reason    string // ErrImagePull, CreateContainerConfigError, CreateContainerError, RunContainerError, Aborted …
	Message   string
	Created   bool // StartContainer: the container was created, its start failed
	Permanent bool // another attempt would fail, too
	Missing   bool // StartContainer: an object is missing; Input.Arrivals shows when it may have come
}

// Aborted is the Failure.Reason of an action ended by Output.Cancel.
const Aborted = "Aborted"

// ProbeType is the kind of a probe.
type ProbeType string

// The three probes of a container (L5).
const (
	Liveness  ProbeType = "Liveness"
	Readiness ProbeType = "Readiness"
	Startup   ProbeType = "Startup"
)

// ProbeVerdict is how one run of a probe ended (L5.20–25).
type ProbeVerdict string

// The verdicts. ProbeError means that the probe could not run.
const (
	ProbeSuccess ProbeVerdict = "success"
	ProbeWarning ProbeVerdict = "warning"
	ProbeFailure ProbeVerdict = "failure"
	ProbeError   ProbeVerdict = "error"
)

// ProbeResult is one finished run of a probe. It takes the place of an Outcome for RunProbe.
type ProbeResult struct {
	Key         Key
	Container   string
	ContainerID string
	Type        ProbeType
	At          time.Time
	Verdict     ProbeVerdict
	Output      string // text for the event
}
