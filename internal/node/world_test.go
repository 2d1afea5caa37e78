package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/journal"
	"carob/internal/core/podlife"
	"carob/internal/node/execute"
	"carob/internal/node/image"
	"carob/internal/node/logs"
	"carob/internal/node/observe"
	"carob/internal/node/pods"
	"carob/internal/node/runtimehandler"
	"carob/internal/node/spec"
	nodestatus "carob/internal/node/status"
)

// world is a node agent's driver (pods, observe, execute, status, image) on a fake
// runtime, a fake API server and the real lifecycle machine.
type world struct {
	t       *testing.T
	runtime *fakeRuntime
	api     *fakeAPI
	disk    *fakeDisk
	logs    string

	mu      sync.Mutex
	events  []string
	entries []journal.Entry
	held    <-chan struct{} // decisions wait for it; nil: for nothing

	pods           *pods.Manager
	objects        execute.Objects
	ignoresSignals bool   // ImagesChanged is not called
	stop           func() // ends this agent and waits for it
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, runtime: newFakeRuntime(), api: newFakeAPI(), disk: &fakeDisk{prepared: map[types.UID]bool{}},
		logs: t.TempDir(), objects: noObjects{}}
	w.runtime.images["docker.io/library/web:latest"] = true
	return w
}

// Record implements journal.Recorder.
func (w *world) Record(e journal.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.entries = append(w.entries, e)
}

type noObjects struct{}

func (noObjects) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("configmaps"), name)
}

func (noObjects) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
}

func (noObjects) Services(context.Context, string) ([]*corev1.Service, error) { return nil, nil }

func (noObjects) Await(*corev1.Pod, string, spec.Missing, func(types.UID)) {}
func (noObjects) Arrived(types.UID, string)                                {}

// classes are the runtime classes: one, named vm.
type classes struct{}

func (classes) Get(_ context.Context, name string, _ metav1.GetOptions) (*nodev1.RuntimeClass, error) {
	if name != "vm" {
		return nil, apierrors.NewNotFound(nodev1.Resource("runtimeclasses"), name)
	}
	return &nodev1.RuntimeClass{Handler: "kata"}, nil
}

