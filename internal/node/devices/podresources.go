package devices

import (
	"cmp"
	"context"
	"maps"
	"path/filepath"
	"slices"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"carob/internal/core/devices"
	"carob/internal/core/resources"
)

// The rate of requests to the pod resources API (S12.90).
const (
	podResourcesRate  = 100
	podResourcesBurst = 10
)

// lister is the pod resources API, for monitoring of devices.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
	m *Manager
}

// servePodResources serves the pod resources API until ctx ends.
func (m *Manager) servePodResources(ctx context.Context) error {
	listener, err := listen(filepath.Join(m.cfg.Root, "pod-resources"), "kubelet.sock", false)
	if err != nil {
		m.cfg.Logger.Error(err, "The pod resources API is not served")
		return nil
	}
	limit := rate.NewLimiter(podResourcesRate, podResourcesBurst)
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
		handler grpc.UnaryHandler) (any, error) {
		if !limit.Allow() {
			return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
		}
		resp, err := handler(ctx, req)
		m.cfg.Meter.PodResourcesServed(filepath.Base(info.FullMethod), err)
		return resp, err
	}))
	podresources.RegisterPodResourcesListerServer(server, lister{m: m})
	return serve(ctx, server, listener)
}

// List implements the service (S12.91).
func (l lister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse,
	error) {
	out := &podresources.ListPodResourcesResponse{}
	pods := l.m.hooks.Pods()
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, pod := range pods {
		out.PodResources = append(out.PodResources, l.m.podResources(pod))
	}
	return out, nil
}

// Get implements the service (S12.92).
func (l lister) Get(_ context.Context, req *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse,
	error) {
	for _, pod := range l.m.hooks.Pods() {
		if pod.Name == req.PodName && pod.Namespace == req.PodNamespace {
			return &podresources.GetPodResourcesResponse{PodResources: l.m.podResources(pod)}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "pod %s in namespace %s not found", req.PodName, req.PodNamespace)
}

// GetAllocatableResources implements the service: all healthy devices, and the CPUs and memory that static policies can
// assign.
func (l lister) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (
	*podresources.AllocatableResourcesResponse, error) {
	m := l.m
	out := &podresources.AllocatableResourcesResponse{}
	out.CpuIds, out.Memory = m.cfg.Pinning.Allocatable()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.plugins.Resources)) {
		r := m.plugins.Resources[name]
		for _, id := range slices.Sorted(maps.Keys(r.Devices)) {
			if d := r.Devices[id]; d.Healthy && r.Connected {
				out.Devices = append(out.Devices, &podresources.ContainerDevices{ResourceName: name,
					DeviceIds: []string{id}, Topology: topology(d)})
			}
		}
	}
	return out, nil
}

func topology(d devices.Device) *podresources.TopologyInfo {
	if len(d.NUMA) == 0 {
		return nil
	}
	t := &podresources.TopologyInfo{}
	for _, id := range d.NUMA {
		t.Nodes = append(t.Nodes, &podresources.NUMANode{ID: id})
	}
	return t
}

// podResources is what the containers of a pod have.
func (m *Manager) podResources(pod *corev1.Pod) *podresources.PodResources {
	out := &podresources.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; resources.IsSidecar(c) || runs(pod, c.Name) {
			out.Containers = append(out.Containers, m.containerResources(pod, c))
		}
	}
	for i := range pod.Spec.Containers {
		out.Containers = append(out.Containers, m.containerResources(pod, &pod.Spec.Containers[i]))
	}
	return out
}

func runs(pod *corev1.Pod, container string) bool {
	return slices.ContainsFunc(pod.Status.InitContainerStatuses,
		func(s corev1.ContainerStatus) bool { return s.Name == container && s.State.Running != nil })
}

func (m *Manager) containerResources(pod *corev1.Pod, c *corev1.Container) *podresources.ContainerResources {
	out := &podresources.ContainerResources{Name: c.Name, CpuIds: m.cfg.Pinning.OwnCPUs(pod.UID, c.Name),
		Memory: m.cfg.Pinning.Memory(pod.UID, c.Name)}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.plugins.Of(pod.UID, c.Name) {
		if a.Response == nil {
			continue
		}
		for _, id := range a.Devices {
			var d devices.Device
			if r := m.plugins.Resources[a.Resource]; r != nil {
				d = r.Devices[id]
			}
			out.Devices = append(out.Devices, &podresources.ContainerDevices{ResourceName: a.Resource,
				DeviceIds: []string{id}, Topology: topology(d)})
		}
	}
	byClaim := map[string]*podresources.DynamicResource{}
	for _, u := range m.claims.Of(pod, c) {
		d := byClaim[u.Claim.Name]
		if d == nil {
			d = &podresources.DynamicResource{ClaimName: u.Claim.Name, ClaimNamespace: u.Claim.Namespace}
			byClaim[u.Claim.Name] = d
			out.DynamicResources = append(out.DynamicResources, d)
		}
		one := &podresources.ClaimResource{DriverName: u.Driver, PoolName: u.Pool, DeviceName: u.Device}
		if u.ShareID != "" {
			one.ShareId = &u.ShareID
		}
		for _, name := range u.CDI {
			one.CdiDevices = append(one.CdiDevices, &podresources.CDIDevice{Name: name})
		}
		d.ClaimResources = append(d.ClaimResources, one)
	}
	return out
}
