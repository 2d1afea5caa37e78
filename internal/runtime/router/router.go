// Package router puts several container runtimes behind one runtime.Runtime: the node's own, and
// others behind CRI sockets that serve RuntimeClass handlers (gVisor or Kata by an installed
// containerd). app builds it; the node agent drives it like any runtime. It must never move a pod
// from one runtime to another.
//
// The handler of RunPodSandbox chooses the runtime of a pod. The choice is recorded on disk before
// the sandbox is created (places.go), so that each later call about the pod, its sandboxes, and its
// containers goes to that runtime only. Everything that is not recorded is in the node's own
// runtime. A socket that hangs or is gone therefore delays the calls about its own pods only: lists
// of all pods show the last known state of the others (lists.go).
//
//	agent ──▶ Router ─┬─ no handler, or the node's own ─▶ native runtime
//	                  └─ handler NAME, recorded pods ───▶ CRI socket
//
// Contract: docs/spec/pod-lifecycle.md.
package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"carob/internal/runtime"
)

// Handler is a RuntimeClass handler that another runtime serves.
type Handler struct {
	Name     string // as RuntimeClasses name it
	Endpoint string // the socket; handlers with the same one share a Runtime
	Handler  string // as that runtime names it; empty: its default
	Runtime  runtime.Runtime
}

// Config says which runtimes there are.
type Config struct {
	Main     runtime.Runtime // of all pods without one of the handlers
	Handlers []Handler
	Dir      string // the records of pods; created if it is missing
}

// Router implements runtime.Runtime. Methods are safe for concurrent use.
type Router struct {
	main     runtime.Runtime
	handlers map[string]*target
	others   []*other
	places   *places
}

// target is where the pods of a handler run.
type target struct {
	*other
	handler string // the name in that runtime
}

var (
	_ runtime.Runtime      = (*Router)(nil)
	_ runtime.OutputHolder = (*Router)(nil)
	_ runtime.SomeAttacher = (*Router)(nil)
	_ runtime.Checkpointer = (*Router)(nil)

	_ runtime.HandlerWatcher = (*Router)(nil)
)

// New reads the records. Records of a runtime that no handler names any more are removed: whoever
// omits the handler has accepted that.
func New(cfg Config) (*Router, error) {
	r := &Router{main: cfg.Main, handlers: map[string]*target{}}
	byEndpoint := map[string]*other{}
	for _, h := range cfg.Handlers {
		o := byEndpoint[h.Endpoint]
		if o == nil {
			o = newOther(h, cfg.Main)
			byEndpoint[h.Endpoint] = o
			r.others = append(r.others, o)
		}
		o.names = append(o.names, h.Name)
		r.handlers[h.Name] = &target{other: o, handler: h.Handler}
	}
	var err error
	r.places, err = openPlaces(cfg.Dir, byEndpoint)
	return r, err
}

// Run checks the sockets until ctx ends.
func (r *Router) Run(ctx context.Context) error {
	var wait sync.WaitGroup
	for _, o := range r.others {
		wait.Go(func() { o.keepChecking(ctx) })
	}
	wait.Wait()
	return nil
}

// Labels returns the labels of a pod's sandbox, if another runtime has the pod; otherwise nil.
func (r *Router) Labels(uid string) map[string]string { return r.places.labels(uid) }

// byID passes on a call about a sandbox or container.
func byID[Req, Resp any](ctx context.Context, r *Router, id string,
	do func(runtime.Runtime, context.Context, Req) (Resp, error), req Req) (Resp, error) {
	if o := r.places.runtimeOf(id); o != nil {
		return on(ctx, o, do, req)
	}
	return do(r.main, ctx, req)
}

// on makes one call at another runtime. While that runtime is known not to answer, the call fails at
// once.
func on[Req, Resp any](ctx context.Context, o *other, do func(runtime.Runtime, context.Context, Req) (Resp, error),
	req Req) (Resp, error) {
	if err := o.problem(); err != nil {
		var none Resp
		return none, err
	}
	resp, err := do(o.rt, ctx, req)
	if err != nil && ctx.Err() == nil {
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded:
			o.check()
			return resp, o.unavailable(err)
		}
	}
	return resp, err
}

// RunPodSandbox creates the sandbox in the runtime of the handler. A pod that has anything in one
// runtime gets no sandbox in another.
func (r *Router) RunPodSandbox(ctx context.Context, req *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse,
	error) {
	uid := req.GetConfig().GetMetadata().GetUid()
	t := r.handlers[req.GetRuntimeHandler()]
	if was := r.places.of(uid); was != nil && (t == nil || was != t.other) {
		return nil, status.Errorf(codes.FailedPrecondition,
			"the pod still has sandboxes in %s: they must be removed before it gets one elsewhere", was)
	}
	if t == nil {
		return r.main.RunPodSandbox(ctx, req)
	}
	if err := t.problem(); err != nil {
		return nil, err
	}
	userns := req.GetConfig().GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if userns != nil && userns.GetMode() == cri.NamespaceMode_POD && !t.features(ctx, t.handler).GetUserNamespaces() {
		return nil, status.Errorf(codes.InvalidArgument,
			"the runtime handler %q does not support user namespaces", req.GetRuntimeHandler())
	}
	done, err := r.places.claim(uid, t.other, req.GetConfig())
	if err != nil {
		return nil, err
	}
	defer done()
	renamed := proto.CloneOf(req)
	renamed.RuntimeHandler = t.handler
	resp, err := on(ctx, t.other, runtime.Runtime.RunPodSandbox, renamed)
	if err != nil {
		return nil, err
	}
	return resp, r.places.add(uid, resp.GetPodSandboxId())
}

