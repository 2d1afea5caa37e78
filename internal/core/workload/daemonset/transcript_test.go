package daemonset

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"carob/internal/base/transcript"
	"carob/internal/core/workload"
)

// TestTranscripts runs the stories in testdata/transcripts. After each command, syncs follow until one does nothing;
// what each did is printed. Rewrite them with -rewrite, and commit only a diff that you understand.
//
//	node NAME [label=K/V] [taint=KEY/EFFECT]   creates or changes a node; gone NAME: deletes it
//	set                     a YAML spec: creates the set or changes its spec
//	ready NODE…             the newest pod of the node is bound, runs and is ready; or a pod by its name
//	unready NODE…, phase NODE PHASE, bind NODE…   the same pod
//	delete POD…             a user deletes pods; dead POD…: they have ended
//	orphan POD NODE         a pod of the node that the set has adopted
//	revision NUMBER         a user creates another revision with the same data
//	advance DURATION
//	pods, revisions, pod NODE   the existing objects; pod prints the newest pod of the node
func TestTranscripts(t *testing.T) {
	transcript.Run(t, 12, func(t *testing.T) *world { return newWorld(t) },
		func(t *testing.T, w *world, d *datadriven.TestData) string {
			w.t = t
			return w.command(d)
		})
}

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type tester interface {
	Helper()
	Fatalf(string, ...any)
}

// world is a set, its API objects and a clock, moved by hand.
type world struct {
	t          tester
	now        time.Time
	set        *appsv1.DaemonSet
	nodes      map[string]*corev1.Node
	pods       map[string]*corev1.Pod
	revisions  []*appsv1.ControllerRevision
	hashes     map[string]string
	failures   map[string]workload.Failure
	generation int64 // of failures
	made       int
	shown      string
	again      time.Time
	sabotage   func(in *Input)
	sb         strings.Builder
}

func newWorld(t tester) *world {
	return &world{t: t, now: begin, nodes: map[string]*corev1.Node{}, pods: map[string]*corev1.Pod{},
		hashes: map[string]string{}}
}

func (w *world) setSpec(text string) {
	spec := appsv1.DaemonSetSpec{}
	if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
		w.t.Fatalf("%v", err)
	}
	if w.set == nil {
		w.set = &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "ns", UID: "set"}}
	}
	w.set.Generation++
	spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "d"}}
	spec.Template.Labels = map[string]string{"app": "d"}
	if spec.UpdateStrategy.Type == "" {
		spec.UpdateStrategy.Type = appsv1.RollingUpdateDaemonSetStrategyType
		if spec.UpdateStrategy.RollingUpdate == nil {
			spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromInt32(1)),
				MaxSurge: new(intstr.FromInt32(0))}
		}
	}
	w.set.Spec = spec
	w.template()
}

// template records a change of the template as the API server does (W4.2).
func (w *world) template() {
	data := fmt.Sprint(w.set.Spec.Template)
	if w.set.Annotations["test/template"] != data {
		n, _ := generation(w.set)
		next, _ := strconv.Atoi(n)
		w.set.Annotations = map[string]string{appsv1.DeprecatedTemplateGeneration: strconv.Itoa(next + 1),
			"test/template": data}
	}
}

