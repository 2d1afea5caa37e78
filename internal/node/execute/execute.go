// Package execute carries out the actions that podlife.Step returns, as calls of the container runtime, the volume
// manager, and the API server. The owner of a pod drives it, one call of Do for each action. It must never decide
// whether an action is necessary, and never retry: a failure is an outcome.
//
// Contract: docs/spec/pod-lifecycle.md.
package execute

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/confirm"
	"carob/internal/core/podlife"
	"carob/internal/core/resources"
	"carob/internal/node/hook"
	"carob/internal/node/logs"
	"carob/internal/node/pods"
	"carob/internal/node/probe"
	"carob/internal/node/spec"
	nodestatus "carob/internal/node/status"
	"carob/internal/node/volume"
	"carob/internal/runtime"
)

// Limits of runtime calls (L0.46).
const (
	callTimeout    = 2 * time.Minute
	sandboxTimeout = 4 * time.Minute
	undoTimeout    = 10 * time.Second
)

// removalDelay is how long a stopped sandbox is left: its removal, milliseconds of work on files, would delay the end
// of this pod and the start of its replacement.
const removalDelay = 50 * time.Millisecond

// Volumes are the parts of the volume manager that actions need.
type Volumes interface {
	spec.Disk
	Prepare(ctx context.Context, pod *corev1.Pod) error
	Resized(pod *corev1.Pod)
	Remove(ctx context.Context, uid types.UID) error
}

// Cgroups are the parts of the cgroup manager that actions need.
type Cgroups interface {
	Ensure(pod *corev1.Pod) error
	// Resize gives the group the pod's limits, or the larger of those and the ones in force.
	Resize(pod *corev1.Pod, widen bool) error
	Remove(ctx context.Context, uid types.UID) error
	Parent(pod *corev1.Pod) string
}

// UserNamespaces hands out ranges of ids (L3.163).
type UserNamespaces interface {
	Of(pod *corev1.Pod) (*cri.UserNamespace, error)
	Release(uid types.UID)
}

