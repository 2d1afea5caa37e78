package statefulset

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
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"carob/internal/base/transcript"
	"carob/internal/core/workload"
)

// TestTranscripts runs the stories in testdata/transcripts. After each command but sync, syncs follow until one does
// nothing; what each did is printed. Rewrite them with -rewrite, and commit only a diff that you understand.
//
//	set                     a YAML spec: creates the set or changes its spec
//	sync                    one reconciliation
//	quiet                   no syncs after commands, until sync
//	ready NAME…             the pods run and are ready
//	unready NAME…, phase NAME PHASE
//	refuse NAME…            the node refuses the pods
//	gone NAME…              the pods that were deleted are gone
//	delete NAME…            a user deletes the pods
//	vanish NAME…            the pods are gone at once
//	pod NAME                a user creates a pod of this name, without identity, that the set controls
//	claim NAME [owner=KIND/NAME/UID] [going]   a claim as it is; unclaim NAME
//	template                a YAML template: that of an earlier version, which lacks defaults
//	advance DURATION
//	deleting                the set is being deleted
//	pods, claims, revisions, status   the existing objects
func TestTranscripts(t *testing.T) {
	transcript.Run(t, 15, func(t *testing.T) *world { return newWorld(t) },
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
	t         tester
	now       time.Time
	set       *appsv1.StatefulSet
	revisions []*appsv1.ControllerRevision
	pods      map[string]*corev1.Pod
	claims    map[string]*corev1.PersistentVolumeClaim
	names     map[string]string // short names of revisions
	uids      int
	shown     string
	quiet     bool
	sb        strings.Builder
	again     time.Time
	failures  map[string]workload.Failure
	failedAt  int64 // the generation of failures
	sabotage  *sabotage
}

func newWorld(t tester) *world {
	return &world{t: t, now: begin, pods: map[string]*corev1.Pod{}, claims: map[string]*corev1.PersistentVolumeClaim{},
		names: map[string]string{}}
}

func (w *world) uid() types.UID {
	w.uids++
	return types.UID("u" + strconv.Itoa(w.uids))
}

// defaulted sets the API server's defaults of the fields that the stories use.
func defaulted(s *appsv1.StatefulSet) {
	if s.Spec.Replicas == nil {
		s.Spec.Replicas = ptr.To[int32](1)
	}
	if s.Spec.UpdateStrategy.Type == "" {
		s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To[int32](0)}}
	}
	s.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyAlways
}

func (w *world) setSpec(text string) {
	spec := appsv1.StatefulSetSpec{}
	if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
		w.t.Fatalf("%v", err)
	}
	if w.set == nil {
		w.set = &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "set"}}
	}
	w.set.Generation++
	spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	if spec.Template.Labels == nil {
		spec.Template.Labels = map[string]string{"app": "web"}
	}
	w.set.Spec = spec
	defaulted(w.set)
}

func (w *world) pod(name string) *corev1.Pod {
	w.t.Helper()
	p, ok := w.pods[name]
	if !ok {
		w.t.Fatalf("there is no pod %s", name)
	}
	p = p.DeepCopy() // objects that were passed on do not change
	w.pods[name] = p
	return p
}

func setReady(p *corev1.Pod, now time.Time, is bool) {
	status := corev1.ConditionFalse
	if is {
		status = corev1.ConditionTrue
		p.Status.Phase = corev1.PodRunning
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status,
		LastTransitionTime: metav1.NewTime(now)}}
}

