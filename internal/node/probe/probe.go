// Package probe runs one probe once and says how it ended (L5.20–26). When and
// how often is decided by core/podlife; the node agent calls Run for each
// RunProbe action. It must never keep state between runs.
package probe

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
)

// Execer is the call of a runtime that exec probes need.
type Execer interface {
	ExecSync(context.Context, *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error)
}

// Target is the container that is probed.
type Target struct {
	Runtime     Execer
	Container   *corev1.Container
	ContainerID string
	PodIP       string
}

// Run runs the probe once, at most for its timeout, and returns the verdict and
// the text for the event. It leaves no goroutine and no connection behind.
func Run(ctx context.Context, t Target, p *corev1.Probe) (podlife.ProbeVerdict, string) {
	panic("unfinished")
}
