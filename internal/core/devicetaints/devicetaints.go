// Package devicetaints decides which pods are evicted because a device that they use is tainted, when, and what
// the status of a DeviceTaintRule reports about it (KEP-5055). The controller devicetaints drives it. It does
// not decide which device a claim gets: the scheduler does.
//
// Contract: S9.62 and S9.63 in docs/spec/storage-and-node.md.
package devicetaints

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/base/seconds"
	"carob/internal/core/podclaims"
)

// Device is the name of a device in the cluster.
type Device struct{ Driver, Pool, Name string }

// Eviction is the decision that a pod, or all pods of a claim, must be evicted.
type Eviction struct {
	At    time.Time                     // the earliest of all taints that are not tolerated for ever
	Rules []*resourcev1.DeviceTaintRule // whose taints are among them, each once, by name
}

// Index holds the NoExecute taints of all devices. Make it with NewIndex. It keeps the objects that it receives
// and does not change them.
type Index struct {
	pools map[poolID]*pool
	rules map[string]*resourcev1.DeviceTaintRule // those with the effect NoExecute, by name
}

type poolID struct{ driver, name string }

// pool is what drivers publish of one pool. A pool whose slices are of two generations is being replaced: only the
// newest generation counts.
type pool struct {
	slices     map[string]published // by name of the slice
	generation int64                // the newest
}

type published struct {
	slice  *resourcev1.ResourceSlice
	taints map[string][]resourcev1.DeviceTaint // NoExecute only, by device; nil in most slices
}

// NewIndex returns an index without any taint.
func NewIndex() *Index {
	return &Index{pools: map[poolID]*pool{}, rules: map[string]*resourcev1.DeviceTaintRule{}}
}

