// Package journal defines the entries of the timeline: one Entry for each thing that began, ended,
// or changed. Parts record entries, the timeline stores them, the command line draws them. It is a
// leaf package: it has no state and does no I/O.
package journal

import (
	"context"
	"time"
)

// Kind is the kind of an entry.
type Kind string

// The kinds of entries.
const (
	ActionBegin Kind = "action-begin" // an action of the node agent began; Cause is the reason
	ActionEnd   Kind = "action-end"   // it ended; Duration and, if it failed, Error
	Event       Kind = "event"        // a Kubernetes event; Key is the reason, Detail the message
	Status      Kind = "status"       // the published phase or a condition changed; Key is which, Detail the new value
	Life        Kind = "life"         // the pod's stage on its node changed; Key is the stage
	Wait        Kind = "wait"         // the pod is waiting; Key is for what, Cause the last error
	API         Kind = "api"          // the API object was created, changed, or deleted; Key is the verb
	Schedule    Kind = "schedule"     // a scheduling attempt; Key is the node or empty, Detail the reasons
)

// Entry is one thing that happened to a pod.
type Entry struct {
	Time      time.Time     `json:"time"`
	Namespace string        `json:"namespace"`
	Pod       string        `json:"pod"`
	UID       string        `json:"uid,omitempty"`
	Kind      Kind          `json:"kind"`
	Key       string        `json:"key,omitempty"`      // action key ("start/web/3"), event reason, stage, …
	Object    string        `json:"object,omitempty"`   // container of the entry; empty for the whole pod
	Cause     string        `json:"cause,omitempty"`    // why it began
	Error     string        `json:"error,omitempty"`    // why it failed
	Duration  time.Duration `json:"duration,omitempty"` // of what ended, in nanoseconds
	Detail    string        `json:"detail,omitempty"`
}

// Recorder accepts entries. Record must not block and must not fail the caller: a journal that
// cannot be written loses entries and logs that. The recorder sets the Time of an entry without
// one.
type Recorder interface {
	Record(Entry)
}

// Discard is a Recorder that discards all entries.
type Discard struct{}

// Record implements Recorder.
func (Discard) Record(Entry) {}

var _ Recorder = Discard{}

// Reader returns the history of a pod.
type Reader interface {
	// Pod returns the entries of all pods with this name, oldest first, including deleted pods.
	Pod(ctx context.Context, namespace, name string) ([]Entry, error)
}
