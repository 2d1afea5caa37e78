package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

type api = kubernetes.Interface

// step is something that happens on both sides: what does it may be called once for each.
type step struct {
	name string
	do   func(ctx context.Context, c api, namespace string) error
	// kubelet, unless nil, is what nodes do instead.
	kubelet func(k *kubelet) error
	// period makes the comparison wait until autoscalers have run once more: they run at times of their own.
	period bool
}

// script makes a random history. Each request is followed by what nodes do about it.
func script(r *rand.Rand, requests int) []step {
	w := &writer{r: r, there: map[string]bool{}}
	var steps []step
	for range requests {
		steps = append(steps, w.request())
		for range 1 + r.IntN(2) {
			steps = append(steps, w.nodes())
		}
	}
	if r.IntN(4) == 0 {
		steps = append(steps, w.autoscaled()...)
	}
	return append(steps, w.run(), w.reap(), w.run())
}

// autoscaled is a story of an autoscaler. There is no metric: it keeps the size within its bounds, and its status shows
// why.
func (w *writer) autoscaled() []step {
	steps := []step{w.autoscaler(), w.deployment(), w.run(), w.autoscaler()}
	for i := range steps {
		steps[i].period = true
	}
	return steps
}

// writer has the objects that the story has created so far.
type writer struct {
	r     *rand.Rand
	there map[string]bool
}

func (w *writer) request() step {
	kinds := []func() step{w.deployment, w.deployment, w.deployment, w.replicaSet, w.controller, w.statefulSet,
		w.statefulSet, w.daemonSet, w.daemonSet, w.job, w.job, w.job, w.cronJob, w.budget, w.service, w.pod,
		w.change, w.change, w.change, w.change, w.change, w.taintNode}
	return kinds[w.r.IntN(len(kinds))]()
}

// nodes is what kubelets do next.
func (w *writer) nodes() step {
	k := w.r.IntN(100)
	act := func(name string, f func(k *kubelet) error) step { return step{name: "kubelet: " + name, kubelet: f} }
	switch n := w.r.IntN(12); {
	case n < 4:
		return w.run()
	case n < 6:
		return w.reap()
	case n == 6:
		return act("start, not ready", func(x *kubelet) error { return x.start(false) })
	case n == 7:
		return act(fmt.Sprintf("pod %d fails", k), func(x *kubelet) error { return x.finish(k, corev1.PodFailed) })
	case n == 8:
		return act(fmt.Sprintf("pod %d succeeds", k),
			func(x *kubelet) error { return x.finish(k, corev1.PodSucceeded) })
	case n == 9:
		return act(fmt.Sprintf("pod %d is deleted", k), func(x *kubelet) error { return x.drop(k) })
	case n == 10:
		return act(fmt.Sprintf("pod %d gets other labels", k), func(x *kubelet) error { return x.relabel(k) })
	}
	return act(fmt.Sprintf("pod %d is not ready", k), func(x *kubelet) error { return x.unready(k) })
}

func (w *writer) run() step {
	return step{name: "kubelet: all run", kubelet: func(x *kubelet) error { return x.start(true) }}
}

func (w *writer) reap() step {
	return step{name: "kubelet: what is deleted ends", kubelet: func(x *kubelet) error { return x.reap() }}
}

func pick[T any](w *writer, from ...T) T { return from[w.r.IntN(len(from))] }

func labels(name string) map[string]string { return map[string]string{"app": name} }

func (w *writer) template(name string) corev1.PodTemplateSpec {
	grace, class := int64(30), ""
	if w.r.IntN(12) == 0 {
		class = "none" // no pod can be created
	}
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels(name)},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &grace, PriorityClassName: class,
			Containers: []corev1.Container{{Name: "c",
				Image: pick(w, "registry.example/a:1", "registry.example/a:2", "registry.example/a:3"),
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{"cpu": resource.MustParse("10m")}}}}}}
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{"made-by": "script"}}
}

// least is for how long a pod must be ready: longer than any history takes, or not at all.
func (w *writer) least() int32 { return pick[int32](w, 0, 0, 0, 0, 7200) }

// unusable marks a template of which no pod can be made.
func unusable(t corev1.PodTemplateSpec) string {
	if t.Spec.PriorityClassName != "" {
		return " refused"
	}
	return ""
}

func (w *writer) count() *int32 { return new(int32(w.r.IntN(5))) }

func (w *writer) percent() *intstr.IntOrString {
	return pick(w, new(intstr.FromInt32(0)), new(intstr.FromInt32(1)), new(intstr.FromInt32(2)),
		new(intstr.FromString("25%")), new(intstr.FromString("50%")))
}

