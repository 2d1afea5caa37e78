package vpa

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/source"
	"carob/internal/core/workload/vpa"
)

// world simulates the API: the add-on's objects, metrics, pods and their owners.
type world struct {
	t       *testing.T
	client  *fake.Clientset
	custom  dynamic.Interface
	events  *record.FakeRecorder
	refuse  error // resizes
	mu      sync.Mutex
	stored  map[string]vpa.Checkpoint
	status_ map[vpa.Name]vpa.Status
	writes  int // number of writes until the process ends
	broken  error
	cpu     int64
	reads   int
	listed  int // number of lists of checkpoints
	did     []string
	// The namespaces whose statuses and checkpoints take 30 s to write, and whose pods take as long to change.
	slow, slowSaves, slowPods string
}

// slowly waits if the namespace is the slow one.
func slowly(namespace, slow string) {
	if namespace == slow {
		time.Sleep(30 * time.Second)
	}
}

// updater is the client for pods. The fake one would have all its callers wait for a slow one.
type updater struct {
	kubernetes.Interface
	w *world
}

func (u updater) CoreV1() corev1client.CoreV1Interface { return slowCore{u.Interface.CoreV1(), u.w} }

type slowCore struct {
	corev1client.CoreV1Interface
	w *world
}

func (c slowCore) Pods(namespace string) corev1client.PodInterface {
	return slowPods{c.CoreV1Interface.Pods(namespace), namespace, c.w}
}

type slowPods struct {
	corev1client.PodInterface
	namespace string
	w         *world
}

func (p slowPods) Patch(ctx context.Context, name string, kind types.PatchType, data []byte, o metav1.PatchOptions,
	subresources ...string) (*corev1.Pod, error) {
	slowly(p.namespace, p.w.slowPods)
	p.w.note("in %s", p.namespace)
	return p.PodInterface.Patch(ctx, name, kind, data, o, subresources...)
}

func (w *world) Resolve(schema.GroupVersionKind) (inventory.Kind, bool) {
	return inventory.Kind{}, true
}
func (w *world) Synced() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func (w *world) get(_ context.Context, _ inventory.Kind, _, name string) (*autoscalingv1.Scale, error) {
	if name != "rollout" {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "rollouts"}, name)
	}
	return &autoscalingv1.Scale{Status: autoscalingv1.ScaleStatus{Selector: "app=x"}}, nil
}

func (w *world) write() error {
	if w.writes--; w.writes < 0 {
		return errors.New("the process is gone")
	}
	return w.broken
}

func (w *world) status(_ context.Context, name vpa.Name, s *vpa.Status) error {
	slowly(name.Namespace, w.slow)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.write(); err != nil {
		return err
	}
	w.status_[name] = *s
	return nil
}

func (w *world) checkpoints(context.Context) (out []vpa.Checkpoint, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listed++
	for _, c := range w.stored {
		out = append(out, c)
	}
	return out, w.broken
}

func (w *world) save(_ context.Context, c *vpa.Checkpoint) error {
	slowly(c.Namespace, w.slowSaves)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.write(); err != nil {
		return err
	}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	var stored vpa.Checkpoint
	if err := json.Unmarshal(text, &stored); err != nil {
		return err
	}
	w.stored[c.Namespace+"/"+c.Name] = stored
	return nil
}

func (w *world) remove(_ context.Context, c *vpa.Checkpoint) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.stored, c.Namespace+"/"+c.Name)
	return nil
}

func (w *world) usage(_ context.Context, namespace string) ([]vpa.Sample, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	return []vpa.Sample{{Pod: vpa.Name{Namespace: namespace, Name: "p"}, Container: "c", At: time.Now(), CPU: w.cpu,
		Memory: 600 << 20}}, nil
}

func autoscaler(name string, mode vpa.UpdateMode) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "autoscaling.k8s.io/v1",
		"kind": "VerticalPodAutoscaler",
		"metadata": map[string]any{"namespace": "ns", "name": name, "uid": name,
			"creationTimestamp": time.Now().UTC().Format(time.RFC3339)},
		"spec": map[string]any{"targetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
			"updatePolicy": map[string]any{"updateMode": string(mode), "minReplicas": int64(1)}}}}
}

