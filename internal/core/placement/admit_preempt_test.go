package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/resources"
)

// podOf is a pod of a class: requests in cores, limits equal to them when guaranteed.
func podOf(name string, cores int64, guaranteed bool) *corev1.Pod {
	c := corev1.Container{Name: "c"}
	if cores > 0 {
		c.Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewQuantity(cores, resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(1, resource.DecimalSI),
		}
		if guaranteed {
			c.Resources.Limits = c.Resources.Requests
		}
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
}

func critical(p *corev1.Pod, priority int32) *corev1.Pod {
	p.Spec.Priority = &priority
	return p
}

func machineOf(cores, pods int64, running []*corev1.Pod) *Node {
	object := &corev1.Node{}
	object.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(cores, resource.DecimalSI),
		corev1.ResourceMemory: resource.MustParse("1Gi"),
		corev1.ResourcePods:   *resource.NewQuantity(pods, resource.DecimalSI),
	}
	return nodeWith(object, running)
}

// L3.40
func TestVictimsOfACriticalPod(t *testing.T) {
	const top = 2_000_000_000
	fromFile := podOf("static", 4, false)
	fromFile.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	for _, x := range []struct {
		name        string
		pod         *corev1.Pod
		cores, pods int64
		running     []*corev1.Pod
		want        string
	}{
		{"not critical", podOf("new", 2, false), 4, 9, []*corev1.Pod{podOf("a", 4, false)}, ""},
		{"burstable before guaranteed", critical(podOf("new", 2, false), top), 4, 9,
			[]*corev1.Pod{podOf("g", 2, true), podOf("b", 2, false)}, "b"},
		{"guaranteed too, when it must be", critical(podOf("new", 4, false), top), 4, 9,
			[]*corev1.Pod{podOf("g", 2, true), podOf("b", 2, false)}, "b g"},
		{"the one that is enough", critical(podOf("new", 2, false), top), 4, 9,
			[]*corev1.Pod{podOf("a", 1, false), podOf("b", 2, false), podOf("c", 1, false)}, "b"},
		{"best effort gives room for a pod", critical(podOf("new", 1, false), top), 9, 2,
			[]*corev1.Pod{podOf("g", 1, true), podOf("e", 0, false)}, "e"},
		{"nobody has enough", critical(podOf("new", 5, false), top), 4, 9, []*corev1.Pod{podOf("a", 4, false)}, ""},
		{"critical ones stay", critical(podOf("new", 2, false), top), 4, 9,
			[]*corev1.Pod{critical(podOf("a", 4, false), top)}, ""},
		{"but for a higher one", critical(podOf("new", 2, false), top+1000), 4, 9,
			[]*corev1.Pod{critical(podOf("a", 4, false), top)}, "a"},
		{"static ones stay", critical(podOf("new", 2, false), top), 4, 9, []*corev1.Pod{fromFile}, ""},
	} {
		n := machineOf(x.cores, x.pods, x.running)
		p := Prepare(x.pod)
		r := n.Admit(p, "linux")
		if r == nil {
			t.Errorf("%s: it fits", x.name)
			continue
		}
		var got []string
		for _, v := range n.Victims(p, r.Short) {
			got = append(got, v.Name)
		}
		if strings.Join(got, " ") != x.want {
			t.Errorf("%s: victims %v, want %s", x.name, got, x.want)
		}
	}
}

// With any running pods: the pod fits without the victims, and every victim is necessary.
func TestVictimsAreEnoughAndNeeded(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		var running []*corev1.Pod
		for i := range 1 + r.IntN(6) {
			p := podOf(fmt.Sprint("p", i), int64(r.IntN(4)), r.IntN(2) == 0)
			if r.IntN(6) == 0 {
				critical(p, 2_000_000_000)
			}
			running = append(running, p)
		}
		n := machineOf(int64(1+r.IntN(8)), int64(1+r.IntN(7)), running)
		p := Prepare(critical(podOf("new", int64(1+r.IntN(5)), false), 2_000_000_000))
		refused := n.Admit(p, "linux")
		if refused == nil {
			continue
		}
		victims := n.Victims(p, refused.Short)
		fits := func(gone []*corev1.Pod) bool {
			left := slices.DeleteFunc(slices.Clone(running),
				func(q *corev1.Pod) bool { return slices.Contains(gone, q) })
			return machineOf(n.Ledger.Allocatable.MilliCPU/1000, n.Ledger.MaxPods, left).Admit(p, "linux") == nil
		}
		for _, v := range victims {
			if resources.IsCritical(v) {
				t.Fatalf("seed %d: a critical pod is a victim", seed)
			}
		}
		all := slices.DeleteFunc(slices.Clone(running), resources.IsCritical)
		if possible := fits(all); possible != (len(victims) > 0) {
			t.Fatalf("seed %d: possible %t, victims %d", seed, possible, len(victims))
		}
		if len(victims) > 0 && !fits(victims) {
			t.Fatalf("seed %d: the victims are not enough", seed)
		}
	}
}
