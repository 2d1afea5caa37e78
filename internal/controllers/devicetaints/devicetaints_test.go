package devicetaints

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/source"
)

// readers is an inventory that the test controls.
type readers struct{ list []inventory.Reader }

func (r *readers) AddReader(one inventory.Reader) { r.list = append(r.list, one) }

func (r *readers) notify(resource string) {
	for _, one := range r.list {
		one.Changed(inventory.Kind{GroupVersionResource: resourcev1.SchemeGroupVersion.WithResource(resource)}, nil)
	}
}

// start runs a controller; it begins when inv reports the first slice or rule.
func start(t *testing.T, api *controllertest.API) (*record.FakeRecorder, *readers) {
	t.Helper()
	metrics.Register()
	events, inv := record.NewFakeRecorder(1000), &readers{}
	in := Watches{Pods: source.Pods(api), Claims: source.ResourceClaims(api), Slices: source.ResourceSlices(api),
		Rules: source.DeviceTaintRules(api)}
	c, err := New(api, events, inv, in)
	if err != nil {
		t.Fatal(err)
	}
	controllertest.Run(t, c, in.Pods)
	return events, inv
}

func run(t *testing.T, api *controllertest.API) *record.FakeRecorder {
	t.Helper()
	events, inv := start(t, api)
	inv.notify("resourceslices")
	synctest.Wait()
	return events
}

func wait(d time.Duration) { time.Sleep(d); synctest.Wait() }

func taint() resourcev1.DeviceTaint {
	return resourcev1.DeviceTaint{Key: "example.com/broken", Effect: resourcev1.DeviceTaintEffectNoExecute,
		TimeAdded: &metav1.Time{Time: time.Now()}}
}

func slice(taints ...resourcev1.DeviceTaint) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s", UID: "uid-s"},
		Spec: resourcev1.ResourceSliceSpec{Driver: "d", Pool: resourcev1.ResourcePool{Name: "p", Generation: 1},
			Devices: []resourcev1.Device{{Name: "gpu", Taints: taints}, {Name: "other"}}}}
}

func rule(effect resourcev1.DeviceTaintEffect) *resourcev1.DeviceTaintRule {
	t := taint()
	t.Effect = effect
	return &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "r", UID: "uid-r", Generation: 1},
		Spec: resourcev1.DeviceTaintRuleSpec{Taint: t,
			DeviceSelector: &resourcev1.DeviceTaintSelector{Device: new("gpu")}}}
}

// pod returns a pod on a node with its own claim for the device gpu, and a toleration with
// tolerationSeconds.
func pod(name string, seconds int64) []runtime.Object {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{NodeName: "n",
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}}}
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
		UID: types.UID("claim-" + name)}}
	c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: p.UID}}
	result := resourcev1.DeviceRequestAllocationResult{Request: "r", Driver: "d", Pool: "p", Device: "gpu"}
	if seconds > 0 {
		result.Tolerations = []resourcev1.DeviceToleration{{Operator: resourcev1.DeviceTolerationOpExists,
			Effect: resourcev1.DeviceTaintEffectNoExecute, TolerationSeconds: &seconds}}
	}
	c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
		Results: []resourcev1.DeviceRequestAllocationResult{result}}}
	return []runtime.Object{p, c}
}

// world is an API with the objects of some pods and others.
func world(pods [][]runtime.Object, others ...runtime.Object) *controllertest.API {
	return controllertest.New(slices.Concat(append(pods, others)...)...)
}

