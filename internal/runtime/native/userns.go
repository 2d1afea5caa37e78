package native

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// idsOf is the user namespace that a sandbox asks for; empty for the host's.
func idsOf(s *sandbox) IDMap {
	o := s.options().GetUsernsOptions()
	if o == nil || o.Mode == cri.NamespaceMode_NODE {
		return IDMap{}
	}
	return IDMap{UIDs: o.Uids, GIDs: o.Gids}
}

// makeUserNS makes and pins the pod's user namespace.
func (r *Runtime) makeUserNS(s *sandbox) error {
	o := s.options().GetUsernsOptions()
	if o == nil || o.Mode == cri.NamespaceMode_NODE {
		return nil
	}
	if o.Mode != cri.NamespaceMode_POD || len(o.Uids) == 0 || len(o.Gids) == 0 {
		return status.Error(codes.InvalidArgument, "a user namespace needs mode POD and mappings for users and groups")
	}
	// The helper waits at a gate in the new namespace until it is pinned.
	p := &program{}
	p.add(record{code: opGate})
	spec, err := memory("userns", p.encode())
	if err != nil {
		return err
	}
	defer spec.Close()
	gateR, gateW, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("making the pod's user namespace: %w", err)
	}
	defer gateR.Close()
	defer gateW.Close()
	cmd := &exec.Cmd{
		Path:       fmt.Sprintf("/proc/self/fd/%d", r.programs.helper.Fd()),
		Args:       []string{"carob-userns"},
		Env:        []string{},
		Dir:        "/",
		ExtraFiles: []*os.File{spec, gateR},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER, UidMappings: sysMap(o.Uids), GidMappings: sysMap(o.Gids), GidMappingsEnableSetgroups: true,
		},
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("making the pod's user namespace: %w", err)
	}
	defer func() {
		gateW.Close()
		cmd.Process.Kill()
		cmd.Wait()
	}()
	pin := filepath.Join(r.runDir(s.rec.ID), "userns")
	f, err := os.OpenFile(pin, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("pinning the pod's user namespace: %w", err)
	}
	f.Close()
	if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid), pin, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pinning the pod's user namespace: %w", err)
	}
	s.rec.UserNS = pin
	return nil
}

func sysMap(list []*cri.IDMapping) []syscall.SysProcIDMap {
	out := make([]syscall.SysProcIDMap, len(list))
	for i, m := range list {
		out[i] = syscall.SysProcIDMap{ContainerID: int(m.ContainerId), HostID: int(m.HostId), Size: int(m.Length)}
	}
	return out
}
