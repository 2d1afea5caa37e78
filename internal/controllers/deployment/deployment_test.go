package deployment_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/deployment"
	"carob/internal/controllers/replicaset"
	"carob/internal/controllers/source"
	"carob/internal/core/workload"
	plan "carob/internal/core/workload/deployment"
)

// world is the two controllers on an API in memory, with a node that runs pods.
type world struct {
	*testing.T
	api *controllertest.API

	mu     sync.Mutex
	events map[string]int
	stop   func() // ends the controllers, as a crash does
}

func (w *world) Event(_ runtime.Object, kind, reason, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events[kind+" "+reason+" "+message]++
}

func (w *world) Eventf(o runtime.Object, kind, reason, format string, args ...any) {
	w.Event(o, kind, reason, fmt.Sprintf(format, args...))
}

func (w *world) AnnotatedEventf(o runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	w.Eventf(o, kind, reason, format, args...)
}

// count returns the number of events with this prefix.
func (w *world) count(prefix string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for e, times := range w.events {
		if strings.HasPrefix(e, prefix) {
			n += times
		}
	}
	return n
}

func inWorld(t *testing.T, test func(w *world), objects ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, api: controllertest.New(objects...), events: map[string]int{}, stop: func() {}}
		defer func() { w.stop() }()
		test(w)
	})
}

// start runs the controllers until stop.
func (w *world) start() {
	w.Helper()
	deployments, sets, pods := source.Deployments(w.api), source.ReplicaSets(w.api), source.Pods(w.api)
	rs, err := replicaset.New(w.api, w, sets, pods)
	if err != nil {
		w.Fatal(err)
	}
	d, err := deployment.New(w.api, w, deployments, sets, pods)
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, watch := range []*source.Watch{deployments, sets, pods} {
		all.Go(func() { watch.Run(ctx) })
	}
	for _, watch := range []*source.Watch{deployments, sets, pods} {
		<-watch.Synced()
	}
	all.Go(func() { rs.Run(ctx) })
	all.Go(func() { d.Run(ctx) })
	w.stop = func() { cancel(); all.Wait() }
}

// node acts for the nodes: new pods become ready, deleted ones end. broken: pods that never become ready.
func (w *world) node(broken func(*corev1.Pod) bool) {
	for _, p := range controllertest.All[*corev1.Pod](w.api) {
		switch {
		case p.DeletionTimestamp != nil:
			w.api.Remove(p)
		case len(p.Status.Conditions) == 0 && (broken == nil || !broken(p)):
			controllertest.Change(w.api, p.Namespace, p.Name, func(p *corev1.Pod) {
				p.Spec.NodeName = "node"
				p.Status.Phase = corev1.PodRunning
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
					LastTransitionTime: metav1.Now()}}
			})
		}
	}
}

func (w *world) deployment() *appsv1.Deployment {
	return controllertest.All[*appsv1.Deployment](w.api)[0]
}

// settle lets time pass until the deployment is complete and no old pods are left.
func (w *world) settle() {
	w.Helper()
	for range 600 {
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		w.node(nil)
		if s, d := w.deployment().Status, w.deployment(); s.ObservedGeneration == d.Generation &&
			s.UpdatedReplicas == *d.Spec.Replicas && s.Replicas == *d.Spec.Replicas &&
			s.AvailableReplicas == *d.Spec.Replicas &&
			len(controllertest.All[*corev1.Pod](w.api)) == int(*d.Spec.Replicas) {
			return
		}
	}
	w.Fatalf("not complete after a minute: %+v", w.deployment().Status)
}

func web(size int32) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: &size, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		RevisionHistoryLimit: new(int32(2)), ProgressDeadlineSeconds: new(int32(600)),
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{}},
	}}
	d.Spec.Template.Labels = map[string]string{"app": "web"}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: "v1"}}
	return d
}

func TestRollout(t *testing.T) {
	inWorld(t, func(w *world) {
		w.start()
		w.settle()
		controllertest.Change(w.api, "n", "web",
			func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "v2" })
		w.settle()
		sets := controllertest.All[*appsv1.ReplicaSet](w.api)
		if len(sets) != 2 {
			t.Fatalf("%d replica sets", len(sets))
		}
		for what, want := range map[string]int{"Normal ScalingReplicaSet Scaled up replica set web-": 6,
			"Normal SuccessfulCreate Created pod: web-": 10, "Normal SuccessfulDelete Deleted pod: web-": 5} {
			if got := w.count(what); got < want || strings.Contains(what, "Pod") && got != want {
				t.Errorf("%d events %q, want %d", got, what, want)
			}
		}
		w.api.Log()
		time.Sleep(time.Hour)
		if log := w.api.Log(); len(log) > 0 {
			t.Errorf("writes in an hour without changes: %q", log)
		}
	}, web(5))
}