// left returns the pods that are not being deleted.
func left(api *controllertest.API) string {
	var names []string
	for _, p := range controllertest.All[*corev1.Pod](api) {
		if p.DeletionTimestamp == nil {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func setTaints(api *controllertest.API, taints ...resourcev1.DeviceTaint) {
	controllertest.Change(api, "", "s", func(s *resourcev1.ResourceSlice) { s.Spec.Devices[0].Taints = taints })
	synctest.Wait()
}

const (
	marking   = "Normal DeviceTaintManagerEviction Marking for deletion"
	cancelled = "Normal DeviceTaintManagerEviction Cancelling deletion"
)

// A pod is evicted at once or after its tolerationSeconds, with the condition, and counted (S9.62).
func TestEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := world([][]runtime.Object{pod("now", 0), pod("minute", 60)}, slice())
		events := run(t, api)
		before := controllertest.Metrics(t)
		setTaints(api, taint())
		wait(0)
		if got := left(api); got != "minute" {
			t.Errorf("left at once: %q", got)
		}
		wait(time.Minute - 1)
		if got := left(api); got != "minute" {
			t.Errorf("left before the minute is over: %q", got)
		}
		wait(time.Nanosecond)
		if got := left(api); got != "" {
			t.Errorf("left after a minute: %q", got)
		}
		controllertest.Equal(t, "events", controllertest.Events(events), marking, marking)
		for _, p := range controllertest.All[*corev1.Pod](api) {
			if len(p.Status.Conditions) != 1 || p.Status.Conditions[0].Type != corev1.DisruptionTarget ||
				p.Status.Conditions[0].Reason != "DeletionByDeviceTaintManager" ||
				p.Status.Conditions[0].Message != "Device Taint manager: deleting due to NoExecute taint" {
				t.Errorf("conditions of %s: %+v", p.Name, p.Status.Conditions)
			}
		}
		controllertest.Grown(t, before, map[string]float64{"device_taint_eviction_controller_pod_deletions_total": 2,
			"device_taint_eviction_controller_pod_deletion_duration_seconds": 2})
	})
}

// A taint that is removed in time cancels the eviction, with one event; a new one counts from its own time.
func TestRemovedTaintCancelsEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := world([][]runtime.Object{pod("p", 60)}, slice())
		events := run(t, api)
		setTaints(api, taint())
		wait(59 * time.Second)
		setTaints(api)
		controllertest.Equal(t, "events", controllertest.Events(events), cancelled)
		wait(time.Hour)
		setTaints(api, taint())
		wait(59 * time.Second)
		if got := left(api); got != "p" {
			t.Error("the time of the old taint counts")
		}
		wait(2 * time.Second)
		if got := left(api); got != "" {
			t.Errorf("left: %q", got)
		}
		controllertest.Equal(t, "events", controllertest.Events(events), marking)
	})
}

// No watch and no worker runs before the first slice or rule.
func TestStartsWithFirstSliceOrRule(t *testing.T) {
	for _, resource := range []string{"resourceslices", "devicetaintrules"} {
		synctest.Test(t, func(t *testing.T) {
			api := world([][]runtime.Object{pod("p", 0)}, slice(taint()))
			_, inv := start(t, api)
			inv.notify("deviceclasses")
			wait(time.Hour)
			for _, a := range api.Actions() {
				if r := a.GetResource().Resource; r != "pods" || left(api) != "p" {
					t.Errorf("%s %s before the first slice", a.GetVerb(), r)
				}
			}
			inv.notify(resource)
			inv.notify(resource)
			wait(0)
			if got := left(api); got != "" {
				t.Errorf("%s: left %q", resource, got)
			}
		})
	}
}

// Each request may fail once, before or after its effect, and the process may end between any two of them: the pod
// is still evicted, with its condition.
func TestEvictionIsRepeated(t *testing.T) {
	for _, killed := range []bool{false, true} {
		for _, after := range []bool{false, true} {
			for step := range 3 {
				synctest.Test(t, func(t *testing.T) {
					api, n := world([][]runtime.Object{pod("p", 0)}, slice(taint())), 0
					fail := func(_ string, gvr schema.GroupVersionResource, _ metav1.Object) error {
						if n++; gvr.Resource == "pods" && (n-1 == step || killed && n-1 > step && n < 100) {
							return errors.New("no connection")
						}
						return nil
					}
					if after {
						api.After = fail
					} else {
						api.Before = fail
					}
					run(t, api)
					if killed { // the next process
						wait(time.Second)
						n = 100
						run(t, api)
					}
					wait(time.Minute)
					if got := left(api); got != "" {
						t.Errorf("killed %v, after %v, step %d: left %q", killed, after, step, got)
					}
					for _, p := range controllertest.All[*corev1.Pod](api) {
						if len(p.Status.Conditions) != 1 {
							t.Errorf("killed %v, after %v, step %d: conditions %+v", killed, after, step,
								p.Status.Conditions)
						}
					}
				})
			}
		}
	}
}

