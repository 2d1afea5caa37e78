package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/runtime/native/cgroups"
	"carob/internal/runtime/native/devices"
	"carob/internal/runtime/native/execs"
	"carob/internal/runtime/native/hooks"
	"carob/internal/runtime/native/monitor"
	"carob/internal/runtime/native/plan"
	"carob/internal/runtime/native/state"
	"carob/internal/runtime/native/wire"
)

// container is one instance of a container.
//
//	        Create             Start            exit, or a failed start
//	(none) ───────> created ──────────> running ───────────────────────> exited ──Remove──> (gone)
//
// Its state follows from the times in its record.
type container struct {
	sandbox *sandbox
	config  *cri.ContainerConfig
	name    string

	start   sync.Mutex    // one Start or Remove at a time
	started chan struct{} // closed when Start has ended, with success or not
	done    chan struct{} // closed when the exit is recorded

	mu       sync.Mutex
	rec      state.Container
	plan     *plan.Container // nil after a restart of carob, until it is needed
	execs    execs.Kept      // what the next exec needs
	stopSent bool            // the stop signal was sent
	finished sync.Once

	saving sync.Mutex // one write of the record at a time
	layer  layerSize  // for scrapes
}

// Exit codes set by the runtime: the process never became the user's; its exit was not observed.
const (
	startErrorExit = 128
	killedExit     = 128 + int32(unix.SIGKILL)
	unknownExit    = 255
)

func (c *container) state() cri.ContainerState {
	switch {
	case c.rec.FinishedAt != 0:
		return cri.ContainerState_CONTAINER_EXITED
	case c.rec.StartedAt != 0:
		return cri.ContainerState_CONTAINER_RUNNING
	}
	return cri.ContainerState_CONTAINER_CREATED
}

func (c *container) running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state() == cri.ContainerState_CONTAINER_RUNNING
}

func (c *container) record() state.Container {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rec
}

// saveContainer writes the record of the container's current state.
func (r *Runtime) saveContainer(c *container) error {
	c.saving.Lock()
	defer c.saving.Unlock()
	rec := c.record()
	return state.Save(r.containerDir(rec.ID), &rec)
}

// CreateContainer creates everything of a container except its process.
func (r *Runtime) CreateContainer(ctx context.Context, req *cri.CreateContainerRequest) (*cri.CreateContainerResponse,
	error) {
	s, err := r.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	cfg := req.GetConfig()
	if cfg.GetMetadata().GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "container config must include metadata with a name")
	}
	if err := wire.RefuseNUL(cfg); err != nil {
		return nil, err
	}
	if s.line() == nil {
		return nil, status.Errorf(codes.FailedPrecondition, "sandbox %q is not ready", s.rec.ID)
	}
	if err := privilegeAllowed(cfg, req.GetSandboxConfig(), s.config); err != nil {
		return nil, err
	}
	image, err := r.cfg.Images.Resolve(ctx, cfg.GetImage().GetImage())
	if err != nil {
		return nil, coded(fmt.Errorf("failed to resolve image %q: %w", cfg.GetImage().GetImage(), err))
	}
	if err := r.reached(StepCreateImage, s.rec.ID); err != nil {
		return nil, coded(err)
	}
	c := &container{sandbox: s, config: cfg, started: make(chan struct{}), done: make(chan struct{})}
	c.rec = state.Container{
		ID: newID(), SandboxID: s.rec.ID, Config: state.Encode(withoutSecrets(cfg)), ImageID: image.ID,
		ImageRef:  image.Ref,
		CreatedAt: time.Now().UnixNano(), Hostname: s.hostname(),
	}
	if st, err := r.cfg.Images.ImageStatus(ctx,
		&cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: image.ID}}); err == nil &&
		len(st.GetImage().GetRepoTags()) > 0 {
		c.rec.ImageName = st.Image.RepoTags[0]
	}
	image.Config.History, image.Config.RootFS = nil, imagespec.RootFS{} // not needed to run it
	c.rec.Image = image.Config
	c.name = containerName(s, cfg.Metadata)
	if cfg.LogPath != "" {
		c.rec.LogPath = filepath.Join(s.config.LogDirectory, cfg.LogPath)
	}
	if c.rec.Cgroup, err = r.cgroupOf(s, c.rec.ID); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := r.reserve(c.name, c.rec.ID); err != nil {
		return nil, err
	}
	if err := r.makeContainer(ctx, c); err != nil {
		r.discardContainer(context.WithoutCancel(ctx), c)
		r.release(c.name)
		return nil, coded(fmt.Errorf("failed to create container %q: %w", cfg.Metadata.Name, err))
	}
	r.mu.Lock()
	r.containers[c.rec.ID] = c
	r.mu.Unlock()
	r.publish(s, c.rec.ID, cri.ContainerEventType_CONTAINER_CREATED_EVENT)
	return &cri.CreateContainerResponse{ContainerId: c.rec.ID}, nil
}