func (w *world) command(d *datadriven.TestData) string {
	w.sb.Reset()
	var names []string
	for _, a := range d.CmdArgs {
		if len(a.Vals) == 0 {
			names = append(names, a.Key)
		}
	}
	each := func(f func(p *corev1.Pod)) {
		for _, n := range names {
			f(w.newest(n))
		}
	}
	switch d.Cmd {
	case "node":
		w.node(d)
	case "gone":
		delete(w.nodes, names[0])
	case "set":
		w.setSpec(d.Input)
	case "ready":
		each(func(p *corev1.Pod) { w.setReady(p, true) })
	case "unready":
		each(func(p *corev1.Pod) { w.setReady(p, false) })
	case "bind":
		each(func(p *corev1.Pod) { p.Spec.NodeName = Target(p) })
	case "phase":
		p := w.newest(names[0])
		p.Spec.NodeName, p.Status.Phase = names[0], corev1.PodPhase(names[1])
	case "delete":
		for _, n := range names {
			w.pod(n).DeletionTimestamp = new(metav1.NewTime(w.now))
		}
	case "dead":
		for _, n := range names {
			if w.pod(n).DeletionTimestamp == nil {
				w.t.Fatalf("%s is not being deleted", n)
			}
			delete(w.pods, n)
		}
	case "orphan":
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: names[0], Namespace: "ns", UID: types.UID(names[0]),
			CreationTimestamp: metav1.NewTime(begin.Add(-time.Hour))},
			Spec: corev1.PodSpec{NodeName: names[1]}}
		w.pods[names[0]] = p
		w.setReady(p, true)
	case "revision":
		n, _ := strconv.ParseInt(names[0], 10, 64)
		c := w.revisions[0].DeepCopy()
		c.Name, c.Revision = "copy", n
		delete(c.Labels, appsv1.DefaultDaemonSetUniqueLabelKey)
		w.hashes["copy"] = "copy"
		w.revisions = append(w.revisions, c)
	case "advance":
		by, err := time.ParseDuration(names[0])
		if err != nil {
			w.t.Fatalf("%v", err)
		}
		w.now = w.now.Add(by)
	case "pods", "revisions":
		return w.show(d.Cmd)
	case "pod":
		p := w.newest(names[0])
		text, err := yaml.Marshal(map[string]any{"labels": p.Labels, "spec": p.Spec, "generateName": p.GenerateName})
		if err != nil {
			w.t.Fatalf("%v", err)
		}
		return strings.ReplaceAll(string(text), w.revisions[0].Labels[appsv1.DefaultDaemonSetUniqueLabelKey], "HASH")
	default:
		w.t.Fatalf("unknown command %s", d.Cmd)
	}
	if w.set == nil {
		return ""
	}
	for range 30 {
		if !w.sync() {
			return w.sb.String()
		}
	}
	w.t.Fatalf("it does not converge: %s", w.sb.String())
	return ""
}

func (w *world) node(d *datadriven.TestData) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: d.CmdArgs[0].Key, Labels: map[string]string{}}}
	for _, a := range d.CmdArgs[1:] {
		k, v, _ := strings.Cut(a.Vals[0], "/")
		switch a.Key {
		case "label":
			n.Labels[k] = v
		case "taint":
			i := strings.LastIndexByte(a.Vals[0], '/')
			n.Spec.Taints = append(n.Spec.Taints,
				corev1.Taint{Key: a.Vals[0][:i], Effect: corev1.TaintEffect(a.Vals[0][i+1:])})
		}
	}
	w.nodes[n.Name] = n
}

func (w *world) pod(name string) *corev1.Pod {
	w.t.Helper()
	p, ok := w.pods[name]
	if !ok {
		w.t.Fatalf("there is no pod %s", name)
	}
	w.pods[name] = p.DeepCopy() // objects that were passed on do not change
	return w.pods[name]
}

// newest is the pod of the name, or the newest of the node that is not being deleted.
func (w *world) newest(node string) *corev1.Pod {
	w.t.Helper()
	if _, ok := w.pods[node]; ok {
		return w.pod(node)
	}
	var found *corev1.Pod
	for _, name := range slices.Sorted(maps.Keys(w.pods)) {
		p := w.pods[name]
		if Target(p) == node && p.DeletionTimestamp == nil &&
			(found == nil || !p.CreationTimestamp.Time.Before(found.CreationTimestamp.Time)) {
			found = p
		}
	}
	if found == nil {
		w.t.Fatalf("the node %s has no pod", node)
	}
	return w.pod(found.Name)
}

func (w *world) setReady(p *corev1.Pod, is bool) {
	status := corev1.ConditionFalse
	if is {
		status = corev1.ConditionTrue
		p.Spec.NodeName, p.Status.Phase = Target(p), corev1.PodRunning
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status,
		LastTransitionTime: metav1.NewTime(w.now)}}
}

func (w *world) printf(format string, a ...any) { fmt.Fprintf(&w.sb, format+"\n", a...) }