// Devices gives devices of the node to pods.
type Devices interface {
	// PrepareClaims and Allocate are called before each new sandbox; a pod keeps the devices that it already has.
	PrepareClaims(ctx context.Context, pod *corev1.Pod) error
	Allocate(ctx context.Context, pod *corev1.Pod) error
	// Options is what a container gets at a start; nil: nothing.
	Options(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (*spec.Devices, error)
	Release(ctx context.Context, pod types.UID) error
}

// Pinning gives containers CPUs and NUMA nodes of their own.
type Pinning interface {
	// Starting and Resizing add the assigned CPUs and NUMA nodes to a container's resources. Starting is called before
	// each start.
	Starting(pod *corev1.Pod, container string, r *cri.LinuxContainerResources)
	Resizing(pod *corev1.Pod, container string, r *cri.LinuxContainerResources)
	// Started records with which CPUs a container was started.
	Started(pod types.UID, container, id, cpus string)
	Release(pod types.UID)
}

// Images pulls images and finds existing ones.
type Images interface {
	Pull(ctx context.Context, pod *corev1.Pod, image string, sandbox *cri.PodSandboxConfig) (*podlife.Pulled,
		*podlife.Failure)
	Image(ctx context.Context, pod *corev1.Pod, image string) (*cri.Image, error)
}

// Observer is the part of the observer's cache that actions need.
type Observer interface {
	LogPath(uid types.UID, containerID string) string
	Made(uid types.UID, sandboxID, containerID string)
	Refresh(uid types.UID, containerID string)
	RunningID(uid types.UID, container string) string
}

// Status waits for statuses to be stored.
type Status interface {
	Flush(ctx context.Context, uid types.UID) error
}

// Links are the links to container logs (L3.98).
type Links interface {
	Make(pod *corev1.Pod, container, id, log string) error
	Remove(pod *corev1.Pod, container, id, log string) error
	Forget(pod *corev1.Pod)
}

// Objects are the config maps, secrets, and services that containers refer to.
type Objects interface {
	spec.Fetcher
	// Await has changed called for each change of an object that a container lacks, until Arrived.
	Await(pod *corev1.Pod, container string, missing spec.Missing, changed func(types.UID))
	Arrived(uid types.UID, container string)
}

// Handlers finds the runtime handlers of pods.
type Handlers interface {
	Of(ctx context.Context, pod *corev1.Pod) (string, error)
	Forget(uid types.UID)
}

// Config is what an Executor works with. All fields but Devices and Pinning are required.
type Config struct {
	Runtime  runtime.Runtime
	Images   Images
	Volumes  Volumes
	Cgroups  Cgroups
	Devices  Devices // nil: the node gives none
	Pinning  Pinning // nil: all containers run on all CPUs
	UserNS   UserNamespaces
	Observer Observer
	Status   Status
	Objects  Objects
	Client   corev1client.PodsGetter
	Handlers Handlers
	Node     func() *spec.Node
	Event    func(*corev1.Pod, podlife.Event)
	// Changed announces that an object that a container of the pod lacks may have come.
	Changed func(types.UID)
	// Reject ends a pod that cannot run on this node and has never run.
	Reject func(types.UID, podlife.Stop)
	// Owner marks the sandboxes of this agent.
	OwnerKey, OwnerValue string
	Links                Links
}

// Executor implements pods.Executor on a container runtime.
type Executor struct{ cfg Config }

var _ pods.Executor = (*Executor)(nil)

// New returns an Executor.
func New(cfg Config) *Executor {
	if cfg.Devices == nil {
		cfg.Devices = noDevices{}
	}
	if cfg.Pinning == nil {
		cfg.Pinning = noPinning{}
	}
	return &Executor{cfg: cfg}
}

// noDevices is a node without devices.
type noDevices struct{}

func (noDevices) PrepareClaims(_ context.Context, pod *corev1.Pod) error {
	if len(pod.Spec.ResourceClaims) > 0 {
		return errors.New("this node prepares no ResourceClaims")
	}
	return nil
}

func (noDevices) Allocate(context.Context, *corev1.Pod) error { return nil }

func (noDevices) Options(context.Context, *corev1.Pod, *corev1.Container) (*spec.Devices, error) {
	return nil, nil
}

func (noDevices) Release(context.Context, types.UID) error { return nil }

// noPinning lets all containers run on all CPUs.
type noPinning struct{}

func (noPinning) Starting(*corev1.Pod, string, *cri.LinuxContainerResources) {}
func (noPinning) Resizing(*corev1.Pod, string, *cri.LinuxContainerResources) {}
func (noPinning) Started(types.UID, string, string, string)                  {}
func (noPinning) Release(types.UID)                                          {}

// Do implements pods.Executor.
func (e *Executor) Do(ctx context.Context, pod *corev1.Pod, action podlife.Action) pods.Result {
	switch a := action.(type) {
	case podlife.PrepareVolumes:
		return failed(e.prepareVolumes(ctx, pod))
	case podlife.CreateSandbox:
		return failed(e.createSandbox(ctx, pod, a))
	case podlife.PullImage:
		return e.pullImage(ctx, pod, a)
	case podlife.StartContainer:
		return failed(e.startContainer(ctx, pod, a))
	case podlife.RunProbe:
		return e.runProbe(ctx, pod, a)
	case podlife.RunHook:
		return failed(e.runHook(ctx, pod, a))
	case podlife.ResizePod:
		e.cfg.Volumes.Resized(pod)
		return failed(failure("ResizePodInPlaceError", e.cfg.Cgroups.Resize(pod, a.Widen)))
	case podlife.Resize:
		return failed(e.resize(ctx, pod, a))
	case podlife.StopContainer:
		return failed(e.stopContainer(ctx, a))
	case podlife.RemoveContainer:
		return failed(e.removeContainer(ctx, pod, a))
	case podlife.StopSandbox:
		return failed(e.stopSandbox(ctx, a))
	case podlife.RemoveSandbox:
		return failed(e.removeSandbox(ctx, a))
	case podlife.ReleaseDevices:
		return failed(e.releaseDevices(ctx, pod))
	case podlife.RemoveVolumes:
		return failed(e.removeVolumes(ctx, pod))
	case podlife.DeletePod:
		return failed(e.deletePod(ctx, pod))
	default:
		panic(fmt.Sprintf("execute: action of unknown type %T", action))
	}
}

func failed(f *podlife.Failure) pods.Result { return pods.Result{Err: f} }

// failure wraps an error with its reason; nil stays nil.
func failure(reason string, err error) *podlife.Failure {
	if err == nil {
		return nil
	}
	return &podlife.Failure{Reason: reason, Message: err.Error()}
}

// gone reports whether an error means that the runtime does not have the object: then it has ended.
func gone(err error) bool { return status.Code(err) == codes.NotFound }

// Forget implements pods.Executor: the pod is gone, and its logs are removed (L3.156).
func (e *Executor) Forget(pod *corev1.Pod) {
	e.cfg.Handlers.Forget(pod.UID)
	if pod.Namespace == "" || pod.Name == "" {
		return
	}
	_ = os.RemoveAll(spec.PodLogDir(e.cfg.Node().LogRoot, pod))
	e.cfg.Links.Forget(pod)
}

func (e *Executor) prepareVolumes(ctx context.Context, pod *corev1.Pod) *podlife.Failure {
	if err := e.cfg.Cgroups.Ensure(pod); err != nil {
		// L10.21
		return failure("FailedCreatePodContainer", fmt.Errorf("unable to ensure pod container exists: %w", err))
	}
	err := e.cfg.Volumes.Prepare(ctx, pod)
	if r, ok := errors.AsType[*volume.Rejection](err); ok {
		e.cfg.Event(pod, podlife.Event{Type: corev1.EventTypeWarning, Reason: r.Reason, Message: r.Message})
		e.cfg.Reject(pod.UID, podlife.Stop{Reason: r.Reason, Message: "Pod was rejected: " + r.Message}) // L3.36
	}
	return failure("", err) // the volume manager records the event
}

// sandboxConfig describes the pod's sandbox, existing or new.
func (e *Executor) sandboxConfig(pod *corev1.Pod, attempt uint32) (*cri.PodSandboxConfig, []spec.Warning, error) {
	ids, err := e.cfg.UserNS.Of(pod)
	if err != nil {
		return nil, nil, err
	}
	cfg, warnings, err := spec.SandboxConfig(spec.SandboxInput{
		Pod: pod, Attempt: attempt, Node: e.cfg.Node(), CgroupParent: e.cfg.Cgroups.Parent(pod), UserNS: ids,
	})
	if err != nil {
		return nil, nil, err
	}
	if cfg.Annotations == nil {
		cfg.Annotations = map[string]string{}
	}
	cfg.Annotations[e.cfg.OwnerKey] = e.cfg.OwnerValue
	cfg.Annotations[spec.AnnotationRequests], err = spec.RequestsText(pod)
	return cfg, warnings, err
}

func (e *Executor) createSandbox(ctx context.Context, pod *corev1.Pod, a podlife.CreateSandbox) *podlife.Failure {
	cfg, warnings, err := e.sandboxConfig(pod, a.Attempt)
	if err != nil {
		return failure("CreatePodSandboxError", err)
	}
	for _, w := range warnings {
		e.cfg.Event(pod, podlife.Event{Type: corev1.EventTypeWarning, Reason: w.Reason, Message: w.Message})
	}
	// Volumes are prepared at the same time; the sandbox needs the group too.
	if err := e.cfg.Cgroups.Ensure(pod); err != nil {
		return failure("CreatePodSandboxError", err)
	}
	if err := os.MkdirAll(cfg.LogDirectory, 0o755); err != nil {
		return failure("CreatePodSandboxError", fmt.Errorf("create the log directory of the pod: %w", err))
	}
	ctx, cancel := context.WithTimeout(ctx, sandboxTimeout)
	defer cancel()
	if f := e.giveDevices(ctx, pod); f != nil {
		return f
	}
	handler, err := e.cfg.Handlers.Of(ctx, pod)
	if err != nil {
		return failure("CreatePodSandboxError", err)
	}
	_, err = e.cfg.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
	return failure("CreatePodSandboxError", err)
}

func (e *Executor) pullImage(ctx context.Context, pod *corev1.Pod, a podlife.PullImage) pods.Result {
	sandbox, _, err := e.sandboxConfig(pod, 0)
	if err != nil {
		sandbox = nil // runtimes use it only to choose a runtime handler
	}
	pulled, f := e.cfg.Images.Pull(ctx, pod, a.Image, sandbox)
	return pods.Result{Err: f, Pulled: pulled}
}

func (e *Executor) runProbe(ctx context.Context, pod *corev1.Pod, a podlife.RunProbe) pods.Result {
	c, _ := spec.Find(pod, a.Container)
	if c == nil {
		return failed(&podlife.Failure{Message: fmt.Sprintf("container %q is not in the pod any more", a.Container)})
	}
	verdict, output := probe.Run(ctx,
		probe.Target{Runtime: e.cfg.Runtime, Container: c, ContainerID: a.ContainerID, PodIP: a.PodIP}, a.Probe)
	if err := ctx.Err(); err != nil {
		return failed(&podlife.Failure{Message: err.Error()}) // cancelled: it has no result
	}
	return pods.Result{Verdict: verdict, Output: output}
}

func (e *Executor) runHook(ctx context.Context, pod *corev1.Pod, a podlife.RunHook) *podlife.Failure {
	c, field := spec.Find(pod, a.Container)
	if c == nil {
		return &podlife.Failure{Message: fmt.Sprintf("container %q is not in the pod any more", a.Container)}
	}
	if a.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.Timeout)
		defer cancel()
	}
	return failure(string(a.Kind)+"HookError", hook.Run(ctx, hook.Target{
		Runtime: e.cfg.Runtime, Pod: pod, Container: c, ContainerID: a.ContainerID, PodIP: a.PodIP,
		Event: func(reason, message string) {
			e.cfg.Event(pod, podlife.Event{Type: corev1.EventTypeWarning, Reason: reason, Message: message,
				FieldPath: field})
		},
	}, a.Handler))
}

