package vpa

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Pass is the interval of the recommender and the updater (W9.20, W9.50).
const Pass = time.Minute

// collectEvery is the interval of the removal of expired usage.
const collectEvery = time.Hour

// Name is the namespace and name of an object.
type Name struct{ Namespace, Name string }

// Target is an autoscaler with its resolved targetRef.
type Target struct {
	VPA *VerticalPodAutoscaler
	// Selector of the pods; nil if there is none, for the reason in Problem.
	Selector labels.Selector
	Problem  string
}

// Sample is the usage of a container in the time before At.
type Sample struct {
	Pod       Name
	Container string
	At        time.Time
	CPU       int64 // milli-cores
	Memory    int64 // bytes
}

// Model is the state of the recommender. It is not safe for concurrent use.
type Model struct {
	targets   map[Name]*target
	pods      map[Name]*podUsage
	usage     map[usageKey]*sharedUsage
	collected time.Time
}

// target is an autoscaler and the usage in its checkpoints.
type target struct {
	Target
	initial map[string]*usage           // by container
	open    map[string]map[string]peaks // by container and pod: open windows of a checkpoint
}

// usageKey: all containers of one name in pods with the same labels share their usage, so that a
// new pod begins with the usage of its predecessors (W9.21).
type usageKey struct{ namespace, labels, container string }

type sharedUsage struct {
	*usage
	labels labels.Set
}

type podUsage struct {
	labels     labels.Set
	text       string // of the labels
	init       map[string]bool
	containers map[string]*container
}

// NewModel returns a model without samples.
func NewModel() *Model {
	return &Model{targets: map[Name]*target{}, pods: map[Name]*podUsage{}, usage: map[usageKey]*sharedUsage{}}
}

// SetTargets sets the autoscalers. The usage of others is removed.
func (m *Model) SetTargets(all []Target) {
	left := m.targets
	m.targets = make(map[Name]*target, len(all))
	for _, t := range all {
		name := Name{t.VPA.Namespace, t.VPA.Name}
		known := left[name]
		if known == nil || known.VPA.UID != t.VPA.UID {
			known = &target{}
		}
		known.Target = t
		m.targets[name] = known
	}
}

// matches reports whether the autoscaler's selector fits pods with labels.
func (t *target) matches(namespace string, l labels.Set) bool {
	return t.Selector != nil && t.VPA.Namespace == namespace && t.Selector.Matches(l)
}

func (m *Model) wanted(namespace string, l labels.Set) bool {
	for _, t := range m.targets { // any order: one match is enough
		if t.matches(namespace, l) {
			return true
		}
	}
	return false
}

// SetPods sets the pods of the autoscalers' targets, and records OOM kills in their statuses.
// Pending pods have no usage yet.
func (m *Model) SetPods(pods []*corev1.Pod, now time.Time) {
	here := make(map[Name]bool, len(pods))
	for _, pod := range pods {
		name := Name{pod.Namespace, pod.Name}
		if pod.Status.Phase == corev1.PodPending || !m.wanted(pod.Namespace, pod.Labels) {
			continue
		}
		here[name] = true
		m.setPod(name, pod, now)
	}
	maps.DeleteFunc(m.pods, func(name Name, _ *podUsage) bool { return !here[name] })
	m.close()
}

func (m *Model) setPod(name Name, pod *corev1.Pod, now time.Time) {
	p := m.pods[name]
	if p == nil {
		p = &podUsage{containers: map[string]*container{}}
		m.pods[name] = p
	}
	p.labels, p.text, p.init = pod.Labels, labels.Set(pod.Labels).String(), map[string]bool{}
	for i := range pod.Spec.InitContainers {
		p.init[pod.Spec.InitContainers[i].Name] = true
	}
	for i := range pod.Spec.Containers {
		spec := &pod.Spec.Containers[i]
		c, known := p.containers[spec.Name]
		shared := m.shared(name.Namespace, p, spec.Name, now)
		if !known {
			c = &container{}
			p.containers[spec.Name] = c
			m.reopen(name, p.labels, spec.Name, c, shared)
		}
		requests, _ := Actual(pod, spec.Name)
		memory := requests[corev1.ResourceMemory]
		c.request = memory.Value()
		for _, at := range kills(pod, spec.Name) {
			// A kill before the first observation counts if it was in the last window.
			if at.After(c.peaks.Killed) && (known || now.Sub(at) < window) {
				c.peaks.Killed = at
				c.addOOM(shared.usage, c.request, at)
			}
		}
	}
}

func (m *Model) shared(namespace string, p *podUsage, name string, now time.Time) *sharedUsage {
	key := usageKey{namespace, p.text, name}
	s := m.usage[key]
	if s == nil {
		s = &sharedUsage{newUsage(now), p.labels}
		m.usage[key] = s
	}
	return s
}

