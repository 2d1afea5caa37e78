package cli

import (
	"bytes"
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clientgotesting "k8s.io/client-go/testing"
)

// If no node can run the demo's pod, the demo prints why.
func TestDemoShowsWhyPodIsPending(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Message: "all well"},
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Message: "enough"},
			{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue,
				Message: "nodefs.available is\x1b[2J\nbelow 7"},
		}}}
	var out bytes.Buffer
	d := &demo{c: fake.NewClientset(node), out: &out, start: time.Now()}
	pod := demoPod()
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes are available"}}}
	w := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 3})
	w.Add(demoPod())
	w.Modify(pod)
	w.Modify(pod)
	n := 0
	if _, err := d.follow(t.Context(), w, &corev1.Pod{}, func(*corev1.Pod) bool { n++; return n == 3 }); err != nil {
		t.Fatal(err)
	}
	for text, times := range map[string]int{"the pod cannot be scheduled: 0/1 nodes are available": 1,
		"node n: DiskPressure is True: nodefs.available is\uFFFD[2J below 7": 1, "all well": 0, "enough": 0} {
		if got := strings.Count(out.String(), text); got != times {
			t.Errorf("%q: %d times, want %d, in\n%s", text, got, times, out.String())
		}
	}
}

// A demo whose output has no reader any more, or that is stopped, deletes its pod.
func TestInterruptedDemoDeletesItsPod(t *testing.T) {
	for name, c := range map[string]struct {
		lines int // lines until the reader closes the pipe
		keep  bool
		left  int
	}{"head -1": {lines: 1}, "nobody": {}, "to be kept": {lines: 1, keep: true, left: 1}} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			api := fake.NewClientset()
			d := &demo{c: api, out: &closedPipe{lines: c.lines}, stop: cancel}
			api.PrependReactor("create", "pods", func(clientgotesting.Action) (bool, runtime.Object, error) {
				go func() { // what the cluster does with the pod
					pod := demoPod()
					pod.Namespace, pod.Spec.NodeName, pod.Status.Phase = "default", "n", corev1.PodPending
					_, _ = api.CoreV1().Pods("default").Update(ctx, pod, metav1.UpdateOptions{})
				}()
				return false, nil, nil
			})
			if err := d.run(ctx, c.keep); err == nil || d.outputErr == nil {
				t.Fatalf("the demo continued: %v, %v", err, d.outputErr)
			}
			pods, err := api.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(pods.Items) != c.left {
				t.Errorf("%d pods are left, want %d, %v", len(pods.Items), c.left, err)
			}
		})
	}
}

// closedPipe accepts this many lines.
type closedPipe struct{ lines int }

func (p *closedPipe) Write(b []byte) (int, error) {
	if p.lines--; p.lines < 0 {
		return 0, syscall.EPIPE
	}
	return len(b), nil
}
