package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
)

// A demo that waits for a node says why none takes its pod.
func TestDemoSaysWhyItWaits(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Message: "all well"},
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Message: "enough"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue, Message: "nodefs.available is below 7"},
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
	for text, times := range map[string]int{"no node takes it: 0/1 nodes are available": 1, "node n: DiskPressure is True: nodefs.available is below 7": 1, "all well": 0, "enough": 0} {
		if got := strings.Count(out.String(), text); got != times {
			t.Errorf("%q: %d times, want %d, in\n%s", text, got, times, out.String())
		}
	}
}
