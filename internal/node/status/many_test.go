package status

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// servers are API servers that hold one pod each.
type servers struct {
	corev1client.PodInterface
	of map[string]*server
}

func (s servers) Pods(string) corev1client.PodInterface { return s }

func (s servers) UpdateStatus(ctx context.Context, pod *corev1.Pod, o metav1.UpdateOptions) (*corev1.Pod, error) {
	return s.of[pod.Name].UpdateStatus(ctx, pod, o)
}

// When many pods start at once, few intermediate statuses are written: a pod that runs within a second needs one write.
// Nothing settles for longer than settleMax.
func TestManyPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		all := servers{of: map[string]*server{}}
		w := New(all)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { w.Run(ctx); close(ended) }()
		defer func() { cancel(); <-ended }()
		var pods []*corev1.Pod
		for i := range n {
			name := fmt.Sprint("p", i)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name),
				ResourceVersion: "1"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
			all.of[name] = &server{pod: pod}
			pods = append(pods, pod)
			w.Seen(pod)
			w.Set(pod, &corev1.PodStatus{Phase: corev1.PodPending, Message: "creating"})
		}
		const soon = settleMax - time.Millisecond
		time.Sleep(soon)
		synctest.Wait()
		for i := 0; i < n; i += 2 {
			w.Set(pods[i], running("on"))
		}
		synctest.Wait()
		writes := 0
		for i := range n {
			s := all.of[pods[i].Name]
			if i%2 == 0 && s.now().Status.Phase != corev1.PodRunning {
				t.Errorf("pod %d does not run as soon as it is said", i)
			}
			writes += s.writes
		}
		if most := n/2 + 7; writes > most {
			t.Errorf("%d writes for %d pods of which half run, want at most %d", writes, n, most)
		}
		time.Sleep(settleMax - soon)
		synctest.Wait()
		for i := range n {
			if s := all.of[pods[i].Name].now().Status; s.Message == "" {
				t.Errorf("pod %d: %v after it began: nothing is stored", i, settleMax)
			}
		}
		// A pod that comes alone has a turn at once.
		w.Set(pods[1], &corev1.PodStatus{Phase: corev1.PodPending, Message: "again"})
		w.Forget(pods[1].UID)
		w.Set(pods[0], running("later"))
		time.Sleep(settleTime)
		synctest.Wait()
		if got := all.of["p0"].now().Status.Message; got != "later" {
			t.Errorf("a status after the burst: %q is stored", got)
		}
	})
}

// The containers of one large pod start one after the other. Each write stores the whole pod, so few are made; the last
// container's status is stored within settleMax.
func TestManyContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p",
			ResourceVersion: "1"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		s := &server{pod: pod}
		w := New(servers{of: map[string]*server{"p": s}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { w.Run(ctx); close(ended) }()
		defer func() { cancel(); <-ended }()
		w.Seen(pod)
		const each = 49 * time.Millisecond // never at the time of a write
		for i := range n {
			st := &corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: make([]corev1.ContainerStatus, n)}
			for j := range n {
				st.ContainerStatuses[j].Name = fmt.Sprint("c", j)
				st.ContainerStatuses[j].Ready = j <= i
			}
			w.Set(pod, st)
			time.Sleep(each)
		}
		if most := int(n*each/settleMax) + 1; s.writes > most {
			t.Errorf("%d writes for %d containers, want at most %d", s.writes, n, most)
		}
		time.Sleep(settleMax)
		synctest.Wait()
		if st := s.now().Status.ContainerStatuses; len(st) != n || !st[n-1].Ready {
			t.Errorf("%d statuses are stored after the last container started, or it is not ready", len(st))
		}
	})
}
