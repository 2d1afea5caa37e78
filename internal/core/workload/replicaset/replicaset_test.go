package replicaset

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func set(size int32) *appsv1.ReplicaSet {
	s := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 3},
		Spec: appsv1.ReplicaSetSpec{Replicas: &size}}
	s.Spec.Template.Labels = map[string]string{"app": "web", "tier": "front"}
	return s
}

// pods makes a pod from each word: p pending, r ready since an hour, n not ready, x without the template's labels;
// a number makes one that has been ready for so many seconds.
func pods(words string) []*corev1.Pod {
	var out []*corev1.Pod
	for i, w := range strings.Fields(words) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s%d", w, i), UID: types.UID(fmt.Sprint(i)),
			Labels: map[string]string{"app": "web", "tier": "front", "own": "x"}}}
		since, age := time.Hour, 0
		switch n, _ := fmt.Sscanf(w, "%d", &age); {
		case n == 1:
			since = time.Duration(age) * time.Second
		case w == "x":
			delete(p.Labels, "tier")
		}
		p.Status.Phase, p.Spec.NodeName = corev1.PodRunning, "node"
		status := corev1.ConditionTrue
		switch w {
		case "p":
			p.Status.Phase, p.Spec.NodeName, status = corev1.PodPending, "", corev1.ConditionFalse
		case "n":
			status = corev1.ConditionFalse
		}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status,
			LastTransitionTime: metav1.NewTime(noon.Add(-since))}}
		out = append(out, p)
	}
	return out
}

func TestDecide(t *testing.T) {
	for _, c := range []struct {
		clause string
		in     Input
		want   string
	}{
		{"W1.12 none", Input{Set: set(3)}, "create 3"},
		{"W1.12 some", Input{Set: set(3), Active: pods("r")}, "create 2"},
		{"W1.12 enough", Input{Set: set(1), Active: pods("r")}, ""},
		{"W1.12 too many: those go that are missed least", Input{Set: set(1), Active: pods("r n p")}, "delete p2 n1"},
		{"W0.50 all", Input{Set: set(0), Active: pods("r n")}, "delete r0 n1"},
		{"W1.10 a burst", Input{Set: set(900), Burst: 500}, "create 500"},
		{"W1.10 a burst", Input{Set: set(0), Active: pods("r r r"), Burst: 2}, "delete r0 r1"},
		{"W1.10 a burst", Input{Set: set(1), Active: pods("r r r p"), Burst: 1}, "delete p3"},
		{"W1.31 being deleted",
			Input{Set: func() *appsv1.ReplicaSet {
				s := set(3)
				s.DeletionTimestamp = &metav1.Time{Time: noon}
				return s
			}()}, ""},
		{"W1.1 no number", Input{Set: &appsv1.ReplicaSet{}}, "create 1"},
	} {
		c.in.Now = noon
		p := Decide(c.in)
		var got []string
		if p.Create > 0 {
			got = append(got, fmt.Sprint("create ", p.Create))
		}
		for i, pod := range p.Delete {
			if i == 0 {
				got = append(got, "delete")
			}
			got = append(got, pod.Name)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.clause, got, c.want)
		}
	}
}

// W0.1: terminatingReplicas is part of each status.
func TestStatus(t *testing.T) {
	failed := errors.New("exceeded quota")
	for _, c := range []struct {
		what    string
		set     *appsv1.ReplicaSet
		pods    string
		min     int32
		failure error
		want    string
		next    time.Duration
	}{
		{"W1.20", set(5), "r n p x r", 0, nil, "replicas 5 labeled 4 ready 3 available 3 observed 3", 0},
		{"W0.61: when the next pod becomes available", set(3), "1 4 9 n", 10, nil,
			"replicas 4 labeled 4 ready 3 available 0 observed 3", time.Second},
		{"W0.60", set(3), "10 4", 10, nil, "replicas 2 labeled 2 ready 2 available 1 observed 3", 6 * time.Second},
		{"W1.23 too few", set(3), "r", 0, failed,
			"replicas 1 labeled 1 ready 1 available 1 observed 3 FailedCreate: exceeded quota @0s", 0},
		{"W1.23 too many", set(0), "r", 0, failed,
			"replicas 1 labeled 1 ready 1 available 1 observed 3 FailedDelete: exceeded quota @0s", 0},
		{"W1.23 the first stays", withFailure(set(3)), "r", 0, failed,
			"replicas 1 labeled 1 ready 1 available 1 observed 3 FailedCreate: the first @-1h0m0s", 0},
		{"W1.23 gone", withFailure(set(1)), "r", 0, nil, "replicas 1 labeled 1 ready 1 available 1 observed 3", 0},
	} {
		c.set.Spec.MinReadySeconds = c.min
		in := Input{Set: c.set, Active: pods(c.pods), Ending: new(int32(2)), Now: noon}
		s, changed, next := Status(in, c.failure)
		got := fmt.Sprintf("replicas %d labeled %d ready %d available %d observed %d", s.Replicas,
			s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas, s.ObservedGeneration)
		for _, x := range s.Conditions {
			got += fmt.Sprintf(" %s: %s @%s", x.Reason, x.Message, x.LastTransitionTime.Sub(noon))
		}
		if got != c.want || !changed || *s.TerminatingReplicas != 2 {
			t.Errorf("%s: %s, want %s (changed %v, terminating %d)", c.what, got, c.want, changed,
				*s.TerminatingReplicas)
		}
		if wait := next.Sub(noon); next.IsZero() != (c.next == 0) || c.next > 0 && wait != c.next {
			t.Errorf("%s: next look in %v, want %v", c.what, wait, c.next)
		}
		c.set.Status = s
		if _, changed, _ := Status(in, c.failure); changed {
			t.Errorf("W1.22 %s: the same status is a change", c.what)
		}
	}
}

func withFailure(s *appsv1.ReplicaSet) *appsv1.ReplicaSet {
	s.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure,
		Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "the first",
		LastTransitionTime: metav1.NewTime(noon.Add(-time.Hour))}}
	return s
}

// After a decision is carried out, there is nothing left to do, and no ready pod is deleted while
// an unready one stays.
func TestOneDecisionIsEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := Input{Set: set(rapid.Int32Range(0, 20).Draw(t, "size")), Now: noon}
		in.Active = pods(strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"p", "r", "n", "x", "7"}), 0,
			20).Draw(t, "pods"), " "))
		p := Decide(in)
		if p.Create > 0 && len(p.Delete) > 0 {
			t.Fatal("it creates and deletes")
		}
		gone := map[types.UID]bool{}
		unreadyGone, unready := 0, 0
		for _, pod := range p.Delete {
			gone[pod.UID] = true
			if pod.Status.Conditions[0].Status != corev1.ConditionTrue {
				unreadyGone++
			}
		}
		var left []*corev1.Pod
		for _, pod := range in.Active {
			if pod.Status.Conditions[0].Status != corev1.ConditionTrue {
				unready++
			}
			if !gone[pod.UID] {
				left = append(left, pod)
			}
		}
		if unreadyGone < min(unready, len(p.Delete)) {
			t.Fatalf("W0.51: ready pods are deleted while others stay")
		}
		in.Active = append(left, pods(strings.Repeat("p ", p.Create))...)
		if again := Decide(in); again.Create > 0 || len(again.Delete) > 0 {
			t.Fatalf("again: %+v", again)
		}
	})
}