// privilegeAllowed rejects a privileged container in a pod that has none. As in containerd, the
// request reports whether the pod has one: an ephemeral container may be the first.
func privilegeAllowed(c *cri.ContainerConfig, requested, made *cri.PodSandboxConfig) error {
	if requested == nil {
		requested = made
	}
	pod := requested.GetLinux().GetSecurityContext()
	if c.GetLinux().GetSecurityContext().GetPrivileged() && pod != nil && !pod.GetPrivileged() {
		return status.Error(codes.InvalidArgument, "no privileged container allowed in sandbox")
	}
	return nil
}

func containerName(s *sandbox, m *cri.ContainerMetadata) string {
	p := s.config.GetMetadata()
	return fmt.Sprintf("container %s_%s_%s_%s_%d_%s", m.GetName(), p.GetName(), p.GetNamespace(), p.GetUid(),
		m.GetAttempt(), s.rec.ID)
}

// cgroupOf returns the cgroup of a container, below the parent that CRI gave its pod.
func (r *Runtime) cgroupOf(s *sandbox, id string) (string, error) {
	parent := s.config.GetLinux().GetCgroupParent()
	switch {
	case parent == "":
		if r.systemd != nil {
			return "/system.slice/" + r.scope(id), nil
		}
		return r.cfg.CgroupRoot + "/" + id, nil
	case r.systemd != nil || strings.HasSuffix(parent, ".slice") && !strings.Contains(strings.Trim(parent, "/"), "/"):
		path, err := cgroups.SlicePath(filepath.Base(parent))
		if err != nil {
			return "", fmt.Errorf("cgroup_parent: %w", err)
		}
		return path + "/" + r.scope(id), nil
	}
	return filepath.Clean("/"+parent) + "/" + id, nil
}

