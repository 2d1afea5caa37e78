package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/instance"
	"carob/internal/core/resources"
	"carob/internal/network/bridge"
	"carob/internal/network/policy"
	"carob/internal/network/services"
	"carob/internal/network/unserved"
	"carob/internal/node/logs"
	"carob/internal/runtime"
	"carob/internal/runtime/native/cgroups"
	"carob/internal/runtime/router"
)

// podUIDLabel is set on every sandbox that a node agent creates (L3.164).
const podUIDLabel = "io.kubernetes.pod.uid"

// RemovePods ends the pods of an instance that is not running and removes what they and carob left
// on the host. The data directory stays: the next Up starts the pods that are still in the API.
func (a *App) RemovePods(ctx context.Context, in instance.Instance) error {
	if _, err := os.Stat(in.DataDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	in, err := lastFlags(in)
	if err != nil {
		return err
	}
	lock, err := instance.Acquire(in.LockFile,
		instance.Owner{PID: os.Getpid(), Started: time.Now(), Version: a.version})
	if errors.Is(err, unix.EROFS) && in.RuntimeEndpoint == "" {
		return removeFromReadOnly(ctx, in)
	}
	if err != nil {
		return err
	}
	defer lock.Release()
	if err := endSandboxes(ctx, in, a.version); err != nil {
		return err
	}
	if err := removeTraces(ctx, in); err != nil {
		return err
	}
	last, err := readFlags(in.DataDir)
	if err != nil || last.DataDir == "" {
		return err
	}
	last.PodsEnded = true
	return saveFlags(in.DataDir, last)
}

// removeFromReadOnly is RemovePods while the file system of the data directory is read-only, as a disk with errors
// becomes: it can be unmounted and repaired only when nothing uses it any more. All processes of pods are killed, like
// at a power failure, after which the next Up finds the same records.
func removeFromReadOnly(ctx context.Context, in instance.Instance) error {
	lock, err := instance.AcquireReadOnly(in.LockFile)
	if err != nil {
		return err
	}
	defer lock.Release()
	err = removeTraces(ctx, in)
	if others, failed := router.Endpoints(handlersDir(in)); failed != nil || len(others) > 0 {
		err = errors.Join(err, failed, fmt.Errorf("%s is read-only: pods of other runtimes are not ended", in.DataDir))
	}
	return err
}

// removeTraces removes what an instance without pods has on the host outside its data directory.
func removeTraces(ctx context.Context, in instance.Instance) error {
	errs := []error{unmountBelow(filepath.Join(in.DataDir, "node")),
		unmountBelow(filepath.Join(in.DataDir, runtimeDir)), unmountBelow(in.RunDir)}
	if in.RuntimeEndpoint == "" && in.CNIConfDir == "" {
		errs = append(errs, bridge.Destroy(bridgeConfig(in)), policy.Remove(policyTable(in)))
	}
	errs = append(errs, unserved.Remove(servicesTable(in)), services.Remove(proxyTable(in)), removeDevice(in))
	if in.CgroupDriver == "systemd" && in.RuntimeEndpoint == "" {
		errs = append(errs, cgroups.StopSlice(ctx, resources.CgroupPath{in.ID}.Systemd()))
	}
	errs = append(errs, removeCgroups("/proc/self/mountinfo", in.CgroupRoot))
	if in.PodLogDir != filepath.Join(in.DataDir, "log", "pods") {
		removeEmpty(in.PodLogDir)
	}
	links := logs.Links{Dir: in.ContainerLogDir, Logs: in.PodLogDir}
	links.Sweep()
	_ = os.Remove(in.ContainerLogDir) // if no other instance uses it
	errs = append(errs, os.RemoveAll(in.RunDir))
	return errors.Join(errs...)
}

// hasPods reports whether there are records of sandboxes of the native runtime, or of pods in others.
func hasPods(in instance.Instance) bool {
	entries, err := os.ReadDir(filepath.Join(in.DataDir, runtimeDir, "sandboxes"))
	if err == nil && len(entries) > 0 {
		return true
	}
	elsewhere, err := router.Endpoints(handlersDir(in))
	return err != nil || len(elsewhere) > 0
}

// endSandboxes stops and removes every sandbox of this instance, in parallel.
func endSandboxes(ctx context.Context, in instance.Instance, version string) (err error) {
	e, err := openEngine(ctx, in, version)
	if err != nil {
		return fmt.Errorf("open container runtime: %w", err)
	}
	defer func() { err = errors.Join(err, e.close()) }()
	return e.whileAttaching(ctx, func(ctx context.Context) error { return e.endSandboxes(ctx, in) })
}

func (e *engine) endSandboxes(ctx context.Context, in instance.Instance) error {
	list, err := e.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	own := ownPods(in)
	var g errgroup.Group // one that cannot be ended does not keep the others
	g.SetLimit(16)
	for _, s := range list.Items {
		// A runtime behind a socket may have sandboxes of others.
		if in.RuntimeEndpoint != "" && !own[s.Labels[podUIDLabel]] {
			continue
		}
		g.Go(func() error { return endSandbox(ctx, e, s.Id) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	_, err = e.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{}) // removes the records of pods that have ended
	return err
}

func endSandbox(ctx context.Context, rt runtime.Sandboxes, id string) error {
	if _, err := rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("stop sandbox %s: %w", id, err)
	}
	if _, err := rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}

// ownPods are the pods whose directories this instance's agent created.
func ownPods(in instance.Instance) map[string]bool {
	own := map[string]bool{}
	entries, _ := os.ReadDir(filepath.Join(in.DataDir, "node", "pods"))
	for _, e := range entries {
		own[e.Name()] = true
	}
	return own
}

// unmountBelow unmounts everything below a directory, the innermost first.
func unmountBelow(dir string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	var below []string
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) > 4 && strings.HasPrefix(unescape(f[4]), dir+"/") {
			below = append(below, unescape(f[4]))
		}
	}
	slices.Reverse(below)
	var errs []error
	for _, m := range below {
		if err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", m, err))
		}
	}
	return errors.Join(errs...)
}

