package placement

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BenchmarkDecide measures one decision and its count on the node, on many nodes with many pods;
// pods come in groups with the same requirements, like those of workloads. When the nodes are full,
// all pods leave (not measured).
func BenchmarkDecide(b *testing.B) {
	zoned := func(i int) nodeOption { return label(corev1.LabelTopologyZone, fmt.Sprint("z", i%10)) }
	soft := func(p *corev1.Pod) {
		spreads(corev1.LabelTopologyZone, 5, p.Labels["app"])(p)
		p.Spec.TopologySpreadConstraints[0].WhenUnsatisfiable = corev1.ScheduleAnyway
	}
	for name, constrain := range map[string]podOption{
		"basic":         func(*corev1.Pod) {},
		"service":       app("served"),
		"anti-affinity": func(p *corev1.Pod) { affine(true, corev1.LabelHostname, p.Labels["app"])(p) },
		"affinity":      func(p *corev1.Pod) { affine(false, corev1.LabelTopologyZone, p.Labels["app"])(p) },
		"spread":        func(p *corev1.Pod) { spreads(corev1.LabelTopologyZone, 5, p.Labels["app"])(p) },
		"soft spread":   soft,
		"unschedulable": requests("example.com/none", "1"),
	} {
		for _, nodes := range []int{1000, 5000} {
			b.Run(fmt.Sprintf("%s/%d", name, nodes), func(b *testing.B) {
				c := NewCluster()
				for i := range nodes {
					c.SetNode(makeNode(fmt.Sprint("n", i), "32", "64Gi", zoned(i)))
				}
				c.SetOwner(Owner{Service, "default", "s"},
					&metav1.LabelSelector{MatchLabels: map[string]string{"app": "served"}})
				pods := make([]*Pod, min(b.N, 4*nodes))
				for i := range pods {
					pods[i] = Prepare(makePod(fmt.Sprint("p", i), app(fmt.Sprint("a", i%8)), requests("cpu", "100m"),
						requests("memory", "200Mi"), constrain))
				}
				start, on := 0, 0
				b.ReportAllocs()
				before := processor()
				b.ResetTimer()
				for i := range b.N {
					p := pods[i%len(pods)]
					if i > 0 && i%len(pods) == 0 {
						b.StopTimer()
						for _, q := range pods {
							c.RemovePod(q.Object.UID)
						}
						on = 0
						b.StartTimer()
					}
					d := c.Decide(p, start)
					if start = d.Next; d.Node != "" {
						c.SetPod(p, d.Node)
						on++
					}
				}
				b.StopTimer()
				b.ReportMetric(float64(b.N)/(processor()-before).Seconds(), "pods/cpu-s")
				if name != "unschedulable" && on == 0 {
					b.Error("no pod has a node")
				}
			})
		}
	}
}

// processor returns the CPU time of this process, which is more meaningful on a busy machine than
// the time that has passed.
func processor() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