// A webhook refuses the deletion as if the pod did not exist: it is tried again.
func TestRefusedEvictionIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, refused := world([][]runtime.Object{pod("p", 0)}, slice(taint())), false
		api.Before = func(verb string, gvr schema.GroupVersionResource, _ metav1.Object) error {
			if verb == "delete" && gvr.Resource == "pods" && !refused {
				refused = true
				return apierrors.NewNotFound(corev1.Resource("pods"), "p")
			}
			return nil
		}
		run(t, api)
		wait(time.Minute)
		if got := left(api); !refused || got != "" {
			t.Errorf("refused %v, left %q", refused, got)
		}
	})
}

// Watches deliver events late, twice, or not at all until the next list: each pod is evicted once, and
// no other.
func TestConvergesUnderFaults(t *testing.T) {
	for seed := range 20 {
		synctest.Test(t, func(t *testing.T) {
			var pods [][]runtime.Object
			for i := range 5 {
				pods = append(pods, pod(fmt.Sprint("p", i), int64(i*10)))
			}
			spared := pod("spared", 0)
			spared[1].(*resourcev1.ResourceClaim).Status.Allocation.Devices.Results[0].Device = "other"
			api, n := world(append(pods, spared), slice()), seed
			api.Late = func() time.Duration { return time.Duration(seed%4) * time.Second }
			api.Faults = func() controllertest.Fault { n++; return controllertest.Fault(n * (seed + 1) % 3) }
			events := run(t, api)
			api.Put(rule(resourcev1.DeviceTaintEffectNoExecute))
			for range 6 {
				setTaints(api, taint())
				wait(time.Duration(seed) * time.Second)
				setTaints(api)
			}
			wait(10 * time.Minute)
			if got := left(api); got != "spared" {
				t.Errorf("seed %d: left %q", seed, got)
			}
			marked := 0
			for _, e := range controllertest.Events(events) {
				if e == marking {
					marked++
				}
			}
			if marked != len(pods) {
				t.Errorf("seed %d: %d events %q, want %d", seed, marked, marking, len(pods))
			}
			if got := condition(api); !strings.HasPrefix(got, "False Completed") {
				t.Errorf("seed %d: %s", seed, got)
			}
		})
	}
}

// A pod that replaced another one of its name, which the watch does not show yet, is not evicted.
func TestReplacedPodStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := world([][]runtime.Object{pod("p", 0)}, slice())
		api.LateOf = func(gvr schema.GroupVersionResource) time.Duration {
			if gvr.Resource == "pods" {
				return time.Minute
			}
			return 0
		}
		events := run(t, api)
		old := controllertest.All[*corev1.Pod](api)[0]
		api.Remove(old)
		next := pod("p", 0)[0].(*corev1.Pod)
		next.UID = "another"
		api.Put(next)
		setTaints(api, taint())
		wait(time.Hour)
		if got := left(api); got != "p" {
			t.Error("evicted a pod that has not reserved the device")
		}
		controllertest.Equal(t, "events", controllertest.Events(events))
	})
}

// condition is the status, reason and message of the rule.
func condition(api *controllertest.API) string {
	for _, r := range controllertest.All[*resourcev1.DeviceTaintRule](api) {
		for _, c := range r.Status.Conditions {
			return fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message)
		}
	}
	return "none"
}