// With all faults: late, duplicate and lost events, conflicts, errors before and after the effect, controllers
// that end between any two writes. The invariants hold after each write.
func TestRolloutUnderFaults(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inWorld(t, func(w *world) { trouble(w, rand.New(rand.NewPCG(seed, 1))) },
				web(int32(3+seed%7))) //nolint:gosec // reproducible
		})
	}
}

func trouble(w *world, random *rand.Rand) {
	var mu sync.Mutex
	chance := func(percent int) bool {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(100) < percent
	}
	noFaults, crash := false, make(chan struct{}, 1)
	w.api.Late = func() time.Duration {
		if mu.Lock(); noFaults {
			mu.Unlock()
			return 0
		}
		defer mu.Unlock()
		return time.Duration(random.IntN(300)) * time.Millisecond
	}
	w.api.Faults = func() controllertest.Fault {
		switch {
		case noFaults:
		case chance(3):
			return controllertest.Cut
		case chance(10):
			return controllertest.Twice
		}
		return controllertest.None
	}
	w.api.Before = func(_ string, gvr schema.GroupVersionResource, o metav1.Object) error {
		switch {
		case noFaults:
		case chance(4):
			return apierrors.NewConflict(gvr.GroupResource(), o.GetName(), errors.New("somebody else"))
		case chance(4):
			return apierrors.NewInternalError(errors.New("no effect"))
		}
		return nil
	}
	largest := map[types.UID]int32{}             // of sets: the largest size they ever had
	active := map[types.UID]map[types.UID]bool{} // of sets: their pods that are not being deleted
	w.api.After = func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error {
		if set, ok := o.(*appsv1.ReplicaSet); ok {
			largest[set.UID] = max(largest[set.UID], *set.Spec.Replicas)
		}
		if pod, ok := o.(*corev1.Pod); ok {
			set := metav1.GetControllerOf(pod).UID
			if active[set] == nil {
				active[set] = map[types.UID]bool{}
			}
			switch verb {
			case "create":
				if active[set][pod.UID] = true; len(active[set]) > int(largest[set]) {
					w.Errorf("pod %s is one too many for a set of %d", pod.Name, largest[set])
				}
			case "delete":
				delete(active[set], pod.UID)
			}
		}
		if !noFaults && chance(4) {
			select {
			case crash <- struct{}{}:
			default:
			}
		}
		return nil
	}
	w.start()
	for turn := range 60 {
		time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
		synctest.Wait()
		select {
		case <-crash:
			w.stop()
			w.start()
		default:
		}
		if turn%10 == 9 {
			controllertest.Change(w.api, "n", "web", func(d *appsv1.Deployment) {
				d.Spec.Template.Spec.Containers[0].Image = "v" + strconv.Itoa(random.IntN(3))
			})
		}
		w.node(nil)
		w.checkBounds()
	}
	noFaults = true
	w.settle()
	for _, s := range controllertest.All[*appsv1.ReplicaSet](w.api) {
		if !workload.SameTemplate(&s.Spec.Template, &w.deployment().Spec.Template) && *s.Spec.Replicas != 0 {
			w.Errorf("set %s of %d is left", s.Name, *s.Spec.Replicas)
		}
	}
	if n := len(controllertest.All[*appsv1.ReplicaSet](w.api)); n > 3 {
		w.Errorf("%d sets are left, the limit of history is 2", n)
	}
}

// checkBounds checks the bounds of a rolling update on the stored objects.
func (w *world) checkBounds() {
	w.Helper()
	d := w.deployment()
	surge, _ := plan.Bounds(d)
	total := int32(0)
	for _, s := range controllertest.All[*appsv1.ReplicaSet](w.api) {
		total += *s.Spec.Replicas
	}
	if total > *d.Spec.Replicas+surge {
		w.Errorf("%d pods are to be, %d are allowed", total, *d.Spec.Replicas+surge)
	}
}

