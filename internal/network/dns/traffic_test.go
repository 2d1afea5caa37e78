package dns

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"
)

// A pod of a headless Service is Routed as long as its name may lead to it, and not when it is being deleted; the
// change is reported once, also if Follow did not run at that moment.
func TestTraffic(t *testing.T) {
	s, _, _ := made(t, fmt.Sprintf(forwarding, ""))
	slice := func(name string, ready, terminating bool, pods ...string) *discoveryv1.EndpointSlice {
		out := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: "db"}}}
		for _, p := range pods {
			out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.88.0.7"},
				Conditions: discoveryv1.EndpointConditions{Ready: &ready, Terminating: &terminating},
				TargetRef:  &corev1.ObjectReference{Kind: "Pod", UID: apitypes.UID(p)}})
		}
		return out
	}
	released := make(chan apitypes.UID, 10)
	go s.Follow(t.Context(), func(pod apitypes.UID) { released <- pod })
	var have *discoveryv1.EndpointSlice
	set := func(next *discoveryv1.EndpointSlice) {
		if next == nil {
			s.zone.change(slim(have), nil)
		} else if have == nil {
			s.zone.change(nil, next)
		} else {
			s.zone.change(slim(have), next)
		}
		have = next
	}
	routed := func(when string, want bool) {
		t.Helper()
		if got := s.Routed("a"); got != want {
			t.Errorf("%s: routed %v", when, got)
		}
	}
	wasReleased := func() {
		t.Helper()
		if pod := <-released; pod != "a" {
			t.Errorf("released %q", pod)
		}
	}
	routed("at first", false)
	set(slice("1", false, false, "a"))
	routed("not ready", false)
	set(slice("1", true, false, "a", "b"))
	routed("ready", true)
	set(slice("1", true, false, "b", "a"))
	routed("in another order", true)
	second := slice("2", true, false, "a")
	s.zone.change(nil, second)
	set(slice("1", false, true, "a"))
	if pod := <-released; pod != "b" {
		t.Errorf("released %q", pod)
	}
	routed("in another slice", true)
	s.zone.change(slim(second), nil)
	wasReleased()
	routed("terminating", false)
	set(slice("1", true, false, "a"))
	routed("ready again", true)
	set(slice("1", true, true, "a"))
	wasReleased()
	routed("terminating, and published whether ready or not", false)
	set(slice("1", true, false, "a"))
	set(nil)
	wasReleased()
	routed("the slice is gone", false)
	if len(released) > 0 {
		t.Errorf("released again: %q", <-released)
	}
}
