package status

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"carob/internal/core/podstatus"
)

// server is an API server that holds one pod.
type server struct {
	corev1client.PodInterface

	mu     sync.Mutex
	pod    *corev1.Pod
	writes int
	slow   time.Duration
	fail   error
}

func (s *server) Pods(string) corev1client.PodInterface { return s }

func (s *server) Get(context.Context, string, metav1.GetOptions) (*corev1.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pod == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), "a")
	}
	return s.pod.DeepCopy(), nil
}

func (s *server) UpdateStatus(_ context.Context, pod *corev1.Pod, _ metav1.UpdateOptions) (*corev1.Pod, error) {
	time.Sleep(s.slow)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.fail != nil:
		return nil, s.fail
	case s.pod == nil:
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), "a")
	case s.pod.ResourceVersion != pod.ResourceVersion || s.pod.UID != pod.UID:
		return nil, apierrors.NewConflict(corev1.Resource("pods"), "a", errors.New("old version"))
	}
	s.writes++
	s.set(func(p *corev1.Pod) { p.Status = *pod.Status.DeepCopy() })
	return s.pod.DeepCopy(), nil
}

// set changes the stored pod, with s.mu held or before anything runs.
func (s *server) set(edit func(*corev1.Pod)) {
	next := s.pod.DeepCopy()
	edit(next)
	v, _ := strconv.Atoi(next.ResourceVersion)
	next.ResourceVersion = strconv.Itoa(v + 1)
	s.pod = next
}

func (s *server) edit(edit func(*corev1.Pod)) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(edit)
	return s.pod.DeepCopy()
}

func (s *server) now() *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pod.DeepCopy()
}

func start(t *testing.T) (*server, *Writer, *corev1.Pod) { return startWith(t, t.Context()) }

func startWith(t *testing.T, ctx context.Context) (*server, *Writer, *corev1.Pod) {
	s := &server{pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "u",
		ResourceVersion: "1"}, Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways,
		Containers: []corev1.Container{{Name: "c"}}}}}
	w := New(s)
	ctx, cancel := context.WithCancel(ctx)
	var run sync.WaitGroup
	run.Go(func() { w.Run(ctx) })
	t.Cleanup(func() { cancel(); run.Wait() })
	pod := s.now()
	w.Seen(pod)
	return s, w, pod
}

func running(message string) *corev1.PodStatus {
	return &corev1.PodStatus{Phase: corev1.PodRunning, Message: message}
}

// A burst becomes few writes, and the newest status wins (L8.30).
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, pod := start(t)
		s.slow = 10 * time.Millisecond
		for i := range 100 {
			w.Set(pod, running(fmt.Sprint(i)))
		}
		if err := w.Flush(t.Context(), "u"); err != nil {
			t.Fatal(err)
		}
		if got := s.now().Status.Message; got != "99" {
			t.Errorf("stored %q", got)
		}
		if s.writes > 2 {
			t.Errorf("%d writes", s.writes)
		}
		w.Set(pod, running("99"))
		w.Seen(s.now())
		time.Sleep(time.Hour)
		if s.writes > 2 {
			t.Errorf("a status that is stored was written again: %d writes", s.writes)
		}
	})
}

// A status on which no client can act waits briefly for further changes; a change of phase or readiness does not.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, pod := start(t)
		began := time.Now()
		with := func(phase corev1.PodPhase, ready corev1.ConditionStatus, ip string) *corev1.PodStatus {
			return &corev1.PodStatus{Phase: phase, PodIP: ip,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}
		}
		s.edit(func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending })
		w.Seen(s.now())
		for i, step := range []struct {
			status *corev1.PodStatus
			writes int
		}{
			{with(corev1.PodPending, corev1.ConditionFalse, ""), 0},
			{with(corev1.PodPending, corev1.ConditionFalse, "10.0.0.1"), 0},
			{with(corev1.PodRunning, corev1.ConditionFalse, "10.0.0.1"), 1},
			{with(corev1.PodRunning, corev1.ConditionTrue, "10.0.0.1"), 2},
		} {
			w.Set(pod, step.status)
			synctest.Wait()
			if s.writes != step.writes || time.Since(began) != 0 {
				t.Errorf("step %d: %d writes after %v", i, s.writes, time.Since(began))
			}
		}
		w.Set(pod, with(corev1.PodRunning, corev1.ConditionTrue, "10.0.0.2"))
		time.Sleep(settleTime)
		synctest.Wait()
		if s.writes != 3 || s.now().Status.PodIP != "10.0.0.2" {
			t.Errorf("%d writes, address %s", s.writes, s.now().Status.PodIP)
		}
	})
}