func (e *Executor) resize(ctx context.Context, pod *corev1.Pod, a podlife.Resize) *podlife.Failure {
	c, _ := spec.Find(pod, a.Container)
	if c == nil {
		return &podlife.Failure{Message: fmt.Sprintf("container %q is not in the pod any more", a.Container)}
	}
	sized := *c
	sized.Resources = a.Resources
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	linux := spec.ContainerResources(pod, &sized, e.cfg.Node())
	e.cfg.Pinning.Resizing(pod, c.Name, linux)
	if limit := linux.GetMemoryLimitInBytes(); limit > 0 {
		stats, err := e.cfg.Runtime.ContainerStats(ctx, &cri.ContainerStatsRequest{ContainerId: a.ContainerID})
		if err == nil {
			used := int64(stats.GetStats().GetMemory().GetUsageBytes().GetValue())
			if err := resources.CheckMemoryLimit(c.Name, limit, used); err != nil {
				return failure("ResizePodInPlaceError", err)
			}
		}
	}
	_, err := e.cfg.Runtime.UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{
		ContainerId: a.ContainerID, Linux: linux,
	})
	e.cfg.Observer.Refresh(pod.UID, a.ContainerID)
	return failure("ResizePodInPlaceError", err)
}

func (e *Executor) stopContainer(ctx context.Context, a podlife.StopContainer) *podlife.Failure {
	ctx, cancel := context.WithTimeout(ctx, a.Grace+callTimeout)
	defer cancel()
	_, err := e.cfg.Runtime.StopContainer(ctx,
		&cri.StopContainerRequest{ContainerId: a.ContainerID, Timeout: wholeSeconds(a.Grace)})
	if gone(err) {
		return nil
	}
	return failure("KillContainerError", err)
}

