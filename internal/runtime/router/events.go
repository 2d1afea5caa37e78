package router

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime"
)

// pollEvery is how often a runtime without events is listed (L8.1).
const pollEvery = time.Second

// ContainerEvents merges the events of all runtimes. It ends with the stream of the node's own; the
// streams of the others are opened again. After a gap in one of those, and when its runtime answers
// again or does not answer any more, each of its pods gets an event that names only the pod.
func (r *Router) ContainerEvents(ctx context.Context, emit func(*cri.ContainerEventResponse)) error {
	ctx, cancel := context.WithCancel(ctx)
	var one sync.Mutex
	serial := func(e *cri.ContainerEventResponse) {
		one.Lock()
		defer one.Unlock()
		emit(e)
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	for _, o := range r.others {
		wait.Go(func() { r.follow(ctx, o, serial) })
		wait.Go(func() { r.announceTurns(ctx, o, serial) })
	}
	return r.main.ContainerEvents(ctx, serial)
}

// changed announces a pod.
func changed(uid string, emit func(*cri.ContainerEventResponse)) {
	emit(&cri.ContainerEventResponse{
		PodSandboxStatus: &cri.PodSandboxStatus{Metadata: &cri.PodSandboxMetadata{Uid: uid}}})
}

// announceTurns announces the pods of a runtime each time that it answers again, or does not answer any more.
func (r *Router) announceTurns(ctx context.Context, o *other, emit func(*cri.ContainerEventResponse)) {
	for turned, _ := o.state(); ; {
		select {
		case <-ctx.Done():
			return
		case <-turned:
		}
		turned, _ = o.state() // before the pods are announced: no turn is missed
		for _, uid := range r.places.uids(o) {
			changed(uid, emit)
		}
	}
}

// WatchHandlers implements runtime.HandlerWatcher.
func (r *Router) WatchHandlers(ctx context.Context, emit func(runtime.HandlerState)) {
	var one sync.Mutex
	var wait sync.WaitGroup
	for _, o := range r.others {
		wait.Go(func() {
			o.watch(ctx, func(problem error) {
				one.Lock()
				defer one.Unlock()
				emit(runtime.HandlerState{Handlers: slices.Clone(o.names), Endpoint: o.endpoint, Err: problem})
			})
		})
	}
	wait.Wait()
}

// follow passes on the events of one of the others until ctx ends.
func (r *Router) follow(ctx context.Context, o *other, emit func(*cri.ContainerEventResponse)) {
	for ctx.Err() == nil {
		for _, uid := range r.places.uids(o) {
			changed(uid, emit)
		}
		err := o.rt.ContainerEvents(ctx, func(e *cri.ContainerEventResponse) {
			if r.places.of(e.GetPodSandboxStatus().GetMetadata().GetUid()) == o {
				emit(e)
			}
		})
		if status.Code(err) == codes.Unimplemented {
			r.poll(ctx, o, emit)
			return
		}
		o.check()
		o.pause(ctx, retryEvery)
	}
}

// pause waits until the runtime answers again, or for a time if it is not known to be down.
func (o *other) pause(ctx context.Context, t time.Duration) {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return
	case <-timer.C:
	}
	back := o.up()
	if o.problem() != nil {
		select {
		case <-ctx.Done():
		case <-back:
		}
	}
}

// poll lists a runtime without events, and announces the pods whose sandboxes or containers have another
// state than in the last list.
func (r *Router) poll(ctx context.Context, o *other, emit func(*cri.ContainerEventResponse)) {
	before := map[string]map[string]int32{}
	for ctx.Err() == nil {
		if len(r.places.uids(o)) > 0 { // nothing to look for, otherwise
			if now, err := r.outlines(ctx, o); err == nil {
				for uid, states := range now {
					if !maps.Equal(states, before[uid]) {
						changed(uid, emit)
					}
				}
				for uid := range before {
					if now[uid] == nil {
						changed(uid, emit)
					}
				}
				before = now
			} else {
				o.check()
			}
		}
		o.pause(ctx, pollEvery)
	}
}

// outlines are the states of what a runtime has, by pod.
func (r *Router) outlines(ctx context.Context, o *other) (map[string]map[string]int32, error) {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	before := r.places.versions(o)
	sandboxes, err := on(ctx, o, runtime.Runtime.ListPodSandbox, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	containers, err := on(ctx, o, runtime.Runtime.ListContainers, &cri.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	r.places.settle(ctx, o, before, sandboxes.GetItems())
	all := map[string]map[string]int32{}
	note := func(uid, id string, state int32) {
		if all[uid] == nil {
			all[uid] = map[string]int32{}
		}
		all[uid][id] = state
	}
	for _, sb := range r.places.own(o, sandboxes.GetItems()) {
		note(sb.GetMetadata().GetUid(), sb.GetId(), int32(sb.GetState()))
	}
	for _, c := range r.places.ownContainers(o, containers.GetContainers()) {
		note(r.places.uidOf(c.GetId()), c.GetId(), int32(c.GetState()))
	}
	return all, nil
}