// The status of a rule is written at once, and then every 10 s at most, until the last pod is evicted
// (S9.63).
func TestRuleStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods [][]runtime.Object
		for i := range 40 {
			pods = append(pods, pod(fmt.Sprint("p", i), int64(i)))
		}
		api, written := world(pods, slice()), 0
		api.After = func(_ string, gvr schema.GroupVersionResource, _ metav1.Object) error {
			if gvr.Resource == "devicetaintrules" {
				written++
			}
			return nil
		}
		run(t, api)
		api.Put(rule(resourcev1.DeviceTaintEffectNone))
		synctest.Wait()
		if got := condition(api); !strings.HasPrefix(got, "False NoEffect 1 published device selected. 40 allocated "+
			"devices selected. 40 pods would be evicted in 1 namespace if") {
			t.Error(got)
		}
		wait(time.Hour)
		if left(api) == "" || written != 1 {
			t.Errorf("a dry run has %d statuses, and left %q", written, left(api))
		}
		controllertest.Change(api, "", "r", func(r *resourcev1.DeviceTaintRule) {
			r.Spec.Taint.Effect, r.Generation = resourcev1.DeviceTaintEffectNoExecute, 2
			r.Spec.Taint.TimeAdded = &metav1.Time{Time: time.Now()}
		})
		synctest.Wait()
		if got := condition(api); !strings.HasPrefix(got, "True PodsPendingEviction") {
			t.Error(got)
		}
		wait(time.Hour)
		if got, want := condition(api), "False Completed 40 pods evicted since starting the controller."; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if written < 5 || written > 8 {
			t.Errorf("%d statuses for 50 s", written)
		}
		controllertest.Change(api, "", "r", func(r *resourcev1.DeviceTaintRule) {
			r.Spec.Taint.Effect, r.Generation = resourcev1.DeviceTaintEffectNoSchedule, 3
		})
		synctest.Wait()
		if got := condition(api); !strings.HasPrefix(got, "False OtherEffect Eviction only happens") {
			t.Error(got)
		}
	})
}

// A condition with a time in the future, which any user may write, does not delay the status.
func TestConditionTimeInFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rule(resourcev1.DeviceTaintEffectNoExecute)
		r.Status.Conditions = []metav1.Condition{{Type: resourcev1.DeviceTaintConditionEvictionInProgress,
			Status: metav1.ConditionTrue, Reason: "Other", ObservedGeneration: 1,
			LastTransitionTime: metav1.NewTime(time.Now().AddDate(500, 0, 0))}}
		api := world(nil, r)
		run(t, api)
		wait(time.Minute)
		if got := condition(api); got != "False NotStarted " {
			t.Error(got)
		}
	})
}

// While its watches do not show its writes, the controller repeats none of them: no second status, and no
// cancellation of an eviction that is done.
func TestStaleWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, written := world([][]runtime.Object{pod("p", 0), pod("hour", 3600)}, slice(),
			rule(resourcev1.DeviceTaintEffectNoExecute)), 0
		api.LateOf = func(gvr schema.GroupVersionResource) time.Duration {
			if gvr.Resource == "pods" || gvr.Resource == "devicetaintrules" {
				return 10 * time.Minute
			}
			return 0
		}
		api.After = func(_ string, gvr schema.GroupVersionResource, _ metav1.Object) error {
			if gvr.Resource == "devicetaintrules" {
				written++
			}
			return nil
		}
		controllertest.Change(api, "", "r", func(r *resourcev1.DeviceTaintRule) {
			r.Spec.DeviceSelector.Device = new("other")
		})
		controllertest.Change(api, "ns", "hour", func(c *resourcev1.ResourceClaim) {
			c.Status.Allocation.Devices.Results[0].Device = "other"
		})
		events := run(t, api)
		setTaints(api, taint())
		if got := left(api); got != "hour" {
			t.Errorf("left %q", got)
		}
		setTaints(api)
		wait(5 * time.Minute)
		controllertest.Equal(t, "events", controllertest.Events(events), marking)
		if written != 1 {
			t.Errorf("the same status was written %d times", written)
		}
	})
}
