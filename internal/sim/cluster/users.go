package cluster

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/workload"
	"carob/internal/core/workload/job"
	"carob/internal/sim/fakeapi"
)

const (
	namespace = "n"
	// absent is the image of a version that is not in the registry: its pods never run.
	absent = "forgotten"
)

// populate creates the nodes and the workloads, and plans their events.
func (w *world) populate() {
	for range 2 + w.IntN(3) {
		w.addNode()
	}
	for i := range 1 + w.IntN(2) {
		w.Create(w.deployment(fmt.Sprintf("web-%d", i)))
		if w.IntN(2) == 0 || w.kind == Drains {
			w.budget(fmt.Sprintf("web-%d", i))
		}
	}
	w.Create(w.set("db"))
	w.crowd()
	w.elastic()
	if w.kind == Drains {
		w.budget("db")
	}
	for i := range w.IntN(3) {
		w.Create(w.job(fmt.Sprintf("pi-%d", i)))
	}
	w.start()
	w.after(w.upTo(4*time.Minute), w.crashAgain)
	w.after(w.upTo(2*time.Minute), w.user)
	if w.kind.fails() {
		w.after(w.upTo(2*time.Minute), w.misfortune)
	}
}

// crashAgain ends carob from time to time, also while it is idle.
func (w *world) crashAgain() {
	if !w.Faultless {
		w.crash()
		w.after(w.upTo(20*time.Minute), w.crashAgain)
	}
}

func (w *world) misfortune() {
	if !w.Faultless {
		w.trouble()
		w.after(w.upTo(5*time.Minute), w.misfortune)
	}
}

func (w *world) number(from, to int) *int32 {
	return new(int32(from + w.IntN(to-from+1))) //nolint:gosec // small
}

// template returns a template of pods, with one container that serves or one that ends.
func (w *world) template(app, container string) corev1.PodTemplateSpec {
	tolerated := new(int64(60))
	t := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}}}
	t.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways,
		TerminationGracePeriodSeconds: new(int64(1 + w.IntN(podGrace))), // 0 would remove the object at once
		Tolerations: []corev1.Toleration{
			{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: tolerated},
			{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists,
				Effect: corev1.TaintEffectNoExecute, TolerationSeconds: tolerated}},
		Containers: []corev1.Container{{Name: container, Image: "v0", ImagePullPolicy: corev1.PullIfNotPresent,
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: *resource.NewMilliQuantity(int64(1+w.IntN(3))*unit, resource.DecimalSI)}}}}}
	if w.kind.preempts() {
		t.Spec.Priority = new(int32(w.IntN(3) * 10)) //nolint:gosec // small
	}
	return t
}

func selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func (w *world) deployment(name string) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	d.Spec = appsv1.DeploymentSpec{Replicas: w.number(1, 5), RevisionHistoryLimit: w.number(0, 3),
		Selector:                selector(name),
		ProgressDeadlineSeconds: new(int32(600)), Template: w.template(name, "server"),
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}}
	if w.IntN(4) > 0 {
		surge, unavailable := w.IntN(3), w.IntN(3)
		if surge == 0 {
			unavailable++
		}
		d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxSurge: new(intstr.FromInt(surge)), MaxUnavailable: new(intstr.FromInt(unavailable))}}
	}
	return d
}

func (w *world) set(name string) *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	s.Spec = appsv1.StatefulSetSpec{Replicas: w.number(1, 4), RevisionHistoryLimit: w.number(0, 2),
		Selector:            selector(name),
		PodManagementPolicy: appsv1.OrderedReadyPodManagement, Template: w.template(name, "server"),
		UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(0))}}}
	if w.IntN(2) == 0 {
		s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	}
	if w.storage != nil {
		w.addClaims(s)
	}
	return s
}

func (w *world) job(name string) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: batchv1.JobSpec{
		Parallelism: w.number(1, 3), Completions: w.number(1, 5), BackoffLimit: new(int32(1000)),
		PodReplacementPolicy: new(batchv1.Failed), Selector: selector(name), Template: w.template(name, "task")}}
	if w.IntN(3) > 0 {
		j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
	}
	j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	return j
}

func (w *world) budget(app string) {
	w.Create(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app},
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector(app), MinAvailable: new(intstr.FromInt(w.IntN(3)))}})
}

// user acts from time to time.
func (w *world) user() {
	if w.Faultless {
		return
	}
	if w.kind != Rollouts && (w.kind == Drains || w.IntN(4) == 0) {
		w.operate()
	} else {
		w.change()
	}
	w.after(time.Second+w.upTo(5*time.Minute), w.user)
}

// change changes a workload, deletes one, or creates one.
func (w *world) change() {
	if w.kind == Crowded && w.IntN(3) == 0 {
		w.changeCrowd()
		return
	}
	if w.storage != nil && w.IntN(3) == 0 {
		w.changeStorage()
		return
	}
	if w.kind == Elastic && w.IntN(3) == 0 {
		w.changeElastic()
		return
	}
	switch n := w.IntN(20); {
	case n < 11:
		all := fakeapi.All[*appsv1.Deployment](w.API)
		if len(all) == 0 {
			w.Create(w.deployment("web-0"))
			return
		}
		d := all[w.IntN(len(all))]
		if n == 0 {
			w.discard(d)
			return
		}
		edit(w, d, w.editDeployment)
	case n < 16:
		all := fakeapi.All[*appsv1.StatefulSet](w.API)
		switch {
		case len(all) == 0:
			w.Create(w.set("db"))
		case n == 11:
			w.discard(all[0])
		default:
			edit(w, all[0], w.editSet)
		}
	case n < 18:
		for _, j := range fakeapi.All[*batchv1.Job](w.API) {
			if job.Finished(j) || w.IntN(8) == 0 {
				delete(w.invariants.scheduled, j.Name) // its CronJob may make it again
				w.discard(j)
				return
			}
		}
		if len(fakeapi.All[*batchv1.Job](w.API)) < 3 {
			w.Create(w.job(fmt.Sprintf("pi-%d", w.Writes())))
		}
	case w.kind.fails():
		if all := fakeapi.All[*corev1.Pod](w.API); len(all) > 0 {
			w.Delete(all[w.IntN(len(all))].UID, podGrace)
		}
	}
}