func (r *Runtime) makeContainer(ctx context.Context, c *container) error {
	dir := r.containerDir(c.rec.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("making the container's directory: %w", err)
	}
	for _, m := range c.config.Mounts {
		if m.GetImage() != nil || m.HostPath == "" {
			continue
		}
		if _, err := os.Stat(m.HostPath); errors.Is(err, os.ErrNotExist) {
			if err := os.MkdirAll(m.HostPath, 0o755); err != nil {
				return fmt.Errorf("failed to mkdir %q: %w", m.HostPath, err)
			}
		}
	}
	if err := checkPropagation(c.config.Mounts); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if err := r.reached(StepCreateDirs, c.rec.ID); err != nil {
		return err
	}
	pl, err := r.planOf(ctx, c)
	if err != nil {
		return err
	}
	if err := r.reached(StepCreateLayer, c.rec.ID); err != nil {
		return err
	}
	if _, err := pl.Program(); err != nil { // what cannot be started is not created
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if err := c.makeLogDir(); err != nil {
		return fmt.Errorf("making the log directory: %w", err)
	}
	if err := r.reached(StepCreateProgram, c.rec.ID); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := r.keepSecrets(c.rec.ID, c.config); err != nil {
		return err
	}
	if pl.Hooks != nil {
		c.rec.Poststop = pl.Hooks.Poststop
		if err := hooks.WriteBundle(r.secretDir(c.rec.ID), pl); err != nil {
			return err
		}
	}
	if err := errors.Join(state.ReserveExit(dir), state.Create(dir, &c.rec)); err != nil {
		return err
	}
	return r.reached(StepCreateRecord, c.rec.ID)
}

// planOf returns the container's plan; the snapshots that it names exist.
func (r *Runtime) planOf(ctx context.Context, c *container) (*plan.Container, error) {
	c.mu.Lock()
	pl := c.plan
	rec := c.rec
	c.mu.Unlock()
	if pl != nil {
		return pl, nil
	}
	s, sc := c.sandbox, c.config.GetLinux().GetSecurityContext()
	if _, err := plan.Command(c.config, &rec.Image.Config); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	names, err := devices.CDINames(c.config)
	if err != nil {
		return nil, err
	}
	if rec.StartedAt != 0 {
		names = nil // an exec needs no devices, and their specifications may be gone
	}
	config, cdiNodes, hooks, err := devices.InjectCDI(c.config, names, r.cfg.CDIDirs)
	if err != nil {
		return nil, err
	}
	ids := idsOf(s)
	pl = &plan.Container{
		ID: rec.ID, Config: config, Image: rec.Image, Hostname: rec.Hostname,
		Groups: r.groups, Cgroup: rec.Cgroup, RootDir: r.rootDir(),
		Etc:    map[string]string{},
		UserNS: s.rec.UserNS, Hooks: hooks,
	}
	pl.RootUID, pl.RootGID = ids.hostRoot()
	for _, name := range podFiles {
		pl.Etc["/etc/"+name] = filepath.Join(r.sandboxDir(s.rec.ID), name)
	}
	_, mode, _ := startFlags(c)
	pl.Late = r.host.foreignProc && (mode == monitor.PIDPod || mode == monitor.PIDTarget) && r.lateForks(s)
	place := r.groups.Entry(rec.Cgroup)
	pl.Waits = r.systemd == nil && place.Later()
	pl.Shm = filepath.Join(r.runDir(s.rec.ID), "shm")
	if s.options().GetIpc() == cri.NamespaceMode_NODE {
		pl.Shm = "/dev/shm"
	}
	if pl.Caps, err = plan.CapabilitySets(sc.GetCapabilities(), sc.GetPrivileged(), r.host.caps); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if !sc.GetPrivileged() {
		if pl.Filter, err = r.seccomp.Filter(sc, pl.Caps.Bounding); err != nil {
			return nil, err
		}
		if pl.AppArmor, err = r.apparmorOf(sc); err != nil {
			return nil, err
		}
	}
	// Checked on every host, so that a pod behaves the same everywhere.
	if pl.SELinux, pl.FileLabel, err = plan.SELinuxLabels(sc.GetSelinuxOptions()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if !r.host.selinux {
		pl.SELinux, pl.FileLabel = "", ""
	}
	if sc.GetPrivileged() {
		if pl.Devices, err = devices.Below("/dev", "/dev", "rwm"); err != nil {
			return nil, err
		}
	}
	for _, d := range c.config.Devices {
		list, err := devices.Host(d)
		if err != nil {
			return nil, err
		}
		pl.Devices = append(pl.Devices, list...)
	}
	pl.Devices = append(pl.Devices, cdiNodes...)
	if err := r.takeSnapshots(ctx, c, pl, ids); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.plan = pl
	c.mu.Unlock()
	return pl, nil
}

// takeSnapshots prepares the root and the image volumes. It first creates the directories that name
// them, so that after a crash Remove finds everything.
func (r *Runtime) takeSnapshots(ctx context.Context, c *container, pl *plan.Container, ids IDMap) error {
	var err error
	if pl.RootFS, err = r.cfg.Images.Prepare(ctx, c.rec.ID, c.rec.ImageID, ids, pl.Points(isFile)); err != nil {
		return fmt.Errorf("failed to prepare the image: %w", err)
	}
	for i, m := range c.config.Mounts {
		ref := m.GetImage().GetImage()
		if ref == "" {
			continue
		}
		image, err := r.cfg.Images.Resolve(ctx, ref)
		if err != nil {
			return fmt.Errorf("ImageVolumeMountFailed: image %q of volume %q: %w", ref, m.ContainerPath, err)
		}
		staging := filepath.Join(r.containerDir(c.rec.ID), fmt.Sprintf("volume-%d", i))
		if err := os.Mkdir(staging, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("making the place of an image volume: %w", err)
		}
		mounts, err := r.cfg.Images.View(ctx, c.rec.ID+"-"+filepath.Base(staging), image.ID)
		if err != nil {
			return fmt.Errorf("ImageVolumeMountFailed: image %q of volume %q: %w", ref, m.ContainerPath, err)
		}
		if pl.Images == nil {
			pl.Images = map[string]plan.ImageMount{}
		}
		pl.Images[m.ContainerPath] = plan.ImageMount{Mounts: mounts, Staging: staging, SubPath: m.ImageSubPath}
	}
	return nil
}

func isFile(hostPath string) bool {
	st, err := os.Stat(hostPath)
	return err == nil && !st.IsDir()
}

// discardContainer removes whatever makeContainer created, finished or not, now or as soon as
// possible.
func (r *Runtime) discardContainer(ctx context.Context, c *container) {
	remove := func(ctx context.Context) error { return r.unmakeContainer(ctx, c) }
	if err := remove(ctx); err != nil {
		r.retries.Add("removing a half-made container", c.rec.ID, err, remove)
	}
}

// unmakeContainer removes a container's snapshots, cgroup and directory.
func (r *Runtime) unmakeContainer(ctx context.Context, c *container) error {
	rec := c.record()
	keys := []string{rec.ID}
	entries, err := os.ReadDir(r.containerDir(rec.ID))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("finding the snapshots of container %s: %w", rec.ID, err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "volume-") {
			keys = append(keys, rec.ID+"-"+e.Name())
		}
	}
	var errs []error
	for _, k := range keys {
		if err := r.cfg.Images.Release(ctx, k); err != nil {
			errs = append(errs, fmt.Errorf("releasing snapshot %s: %w", k, err))
		}
	}
	errs = append(errs, r.reached(StepRemoveLayer, rec.ID))
	errs = append(errs, r.groups.End(rec.Cgroup), r.endScope(ctx, rec.Cgroup), r.reached(StepRemoveCgroup, rec.ID))
	if err := errors.Join(errs...); err != nil {
		return err // the record stays, so that the next Remove finds the rest
	}
	if err := r.dropSecrets(rec.ID); err != nil {
		return err
	}
	return errors.Join(removeDir(r.containerDir(rec.ID)), r.reached(StepRemoveDir, rec.ID))
}

func (c *container) resources() *cri.LinuxContainerResources {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.currentResources()
}

// exited handles the end of a container's process, as its monitor reports it.
func (r *Runtime) exited(c *container, e state.Exit) {
	<-c.started // a process may end before Start has
	if !c.ownsPIDs() {
		r.groups.KillAll(c.rec.Cgroup)
	}
	r.finish(c, func(rec *state.Container) {
		rec.FinishedAt, rec.ExitCode = e.At, e.Code
		switch {
		case e.OOM:
			rec.Reason = "OOMKilled"
		case e.Code == 0:
			rec.Reason = "Completed"
		case e.Code == unknownExit && rec.Reason == "Unknown":
		default:
			rec.Reason = "Error"
		}
	})
}

// finish records the exit of a container, once.
func (r *Runtime) finish(c *container, set func(*state.Container)) {
	c.finished.Do(func() {
		// The agent removes the pod's cgroup as soon as it sees the exit. Processes that the
		// container's first process left behind end with it.
		if err := r.groups.End(c.rec.Cgroup); err != nil {
			klog.Background().V(2).Info("Cannot remove the cgroup of an ended container; trying again at its removal",
				"container", c.rec.ID, "reason", err)
		}
		_ = r.reached(StepEndCgroup, c.rec.ID) // an end can't fail
		c.mu.Lock()
		set(&c.rec)
		if c.rec.FinishedAt < c.rec.StartedAt { // reported before Start had ended
			c.rec.FinishedAt = c.rec.StartedAt
		}
		c.mu.Unlock()
		r.scraped.Forget(c.rec.ID)
		if err := r.saveContainer(c); err != nil {
			klog.Background().Error(err, "Cannot write the end of a container", "container", c.rec.ID)
		}
		_ = r.reached(StepEndRecord, c.rec.ID)
		close(c.done)
		r.publish(c.sandbox, c.rec.ID, cri.ContainerEventType_CONTAINER_STOPPED_EVENT)
	})
}

// RemoveContainer removes a container and kills it if it runs. An unknown container is not an
// error.
func (r *Runtime) RemoveContainer(ctx context.Context, req *cri.RemoveContainerRequest) (*cri.RemoveContainerResponse,
	error) {
	c, err := r.container(req.GetContainerId())
	if status.Code(err) == codes.NotFound {
		return &cri.RemoveContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := r.remove(ctx, c); err != nil {
		return nil, coded(fmt.Errorf("failed to remove container %q: %w", c.rec.ID, err))
	}
	return &cri.RemoveContainerResponse{}, nil
}

func (r *Runtime) remove(ctx context.Context, c *container) error {
	c.start.Lock()
	defer c.start.Unlock()
	if err := r.stop(ctx, c, 0); err != nil {
		return err
	}
	rec := c.record()
	hooks.Late(ctx, "poststop", rec.Poststop, r.stateOf(&rec, 0, specs.StateStopped, c.config.Annotations))
	c.mu.Lock()
	c.rec.Poststop = nil // once, even if the rest has to be tried again
	c.mu.Unlock()
	if err := r.unmakeContainer(ctx, c); err != nil {
		return err
	}
	r.mu.Lock()
	_, known := r.containers[c.rec.ID]
	delete(r.containers, c.rec.ID)
	if r.names[c.name] == c.rec.ID {
		delete(r.names, c.name)
	}
	r.mu.Unlock()
	if known {
		r.publish(c.sandbox, c.rec.ID, cri.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
	return nil
}

// ReopenContainerLog makes the monitor write to a new file after a log rotation.
func (r *Runtime) ReopenContainerLog(ctx context.Context,
	req *cri.ReopenContainerLogRequest) (*cri.ReopenContainerLogResponse, error) {
	c, err := r.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	m := c.sandbox.line()
	if m == nil || !c.running() {
		return nil, status.Errorf(codes.FailedPrecondition, "container %q is not running", c.rec.ID)
	}
	log, err := c.openLog()
	if err == nil {
		defer log.Close() // nil for a container without a log; Close accepts that
		err = m.ReopenLog(c.rec.ID, log)
	}
	if err != nil {
		return nil, coded(fmt.Errorf("failed to reopen the log of container %q: %w", c.rec.ID, err))
	}
	return &cri.ReopenContainerLogResponse{}, nil
}