func owner(kind, name string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, Controller: new(true)}}
}

func pod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p",
		Labels: map[string]string{"app": "x"}, OwnerReferences: owner("ReplicaSet", "r")},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("20Mi")}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning}}
}

func newWorld(t *testing.T, autoscalers ...runtime.Object) *world {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "d"}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
	set := metav1.ObjectMeta{Namespace: "ns", Name: "r", OwnerReferences: owner("Deployment", "d")}
	w := &world{t: t, events: record.NewFakeRecorder(1000), stored: map[string]vpa.Checkpoint{},
		status_: map[vpa.Name]vpa.Status{}, writes: 1 << 30, cpu: 200,
		client: fake.NewClientset(pod(), &appsv1.Deployment{ObjectMeta: meta,
			Spec: appsv1.DeploymentSpec{Selector: selector}},
			&appsv1.ReplicaSet{ObjectMeta: set,
				Spec: appsv1.ReplicaSetSpec{Selector: selector, Replicas: new(int32(1))}}),
		custom: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
			map[schema.GroupVersionResource]string{Resource(): "VerticalPodAutoscalerList"}, autoscalers...)}
	w.client.PrependReactor("patch", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
		p, _ := a.(ktesting.PatchAction)
		if a.GetSubresource() == "resize" && w.refuse != nil {
			return true, nil, w.refuse
		}
		w.note("patch %s %s", a.GetSubresource(), p.GetPatch())
		return true, pod(), nil
	})
	w.client.PrependReactor("create", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
		c, _ := a.(ktesting.CreateAction)
		e, ok := c.GetObject().(*policyv1.Eviction)
		if !ok {
			return false, nil, nil
		}
		w.note("evict %s %s", e.Name, *e.DeleteOptions.Preconditions.UID)
		return true, nil, nil
	})
	return w
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.did = append(w.did, fmt.Sprintf(format, args...))
}

// run starts a controller; stop ends it.
func (w *world) run() (c *Controller, stop func()) {
	w.t.Helper()
	deployments, sets := source.Deployments(w.client), source.ReplicaSets(w.client)
	client := kubernetes.Interface(w.client)
	if w.slowPods != "" {
		client = updater{w.client, w}
	}
	c, err := New(Config{Recommender: w.client, Updater: client, Events: w.events, VPAs: Watch(w.custom), Kinds: w,
		Owners: Owners{Deployments: deployments, ReplicaSets: sets, StatefulSets: source.StatefulSets(w.client),
			DaemonSets: source.DaemonSets(w.client), Jobs: source.Jobs(w.client), CronJobs: source.CronJobs(w.client),
			ReplicationControllers: source.ReplicationControllers(w.client)}, store: w, usage: w, scales: w})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	for _, watch := range []*source.Watch{deployments, sets} {
		running.Go(func() { watch.Run(ctx) })
		<-watch.Synced()
	}
	running.Go(func() { c.Run(ctx) })
	synctest.Wait()
	return c, func() { cancel(); running.Wait() }
}

func (w *world) target(name string) (cpu, memory int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.status_[vpa.Name{Namespace: "ns", Name: name}].Recommendation
	if r == nil || len(r.Containers) == 0 {
		return 0, 0
	}
	return r.Containers[0].Target.Cpu().MilliValue(), r.Containers[0].Target.Memory().Value()
}

// A resize with an unknown result is not followed by an eviction in the same pass (W9.53).
func TestResizeWithUnknownResult(t *testing.T) {
	for _, err := range []error{errors.New("the answer was lost"),
		apierrors.NewInternalError(errors.New("no time left")), apierrors.NewTimeoutError("no time left", 1)} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, autoscaler("v", vpa.ModeInPlaceOrRecreate))
			w.refuse = err
			_, stop := w.run()
			controllertest.Equal(t, "written after "+err.Error(), w.did)
			w.refuse = apierrors.NewForbidden(corev1.Resource("pods"), "p", errors.New("no room"))
			time.Sleep(vpa.Pass)
			synctest.Wait()
			controllertest.Equal(t, "written after a refusal", w.did, "evict p p")
			stop()
		})
	}
}

