package devices

import (
	"context"
	"testing"

	"k8s.io/client-go/kubernetes/fake"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// A plugin is killed during Allocate: the pod has no devices, and gets them from the next plugin; a late response of a
// plugin that is gone changes nothing (S8.11).
func TestKilledDuringAllocation(t *testing.T) {
	a := start(t, short(t), fake.NewClientset())
	p := &plugin{}
	called, late := make(chan struct{}), make(chan struct{})
	p.reply = func([]string) (*pluginapi.ContainerAllocateResponse, error) {
		close(called)
		<-late
		return &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"GPU": "late"}}, nil
	}
	a.plug(p, "p.sock", dev(pluginapi.Healthy, "d0"))
	a.allocatable(1)
	done := make(chan error, 1)
	go func() { done <- a.Allocate(context.Background(), podWith("a", 1)) }()
	<-called
	p.server.Stop()
	if err := <-done; err == nil {
		t.Error("a plugin that is gone has given a device")
	}
	if a.Held("a") {
		t.Error("the pod has a device that nobody gave")
	}
	next := &plugin{}
	a.plug(next, "next.sock", dev(pluginapi.Healthy, "d0"))
	a.allocatable(1)
	close(late)
	if err := a.Allocate(context.Background(), podWith("a", 1)); err != nil {
		t.Fatal(err)
	}
	if !a.Held("a") {
		t.Error("the pod has no device")
	}
	next.mu.Lock()
	defer next.mu.Unlock()
	if len(next.requested) != 1 {
		t.Errorf("the next plugin got %d requests", len(next.requested))
	}
}
