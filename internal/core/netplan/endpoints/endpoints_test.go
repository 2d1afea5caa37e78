package endpoints_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/netplan/endpoints"
)

func pods(n int, ready corev1.ConditionStatus) []*corev1.Pod {
	var out []*corev1.Pod
	for i := range n {
		id := fmt.Sprint(ready, i)
		out = append(out, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: id, UID: types.UID(id)},
			Status: corev1.PodStatus{
				PodIPs:     []corev1.PodIP{{IP: fmt.Sprintf("10.%d.%d.%d", len(ready), i/250, i%250+1)}},
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}})
	}
	return out
}

// N1.44 to N1.48: which pods are listed in which subset, and what is truncated.
func TestSubsets(t *testing.T) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web",
		Labels: map[string]string{"team": "a"}},
		Spec: corev1.ServiceSpec{ClusterIP: "None", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Name: "b", Port: 2, TargetPort: intstr.FromInt32(82), Protocol: "TCP"},
				{Name: "a", Port: 1, TargetPort: intstr.FromInt32(81), Protocol: "TCP"}}}}
	var stored *corev1.Endpoints
	for _, step := range []struct {
		what            string
		ready, notReady int
		ending          int // how many of the ready ones are terminating
		publish         bool
		listed, unready int
		truncated       bool
	}{
		{what: "none"},
		{what: "both", ready: 3, notReady: 2, listed: 3, unready: 2},
		{what: "one ends", ready: 3, ending: 1, listed: 2},
		{what: "published", ready: 3, ending: 1, notReady: 2, publish: true, listed: 5},
		{what: "too many not ready", ready: 600, notReady: 600, listed: 600, unready: 400, truncated: true},
		{what: "too many ready", ready: 1100, notReady: 5, listed: 1000, truncated: true},
		{what: "fits again", ready: 1, listed: 1},
	} {
		ready := pods(step.ready, corev1.ConditionTrue)
		for _, p := range ready[:step.ending] {
			p.DeletionTimestamp = &metav1.Time{}
		}
		service.Spec.PublishNotReadyAddresses = step.publish
		in := endpoints.Input{Service: service, Stored: stored, Trigger: time.Unix(1, 0),
			Pods: append(ready, pods(step.notReady, corev1.ConditionFalse)...)}
		e := endpoints.Decide(in)
		if e == nil {
			t.Fatalf("%s: nothing to write", step.what)
		}
		listed, unready := 0, 0
		for _, s := range e.Subsets {
			listed, unready = listed+len(s.Addresses), unready+len(s.NotReadyAddresses)
			if len(s.Ports) != 2 || s.Ports[0].Port != 81 || s.Ports[1].Port != 82 {
				t.Errorf("%s: ports %v", step.what, s.Ports)
			}
		}
		_, truncated := e.Annotations["endpoints.kubernetes.io/over-capacity"]
		if listed != step.listed || unready != step.unready || truncated != step.truncated {
			t.Errorf("%s: %d listed, %d not ready, truncated %v", step.what, listed, unready, truncated)
		}
		if _, headless := e.Labels["service.kubernetes.io/headless"]; !headless || e.Labels["team"] != "a" ||
			e.Labels["endpoints.kubernetes.io/managed-by"] != "endpoint-controller" ||
			e.Annotations["endpoints.kubernetes.io/last-change-trigger-time"] != "1970-01-01T00:00:01Z" {
			t.Errorf("%s: labels %v, annotations %v", step.what, e.Labels, e.Annotations)
		}
		in.Stored, stored = e, e
		if again := endpoints.Decide(in); again != nil {
			t.Errorf("%s: a second decision writes: %+v", step.what, again)
		}
	}
}
