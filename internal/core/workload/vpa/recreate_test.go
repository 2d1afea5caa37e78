package vpa

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// W13.63: two replicas that request 10m and use 200m, in mode Recreate. The first pass has a target and evicts one
// pod; the second is evicted in a later pass; the new pods have the target as request.
func TestRecreateTwoReplicas(t *testing.T) {
	v := autoscaler(mode(ModeRecreate, leastReplicas))
	m := NewModel()
	pods := []*corev1.Pod{owned("a", "10m", "1Mi"), owned("b", "10m", "1Mi")}
	var evicted []string
	for pass := 1; pass <= 4; pass++ {
		now := traceStart.Add(time.Duration(pass) * Pass)
		m.SetTargets(targetOf(v))
		m.SetPods(pods, now)
		feed(m, pods, now, 200, 50<<20)
		var err error
		if v.Status, err = m.Recommend(here, now); err != nil {
			t.Fatal(err)
		}
		c := v.Status.Recommendation.Containers[0]
		// The bucket of 200m ends at 215m (whole milli-cores, W9.31); 15 % are added.
		if got := c.Target.Cpu().MilliValue(); got != 247 {
			t.Errorf("pass %d: the target is %dm, want 247m", pass, got)
		}
		if low := c.LowerBound.Cpu().MilliValue(); low < leastCPU {
			t.Errorf("pass %d: the lower bound is %dm", pass, low)
		}
		r := NewRound(v, pods, scaleOf(2), Ranges{}, Resizes{}, now)
		var names []string
		for _, p := range r.Candidates() {
			if r.Step(p) != Evict || !r.MayEvict(p) {
				continue
			}
			r.Evicted(p)
			names = append(names, p.Name)
			for i := range pods {
				if pods[i] == p { // its owner creates another one
					pods[i] = owned(fmt.Sprintf("%s%d", p.Name, pass), "10m", "1Mi")
					Admit(pods[i], v, Ranges{})
				}
			}
		}
		evicted = append(evicted, strings.Join(names, "+"))
	}
	if got := strings.Join(evicted, " "); got != "a b  " {
		t.Errorf("evicted in each pass: %q, want a, then b, then none", got)
	}
	for _, p := range pods {
		if got := p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue(); got != 247 {
			t.Errorf("%s requests %dm, want the target", p.Name, got)
		}
		if p.Annotations[UpdatesAnnotation] == "" {
			t.Errorf("%s does not say who sized it: %v", p.Name, p.Annotations)
		}
	}
}
