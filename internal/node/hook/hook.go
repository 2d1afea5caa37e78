// Package hook runs postStart and preStop handlers (L6.9). When, and what a
// failure means, is decided by core/podlife; the node agent calls Run for each
// RunHook action. It must never keep state between runs.
package hook

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Execer is the call of a runtime that exec hooks need.
type Execer interface {
	ExecSync(context.Context, *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error)
}

// Target is the container whose hook runs.
type Target struct {
	Runtime     Execer
	Pod         *corev1.Pod
	Container   *corev1.Container
	ContainerID string
	PodIP       string
	// Event records a Warning on the container (LifecycleHTTPFallback). May be nil.
	Event func(reason, message string)
}

// Run runs the handler until it ends or ctx does. The error is the text of the
// waiting message (L6.2). A sleep that ctx ends fails with `container terminated
// before sleep hook finished`.
func Run(ctx context.Context, t Target, h *corev1.LifecycleHandler) error { panic("unfinished") }
