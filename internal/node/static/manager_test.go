package static

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// world is a Manager with an API server, the writer of statuses and the owner of
// pods beside it, each with a list of its calls.
type world struct {
	corev1client.PodInterface // calls that no test makes panic
	*Manager

	mu   sync.Mutex
	n    int
	pods map[string]*corev1.Pod // of the API server
	down bool
	log  []string

	refused error // the answer of a webhook to deletions
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *world) Pods(string) corev1client.PodInterface { return w }

func (w *world) Create(_ context.Context, pod *corev1.Pod, _ metav1.CreateOptions) (*corev1.Pod, error) {
	w.note("create %s of %s owner %s", pod.Name, pod.Annotations[corev1.MirrorPodAnnotationKey],
		pod.OwnerReferences[0].UID)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.down:
		return nil, apierrors.NewServiceUnavailable("down")
	case w.pods[pod.Name] != nil:
		return nil, apierrors.NewAlreadyExists(corev1.Resource("pods"), pod.Name)
	}
	w.n++
	pod = pod.DeepCopy()
	pod.UID = types.UID(fmt.Sprintf("m%d", w.n))
	w.pods[pod.Name] = pod
	go w.SeenMirror(pod)
	return pod, nil
}

func (w *world) Delete(_ context.Context, name string, o metav1.DeleteOptions) error {
	w.note("delete %s uid %s grace %d", name, *o.Preconditions.UID, *o.GracePeriodSeconds)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refused != nil {
		return w.refused
	}
	if pod := w.pods[name]; pod != nil {
		delete(w.pods, name)
		go w.GoneMirror(pod)
	}
	return nil
}

func (w *world) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Pod, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if pod := w.pods[name]; pod != nil {
		return pod, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
}

// writer is the world as the writer of statuses.
type writer struct{ w *world }

func (s writer) Set(pod *corev1.Pod, status *corev1.PodStatus) {
	s.w.note("status %s %s", pod.UID, status.Phase)
}
func (s writer) Seen(*corev1.Pod)     {}
func (s writer) Forget(uid types.UID) { s.w.note("forget %s", uid) }

// runner is the world as what runs static pods.
type runner struct{ w *world }

func (r runner) Start(pod *corev1.Pod) { r.w.note("start %s %s", pod.UID, pod.Status.Phase) }
func (r runner) Stop(uid types.UID)    { r.w.note("stop %s", uid) }

func newWorld(t *testing.T) *world {
	w := &world{pods: map[string]*corev1.Pod{}}
	return w.start(t, w)
}

// start runs a Manager; client nil: there is no API server.
func (w *world) start(t *testing.T, client corev1client.PodsGetter) *world {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "nodeuid"}}
	w.Manager = NewManager(ManagerConfig{
		Client: client, Node: func() *corev1.Node { return node }, Status: writer{w},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { w.Run(ctx, runner{w}); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// expect waits until nothing moves and compares what happened since.
func (w *world) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	w.mu.Lock()
	got := w.log
	w.log = nil
	w.mu.Unlock()
	if !slices.Equal(got, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func staticPod(name, uid string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uid), Generation: 1,
			Annotations: map[string]string{
				annotationSource: sourceFile, annotationHash: uid,
			}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

func status(phase corev1.PodPhase) *corev1.PodStatus { return &corev1.PodStatus{Phase: phase} }

// L7.113, L7.114
func TestMirrorShowsItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Mirrors(nil)
		w.Wanted([]*corev1.Pod{staticPod("web", "h1")})
		w.expect(t, "start h1 Pending", "create web of h1 owner nodeuid")
		w.Set(staticPod("web", "h1"), status(corev1.PodRunning))
		w.expect(t, "status m1 Running")

		w.Wanted(nil)
		w.expect(t, "stop h1") // the mirror stays while its pod ends
		w.Forget("h1")
		w.expect(t, "delete web uid m1 grace 0", "forget m1")
	})
}

// The status of a pod of the API is written whatever its annotations claim.
func TestAnnotationMakesNoPodStatic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Mirrors(nil)
		w.Wanted(nil)
		pod := staticPod("web", "7d0b2c0e-6d0b-4c0e-8d0b-2c0e6d0b4c0e")
		w.Set(pod, status(corev1.PodRunning))
		w.expect(t, "status 7d0b2c0e-6d0b-4c0e-8d0b-2c0e6d0b4c0e Running")
	})
}

// Without an API server, static pods start at once, one of a name after the other, and have no mirrors (S14.1).
func TestStandalone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := (&world{pods: map[string]*corev1.Pod{}}).start(t, nil)
		w.Wanted([]*corev1.Pod{staticPod("web", "h1")})
		w.expect(t, "start h1 Pending")
		w.Set(staticPod("web", "h1"), status(corev1.PodRunning))
		w.Wanted([]*corev1.Pod{staticPod("web", "h2")})
		w.expect(t, "stop h1")
		w.Forget("h1")
		w.expect(t, "start h2 Pending")
		w.Wanted(nil)
		w.expect(t, "stop h2")
		w.Forget("h2")
		time.Sleep(time.Hour)
		w.expect(t)
		select {
		case <-w.Settled():
		default:
			t.Error("not settled")
		}
	})
}