// remove deletes an object in one of the three ways.
func (w *writer) remove(name string, do func(ctx context.Context, c api, namespace string,
	o metav1.DeleteOptions) error) step {
	w.there[name] = false
	policy := pick(w, metav1.DeletePropagationBackground, metav1.DeletePropagationBackground,
		metav1.DeletePropagationOrphan, metav1.DeletePropagationForeground)
	return step{name: fmt.Sprintf("delete %s, %s", name, policy), do: func(ctx context.Context, c api,
		namespace string) error {
		return do(ctx, c, namespace, metav1.DeleteOptions{PropagationPolicy: &policy})
	}}
}

// store creates an object, or changes the one that is there. get returns the client of its kind.
func store[T any, P interface {
	*T
	metav1.Object
}](w *writer, name string, get func(c api, namespace string) client[P], fill func(o P), change string) step {
	verb := "create"
	if w.there[name] {
		verb = "change"
	}
	w.there[name] = true
	return step{name: verb + " " + name + " " + change, do: func(ctx context.Context, c api,
		namespace string) error {
		api := get(c, namespace)
		for {
			o, err := api.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				o = new(T)
				o.SetName(name)
				fill(o)
				_, err = api.Create(ctx, o, metav1.CreateOptions{})
				return err
			}
			fill(o)
			if _, err = api.Update(ctx, o, metav1.UpdateOptions{}); !isConflict(err) {
				return err
			}
		}
	}}
}

type client[P any] interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (P, error)
	Create(ctx context.Context, o P, options metav1.CreateOptions) (P, error)
	Update(ctx context.Context, o P, options metav1.UpdateOptions) (P, error)
}

func (w *writer) deployment() step {
	name := pick(w, "d0", "d1")
	if w.there[name] && w.r.IntN(6) == 0 {
		return w.remove(name, func(ctx context.Context, c api, ns string, o metav1.DeleteOptions) error {
			return c.AppsV1().Deployments(ns).Delete(ctx, name, o)
		})
	}
	replicas, t := w.count(), w.template(name)
	surge, unavailable := w.percent(), w.percent()
	recreate, paused, limit, least := w.r.IntN(5) == 0, w.r.IntN(6) == 0, int32(w.r.IntN(3)), w.least()
	return store(w, name, func(c api, ns string) client[*appsv1.Deployment] {
		return c.AppsV1().Deployments(ns)
	}, func(d *appsv1.Deployment) {
		d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels(name)}
		d.Spec.Replicas, d.Spec.Template, d.Spec.Paused, d.Spec.RevisionHistoryLimit = replicas, t, paused, &limit
		d.Spec.MinReadySeconds = least
		d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
		if !recreate {
			d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: surge, MaxUnavailable: unavailable}}
		}
	}, fmt.Sprintf("replicas %d image %s surge %v unavailable %v recreate %t paused %t history %d ready %d s%s",
		*replicas,
		t.Spec.Containers[0].Image, surge, unavailable, recreate, paused, limit, least, unusable(t)))
}

func (w *writer) replicaSet() step {
	name := "r0"
	if w.there[name] && w.r.IntN(5) == 0 {
		return w.remove(name, func(ctx context.Context, c api, ns string, o metav1.DeleteOptions) error {
			return c.AppsV1().ReplicaSets(ns).Delete(ctx, name, o)
		})
	}
	replicas, t, least := w.count(), w.template(name), w.least()
	return store(w, name, func(c api, ns string) client[*appsv1.ReplicaSet] {
		return c.AppsV1().ReplicaSets(ns)
	}, func(s *appsv1.ReplicaSet) {
		s.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels(name)}
		s.Spec.Replicas, s.Spec.Template, s.Spec.MinReadySeconds = replicas, t, least
	}, fmt.Sprintf("replicas %d ready %d s%s", *replicas, least, unusable(t)))
}

func (w *writer) controller() step {
	name := "c0"
	if w.there[name] && w.r.IntN(5) == 0 {
		return w.remove(name, func(ctx context.Context, c api, ns string, o metav1.DeleteOptions) error {
			return c.CoreV1().ReplicationControllers(ns).Delete(ctx, name, o)
		})
	}
	replicas, t := w.count(), w.template(name)
	return store(w, name, func(c api, ns string) client[*corev1.ReplicationController] {
		return c.CoreV1().ReplicationControllers(ns)
	}, func(s *corev1.ReplicationController) {
		s.Spec.Selector, s.Spec.Replicas, s.Spec.Template = labels(name), replicas, &t
	}, fmt.Sprintf("replicas %d%s", *replicas, unusable(t)))
}

