package placement

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// When there are too many groups, the one that was not used for the longest time goes, never the newest.
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
