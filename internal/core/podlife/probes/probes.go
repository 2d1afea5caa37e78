// Package probes counts the results of a container's probes against their thresholds.
//
// It is pure. core/podlife decides which probes run and the effect of their results on the
// container.
//
// Contract: docs/spec/pod-lifecycle.md, L5.11–L5.16.
package probes

import (
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Result is the result of a probe after its thresholds (L5.15).
type Result uint8

// The results of a probe.
const (
	None    Result = iota // no run since the agent started: the published result from before still holds
	Unknown               // a startup probe that has not succeeded or failed yet
	Success
	Failure
)

// maxErrors is the number of consecutive errors of the prober that end an attempt (L5.16).
const maxErrors = 3

// Record is the state of one probe of one container, over all instances.
//
//	idle ──due──▶ in flight ──outcome──▶ idle, or held until there is a new instance
//
// Count and Raw survive a restart of the container (L5.12): two failures before a crash and
// one after it make three.
type Record struct {
	ContainerID string // the instance that Result belongs to
	Result      Result
	Raw         Result // of the last run
	Held        bool   // no more runs for this instance
	Count       int32  // consecutive runs that ended with Raw
	Errors      int32  // consecutive errors of the prober
	Runs        int32
	Next        time.Time // when the next run is due
}

// Reset starts over for a new instance; Raw and Count stay (L5.12).
func (r *Record) Reset(containerID string, result Result, next time.Time) {
	*r = Record{ContainerID: containerID, Result: result, Raw: r.Raw, Count: r.Count, Runs: r.Runs, Next: next}
}

// Begin counts a run that starts now, and sets the time of the next one.
func (r *Record) Begin(now time.Time, period time.Duration) {
	r.Runs++
	if r.Next = r.Next.Add(period); !r.Next.After(now) {
		r.Next = now.Add(period)
	}
}

// Errored counts a run whose prober failed. It reports whether the probe runs again at once.
func (r *Record) Errored(now time.Time) (again bool) {
	r.Errors++
	if r.Errors < maxErrors {
		r.Next = now
		return true
	}
	r.Errors = 0
	return false
}

// Ran counts a run that ended with raw, which is Success or Failure. It reports whether the
// threshold is reached, which makes raw the result.
func (r *Record) Ran(spec *corev1.Probe, raw Result) (reached bool) {
	r.Errors = 0
	if r.Raw == raw {
		r.Count++
	} else {
		r.Raw, r.Count = raw, 1
	}
	threshold := orDefault(spec.SuccessThreshold, 1)
	if raw == Failure {
		threshold = orDefault(spec.FailureThreshold, 3)
	}
	if r.Count < threshold {
		return false
	}
	r.Result = raw
	return true
}

// Steady reports whether one more success has no effect but on Count, which has reached its threshold.
func (r *Record) Steady() bool {
	return r.Result == Success && r.Raw == Success && r.Errors == 0 && !r.Held
}

// Hold ends the runs for this instance and resets the count.
func (r *Record) Hold() { r.Held, r.Raw, r.Count = true, None, 0 }

// Period is the time between two runs.
func Period(spec *corev1.Probe) time.Duration {
	return time.Duration(orDefault(spec.PeriodSeconds, 10)) * time.Second
}

// Spread returns a part of the period, always the same for the same probe. It keeps the
// probes of a node from running at the same moment after a restart of the agent (L5.11).
func Spread(uid, container, probe string, period time.Duration) time.Duration {
	h := fnv.New32a()
	h.Write([]byte(uid))
	h.Write([]byte(container))
	h.Write([]byte(probe))
	return time.Duration(h.Sum32()%1000) * period / 1000
}

func orDefault(v, d int32) int32 {
	if v > 0 {
		return v
	}
	return d
}
