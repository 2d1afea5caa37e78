package placement

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// When there are too many groups, the least recently used one is removed, never the newest.
func TestOldestGroupIsForgotten(t *testing.T) {
	c := NewCluster()
	pod := func(i int) *Pod {
		return Prepare(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("p", i)},
			Spec:       corev1.PodSpec{NodeSelector: map[string]string{"i": fmt.Sprint(i)}},
		})
	}
	for i := range maxGroups {
		c.groupOf(pod(i))
	}
	c.groupOf(pod(0))
	newest := pod(maxGroups)
	c.groupOf(newest)
	for _, want := range []struct {
		pod  *Pod
		kept bool
	}{{newest, true}, {pod(0), true}, {pod(1), false}, {pod(2), true}} {
		if _, kept := c.groups[c.keyOf(want.pod)]; kept != want.kept {
			t.Errorf("group of %s: kept %t, want %t", want.pod.Object.Name, kept, want.kept)
		}
	}
}

// The log of changes holds deleted pods, but hardly more than there are nodes and pods.
func TestLogOfChangesIsShort(t *testing.T) {
	c := NewCluster()
	c.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	pod := func(i int) *Pod {
		name := fmt.Sprint("p", i)
		return Prepare(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}})
	}
	held := func() (n int) {
		for _, ch := range c.changes[:cap(c.changes)] {
			if ch.pod != nil {
				n++
			}
		}
		return n
	}
	late := c.groupOf(pod(-1)) // it is used again after the log has dropped what it lacks
	const burst = 1000
	for i := range burst {
		c.SetPod(pod(i), "n")
		if most := max(i+2, minChanges); held() > most {
			t.Fatalf("%d changes are held with %d pods", held(), i+1)
		}
	}
	for i := range burst {
		c.RemovePod(pod(i).Object.UID)
	}
	if n := held(); n > minChanges {
		t.Errorf("%d deleted pods are held", n)
	}
	if fresh := c.groupOf(pod(-1)); fresh == late {
		t.Error("a group that lacks changes is used")
	}
	c.RemoveNode("n")
	if n := held(); n > 0 {
		t.Errorf("%d pods are held without a node", n)
	}
}
