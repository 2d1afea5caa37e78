// Package eviction decides when a node is short of memory, disk, or process IDs, and which pods
// (L7.L, L7.M) and images (L7.133) are removed then. The node agent measures and acts; nothing here
// reads a clock or the machine.
//
// Contract: docs/spec/pod-lifecycle.md.
package eviction

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Signal is a resource that can run short (L7.145).
type Signal string

// The signals of a node. Writable layers of containers are on the file system of images, so
// containerfs is imagefs.
const (
	MemoryAvailable   Signal = "memory.available"
	NodeFsAvailable   Signal = "nodefs.available"
	NodeFsInodesFree  Signal = "nodefs.inodesFree"
	ImageFsAvailable  Signal = "imagefs.available"
	ImageFsInodesFree Signal = "imagefs.inodesFree"
	PIDAvailable      Signal = "pid.available"
)

func signals() []Signal {
	return []Signal{MemoryAvailable, NodeFsAvailable, NodeFsInodesFree, ImageFsAvailable, ImageFsInodesFree,
		PIDAvailable}
}

// Condition is the node's pressure condition for a signal (L7.146).
func (s Signal) Condition() corev1.NodeConditionType {
	switch s {
	case MemoryAvailable:
		return corev1.NodeMemoryPressure
	case PIDAvailable:
		return corev1.NodePIDPressure
	default:
		return corev1.NodeDiskPressure
	}
}

// Resource is the name of the resource in messages (L7.149).
func (s Signal) Resource() corev1.ResourceName {
	switch s {
	case MemoryAvailable:
		return corev1.ResourceMemory
	case PIDAvailable:
		return "pids"
	case NodeFsInodesFree, ImageFsInodesFree:
		return "inodes"
	default:
		return corev1.ResourceEphemeralStorage
	}
}

// Amount is a quantity or a share of the capacity.
type Amount struct {
	Quantity *resource.Quantity // nil: Share applies
	Share    float64            // 0–1
}

// Of returns the amount for a capacity, in bytes or as a count.
func (a Amount) Of(capacity int64) int64 {
	if a.Quantity != nil {
		return a.Quantity.Value()
	}
	return int64(float64(capacity) * a.Share)
}

func (a Amount) isZero() bool { return a.Quantity == nil && a.Share == 0 }

// Threshold is a lower limit for a signal.
type Threshold struct {
	Signal  Signal
	Min     Amount
	Grace   time.Duration // how long it must be reached before pods are evicted; 0: a hard threshold
	Reclaim Amount        // once reached, the threshold is left at Min plus this amount
}

// Config defines when and how pods are evicted.
type Config struct {
	Thresholds []Threshold
	MaxGrace   time.Duration // grace period of pods evicted because of a soft threshold
	Transition time.Duration // minimum duration of a pressure after the threshold was last reached (L7.146)
}

// DefaultTransition is upstream's five minutes (L7.146).
const DefaultTransition = 5 * time.Minute

// DefaultHard is upstream's hard thresholds (L7.145), but with 5 % of a disk instead of 10 and 15
// %, which would report pressure with 75 of a laptop's 500 GB free.
func DefaultHard() map[string]string {
	return map[string]string{
		string(MemoryAvailable): "100Mi", string(NodeFsAvailable): "5%", string(NodeFsInodesFree): "5%",
		string(ImageFsAvailable): "5%", string(ImageFsInodesFree): "5%",
	}
}

// Settings are the thresholds as users write them: signals with a quantity or a percentage. A nil
// Hard means DefaultHard.
type Settings struct {
	Hard, Soft, SoftGrace, MinReclaim map[string]string
}

// ParseList parses "memory.available<100Mi,nodefs.available<10%", with sign between signal and
// value. An empty string is not a valid list.
func ParseList(text, sign string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	list := map[string]string{}
	for item := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(item, sign)
		if _, twice := list[name]; !ok || name == "" || value == "" || twice {
			return nil, fmt.Errorf("%q is not SIGNAL%sVALUE, each signal once", item, sign)
		}
		list[name] = value
	}
	return list, nil
}