// RemovePodSandbox removes the sandbox and its record.
func (r *Router) RemovePodSandbox(ctx context.Context,
	req *cri.RemovePodSandboxRequest) (*cri.RemovePodSandboxResponse, error) {
	resp, err := byID(ctx, r, req.GetPodSandboxId(), runtime.Runtime.RemovePodSandbox, req)
	if err == nil {
		r.places.drop(req.GetPodSandboxId())
	}
	return resp, err
}

// CreateContainer creates the container where its sandbox is.
func (r *Router) CreateContainer(ctx context.Context, req *cri.CreateContainerRequest) (*cri.CreateContainerResponse,
	error) {
	o := r.places.runtimeOf(req.GetPodSandboxId())
	if o == nil {
		return r.main.CreateContainer(ctx, req)
	}
	uid := r.places.uidOf(req.GetPodSandboxId())
	for _, m := range req.GetConfig().GetMounts() {
		if m.GetRecursiveReadOnly() && !o.anyHandler(ctx).GetRecursiveReadOnlyMounts() {
			return nil, status.Errorf(codes.InvalidArgument,
				"%s does not support recursive read-only mounts, which %s is", o, m.GetContainerPath())
		}
	}
	resp, err := on(ctx, o, runtime.Runtime.CreateContainer, req)
	if err != nil {
		return nil, err
	}
	return resp, r.places.add(uid, resp.GetContainerId())
}

// RemoveContainer removes the container and its record.
func (r *Router) RemoveContainer(ctx context.Context, req *cri.RemoveContainerRequest) (*cri.RemoveContainerResponse,
	error) {
	resp, err := byID(ctx, r, req.GetContainerId(), runtime.Runtime.RemoveContainer, req)
	if err == nil {
		r.places.drop(req.GetContainerId())
	}
	return resp, err
}

// Status is that of the node's own runtime, with the handlers of the others that answer.
func (r *Router) Status(ctx context.Context, req *cri.StatusRequest) (*cri.StatusResponse, error) {
	resp, err := r.main.Status(ctx, req)
	if err != nil {
		return nil, err
	}
	resp = proto.CloneOf(resp)
	for _, name := range slices.Sorted(maps.Keys(r.handlers)) {
		t := r.handlers[name]
		features, ok := t.handlerFeatures(ctx, t.handler)
		if !ok {
			continue
		}
		resp.RuntimeHandlers = slices.DeleteFunc(resp.RuntimeHandlers,
			func(h *cri.RuntimeHandler) bool { return h.Name == name })
		resp.RuntimeHandlers = append(resp.RuntimeHandlers, &cri.RuntimeHandler{Name: name, Features: features})
	}
	return resp, nil
}

// UpdateRuntimeConfig configures the node's own runtime: the others have configurations of their own.
func (r *Router) UpdateRuntimeConfig(ctx context.Context,
	req *cri.UpdateRuntimeConfigRequest) (*cri.UpdateRuntimeConfigResponse, error) {
	return r.main.UpdateRuntimeConfig(ctx, req)
}

// Version is that of the node's own runtime.
func (r *Router) Version(ctx context.Context, req *cri.VersionRequest) (*cri.VersionResponse, error) {
	return r.main.Version(ctx, req)
}

// RuntimeConfig is that of the node's own runtime.
func (r *Router) RuntimeConfig(ctx context.Context, req *cri.RuntimeConfigRequest) (*cri.RuntimeConfigResponse,
	error) {
	return r.main.RuntimeConfig(ctx, req)
}

// LogShown implements runtime.OutputHolder where the container's runtime does.
func (r *Router) LogShown(ctx context.Context, containerID string) error {
	holder, ok := r.main.(runtime.OutputHolder)
	if !ok || r.places.runtimeOf(containerID) != nil {
		return errors.ErrUnsupported
	}
	return holder.LogShown(ctx, containerID)
}

// Attaches implements runtime.SomeAttacher.
func (r *Router) Attaches(containerID string) bool {
	_, ok := r.main.(runtime.Attacher)
	return ok && r.places.runtimeOf(containerID) == nil
}

// AttachContainer implements runtime.Attacher for containers of the node's own runtime.
func (r *Router) AttachContainer(ctx context.Context, id string, in io.Reader, out, errw io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize) error {
	attacher, ok := r.main.(runtime.Attacher)
	if !ok || r.places.runtimeOf(id) != nil {
		return fmt.Errorf("attach to container %s without a streaming server: %w", id, errors.ErrUnsupported)
	}
	return attacher.AttachContainer(ctx, id, in, out, errw, tty, resize)
}

// CheckpointContainer implements runtime.Checkpointer where the container's runtime does.
func (r *Router) CheckpointContainer(ctx context.Context,
	req *cri.CheckpointContainerRequest) (*cri.CheckpointContainerResponse, error) {
	return byID(ctx, r, req.GetContainerId(), func(rt runtime.Runtime, ctx context.Context,
		req *cri.CheckpointContainerRequest) (*cri.CheckpointContainerResponse, error) {
		return runtime.Checkpoint(ctx, rt, req)
	}, req)
}
