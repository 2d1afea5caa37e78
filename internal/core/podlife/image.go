package podlife

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife/pull"
)

const (
	reasonErrImagePull     = "ErrImagePull"
	reasonInvalidImageName = "InvalidImageName"
	reasonNeverPull        = "ErrImageNeverPull"
	reasonInspectError     = "ImageInspectError"
)

// lookEvery is the maximum age of a snapshot while an image is waited for: no event announces
// the arrival of an image, and upstream checks with each retry of the pod (L0.34, L3.104).
const lookEvery = 10 * time.Second

// getImage gets the image of c. It returns the ID to start with and whether the image was
// present already, or "" while it is missing; busy means that a pull is in progress.
func (m *machine) getImage(c *podContainer) (ref string, present, busy bool) {
	if f := m.inFlight(opPull, c.spec.Name); f != nil {
		if f.Detail != c.spec.Image {
			m.cancel(f) // the spec has changed
		}
		m.waitFor(f, "image", f.Detail)
		return "", false, true
	}
	if c.record.Pulled != "" {
		return c.record.Pulled, false, false
	}
	known := m.imageState(c.spec.Image)
	if known != nil && known.InvalidName != "" {
		text := fmt.Sprintf("Failed to apply default image tag %q: %v", c.spec.Image, known.InvalidName)
		m.imageRefused(c, reasonInvalidImageName, text, "InspectFailed", text)
		return "", false, false
	}
	policy := c.spec.ImagePullPolicy
	if policy != corev1.PullAlways {
		switch {
		case known == nil: // the snapshot is for an older spec
			m.lookBy(m.now)
			m.out.Waits = append(m.out.Waits, Wait{For: "image", Object: c.spec.Image, Since: m.now})
			return "", false, false
		case known.Err != "":
			text := fmt.Sprintf("Failed to inspect image %q: %v", c.spec.Image, known.Err)
			m.imageRefused(c, reasonInspectError, text, "InspectFailed", text)
			return "", false, false
		case known.Ref != "":
			return known.Ref, true, false
		case policy == corev1.PullNever:
			text := fmt.Sprintf("Container image %q is not present with pull policy of Never", c.spec.Image)
			m.imageRefused(c, reasonNeverPull, text, reasonNeverPull, text)
			return "", false, false
		}
	}
	if f := m.pulling(c.spec.Image); f != nil && policy != corev1.PullAlways {
		m.waitFor(f, "image", c.spec.Image) // the pull of another container brings it
		return "", false, true
	}
	// What only those containers run into that do not pull does not prevent this one from pulling the image.
	if im := m.imageBackoff(c); im != nil && im.Reason != reasonNeverPull && im.Reason != reasonInspectError {
		m.reportImageWait(c, im)
		return "", false, false
	}
	m.normal(c, "Pulling", fmt.Sprintf("Pulling image %q", c.spec.Image))
	m.do(PullImage{Container: c.spec.Name, Image: c.spec.Image},
		"image "+c.spec.Image+" is needed (policy "+policyName(policy)+")", "image", c.spec.Image)
	return "", false, true
}

// imageRefused reports once, and again after each back-off, that an image can't be used.
func (m *machine) imageRefused(c *podContainer, reason, message, eventReason, eventMessage string) {
	im := m.imageBackoff(c)
	if im == nil {
		m.warning(c, eventReason, eventMessage)
		m.warning(c, "Failed", "Error: "+reason)
		c.record.Waiting = waitingReason{Reason: reason, Message: message, At: m.now}
		im = m.s.Images.Failed(c.spec.Image, reason, message, m.now)
	}
	m.reportImageWait(c, im)
}

// imageBackoff is the back-off of the image of c, until it is over (L3.109).
func (m *machine) imageBackoff(c *podContainer) *pull.Backoff {
	if im := m.s.Images.Of(c.spec.Image); im != nil && m.now.Before(im.Until()) {
		return im
	}
	return nil
}

// reportImageWait reports the back-off of an image after the failure itself was visible.
func (m *machine) reportImageWait(c *podContainer, im *pull.Backoff) {
	m.wait(Wait{For: "image", Object: im.Image, Since: im.At, Until: im.Until(), LastErr: im.Message})
	if c.spec.ImagePullPolicy != corev1.PullAlways { // which is pulled even if it is present
		m.lookBy(m.stepTime(m.in.Observed.Taken).Add(lookEvery))
	}
	failure := waitingReason{Reason: im.Reason, Message: im.Message, At: im.At}
	visible := im.At.Add(settle)
	switch {
	case im.Reason == reasonNeverPull || im.Reason == reasonInspectError ||
		im.Reason == reasonInvalidImageName:
		c.record.Waiting = failure // checked again, not pulled again
	case m.now.Before(visible):
		m.wake(visible)
		if c.record.Waiting.Reason == "" {
			c.record.Waiting = failure
		}
	case c.record.Waiting.Reason != "ImagePullBackOff" || c.record.Waiting.At.Before(im.At):
		c.record.Waiting = waitingReason{
			Reason:  "ImagePullBackOff",
			Message: fmt.Sprintf("Back-off pulling image %q: %s: %s", im.Image, im.Reason, im.Message),
			At:      m.now,
		}
		m.normal(c, "BackOff", fmt.Sprintf("Back-off pulling image %q", im.Image))
		m.warning(c, "Failed", "Error: ImagePullBackOff")
	}
}

func (m *machine) imageState(image string) *ImageState {
	for i := range m.in.Observed.Images {
		if m.in.Observed.Images[i].Image == image {
			return &m.in.Observed.Images[i]
		}
	}
	return nil
}

// forgetRemoved clears the record of an image that was pulled for a start that failed and has been
// removed since; the next start pulls it again.
func (m *machine) forgetRemoved(c *podContainer) {
	forget := func(c *podContainer) {
		if im := m.imageState(c.spec.Image); im != nil && im.Ref == "" && im.Err == "" {
			c.record.Pulled = ""
		}
	}
	forget(c)
	for i := range m.volumes {
		if v := &m.volumes[i]; mountsVolume(c, v) {
			forget(v)
		}
	}
}

// pulling finds the pull of an image for any container of the pod.
func (m *machine) pulling(image string) *flight {
	for i := range m.s.InFlight {
		if f := &m.s.InFlight[i]; f.Op == opPull && f.Detail == image {
			return f
		}
	}
	return nil
}

func policyName(p corev1.PullPolicy) string {
	if p == "" {
		return string(corev1.PullIfNotPresent)
	}
	return string(p)
}

// truncate cuts a duration for a message, to milliseconds.
func truncate(d time.Duration) time.Duration { return d.Truncate(time.Millisecond) }