// Parse validates the settings and returns the thresholds, in the order of the signals.
func Parse(s Settings) ([]Threshold, error) {
	if s.Hard == nil {
		s.Hard = DefaultHard()
	}
	var all []Threshold
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, given := range []map[string]string{s.Hard, s.Soft, s.SoftGrace, s.MinReclaim} {
		for _, name := range slices.Sorted(maps.Keys(given)) {
			if !slices.Contains(signals(), Signal(name)) {
				fail("%q is not a signal; there are %s", name, join(signals()))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.SoftGrace)) {
		if _, ok := s.Soft[name]; !ok {
			fail("a grace period for %s needs a soft threshold for it", name)
		}
	}
	for _, signal := range signals() {
		var reclaim Amount
		if text, ok := s.MinReclaim[string(signal)]; ok {
			var err error
			if reclaim, err = parseAmount(text); err != nil {
				fail("minimum reclaim of %s: %w", signal, err)
			}
		}
		for _, soft := range []bool{false, true} {
			t := Threshold{Signal: signal, Reclaim: reclaim}
			given := s.Hard
			if soft {
				given = s.Soft
			}
			text, ok := given[string(signal)]
			if !ok {
				continue
			}
			var err error
			if t.Min, err = parseAmount(text); err != nil {
				fail("threshold of %s: %w", signal, err)
			}
			if soft {
				if t.Grace, err = time.ParseDuration(s.SoftGrace[string(signal)]); err != nil || t.Grace <= 0 {
					fail("the soft threshold of %s needs a grace period such as 1m30s", signal)
				}
			}
			if !t.Min.isZero() { // 0% and 100% disable a threshold
				all = append(all, t)
			}
		}
	}
	return all, errors.Join(errs...)
}

func join(list []Signal) string {
	names := make([]string, len(list))
	for i, s := range list {
		names[i] = string(s)
	}
	return strings.Join(names, ", ")
}

// parseAmount parses "100Mi" or "10%"; 0% and 100% disable the threshold.
func parseAmount(text string) (Amount, error) {
	if number, ok := strings.CutSuffix(text, "%"); ok {
		share, err := strconv.ParseFloat(number, 64)
		if err != nil || !(share >= 0 && share <= 100) { // NaN is neither
			return Amount{}, fmt.Errorf("%q is not a percentage from 0%% to 100%%", text)
		}
		if share == 100 {
			share = 0
		}
		return Amount{Share: share / 100}, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 {
		return Amount{}, fmt.Errorf("%q is neither a quantity such as 100Mi nor a percentage", text)
	}
	if q.CmpInt64(math.MaxInt64) > 0 { // as a number it would be another one
		return Amount{}, fmt.Errorf("%q is more than any machine can have", text)
	}
	return Amount{Quantity: &q}, nil
}

// Observation is the amount of a resource that is available.
type Observation struct {
	Signal              Signal
	Available, Capacity int64 // bytes or a count
}

func find(all []Observation, s Signal) (Observation, bool) {
	i := slices.IndexFunc(all, func(o Observation) bool { return o.Signal == s })
	if i < 0 || all[i].Capacity <= 0 { // some file systems do not count inodes
		return Observation{}, false
	}
	return all[i], true
}

// State is kept between two checks. The zero value is the initial state.
type State struct {
	met  []met
	seen []pressed
}

// met is a threshold that has been reached and not left since.
type met struct {
	of    Threshold
	since time.Time
}

// pressed is a pressure and when its threshold was last reached.
type pressed struct {
	Pressure        // as it is now
	past     string // its reason once the threshold is left
	last     time.Time
}

// Pressure is an active pressure condition of a node. Why is the reason with the name of the
// resource, without amounts that change from check to check.
type Pressure struct {
	Kind corev1.NodeConditionType
	Why  string
}

// Verdict is the result of a check.
type Verdict struct {
	Pressures []Pressure  // active now
	Due       []Threshold // thresholds for which pods must be evicted, in order
	Wake      time.Time   // when a soft threshold becomes due, unless it is left before; zero: none
}

// Look evaluates a check of the node (L7.146, L7.147).
func Look(s State, c Config, all []Observation, now time.Time) (State, Verdict) {
	var next State
	var v Verdict
	for _, t := range c.Thresholds {
		since := now
		i := slices.IndexFunc(s.met, func(m met) bool { return m.of.Signal == t.Signal && m.of.Grace == t.Grace })
		if i >= 0 {
			since = s.met[i].since
		}
		if !Hit(t, all, i >= 0) {
			continue
		}
		next.met = append(next.met, met{of: t, since: since})
		next.press(pressed{Pressure{t.Signal.Condition(), t.why(all)}, t.past(all, c.Transition), now})
		if due := since.Add(t.Grace); !now.Before(due) {
			v.Due = append(v.Due, t)
		} else if v.Wake.IsZero() || due.Before(v.Wake) {
			v.Wake = due
		}
	}
	for _, p := range s.seen {
		if now.Sub(p.last) < c.Transition {
			p.Why = p.past
			next.press(p)
		}
	}
	for _, kind := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
		corev1.NodePIDPressure} {
		if i := slices.IndexFunc(next.seen, func(p pressed) bool { return p.Kind == kind }); i >= 0 {
			v.Pressures = append(v.Pressures, next.seen[i].Pressure)
		}
	}
	// Memory first, hard thresholds before soft ones (L7.147).
	slices.SortStableFunc(v.Due, func(a, b Threshold) int {
		return cmp.Or(cmp.Compare(order(a), order(b)), cmp.Compare(a.Grace, b.Grace))
	})
	return next, v
}

func order(t Threshold) int {
	if t.Signal == MemoryAvailable {
		return 0
	}
	return 1
}

func (s *State) press(p pressed) {
	i := slices.IndexFunc(s.seen, func(o pressed) bool { return o.Kind == p.Kind })
	switch {
	case i < 0:
		s.seen = append(s.seen, p)
	case p.last.After(s.seen[i].last):
		s.seen[i].last = p.last
	}
}

// why describes a threshold that is reached, or not left because of its minimum reclaim.
func (t Threshold) why(all []Observation) string {
	o, _ := find(all, t.Signal)
	if o.Available < t.Min.Of(o.Capacity) {
		return fmt.Sprintf("%s is below %s", t.Signal, t.quantity(t.Min.Of(o.Capacity)))
	}
	return fmt.Sprintf("%s was below %s and is below %s, which the minimum reclaim requires", t.Signal,
		t.quantity(t.Min.Of(o.Capacity)), t.quantity(t.leave(o.Capacity)))
}

// past describes a threshold that was reached.
func (t Threshold) past(all []Observation, transition time.Duration) string {
	o, _ := find(all, t.Signal)
	return fmt.Sprintf("%s was below %s in the last %s", t.Signal, t.quantity(t.leave(o.Capacity)), transition)
}

func (t Threshold) quantity(n int64) string { return quantity(n, t.Signal.Resource()) }

// leave is how much must be available so that a threshold that was reached is left.
func (t Threshold) leave(capacity int64) int64 {
	more := t.Reclaim.Of(capacity)
	return min(t.Min.Of(capacity), math.MaxInt64-more) + more // a quantity may be as large as a number can be
}

// Hit reports whether a threshold is reached; one that was reached before ends only when its
// minimum reclaim is available, too.
func Hit(t Threshold, all []Observation, before bool) bool {
	o, ok := find(all, t.Signal)
	if !ok {
		return false
	}
	if before {
		return o.Available < t.leave(o.Capacity)
	}
	return o.Available < t.Min.Of(o.Capacity)
}
