package router

import (
	"context"
	"slices"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/runtime"
)

// uidLabel is the label of sandboxes and containers with the UID of their pod, by which lists select one
// pod (L3.164).
const uidLabel = "io.kubernetes.pod.uid"

// listLimit is how long a list of all pods waits for one of the other runtimes.
const listLimit = 5 * time.Second

// ListPodSandbox returns the sandboxes of all runtimes; of the other runtimes, those of recorded pods. A list that
// selects one pod or sandbox calls only its runtime, and fails if that does not respond. In other lists, a runtime that
// does not respond has the sandboxes of its last list.
func (r *Router) ListPodSandbox(ctx context.Context, req *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse,
	error) {
	own, err := r.main.ListPodSandbox(ctx, req)
	if err != nil {
		return nil, err
	}
	items := slices.Clone(own.GetItems())
	f := req.GetFilter()
	o := r.places.runtimeOf(f.GetId())
	uid := f.GetLabelSelector()[uidLabel]
	if o == nil {
		o = r.places.of(uid)
	}
	switch {
	case o != nil:
		before := r.places.versions(o)
		resp, err := on(ctx, o, runtime.Runtime.ListPodSandbox, req)
		if err != nil {
			return nil, err
		}
		if f.GetId() == "" && f.GetState() == nil && len(f.GetLabelSelector()) == 1 {
			r.places.settle(ctx, o, map[string]uint64{uid: before[uid]}, resp.GetItems())
		}
		items = append(items, r.places.own(o, resp.GetItems())...)
	case f.GetId() == "" && uid == "":
		for _, more := range fromAll(r, func(o *other) []*cri.PodSandbox { return r.sandboxesOf(ctx, o, req) }) {
			items = append(items, more...)
		}
	}
	return &cri.ListPodSandboxResponse{Items: items}, nil
}

// fromAll lists from the other runtimes at the same time.
func fromAll[T any](r *Router, list func(*other) []T) [][]T {
	all := make([][]T, len(r.others))
	var wait sync.WaitGroup
	for i, o := range r.others {
		wait.Go(func() { all[i] = list(o) })
	}
	wait.Wait()
	return all
}

func (r *Router) sandboxesOf(ctx context.Context, o *other, req *cri.ListPodSandboxRequest) []*cri.PodSandbox {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	before := r.places.versions(o)
	resp, err := on(ctx, o, runtime.Runtime.ListPodSandbox, req)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot list the sandboxes of another runtime; using its last list", "err", err)
		if !o.everListed {
			return r.places.standIns(o)
		}
		return o.listed
	}
	own := r.places.own(o, resp.GetItems())
	if req.GetFilter() == nil {
		r.places.settle(ctx, o, before, resp.GetItems())
		o.listed, o.everListed = own, true
	}
	return own
}

// ListContainers returns the containers of all runtimes, as ListPodSandbox does sandboxes.
func (r *Router) ListContainers(ctx context.Context, req *cri.ListContainersRequest) (*cri.ListContainersResponse,
	error) {
	own, err := r.main.ListContainers(ctx, req)
	if err != nil {
		return nil, err
	}
	items := slices.Clone(own.GetContainers())
	f := req.GetFilter()
	uid := f.GetLabelSelector()[uidLabel]
	o := r.places.runtimeOf(f.GetId())
	if o == nil {
		o = r.places.runtimeOf(f.GetPodSandboxId())
	}
	if o == nil {
		o = r.places.of(uid)
	}
	switch {
	case o != nil:
		resp, err := on(ctx, o, runtime.Runtime.ListContainers, req)
		if err != nil {
			return nil, err
		}
		items = append(items, r.places.ownContainers(o, resp.GetContainers())...)
	case f.GetId() == "" && f.GetPodSandboxId() == "" && uid == "":
		for _, more := range fromAll(r, func(o *other) []*cri.Container { return r.containersOf(ctx, o, req) }) {
			items = append(items, more...)
		}
	}
	return &cri.ListContainersResponse{Containers: items}, nil
}

