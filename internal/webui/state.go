package webui

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/journal"
	"carob/internal/core/explain"
)

// Limits of what is kept.
const (
	mostObjects = 10_000 // of a kind
	mostEvents  = 5      // warnings about one object
	mostLanes   = 20_000
)

// state holds the objects, what the page shows of them, and what each page has to be sent. All of it is guarded by mu.
type state struct {
	mu      sync.Mutex
	objects map[string]map[string]metav1.Object // by kind and NAMESPACE/NAME
	left    map[string]int                      // objects of a kind above mostObjects
	events  map[types.UID][]*corev1.Event       // the newest warnings
	owned   map[string]map[string]bool          // pods by their workload
	onNode  map[string]int                      // pods by node
	slices  map[string]map[string]*discoveryv1.EndpointSlice
	lanes   map[types.UID]*lane
	pools   map[string]*explain.PoolState // by group, namespace, and name
	noPools string                        // why the states of pools are not known
	notes   map[string]string             // what the user should know, by what it is about
	broken  map[string]string             // watches that the API server does not answer, and why
	since   time.Time                     // since when it does not

	dirty map[string]bool            // rows to make again
	shown map[string]json.RawMessage // rows as they were made last
	pages map[*page]bool
	wake  chan struct{} // capacity 1: rows are dirty, or a page has come
}

// page is a page in a browser.
type page struct {
	rows   map[string]bool // to send, or whose end to report
	status bool            // the status changed
	wake   chan struct{}   // capacity 1
}

func newState() *state {
	return &state{objects: map[string]map[string]metav1.Object{}, left: map[string]int{},
		events: map[types.UID][]*corev1.Event{}, owned: map[string]map[string]bool{}, onNode: map[string]int{},
		slices: map[string]map[string]*discoveryv1.EndpointSlice{}, lanes: map[types.UID]*lane{},
		pools: map[string]*explain.PoolState{}, notes: map[string]string{}, broken: map[string]string{},
		dirty: map[string]bool{}, shown: map[string]json.RawMessage{},
		pages: map[*page]bool{}, wake: make(chan struct{}, 1)}
}

