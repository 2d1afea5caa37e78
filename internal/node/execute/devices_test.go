package execute

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"carob/internal/core/podlife"
)

// plugins answer after some time.
type plugins struct {
	Devices
	answer time.Duration // 0: never
}

func (plugins) PrepareClaims(context.Context, *corev1.Pod) error { return nil }

func (p plugins) Allocate(ctx context.Context, _ *corev1.Pod) error {
	answer := make(<-chan time.Time)
	if p.answer > 0 {
		answer = time.After(p.answer)
	}
	select {
	case <-answer:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A pod whose device plugin answers late, or never, says what it waits for.
func TestSlowDevices(t *testing.T) {
	claims := []corev1.PodResourceClaim{{Name: "nic"}}
	limits := corev1.ResourceList{"example.com/gpu": resource.MustParse("1"), "memory": resource.MustParse("1Mi")}
	const message = "Waiting for example.com/gpu, resource claim nic: the device plugins or drivers have not answered " +
		"for 10s"
	for answer, want := range map[time.Duration][]string{
		9 * time.Second:  nil,
		11 * time.Second: {message},
		0:                {message},
	} {
		synctest.Test(t, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{ResourceClaims: claims,
				InitContainers: []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: limits}}},
				Containers:     []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: limits}}}}}
			var events []string
			e := &Executor{cfg: Config{Devices: plugins{answer: answer}, Event: func(_ *corev1.Pod, ev podlife.Event) {
				events = append(events, ev.Message)
			}}}
			ctx, cancel := context.WithTimeout(t.Context(), sandboxTimeout)
			defer cancel()
			if f := e.giveDevices(ctx, pod); (f != nil) != (answer == 0) {
				t.Errorf("answered after %v: %v", answer, f)
			}
			if !slices.Equal(events, want) {
				t.Errorf("answered after %v: events %q, want %q", answer, events, want)
			}
		})
	}
}