// A template that is refused shows why, backs off, and runs when it is accepted again (W0.35, W1.23, W2.84).
func TestPodsRefused(t *testing.T) {
	inWorld(t, func(w *world) {
		tries, refuse := 0, true
		w.api.Before = func(verb string, gvr schema.GroupVersionResource, _ metav1.Object) error {
			if verb != "create" || gvr.Resource != "pods" || !refuse {
				return nil
			}
			tries++
			return apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota"))
		}
		w.start()
		time.Sleep(time.Hour)
		if tries < 10 || tries > 100 {
			t.Errorf("%d tries in an hour", tries)
		}
		if n := w.count("Warning FailedCreate Error creating: "); n != tries {
			t.Errorf("%d events about %d tries", n, tries)
		}
		at := slices.IndexFunc(w.deployment().Status.Conditions,
			func(c appsv1.DeploymentCondition) bool { return c.Type == appsv1.DeploymentReplicaFailure })
		if at < 0 || w.deployment().Status.Conditions[at].Reason != "FailedCreate" ||
			!strings.Contains(w.deployment().Status.Conditions[at].Message, "exceeded quota") {
			t.Errorf("conditions: %+v", w.deployment().Status.Conditions)
		}
		refuse = false
		time.Sleep(2 * time.Minute)
		w.settle()
		if slices.ContainsFunc(w.deployment().Status.Conditions,
			func(c appsv1.DeploymentCondition) bool { return c.Type == appsv1.DeploymentReplicaFailure }) {
			t.Error("the failure stays")
		}
	}, web(10))
}

// In a namespace that is being deleted, nothing is created, there are no events, and no retries
// (W0.40).
func TestNamespaceEnds(t *testing.T) {
	inWorld(t, func(w *world) {
		tries := 0
		w.api.Before = func(verb string, gvr schema.GroupVersionResource, _ metav1.Object) error {
			if verb != "create" {
				return nil
			}
			tries++
			err := apierrors.NewForbidden(gvr.GroupResource(), "", errors.New("the namespace is being terminated"))
			err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
			return err
		}
		w.start()
		time.Sleep(time.Hour)
		if n := w.count("Warning"); tries > 3 || n > 0 || len(w.deployment().Status.Conditions) > 2 {
			t.Errorf("%d tries, %d warnings, conditions %+v", tries, n, w.deployment().Status.Conditions)
		}
	}, web(3))
}

// A matching pod without a controller is adopted; one that no longer matches is released and replaced (W0.21,
// W0.23); children of a deleted owner are adopted by a new one of its name (W0.27).
func TestAdoptAndRelease(t *testing.T) {
	stray := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "stray",
		Labels: map[string]string{"app": "web"}}}
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "alone"},
		Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(2)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
	set.Spec.Template.Labels = map[string]string{"app": "web"}
	owner := func(w *world, name string) string {
		for _, p := range controllertest.All[*corev1.Pod](w.api) {
			if c := metav1.GetControllerOf(p); p.Name == name && c != nil {
				return string(c.UID)
			}
		}
		return ""
	}
	inWorld(t, func(w *world) {
		w.start()
		time.Sleep(time.Second)
		first := controllertest.All[*appsv1.ReplicaSet](w.api)[0]
		if pods := controllertest.All[*corev1.Pod](w.api); len(pods) != 2 || owner(w, "stray") != string(first.UID) {
			t.Fatalf("%d pods, stray belongs to %q", len(pods), owner(w, "stray"))
		}
		controllertest.Change(w.api, "n", "stray", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "db"} })
		time.Sleep(time.Second)
		if pods := controllertest.All[*corev1.Pod](w.api); len(pods) != 3 || owner(w, "stray") != "" {
			t.Fatalf("%d pods, stray belongs to %q", len(pods), owner(w, "stray"))
		}
		w.api.Remove(first)
		for _, p := range controllertest.All[*corev1.Pod](w.api) { // as --cascade=orphan does
			controllertest.Change(w.api, "n", p.Name, func(p *corev1.Pod) { p.OwnerReferences = nil })
		}
		again := set.DeepCopy()
		w.api.Put(again)
		time.Sleep(time.Second)
		next := controllertest.All[*appsv1.ReplicaSet](w.api)[0]
		if pods := controllertest.All[*corev1.Pod](w.api); next.UID == first.UID || len(pods) != 3 ||
			next.Status.Replicas != 2 {
			t.Errorf("%d pods, %+v", len(pods), next.Status)
		}
		controllertest.Change(w.api, "n", "stray", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} })
		time.Sleep(time.Second)
		if pods := controllertest.All[*corev1.Pod](w.api); len(pods) != 2 {
			t.Errorf("%d pods after one too many was adopted", len(pods))
		}
	}, set, stray)
}

