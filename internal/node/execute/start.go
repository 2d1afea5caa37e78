package execute

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/base/securepath"
	"carob/internal/core/podlife"
	"carob/internal/node/spec"
)

// startContainer creates and starts one instance of a container (L3.85).
func (e *Executor) startContainer(ctx context.Context, pod *corev1.Pod, a podlife.StartContainer) *podlife.Failure {
	c, _ := spec.Find(pod, a.Container)
	if c == nil {
		return &podlife.Failure{Reason: "CreateContainerConfigError",
			Message: fmt.Sprintf("container %q is not in the pod any more", a.Container)}
	}
	image, err := e.image(ctx, pod, a.ImageRef)
	if err != nil {
		return failure("CreateContainerConfigError", err)
	}
	sandbox, _, err := e.sandboxConfig(pod, 0)
	if err != nil {
		return failure("CreateContainerConfigError", err)
	}
	devices, err := e.cfg.Devices.Options(ctx, pod, c)
	if err != nil {
		return failure("CreateContainerConfigError", err)
	}
	cfg, err := e.assemble(ctx, spec.ContainerInput{
		Pod: pod, Container: c, Attempt: a.Attempt, Node: e.cfg.Node(), PodIPs: a.PodIPs, Image: image,
		TargetID: e.target(pod, a.Container), Devices: devices,
		UserNS: sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions(),
	})
	if err != nil {
		f := failure("CreateContainerConfigError", err)
		_, f.Missing = spec.MissingFrom(err)
		return f
	}
	e.cfg.Pinning.Starting(pod, c.Name, cfg.Linux.Resources)
	if err := makeLogDir(sandbox.LogDirectory, filepath.Dir(cfg.LogPath)); err != nil {
		return failure("CreateContainerError", fmt.Errorf("create the log directory of the container: %w", err))
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	created, err := e.cfg.Runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: a.SandboxID, Config: cfg, SandboxConfig: sandbox,
	})
	if err != nil {
		return failure("CreateContainerError", statusMessage(err))
	}
	e.cfg.Observer.Made(pod.UID, a.SandboxID, created.ContainerId)
	if _, err := e.cfg.Runtime.StartContainer(ctx,
		&cri.StartContainerRequest{ContainerId: created.ContainerId}); err != nil {
		if ctx.Err() != nil {
			e.undo(ctx, created.ContainerId)
		}
		f := failure("RunContainerError", statusMessage(err))
		f.Created = true
		return f
	}
	e.cfg.Pinning.Started(pod.UID, c.Name, created.ContainerId, cfg.Linux.Resources.CpusetCpus)
	if err := e.cfg.Links.Make(pod, a.Container, created.ContainerId,
		filepath.Join(sandbox.LogDirectory, cfg.LogPath)); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot link the log of a container; log collectors will not find it")
	}
	return nil
}

// assemble builds the request for a container. If it lacks an object, that is awaited, and looked for once more: it may
// have come before.
func (e *Executor) assemble(ctx context.Context, in spec.ContainerInput) (*cri.ContainerConfig, error) {
	cfg, err := spec.Assemble(ctx, in, e.cfg.Objects, e.cfg.Volumes)
	missing, ok := spec.MissingFrom(err)
	if !ok {
		e.cfg.Objects.Arrived(in.Pod.UID, in.Container.Name)
		return cfg, err
	}
	e.cfg.Objects.Await(in.Pod, in.Container.Name, missing, e.cfg.Changed)
	return spec.Assemble(ctx, in, e.cfg.Objects, e.cfg.Volumes)
}

// statusMessage is the message of a runtime's error without the gRPC code: users read it in the container's state and
// in events (L10.50).
func statusMessage(err error) error { return errors.New(status.Convert(err).Message()) }

// undo removes a container whose start was cancelled, so that nothing is left incomplete.
func (e *Executor) undo(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	// If this fails too, the container is observed and removed like any dead container.
	_, _ = e.cfg.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
}

// image is the part of the resolved image that a container's configuration needs.
func (e *Executor) image(ctx context.Context, pod *corev1.Pod, ref string) (spec.Image, error) {
	found, err := e.cfg.Images.Image(ctx, pod, ref)
	if err != nil {
		return spec.Image{}, fmt.Errorf("inspect image %s: %w", ref, err)
	}
	if found == nil {
		return spec.Image{}, fmt.Errorf("image %s was removed from this machine", ref)
	}
	im := spec.Image{Ref: ref, Username: found.Username}
	if found.Uid != nil {
		uid := found.Uid.Value
		im.UID = &uid
	}
	return im, nil
}

// target is the container whose PID namespace an ephemeral container joins (L3.162).
func (e *Executor) target(pod *corev1.Pod, name string) string {
	for i := range pod.Spec.EphemeralContainers {
		ec := &pod.Spec.EphemeralContainers[i]
		if ec.Name != name || ec.TargetContainerName == "" {
			continue
		}
		if id := e.cfg.Observer.RunningID(pod.UID, ec.TargetContainerName); id != "" {
			return id
		}
	}
	return ""
}

// makeLogDir creates the log directories of a pod and its container. It follows no link: a pod that mounts the log root
// could have created one.
func makeLogDir(pod, name string) error {
	if err := os.MkdirAll(filepath.Dir(pod), 0o755); err != nil {
		return err
	}
	return securepath.MkdirAll(filepath.Dir(pod), filepath.Join(filepath.Base(pod), name), 0o755)
}