func poke(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

func keyOf(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// put stores an object and marks the rows that it changes. The caller holds mu.
func (s *state) put(kind string, o metav1.Object) {
	if e, ok := o.(*corev1.Event); ok {
		s.event(e)
		return
	}
	all := s.objects[kind]
	if all == nil {
		all = map[string]metav1.Object{}
		s.objects[kind] = all
	}
	key := keyOf(o)
	old := all[key]
	if old == nil && len(all) >= mostObjects {
		s.left[kind]++
		s.note(kind+" left out", "only the first 10000 objects of kind "+kind+" are shown: use --namespace")
		return
	}
	if old != nil {
		s.unlink(old)
	}
	all[key] = o
	s.link(o)
	s.mark(kind, o)
}

// drop removes an object. The caller holds mu.
func (s *state) drop(kind string, o metav1.Object) {
	if e, ok := o.(*corev1.Event); ok {
		s.expire(e)
		return
	}
	old := s.objects[kind][keyOf(o)]
	if old == nil {
		return
	}
	delete(s.objects[kind], keyOf(o))
	s.unlink(old)
	delete(s.events, old.GetUID())
	if kind == "pod" {
		delete(s.lanes, old.GetUID())
	}
	s.mark(kind, old)
}

// replace makes the objects of a kind those of a list.
func (s *state) replace(kind string, list []metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have := map[string]bool{}
	for _, o := range list {
		have[keyOf(o)] = true
	}
	for key, o := range s.objects[kind] {
		if !have[key] {
			s.drop(kind, o)
		}
	}
	if kind == "event" {
		clear(s.events)
	}
	s.left[kind] = 0
	delete(s.notes, kind+" left out")
	for _, o := range list {
		s.put(kind, o)
	}
	s.statusChanged()
}

func (s *state) event(e *corev1.Event) {
	uid := e.InvolvedObject.UID
	if _, ok := s.events[uid]; !ok && len(s.events) >= mostObjects {
		return
	}
	list := slices.DeleteFunc(s.events[uid], func(o *corev1.Event) bool { return o.Name == e.Name })
	if list = append(list, e); len(list) > mostEvents {
		list = slices.Delete(list, 0, 1)
	}
	s.events[uid] = list
	about := e.InvolvedObject
	s.markRow(strings.ToLower(about.Kind) + "/" + about.Namespace + "/" + about.Name)
}

// expire drops an event that the API server has dropped. Warnings of an object that is shown stay as long as it; the
// others would stay for ever, such as those of pods that had ended before, and fill the place of new ones.
func (s *state) expire(e *corev1.Event) {
	about := e.InvolvedObject
	o := s.object(strings.ToLower(about.Kind), about.Namespace+"/"+about.Name)
	if o != nil && (o.GetUID() == about.UID || o.GetName() == string(about.UID)) { // events of nodes have their name
		return
	}
	list := slices.DeleteFunc(s.events[about.UID], func(o *corev1.Event) bool { return o.Name == e.Name })
	if s.events[about.UID] = list; len(list) == 0 {
		delete(s.events, about.UID)
	}
}

func (s *state) link(o metav1.Object) {
	switch o := o.(type) {
	case *corev1.Pod:
		s.onNode[o.Spec.NodeName]++
		if owner := ownerOf(o); owner != "" {
			if s.owned[owner] == nil {
				s.owned[owner] = map[string]bool{}
			}
			s.owned[owner][keyOf(o)] = true
		}
	case *discoveryv1.EndpointSlice:
		service := o.Namespace + "/" + o.Labels[discoveryv1.LabelServiceName]
		if s.slices[service] == nil {
			s.slices[service] = map[string]*discoveryv1.EndpointSlice{}
		}
		s.slices[service][o.Name] = o
	}
}

func (s *state) unlink(o metav1.Object) {
	switch o := o.(type) {
	case *corev1.Pod:
		if s.onNode[o.Spec.NodeName]--; s.onNode[o.Spec.NodeName] == 0 {
			delete(s.onNode, o.Spec.NodeName)
		}
		if owner := ownerOf(o); owner != "" {
			if delete(s.owned[owner], keyOf(o)); len(s.owned[owner]) == 0 {
				delete(s.owned, owner)
			}
		}
	case *discoveryv1.EndpointSlice:
		service := o.Namespace + "/" + o.Labels[discoveryv1.LabelServiceName]
		if delete(s.slices[service], o.Name); len(s.slices[service]) == 0 {
			delete(s.slices, service)
		}
	}
}

// mark marks the rows that an object changes.
func (s *state) mark(kind string, o metav1.Object) {
	switch o := o.(type) {
	case *corev1.Pod:
		s.markRow("node//" + o.Spec.NodeName)
		if owner := ownerOf(o); owner != "" {
			s.markRow(owner)
		}
	case *discoveryv1.EndpointSlice:
		s.markRow("service/" + o.Namespace + "/" + o.Labels[discoveryv1.LabelServiceName])
		return
	}
	s.markRow(rowKind(kind) + "/" + keyOf(o))
}

// rowKind is the kind of a row: the two groups of InferencePools are one.
func rowKind(kind string) string {
	if strings.HasPrefix(kind, "inferencepool") {
		return "inferencepool"
	}
	return kind
}

func (s *state) markRow(id string) {
	s.dirty[id] = true
	poke(s.wake)
}

// note keeps a sentence for the user, or removes it (no text).
func (s *state) note(about, text string) {
	if s.notes[about] == text {
		return
	}
	if text == "" {
		delete(s.notes, about)
	} else {
		s.notes[about] = text
	}
	s.statusChanged()
}

// Note is note for callers that do not hold mu.
func (s *state) Note(about, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(about, text)
}

// answered records whether the API server answered a watch.
func (s *state) answered(watch, failure string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken[watch] == failure {
		return
	}
	if failure == "" {
		delete(s.broken, watch)
	} else {
		if len(s.broken) == 0 {
			s.since = time.Now()
		}
		s.broken[watch] = failure
	}
	s.statusChanged()
}

func (s *state) statusChanged() {
	for p := range s.pages {
		p.status = true
		poke(p.wake)
	}
}

// entries adds entries of a node's timeline.
func (s *state) entries(list []journal.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range list {
		e := &list[i]
		id := e.Namespace + "/" + e.Pod
		uid := types.UID(e.UID)
		pod := s.objects["pod"][id]
		l := s.lanes[uid]
		if l == nil {
			if len(s.lanes) >= mostLanes {
				s.purge()
			}
			if len(s.lanes) >= mostLanes {
				continue
			}
			l = newLane()
			s.lanes[uid] = l
		}
		changed := l.add(e)
		if changed && pod != nil {
			s.markRow("pod/" + id)
		}
	}
}

// purge removes the lanes of pods that do not exist.
func (s *state) purge() {
	alive := map[types.UID]bool{}
	for _, o := range s.objects["pod"] {
		alive[o.GetUID()] = true
	}
	maps.DeleteFunc(s.lanes, func(uid types.UID, _ *lane) bool { return !alive[uid] })
}

// gateway sets the states of the pools, as the gateways of all nodes report them.
func (s *state) gateway(all []explain.PoolState, unknown string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.pools
	s.pools, s.noPools = map[string]*explain.PoolState{}, unknown
	for i := range all {
		p := &all[i]
		s.pools[p.Group+"/"+p.Namespace+"/"+p.Name] = p
		s.markRow("inferencepool/" + p.Namespace + "/" + p.Name)
	}
	for _, p := range old {
		s.markRow("inferencepool/" + p.Namespace + "/" + p.Name)
	}
}

// nodes are the names of the nodes that are known: those of Nodes and of pods, as the user may not be allowed to read
// Nodes.
func (s *state) nodes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]bool{}
	for name := range s.onNode {
		all[name] = name != ""
	}
	for _, o := range s.objects["node"] {
		all[o.GetName()] = true
	}
	maps.DeleteFunc(all, func(_ string, ok bool) bool { return !ok })
	return slices.Sorted(maps.Keys(all))
}

