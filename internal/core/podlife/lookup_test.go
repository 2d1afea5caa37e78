package podlife

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod is rejected while its containers run, and another client has removed their entries from its status.
func TestRejectedWithoutStatuses(t *testing.T) {
	s, in := steady()
	in.Pod = in.Pod.DeepCopy()
	in.Pod.Status = s.Last
	in.Pod.Status.ContainerStatuses = nil
	in.Reject = &Rejection{Reason: "OutOfcpu"}
	_, out := Step(Recover(in.Pod, in.Observed), in)
	for i := range out.Status.Conditions {
		if c := &out.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status != corev1.ConditionFalse {
			t.Errorf("%+v", c)
		}
	}
}

// In a pod of many containers, whose lists are looked up in maps, each gets its own status, probe, start and stop.
func TestLongLists(t *testing.T) {
	names := manyNames(4 * short)
	s, in := steadyOf(names...)
	if len(s.InFlight) <= short {
		t.Fatal("only", len(s.InFlight), "probes")
	}
	for i := range in.Observed.Containers { // every second one ends, and comes back
		if c := &in.Observed.Containers[i]; i%2 == 0 {
			c.State, c.FinishedAt = ContainerExited, in.Now
		}
	}
	in.Observed.Images = []ImageState{{Image: "nginx", Ref: "sha256:nginx"}}
	in.Now = in.Now.Add(time.Minute)
	probes := len(s.InFlight)
	s, out := Step(s, in)
	if len(out.Cancel) != probes/2 || len(s.InFlight) != probes+1 || len(out.Begin) != 1 {
		t.Errorf("%d of %d probes are cancelled, %d begun, %d in flight", len(out.Cancel), probes, len(out.Begin),
			len(s.InFlight))
	}
	for i := range out.Status.ContainerStatuses {
		c := &out.Status.ContainerStatuses[i]
		if want := in.Observed.Containers[i].ID; c.Name != names[i] || c.ContainerID != "carob://"+want ||
			(c.State.Running != nil) != (i%2 == 1) {
			t.Errorf("%s: %s, %+v", c.Name, c.ContainerID, c.State)
		}
	}
	in.Pod = in.Pod.DeepCopy()
	in.Pod.DeletionTimestamp, in.Pod.DeletionGracePeriodSeconds = &metav1.Time{Time: in.Now}, new(int64(5))
	if s, out = Step(s, in); len(s.Stops) != len(names)/2 || len(out.Begin) != len(names)/2 {
		t.Errorf("%d containers are stopped with %d actions, %d run", len(s.Stops), len(out.Begin), len(names)/2)
	}
}

// A lookup finds what a search of the whole list finds, also after actions and stops have been added and removed.
func TestLookupsFollowChanges(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	m := machine{}
	for i := range 3 * short {
		c := Container{ID: fmt.Sprint(i), State: ContainerRunning}
		m.in.Observed.Containers = append(m.in.Observed.Containers, c)
	}
	for range 2000 {
		c := &m.in.Observed.Containers[rnd.IntN(3*short)]
		stopped := slices.IndexFunc(m.s.Stops, func(s containerStop) bool { return s.ContainerID == c.ID })
		begun := slices.IndexFunc(m.s.InFlight, func(f flight) bool { return f.Object == c.ID })
		if s := m.stopOf(c.ID); (s != nil) != (stopped >= 0) || s != nil && s != &m.s.Stops[stopped] {
			t.Fatalf("stop of %s: %v, is at %d", c.ID, s, stopped)
		}
		if f := m.flightAt(place{op: opStop, object: c.ID}); (f != nil) != (begun >= 0) ||
			f != nil && f != &m.s.InFlight[begun] {
			t.Fatalf("action on %s: %v, is at %d", c.ID, f, begun)
		}
		switch {
		case stopped < 0:
			m.addStop(containerStop{ContainerID: c.ID})
		case rnd.IntN(4) == 0:
			c.State = ContainerExited
			m.forgetStops()
			c.State = ContainerRunning
		}
		switch {
		case begun < 0:
			m.addFlight(flight{Key: Key(c.ID), Op: opStop, Object: c.ID})
		case rnd.IntN(4) == 0:
			m.land(m.s.InFlight[begun].Key)
		}
	}
	if len(m.s.Stops) <= short || len(m.s.InFlight) <= short {
		t.Error("the lists have become short")
	}
}
