package restart

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// L3.70: a container's own rules come first, then its own policy, then its pod's.
func TestAllowed(t *testing.T) {
	never, always := corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyAlways
	rule := func(op corev1.ContainerRestartRuleOnExitCodesOperator, codes ...int32) []corev1.ContainerRestartRule {
		return []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes}}}
	}
	in, notIn := corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn
	for _, c := range []struct {
		name string
		c    corev1.Container
		pod  corev1.RestartPolicy
		code int32
		want bool
	}{
		{"pod Always", corev1.Container{}, corev1.RestartPolicyAlways, 0, true},
		{"pod OnFailure, success", corev1.Container{}, corev1.RestartPolicyOnFailure, 0, false},
		{"pod OnFailure, failure", corev1.Container{}, corev1.RestartPolicyOnFailure, 1, true},
		{"pod Never", corev1.Container{}, corev1.RestartPolicyNever, 1, false},
		{"own policy", corev1.Container{RestartPolicy: &always}, corev1.RestartPolicyNever, 0, true},
		{"own rule", corev1.Container{RestartPolicy: &never, RestartPolicyRules: rule(in, 3)},
			corev1.RestartPolicyNever, 3, true},
		{"no rule matches", corev1.Container{RestartPolicy: &never, RestartPolicyRules: rule(in, 3)},
			corev1.RestartPolicyAlways, 4, false},
		{"NotIn", corev1.Container{RestartPolicy: &never, RestartPolicyRules: rule(notIn, 3)},
			corev1.RestartPolicyAlways, 4, true},
	} {
		if got := Allowed(&c.c, c.pod, c.code); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	killed := corev1.Container{RestartPolicy: &never, RestartPolicyRules: rule(in, 137)}
	if AfterProbe(&killed, corev1.RestartPolicyAlways) ||
		!AfterProbe(&corev1.Container{}, corev1.RestartPolicyOnFailure) {
		t.Error("a failed probe uses the rules (L3.68)")
	}
}

// L3.75: 10 s, doubled up to the limit; a container that ran for twice the limit starts over.
func TestBackoff(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var b Backoff
	for _, want := range []time.Duration{0, 10, 20, 40, 60, 60} {
		if got := b.After(now, time.Minute); got != want*time.Second {
			t.Errorf("the delay is %v, not %v s", got, int(want))
		}
		b.Grant("id", now, now, time.Minute)
	}
	if got := b.After(now.Add(121*time.Second), time.Minute); got != 0 {
		t.Errorf("after a long run it is %v", got)
	}
	if Limit(0) != 300*time.Second || Limit(time.Second) != time.Second {
		t.Error("the limit of the node's configuration does not count")
	}
}

// A back-off depends on the image and its resources, not on the iteration order of their map.
func TestDefinition(t *testing.T) {
	c := &corev1.Container{Image: "nginx", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")}}}
	d := Definition(c)
	for range 20 {
		if Definition(c.DeepCopy()) != d {
			t.Fatal("it depends on the order of a map")
		}
	}
	c.Resources.Limits[corev1.ResourceCPU] = resource.MustParse("2")
	if Definition(c) == d {
		t.Error("other resources have the same definition")
	}
}
