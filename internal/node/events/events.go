// Package events records Kubernetes events of the node agent (core/v1, source
// kubelet and the node's name; L10.1) in the background, a moment later: a write would compete for CPU and disk with
// the very start that the event reports. While many pods start or end, their events wait until that is over, for a few
// seconds at most. Repeats of an event only raise its count, and raising it is put off for longer, so that a burst of
// repeats costs one write. Every part of the agent may record; the package must never block its callers, and drops
// events rather than use more memory.
//
// Contract: docs/spec/pod-lifecycle.md.
package events

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"carob/internal/core/podlife"
)

const (
	queueMax    = 4096
	writeDelay  = 50 * time.Millisecond // how long no event must have arrived before the first is written
	writeMax    = 5 * time.Second       // the longest time that an event waits for that
	repeatDelay = 2 * time.Second       // how long a higher count may wait
	retryDelay  = 5 * time.Second
	retryMax    = 12
)

// Recorder takes events and writes them. It is safe for concurrent use.
type Recorder struct {
	client     corev1client.EventsGetter
	node       string
	nodeUID    func() types.UID
	correlator *record.EventCorrelator

	mu    sync.Mutex
	queue []*corev1.Event
	lost  int
	last  int64         // newest time in the name of an event, in ns
	came  time.Time     // when the newest event came
	wake  chan struct{} // capacity 1
}

// New returns a Recorder for the node with this name; it writes while Run runs. uid returns the
// node's UID, or an empty string while it is unknown. Without a client, events are logged instead.
func New(client corev1client.EventsGetter, node string, uid func() types.UID) *Recorder {
	return &Recorder{
		client: client, node: node, nodeUID: uid, wake: make(chan struct{}, 1),
		correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{}), // L10.1
	}
}

// Pod records an event about a pod, or about the part of it that FieldPath names (L10.2).
func (r *Recorder) Pod(pod *corev1.Pod, e podlife.Event) { r.PodWith(pod, e, nil) }

// PodWith records an event with annotations (L7.149).
func (r *Recorder) PodWith(pod *corev1.Pod, e podlife.Event, annotations map[string]string) {
	r.add(corev1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion, FieldPath: e.FieldPath,
	}, pod.Namespace, annotations, e)
}

// Claim records an event about a persistent volume claim.
func (r *Recorder) Claim(c *corev1.PersistentVolumeClaim, eventType, reason, message string) {
	r.add(corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: c.Namespace, Name: c.Name,
		UID: c.UID, ResourceVersion: c.ResourceVersion}, c.Namespace, nil,
		podlife.Event{Type: eventType, Reason: reason, Message: message})
}

// Node records an event about the node itself. While its UID is unknown, its name is used
// instead (L10.2); kubectl looks for both.
func (r *Recorder) Node(eventType, reason, message string) {
	uid := r.nodeUID()
	if uid == "" {
		uid = types.UID(r.node)
	}
	r.add(corev1.ObjectReference{Kind: "Node", Name: r.node, UID: uid}, metav1.NamespaceDefault, nil,
		podlife.Event{Type: eventType, Reason: reason, Message: message})
}