// watched reports whether a page is open, and whether there is a pool.
func (s *state) watched() (page, pool bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pages) > 0, len(s.objects["inferencepool"])+len(s.objects["inferencepool-x"]) > 0
}

// render makes the dirty rows again and notifies the pages. The caller holds mu.
func (s *state) render(now time.Time) {
	for id := range s.dirty {
		var made any
		kind, key, _ := strings.Cut(id, "/")
		switch o := s.object(kind, key).(type) {
		case *corev1.Pod:
			made = renderPod(o, s.warnings(o), s.lanes[o.UID], now)
		case *corev1.Node:
			made = renderNode(o, s.warnings(o), s.onNode[o.Name], now)
		case *corev1.Service:
			made = renderService(o, s.slicesOf(key),
				func() []*corev1.Pod { return s.selected(o.Namespace, o.Spec.Selector) }, now)
		case *appsv1.Deployment, *appsv1.StatefulSet, *appsv1.DaemonSet, *batchv1.Job:
			made = renderWorkload(o, explain.Related{Pods: s.podsOf(id), Events: s.warnings(o)}, now)
		case *unstructured.Unstructured:
			made = renderPool(o, s.pool(o), now)
		}
		var text json.RawMessage
		if made != nil {
			text, _ = json.Marshal(made) // rows are strings and numbers
		}
		if bytes.Equal(text, s.shown[id]) {
			continue
		}
		if text == nil {
			delete(s.shown, id)
		} else {
			s.shown[id] = text
		}
		for p := range s.pages {
			p.rows[id] = true
			poke(p.wake)
		}
	}
	clear(s.dirty)
}

func (s *state) object(kind, key string) metav1.Object {
	if kind != "inferencepool" {
		return s.objects[kind][key]
	}
	if o := s.objects[kind][key]; o != nil {
		return o
	}
	return s.objects["inferencepool-x"][key]
}

func (s *state) warnings(o metav1.Object) (out []corev1.Event) {
	for _, uid := range []types.UID{o.GetUID(), types.UID(o.GetName())} { // events of nodes have their name
		for _, e := range s.events[uid] {
			out = append(out, *e)
		}
	}
	return out
}

// slicesOf are the EndpointSlices of a Service, by name: the same slices make the same row.
func (s *state) slicesOf(service string) (out []*discoveryv1.EndpointSlice) {
	for _, name := range slices.Sorted(maps.Keys(s.slices[service])) {
		out = append(out, s.slices[service][name])
	}
	return out
}

func (s *state) podsOf(owner string) (out []*corev1.Pod) {
	for _, key := range slices.Sorted(maps.Keys(s.owned[owner])) {
		if p, ok := s.objects["pod"][key].(*corev1.Pod); ok {
			out = append(out, p)
		}
	}
	return out
}

func (s *state) selected(namespace string, selector map[string]string) (out []*corev1.Pod) {
	if len(selector) == 0 {
		return nil
	}
	matches := labels.SelectorFromSet(selector)
	for _, o := range s.objects["pod"] { // any order: sorted below
		p, ok := o.(*corev1.Pod)
		if ok && p.Namespace == namespace && matches.Matches(labels.Set(p.Labels)) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// pool collects what explains a pool.
func (s *state) pool(o *unstructured.Unstructured) *explain.Pool {
	text, _ := o.MarshalJSON() // it came as JSON
	group := o.GroupVersionKind().Group
	facts, err := explain.PoolFacts(text, group)
	if err != nil {
		facts.Unknown = err.Error()
	}
	facts.Pods = s.selected(o.GetNamespace(), facts.Selector)
	facts.State = s.pools[group+"/"+keyOf(o)]
	if facts.Unknown == "" {
		facts.Unknown = s.noPools
	}
	return &facts
}

// tick marks rows whose sentences change with time: those about problems.
func (s *state) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pages) == 0 {
		return
	}
	for id, text := range s.shown {
		if !bytes.Contains(text, []byte(`"class":"ok"`)) && !bytes.Contains(text, []byte(`"class":"done"`)) {
			s.markRow(id)
		}
	}
}
