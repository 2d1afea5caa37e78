package native

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/openfile"
	"carob/internal/runtime/native/plan"
)

// idsOf returns the user namespace that a sandbox requests; empty for the host's.
func idsOf(s *sandbox) IDMap {
	o := s.options().GetUsernsOptions()
	if o == nil || o.Mode == cri.NamespaceMode_NODE {
		return IDMap{}
	}
	return IDMap{UIDs: o.Uids, GIDs: o.Gids}
}

// holder is a process that only waits, in namespaces of a new user namespace, until other processes
// have joined them. nil means a pod in the host's user namespace.
type holder struct {
	cmd   *exec.Cmd
	gate  *os.File // it ends when this closes
	pidfd *os.File
}

func (h *holder) close() {
	if h == nil {
		return
	}
	h.gate.Close()
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait() // killed
	h.pidfd.Close()
}

// netNS returns the path of its network namespace, empty for a pod without its own.
func (h *holder) netNS() string {
	if h == nil || h.cmd.SysProcAttr.Cloneflags&unix.CLONE_NEWNET == 0 {
		return ""
	}
	return fmt.Sprintf("/proc/%d/ns/net", h.cmd.Process.Pid)
}

// ownedKinds are the pod's namespaces, besides the network namespace, that must belong to its user
// namespace, so that the pod's root has root's rights in them.
func ownedKinds(s *sandbox) int {
	kinds := 0
	if s.options().GetIpc() != cri.NamespaceMode_NODE {
		kinds |= unix.CLONE_NEWIPC
	}
	if !s.hostNetwork() {
		kinds |= unix.CLONE_NEWUTS
	}
	return kinds
}

// makeUserNS creates the pod's user namespace with all namespaces that belong to it, and pins it.
func (r *Runtime) makeUserNS(s *sandbox) (_ *holder, err error) {
	o := s.options().GetUsernsOptions()
	if o == nil || o.Mode == cri.NamespaceMode_NODE {
		return nil, nil
	}
	if o.Mode != cri.NamespaceMode_POD || !mapsRoot(o.Uids) || !mapsRoot(o.Gids) {
		return nil, status.Error(codes.InvalidArgument,
			"a user namespace needs mode POD and mappings for users and groups that have id 0")
	}
	flags := unix.CLONE_NEWUSER | ownedKinds(s)
	if !s.hostNetwork() {
		flags |= unix.CLONE_NEWNET
	}
	h, err := r.startHolder(uintptr(flags), o)
	if err != nil {
		return nil, fmt.Errorf("making the pod's user namespace: %w", err)
	}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	pin := filepath.Join(r.runDir(s.rec.ID), "userns")
	f, err := os.OpenFile(pin, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("pinning the pod's user namespace: %w", err)
	}
	f.Close()
	if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/user", h.cmd.Process.Pid), pin, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("pinning the pod's user namespace: %w", err)
	}
	s.rec.UserNS = pin
	return h, nil
}

// startHolder starts the helper in new namespaces, with a program that only waits.
func (r *Runtime) startHolder(flags uintptr, o *cri.UserNamespace) (*holder, error) {
	p := &plan.Program{}
	p.Gate()
	code, err := p.Encode()
	if err != nil {
		return nil, err
	}
	spec, err := openfile.MemoryFile("userns", code)
	if err != nil {
		return nil, err
	}
	defer spec.Close()
	wait, gate, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer wait.Close()
	helper, err := r.programs.Helper()
	if err != nil {
		return nil, errors.Join(err, gate.Close())
	}
	defer runtime.KeepAlive(helper)
	pidfd := -1
	cmd := &exec.Cmd{
		Path:       fmt.Sprintf("/proc/self/fd/%d", openfile.FD(helper)),
		Args:       []string{"carob-userns"},
		Env:        []string{},
		Dir:        "/",
		ExtraFiles: []*os.File{spec, wait},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: flags, UidMappings: sysMap(o.Uids), GidMappings: sysMap(o.Gids),
			GidMappingsEnableSetgroups: true, PidFD: &pidfd,
		},
	}
	if err := cmd.Start(); err != nil {
		gate.Close()
		return nil, err
	}
	return &holder{cmd: cmd, gate: gate, pidfd: os.NewFile(uintptr(pidfd), "holder")}, nil
}

func mapsRoot(list []*cri.IDMapping) bool {
	return slices.ContainsFunc(list, func(m *cri.IDMapping) bool { return m.ContainerId == 0 && m.Length > 0 })
}

func sysMap(list []*cri.IDMapping) []syscall.SysProcIDMap {
	out := make([]syscall.SysProcIDMap, len(list))
	for i, m := range list {
		out[i] = syscall.SysProcIDMap{ContainerID: int(m.ContainerId), HostID: int(m.HostId), Size: int(m.Length)}
	}
	return out
}
