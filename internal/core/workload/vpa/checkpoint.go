package vpa

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// checkpointVersion is the version of the format of checkpoints, which is upstream's.
const checkpointVersion = "v3"

// OpenWindows is the annotation of a checkpoint with the windows of memory and their peaks, by pod.
// Upstream's format does not have them, so that no window counts twice; carob adds them, so that a
// restart changes nothing. Upstream's recommender ignores it.
const OpenWindows = "vpa.carob.dev/open-windows"

// mostWindows limits the pods in OpenWindows; for others, the peak of the current window is added
// to the histogram.
const mostWindows = 500

// ahead is how far times in a checkpoint may be in the future: up to the rounded end of a window.
const ahead = 3 * 24 * time.Hour

// Checkpoints returns the usage of an autoscaler's containers, to store over a restart. The objects
// have no names: see CheckpointName.
func (m *Model) Checkpoints(name Name, now time.Time) []Checkpoint {
	t := m.targets[name]
	if t == nil {
		return nil
	}
	used := m.used(t)
	var out []Checkpoint
	for _, c := range slices.Sorted(maps.Keys(used)) {
		u, open := used[c], map[string]peaks{}
		for _, p := range slices.SortedFunc(maps.Keys(m.pods), Name.compare) {
			pod := m.pods[p]
			if !t.matches(p.Namespace, pod.labels) || pod.containers[c] == nil || len(open) == mostWindows {
				continue
			}
			w := pod.containers[c].peaks
			if w.End.IsZero() {
				continue
			}
			if w.Counted = !now.Before(w.End); !w.Counted {
				u.memory.subtract(float64(w.highest()), 1, w.End)
			}
			open[p.Name] = w
		}
		// Windows of pods that have not been observed again since a restart stay open.
		for _, pod := range slices.Sorted(maps.Keys(t.open[c])) {
			if _, there := open[pod]; !there && len(open) < mostWindows {
				open[pod] = t.open[c][pod]
			}
		}
		p := Checkpoint{
			TypeMeta:   metav1.TypeMeta{APIVersion: Group + "/" + Version, Kind: "VerticalPodAutoscalerCheckpoint"},
			ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace},
			Spec:       CheckpointSpec{VPAObjectName: name.Name, ContainerName: c},
			Status: CheckpointStatus{LastUpdateTime: metav1.NewTime(now), Version: checkpointVersion,
				CPUHistogram: u.cpu.save(), MemoryHistogram: u.memory.save(),
				FirstSampleStart: metav1.NewTime(u.first), LastSampleStart: metav1.NewTime(u.last),
				TotalSamplesCount: u.samples},
		}
		if len(open) > 0 {
			text, err := json.Marshal(open)
			if err == nil { // these times can always be encoded
				p.Annotations = map[string]string{OpenWindows: string(text)}
			}
		}
		out = append(out, p)
	}
	return out
}

// Load restores a checkpoint from before a restart. The autoscaler must be known.
func (m *Model) Load(c *Checkpoint, now time.Time) error {
	t := m.targets[Name{c.Namespace, c.Spec.VPAObjectName}]
	if t == nil {
		return fmt.Errorf("checkpoint %s/%s: there is no VerticalPodAutoscaler %q", c.Namespace, c.Name,
			c.Spec.VPAObjectName)
	}
	u, err := c.Status.load(now)
	if err != nil {
		return fmt.Errorf("checkpoint %s/%s: %w", c.Namespace, c.Name, err)
	}
	if t.initial == nil {
		t.initial, t.open = map[string]*usage{}, map[string]map[string]peaks{}
	}
	t.initial[c.Spec.ContainerName] = u
	open := map[string]peaks{}
	if text := c.Annotations[OpenWindows]; text != "" {
		if err := json.Unmarshal([]byte(text), &open); err != nil {
			return fmt.Errorf("checkpoint %s/%s: annotation %s: %w", c.Namespace, c.Name, OpenWindows, err)
		}
	}
	maps.DeleteFunc(open, func(_ string, p peaks) bool {
		late := now.Add(ahead)
		return p.Usage < 0 || p.OOM < 0 || p.End.IsZero() || p.End.After(late) || p.Last.After(late) ||
			p.Killed.After(late)
	})
	t.open[c.Spec.ContainerName] = open
	return nil
}

func (s *CheckpointStatus) load(now time.Time) (*usage, error) {
	if s.Version != checkpointVersion {
		return nil, fmt.Errorf("version %q is unknown, only %q is known", s.Version, checkpointVersion)
	}
	for _, at := range []time.Time{s.CPUHistogram.ReferenceTimestamp.Time, s.MemoryHistogram.ReferenceTimestamp.Time,
		s.FirstSampleStart.Time, s.LastSampleStart.Time} {
		if at.After(now.Add(ahead)) {
			return nil, fmt.Errorf("time %v is in the future", at)
		}
	}
	if s.TotalSamplesCount < 0 {
		return nil, errors.New("a negative number of samples")
	}
	u := newUsage(now)
	u.first, u.last, u.samples = s.FirstSampleStart.Time, s.LastSampleStart.Time, s.TotalSamplesCount
	var err error
	if u.cpu, err = loadHistogram(cpuScale(), &s.CPUHistogram); err != nil {
		return nil, fmt.Errorf("processor time: %w", err)
	}
	if u.memory, err = loadHistogram(memoryScale(), &s.MemoryHistogram); err != nil {
		return nil, fmt.Errorf("memory: %w", err)
	}
	return u, nil
}

// reopen restores the window of a container that is first observed after a restart.
func (m *Model) reopen(pod Name, l labels.Set, name string, c *container, to *sharedUsage) {
	for _, t := range slices.SortedFunc(maps.Keys(m.targets), Name.compare) {
		w, there := m.targets[t].open[name][pod.Name]
		if !there || !m.targets[t].matches(pod.Namespace, l) {
			continue
		}
		delete(m.targets[t].open[name], pod.Name)
		if c.peaks.End.IsZero() { // two autoscalers of one pod have the same window
			if !w.Counted {
				to.memory.add(float64(w.highest()), 1, w.End)
			}
			w.Counted = false
			c.peaks = w
		}
	}
}

// close adds the windows of deleted pods to the histograms.
func (m *Model) close() {
	for _, name := range slices.SortedFunc(maps.Keys(m.targets), Name.compare) {
		t := m.targets[name]
		for _, c := range slices.Sorted(maps.Keys(t.open)) {
			for _, pod := range slices.Sorted(maps.Keys(t.open[c])) {
				if w := t.open[c][pod]; !w.Counted {
					t.initial[c].memory.add(float64(w.highest()), 1, w.End)
				}
			}
		}
		t.open = nil
	}
}

// CheckpointName returns the name of a checkpoint, like upstream, VPA-CONTAINER, or with a hash
// when that is no valid name or the checkpoint of another autoscaler has it, which taken reports.
func CheckpointName(s CheckpointSpec, taken func(name string) bool) string {
	name := s.VPAObjectName + "-" + s.ContainerName
	if len(name) <= 253 && !taken(name) {
		return name
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%s/%s", len(s.VPAObjectName), s.VPAObjectName, s.ContainerName)
	return fmt.Sprintf("%.*s-%016x", 253-17, s.VPAObjectName, h.Sum64())
}