// A container that ends and runs again within a moment is one write, also when other changes settle already. If it does
// not run again, the pod is not ready after that moment; nor may more changes delay that. A failed probe does not wait,
// nor does a container whose next instance waits.
func TestSettleAfterAnEnd(t *testing.T) {
	is := func(ready, restarted bool) *corev1.PodStatus {
		st := &corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "c",
			Ready: ready, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}}
		if ready {
			st.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		}
		if restarted {
			st.ContainerStatuses[0].RestartCount = 1
		}
		st.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
		if ready {
			st.Conditions[0].Status = corev1.ConditionTrue
		}
		return st
	}
	probed := is(false, false)
	probed.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waits := is(false, false)
	waits.ContainerStatuses[0].State = corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	ready := func(s *corev1.PodStatus) bool { return podstatus.ConditionTrue(s.Conditions, corev1.PodReady) }
	other := is(true, false)
	other.PodIP = "10.0.0.1"
	failed := is(false, false)
	failed.Phase = corev1.PodFailed
	for _, c := range []struct {
		name   string
		steps  []*corev1.PodStatus // 0.45 endedTime apart, longer than a change settles
		writes []int               // after each
		after  time.Duration       // the last one
		last   int                 // writes then
	}{
		{"runs again", []*corev1.PodStatus{is(false, false), is(true, true)}, []int{0, 0}, settleTime, 1},
		{"after another change", []*corev1.PodStatus{other, is(false, false), is(true, true)},
			[]int{0, 1, 1}, settleTime, 2},
		{"does not run again", []*corev1.PodStatus{is(false, false)}, []int{0}, endedTime, 1},
		{"changes on and on", []*corev1.PodStatus{is(false, false), is(false, true), is(false, false), is(false, true)},
			[]int{0, 0, 0, 1}, 0, 1},
		{"waits", []*corev1.PodStatus{waits}, []int{1}, 0, 1},
		{"a failed probe", []*corev1.PodStatus{probed}, []int{1}, 0, 1},
		{"another phase", []*corev1.PodStatus{is(false, false), failed}, []int{0, 1}, endedTime, 1},
		{"runs, and ends again", []*corev1.PodStatus{is(false, false), is(true, true), is(true, true), is(false, true)},
			[]int{0, 0, 1, 1}, endedTime, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, w, pod := start(t)
			s.edit(func(p *corev1.Pod) { p.Status = *is(true, false) })
			w.Seen(s.now())
			for i, step := range c.steps {
				if i > 0 {
					time.Sleep(endedTime * 45 / 100)
				}
				w.Set(pod, step.DeepCopy())
				synctest.Wait()
				if s.writes != c.writes[i] {
					t.Errorf("%s: %d writes after step %d, want %d", c.name, s.writes, i, c.writes[i])
				}
			}
			time.Sleep(c.after)
			synctest.Wait()
			if s.writes != c.last {
				t.Errorf("%s: %d writes at the end, want %d", c.name, s.writes, c.last)
			}
			if got, want := ready(&s.now().Status), ready(c.steps[len(c.steps)-1]); got != want {
				t.Errorf("%s: ready: %t, want %t", c.name, got, want)
			}
		})
	}
}

// Containers that end and run in turns, faster than a change settles, do not delay the status for ever.
func TestEndsWithoutARest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, pod := start(t)
		status := func(ready corev1.ConditionStatus) *corev1.PodStatus {
			return &corev1.PodStatus{Phase: corev1.PodRunning,
				Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
				ContainerStatuses: []corev1.ContainerStatus{{Name: "c", Ready: ready == corev1.ConditionTrue}}}
		}
		s.edit(func(p *corev1.Pod) { p.Status = *status(corev1.ConditionTrue) })
		w.Seen(s.now())
		w.Set(pod, status(corev1.ConditionFalse))
		time.Sleep(settleTime / 4)
		for range endedTime / settleTime {
			w.Set(pod, status(corev1.ConditionTrue))
			time.Sleep(settleTime / 2)
			synctest.Wait()
			if s.writes != 0 {
				t.Fatalf("%d writes while the container restarts", s.writes)
			}
			w.Set(pod, status(corev1.ConditionFalse))
			time.Sleep(settleTime / 2)
		}
		synctest.Wait()
		if s.writes != 1 {
			t.Errorf("%d writes %v after the first end, want 1", s.writes, endedTime)
		}
	})
}