// unescape decodes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// removeCgroups removes a cgroup and its children from every hierarchy, and kills the processes in
// them.
func removeCgroups(mountinfo, root string) error {
	b, err := os.ReadFile(mountinfo)
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	var errs []error
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		i := slices.Index(f, "-")
		if i < 0 || len(f) < i+2 || f[i+1] != "cgroup" && f[i+1] != "cgroup2" {
			continue
		}
		errs = append(errs, removeCgroup(filepath.Join(unescape(f[4]), root)))
	}
	return errors.Join(errs...)
}

func removeCgroup(dir string) error {
	var all []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, p)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read cgroup: %w", err)
	}
	var errs []error
	for _, group := range slices.Backward(all) {
		if err := unix.Rmdir(group); err == nil || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err := emptyCgroup(group); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// emptyCgroup kills the processes of a cgroup and removes it as soon as they have ended.
func emptyCgroup(dir string) error {
	for range 100 {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read cgroup: %w", err)
		}
		for pid := range strings.FieldsSeq(string(b)) {
			kill(pid)
		}
		err = unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
	return fmt.Errorf("remove cgroup %s: its processes do not end", dir)
}

// kill kills a process and waits until it has ended.
func kill(pid string) {
	n := 0
	if _, err := fmt.Sscan(pid, &n); err != nil || n <= 1 {
		return
	}
	fd, err := unix.PidfdOpen(n, 0)
	if err != nil {
		return // ended already
	}
	defer unix.Close(fd)
	if unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
	}
}

// removeEmpty removes a directory and its empty subdirectories, if they exist. Everything else in
// them was not created by carob.
func removeEmpty(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeEmpty(filepath.Join(dir, e.Name()))
		}
	}
	_ = os.Remove(dir)
}
