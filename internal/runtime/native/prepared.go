package native

import (
	"errors"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"carob/internal/runtime/native/monitor"
)

// errNotWaiting means that a helper that was started ahead has ended before it was needed.
var errNotWaiting = errors.New("the helper that was started ahead has ended")

// preparesHelpers reports whether helpers can be started ahead: they must be able to enter the
// cgroups of a container by themselves (version 1), and to join the namespaces of their monitor,
// which no process without CAP_SYS_PTRACE may inspect.
func (r *Runtime) preparesHelpers() bool {
	place := r.groups.Entry("/")
	return r.systemd == nil && place.Later() && r.host.caps&(1<<unix.CAP_SYS_PTRACE) != 0
}

// prepareHelper starts the helper of the first container of a pod that does not exist yet. Without
// it, the pod only starts later.
func (r *Runtime) prepareHelper(m *monitor.Monitor) {
	if !r.preparesHelpers() {
		return
	}
	helper, err := r.programs.Helper()
	if err == nil {
		err = m.Prepare(helper)
	}
	if err != nil && !errors.Is(err, unix.ENOSYS) { // a monitor of an earlier release, in a test
		klog.Background().V(2).Info("Cannot start a helper in advance", "reason", err)
	}
}

// takeWaiting returns a helper that waits in the container's pod and may become the container's
// process; nil for none.
func (r *Runtime) takeWaiting(m *monitor.Monitor, c *container) *monitor.Waiting {
	w := m.Take()
	if w == nil {
		return nil
	}
	flags, mode, _ := startFlags(c)
	helper, err := r.programs.Helper()
	if err != nil || helper != w.Helper || flags != 0 || mode != monitor.PIDNew { // later containers need none either
		w.Line.Close()
		return nil
	}
	return w
}