// A change that settles already does not shorten the wait after the end of a container.
func TestSettleTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, pod := start(t)
		ready := corev1.PodStatus{Phase: corev1.PodRunning,
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "c", Ready: true}}}
		s.edit(func(p *corev1.Pod) { p.Status = ready })
		w.Seen(s.now())
		other := ready.DeepCopy()
		other.PodIP = "10.0.0.1"
		w.Set(pod, other)
		ended := other.DeepCopy()
		ended.Conditions[0].Status = corev1.ConditionFalse
		ended.ContainerStatuses[0].Ready = false
		w.Set(pod, ended)
		for _, step := range []struct {
			wait   time.Duration
			writes int
		}{{endedTime - time.Millisecond, 0}, {time.Millisecond, 1}} {
			time.Sleep(step.wait)
			synctest.Wait()
			if s.writes != step.writes {
				t.Errorf("%d writes, want %d", s.writes, step.writes)
			}
		}
	})
}

// What others write stays, also when it came between look and write (L8.31, L8.32).
func TestConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, pod := start(t)
		gate := corev1.PodCondition{Type: "example.com/gate", Status: corev1.ConditionTrue}
		s.edit(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{gate, {Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
			p.Status.NominatedNodeName = "n2"
		})
		want := running("x")
		want.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue},
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
		w.Set(pod, want)
		if err := w.Flush(t.Context(), "u"); err != nil {
			t.Fatal(err)
		}
		got := s.now().Status
		if diff := cmp.Diff([]corev1.PodCondition{gate, want.Conditions[0], want.Conditions[1]},
			got.Conditions); diff != "" {
			t.Error(diff)
		}
		if got.NominatedNodeName != "n2" || got.Phase != corev1.PodRunning {
			t.Errorf("status %+v", got)
		}
	})
}

// A status that another writer overwrote is written again (L8.30).
func TestOverwrittenStatusIsWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, pod := start(t)
		w.Set(pod, running("mine"))
		_ = w.Flush(t.Context(), "u")
		w.Seen(s.edit(func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }))
		_ = w.Flush(t.Context(), "u")
		if got := s.now().Status.Phase; got != corev1.PodRunning {
			t.Errorf("phase %s", got)
		}
	})
}

// An outage is survived with ever longer waits, and nothing blocks meanwhile.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, pod := start(t)
		s.mu.Lock()
		s.fail = errors.New("connection refused")
		s.mu.Unlock()
		w.Set(pod, running("first"))
		time.Sleep(time.Minute)
		w.Set(pod, running("second"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Flush(ctx, "u"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Flush during the outage: %v", err)
		}
		s.mu.Lock()
		s.fail = nil
		s.mu.Unlock()
		began := time.Now()
		if err := w.Flush(t.Context(), "u"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > retryMax {
			t.Errorf("written %v after the end of the outage", took)
		}
		if got := s.now().Status.Message; got != "second" {
			t.Errorf("stored %q", got)
		}
	})
}

// A status that the API server refuses is an error in the log, once for each reason; an outage is not.
func TestRefusalIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var lines []string
		logger := funcr.New(func(_, line string) {
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, line)
		}, funcr.Options{})
		s, w, pod := startWith(t, klog.NewContext(t.Context(), logger))
		for _, step := range []struct {
			fail error
			want int
		}{
			{errors.New("connection refused"), 0},
			{apierrors.NewForbidden(corev1.Resource("pods"), "a", errors.New("a webhook denied it")), 1},
			{apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "a", nil), 2},
			{nil, 2},
			{apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "a", nil), 3},
		} {
			s.mu.Lock()
			s.fail = step.fail
			s.mu.Unlock()
			w.Set(pod, running(fmt.Sprint(step)))
			time.Sleep(time.Minute)
			mu.Lock()
			if len(lines) != step.want {
				t.Errorf("after a minute of %v: %q, want %d lines", step.fail, lines, step.want)
			}
			mu.Unlock()
		}
	})
}

