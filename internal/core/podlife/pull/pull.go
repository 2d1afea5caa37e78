// Package pull holds the back-off of images whose pull failed.
//
// It is pure; core/podlife decides with it when an image is pulled again.
//
// Contract: docs/spec/pod-lifecycle.md, L3.109–L3.113.
package pull

import (
	"slices"
	"time"
)

// The back-off of an image starts with the first value and doubles up to the second (L3.113, L0.38).
const (
	initialDelay = 10 * time.Second
	maxDelay     = 300 * time.Second
)

// Backoff is the back-off of one image of a pod.
type Backoff struct {
	Image           string
	Delay           time.Duration
	At              time.Time // of the last failure
	Reason, Message string    // why it failed, as in the status of a container
}

// Until is when the image may be tried again.
func (b *Backoff) Until() time.Time { return b.At.Add(b.Delay) }

// Backoffs are the back-offs of the images of a pod.
type Backoffs []Backoff

// Of returns the back-off of an image, or nil. It may be over.
func (b Backoffs) Of(image string) *Backoff {
	for i := range b {
		if b[i].Image == image {
			return &b[i]
		}
	}
	return nil
}

// Failed records a failure: the delay doubles, unless the previous failure is long ago.
func (b *Backoffs) Failed(image, reason, message string, at time.Time) *Backoff {
	f := b.Of(image)
	if f == nil {
		*b = append(*b, Backoff{Image: image})
		f = &(*b)[len(*b)-1]
	}
	if f.Delay == 0 || at.Sub(f.At) > 2*maxDelay {
		f.Delay = initialDelay
	} else {
		f.Delay = min(2*f.Delay, maxDelay)
	}
	f.At, f.Reason, f.Message = at, reason, message
	return f
}

// Forget removes the back-off of an image.
func (b *Backoffs) Forget(image string) {
	*b = slices.DeleteFunc(*b, func(f Backoff) bool { return f.Image == image })
}
