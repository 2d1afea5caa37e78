package execute

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

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

type (
	devices = Devices
	volumes = Volumes // as the name of a field, it would hide its method
)

// stuck are devices and volumes that are given back after some time, or not.
type stuck struct {
	devices
	volumes
	takes time.Duration
	err   error
}

func (s stuck) Release(ctx context.Context, _ types.UID) error {
	select {
	case <-time.After(s.takes):
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s stuck) Remove(ctx context.Context, uid types.UID) error { return s.Release(ctx, uid) }

// A pod that does not end because its devices or volumes are not given back, or late, says so; not if carob ends.
func TestSlowRelease(t *testing.T) {
	lost := errors.New("driver x is not registered")
	for name, tt := range map[string]struct {
		takes, ends time.Duration
		err         error
		want        []string
	}{
		"fast":       {takes: time.Second, ends: time.Minute},
		"late":       {takes: 11 * time.Second, ends: time.Minute, want: []string{"takes longer than 10s"}},
		"fails":      {takes: time.Second, ends: time.Minute, err: lost, want: []string{lost.Error()}},
		"fails late": {takes: 11 * time.Second, ends: time.Minute, err: lost, want: []string{"10s", lost.Error()}},
		"carob ends": {takes: time.Hour, ends: time.Second},
		"never":      {takes: time.Hour, ends: time.Minute, want: []string{"takes longer than 10s"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			for _, action := range []podlife.Action{podlife.ReleaseDevices{}, podlife.RemoveVolumes{}} {
				var events []string
				s := stuck{takes: tt.takes, err: tt.err}
				e := New(Config{Devices: s, Volumes: s, Cgroups: freeCgroups{}, UserNS: freeIDs{},
					Event: func(_ *corev1.Pod, ev podlife.Event) {
						events = append(events, ev.Reason+" "+ev.Message)
					}})
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(tt.ends, cancel)
				r := e.Do(ctx, &corev1.Pod{}, action)
				cancel()
				if failed := tt.err != nil || tt.takes > tt.ends; (r.Err != nil) != failed {
					t.Errorf("%s: %v", name, r.Err)
				}
				if len(events) != len(tt.want) {
					t.Errorf("%s: events %q, want %q", name, events, tt.want)
					continue
				}
				for i, want := range tt.want {
					if !strings.Contains(events[i], "NotReleased ") || !strings.Contains(events[i], want) {
						t.Errorf("%s: event %q, want %q", name, events[i], want)
					}
				}
			}
		})
	}
}

type freeCgroups struct{ Cgroups }

func (freeCgroups) Remove(context.Context, types.UID) error { return nil }

type freeIDs struct{ UserNamespaces }

func (freeIDs) Release(types.UID) {}