func edit[T fakeapi.Object](w *world, o T, do func(T)) {
	w.Change(o.GetUID(), func(o fakeapi.Object) {
		if typed, ok := o.(T); ok && o.GetDeletionTimestamp() == nil {
			o.SetGeneration(o.GetGeneration() + 1)
			do(typed)
		}
	})
}

func (w *world) editDeployment(d *appsv1.Deployment) {
	switch n := w.IntN(8); {
	case n < 4:
		d.Spec.Template.Spec.Containers[0].Image = []string{"v0", "v1", "v2", absent}[w.IntN(4)]
	case n < 6:
		d.Spec.Replicas = w.number(0, 6)
		w.scaledByUser()
	case n < 7:
		d.Spec.Paused = !d.Spec.Paused
	default:
		if d.Annotations == nil {
			d.Annotations = map[string]string{}
		}
		d.Annotations[appsv1.DeprecatedRollbackTo] = "0" // to the revision before
	}
	w.logf("%s: image %s, %d replicas", d.Name, d.Spec.Template.Spec.Containers[0].Image, *d.Spec.Replicas)
}

func (w *world) editSet(s *appsv1.StatefulSet) {
	if w.IntN(2) == 0 {
		s.Spec.Template.Spec.Containers[0].Image = []string{"v0", "v1", "v2"}[w.IntN(3)]
	} else {
		s.Spec.Replicas = w.number(0, 4)
	}
	w.logf("%s: image %s, %d replicas", s.Name, s.Spec.Template.Spec.Containers[0].Image, *s.Spec.Replicas)
}

// discard deletes an object, in the background or the foreground.
func (w *world) discard(o fakeapi.Object) {
	policy := metav1.DeletePropagationBackground
	if w.IntN(3) == 0 {
		policy = metav1.DeletePropagationForeground
	}
	w.logf("%s is deleted (%s)", o.GetName(), policy)
	w.Change(o.GetUID(), func(o fakeapi.Object) { withPropagation(o, policy) })
	w.Delete(o.GetUID(), 0)
}

// operate drains a node, makes one schedulable again, or adds and removes nodes.
func (w *world) operate() {
	all := w.present()
	if len(all) < 2 || w.IntN(5) == 0 && len(all) < 6 {
		w.addNode()
		return
	}
	m := all[w.IntN(len(all))]
	n, ok := w.Get(m.uid).(*corev1.Node)
	if !ok {
		return
	}
	switch {
	case n.Spec.Unschedulable && w.IntN(2) == 0:
		w.cordon(m, false)
	case n.Spec.Unschedulable:
		used := slices.ContainsFunc(fakeapi.All[*corev1.Pod](w.API),
			func(p *corev1.Pod) bool { return p.Spec.NodeName == m.name && !workload.Terminal(p) && !ofDaemonSet(p) })
		if !used && m != w.machines[0] {
			w.destroy(m)
			w.removeNode(m)
		}
	default:
		w.cordon(m, true)
		w.drain(m, 20)
	}
}

func (w *world) cordon(m *machine, on bool) {
	w.logf("%s unschedulable=%v", m.name, on)
	edit(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: m.uid}}, func(n *corev1.Node) { n.Spec.Unschedulable = on })
}

// drain evicts the pods of a node as kubectl does: again and again, for some time.
func (w *world) drain(m *machine, tries int) {
	left := false
	for _, p := range fakeapi.All[*corev1.Pod](w.API) {
		if p.Spec.NodeName == m.name && p.DeletionTimestamp == nil && !workload.Terminal(p) && !ofDaemonSet(p) {
			left = left || !w.evict(p)
		}
	}
	if left && tries > 0 && !w.Faultless {
		w.after(5*time.Second, func() { w.drain(m, tries-1) })
	}
}

// evict is the eviction of the API (L1.100 to L1.109). It returns false if a budget does not allow it.
func (w *world) evict(p *corev1.Pod) bool {
	if p.Status.Phase != corev1.PodPending {
		for _, b := range fakeapi.All[*policyv1.PodDisruptionBudget](w.API) {
			s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
			if err != nil || !s.Matches(labels.Set(p.Labels)) {
				continue
			}
			if !workload.Ready(p) && b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0 {
				continue
			}
			if b.Status.ObservedGeneration < b.Generation || b.Status.DisruptionsAllowed <= 0 {
				if !w.options.Sabotage.Hasty {
					return false
				}
			}
			w.Change(b.UID, func(o fakeapi.Object) {
				if b, ok := o.(*policyv1.PodDisruptionBudget); ok {
					b.Status.DisruptionsAllowed--
					if b.Status.DisruptedPods == nil {
						b.Status.DisruptedPods = map[string]metav1.Time{}
					}
					b.Status.DisruptedPods[p.Name] = metav1.NewTime(w.Now)
				}
			})
		}
	}
	w.logf("%s is evicted", p.Name)
	w.Change(p.UID, func(o fakeapi.Object) { disrupt(o, "EvictionByEvictionAPI", w.Now) })
	w.Delete(p.UID, podGrace)
	return true
}
