package vpa

import "time"

// window is the length of the windows of memory peaks (W9.25); kept is how long usage without new
// samples is kept (W9.38).
const (
	window = 24 * time.Hour
	kept   = 8 * window
)

// cpuWeight is the weight of a CPU sample (W9.24).
const cpuWeight = 0.1

// An OOM kill counts as more memory than was used, by the larger of these (W9.27).
const (
	oomRatio = 1.2
	oomLeast = 100 << 20 // bytes
)

// most is the largest recommended amount, milli-cores or bytes (W9.29).
const most = 1e14

// amount rounds down, and limits the number to the range of recommendations.
func amount(x float64) int64 {
	switch {
	case x > most:
		return most
	case x > 0:
		return int64(x)
	}
	return 0
}

// usage is the usage of containers of one name.
type usage struct {
	cpu, memory *histogram
	first, last time.Time // samples of processor time
	samples     int       // of processor time
	made        time.Time
}

func newUsage(now time.Time) *usage {
	return &usage{cpu: newHistogram(cpuScale()), memory: newHistogram(memoryScale()), made: now}
}

func (u *usage) addCPU(milli int64, at time.Time) {
	u.cpu.add(float64(milli)/1000, cpuWeight, at)
	if at.After(u.last) {
		u.last = at
	}
	if u.first.IsZero() || at.Before(u.first) {
		u.first = at
	}
	u.samples++
}

// merge adds the usage of other containers.
func (u *usage) merge(o *usage) {
	u.cpu.merge(o.cpu)
	u.memory.merge(o.memory)
	if u.first.IsZero() || !o.first.IsZero() && o.first.Before(u.first) {
		u.first = o.first
	}
	if o.last.After(u.last) {
		u.last = o.last
	}
	u.samples += o.samples
}

// expired reports whether there have been no samples for the time kept.
func (u *usage) expired(now time.Time) bool {
	if u.samples == 0 {
		return now.Sub(u.made) >= kept
	}
	return now.Sub(u.last) >= kept
}

// container is one container of a pod, with its last samples.
type container struct {
	request int64 // memory, bytes
	cpuAt   time.Time
	peaks   peaks
}

// peaks is the running window of a container's memory. Its highest peak is in the histogram, at
// the time End.
type peaks struct {
	End    time.Time `json:"end,omitzero"`
	Usage  int64     `json:"usage,omitempty"` // highest measured, bytes
	OOM    int64     `json:"oom,omitempty"`   // highest after an OOM kill, bytes
	Last   time.Time `json:"last,omitzero"`   // newest sample
	Killed time.Time `json:"killed,omitzero"` // newest OOM kill
	// Counted marks, in a checkpoint, that the window has ended and its peak is in the histogram.
	Counted bool `json:"counted,omitempty"`
}

func (p *peaks) highest() int64 { return max(p.Usage, p.OOM) }

// addCPU adds a sample if it is newer than the last one (W9.24).
func (c *container) addCPU(to *usage, milli int64, at time.Time) bool {
	if milli < 0 || !at.After(c.cpuAt) {
		return false
	}
	to.addCPU(milli, at)
	c.cpuAt = at
	return true
}

// addMemory adds a sample: a higher one replaces the peak of the window (W9.25).
func (c *container) addMemory(to *usage, bytes int64, at time.Time, killed bool) bool {
	p := &c.peaks
	if bytes < 0 || !killed && at.Before(p.Last) {
		return false
	}
	p.Last = at
	if p.End.IsZero() {
		p.End = at
	}
	if at.Before(p.End) {
		old := p.highest()
		if old == 0 || bytes <= old {
			return true
		}
		to.memory.subtract(float64(old), 1, p.End)
	} else {
		p.End = p.End.Add(at.Sub(p.End).Truncate(window) + window)
		p.Usage, p.OOM = 0, 0
	}
	to.memory.add(float64(bytes), 1, p.End)
	if killed {
		p.OOM = bytes
	} else {
		p.Usage = bytes
	}
	return true
}

// addOOM records that the container was OOM-killed; requested is its request at that time (W9.27).
func (c *container) addOOM(to *usage, requested int64, at time.Time) {
	if !c.peaks.Last.IsZero() && at.Before(c.peaks.Last.Add(-window)) {
		return
	}
	// The peak of an earlier kill is ignored, so that repeated kills do not raise it without limit.
	had := max(requested, c.peaks.Usage)
	c.addMemory(to, max(had+oomLeast, amount(float64(had)*oomRatio)), at, true)
}