func (w *world) command(d *datadriven.TestData) string {
	w.sb.Reset()
	names := func() []string {
		var list []string
		for _, a := range d.CmdArgs {
			if len(a.Vals) == 0 {
				list = append(list, a.Key)
			}
		}
		return list
	}()
	switch d.Cmd {
	case "set":
		w.setSpec(d.Input)
	case "template":
		t := corev1.PodTemplateSpec{}
		if err := yaml.UnmarshalStrict([]byte(d.Input), &t); err != nil {
			w.t.Fatalf("%v", err)
		}
		w.set.Spec.Template = t
	case "sync":
		w.quiet = false
		w.sync()
		return w.sb.String()
	case "quiet":
		w.quiet = true
	case "ready", "unready":
		for _, n := range names {
			setReady(w.pod(n), w.now, d.Cmd == "ready")
		}
	case "phase":
		w.pod(names[0]).Status.Phase = corev1.PodPhase(names[1])
	case "refuse":
		for _, n := range names {
			w.pod(n).Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu"}
		}
	case "gone", "vanish":
		for _, n := range names {
			if w.pod(n).DeletionTimestamp == nil && d.Cmd == "gone" {
				w.t.Fatalf("%s is not being deleted", n)
			}
			w.remove(n)
		}
	case "delete":
		for _, n := range names {
			w.pod(n).DeletionTimestamp = new(metav1.NewTime(w.now))
		}
	case "pod":
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: names[0], Namespace: "ns", UID: w.uid()}}
		setReady(p, w.now, true)
		w.pods[names[0]] = p
	case "claim":
		w.claim(d)
	case "unclaim":
		delete(w.claims, names[0])
	case "advance":
		by, err := time.ParseDuration(names[0])
		if err != nil {
			w.t.Fatalf("%v", err)
		}
		w.now = w.now.Add(by)
	case "deleting":
		w.set.DeletionTimestamp = new(metav1.NewTime(w.now))
	case "pods", "claims", "revisions", "status":
		return w.show(d.Cmd)
	default:
		w.t.Fatalf("unknown command %s", d.Cmd)
	}
	if !w.quiet && w.set != nil {
		for range 20 {
			if !w.sync() {
				return w.sb.String()
			}
		}
		w.t.Fatalf("it does not converge: %s", w.sb.String())
	}
	return w.sb.String()
}

func (w *world) claim(d *datadriven.TestData) {
	name := d.CmdArgs[0].Key
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: w.uid()}}
	for _, a := range d.CmdArgs[1:] {
		switch a.Key {
		case "going":
			c.DeletionTimestamp = new(metav1.NewTime(w.now))
		case "owner":
			part := strings.Split(a.Vals[0], "/")
			ref := metav1.OwnerReference{APIVersion: "v1", Kind: part[0], Name: part[1], UID: types.UID(part[2]),
				Controller: new(true)}
			if part[0] == "StatefulSet" {
				ref.APIVersion = "apps/v1"
			}
			c.OwnerReferences = append(c.OwnerReferences, ref)
		}
	}
	w.claims[name] = c
}

// remove removes a pod and the claims that it owned, like the garbage collector.
func (w *world) remove(name string) {
	uid := w.pods[name].UID
	delete(w.pods, name)
	maps.DeleteFunc(w.claims, func(_ string, c *corev1.PersistentVolumeClaim) bool {
		return slices.ContainsFunc(c.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == uid })
	})
}

func (w *world) printf(format string, a ...any) { fmt.Fprintf(&w.sb, format+"\n", a...) }

// sync decides once, carries out the plan, and reports whether it had actions.
func (w *world) sync() bool {
	revisions := w.revisions
	if w.sabotage != nil && w.sabotage.forget {
		revisions = nil
	}
	r, err := Revise(w.set, revisions, ptr.Deref(w.set.Status.CollisionCount, 0), defaulted)
	if err != nil {
		w.printf("error: %v", err)
		return false
	}
	did := false
	switch {
	case r.Create:
		r.Update.CreationTimestamp = metav1.NewTime(w.now)
		w.revisions = append(w.revisions, r.Update)
		w.names[r.Update.Name] = "r" + strconv.Itoa(len(w.names)+1)
		w.printf("revision %s: number %d", w.names[r.Update.Name], r.Update.Revision)
		did = true
	case r.Raise != 0:
		w.printf("revision %s: number %d, was %d", w.names[r.Update.Name], r.Raise, r.Update.Revision)
		r.Update.Revision = r.Raise
		did = true
	}
	in := Input{Now: w.now, Set: w.set, Current: Current(w.set, w.revisions, r.Update), Update: r.Update,
		Pods:  slices.Collect(maps.Values(w.pods)),
		Claim: func(n string) *corev1.PersistentVolumeClaim { return w.claims[n] }}
	if w.failedAt != w.set.Generation || w.failures == nil {
		w.failures, w.failedAt = map[string]workload.Failure{}, w.set.Generation
	}
	in.Failures = w.failures
	given := in
	if w.sabotage != nil && w.sabotage.in != nil {
		given.Set = in.Set.DeepCopy()
		w.sabotage.in(&given)
	}
	p, err := Decide(given)
	if w.sabotage != nil && w.sabotage.plan != nil {
		w.sabotage.plan(&given, &p)
	}
	if err != nil {
		w.printf("error: %v", err)
		return false
	}
	if p.Refused != "" {
		w.printf("refused: %s", p.Refused)
		return false
	}
	maps.Copy(w.failures, p.Failures)
	deleted, failed := 0, false
	for _, stage := range p.Stages {
		for _, step := range stage {
			if failed {
				break
			}
			did = did || step.Action != EnsureClaims || len(step.Claims.Create)+len(step.Claims.Own) > 0
			failed = !w.do(step)
			if step.Counted && !failed {
				deleted++
			}
		}
	}
	status := p.Status(deleted)
	if Changed(&w.set.Status, &status) {
		w.set.Status = status
		did = true
	}
	if s := w.show("status"); s != w.shown {
		w.shown = s
		w.sb.WriteString(s)
	}
	if w.again = p.Again; !p.Again.IsZero() {
		w.printf("again in %v", p.Again.Sub(w.now))
	}
	if w.sabotage != nil && w.sabotage.hoard {
		return did && !failed
	}
	for _, r := range Excess(w.set, w.revisions, in.Current, in.Update, in.Pods) {
		w.printf("revision %s: deleted", w.names[r.Name])
		w.revisions = slices.DeleteFunc(w.revisions, func(o *appsv1.ControllerRevision) bool { return o == r })
		did = true
	}
	return did && !failed
}