// A pod that differs from the recommendation, which the first sample gives (W9.39), is resized in place; if that is
// rejected, it is evicted (W9.8, W9.57). The checkpoint has the name of the autoscaler and the container (W9.37).
func TestEvictionAfterRejectedResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, autoscaler("v", vpa.ModeInPlaceOrRecreate))
		_, stop := w.run()
		if cpu, memory := w.target("v"); cpu != 247 || memory != 764046746 {
			t.Errorf("recommended %d, %d", cpu, memory)
		}
		controllertest.Equal(t, "written", w.did,
			`patch resize [{"op":"test","path":"/metadata/uid","value":"p"},`+
				`{"op":"add","path":"/spec/containers/0/resources",`+
				`"value":{"requests":{"cpu":"247m","memory":"764046746"}}}]`,
			`patch  {"metadata":{"annotations":{"vpaInPlaceUpdated":"true"},"uid":"p"}}`)
		controllertest.Equal(t, "events", controllertest.Events(w.events),
			"Normal InPlaceResizedByVPA Pod was resized in place by VPA Updater.")
		if c, there := w.stored["ns/v-c"]; !there || c.Spec.ContainerName != "c" || c.Status.TotalSamplesCount != 1 {
			t.Errorf("checkpoints %+v", w.stored)
		}
		w.refuse, w.did = apierrors.NewForbidden(corev1.Resource("pods"), "p", errors.New("no room")), nil
		time.Sleep(vpa.Pass)
		synctest.Wait()
		controllertest.Equal(t, "written", w.did, "evict p p")
		controllertest.Equal(t, "events", controllertest.Events(w.events),
			"Normal EvictedByVPA Pod was evicted by VPA Updater to apply resource recommendation.",
			"Normal EvictedPod VPA Updater evicted Pod p to apply resource recommendation.")
		stop()
	})
}

// W9.5, W9.6, W9.71: the older of two autoscalers sizes new pods; one with mode Off sizes none.
func TestAdmitPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recommended := func(name string, mode vpa.UpdateMode, cpu string) *unstructured.Unstructured {
			v := autoscaler(name, mode)
			v.Object["status"] = map[string]any{"recommendation": map[string]any{"containerRecommendations": []any{
				map[string]any{"containerName": "c", "target": map[string]any{"cpu": cpu}}}}}
			return v
		}
		w := newWorld(t, recommended("b", vpa.ModeInitial, "300m"), recommended("c", vpa.ModeRecreate, "400m"),
			recommended("a", vpa.ModeOff, "500m"))
		c, stop := w.run()
		p := pod()
		c.AdmitPod(t.Context(), p, nil)
		if got := p.Spec.Containers[0].Resources.Requests.Cpu().String(); got != "300m" ||
			!strings.HasPrefix(p.Annotations[vpa.UpdatesAnnotation], "Pod resources updated by b: ") {
			t.Errorf("a new pod requests %s: %v", got, p.Annotations)
		}
		for what, change := range map[string]func(*corev1.Pod){
			"owner":     func(p *corev1.Pod) { p.OwnerReferences = nil },
			"unknown":   func(p *corev1.Pod) { p.OwnerReferences[0].Name = "other" },
			"namespace": func(p *corev1.Pod) { p.Namespace = "elsewhere" },
		} {
			p := pod()
			change(p)
			if c.AdmitPod(t.Context(), p, nil); len(p.Annotations) > 0 {
				t.Errorf("%s: a pod without an autoscaler is changed: %v", what, p.Annotations)
			}
		}
		stop()
	})
}