func (w *world) revise(pods []*corev1.Pod) (RevisionPlan, bool) {
	r, err := Revise(w.set, w.revisions, pods)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	did := false
	for _, x := range r.Label {
		x.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = x.Name
		w.printf("label revision %s", w.hashes[HashOf(x)])
		did = true
	}
	if r.Create {
		w.hashes[HashOf(r.Current)] = "r" + strconv.Itoa(len(w.hashes)+1)
		w.revisions = append(w.revisions, r.Current)
		w.printf("revision %s: number %d", w.hashes[HashOf(r.Current)], r.Current.Revision)
		did = true
	}
	for _, p := range r.Relabel {
		w.pod(p.Name).Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = HashOf(r.Current)
		w.printf("relabel %s", p.Name)
		did = true
	}
	for _, d := range r.Duplicates {
		w.revisions = slices.DeleteFunc(w.revisions, func(o *appsv1.ControllerRevision) bool { return o == d })
		w.printf("revision %s: deleted, same as %s", w.hashes[HashOf(d)], w.hashes[HashOf(r.Current)])
		did = true
	}
	if r.Raise != 0 {
		w.printf("revision %s: number %d, was %d", w.hashes[HashOf(r.Current)], r.Raise, r.Current.Revision)
		r.Current.Revision = r.Raise
		did = true
	}
	return r, did
}

func (w *world) list() []*corev1.Pod { return slices.Collect(maps.Values(w.pods)) }

// sync decides once, carries out the plan, and reports whether it had actions.
func (w *world) sync() bool {
	r, did := w.revise(w.list())
	if w.generation != w.set.Status.ObservedGeneration {
		w.failures, w.generation = map[string]workload.Failure{}, w.set.Status.ObservedGeneration
	}
	in := Input{Now: w.now, Set: w.set, Hash: HashOf(r.Current), Pods: w.list(),
		Nodes: slices.Collect(maps.Values(w.nodes)), Failures: w.failures}
	given := in
	if w.sabotage != nil {
		given.Set = in.Set.DeepCopy()
		w.sabotage(&given)
	}
	p, err := Decide(given)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	for _, e := range p.Events {
		w.printf("%s %s: %s", e.Type, e.Reason, e.Message)
	}
	maps.Copy(w.failures, p.Failures)
	for _, node := range p.Create {
		pod, err := Pod(given.Set, given.Hash, node)
		if err != nil {
			w.t.Fatalf("%v", err)
		}
		w.made++
		pod.Name = "p" + strconv.Itoa(w.made)
		pod.UID, pod.Status.Phase, pod.CreationTimestamp = types.UID(pod.Name), corev1.PodPending,
			metav1.NewTime(w.now.Add(time.Duration(w.made)))
		w.pods[pod.Name] = pod
		w.printf("create %s on %s at %s", pod.Name, node, w.hashes[in.Hash])
		did = true
	}
	for _, pod := range p.Delete {
		if pod.DeletionTimestamp != nil {
			w.t.Fatalf("%s is deleted twice", pod.Name)
		}
		w.pod(pod.Name).DeletionTimestamp = new(metav1.NewTime(w.now))
		w.printf("delete %s on %s", pod.Name, Target(pod))
		did = true
	}
	if Changed(&w.set.Status, &p.Status) {
		w.set.Status = p.Status
		did = true
	}
	s := &w.set.Status
	line := fmt.Sprintf("  desired %d current %d ready %d up-to-date %d available %d unavailable %d misscheduled %d\n",
		s.DesiredNumberScheduled,
		s.CurrentNumberScheduled, s.NumberReady, s.UpdatedNumberScheduled, s.NumberAvailable, s.NumberUnavailable,
		s.NumberMisscheduled)
	if line != w.shown {
		w.shown = line
		w.sb.WriteString(line)
	}
	if w.again = p.Again; !p.Again.IsZero() {
		w.printf("again in %v", p.Again.Sub(w.now))
	}
	for _, x := range Excess(w.set, r.Old, in.Pods) {
		w.revisions = slices.DeleteFunc(w.revisions, func(o *appsv1.ControllerRevision) bool { return o == x })
		w.printf("revision %s: deleted", w.hashes[HashOf(x)])
		did = true
	}
	return did
}

func (w *world) show(what string) string {
	var sb strings.Builder
	switch what {
	case "pods":
		for _, name := range slices.Sorted(maps.Keys(w.pods)) {
			p := w.pods[name]
			fmt.Fprintf(&sb, "%s: on %s at %s %s ready=%v deleted=%v\n", name, Target(p),
				w.hashes[p.Labels[appsv1.ControllerRevisionHashLabelKey]], p.Status.Phase, workload.Ready(p),
				p.DeletionTimestamp != nil)
		}
	case "revisions":
		for _, r := range w.revisions {
			fmt.Fprintf(&sb, "%s: number %d\n", w.hashes[HashOf(r)], r.Revision)
		}
	}
	return sb.String()
}
