// Package autoscalers runs the plan of HorizontalPodAutoscalers with a Deployment as its Target, whose
// plans run, too, in random steps from one seed: load rises, falls, and oscillates; metrics are late,
// missing, and wrong; users change bounds and behaviour, and scale by themselves; watches deliver
// events late, twice, or only with a new list; there are conflicts and lost responses; the process ends
// between any two writes. Each change of the size is checked. Tests and the command "carob sim" run it;
// it must never touch a real cluster.
//
// Contract: docs/spec/workloads.md.
package autoscalers

import (
	"fmt"
	"maps"
	"math"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/workload"
	"carob/internal/core/workload/autoscaler"
	"carob/internal/sim/deployments"
	"carob/internal/sim/fakeapi"
)

// The invariants.
const (
	Bounds   fakeapi.Invariant = "a size is between minReplicas and maxReplicas (W7.22, W7.23, W7.76, W7.82)"
	Rates    fakeapi.Invariant = "no policy is exceeded: changes within its period count (W7.76, W7.81)"
	NoMetric fakeapi.Invariant = "without any metric the size stays (W7.26)"
	Careful  fakeapi.Invariant = "pods without a metric count as idle for growth, as busy for shrinking (W7.39, W7.40)"
	Steady   fakeapi.Invariant = "no change is undone within the stabilization window of its direction (W7.80)"
	Settles  fakeapi.Invariant = "with a steady load the size becomes right, and stays (W7.38, W7.42, W7.43)"
)

// Sabotage breaks the controller in one way; the zero value breaks nothing.
type Sabotage struct {
	In  func(in *autoscaler.Input)                         // changes the input of the plan
	Out func(in *autoscaler.Input, out *autoscaler.Output) // changes the plan
}

// Named is an invariant with a short name, and a way to break it.
type Named struct {
	Name      string
	Invariant fakeapi.Invariant
	Sabotage  Sabotage
}

// Invariants returns the invariants.
func Invariants() []Named {
	passes := 0
	return []Named{
		{"bounds", Bounds, Sabotage{Out: func(in *autoscaler.Input, out *autoscaler.Output) {
			if out.Rescale != nil && *out.Rescale == in.HPA.Spec.MaxReplicas {
				*out.Rescale++
			}
		}}},
		{"rates", Rates, Sabotage{In: func(in *autoscaler.Input) { in.History = autoscaler.History{} }}},
		{"blind", NoMetric, Sabotage{In: func(in *autoscaler.Input) {
			for i := range in.Samples {
				if in.Samples[i].Err != nil {
					in.Samples[i] = autoscaler.Sample{Values: []int64{1 << 30}}
				}
			}
		}}},
		{"careful", Careful, Sabotage{In: fillMissing}},
		{"steady", Steady, Sabotage{In: func(in *autoscaler.Input) {
			in.HPA = in.HPA.DeepCopy()
			if b := in.HPA.Spec.Behavior; b != nil {
				b.ScaleUp.StabilizationWindowSeconds = new(int32(0))
				b.ScaleDown.StabilizationWindowSeconds = new(int32(0))
			}
		}}},
		{"settles", Settles, Sabotage{In: func(in *autoscaler.Input) {
			passes++
			for i := range in.Samples {
				for k := range in.Samples[i].Values {
					in.Samples[i].Values[k] *= 1 + int64(passes/100%2)
				}
			}
		}}},
	}
}

// fillMissing gives pods without a metric a high value.
func fillMissing(in *autoscaler.Input) {
	for i, s := range in.Samples {
		if s.Err != nil || s.Pods == nil {
			continue
		}
		filled := maps.Clone(s.Pods)
		for _, p := range in.Pods {
			if _, ok := filled[p.Name]; !ok {
				filled[p.Name] = autoscaler.PodValue{Value: 20 * Target, At: in.Now, Window: 15 * time.Second}
			}
		}
		in.Samples[i].Pods = filled
	}
}

func broken(format string, args ...any) *fakeapi.Broken {
	return &fakeapi.Broken{Invariant: Settles, How: fmt.Sprintf(format, args...)}
}

var begin = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

const (
	// Target is the target load of one pod, in thousandths.
	Target = 1000
	// request is the CPU request of a pod, in thousandths.
	request = 500
)

type world struct {
	*fakeapi.API
	sabotage    Sabotage
	hpa         types.UID
	deployment  types.UID
	caches      *fakeapi.Caches
	deployments *deployments.Deployments
	sets        *deployments.ReplicaSets
	controller  *Controller
	load        float64 // of all pods together, in thousandths
	mood        mood
	passes      int
	rescales    int
}

// mood defines how the load changes.
type mood int

