package scheduler

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/klog/v2"
)

const (
	// writeDelay is the delay of the event of a binding: its write would compete with the start of
	// the pod for CPU and disk.
	writeDelay = 50 * time.Millisecond
	// maxWriteDelay is the maximum delay while other pods are being bound: the write costs the API
	// server as much as another binding.
	maxWriteDelay = 5 * time.Second
	// eventWriters is the maximum number of parallel writes of events.
	eventWriters = 4
	// retryDelay and maxTries are those of client-go's recorder if the API cannot be reached.
	retryDelay = 10 * time.Second
	maxTries   = 12
)

const reasonScheduled = "Scheduled"

// placed is an event of a binding that is not written yet (L2.43).
type placed struct {
	regarding       corev1.ObjectReference
	scheduler, node string
	at              time.Time
	notBefore       time.Time // after a failed try
	tries           int
}

func newPlaced(pod *corev1.Pod, scheduler, node string, at time.Time) placed {
	return placed{scheduler: scheduler, node: node, at: at,
		regarding: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name,
			UID: pod.UID, ResourceVersion: pod.ResourceVersion}}
}

// event returns the event in the form of client-go's recorder.
func (p placed) event(host string) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.regarding.Namespace,
			Name: util.GenerateEventName(p.regarding.Name, p.at.UnixNano())},
		EventTime: metav1.NewMicroTime(p.at), ReportingController: p.scheduler,
		ReportingInstance: p.scheduler + "-" + host, Action: "Binding", Reason: reasonScheduled,
		Regarding: p.regarding, Type: corev1.EventTypeNormal,
		Note: "Successfully assigned " + p.regarding.Namespace + "/" + p.regarding.Name + " to " + p.node,
	}
}

// bindingEvents writes the events of bindings, after the bindings: writeDelay after each happened,
// and while others are in flight up to maxWriteDelay. A pod is bound once, so events need no
// aggregation, and a waiting event is a few strings without a goroutine.
type bindingEvents struct {
	client kubernetes.Interface
	host   string

	mu       sync.Mutex
	inFlight int           // bindings
	waiting  []placed      // oldest first
	writers  int           // goroutines
	quiet    chan struct{} // closed when no binding is in flight; created by a waiting writer
	done     sync.WaitGroup
}

func newBindingEvents(client kubernetes.Interface) *bindingEvents {
	host, _ := os.Hostname()
	return &bindingEvents{client: client, host: host}
}

// begin and end enclose a binding, from its decision to the API server's response.
func (b *bindingEvents) begin() {
	b.mu.Lock()
	b.inFlight++
	b.mu.Unlock()
}

func (b *bindingEvents) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inFlight--; b.inFlight == 0 && b.quiet != nil {
		close(b.quiet)
		b.quiet = nil
	}
}

// add queues an event, which is written later unless ctx ends before.
func (b *bindingEvents) add(ctx context.Context, p placed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, p)
	if b.writers < min(eventWriters, len(b.waiting)) {
		b.writers++
		b.done.Go(func() { b.write(ctx) })
	}
}

// write writes events until none is left, or ctx ends.
func (b *bindingEvents) write(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer func() { b.writers-- }()
	for len(b.waiting) > 0 {
		if wait := time.Until(b.due()); wait > 0 {
			if !b.sleep(ctx, wait) {
				return
			}
			continue
		}
		p := b.waiting[0]
		b.waiting = b.waiting[1:]
		b.mu.Unlock()
		again := b.try(ctx, p)
		b.mu.Lock()
		if p.tries++; again && p.tries < maxTries {
			p.notBefore = time.Now().Add(retryDelay)
			b.waiting = append(b.waiting, p)
		}
	}
}

// due returns when the first event must be written. mu is held.
func (b *bindingEvents) due() time.Time {
	delay := writeDelay
	if b.inFlight > 0 {
		delay = maxWriteDelay
	}
	due := b.waiting[0].at.Add(delay)
	if notBefore := b.waiting[0].notBefore; notBefore.After(due) {
		return notBefore
	}
	return due
}

// sleep returns after a time, or when no binding is in flight any more, and false when ctx has
// ended. mu is held, but released during the wait.
func (b *bindingEvents) sleep(ctx context.Context, d time.Duration) bool {
	var quiet chan struct{}
	if b.inFlight > 0 {
		if b.quiet == nil {
			b.quiet = make(chan struct{})
		}
		quiet = b.quiet
	}
	b.mu.Unlock()
	defer b.mu.Lock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-quiet:
	case <-ctx.Done():
		return false
	}
	return true
}

// try writes an event, and reports whether a retry may help: like client-go's recorder, it does not
// retry when the API server has responded.
func (b *bindingEvents) try(ctx context.Context, p placed) bool {
	_, err := b.client.EventsV1().Events(p.regarding.Namespace).Create(ctx, p.event(b.host), metav1.CreateOptions{})
	if err == nil || ctx.Err() != nil {
		return false
	}
	_, answered := errors.AsType[*apierrors.StatusError](err)
	klog.FromContext(ctx).Error(err, "Writing the event of a binding failed", "pod",
		klog.KRef(p.regarding.Namespace, p.regarding.Name), "again", !answered)
	return !answered
}

// Wait returns when no event is being written.
func (b *bindingEvents) Wait() { b.done.Wait() }