// If the process ends between any two writes, the next process recommends no less than before.
func TestRestartBetweenWrites(t *testing.T) {
	for writes := range 14 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, autoscaler("v", vpa.ModeOff), autoscaler("w", vpa.ModeOff))
			w.writes = writes
			_, stop := w.run()
			time.Sleep(10 * vpa.Pass)
			stop()
			cpu, memory := w.target("v")
			w.writes, w.cpu = 1<<30, 1 // idle from now on
			_, stop = w.run()
			time.Sleep(time.Second)
			synctest.Wait()
			after, left := w.target("v")
			known := w.stored["ns/v-c"].Status.TotalSamplesCount
			if writes >= 4 && (after < cpu || left < memory) {
				t.Errorf("after %d writes: %d, %d; before the restart %d, %d", writes, after, left, cpu, memory)
			}
			if known == 0 {
				t.Errorf("after %d writes: no checkpoint", writes)
			}
			stop()
		})
	}
}

// Checkpoints are read before anything is recommended or stored over them.
func TestCheckpointsAreReadFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, autoscaler("v", vpa.ModeRecreate))
		w.broken = errors.New("etcd is away")
		_, stop := w.run()
		time.Sleep(5 * vpa.Pass)
		if len(w.status_)+len(w.stored)+len(w.did) != 0 {
			t.Errorf("written: %v %v %v", w.status_, w.stored, w.did)
		}
		w.mu.Lock()
		w.broken = nil
		w.mu.Unlock()
		time.Sleep(vpa.Pass)
		synctest.Wait()
		if len(w.status_) != 1 || len(w.stored) != 1 {
			t.Errorf("written afterwards: %v %v", w.status_, w.stored)
		}
		stop()
	})
}

// When the last autoscaler is deleted, its checkpoints are deleted, and then no pass runs; a new
// one is processed soon.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c, stop := w.run()
		time.Sleep(time.Hour)
		if w.reads != 0 {
			t.Errorf("%d reads without an autoscaler", w.reads)
		}
		api := w.custom.Resource(Resource()).Namespace("ns")
		if _, err := api.Create(t.Context(), autoscaler("v", vpa.ModeOff), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if w.reads != 1 || len(w.stored) != 1 {
			t.Errorf("%d reads, %d checkpoints for a new autoscaler", w.reads, len(w.stored))
		}
		if err := api.Delete(t.Context(), "v", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * orphansEvery)
		reads, listed := len(w.client.Actions()), w.listed
		if len(w.stored) != 0 || len(c.seen)+len(c.names) != 0 {
			t.Errorf("left: checkpoints %v, state %v %v", w.stored, c.seen, c.names)
		}
		time.Sleep(time.Hour)
		if n := len(w.client.Actions()); n != reads || w.reads != 1 || w.listed != listed {
			t.Errorf("%d requests, %d reads, %d lists while nothing is to do", n-reads, w.reads-1, w.listed-listed)
		}
		stop()
	})
}

// For targets that are not well known, the scale is read, once a minute at most.
func TestScalableTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c, stop := w.run()
		of := c.controllers(t.Context())
		got, err := of(vpa.Ref{APIVersion: "example.com/v1", Kind: "Rollout", Namespace: "ns", Name: "rollout"})
		if err != nil || !got.Scalable || got.Selector.String() != "app=x" {
			t.Errorf("%+v, %v", got, err)
		}
		_, err = of(vpa.Ref{APIVersion: "example.com/v1", Kind: "Deployment", Namespace: "ns", Name: "d"})
		if err == nil || !strings.HasPrefix(err.Error(),
			"unhandled targetRef example.com/v1 / Deployment / d, last error ") {
			t.Errorf("a Deployment of another group: %v", err)
		}
		_, err = of(vpa.Ref{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "ns", Name: "none"})
		if err == nil || err.Error() != "Deployment ns/none does not exist" {
			t.Errorf("a missing one: %v", err)
		}
		if !slices.Equal([]int{len(c.scale.known)}, []int{2}) {
			t.Errorf("remembered: %v", c.scale.known)
		}
		stop()
	})
}

