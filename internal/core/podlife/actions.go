package podlife

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// PrepareVolumes creates the pod's directories and cgroup and mounts its volumes. Step records a
// failure with a Reason as an event of the pod, with the text Message: FailedMount,
// FailedCreatePodContainer or Failed (L10.21–L10.24). An empty Reason records none: the volume
// manager did (L12.16).
type PrepareVolumes struct{}

// CreateSandbox runs a new sandbox; the network is attached when it ends.
type CreateSandbox struct{ Attempt uint32 }

// PullImage fetches an image for a container.
type PullImage struct {
	Container string
	Image     string // as written in the spec
}

// StartContainer creates and starts one attempt of a container.
type StartContainer struct {
	Container string
	Attempt   int // restart count
	SandboxID string
	ImageRef  string
	PodIPs    []string
}

// RunProbe runs one probe once and ends with a ProbeResult instead of an Outcome.
type RunProbe struct {
	Container   string
	ContainerID string
	Type        ProbeType
	Probe       *corev1.Probe
	PodIP       string
	Try         int // counts runs of this probe, to keep keys apart

	// Steady is when the next run is due, if a success changes nothing until then: it may be passed to the Step at
	// that time. Zero: it needs a Step at once.
	Steady time.Time
}

// HookKind is when a hook runs.
type HookKind string

// The two hooks of a container (L6).
const (
	PostStart HookKind = "PostStart"
	PreStop   HookKind = "PreStop"
)

// RunHook runs a lifecycle hook inside a running container.
type RunHook struct {
	Container   string
	ContainerID string
	Kind        HookKind
	Handler     *corev1.LifecycleHandler
	PodIP       string
	Timeout     time.Duration // zero: none (L6.1)
}

// AdmitResize checks with the node whether the pod may have the resources that its spec requests now,
// in addition to the other pods. A Failure that is Permanent makes the resize infeasible, any
// other defers it; its Reason is the admission's (L3.121).
type AdmitResize struct{ Generation int64 }

// ResizePod sets the limits of the pod's own cgroup: with Widen, before its containers are
// resized, to the larger of the current limits and the pod's; without Widen, after that, to
// exactly the pod's (L3.125).
type ResizePod struct {
	Widen   bool
	Granted int64 // generation of the spec that was granted
}

// Resize changes the resources of a running container in place.
type Resize struct {
	Container   string
	ContainerID string
	Resources   corev1.ResourceRequirements
	Granted     int64 // generation of the spec that was granted
}

// StopContainer sends the stop signal, waits for Grace and kills.
type StopContainer struct {
	Container   string
	ContainerID string
	Grace       time.Duration
}

// RemoveContainer removes a container that does not run, and its logs if Logs is set.
type RemoveContainer struct {
	Container   string
	ContainerID string
	Logs        bool
}

// StopSandbox stops a sandbox and releases its address.
type StopSandbox struct{ SandboxID string }

// RemoveSandbox removes a stopped sandbox and all its containers.
type RemoveSandbox struct{ SandboxID string }

// ReleaseDevices releases the pod's devices: drivers unprepare claims that no other pod uses
// (S9.55).
type ReleaseDevices struct{}

// RemoveVolumes unmounts and removes what PrepareVolumes created.
type RemoveVolumes struct{}

// DeletePod deletes the API object with grace 0 and a UID precondition, after the last status is stored (L7.40).
type DeletePod struct{}

// Each action has a Key, which names it in the timeline and to the driver, and a flight, which Step
// keeps until the outcome.

// Key implements Action.
func (PrepareVolumes) Key() Key { return "volumes/prepare" }

func (PrepareVolumes) flight() flight { return flight{Op: opPrepareVolumes} }

// Key implements Action.
func (a CreateSandbox) Key() Key {
	return Key("sandbox/create/" + strconv.FormatUint(uint64(a.Attempt), 10))
}

func (CreateSandbox) flight() flight { return flight{Op: opCreateSandbox} }

// Key implements Action.
func (a PullImage) Key() Key { return Key("pull/" + a.Container) }

func (a PullImage) flight() flight { return flight{Op: opPull, Object: a.Container, Detail: a.Image} }

// Key implements Action.
func (a StartContainer) Key() Key { return Key("start/" + a.Container + "/" + strconv.Itoa(a.Attempt)) }

func (a StartContainer) flight() flight {
	return flight{Op: opStart, Object: a.Container, Attempt: int64(a.Attempt)}
}

// Key implements Action.
func (a RunProbe) Key() Key {
	return Key("probe/" + a.Container + "/" + string(a.Type) + "/" + strconv.Itoa(a.Try))
}

func (a RunProbe) flight() flight {
	return flight{Op: opProbe, Object: a.Container, Detail: string(a.Type)}
}

// Key implements Action.
func (a RunHook) Key() Key { return Key("hook/" + string(a.Kind) + "/" + a.ContainerID) }

func (a RunHook) flight() flight {
	if a.Kind == PreStop {
		return flight{Op: opPreStop, Object: a.ContainerID}
	}
	return flight{Op: opPostStart, Object: a.Container, Detail: a.ContainerID}
}

// Key implements Action.
func (a AdmitResize) Key() Key { return Key("resize/admit/" + strconv.FormatInt(a.Generation, 10)) }

func (a AdmitResize) flight() flight { return flight{Op: opAdmitResize, Attempt: a.Generation} }

// Key implements Action.
func (a ResizePod) Key() Key {
	if a.Widen {
		return "resize/widen"
	}
	return "resize/narrow"
}

func (a ResizePod) flight() flight {
	stage := resizeNarrow
	if a.Widen {
		stage = resizeWiden
	}
	return flight{Op: opResizePod, Detail: string(stage), Attempt: a.Granted}
}

// Key implements Action.
func (a Resize) Key() Key { return Key("resize/" + a.ContainerID) }

func (a Resize) flight() flight {
	return flight{Op: opResize, Object: a.ContainerID, Attempt: a.Granted}
}

// Key implements Action.
func (a StopContainer) Key() Key { return Key("stop/" + a.ContainerID) }

func (a StopContainer) flight() flight { return flight{Op: opStop, Object: a.ContainerID} }

// Key implements Action.
func (a RemoveContainer) Key() Key { return Key("remove/" + a.ContainerID) }

func (a RemoveContainer) flight() flight { return flight{Op: opRemove, Object: a.ContainerID} }

// Key implements Action.
func (a StopSandbox) Key() Key { return Key("sandbox/stop/" + a.SandboxID) }

func (a StopSandbox) flight() flight { return flight{Op: opStopSandbox, Object: a.SandboxID} }

// Key implements Action.
func (a RemoveSandbox) Key() Key { return Key("sandbox/remove/" + a.SandboxID) }

func (a RemoveSandbox) flight() flight { return flight{Op: opRemoveSandbox, Object: a.SandboxID} }

// Key implements Action.
func (ReleaseDevices) Key() Key { return "devices/release" }

func (ReleaseDevices) flight() flight { return flight{Op: opReleaseDevices} }

// Key implements Action.
func (RemoveVolumes) Key() Key { return "volumes/remove" }

func (RemoveVolumes) flight() flight { return flight{Op: opRemoveVolumes} }

// Key implements Action.
func (DeletePod) Key() Key { return "pod/delete" }

func (DeletePod) flight() flight { return flight{Op: opDeletePod} }