// wholeSeconds rounds up: CRI counts seconds, and a grace period must not become shorter.
func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

func (e *Executor) removeContainer(ctx context.Context, pod *corev1.Pod, a podlife.RemoveContainer) *podlife.Failure {
	log := e.cfg.Observer.LogPath(pod.UID, a.ContainerID)
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := e.cfg.Runtime.RemoveContainer(ctx,
		&cri.RemoveContainerRequest{ContainerId: a.ContainerID}); err != nil && !gone(err) {
		return failure("RemoveContainerError", err)
	}
	if err := e.cfg.Links.Remove(pod, a.Container, a.ContainerID, log); err != nil {
		return failure("RemoveContainerError", err)
	}
	if a.Logs && log != "" {
		return failure("RemoveContainerError", logs.Remove(log))
	}
	return nil
}

func (e *Executor) stopSandbox(ctx context.Context, a podlife.StopSandbox) *podlife.Failure {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := e.cfg.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: a.SandboxID})
	if gone(err) {
		return nil
	}
	return failure("KillPodSandboxError", err)
}

func (e *Executor) removeSandbox(ctx context.Context, a podlife.RemoveSandbox) *podlife.Failure {
	select {
	case <-time.After(removalDelay):
	case <-ctx.Done():
		return failure("", ctx.Err())
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := e.cfg.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: a.SandboxID})
	if gone(err) {
		return nil
	}
	return failure("", err)
}

// deletePod deletes the API object once its last status is stored (L7.40).
func (e *Executor) deletePod(ctx context.Context, pod *corev1.Pod) *podlife.Failure {
	err := e.cfg.Status.Flush(ctx, pod.UID)
	if errors.Is(err, nodestatus.ErrGone) {
		e.Forget(pod)
		return nil
	}
	if err != nil {
		return failure("", err)
	}
	now := int64(0)
	err = e.cfg.Client.Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	})
	err = confirm.Removed(ctx, pod.UID, err, confirm.By(e.cfg.Client.Pods(pod.Namespace).Get, pod.Name))
	if err != nil {
		return failure("", fmt.Errorf("delete the pod from the API server: %w", err))
	}
	e.Forget(pod) // at once: if the agent stopped now, no later one would find the pod
	return nil
}