func (r *Recorder) add(about corev1.ObjectReference, namespace string, annotations map[string]string,
	what podlife.Event) {
	if r.client == nil {
		klog.Background().Info("Event", "kind", about.Kind, "object", klog.KRef(about.Namespace, about.Name),
			"type", what.Type, "reason", what.Reason, "message", what.Message)
		return
	}
	now := metav1.Now()
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", about.Name, r.unique(now.UnixNano())),
			Namespace: namespace, Annotations: annotations},
		InvolvedObject:      about,
		Reason:              what.Reason,
		Message:             what.Message,
		Source:              corev1.EventSource{Component: "kubelet", Host: r.node},
		FirstTimestamp:      now,
		LastTimestamp:       now,
		Count:               1,
		Type:                what.Type,
		ReportingController: "kubelet",
		ReportingInstance:   r.node,
	}
	r.mu.Lock()
	r.came = now.Time
	if len(r.queue) < queueMax {
		r.queue = append(r.queue, e)
	} else {
		r.lost++
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// unique returns a time that no other event of this recorder has.
func (r *Recorder) unique(now int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = max(now, r.last+1)
	return r.last
}

// write is one event that has to reach the API server.
type write struct {
	event  *corev1.Event
	patch  []byte // nil: create it
	tries  int
	notYet time.Time
}

// Run writes until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	var pending []*write // each event once
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-timer.C:
		}
		pending = r.correlate(ctx, pending)
		var later []*write
		for _, w := range pending {
			if ctx.Err() != nil {
				return
			}
			if w.notYet = r.due(w); time.Now().Before(w.notYet) {
				later = append(later, w)
			} else if err := r.store(ctx, w); err != nil && ctx.Err() == nil {
				if w.tries++; w.tries < retryMax {
					w.notYet = time.Now().Add(retryDelay)
					later = append(later, w)
				} else {
					klog.FromContext(ctx).Error(err, "An event could not be written", "reason", w.event.Reason, "about",
						w.event.InvolvedObject.Name)
				}
			}
		}
		pending = later
		next := time.Time{}
		for _, w := range pending {
			if next.IsZero() || w.notYet.Before(next) {
				next = w.notYet
			}
		}
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// due is when an event is written. A new event waits until no other has arrived for writeDelay: its write takes the API
// server as long as that of a status for which a client waits.
func (r *Recorder) due(w *write) time.Time {
	if w.patch != nil || w.tries > 0 {
		return w.notYet
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	due, latest := r.came.Add(writeDelay), w.event.FirstTimestamp.Add(writeMax)
	if latest.Before(due) {
		return latest
	}
	return due
}

// correlate takes the queue and merges it into what has to be written.
func (r *Recorder) correlate(ctx context.Context, pending []*write) []*write {
	r.mu.Lock()
	queue, lost := r.queue, r.lost
	r.queue, r.lost = nil, 0
	r.mu.Unlock()
	if lost > 0 {
		klog.FromContext(ctx).Info("Events were dropped, the API server is too slow", "count", lost)
	}
	byName := make(map[string]*write, len(pending))
	for _, w := range pending {
		byName[w.event.Name] = w
	}
	for _, e := range queue {
		result, err := r.correlator.EventCorrelate(e)
		if err != nil || result.Skip {
			continue
		}
		if w := byName[result.Event.Name]; w != nil {
			w.event = result.Event // the same event, counted up
			if w.patch != nil {
				w.patch = result.Patch
			}
			continue
		}
		w := &write{event: result.Event}
		if result.Event.Count > 1 {
			w.patch, w.notYet = result.Patch, time.Now().Add(repeatDelay)
		}
		byName[w.event.Name] = w
		pending = append(pending, w)
	}
	return pending
}

// store writes one event; its errors can be retried.
func (r *Recorder) store(ctx context.Context, w *write) error {
	sink := r.client.Events(w.event.Namespace)
	var stored *corev1.Event
	var err error
	if w.patch != nil {
		stored, err = sink.Patch(ctx, w.event.Name, types.StrategicMergePatchType, w.patch, metav1.PatchOptions{})
	}
	if w.patch == nil || apierrors.IsNotFound(err) { // a repeated event may have expired
		fresh := *w.event
		fresh.ResourceVersion = ""
		stored, err = sink.Create(ctx, &fresh, metav1.CreateOptions{})
	}
	switch {
	case err == nil:
		r.correlator.UpdateState(stored)
		return nil
	case apierrors.IsAlreadyExists(err), apierrors.IsInvalid(err), apierrors.IsForbidden(err),
		apierrors.IsNotFound(err):
		// Another try would fail, too: for example, the namespace is being deleted.
		klog.FromContext(ctx).V(2).Info("The API server refused an event", "reason", w.event.Reason, "about",
			w.event.InvolvedObject.Name, "err", err)
		return nil
	default:
		return fmt.Errorf("write event %s about %s: %w", w.event.Reason, w.event.InvolvedObject.Name, err)
	}
}