const (
	steady mood = iota
	rising
	falling
	oscillating
	moods
)

// Result sums up a run.
type Result struct {
	Passes, Rescales, Writes int
	Virtual                  time.Duration
}

// Run runs the given number of steps of a seed and returns the first broken invariant, nil for
// none.
func Run(seed uint64, steps int, sabotage Sabotage) (r Result, err error) {
	w := &world{API: fakeapi.New(seed, begin), sabotage: sabotage, load: 3 * Target}
	err = fakeapi.Catch(func() {
		w.Ended = func(o fakeapi.Object) bool {
			p, ok := o.(*corev1.Pod)
			return !ok || workload.Terminal(p)
		}
		w.API.Stored = w.stored
		w.deployment = w.Create(w.newDeployment()).GetUID()
		w.hpa = w.Create(w.newAutoscaler()).GetUID()
		w.restart()
		for range steps {
			w.step()
		}
		w.rest()
	})
	return Result{Passes: w.passes, Rescales: w.rescales, Writes: w.Writes(), Virtual: w.Now.Sub(begin)}, err
}

func (w *world) number(from, to int) int32 { return int32(from + w.IntN(to-from+1)) } //nolint:gosec // small

func (w *world) newDeployment() *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: new(w.number(1, 4)), RevisionHistoryLimit: new(int32(1)),
		Selector:                &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		ProgressDeadlineSeconds: new(int32(600)),
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: new(intstr.FromInt(1)),
				MaxUnavailable: new(intstr.FromInt(1))}}}}
	d.Spec.Template.Labels = map[string]string{"app": "web"}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: "v0",
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: *resource.NewMilliQuantity(request, resource.DecimalSI)}}}}
	return d
}

func (w *world) newAutoscaler() *autoscalingv2.HorizontalPodAutoscaler {
	h := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
			APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}}
	w.bounds(&h.Spec)
	switch w.IntN(3) {
	case 0:
		h.Spec.Metrics = []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType,
			External: &autoscalingv2.ExternalMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "queue"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
					AverageValue: resource.NewMilliQuantity(Target, resource.DecimalSI)}}}}
	case 1:
		h.Spec.Metrics = []autoscalingv2.MetricSpec{{Type: autoscalingv2.PodsMetricSourceType,
			Pods: &autoscalingv2.PodsMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "requests"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
					AverageValue: resource.NewMilliQuantity(Target, resource.DecimalSI)}}}}
	default:
		h.Spec.Metrics = []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU,
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType,
					AverageUtilization: new(int32(100 * Target / request))}}}}
	}
	return h
}

// bounds sets the limits of an autoscaler.
func (w *world) bounds(s *autoscalingv2.HorizontalPodAutoscalerSpec) {
	s.MinReplicas = new(w.number(1, 3))
	s.MaxReplicas = *s.MinReplicas + w.number(0, 17)
	if s.Behavior = nil; w.IntN(3) > 0 {
		s.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: w.rules(0), ScaleDown: w.rules(300)}
	}
}

func (w *world) rules(window int32) *autoscalingv2.HPAScalingRules {
	r := &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(window),
		SelectPolicy: new([]autoscalingv2.ScalingPolicySelect{autoscalingv2.MaxChangePolicySelect,
			autoscalingv2.MinChangePolicySelect}[w.IntN(2)])}
	if w.IntN(2) == 0 {
		r.StabilizationWindowSeconds = new(w.number(0, 600))
	}
	for range 1 + w.IntN(2) {
		p := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: w.number(1, 4),
			PeriodSeconds: w.number(15, 300)}
		if w.IntN(2) == 0 {
			p.Type, p.Value = autoscalingv2.PercentScalingPolicy, w.number(60, 200)
			if window > 0 {
				p.Value = w.number(20, 100)
			}
		}
		r.Policies = append(r.Policies, p)
	}
	return r
}

// restart starts a new process with all controllers.
func (w *world) restart() {
	client := w.Client()
	w.caches = fakeapi.NewCaches(w.API)
	w.deployments = deployments.NewDeployments(w.API, client, w.caches, deployments.Hooks{})
	w.sets = deployments.NewReplicaSets(w.API, client, w.caches, deployments.Hooks{})
	w.controller = NewController(w.API, client, w.caches, Hooks{Sabotage: w.sabotage, Passed: func() { w.passes++ },
		Load: func(*autoscalingv2.HorizontalPodAutoscaler) float64 { return w.load }})
}

// stored counts the changes of the size.
func (w *world) stored(before fakeapi.Object, after fakeapi.Entry) {
	old, ok := before.(*appsv1.Deployment)
	d, also := after.Object.(*appsv1.Deployment)
	if ok && also && *old.Spec.Replicas != *d.Spec.Replicas {
		w.rescales++
	}
}