func (w *writer) statefulSet() step {
	name := pick(w, "s0", "s1")
	if w.there[name] && w.r.IntN(6) == 0 {
		return w.remove(name, func(ctx context.Context, c api, ns string, o metav1.DeleteOptions) error {
			return c.AppsV1().StatefulSets(ns).Delete(ctx, name, o)
		})
	}
	replicas, t, partition := w.count(), w.template(name), int32(w.r.IntN(3)/2)
	onDelete, start, least := w.r.IntN(6) == 0, int32(w.r.IntN(4)/3), w.least()
	unavailable := pick(w, nil, nil, new(intstr.FromInt32(1)), new(intstr.FromInt32(2)), new(intstr.FromString("50%")))
	remove := appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	retain := appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	kept := &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: pick(w, retain, remove),
		WhenScaled: pick(w, retain, remove)}
	return store(w, name, func(c api, ns string) client[*appsv1.StatefulSet] {
		return c.AppsV1().StatefulSets(ns)
	}, func(s *appsv1.StatefulSet) {
		s.Spec.Selector, s.Spec.ServiceName = &metav1.LabelSelector{MatchLabels: labels(name)}, "none"
		s.Spec.Replicas, s.Spec.Template, s.Spec.RevisionHistoryLimit = replicas, t, new(int32(1))
		s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: start}
		if s.ResourceVersion == "" && name == "s1" {
			s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
			s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources: corev1.VolumeResourceRequirements{
						Requests: corev1.ResourceList{"storage": resource.MustParse("1Mi")}}}}}
		}
		s.Spec.MinReadySeconds, s.Spec.PersistentVolumeClaimRetentionPolicy = least, kept
		s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
		if !onDelete {
			s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition,
					MaxUnavailable: unavailable}}
		}
	}, fmt.Sprintf("replicas %d image %s partition %d onDelete %t start %d unavailable %v ready %d s claims %s %s%s",
		*replicas, t.Spec.Containers[0].Image, partition, onDelete, start, unavailable, least, kept.WhenDeleted,
		kept.WhenScaled, unusable(t)))
}

func (w *writer) daemonSet() step {
	name := "m0"
	if w.there[name] && w.r.IntN(4) == 0 {
		return w.remove(name, func(ctx context.Context, c api, ns string, o metav1.DeleteOptions) error {
			return c.AppsV1().DaemonSets(ns).Delete(ctx, name, o)
		})
	}
	t, node, unavailable := w.template(name), w.r.IntN(5), new(intstr.FromInt32(int32(1+w.r.IntN(2))))
	surge, onDelete, least := new(intstr.FromInt32(0)), w.r.IntN(6) == 0, w.least()
	if w.r.IntN(3) == 0 {
		surge, unavailable = unavailable, surge
	}
	if node < 3 {
		t.Spec.NodeSelector = map[string]string{corev1.LabelHostname: nodeName(node)}
	}
	return store(w, name, func(c api, ns string) client[*appsv1.DaemonSet] {
		return c.AppsV1().DaemonSets(ns)
	}, func(s *appsv1.DaemonSet) {
		s.Spec.Selector, s.Spec.Template = &metav1.LabelSelector{MatchLabels: labels(name)}, t
		s.Spec.RevisionHistoryLimit = new(int32(1))
		s.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: unavailable, MaxSurge: surge}}
		if s.Spec.MinReadySeconds = least; onDelete {
			s.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
		}
	}, fmt.Sprintf("image %s node %d unavailable %v surge %v onDelete %t ready %d s%s",
		t.Spec.Containers[0].Image, node, unavailable, surge, onDelete, least, unusable(t)))
}