func (r *Router) containersOf(ctx context.Context, o *other, req *cri.ListContainersRequest) []*cri.Container {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	resp, err := on(ctx, o, runtime.Runtime.ListContainers, req)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		return o.containers
	}
	own := r.places.ownContainers(o, resp.GetContainers())
	if req.GetFilter() == nil {
		o.containers = own
	}
	return own
}

// ListPodSandboxStats returns the statistics of the runtimes that respond.
func (r *Router) ListPodSandboxStats(ctx context.Context,
	req *cri.ListPodSandboxStatsRequest) (*cri.ListPodSandboxStatsResponse, error) {
	own, err := r.main.ListPodSandboxStats(ctx, req)
	if err != nil {
		return nil, err
	}
	stats := slices.Clone(own.GetStats())
	for _, more := range fromAll(r, func(o *other) []*cri.PodSandboxStats { return r.sandboxStats(ctx, o, req) }) {
		stats = append(stats, more...)
	}
	return &cri.ListPodSandboxStatsResponse{Stats: stats}, nil
}

func (r *Router) sandboxStats(ctx context.Context, o *other,
	req *cri.ListPodSandboxStatsRequest) []*cri.PodSandboxStats {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	resp, err := on(ctx, o, runtime.Runtime.ListPodSandboxStats, req)
	if err != nil {
		return nil // the list has no statistics of these pods
	}
	return slices.DeleteFunc(resp.GetStats(),
		func(s *cri.PodSandboxStats) bool { return r.places.runtimeOf(s.GetAttributes().GetId()) != o })
}

// ListContainerStats returns the statistics of the runtimes that respond.
func (r *Router) ListContainerStats(ctx context.Context,
	req *cri.ListContainerStatsRequest) (*cri.ListContainerStatsResponse, error) {
	own, err := r.main.ListContainerStats(ctx, req)
	if err != nil {
		return nil, err
	}
	stats := slices.Clone(own.GetStats())
	for _, more := range fromAll(r, func(o *other) []*cri.ContainerStats { return r.containerStats(ctx, o, req) }) {
		stats = append(stats, more...)
	}
	return &cri.ListContainerStatsResponse{Stats: stats}, nil
}

func (r *Router) containerStats(ctx context.Context, o *other,
	req *cri.ListContainerStatsRequest) []*cri.ContainerStats {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	resp, err := on(ctx, o, runtime.Runtime.ListContainerStats, req)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(resp.GetStats(),
		func(s *cri.ContainerStats) bool { return r.places.runtimeOf(s.GetAttributes().GetId()) != o })
}

// Counters implements runtime.Counter: the counters of the node's own runtime if it has them, and CRI's statistics
// of the others.
func (r *Router) Counters(ctx context.Context) runtime.Counters {
	var all runtime.Counters
	if c, ok := r.main.(runtime.Counter); ok {
		all = c.Counters(ctx)
	} else {
		if resp, err := r.main.ListContainerStats(ctx, &cri.ListContainerStatsRequest{}); err == nil {
			all.Stats = resp.GetStats()
		}
		if resp, err := r.main.ListPodSandboxStats(ctx, &cri.ListPodSandboxStatsRequest{}); err == nil {
			all.Sandboxes = resp.GetStats()
		}
	}
	all.Stats, all.Sandboxes = slices.Clone(all.Stats), slices.Clone(all.Sandboxes)
	for _, more := range fromAll(r, func(o *other) []*cri.ContainerStats {
		return r.containerStats(ctx, o, &cri.ListContainerStatsRequest{})
	}) {
		all.Stats = append(all.Stats, more...)
	}
	for _, more := range fromAll(r, func(o *other) []*cri.PodSandboxStats {
		return r.sandboxStats(ctx, o, &cri.ListPodSandboxStatsRequest{})
	}) {
		all.Sandboxes = append(all.Sandboxes, more...)
	}
	return all
}