// AddSample adds a sample. It reports whether it counts: samples of other pods and of init
// containers, duplicates, and late ones do not.
func (m *Model) AddSample(s Sample, now time.Time) bool {
	p := m.pods[s.Pod]
	if p == nil || p.init[s.Container] {
		return false
	}
	c := p.containers[s.Container]
	if c == nil {
		return false
	}
	to := m.shared(s.Pod.Namespace, p, s.Container, now).usage
	cpu := c.addCPU(to, s.CPU, s.At)
	return c.addMemory(to, s.Memory, s.At, false) && cpu
}

// used merges the usage of an autoscaler's containers.
func (m *Model) used(t *target) map[string]*usage {
	out := map[string]*usage{}
	merge := func(name string, u *usage) {
		if out[name] == nil {
			out[name] = newUsage(u.made)
		}
		out[name].merge(u)
	}
	for _, key := range slices.SortedFunc(maps.Keys(m.usage), usageKey.compare) {
		if u := m.usage[key]; t.matches(key.namespace, u.labels) {
			merge(key.container, u.usage)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.initial)) {
		merge(name, t.initial[name])
	}
	return out
}

func (k usageKey) compare(o usageKey) int {
	return cmp.Or(cmp.Compare(k.namespace, o.namespace), cmp.Compare(k.labels, o.labels),
		cmp.Compare(k.container, o.container))
}

// Usages returns the number of aggregates of usage.
func (m *Model) Usages() int { return len(m.usage) }

// Recommend returns the new status of an autoscaler.
func (m *Model) Recommend(name Name, now time.Time) (Status, error) {
	t := m.targets[name]
	if t == nil {
		return Status{}, fmt.Errorf("recommend for %s/%s: no such autoscaler", name.Namespace, name.Name)
	}
	matched := false
	for _, p := range slices.SortedFunc(maps.Keys(m.pods), Name.compare) {
		if matched = t.matches(p.Namespace, m.pods[p].labels); matched {
			break
		}
	}
	r := recommend(m.used(t), t.VPA.Spec.ResourcePolicy)
	generation := t.VPA.Generation
	return Status{Recommendation: r, ObservedGeneration: &generation,
		Conditions: conditions(t, matched, len(r.Containers) > 0, now)}, nil
}

func (n Name) compare(o Name) int {
	return cmp.Or(cmp.Compare(n.Namespace, o.Namespace), cmp.Compare(n.Name, o.Name))
}

// conditions returns the conditions of a status, by type (W9.34).
func conditions(t *target, matched, provided bool, now time.Time) []Condition {
	by := map[string]Condition{}
	for _, c := range t.VPA.Status.Conditions {
		by[c.Type] = c
	}
	set := func(kind string, status corev1.ConditionStatus, reason, message string) {
		c := Condition{Type: kind, Status: status, Reason: reason, Message: message,
			LastTransitionTime: metav1.NewTime(now).Rfc3339Copy()}
		if old, there := by[kind]; there && old.Status == status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		by[kind] = c
	}
	delete(by, ConfigDeprecated)
	delete(by, ConfigUnsupported)
	if t.Selector == nil {
		old, there := Condition{}, false
		for _, c := range t.VPA.Status.Conditions {
			if c.Type == ConfigUnsupported {
				old, there = c, true
			}
		}
		if there {
			by[ConfigUnsupported] = old
		}
		set(ConfigUnsupported, corev1.ConditionTrue, "", t.Problem)
	}
	reason, message := "", ""
	if matched {
		delete(by, NoPodsMatched)
	} else {
		reason, message = "NoPodsMatched", "No pods match this VPA object"
		set(NoPodsMatched, corev1.ConditionTrue, reason, message)
	}
	if provided {
		set(RecommendationProvided, corev1.ConditionTrue, "", "")
	} else {
		set(RecommendationProvided, corev1.ConditionFalse, reason, message)
	}
	out := make([]Condition, 0, len(by))
	for _, kind := range slices.Sorted(maps.Keys(by)) {
		out = append(out, by[kind])
	}
	return out
}

// Collect removes expired usage at intervals (W9.38).
func (m *Model) Collect(now time.Time) {
	if now.Sub(m.collected) < collectEvery {
		return
	}
	m.collected = now
	held := map[usageKey]bool{}
	for name, p := range m.pods { // any order: a set is made
		for c := range p.containers { // any order: a set is made
			held[usageKey{name.Namespace, p.text, c}] = true
		}
	}
	maps.DeleteFunc(m.usage, func(key usageKey, u *sharedUsage) bool {
		return u.samples == 0 && !held[key] || u.expired(now)
	})
}

// Actual returns the actual resources of a container: those of its status, else of its spec.
func Actual(pod *corev1.Pod, name string) (requests, limits corev1.ResourceList) {
	for i := range pod.Status.ContainerStatuses {
		if s := &pod.Status.ContainerStatuses[i]; s.Name == name && s.Resources != nil {
			return s.Resources.Requests, s.Resources.Limits
		}
	}
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == name {
			return c.Resources.Requests, c.Resources.Limits
		}
	}
	return nil, nil
}
