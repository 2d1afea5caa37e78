package pods

import (
	"strings"
	"testing"
)

// Annotations about a pod are validated in a pod and in a template; invalid ones of the stored pod
// may stay.
func TestPodAnnotations(t *testing.T) {
	const c = "container.apparmor.security.beta.kubernetes.io/c"
	for _, x := range []struct {
		key, value, spec, want string
	}{
		{"controller.kubernetes.io/pod-deletion-cost", "-5", oneContainer(""), ""},
		{"controller.kubernetes.io/pod-deletion-cost", "+5", oneContainer(""), "must be a 32bit integer"},
		{"controller.kubernetes.io/pod-deletion-cost", "05", oneContainer(""), "must be a 32bit integer"},
		{"controller.kubernetes.io/pod-deletion-cost", "", oneContainer(""), "must be a 32bit integer"},
		{"controller.kubernetes.io/pod-deletion-cost", "2147483648", oneContainer(""), "must be a 32bit integer"},
		{"scheduler.alpha.kubernetes.io/tolerations", `[{"key":"a","operator":"Exists"}]`, oneContainer(""), ""},
		{"scheduler.alpha.kubernetes.io/tolerations", `[{"key":"a","operator":"Gt","value":"1"}]`, oneContainer(""),
			"Unsupported value"},
		{"scheduler.alpha.kubernetes.io/tolerations", "x", oneContainer(""), "invalid character"},
		{"seccomp.security.alpha.kubernetes.io/pod", "runtime/default", oneContainer(""), ""},
		{"seccomp.security.alpha.kubernetes.io/pod", "localhost/../x", oneContainer(""), "must not contain '..'"},
		{"seccomp.security.alpha.kubernetes.io/pod", "x", oneContainer(""), "must be a valid seccomp profile"},
		{"seccomp.security.alpha.kubernetes.io/pod", "unconfined",
			`{securityContext: {seccompProfile: {type: RuntimeDefault}}, containers: [{name: a, image: i}]}`,
			"seccomp type in annotation and field must match"},
		{"container.seccomp.security.alpha.kubernetes.io/c", "localhost/x",
			oneContainer(`securityContext: {seccompProfile: {type: Localhost, localhostProfile: "y"}}`),
			"seccomp profile in annotation and field must match"},
		{c, "runtime/default", oneContainer(""), ""},
		{c, "x", oneContainer(""), "invalid AppArmor profile name"},
		{c + "b", "unconfined", oneContainer(""), "container not found"},
		{c, "unconfined", oneContainer(`securityContext: {appArmorProfile: {type: RuntimeDefault}}`),
			"apparmor type in annotation and field must match"},
		{c, "localhost/x", `{os: {name: windows}, containers: [{name: c, image: i}]}`, ""},
	} {
		p := parse(t, x.spec)
		p.Annotations = map[string]string{x.key: x.value}
		if got := ValidatePodCreate(p).ToAggregate(); x.want == "" && got != nil || x.want != "" &&
			(got == nil || !strings.Contains(got.Error(), x.want)) {
			t.Errorf("%s: %q in a pod: %v, want %q", x.key, x.value, got, x.want)
		}
	}
	p := parse(t, oneContainer(""))
	p.ResourceVersion = "1"
	p.Annotations = map[string]string{"controller.kubernetes.io/pod-deletion-cost": "x"}
	if errs := changedPod(p, p.DeepCopy()); len(errs) > 0 {
		t.Errorf("a pod that was stored so: %v", errs)
	}
}