// L7.116
func TestDeletedMirrorComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Mirrors(nil)
		w.Wanted([]*corev1.Pod{staticPod("web", "h1")})
		synctest.Wait()
		w.Set(staticPod("web", "h1"), status(corev1.PodRunning))
		w.expect(t, "start h1 Pending", "create web of h1 owner nodeuid", "status m1 Running")
		time.Sleep(time.Hour)

		terminating := w.pods["web"].DeepCopy()
		terminating.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		w.SeenMirror(terminating) // kubectl delete: the pod on the node goes on
		w.expect(t, "delete web uid m1 grace 0", "forget m1")
		time.Sleep(retryMax)
		w.expect(t, "create web of h1 owner nodeuid", "status m2 Running")
	})
}

// L7.112, L7.113
func TestChangedManifestReplacesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Mirrors(nil)
		w.Wanted([]*corev1.Pod{staticPod("web", "h1")})
		w.expect(t, "start h1 Pending", "create web of h1 owner nodeuid")
		w.Wanted([]*corev1.Pod{staticPod("web", "h2")})
		w.expect(t, "stop h1")
		time.Sleep(time.Minute)
		w.expect(t) // h1 has not ended yet
		w.Forget("h1")
		w.expect(t, "start h2 Pending", "delete web uid m1 grace 0", "forget m1")
		time.Sleep(retryMax)
		w.expect(t, "create web of h2 owner nodeuid")
	})
}

func TestManifestThatComesBackWhileItsPodEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Mirrors(nil)
		w.Wanted([]*corev1.Pod{staticPod("web", "h1")})
		w.expect(t, "start h1 Pending", "create web of h1 owner nodeuid")
		w.Wanted(nil)
		w.expect(t, "stop h1")
		w.Wanted([]*corev1.Pod{staticPod("web", "h1")})
		w.expect(t)
		w.Forget("h1")
		w.expect(t, "start h1 Pending")
	})
}

// A restart of the agent is invisible: the pod goes on from what its mirror shows.
func TestRestartTakesTheStatusOfTheMirror(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		mirror := mirrorOf(staticPod("web", "h1"), &corev1.Node{})
		mirror.UID, mirror.Status.Phase = "m9", corev1.PodRunning
		orphan := mirrorOf(staticPod("old", "h0"), &corev1.Node{})
		orphan.UID = "m8"
		ended := mirrorOf(staticPod("ended", "h2"), &corev1.Node{})
		ended.UID, ended.Status.Phase = "m7", corev1.PodFailed // by a shutdown of the node
		w.Wanted([]*corev1.Pod{staticPod("web", "h1"), staticPod("ended", "h2")})
		w.expect(t) // waits for the API server …
		w.Mirrors([]*corev1.Pod{mirror, orphan, ended})
		w.expect(t, "start h2 Pending", "start h1 Running", "delete old uid m8 grace 0")
		w.GoneMirror(orphan)
		w.expect(t, "forget m8")
	})
}

// … but not for ever.
func TestStaticPodsRunWithoutAnAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Wanted([]*corev1.Pod{staticPod("web", "h1")})
		time.Sleep(patience)
		w.expect(t, "start h1 Pending")
		w.Mirrors(nil)
		w.expect(t, "create web of h1 owner nodeuid")
	})
}

func TestMirrorIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.down = true
		w.Mirrors(nil)
		w.Wanted([]*corev1.Pod{staticPod("web", "h1")})
		w.expect(t, "start h1 Pending", "create web of h1 owner nodeuid")
		w.mu.Lock()
		w.down = false
		w.mu.Unlock()
		time.Sleep(retryMax)
		w.expect(t, "create web of h1 owner nodeuid")
	})
}

// A webhook that refuses the deletion of a mirror as if it were gone, or another pod's: it is deleted again, less and
// less often, until it is gone.
func TestMirrorThatMayNotBeDeleted(t *testing.T) {
	for name, err := range map[string]error{
		"conflict":  apierrors.NewConflict(corev1.Resource("pods"), "web", errors.New("a webhook says so")),
		"not found": apierrors.NewNotFound(corev1.Resource("pods"), "web"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				old := mirrorOf(staticPod("web", "h0"), &corev1.Node{})
				old.UID = "m9"
				w.mu.Lock()
				w.pods["web"], w.refused = old, err
				w.mu.Unlock()
				w.Mirrors([]*corev1.Pod{old})
				w.Wanted([]*corev1.Pod{staticPod("web", "h1")})
				time.Sleep(time.Minute)
				synctest.Wait()
				w.mu.Lock()
				if n := len(w.log) - 1; n < 6 || n > 12 { // after the start: 1, 2, 4, 8, 10 s
					t.Errorf("%d deletions in a minute: %q", n, w.log)
				}
				w.log, w.refused = nil, nil
				w.mu.Unlock()
				time.Sleep(2 * retryMax)
				w.expect(t, "delete web uid m9 grace 0", "forget m9", "create web of h1 owner nodeuid")
			})
		})
	}
}

func TestOtherPodsPassThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Set(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}, status(corev1.PodRunning))
		w.Forget("u")
		w.expect(t, "status u Running", "forget u")
	})
}