func (w *world) do(step Step) bool {
	name := step.Pod.Name
	for _, c := range step.Claims.Conflicting {
		w.printf("foreign claim %s", c)
	}
	for _, c := range step.Claims.Create {
		c.UID = w.uid()
		w.claims[c.Name] = c
		w.printf("claim %s", c.Name)
	}
	if len(step.Claims.Terminating) > 0 {
		w.printf("%s %s fails: being deleted: %v", step.Action, name, step.Claims.Terminating)
		return false
	}
	switch step.Action {
	case Create:
		if _, there := w.pods[name]; there {
			w.t.Fatalf("%s is created twice", name)
		}
		p := step.Pod.DeepCopy()
		p.UID, p.Status.Phase = w.uid(), corev1.PodPending
		w.pods[name] = p
		w.printf("create %s at %s", name, w.names[revisionOf(p)])
	case Delete:
		if p := w.pods[name]; p == nil || p.UID != step.Pod.UID || p.DeletionTimestamp != nil {
			w.t.Fatalf("%s is deleted, and is not as it was seen", name)
		}
		w.pod(name).DeletionTimestamp = new(metav1.NewTime(w.now))
		w.printf("delete %s", name)
	case Repair:
		p := w.pod(name)
		GiveIdentity(w.set, p)
		GiveStorage(w.set, p)
		w.printf("repair %s", name)
	case EnsureClaims:
	}
	for _, c := range step.Claims.Own {
		n, changed := Own(w.claims[c], w.set, step.Pod)
		if !changed {
			w.t.Fatalf("%s had its owners", c)
		}
		w.claims[c] = n
		w.printf("owners of %s: %s", c, owners(n))
	}
	return true
}

func owners(c *corev1.PersistentVolumeClaim) string {
	var list []string
	for _, r := range c.OwnerReferences {
		list = append(list, r.Kind+"/"+r.Name)
	}
	if list == nil {
		return "none"
	}
	return strings.Join(list, ", ")
}

func (w *world) show(what string) string {
	var sb strings.Builder
	switch what {
	case "pods":
		for _, name := range slices.Sorted(maps.Keys(w.pods)) {
			p := w.pods[name]
			fmt.Fprintf(&sb, "%s: %s at %s ready=%v deleted=%v\n", name, p.Status.Phase, w.names[revisionOf(p)],
				workload.Ready(p), p.DeletionTimestamp != nil)
		}
	case "claims":
		for _, name := range slices.Sorted(maps.Keys(w.claims)) {
			fmt.Fprintf(&sb, "%s: owners %s, labels %v\n", name, owners(w.claims[name]), w.claims[name].Labels)
		}
	case "revisions":
		for _, r := range w.revisions {
			fmt.Fprintf(&sb, "%s: number %d\n", w.names[r.Name], r.Revision)
		}
	case "status":
		s := &w.set.Status
		fmt.Fprintf(&sb, "  replicas %d ready %d available %d current %d (%s) updated %d (%s)\n", s.Replicas,
			s.ReadyReplicas, s.AvailableReplicas,
			s.CurrentReplicas, w.names[s.CurrentRevision], s.UpdatedReplicas, w.names[s.UpdateRevision])
	}
	return sb.String()
}
