package pods

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/base/journal"
	"carob/internal/core/podlife"
)

// timeline records what happens to one pod, each event once. Probe runs are
// left out unless their verdict differs from the run before. Used by the owner's
// goroutine only.
type timeline struct {
	to       journal.Recorder
	life     podlife.Life
	phase    corev1.PodPhase
	ready    corev1.ConditionStatus
	waits    []podlife.Wait
	began    map[podlife.Key]time.Time
	verdicts map[probeOf]podlife.ProbeVerdict
}

type probeOf struct {
	containerID string
	kind        podlife.ProbeType
}

func newTimeline(to journal.Recorder) timeline {
	return timeline{to: to, began: map[podlife.Key]time.Time{}, verdicts: map[probeOf]podlife.ProbeVerdict{}}
}

func (c *timeline) write(pod *corev1.Pod, e journal.Entry) {
	e.Namespace, e.Pod, e.UID = pod.Namespace, pod.Name, string(pod.UID)
	c.to.Record(e)
}

// ended records the ends of actions, and the probes that changed something.
func (c *timeline) ended(in podlife.Input) {
	for _, d := range in.Done {
		e := journal.Entry{Time: d.At, Kind: journal.ActionEnd, Key: string(d.Key)}
		if began, ok := c.began[d.Key]; ok {
			e.Duration = d.At.Sub(began)
			delete(c.began, d.Key)
		} else if d.Err != nil && d.Err.Reason == podlife.Aborted {
			continue // a cancelled probe has no result
		}
		if d.Err != nil {
			e.Error = d.Err.Reason
			if d.Err.Message != "" {
				e.Error += ": " + d.Err.Message
			}
		}
		if d.Pulled != nil {
			e.Detail = d.Pulled.Ref
		}
		c.write(in.Pod, e)
	}
	for _, p := range in.Probes {
		of := probeOf{p.ContainerID, p.Type}
		if last, ok := c.verdicts[of]; ok && last == p.Verdict {
			continue
		}
		c.verdicts[of] = p.Verdict
		c.write(in.Pod, journal.Entry{
			Time: p.At, Kind: journal.ActionEnd, Key: string(p.Key), Object: p.Container,
			Detail: string(p.Verdict) + tail(p.Output),
		})
	}
}

func tail(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}

// begun records the begin of an action.
func (c *timeline) begun(pod *corev1.Pod, b podlife.Begin, now time.Time) {
	if _, ok := b.Action.(podlife.RunProbe); ok {
		return
	}
	key := b.Action.Key()
	c.began[key] = now
	c.write(pod, journal.Entry{Time: now, Kind: journal.ActionBegin, Key: string(key), Object: objectOf(b.Action),
		Cause: b.Cause})
}

// decided records what a Step changed.
func (c *timeline) decided(in podlife.Input, out podlife.Output) {
	now := in.Now
	if out.Life != c.life {
		c.life = out.Life
		c.write(in.Pod, journal.Entry{Time: now, Kind: journal.Life, Key: string(out.Life)})
	}
	if !in.Gone && out.Status.Phase != c.phase {
		c.phase = out.Status.Phase
		c.write(in.Pod, journal.Entry{Time: now, Kind: journal.Status, Key: "phase", Cause: out.Status.Reason,
			Detail: string(out.Status.Phase)})
	}
	for i := range out.Status.Conditions {
		if cond := &out.Status.Conditions[i]; cond.Type == corev1.PodReady && cond.Status != c.ready && !in.Gone {
			c.ready = cond.Status
			c.write(in.Pod, journal.Entry{Time: now, Kind: journal.Status, Key: "Ready", Cause: cond.Reason,
				Detail: string(cond.Status)})
		}
	}
	for _, e := range out.Events {
		c.write(in.Pod, journal.Entry{Time: now, Kind: journal.Event, Key: e.Reason, Object: e.FieldPath,
			Detail: e.Message})
	}
	for _, w := range out.Waits {
		if !knownWait(c.waits, w) {
			c.write(in.Pod, journal.Entry{Time: now, Kind: journal.Wait, Key: w.For, Object: w.Object,
				Cause: w.LastErr})
		}
	}
	c.waits = out.Waits
}

func knownWait(waits []podlife.Wait, w podlife.Wait) bool {
	for _, k := range waits {
		if k.For == w.For && k.Object == w.Object && k.LastErr == w.LastErr && k.Since.Equal(w.Since) {
			return true
		}
	}
	return false
}

// objectOf is the container of an action.
func objectOf(a podlife.Action) string {
	switch a := a.(type) {
	case podlife.PullImage:
		return a.Container
	case podlife.StartContainer:
		return a.Container
	case podlife.RunProbe:
		return a.Container
	case podlife.RunHook:
		return a.Container
	case podlife.Resize:
		return a.Container
	case podlife.StopContainer:
		return a.Container
	case podlife.RemoveContainer:
		return a.Container
	default:
		return ""
	}
}

// gone records that the object was removed from the API.
func (c *timeline) gone(pod *corev1.Pod, now time.Time) {
	c.write(pod, journal.Entry{Time: now, Kind: journal.API, Key: "deleted"})
}
