package placement

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkPreempt measures what one pod costs that gets its place by preemption: the decision that no node is free,
// that with the disruption budgets, the victims, the nomination, the end of the victims, and the decision for the
// nominated node. All nodes are full of less important pods; half of the pods are nominated at a time.
func BenchmarkPreempt(b *testing.B) {
	for _, nodes := range []int{200, 1000, 5000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			done, spent := 0, time.Duration(0)
			for done < b.N {
				b.StopTimer()
				c, waiting := fullCluster(nodes)
				b.StartTimer()
				before := processor()
				for n := range min(b.N-done, nodes) {
					p := waiting[n]
					d := c.Decide(p, n)
					if d.Node != "" || c.MayPreempt(p, d).Node == "" {
						b.Fatal("no preemption")
					}
					d = c.Decide(p, d.Next)
					v := c.Preempt(p, d, nil)
					if len(v.Victims) != 1 {
						b.Fatalf("%d victims", len(v.Victims))
					}
					c.Nominate(p, v.Node)
					p.Object.Status.NominatedNodeName = v.Node
					for _, o := range v.Victims {
						c.RemovePod(o.Object.UID)
					}
					if n < nodes/2 {
						continue
					}
					p = waiting[n-nodes/2]
					if d := c.Decide(p, n); d.Node != p.Object.Status.NominatedNodeName {
						b.Fatal("not on the nominated node")
					}
					c.RemoveNomination(p.Object.UID)
					c.SetPod(p, p.Object.Status.NominatedNodeName)
				}
				spent += processor() - before
				done += min(b.N-done, nodes)
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/spent.Seconds(), "pods/cpu-s")
		})
	}
}

// fullCluster has two unimportant pods on each node, which leave no room, and as many important pods as nodes.
func fullCluster(nodes int) (*Cluster, []*Pod) {
	c := NewCluster()
	var waiting []*Pod
	for i := range nodes {
		c.SetNode(makeNode(fmt.Sprint("n", i), "32", "64Gi", label(corev1.LabelHostname, fmt.Sprint("n", i))))
		for j := range 2 {
			c.SetPod(Prepare(makePod(fmt.Sprint("low", i, "-", j), requests("cpu", "16"))), fmt.Sprint("n", i))
		}
		waiting = append(waiting, Prepare(makePod(fmt.Sprint("high", i), requests("cpu", "16"), priority(1000))))
	}
	return c, waiting
}