// A webhook may refuse a status as NotFound, when it cannot find something itself: the pod is not gone.
func TestRefusedAsNotFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, pod := start(t)
		s.mu.Lock()
		s.fail = apierrors.NewNotFound(corev1.Resource("policies"), "p")
		s.mu.Unlock()
		w.Set(pod, running("x"))
		time.Sleep(time.Minute)
		s.mu.Lock()
		s.fail = nil
		s.mu.Unlock()
		if err := w.Flush(t.Context(), "u"); err != nil || s.now().Status.Message != "x" {
			t.Errorf("status %+v, %v", s.now().Status, err)
		}
	})
}

// A pod that is gone, or whose name another pod has now, is never written (L8.31).
func TestStatusOfAGonePodIsNotWritten(t *testing.T) {
	for name, vanish := range map[string]func(*server){
		"deleted":   func(s *server) { s.pod = nil },
		"recreated": func(s *server) { s.set(func(p *corev1.Pod) { p.UID = "another" }) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w, pod := start(t)
				s.mu.Lock()
				vanish(s)
				s.mu.Unlock()
				w.Set(pod, running("x"))
				if err := w.Flush(t.Context(), "u"); !errors.Is(err, ErrGone) {
					t.Errorf("Flush: %v", err)
				}
				w.Set(pod, running("y"))
				time.Sleep(time.Hour)
				if s.writes != 0 {
					t.Errorf("%d writes", s.writes)
				}
			})
		})
	}
}

// The agent's own DisruptionTarget replaces another's; else the other's stays (L4.8, L4.59).
func TestDisruptionTarget(t *testing.T) {
	other := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: "EvictionByEvictionAPI"}
	mine := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: corev1.PodReasonTerminationByKubelet}
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
	for _, tt := range []struct {
		name             string
		base, want, both []corev1.PodCondition
	}{
		{"other's, unknown to us", []corev1.PodCondition{other}, []corev1.PodCondition{ready},
			[]corev1.PodCondition{other, ready}},
		{"other's, copied by us", []corev1.PodCondition{other}, []corev1.PodCondition{other, ready},
			[]corev1.PodCondition{other, ready}},
		{"ours", nil, []corev1.PodCondition{mine, ready}, []corev1.PodCondition{mine, ready}},
		{"ours after other's", []corev1.PodCondition{other}, []corev1.PodCondition{mine, ready},
			[]corev1.PodCondition{mine, ready}},
	} {
		got := merge(&corev1.PodStatus{Conditions: tt.base}, &corev1.PodStatus{Conditions: tt.want})
		if diff := cmp.Diff(tt.both, got.Conditions); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

// What the scheduler and the controllers of claims wrote stays as it is (L1.73).
func TestFieldsOfOthers(t *testing.T) {
	claim := "claim"
	base := &corev1.PodStatus{
		NominatedNodeName:                    "n",
		ResourceClaimStatuses:                []corev1.PodResourceClaimStatus{{Name: "a", ResourceClaimName: &claim}},
		ExtendedResourceClaimStatus:          &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: claim},
		NodeAllocatableResourceClaimStatuses: []corev1.NodeAllocatableResourceClaimStatus{{ResourceClaimName: claim}},
	}
	got := merge(base, &corev1.PodStatus{})
	got.Conditions = nil
	if diff := cmp.Diff(*base, got); diff != "" {
		t.Error(diff)
	}
}

// A condition that changed and changed back between two writes keeps its time (L1.74). The time of resize conditions
// changes with their reason (L4.56).
func TestTransitionTimeOfUnwrittenChanges(t *testing.T) {
	at := func(s int) metav1.Time { return metav1.NewTime(time.Date(2026, 1, 1, 0, 0, s, 0, time.UTC)) }
	with := func(ready corev1.ConditionStatus, s int) *corev1.PodStatus {
		return &corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, LastTransitionTime: at(s)},
			{Type: corev1.PodReady, Status: ready, LastTransitionTime: at(s)},
		}}
	}
	for _, tt := range []struct {
		want *corev1.PodStatus
		at   metav1.Time
	}{{with(corev1.ConditionFalse, 4), at(1)}, {with(corev1.ConditionTrue, 4), at(4)}} {
		got := merge(with(corev1.ConditionFalse, 1), tt.want)
		if !got.Conditions[0].LastTransitionTime.Equal(new(at(4))) ||
			!got.Conditions[1].LastTransitionTime.Equal(&tt.at) {
			t.Errorf("want Ready of %v: %v", tt.at, got.Conditions)
		}
	}
}
