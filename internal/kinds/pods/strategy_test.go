package pods

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/ptr"

	"carob/internal/core/podstatus"
)

func pod(change func(*corev1.Pod)) *corev1.Pod {
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

// L1.3, L1.4
func TestPrepareForCreate(t *testing.T) {
	p := pod(func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodFailed, PodIP: "1.2.3.4"}
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a/b"}}
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	})
	Strategy{}.PrepareForCreate(context.Background(), p)
	if p.Generation != 1 {
		t.Errorf("generation %d, want 1", p.Generation)
	}
	if p.Status.Phase != corev1.PodPending || p.Status.PodIP != "" || p.Status.QOSClass != corev1.PodQOSBurstable {
		t.Errorf("status %+v, want a fresh Pending one of class Burstable", p.Status)
	}
	c := podstatus.Condition(p.Status.Conditions, corev1.PodScheduled)
	if c == nil || c.Status != corev1.ConditionFalse || c.Reason != "SchedulingGated" ||
		c.Message != "Scheduling is blocked due to non-empty scheduling gates" {
		t.Errorf("PodScheduled of a gated pod: %+v", c)
	}
}

// warnings records the warnings to a client.
type warnings []string

func (w *warnings) AddWarning(_, text string) { *w = append(*w, text) }

// L1.6: the annotation of a container without a profile is copied to its field, with a warning; a
// field creates no annotation.
func TestAppArmorAnnotation(t *testing.T) {
	const key = "container.apparmor.security.beta.kubernetes.io/"
	p := pod(func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Name: "old", Image: "i"},
			{Name: "new", Image: "i",
				SecurityContext: &corev1.SecurityContext{
					AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}}}}
		p.Annotations = map[string]string{key + "old": "runtime/default"}
	})
	var given warnings
	Strategy{}.PrepareForCreate(warning.WithWarningRecorder(context.Background(), &given), p)
	if c := p.Spec.Containers[0].SecurityContext; c == nil || c.AppArmorProfile == nil ||
		c.AppArmorProfile.Type != corev1.AppArmorProfileTypeRuntimeDefault {
		t.Errorf("security context of the annotated container: %+v", c)
	}
	if _, ok := p.Annotations[key+"new"]; ok {
		t.Error("a field made an annotation")
	}
	if len(given) != 1 || given[0] != `metadata.annotations[`+key+
		`old]: deprecated since v1.30; use the "appArmorProfile" field instead` {
		t.Errorf("warnings %q", given)
	}
}

// L1.5
func TestMatchLabelKeysAreMerged(t *testing.T) {
	p := pod(func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{}, TopologyKey: "k", MatchLabelKeys: []string{"app", "missing"},
				MismatchLabelKeys: []string{"app"},
			}}}}
	})
	Strategy{}.PrepareForCreate(context.Background(), p)
	term := p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
	got := term.LabelSelector.MatchExpressions
	if len(got) != 2 || got[0].Operator != metav1.LabelSelectorOpIn || got[1].Operator != metav1.LabelSelectorOpNotIn ||
		got[0].Values[0] != "x" {
		t.Errorf("merged requirements %v, want In and NotIn of app=x", got)
	}
}

// L1.60: a write to one part never changes the other, and only a change of the spec increments the
// generation.
func TestPrepareForUpdate(t *testing.T) {
	old := pod(nil)
	p := pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed; p.Labels["new"] = "l" })
	Strategy{}.PrepareForUpdate(context.Background(), p, old)
	if p.Status.Phase != corev1.PodRunning || p.Generation != 4 {
		t.Errorf("label change: phase %s generation %d, want Running and 4", p.Status.Phase, p.Generation)
	}
	p = pod(func(p *corev1.Pod) { p.Spec.Containers[0].Image = "j" })
	Strategy{}.PrepareForUpdate(context.Background(), p, old)
	if p.Generation != 5 {
		t.Errorf("image change: generation %d, want 5", p.Generation)
	}
}

// L1.70, L1.71
func TestStatusUpdateChangesOnlyStatus(t *testing.T) {
	now := metav1.Now()
	old := pod(func(p *corev1.Pod) {
		p.DeletionTimestamp = &now
		p.OwnerReferences = []metav1.OwnerReference{{Name: "o"}}
		p.Status.ObservedGeneration = 3
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, ObservedGeneration: 2}}
	})
	p := pod(func(p *corev1.Pod) {
		p.Spec.NodeName = "other"
		p.Status = corev1.PodStatus{Phase: corev1.PodSucceeded, PodIP: "10.0.0.1",
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady}}}
	})
	StatusStrategy{}.PrepareForUpdate(context.Background(), p, old)
	if p.Spec.NodeName != "n1" || p.DeletionTimestamp == nil || len(p.OwnerReferences) != 1 {
		t.Errorf("spec or metadata changed through status: %+v", p)
	}
	s := p.Status
	if s.QOSClass != corev1.PodQOSBestEffort || s.ObservedGeneration != 3 || s.Conditions[0].ObservedGeneration != 2 {
		t.Errorf("omitted fields were not kept: %+v", s)
	}
	if len(s.PodIPs) != 1 || s.PodIPs[0].IP != "10.0.0.1" {
		t.Errorf("podIPs %v, want the one of podIP", s.PodIPs)
	}
}

// L1.90
func TestGracePeriod(t *testing.T) {
	for _, c := range []struct {
		name      string
		change    func(*corev1.Pod)
		requested *int64
		want      int64
	}{
		{"from the spec", nil, nil, 30},
		{"from the options", nil, ptr.To[int64](5), 5},
		{"zero", nil, ptr.To[int64](0), 0},
		{"negative", nil, ptr.To[int64](-7), 1},
		{"nothing set", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = nil }, nil, 0},
		{"unscheduled", func(p *corev1.Pod) { p.Spec.NodeName = "" }, ptr.To[int64](5), 0},
		{"succeeded", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, nil, 0},
		{"failed", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, nil, 0},
	} {
		o := &metav1.DeleteOptions{GracePeriodSeconds: c.requested}
		if !(Strategy{}).CheckGracefulDelete(context.Background(), pod(c.change), o) ||
			*o.GracePeriodSeconds != c.want {
			t.Errorf("%s: %v, want %d", c.name, o.GracePeriodSeconds, c.want)
		}
	}
}

// L1.2: exactly these fields are selectable, and each is an attribute.
func TestFieldSelectors(t *testing.T) {
	_, set, err := Attributes(pod(nil))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"metadata.name", "metadata.namespace", "spec.hostNetwork", "spec.nodeName", "spec.restartPolicy",
		"spec.schedulerName", "spec.serviceAccountName", "status.nominatedNodeName", "status.phase", "status.podIP"}
	var got []string
	for name := range set {
		if _, _, err := FieldLabel(name, ""); err != nil {
			t.Error(err)
		}
		got = append(got, name)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("fields %v, want %v", got, want)
	}
	if _, _, err := FieldLabel("spec.foo", ""); err == nil || err.Error() != "field label not supported: spec.foo" {
		t.Errorf("unknown field: %v", err)
	}
}