// SetSlice replaces one state of a slice by the next; before is nil for a new slice, after for a
// deleted one. It returns the devices whose NoExecute taints have changed.
func (x *Index) SetSlice(before, after *resourcev1.ResourceSlice) []Device {
	var ids []poolID
	for _, s := range []*resourcev1.ResourceSlice{before, after} {
		if s == nil {
			continue
		}
		if id := idOf(s); !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	var changed []Device
	for _, id := range ids {
		p := x.pools[id]
		if p == nil {
			p = &pool{slices: map[string]published{}}
			x.pools[id] = p
		}
		var old, now published
		if before != nil && idOf(before) == id {
			old = p.slices[before.Name]
			delete(p.slices, before.Name)
		}
		if after != nil && idOf(after) == id {
			now = published{after, noExecute(after)}
			p.slices[after.Name] = now
		}
		was := p.generation
		p.generation = p.newest()
		if len(p.slices) == 0 {
			delete(x.pools, id)
		}
		for _, name := range p.changed(was, old, now) {
			changed = append(changed, Device{id.driver, id.name, name})
		}
	}
	slices.SortFunc(changed, func(a, b Device) int {
		return cmp.Or(strings.Compare(a.Driver, b.Driver), strings.Compare(a.Pool, b.Pool),
			strings.Compare(a.Name, b.Name))
	})
	return changed
}

func idOf(s *resourcev1.ResourceSlice) poolID { return poolID{s.Spec.Driver, s.Spec.Pool.Name} }

func noExecute(s *resourcev1.ResourceSlice) map[string][]resourcev1.DeviceTaint {
	var out map[string][]resourcev1.DeviceTaint
	for i := range s.Spec.Devices {
		d := &s.Spec.Devices[i]
		for _, t := range d.Taints {
			if t.Effect != resourcev1.DeviceTaintEffectNoExecute {
				continue
			}
			if out == nil {
				out = map[string][]resourcev1.DeviceTaint{}
			}
			out[d.Name] = append(out[d.Name], t)
		}
	}
	return out
}

func sameTaint(a, b resourcev1.DeviceTaint) bool {
	return a.Key == b.Key && a.Value == b.Value && a.Effect == b.Effect && a.TimeAdded.Equal(b.TimeAdded)
}

// newest is the newest generation of which there is a slice.
func (p *pool) newest() int64 {
	var newest int64 = math.MinInt64
	for _, s := range p.slices { // any order: the greatest
		newest = max(newest, s.slice.Spec.Pool.Generation)
	}
	return newest
}

// in returns the taints of a slice if its generation is the current one.
func (s published) in(generation int64) map[string][]resourcev1.DeviceTaint {
	if s.slice == nil || s.slice.Spec.Pool.Generation != generation {
		return nil
	}
	return s.taints
}

// changed returns the devices whose taints differ after the slice old was replaced by now; was is the
// generation that was current before. Other slices are read only if the generation has changed.
func (p *pool) changed(was int64, old, now published) []string {
	before, after := maps.Clone(old.in(was)), maps.Clone(now.in(p.generation))
	if was != p.generation {
		for _, name := range slices.Sorted(maps.Keys(p.slices)) {
			s := p.slices[name]
			if now.slice != nil && now.slice.Name == name {
				continue
			}
			before, after = merge(before, s.in(was)), merge(after, s.in(p.generation))
		}
	}
	var out []string
	for device, taints := range before { // any order: the caller sorts
		if !slices.EqualFunc(taints, after[device], sameTaint) {
			out = append(out, device)
		}
	}
	for device := range after { // any order: the caller sorts
		if _, there := before[device]; !there {
			out = append(out, device)
		}
	}
	return out
}

func merge(into, from map[string][]resourcev1.DeviceTaint) map[string][]resourcev1.DeviceTaint {
	if into == nil {
		return maps.Clone(from)
	}
	maps.Copy(into, from)
	return into
}

// of returns the taints of a device. If two slices publish a device, which no driver may do, the
// first slice by name counts.
func (p *pool) of(device string) []resourcev1.DeviceTaint {
	var out []resourcev1.DeviceTaint
	first := ""
	for name, s := range p.slices { // any order: the first by name
		if taints, there := s.in(p.generation)[device]; there && (out == nil || name < first) {
			out, first = taints, name
		}
	}
	return out
}

// SetRule takes a new state of a rule.
func (x *Index) SetRule(r *resourcev1.DeviceTaintRule) {
	if r.Spec.Taint.Effect == resourcev1.DeviceTaintEffectNoExecute {
		x.rules[r.Name] = r
	} else {
		delete(x.rules, r.Name)
	}
}

// RemoveRule removes the rule with this name.
func (x *Index) RemoveRule(name string) { delete(x.rules, name) }

// Empty reports whether no device has a taint.
func (x *Index) Empty() bool {
	if len(x.rules) > 0 {
		return false
	}
	for _, p := range x.pools { // any order: whether there is one
		for _, s := range p.slices { // any order: whether there is one
			if len(s.in(p.generation)) > 0 {
				return false
			}
		}
	}
	return true
}

// ForClaim returns when the pods that use a claim must be evicted; nil for never.
func (x *Index) ForClaim(claim *resourcev1.ResourceClaim) *Eviction {
	if claim.Status.Allocation == nil {
		return nil
	}
	var out *Eviction
	for i := range claim.Status.Allocation.Devices.Results {
		d := &claim.Status.Allocation.Devices.Results[i]
		if p := x.pools[poolID{d.Driver, d.Pool}]; p != nil {
			for _, t := range p.of(d.Device) {
				if at, evicts := evictAt(t, d.Tolerations); evicts {
					out = join(out, &Eviction{At: at})
				}
			}
		}
		for _, r := range x.rules { // any order: join takes the earliest, and sorts
			if !Selects(r, Device{d.Driver, d.Pool, d.Device}) {
				continue
			}
			if at, evicts := evictAt(r.Spec.Taint, d.Tolerations); evicts {
				out = join(out, &Eviction{At: at, Rules: []*resourcev1.DeviceTaintRule{r}})
			}
		}
	}
	return out
}

// ForPod returns when a pod must be evicted; nil for never. get returns the claim of a name in the pod's
// namespace, nil if there is none. A claim counts only if this very pod has reserved it. The claim that the
// scheduler makes for extended resources never counts, as upstream.
func (x *Index) ForPod(pod *corev1.Pod, get func(name string) *resourcev1.ResourceClaim) *Eviction {
	if pod.Spec.NodeName == "" {
		return nil
	}
	var out *Eviction
	for i := range pod.Spec.ResourceClaims {
		n := podclaims.Name(pod, &pod.Spec.ResourceClaims[i])
		if n.Claim == "" {
			continue
		}
		claim := get(n.Claim)
		if claim == nil || n.Made && !podclaims.OwnedBy(pod, claim) || !podclaims.IsReserved(claim, pod) {
			continue
		}
		if e := x.ForClaim(claim); e != nil {
			out = join(out, e)
		}
	}
	return out
}

// evictAt returns when a NoExecute taint evicts. Of several tolerations that match, the shortest counts, unless one
// has no limit. A toleration that names no effect lets the scheduler choose the device, and does not stop an
// eviction, as upstream. A taint without a time, which the API server never stores, evicts no pod.
func evictAt(t resourcev1.DeviceTaint, tolerations []resourcev1.DeviceToleration) (time.Time, bool) {
	if t.TimeAdded == nil {
		return time.Time{}, false
	}
	bound, tolerated := int64(math.MaxInt64), false
	for i := range tolerations {
		o := &tolerations[i]
		if o.Effect != resourcev1.DeviceTaintEffectNoExecute || !matches(o, t) {
			continue
		}
		if o.TolerationSeconds == nil {
			return time.Time{}, false
		}
		bound, tolerated = min(bound, max(*o.TolerationSeconds, 0)), true
	}
	if !tolerated {
		return t.TimeAdded.Time, true
	}
	return t.TimeAdded.Add(seconds.Duration(bound)), true
}

func matches(o *resourcev1.DeviceToleration, t resourcev1.DeviceTaint) bool {
	if o.Key != "" && o.Key != t.Key {
		return false
	}
	switch o.Operator {
	case "", resourcev1.DeviceTolerationOpEqual:
		return o.Value == t.Value
	case resourcev1.DeviceTolerationOpExists:
		return true
	}
	return false
}

// join is the earlier of two evictions, with the rules of both. It changes neither.
func join(a, b *Eviction) *Eviction {
	if a == nil {
		return b
	}
	out := &Eviction{At: a.At, Rules: a.Rules}
	if b.At.Before(a.At) {
		out.At = b.At
	}
	if len(b.Rules) > 0 {
		rules := map[string]*resourcev1.DeviceTaintRule{}
		for _, r := range slices.Concat(a.Rules, b.Rules) {
			rules[r.Name] = r
		}
		out.Rules = nil
		for _, name := range slices.Sorted(maps.Keys(rules)) {
			out.Rules = append(out.Rules, rules[name])
		}
	}
	return out
}

// Selects reports whether a rule taints a device: all fields that its selector sets must be equal. A rule
// without a selector taints none.
func Selects(r *resourcev1.DeviceTaintRule, d Device) bool {
	s := r.Spec.DeviceSelector
	return s != nil && (s.Driver == nil || *s.Driver == d.Driver) && (s.Pool == nil || *s.Pool == d.Pool) &&
		(s.Device == nil || *s.Device == d.Name)
}

// SameTaint reports whether two states of a rule have the same effect on the same devices.
func SameTaint(a, b *resourcev1.DeviceTaintRule) bool {
	if !sameTaint(a.Spec.Taint, b.Spec.Taint) {
		return false
	}
	x, y := a.Spec.DeviceSelector, b.Spec.DeviceSelector
	if x == nil || y == nil {
		return x == y
	}
	same := func(p, q *string) bool { return p == nil && q == nil || p != nil && q != nil && *p == *q }
	return same(x.Driver, y.Driver) && same(x.Pool, y.Pool) && same(x.Device, y.Device)
}

// Condition returns the condition of a rule's status of the type EvictionInProgress; nil if it has none.
func Condition(r *resourcev1.DeviceTaintRule) *metav1.Condition {
	for i := range r.Status.Conditions {
		if c := &r.Status.Conditions[i]; c.Type == resourcev1.DeviceTaintConditionEvictionInProgress {
			return c
		}
	}
	return nil
}
