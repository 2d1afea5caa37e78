package native

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/netns"
	"carob/internal/network"
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

// refusing is a network that frees nothing while refuse is set.
type refusing struct {
	network.PodNetwork
	refuse atomic.Bool
}

var errRefused = errors.New("the plugin is gone")

func (n *refusing) Detach(ctx context.Context, id string) error {
	if n.refuse.Load() {
		return errRefused
	}
	return n.PodNetwork.Detach(ctx, id)
}

func (n *refusing) Sweep(ctx context.Context, live map[string]bool) error {
	if n.refuse.Load() {
		return errRefused
	}
	return n.PodNetwork.Sweep(ctx, live)
}

// A network that cannot free the place of an ended pod, such as a CNI plugin that calls this cluster's API server, does
// not keep carob from starting. The place is freed later.
func TestNetworkThatFreesNothing(t *testing.T) {
	w := newWorld(t)
	net := &refusing{PodNetwork: w.cfg.Network}
	w.r.Close()
	w.cfg.Network = net
	w.open()
	ended, _ := w.sandbox("ended")
	kept, keptc := w.sandbox("kept")
	lives := w.run(kept, keptc, "lives", shell("sleep 1000"))
	s, err := w.r.sandbox(ended)
	if err != nil {
		t.Fatal(err)
	}
	path := s.rec.NetNS
	net.refuse.Store(true)
	stop := func() error {
		_, err := w.r.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: ended})
		return err
	}
	if err := stop(); err == nil {
		t.Error("a sandbox whose network is not freed counts as stopped")
	}
	if err := w.r.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := New(t.Context(), w.cfg)
	if err != nil {
		net.refuse.Store(false)
		w.open() // for the removal
		t.Fatalf("carob does not start: %v", err)
	}
	w.r = r
	st, err := w.r.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: lives})
	if err != nil || st.Status.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the other pod's container: %v, %v", st.GetStatus().GetState(), err)
	}
	net.refuse.Store(false)
	if err := stop(); err != nil {
		t.Error(err)
	}
	if netns.Pinned(path) {
		t.Error("the network namespace of the ended pod remains")
	}
	w.emptied()
}
