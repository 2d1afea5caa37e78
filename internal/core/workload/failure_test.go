package workload

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod is refused if its node let none of its containers start.
func TestRefused(t *testing.T) {
	refused := corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu"}
	with := func(change func(s *corev1.PodStatus)) corev1.PodStatus {
		s := *refused.DeepCopy()
		change(&s)
		return s
	}
	container := func(s corev1.ContainerStatus) corev1.PodStatus {
		return with(func(p *corev1.PodStatus) { p.ContainerStatuses = []corev1.ContainerStatus{s} })
	}
	for name, test := range map[string]struct {
		status corev1.PodStatus
		want   bool
	}{
		"refused":   {refused, true},
		"pending":   {with(func(s *corev1.PodStatus) { s.Phase = corev1.PodPending }), false},
		"no reason": {with(func(s *corev1.PodStatus) { s.Reason = "" }), false},
		"ran":       {container(corev1.ContainerStatus{ContainerID: "carob://a"}), false},
		"restarted": {container(corev1.ContainerStatus{RestartCount: 1}), false},
		"initialized": {with(func(s *corev1.PodStatus) {
			s.InitContainerStatuses = []corev1.ContainerStatus{{ContainerID: "carob://a"}}
		}), false},
		"evicted before its start": {container(corev1.ContainerStatus{State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}), true},
	} {
		if got := Refused(&corev1.Pod{Status: test.status}); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// The wait doubles with each second in which pods were created that a node refused; it ends with a pod that runs.
func TestAfterRefusals(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	made := func(phase corev1.PodPhase, ago ...int) []*corev1.Pod {
		var out []*corev1.Pod
		for _, s := range ago {
			p := &corev1.Pod{Status: corev1.PodStatus{Phase: phase}}
			p.CreationTimestamp = metav1.NewTime(now.Add(-time.Duration(s) * time.Second))
			out = append(out, p)
		}
		return out
	}
	many := make([]int, 0, 50)
	for i := range 50 {
		many = append(many, 5+i*7)
	}
	for name, test := range map[string]struct {
		refused, running, pending []int
		want                      string
	}{
		"none":                        {nil, []int{5}, nil, "now"},
		"one":                         {[]int{0}, nil, nil, "in 1s"},
		"one, a second ago":           {[]int{1}, nil, nil, "now"},
		"three of one second":         {[]int{0, 0, 0}, nil, nil, "in 1s"},
		"three":                       {[]int{0, 1, 3}, nil, nil, "in 4s"},
		"three, and others in flight": {[]int{0, 1, 3}, nil, []int{0}, "in 4s"},
		"many":                        {many, nil, nil, "in 55s"},
		"one runs since":              {[]int{3, 4, 5}, []int{2}, nil, "now"},
		"one ran before":              {[]int{0, 1, 2}, []int{900}, nil, "in 4s"},
		"one runs between":            {[]int{0, 1, 9, 10}, []int{5}, nil, "in 2s"},
		"long ago":                    {[]int{700, 800, 900}, nil, nil, "now"},
		"long ago, and now":           {[]int{0, 800, 900}, nil, nil, "in 1s"},
	} {
		active := append(made(corev1.PodRunning, test.running...), made(corev1.PodPending, test.pending...)...)
		got := "now"
		if at := AfterRefusals(made(corev1.PodFailed, test.refused...), active, now); !at.IsZero() {
			got = fmt.Sprint("in ", at.Sub(now))
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}