// cronJob makes one that was due last on New Year's Day, so that the name of its Job does not depend on when this runs.
func (w *writer) cronJob() step {
	name := pick(w, "k0", "k1")
	if due := w.r.Uint32(); w.there[name] && w.r.IntN(2) == 0 {
		return step{name: name + " is due", do: func(ctx context.Context, c api, ns string) error {
			cj, err := c.BatchV1().CronJobs(ns).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			last := time.Date(time.Now().Year()-2, 6, 1, 0, 0, 0, 0, time.UTC).Format(time.RFC3339)
			_, err = c.BatchV1().CronJobs(ns).Patch(ctx, cj.Name, types.MergePatchType,
				[]byte(`{"status":{"lastScheduleTime":"`+last+`"}}`), metav1.PatchOptions{}, "status")
			if err != nil {
				return err
			}
			_, err = c.BatchV1().CronJobs(ns).Patch(ctx, cj.Name, types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"due":"`+fmt.Sprint(due)+`"}}}`), metav1.PatchOptions{})
			return err
		}}
	}
	if w.there[name] && w.r.IntN(3) == 0 {
		return w.remove(name, func(ctx context.Context, c api, ns string, o metav1.DeleteOptions) error {
			return c.BatchV1().CronJobs(ns).Delete(ctx, name, o)
		})
	}
	t, suspend := w.template(name), w.r.IntN(4) == 0
	t.Labels, t.Spec.RestartPolicy = map[string]string{"job": name}, corev1.RestartPolicyNever
	policy := pick(w, batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent)
	good, bad := int32(w.r.IntN(2)), int32(w.r.IntN(2))
	return store(w, name, func(c api, ns string) client[*batchv1.CronJob] {
		return c.BatchV1().CronJobs(ns)
	}, func(cj *batchv1.CronJob) {
		cj.Spec = batchv1.CronJobSpec{Schedule: "0 0 1 1 *", Suspend: &suspend, ConcurrencyPolicy: policy,
			SuccessfulJobsHistoryLimit: &good, FailedJobsHistoryLimit: &bad,
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: t, BackoffLimit: new(int32(0))}}}
	}, fmt.Sprintf("suspend %t %s history %d %d", suspend, policy, good, bad))
}

func (w *writer) budget() step {
	name, of := "b0", pick(w, "d0", "d1", "s0", "r0", "c0")
	if w.there[name] {
		return w.remove(name, func(ctx context.Context, c api, ns string, o metav1.DeleteOptions) error {
			return c.PolicyV1().PodDisruptionBudgets(ns).Delete(ctx, name, o)
		})
	}
	value, least := w.percent(), w.r.IntN(2) == 0
	return store(w, name, func(c api, ns string) client[*policyv1.PodDisruptionBudget] {
		return c.PolicyV1().PodDisruptionBudgets(ns)
	}, func(b *policyv1.PodDisruptionBudget) {
		b.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels(of)}
		if least {
			b.Spec.MinAvailable = value
		} else {
			b.Spec.MaxUnavailable = value
		}
	}, fmt.Sprintf("of %s %v, minimum: %t", of, value, least))
}

func (w *writer) service() step {
	of := pick(w, "d0", "d1", "s0", "r0", "m0")
	name, unready, headless := "svc-"+of, w.r.IntN(4) == 0, w.r.IntN(3) == 0
	if w.there[name] && w.r.IntN(3) == 0 {
		return w.remove(name, func(ctx context.Context, c api, ns string, o metav1.DeleteOptions) error {
			return c.CoreV1().Services(ns).Delete(ctx, name, o)
		})
	}
	port := int32(80 + w.r.IntN(3))
	return store(w, name, func(c api, ns string) client[*corev1.Service] {
		return c.CoreV1().Services(ns)
	}, func(s *corev1.Service) {
		if s.ResourceVersion == "" && headless {
			s.Spec.ClusterIP = corev1.ClusterIPNone
		}
		s.Spec.Selector, s.Spec.PublishNotReadyAddresses = labels(of), unready
		s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: port, TargetPort: intstr.FromInt32(port)}}
	}, fmt.Sprintf("port %d, not ready: %t, headless: %t", port, unready, headless))
}

func (w *writer) autoscaler() step {
	name, of := "h0", pick(w, "d0", "d1", "d2")
	if w.there[name] {
		return w.remove(name, func(ctx context.Context, c api, ns string, o metav1.DeleteOptions) error {
			return c.AutoscalingV2().HorizontalPodAutoscalers(ns).Delete(ctx, name, o)
		})
	}
	least := int32(1 + w.r.IntN(3))
	most := least + int32(w.r.IntN(2))
	return store(w, name, func(c api, ns string) client[*autoscalingv2.HorizontalPodAutoscaler] {
		return c.AutoscalingV2().HorizontalPodAutoscalers(ns)
	}, func(h *autoscalingv2.HorizontalPodAutoscaler) {
		h.Spec = autoscalingv2.HorizontalPodAutoscalerSpec{MinReplicas: &least, MaxReplicas: most,
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment",
				Name: of},
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType,
				Resource: &autoscalingv2.ResourceMetricSource{Name: "cpu", Target: autoscalingv2.MetricTarget{
					Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(50))}}}}}
	}, fmt.Sprintf("of %s %d to %d", of, least, most))
}

// pod is a pod without an owner, which a controller may adopt.
func (w *writer) pod() step {
	of, n := pick(w, "r0", "c0", "d0", "s0"), w.r.IntN(1000)
	t := w.template(of)
	return step{name: fmt.Sprintf("create a pod for %s", of), do: func(ctx context.Context, c api,
		ns string) error {
		p := &corev1.Pod{ObjectMeta: meta(fmt.Sprint("lone-", n)), Spec: t.Spec}
		p.Labels = labels(of)
		_, err := c.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{})
		return err
	}}
}