// A webhook takes 30 s for each status of the autoscalers of one namespace: those of others are stored meanwhile, pass
// after pass, and in the end all are.
func TestSlowStatuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 6
		all := []runtime.Object{autoscaler("v", vpa.ModeOff)}
		for i := range slow {
			v := autoscaler(fmt.Sprint("slow", i), vpa.ModeOff)
			v.SetNamespace("a") // the first one
			all = append(all, v)
		}
		w := newWorld(t, all...)
		w.slow = "a"
		_, stop := w.run()
		defer stop()
		synctest.Wait()
		cpu, _ := w.target("v")
		if cpu == 0 {
			t.Error("no recommendation beside a slow namespace")
		}
		w.mu.Lock()
		reads := w.reads
		w.mu.Unlock()
		time.Sleep(patience + gap + vpa.Pass + time.Second)
		w.mu.Lock()
		if w.reads == reads {
			t.Error("the next pass waits for a slow namespace")
		}
		w.mu.Unlock()
		time.Sleep(slow * 30 * time.Second)
		w.mu.Lock()
		if n := len(w.status_); n != slow+1 {
			t.Errorf("%d of %d statuses are stored", n, slow+1)
		}
		w.mu.Unlock()
	})
}

// A webhook takes 30 s for each checkpoint, or each change of a pod, in one namespace: others are written meanwhile,
// and the next passes do not wait either. What is slow is written once, not once for each pass.
func TestSlowNamespace(t *testing.T) {
	start := func(t *testing.T, slow func(*world)) (*world, func()) {
		t.Helper()
		theirs := autoscaler("v", vpa.ModeInPlaceOrRecreate)
		theirs.SetNamespace("a") // the first one
		w := newWorld(t, autoscaler("v", vpa.ModeInPlaceOrRecreate), theirs)
		p, selector := pod(), &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
		p.Namespace = "a"
		for _, o := range []runtime.Object{p,
			&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "d"},
				Spec: appsv1.DeploymentSpec{Selector: selector}},
			&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "r",
				OwnerReferences: owner("Deployment", "d")},
				Spec: appsv1.ReplicaSetSpec{Selector: selector, Replicas: new(int32(1))}}} {
			if err := w.client.Tracker().Add(o); err != nil {
				t.Fatal(err)
			}
		}
		slow(w)
		_, stop := w.run()
		synctest.Wait()
		return w, stop
	}
	for slow, other := range map[string]string{"a": "ns", "ns": "a"} {
		t.Run("checkpoints of "+slow, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, stop := start(t, func(w *world) { w.slowSaves = slow })
				defer stop()
				has := func(namespace string) bool {
					w.mu.Lock()
					defer w.mu.Unlock()
					_, there := w.stored[namespace+"/v-c"]
					return there
				}
				if !has(other) || has(slow) {
					t.Errorf("stored of a namespace: %v, of a slow one: %v", has(other), has(slow))
				}
				time.Sleep(31 * time.Second)
				if !has(slow) {
					t.Error("the slow one is not stored")
				}
			})
		})
	}
	t.Run("pods", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, stop := start(t, func(w *world) { w.slowPods = "a" })
			defer stop()
			did := func(what string) (n int) {
				w.mu.Lock()
				defer w.mu.Unlock()
				for _, d := range w.did {
					if d == what {
						n++
					}
				}
				return n
			}
			if did("in ns") != 2 || did("in a") != 0 {
				t.Errorf("changes of a namespace: %d, of a slow one: %d", did("in ns"), did("in a"))
			}
			w.mu.Lock()
			reads := w.reads
			w.mu.Unlock()
			time.Sleep(patience + vpa.Pass + time.Second)
			w.mu.Lock()
			if w.reads == reads {
				t.Error("the next pass waits for a slow namespace")
			}
			w.mu.Unlock()
			if did("in a") != 2 {
				t.Errorf("%d changes of the slow namespace", did("in a"))
			}
		})
	})
}