// turn lets the controllers process their events.
func (w *world) turn() {
	if !w.controller.Turn() || !w.deployments.Turn() || !w.sets.Turn() {
		w.restart()
	}
}

// step is a few seconds.
func (w *world) step() {
	w.Now = w.Now.Add(time.Duration(1+w.IntN(9)) * time.Second)
	for _, watch := range w.caches.Watches() {
		if !w.One(4) {
			watch.Deliver()
		}
	}
	w.change()
	w.node()
	w.turn()
	switch {
	case w.One(60):
		w.user()
	case w.One(200):
		w.restart()
	}
}

// change changes the load.
func (w *world) change() {
	if w.One(40) {
		w.mood = mood(w.IntN(int(moods)))
	}
	switch w.mood {
	case rising:
		w.load *= 1.02
	case falling:
		w.load *= 0.98
	case oscillating:
		w.load *= 1 + 0.03*math.Sin(w.Now.Sub(begin).Minutes())
	case steady, moods:
	}
	w.load = min(max(w.load, 0), 40*Target)
}

// user changes the autoscaler, or scales the target.
func (w *world) user() {
	if w.IntN(3) == 0 {
		w.Change(w.deployment, func(o fakeapi.Object) {
			if d, ok := o.(*appsv1.Deployment); ok {
				d.Spec.Replicas, d.Generation = new(w.number(1, 20)), d.Generation+1
			}
		})
		w.rescales--
		w.controller.Forget()
		return
	}
	w.Change(w.hpa, func(o fakeapi.Object) {
		if h, ok := o.(*autoscalingv2.HorizontalPodAutoscaler); ok {
			h.Generation++
			w.bounds(&h.Spec)
		}
	})
}

// node starts pods, breaks some, and ends those that are being deleted.
func (w *world) node() {
	for _, p := range fakeapi.All[*corev1.Pod](w.API) {
		change := func(s corev1.PodStatus) {
			w.Change(p.UID, func(o fakeapi.Object) {
				if p, ok := o.(*corev1.Pod); ok {
					p.Status = s
				}
			})
		}
		switch {
		case workload.Terminal(p) || w.One(3):
		case p.DeletionTimestamp != nil || w.One(400):
			change(corev1.PodStatus{Phase: corev1.PodFailed})
		case !workload.Ready(p):
			change(corev1.PodStatus{Phase: corev1.PodRunning, StartTime: new(metav1.NewTime(w.Now)),
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
					LastTransitionTime: metav1.NewTime(w.Now)}}})
		}
	}
}

// quiet is how long after the last fault and the last change of the load the size must be right: the
// stabilization windows, and the periods of the policies, one after the other.
const quiet = 3 * time.Hour

// LeastWindow is the stabilization window for scaling down with which sizes settle, in seconds. A new pod takes its
// part of the load at once, and counts half a minute later (W7.10): in between, the pods that count look idle, and with
// a shorter window upstream's algorithm removes the new one again.
const LeastWindow = 60

// rest ends all faults and keeps the load as it is. The size becomes right, and stays.
func (w *world) rest() {
	w.Faultless, w.mood = true, steady
	w.Change(w.hpa, func(o fakeapi.Object) {
		if h, ok := o.(*autoscalingv2.HorizontalPodAutoscaler); ok && h.Spec.Behavior != nil {
			down := h.Spec.Behavior.ScaleDown
			down.StabilizationWindowSeconds = new(max(*down.StabilizationWindowSeconds, LeastWindow))
		}
	})
	end := w.Now.Add(quiet)
	for w.Now.Before(end) {
		w.quietStep()
	}
	size := w.end()
	for end := w.Now.Add(time.Hour); w.Now.Before(end); {
		w.quietStep()
		if d, ok := w.Get(w.deployment).(*appsv1.Deployment); !ok || *d.Spec.Replicas != size {
			fakeapi.Break(Settles, "the size was %d, and changed with a steady load", size)
		}
	}
}

// end checks that the size is right for the load, and returns it.
func (w *world) end() int32 {
	h, ok := w.Get(w.hpa).(*autoscalingv2.HorizontalPodAutoscaler)
	d, also := w.Get(w.deployment).(*appsv1.Deployment)
	if !ok || !also {
		fakeapi.Break(Settles, "the autoscaler or its target is gone")
	}
	if b := Right(h, d, w.load); b != nil {
		panic(b)
	}
	return *d.Spec.Replicas
}

func (w *world) quietStep() {
	w.Now = w.Now.Add(5 * time.Second)
	w.caches.CatchUp()
	w.node()
	w.turn()
}