// start runs an agent on what is there, as after a restart.
func (w *world) start() {
	ctx, cancel := context.WithCancel(w.t.Context())
	event := func(pod *corev1.Pod, e podlife.Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events = append(w.events, fmt.Sprintf("%s %s: %s", e.Type, e.Reason, e.Message))
	}
	node := &spec.Node{Name: "n1", Hostname: "n1", HostIPs: []string{"192.0.2.1"}, ClusterDomain: "cluster.local",
		LogRoot: w.logs}
	status := nodestatus.New(w.api)
	images, err := image.New(image.Config{
		Runtime: w.runtime, Secrets: noObjects{}, MaxPulls: 5, Event: func(*corev1.Pod, string, string, string) {},
		Pulled: func() { w.imagesChanged() },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	observer := observe.New(observe.Config{
		Runtime: w.runtime, Image: images.State,
		Volumes: func(pod *corev1.Pod) podlife.VolumeState {
			on := w.disk.has(pod.UID)
			return podlife.VolumeState{Mounted: on, Present: on}
		},
		TerminationMessage: func(string) (string, error) { return "", nil },
		LogTail:            func(string, int, int64) (string, error) { return "", nil },
		NewestLog: func(pod *corev1.Pod, container string) (int, bool, error) {
			return logs.Newest(w.logs, pod, container)
		},
	})
	executor := execute.New(execute.Config{
		Runtime: w.runtime, Images: images, Volumes: w.disk, Cgroups: w.disk, UserNS: w.disk, Observer: observer,
		Status: status, Objects: w.objects,
		Changed: func(uid types.UID) { w.pods.Arrived(uid) }, Client: w.api, Handlers: runtimehandler.New(classes{}),
		Node: func() *spec.Node { return node }, Event: event, OwnerKey: "owner",
		OwnerValue: "me",
		Links:      &logs.Links{},
		Reject:     func(uid types.UID, stop podlife.Stop) { _ = w.pods.Stop(uid, stop) },
	})
	started := time.Now()
	manager := pods.New(pods.Config{
		Machine: pods.Machine{Step: w.checked(podlife.Step), Recover: podlife.Recover},
		Node: func() podlife.Node {
			return podlife.Node{Name: "n1", HostIPs: node.HostIPs, RuntimeName: "fake", AgentStarted: started}
		},
		Observer: observer, Executor: executor, Status: status, Event: event, Journal: w,
		Admit: func(pod *corev1.Pod, others []*corev1.Pod) pods.Verdict {
			beside := slices.ContainsFunc(others,
				func(p *corev1.Pod) bool { return p.Name == pod.Labels["refused-beside"] })
			if beside || strings.HasPrefix(pod.Name, "refused") || crowded(pod, others) {
				return pods.Verdict{Rejection: &podlife.Rejection{Reason: "OutOfcpu", Message: "no cpu"}}
			}
			var v pods.Verdict
			for _, p := range others {
				if pod.Labels["instead-of"] != "" && strings.HasPrefix(p.Name, pod.Labels["instead-of"]) {
					v.Rejection, v.Victims = &podlife.Rejection{Reason: "OutOfcpu", Message: "no cpu"},
						append(v.Victims, p)
				}
			}
			return v
		},
	})
	watcher := &observe.Watcher{
		Observer: observer, OwnerKey: "owner", OwnerValue: "me", Changed: manager.Changed, Known: manager.Known,
		Orphan: manager.Orphan,
	}
	var all sync.WaitGroup
	given := map[*corev1.Pod]*corev1.Pod{} // copies of the pods as the agent got them, with api.mu held
	w.api.mu.Lock()
	w.api.changed = func(pod *corev1.Pod, deleted bool) {
		if ctx.Err() != nil {
			return
		}
		given[pod] = pod.DeepCopy()
		if deleted {
			manager.Remove(pod.UID)
		} else {
			manager.Update("api", pod)
		}
	}
	var here []*corev1.Pod
	for _, pod := range w.api.pods {
		here = append(here, pod)
		given[pod] = pod.DeepCopy()
	}
	manager.Found(watcher.Found(ctx))
	manager.Sync("api", here)
	manager.Adopt()
	w.api.mu.Unlock()
	all.Go(func() { manager.Run(ctx) })
	all.Go(func() { status.Run(ctx) })
	all.Go(func() { watcher.Run(ctx) })
	w.pods = manager
	w.stop = func() {
		cancel()
		all.Wait()
		w.api.mu.Lock()
		defer w.api.mu.Unlock()
		for pod, was := range given { // the API server of the process holds the same (package zerocopy)
			if !equality.Semantic.DeepEqual(pod, was) {
				w.t.Errorf("the agent modified pod %s, which it shares", was.Name)
			}
		}
	}
}

// checked asserts what a driver promises to Step: outcomes are never newer than
// the picture that comes with them, and time does not run backwards.
func (w *world) checked(step func(podlife.State, podlife.Input) (podlife.State, podlife.Output)) func(podlife.State,
	podlife.Input) (podlife.State, podlife.Output) {
	return func(s podlife.State, in podlife.Input) (podlife.State, podlife.Output) {
		for _, d := range in.Done {
			if in.Observed.Taken.Before(d.At) {
				w.t.Errorf("Step got outcome %s of %v with a picture of %v", d.Key, d.At, in.Observed.Taken)
			}
		}
		w.mu.Lock()
		held := w.held
		w.mu.Unlock()
		if held != nil {
			<-held
		}
		if in.Now.Before(in.Observed.Taken) {
			w.t.Errorf("Step at %v got a picture of %v", in.Now, in.Observed.Taken)
		}
		return step(s, in)
	}
}

// hold has all decisions wait until release is closed.
func (w *world) hold(release <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = release
}

func (w *world) imagesChanged() {
	if !w.ignoresSignals {
		w.pods.ImagesChanged()
	}
}

func (w *world) hasEvent(part string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.events, func(e string) bool { return strings.Contains(e, part) })
}

func webPod(name string) *corev1.Pod {
	grace := int64(30)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{
			NodeName: "n1", RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "web", Image: "web", ImagePullPolicy: corev1.PullIfNotPresent}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

func (w *world) deleteGracefully(name string, seconds int64) {
	w.api.change(name, func(pod *corev1.Pod) {
		now := metav1.Now()
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, &seconds
	})
}

// settle waits until nothing happens any more for the given virtual time.
func settle(d time.Duration) {
	time.Sleep(d) // inside a bubble: virtual
	synctest.Wait()
}

func (w *world) mustBe(name string, phase corev1.PodPhase) {
	w.t.Helper()
	pod := w.api.get(name)
	if pod == nil {
		w.t.Fatalf("pod %s is gone", name)
	}
	if pod.Status.Phase != phase {
		w.t.Fatalf("pod %s is %s, want %s; waits %v, events %v", name, pod.Status.Phase, phase, w.waits(pod.UID),
			w.events)
	}
}

func (w *world) mustBeGone(name string) {
	w.t.Helper()
	if pod := w.api.get(name); pod != nil {
		w.t.Fatalf("pod %s is still there: %s; waits %v", name, pod.Status.Phase, w.waits(pod.UID))
	}
	if left := w.runtime.left(); len(left) > 0 {
		w.t.Fatalf("the runtime still has %v", left)
	}
	if w.pods.Known(types.UID("uid-" + name)) {
		w.t.Fatal("the manager still knows the pod")
	}
}

func (w *world) waits(uid types.UID) []podlife.Wait {
	v, _ := w.pods.ByUID(uid)
	return v.Waits
}
