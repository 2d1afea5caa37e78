// Package journal is the vocabulary of what happened to pods: one Entry for each
// thing that began, ended or changed. Parts record entries, the timeline keeps
// them, the command line draws them. It is a leaf: it holds no state and does no I/O.
package journal

import (
	"context"
	"time"
)

// Kind says what an entry is about.
type Kind string

// The kinds of entries.
const (
	ActionBegin Kind = "action-begin" // an action of the node agent began; Cause says why
	ActionEnd   Kind = "action-end"   // it ended; Duration and, if it failed, Error
	Event       Kind = "event"        // a Kubernetes event; Key is the reason, Detail the message
	Status      Kind = "status"       // the published phase or a condition changed; Key is which, Detail the new value
	Life        Kind = "life"         // the pod's stage on its node changed; Key is the stage
	Wait        Kind = "wait"         // the pod waits; Key is for what, Cause the last error
	API         Kind = "api"          // the API object was created, changed or deleted; Key is the verb
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
	Object    string        `json:"object,omitempty"`   // container the entry is about; empty for the whole pod
	Cause     string        `json:"cause,omitempty"`    // why it was begun
	Error     string        `json:"error,omitempty"`    // why it failed
	Duration  time.Duration `json:"duration,omitempty"` // of what ended, in nanoseconds
	Detail    string        `json:"detail,omitempty"`
}

// Recorder takes entries. Record must not block and must not fail the caller:
// a journal that can't be written loses entries and says so in the log.
// An Entry without Time is stamped by the recorder.
type Recorder interface {
	Record(Entry)
}

// Discard is a Recorder that keeps nothing.
type Discard struct{}

// Record implements Recorder.
func (Discard) Record(Entry) {}

var _ Recorder = Discard{}

// Reader answers what happened to a pod.
type Reader interface {
	// Pod returns the entries of all pods that had this name, oldest first, deleted ones too.
	Pod(ctx context.Context, namespace, name string) ([]Entry, error)
}
