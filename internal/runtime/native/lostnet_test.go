package native

import (
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/netns"
)

// A pod whose network namespace is gone when carob starts does not continue as if it were
// reachable: the network has released its address. It is stopped, leaves nothing behind, and can be
// created again.
func TestLostNetwork(t *testing.T) {
	w := newWorld(t)
	lost, lostc := w.sandbox("lost")
	kept, keptc := w.sandbox("kept")
	ends := w.run(lost, lostc, "ends", shell("sleep 1000"))
	lives := w.run(kept, keptc, "lives", shell("sleep 1000"))
	s, err := w.r.sandbox(lost)
	if err != nil {
		t.Fatal(err)
	}
	path := s.rec.NetNS
	if path == "" {
		t.Skip("the pod has no network of its own")
	}
	if err := w.r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := netns.Unpin(path); err != nil {
		t.Fatal(err)
	}
	w.open()
	if st := w.wait(ends); st.ExitCode != 137 {
		t.Errorf("the container ended with %d", st.ExitCode)
	}
	for id, want := range map[string]cri.PodSandboxState{lost: cri.PodSandboxState_SANDBOX_NOTREADY,
		kept: cri.PodSandboxState_SANDBOX_READY} {
		st, err := w.r.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: id})
		if err != nil || st.Status.State != want {
			t.Errorf("sandbox %s: %v, %v", id, st.GetStatus().GetState(), err)
		}
	}
	st, err := w.r.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: lives})
	if err != nil || st.Status.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the other pod's container: %v, %v", st.GetStatus().GetState(), err)
	}
	w.emptied()
}