// A rollout without progress is reported at its deadline, without an event at that time (W2.89), and continues
// afterwards.
func TestDeadline(t *testing.T) {
	inWorld(t, func(w *world) {
		w.start()
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		at := slices.IndexFunc(w.deployment().Status.Conditions,
			func(c appsv1.DeploymentCondition) bool { return c.Type == appsv1.DeploymentProgressing })
		if at < 0 || w.deployment().Status.Conditions[at].Reason != "ProgressDeadlineExceeded" {
			t.Fatalf("conditions: %+v", w.deployment().Status.Conditions)
		}
		w.settle()
	}, web(2))
}

// A pod counts as available exactly when it has been ready for long enough (W0.61).
func TestMinReadySeconds(t *testing.T) {
	d := web(2)
	d.Spec.MinReadySeconds = 30
	inWorld(t, func(w *world) {
		w.start()
		time.Sleep(time.Second)
		w.node(nil)
		time.Sleep(28 * time.Second)
		if n := w.deployment().Status.AvailableReplicas; n != 0 {
			t.Errorf("%d are available early", n)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := w.deployment().Status.AvailableReplicas; n != 2 {
			t.Errorf("%d are available", n)
		}
	}, d)
}

// A set of the same name with another owner is not changed: the next hash is used (W2.33).
func TestNameTaken(t *testing.T) {
	d := web(1)
	hash := workload.TemplateHash(&d.Spec.Template, nil)
	other := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web-" + hash,
		Labels: map[string]string{"app": "other"}}, Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(0)),
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}}}
	inWorld(t, func(w *world) {
		w.start()
		w.settle()
		if c := w.deployment().Status.CollisionCount; c == nil || *c != 1 {
			t.Errorf("collisions: %v", c)
		}
		if sets := controllertest.All[*appsv1.ReplicaSet](w.api); len(sets) != 2 {
			t.Errorf("%d sets", len(sets))
		}
	}, d, other)
}

// A webhook that changes the template or the labels of replica sets does not make a deployment create sets without end:
// each try needs another name, because the last set has that of the template. It says why, and is complete when the
// webhook is gone.
func TestChangedReplicaSets(t *testing.T) {
	for name, change := range map[string]func(*appsv1.ReplicaSet){
		"template": func(s *appsv1.ReplicaSet) { s.Spec.Template.Spec.Containers[0].Image = "mirror/v1" },
		"labels":   func(s *appsv1.ReplicaSet) { s.Labels = map[string]string{"team": "a"} },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				var mu sync.Mutex
				made, changes := 0, true
				w.api.Before = func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error {
					mu.Lock()
					defer mu.Unlock()
					if s, ok := o.(*appsv1.ReplicaSet); ok && verb == "create" && gvr.Resource == "replicasets" &&
						changes {
						made++
						change(s)
					}
					return nil
				}
				w.start()
				for range 3600 {
					time.Sleep(time.Second)
					synctest.Wait()
					w.node(nil)
				}
				sets := w.count("Warning ReplicaSetCreateError Failed to create new replica set ")
				if sets < 8 || sets > 20 || made > 2*sets { // before each set but the first, its name was taken
					t.Errorf("%d replica sets in an hour, with %d requests", sets, made)
				}
				at := slices.IndexFunc(w.deployment().Status.Conditions, func(c appsv1.DeploymentCondition) bool {
					return c.Type == appsv1.DeploymentProgressing &&
						strings.Contains(c.Message, "a webhook or a policy")
				})
				if at < 0 {
					t.Errorf("conditions: %+v", w.deployment().Status.Conditions)
				}
				mu.Lock()
				changes = false
				mu.Unlock()
				for range 660 {
					time.Sleep(time.Second)
					synctest.Wait()
					w.node(nil)
				}
				s := w.deployment().Status
				if s.UpdatedReplicas != 2 || s.AvailableReplicas != 2 || s.Replicas != 2 {
					t.Errorf("not complete without the webhook: %+v", s)
				}
			}, web(2))
		})
	}
}

// No new pod before the last old one has ended (W2.50), which only its deletion shows.
func TestRecreate(t *testing.T) {
	d := web(2)
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	inWorld(t, func(w *world) {
		w.start()
		w.settle()
		controllertest.Change(w.api, "n", "web",
			func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "v2" })
		time.Sleep(time.Minute)
		for _, p := range controllertest.All[*corev1.Pod](w.api) {
			if p.DeletionTimestamp == nil {
				t.Errorf("pod %s exists beside old ones", p.Name)
			}
		}
		w.settle()
	}, d)
}
