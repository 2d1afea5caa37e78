// Package pods owns every pod of the node. For each pod one goroutine, its owner, collects the input of podlife.Step,
// calls it, begins the actions that it returns, publishes the status that it computes, and sleeps until something
// changes, an action ends, or the returned deadline is reached.
//
// The node agent drives it: sources call Update and Remove, the watcher of the runtime calls Changed. It must never
// decide about a pod, and does not depend on how an action is done.
//
// # Where the status of a pod is
//
// A status is computed in one place and then only handed on. No code changes one that was
// handed on; all of them share what has not changed.
//
//	podlife.State.Last   what the last Step computed; the next one starts from it. Of the owner
//	   │                 alone. A restarted agent takes it from the API server (podlife.Recover).
//	   ├──▶ entry.published what readers see: the HTTPS server, admission, eviction, metrics. It
//	   │                 outlives the owner, for a pod at rest.
//	   └──▶ StatusWriter when it differs from the one before, or none was sent yet:
//	          ├─ static.Manager  of a static pod it keeps the newest, for a mirror pod that is
//	          │                  made later; it goes on to the mirror's name
//	          └─ status.Writer   want: what the API server should have; base: what it has.
//	                             They differ until a write is through, and after a drift.
//
// podlife.Input.Pod.Status is what the API server has, as the watch brought it.
//
// Contract: docs/spec/pod-lifecycle.md.
package pods

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/journal"
	"carob/internal/core/podlife"
)

// Machine is the decision: core/podlife, or a script in tests.
type Machine struct {
	Step    func(podlife.State, podlife.Input) (podlife.State, podlife.Output)
	Recover func(*corev1.Pod, podlife.Observed) podlife.State
}

// Observer reads the runtime's state.
type Observer interface {
	// Look returns a snapshot of the pod that is not older than the call.
	Look(ctx context.Context, pod *corev1.Pod) (podlife.Observed, error)
	// Forget removes the cached state of a pod.
	Forget(uid types.UID)
}

// Executor carries out actions.
type Executor interface {
	// Do carries out one action and returns when it has ended. When ctx is cancelled it stops as soon as possible,
	// leaves nothing incomplete, and returns a Failure; a success before that stays a success. It is called from many
	// goroutines; pod is read only, stays what it was when the action began, and has the resources that are granted.
	// AdmitResize is never handed to it.
	Do(ctx context.Context, pod *corev1.Pod, action podlife.Action) Result
	// Forget removes the cached state of a pod that is gone, and its logs. It may block.
	Forget(pod *corev1.Pod)
}

// Verdict is the node's admission decision about a pod. The zero value: admitted.
type Verdict struct {
	Rejection *podlife.Rejection
	Victims   []*corev1.Pod // pods that must end before it can be admitted; nil: none
}

// Result is how an action ended.
type Result struct {
	Err     *podlife.Failure
	Pulled  *podlife.Pulled      // PullImage
	Verdict podlife.ProbeVerdict // RunProbe
	Output  string               // RunProbe: text for the event
}

// StatusWriter publishes statuses in the background.
type StatusWriter interface {
	// Set publishes status as the newest one of the pod. It never blocks.
	Set(pod *corev1.Pod, status *corev1.PodStatus)
	// Seen passes the status in the API server.
	Seen(pod *corev1.Pod)
	// Forget drops the pod; what was not written yet is lost.
	Forget(uid types.UID)
}

// Config is what a Manager works with. All fields but Pin, Infeasible and Routed are required.
type Config struct {
	Machine  Machine
	Node     func() podlife.Node // facts of the machine, read for each Step
	Observer Observer
	Executor Executor
	Status   StatusWriter
	Event    func(*corev1.Pod, podlife.Event) // must not block
	// Admit is called for each pod that may still run, and for each resize, with
	// the pods it would share the node with (L3.10, L3.120). It may name pods that must end first (L3.40): then it is
	// called again when they have ended. It must not block.
	Admit func(pod *corev1.Pod, others []*corev1.Pod) Verdict
	// Pin assigns exclusive resources, such as CPUs, to a pod that Admit has admitted, or returns why it can't; nil:
	// there are none. It must not block.
	Pin func(*corev1.Pod) *podlife.Rejection
	// Infeasible returns why a pod with exclusive resources can't be resized in place; empty: it can. nil: every pod
	// can.
	Infeasible func(pod, held *corev1.Pod) string
	// Routed reports whether the data plane may open new connections to the pod as to one that goes on
	// (podlife.Input.Routed); nil: there is none. Manager.Released announces when it becomes false. It is called only
	// for pods that are being deleted.
	Routed func(types.UID) bool
	// DrainTimeout is podlife.Input.DrainTimeout of a pod that is being deleted; nil: there is none. Manager.Released
	// announces a change.
	DrainTimeout func(types.UID) *time.Duration
	Journal      journal.Recorder
}
