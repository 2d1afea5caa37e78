package scheduler

import (
	"context"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/tools/events"
)

// writeDelay is how long the event of a binding waits: its write would take processor time and the
// disk from the start of the pod.
const writeDelay = 50 * time.Millisecond

const reasonScheduled = "Scheduled"

// delayedSink writes the events of bindings writeDelay after they happened, the others at once.
type delayedSink struct{ events.EventSink }

// Create implements events.EventSink. The broadcaster calls it on a goroutine of this event. When
// ctx ends first, the write is tried at once and fails with ctx.
func (s delayedSink) Create(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	if e.Reason == reasonScheduled && e.Series == nil {
		select {
		case <-time.After(time.Until(e.EventTime.Add(writeDelay))):
		case <-ctx.Done():
		}
	}
	return s.EventSink.Create(ctx, e)
}
