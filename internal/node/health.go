package node

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/node/observe"
	"carob/internal/node/spec"
	"carob/internal/runtime"
)

const (
	statusTimeout   = 10 * time.Second
	runtimeDownTime = 30 * time.Second // L0.43
)

// health is the state that the runtime reports. Only look writes it.
type health struct {
	runtime runtime.Runtime
	changed chan struct{} // capacity 1: the network became ready, or is no longer ready

	network atomic.Pointer[string]    // why it is not ready; empty when it is
	good    atomic.Pointer[time.Time] // time of the last answer, with the monotonic clock
	last    atomic.Pointer[cri.StatusResponse]
}

func newHealth(rt runtime.Runtime) *health {
	return &health{runtime: rt, changed: make(chan struct{}, 1)}
}

// look requests the runtime's status.
func (h *health) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	resp, err := h.runtime.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return
	}
	h.good.Store(new(time.Now()))
	h.last.Store(resp)
	problem := ""
	for _, c := range resp.GetStatus().GetConditions() {
		if c.Type == "NetworkReady" && !c.Status {
			problem = fmt.Sprintf("container runtime network not ready: %s=false reason:%s message:%s", c.Type,
				c.Reason, c.Message)
		}
	}
	if old := h.network.Swap(&problem); old != nil && *old != problem {
		notify(h.changed)
	}
}

// problems are why the node is not ready (L7.164a).
func (h *health) problems(ctx context.Context, watcher *observe.Watcher) []string {
	h.look(ctx)
	var why []string
	good := h.good.Load()
	switch {
	case good == nil:
		why = append(why, "container runtime status check may not have completed yet")
	case time.Since(*good) > runtimeDownTime:
		why = append(why, "container runtime is down")
	}
	for _, c := range h.last.Load().GetStatus().GetConditions() {
		if c.Type == "RuntimeReady" && !c.Status {
			why = append(why, fmt.Sprintf("container runtime not ready: %s=false reason:%s message:%s", c.Type,
				c.Reason, c.Message))
		}
	}
	if err := watcher.Err(time.Now()); err != nil {
		why = append(why, err.Error())
	}
	if p := h.networkProblem(); p != "" {
		why = append(why, p)
	}
	return why
}

// notify sends to a channel of capacity 1 unless it is full.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// stalled is since when the agent can't manage pods because the runtime does not respond or can't be listed (L8.5,
// L8.27); zero: it can.
func (h *health) stalled(watcher *observe.Watcher, started, now time.Time) time.Time {
	since, answered := time.Time{}, time.Time{}
	if good := h.good.Load(); good != nil {
		answered = *good
	}
	for _, last := range []struct {
		at  time.Time
		max time.Duration
	}{{answered, runtimeDownTime}, {watcher.ListedAt(), observe.HealthyFor}} {
		at := last.at
		if at.IsZero() {
			at = started
		}
		if end := at.Add(last.max); end.Before(now) && (since.IsZero() || end.Before(since)) {
			since = end
		}
	}
	return since
}

// networkProblem is why pods can't be attached (L3.50 step 3); empty when they can.
func (h *health) networkProblem() string {
	if p := h.network.Load(); p != nil {
		return *p
	}
	return "container runtime status check may not have completed yet"
}

// features fills in what the default runtime handler supports.
func (h *health) features(n *spec.Node) {
	for _, handler := range h.last.Load().GetRuntimeHandlers() {
		if handler.Name == "" {
			n.UserNamespaces = handler.GetFeatures().GetUserNamespaces()
			n.RecursiveReadOnly = handler.GetFeatures().GetRecursiveReadOnlyMounts()
		}
	}
}

// recursiveReadOnly reports whether the default runtime handler supports recursive read-only
// mounts.
func (h *health) recursiveReadOnly() bool {
	var n spec.Node
	h.features(&n)
	return n.RecursiveReadOnly
}

// nodeFeatures are the runtime's features in the Node object.
func (h *health) nodeFeatures() (*corev1.NodeFeatures, []corev1.NodeRuntimeHandler) {
	last := h.last.Load()
	strict := last.GetFeatures().GetSupplementalGroupsPolicy()
	features := &corev1.NodeFeatures{SupplementalGroupsPolicy: &strict}
	var handlers []corev1.NodeRuntimeHandler
	for _, h := range last.GetRuntimeHandlers() {
		rro, userns := h.GetFeatures().GetRecursiveReadOnlyMounts(), h.GetFeatures().GetUserNamespaces()
		handlers = append(handlers, corev1.NodeRuntimeHandler{
			Name: h.Name, Features: &corev1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &rro,
				UserNamespaces: &userns},
		})
	}
	return features, handlers
}
