package pods

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/journal"
	"carob/internal/core/podlife"
)

// world is a Manager with everything around it by hand: a node with room for so many pods
// by size, a decision that the test controls, and actions that end on request of the test.
type world struct {
	*Manager
	t    *testing.T
	room int
	stop func() // ends the manager and waits for it

	mu       sync.Mutex
	steps    map[types.UID]func(podlife.Input) podlife.Output // instead of step
	inputs   map[types.UID]podlife.Input                      // of the last Step
	count    map[types.UID]int                                // Steps
	ended    map[types.UID]bool                               // gone, and nothing is left of it
	looks    int
	lookErr  error
	statuses []string
	events   []string
	actions  map[podlife.Key]*action
	routed   map[types.UID]bool
}

// action is one that an owner began.
type action struct {
	ctx  context.Context
	end  chan Result
	late atomic.Bool // it is not aborted by a cancellation
}

func newWorld(t *testing.T, room int) *world {
	w := &world{
		t: t, room: room, steps: map[types.UID]func(podlife.Input) podlife.Output{},
		inputs: map[types.UID]podlife.Input{},
		count:  map[types.UID]int{}, ended: map[types.UID]bool{}, actions: map[podlife.Key]*action{},
		routed: map[types.UID]bool{},
	}
	w.Manager = New(Config{
		Machine: Machine{
			Step: w.step,
			Recover: func(pod *corev1.Pod, _ podlife.Observed) podlife.State {
				return podlife.State{Last: *pod.Status.DeepCopy()}
			},
		},
		Node: func() podlife.Node { return podlife.Node{} }, Observer: w, Executor: executor{w}, Status: w,
		Event: func(pod *corev1.Pod, e podlife.Event) { w.note(&w.events, "%s %s", pod.Name, e.Reason) },
		Admit: w.admit, Journal: journal.Discard{},
		Routed: func(uid types.UID) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.routed[uid]
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { w.Run(ctx); close(done) }()
	w.stop = func() { cancel(); <-done }
	t.Cleanup(w.stop)
	return w
}

func (w *world) note(list *[]string, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*list = append(*list, fmt.Sprintf(format, args...))
}

// step makes a pod run, unless the test overrides it. It ends on request, and is Finished when the test declares that
// nothing is left.
func (w *world) step(s podlife.State, in podlife.Input) (podlife.State, podlife.Output) {
	w.mu.Lock()
	uid := in.Pod.UID
	w.inputs[uid] = in
	w.count[uid]++
	custom, ended := w.steps[uid], w.ended[uid]
	w.mu.Unlock()
	out := podlife.Output{Life: podlife.Syncing, Allocated: in.Pod}
	switch {
	case custom != nil:
		out = custom(in)
	case in.Hold != nil:
		out.Status.Phase = corev1.PodPending
	case in.Gone && ended:
		out.Life, out.Status.Phase = podlife.Finished, corev1.PodFailed
	case in.Reject != nil, in.Stop != nil && ended:
		out.Life, out.Status.Phase = podlife.Terminated, corev1.PodFailed
	default:
		out.Status.Phase = corev1.PodRunning
	}
	s.Last = out.Status
	return s, out
}

// size is what a pod takes of the node's room: its request of CPUs, or else what its label says.
func size(pod *corev1.Pod) int {
	if c := pod.Spec.Containers; len(c) > 0 {
		return int(c[0].Resources.Requests.Cpu().Value())
	}
	n, err := strconv.Atoi(pod.Labels["size"])
	if err != nil {
		panic(err)
	}
	return n
}

func (w *world) admit(pod *corev1.Pod, others []*corev1.Pod) Verdict {
	used := size(pod)
	for _, p := range others {
		used += size(p)
	}
	if used <= w.room {
		return Verdict{}
	}
	v := Verdict{Rejection: &podlife.Rejection{Reason: "OutOfroom", Message: "no room"}}
	for _, p := range others {
		if pod.Labels["instead-of"] == p.Name {
			v.Victims = append(v.Victims, p)
		}
	}
	return v
}

func (w *world) Look(context.Context, *corev1.Pod) (podlife.Observed, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	return podlife.Observed{Taken: time.Now()}, w.lookErr
}

func (w *world) Forget(types.UID) {}

func (w *world) Set(pod *corev1.Pod, st *corev1.PodStatus) {
	w.note(&w.statuses, "%s %s %s", pod.Name, st.Phase, st.Message)
}
func (w *world) Seen(*corev1.Pod) {}

// executor is the world as what carries out actions.
type executor struct{ w *world }

func (e executor) Forget(*corev1.Pod) {}

func (e executor) Do(ctx context.Context, _ *corev1.Pod, a podlife.Action) Result {
	w := e.w
	act := &action{ctx: ctx, end: make(chan Result, 1)}
	w.mu.Lock()
	w.actions[a.Key()] = act
	w.mu.Unlock()
	select {
	case r := <-act.end:
		return r
	case <-ctx.Done():
		if act.late.Load() {
			return <-act.end
		}
		return Result{Err: &podlife.Failure{Message: ctx.Err().Error()}}
	}
}

func pod(name string, size int, labels ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID(name), Generation: 1,
		Labels: map[string]string{"size": strconv.Itoa(size)},
	}}
	for i := 0; i+1 < len(labels); i += 2 {
		p.Labels[labels[i]] = labels[i+1]
	}
	return p
}

func edited(p *corev1.Pod, edit func(*corev1.Pod)) *corev1.Pod {
	c := p.DeepCopy()
	c.Generation++
	edit(c)
	return c
}

func deleted(p *corev1.Pod) *corev1.Pod {
	return edited(p, func(c *corev1.Pod) { now := metav1.Now(); c.DeletionTimestamp = &now })
}

// end checks that nothing of the pods is left after their end was requested.
func (w *world) end(names ...string) {
	w.mu.Lock()
	for _, n := range names {
		w.ended[types.UID(n)] = true
	}
	w.mu.Unlock()
	for _, n := range names {
		w.Changed(types.UID(n))
	}
	synctest.Wait()
}

// are returns the states of all pods, when nothing changes any more.
func (w *world) are(want string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	var all []string
	for _, uid := range slices.Sorted(maps.Keys(w.inputs)) {
		in := w.inputs[uid]
		text := string(uid)
		switch {
		case in.Hold != nil:
			text += " waits for " + in.Hold.For + " of " + in.Hold.Object
		case in.Reject != nil:
			text += " is refused"
		case in.Stop != nil:
			text += " ends: " + in.Stop.Reason
		case in.Gone:
			text += " is gone"
		default:
			text += " runs"
		}
		all = append(all, text)
	}
	w.mu.Unlock()
	if got := strings.Join(all, "; "); got != want {
		w.t.Errorf("got\n\t%s\nwant\n\t%s", got, want)
	}
}

func (w *world) take(list *[]string) []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := *list
	*list = nil
	return taken
}

func (w *world) script(name string, step func(podlife.Input) podlife.Output) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps[types.UID(name)] = step
}

func (w *world) action(key podlife.Key) *action {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.actions[key]
	if a == nil {
		w.t.Fatalf("%s was not begun", key)
	}
	return a
}

var errLook = errors.New("the runtime does not answer")
