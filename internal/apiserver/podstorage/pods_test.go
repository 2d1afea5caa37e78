package podstorage

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"carob/internal/core/podstatus"
)

func podWith(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", Generation: 4, Labels: map[string]string{"app": "x"}},
		Spec: corev1.PodSpec{
			NodeName: "n1", TerminationGracePeriodSeconds: ptr.To[int64](30), RestartPolicy: corev1.RestartPolicyAlways,
			SecurityContext: &corev1.PodSecurityContext{}, Containers: []corev1.Container{{Name: "c", Image: "i"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBestEffort},
	}
	if change != nil {
		change(p)
	}
	return p
}

// L1.80, L1.81
func TestBind(t *testing.T) {
	b := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"app": "won"},
		Annotations: map[string]string{"a": "b"}}, Target: corev1.ObjectReference{Name: "n2"}}
	p := podWith(func(p *corev1.Pod) { p.Spec.NodeName = ""; p.Status.NominatedNodeName = "n3" })
	if err := bind(p, b); err != nil {
		t.Fatal(err)
	}
	if p.Spec.NodeName != "n2" || p.Status.NominatedNodeName != "" || p.Labels["app"] != "won" ||
		p.Annotations["a"] != "b" || p.Generation != 4 ||
		!podstatus.ConditionTrue(p.Status.Conditions, corev1.PodScheduled) {
		t.Errorf("bound pod: %+v", p)
	}
	now := metav1.Now()
	for want, change := range map[string]func(*corev1.Pod){
		`pod p is already assigned to node "n1"`: nil,
		"pod p is being deleted, cannot be assigned to a host": func(p *corev1.Pod) {
			p.Spec.NodeName = ""
			p.DeletionTimestamp = &now
		},
		"pod p has non-empty .spec.schedulingGates": func(p *corev1.Pod) {
			p.Spec.NodeName = ""
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
		},
	} {
		if err := bind(podWith(change), b); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// L1.74
func TestTransitionTimeMovesWithTheStatusOnly(t *testing.T) {
	then := metav1.NewTime(time.Unix(1000, 0))
	s := corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
		LastTransitionTime: then}}}
	setCondition(&s, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, Reason: "r"})
	if !s.Conditions[0].LastTransitionTime.Equal(&then) || s.Conditions[0].Reason != "r" {
		t.Errorf("same status: %+v", s.Conditions[0])
	}
	setCondition(&s, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse})
	if s.Conditions[0].LastTransitionTime.Equal(&then) {
		t.Error("another status kept the old transition time")
	}
}

// L1.106–L1.110
func TestMayTake(t *testing.T) {
	many := map[string]metav1.Time{}
	for i := range maxDisrupted + 1 {
		many[string(rune('a'+i%26))+strings.Repeat("x", i)] = metav1.Time{}
	}
	for _, c := range []struct {
		status     policyv1.PodDisruptionBudgetStatus
		code       int32
		retryAfter int32
		cause      string
	}{
		{policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1}, 429, 10,
			"The disruption budget b is still being processed by the server."},
		{policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, DisruptionsAllowed: -1}, 403, 0,
			"The disruption budget b does not allow evicting pods currently: pdb disruptions allowed is negative"},
		{policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, DisruptionsAllowed: 1, DisruptedPods: many}, 403, 0,
			"The disruption budget b does not allow evicting pods currently: too many pending evictions not confirmed by PDB controller"},
		{policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, DesiredHealthy: 2, CurrentHealthy: 1}, 429, 0,
			"The disruption budget b needs 2 healthy pods and has 1 currently"},
		{policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, CurrentHealthy: 1,
			Conditions: []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse,
				Reason: policyv1.SyncFailedReason, Message: "m"}}}, 429, 0,
			"The disruption budget b does not allow evicting pods currently because it failed sync: m"},
		{policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, CurrentHealthy: 1,
			Conditions: []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse,
				Reason: "R", Message: "m"}}}, 429, 0,
			"The disruption budget b does not allow evicting pods currently (R): m"},
		{policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, CurrentHealthy: 1}, 429, 0,
			"The disruption budget b does not allow evicting pods currently"},
	} {
		err := mayTake(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b", Generation: 2},
			Status: c.status})
		status, ok := errors.AsType[*apierrors.StatusError](err)
		if !ok {
			t.Errorf("%s: no error", c.cause)
			continue
		}
		s := status.ErrStatus
		if s.Code != c.code || s.Details.RetryAfterSeconds != c.retryAfter || len(s.Details.Causes) != 1 ||
			s.Details.Causes[0].Message != c.cause {
			t.Errorf("got %d, retry %d, %v; want %d, %d, %s", s.Code, s.Details.RetryAfterSeconds, s.Details.Causes,
				c.code, c.retryAfter, c.cause)
		}
	}
	if err := mayTake(
		&policyv1.PodDisruptionBudget{Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1}}); err != nil {
		t.Errorf("a budget that allows one: %v", err)
	}
}

// L1.130
func TestContainerOf(t *testing.T) {
	two := podWith(func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "i"}}
		p.Spec.Containers = []corev1.Container{{Name: "a"}, {Name: "b"}}
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{
			{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e"}}}
	})
	for _, c := range []struct {
		pod                *corev1.Pod
		requests, want, er string
	}{
		{podWith(nil), "", "c", ""},
		{two, "e", "e", ""},
		{two, "", "", "a container name must be specified for pod p, choose one of: [i a b e]"},
		{two, "z", "", "container z is not valid for pod p"},
	} {
		got, err := containerOf(c.pod, c.requests)
		if got != c.want || (err == nil) != (c.er == "") || err != nil && err.Error() != c.er {
			t.Errorf("%q: %q, %v; want %q, %s", c.requests, got, err, c.want, c.er)
		}
	}
}

// A forged status must not make the proxy reach this host's own services.
func TestProxyable(t *testing.T) {
	for ip, want := range map[string]bool{"10.1.2.3": true, "fd00::1": true, "127.0.0.1": false, "::1": false,
		"169.254.169.254": false, "0.0.0.0": false, "224.0.0.1": false, "x": false, "::ffff:127.0.0.1": false} {
		if got := proxyable(ip) == nil; got != want {
			t.Errorf("%s: %v, want %v", ip, got, want)
		}
	}
}

// The port of a request is one that a pod may have, so that nothing else becomes part of a URL.
func TestProxyPorts(t *testing.T) {
	p := podWith(func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080}, {Name: "web", ContainerPort: 80}}
	})
	for requested, want := range map[string]string{"": "8080", "web": "80", "9": "9", "65535": "65535", "x": "",
		"65536": "",
		"-1":    "", "80%00": "", "80/x": "", "@h": ""} {
		got, err := portOf(p, requested)
		if got != want || (err != nil) != (want == "") || err != nil && !apierrors.IsBadRequest(err) {
			t.Errorf("%q: %q, %v; want %q", requested, got, err, want)
		}
	}
}
