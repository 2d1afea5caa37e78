package e2e

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

const endsAtOnce = `trap "exit 0" TERM; while :; do sleep 0.1; done`

// rollouts is a namespace with a deployment "web" of busybox:1.36.
type rollouts struct {
	*cluster
	*testing.T
	namespace string
}

func newRollouts(t *testing.T, c *cluster, namespace string, replicas int) rollouts {
	t.Helper()
	r := rollouts{c, t, namespace}
	c.kubectl(t, "create", "namespace", namespace)
	r.do("create", "deployment", "web", "--image=busybox:1.36", "--replicas="+strconv.Itoa(replicas), "--", "sh", "-c",
		endsAtOnce)
	return r
}

func (r rollouts) do(args ...string) string {
	r.Helper()
	return r.kubectl(r.T, append([]string{"-n", r.namespace}, args...)...)
}

// rolledOut waits with kubectl's own text for it (W2.124).
func (r rollouts) rolledOut() {
	r.Helper()
	contains(r.T, "rollout status", r.do("rollout", "status", "deployment/web", "--timeout="+patience.String()),
		`deployment "web" successfully rolled out`)
}

func list[T any](r rollouts, kind string) []T {
	r.Helper()
	var all struct{ Items []T }
	if err := json.Unmarshal([]byte(r.do("get", kind, "-o", "json")), &all); err != nil {
		r.Fatal(err)
	}
	return all.Items
}

// images are those of the pods that are not being deleted, each once.
func (r rollouts) images() []string {
	r.Helper()
	var out []string
	for _, p := range list[corev1.Pod](r, "pods") {
		if p.DeletionTimestamp == nil {
			out = append(out, p.Spec.Containers[0].Image)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// TestDeployment: what kubectl does with a deployment, with containers that run; a rollback (W2.103) and a restart
// (W2.102) as kubectl requests them.
func TestDeployment(t *testing.T) {
	r := newRollouts(t, shared, "rollouts", 3)
	defer func() { shared.kubectl(t, "delete", "namespace", "rollouts") }()
	r.rolledOut()
	contains(t, "get", r.do("get", "deployment", "web"), "3/3")

	r.do("set", "image", "deployment/web", "*=busybox:1.37")
	r.rolledOut()
	if got := r.images(); !slices.Equal(got, []string{"busybox:1.37"}) {
		t.Errorf("after the update: %q", got)
	}
	contains(t, "history", r.do("rollout", "history", "deployment/web"), "1 ", "2 ")
	contains(t, "undo", r.do("rollout", "undo", "deployment/web"), "rolled back")
	r.rolledOut()
	if got := r.images(); !slices.Equal(got, []string{"busybox:1.36"}) {
		t.Errorf("after the rollback: %q", got)
	}
	if history := r.do("rollout", "history", "deployment/web"); !strings.Contains(history, "3 ") ||
		strings.Contains(history, "\n1 ") {
		t.Errorf("W2.104: history after the rollback:\n%s", history)
	}

	r.do("rollout", "pause", "deployment/web")
	r.do("set", "image", "deployment/web", "*=busybox:1.35")
	r.do("scale", "deployment/web", "--replicas=4")
	shared.wait(t, "deployment/web", "jsonpath={.status.readyReplicas}=4", "-n", r.namespace)
	if got := r.images(); !slices.Equal(got, []string{"busybox:1.36"}) ||
		len(list[appsv1.ReplicaSet](r, "replicasets")) != 2 {
		t.Errorf("W2.101: while it is paused: %q", got)
	}
	r.do("rollout", "resume", "deployment/web")
	r.rolledOut()
	before := list[corev1.Pod](r, "pods")
	r.do("rollout", "restart", "deployment/web")
	r.rolledOut()
	for _, p := range list[corev1.Pod](r, "pods") {
		if p.DeletionTimestamp == nil &&
			slices.ContainsFunc(before, func(b corev1.Pod) bool { return b.UID == p.UID }) {
			t.Errorf("pod %s was not restarted", p.Name)
		}
	}
	var d appsv1.Deployment
	if err := json.Unmarshal([]byte(r.do("get", "deployment", "web", "-o", "json")), &d); err != nil {
		t.Fatal(err)
	}
	if d.Annotations["deployment.kubernetes.io/revision"] != "5" {
		t.Errorf("revision %q", d.Annotations["deployment.kubernetes.io/revision"])
	}
	r.shows(t, []string{"deployment-controller ScalingReplicaSet Scaled up replica set web-",
		"replicaset-controller SuccessfulCreate Created pod: web-",
		"replicaset-controller SuccessfulDelete Deleted pod: web-"}, "-n", r.namespace, "get", "events", "-o",
		`jsonpath={range .items[*]}{.source.component} {.reason} {.message}{"\n"}{end}`)
	// W11.7: the field managers are upstream's, whatever the name of the executable file.
	managers := map[string]bool{}
	for line := range strings.Lines(r.do("get", "deployments,replicasets,pods", "--show-managed-fields", "-o",
		`jsonpath={range .items[*].metadata.managedFields[*]}{.manager} {.operation} {.subresource}{"\n"}{end}`)) {
		managers[strings.TrimSpace(line)] = true
	}
	for _, m := range []string{"kube-controller-manager Update", "kube-controller-manager Update status",
		"kubelet Update status"} {
		if !managers[m] {
			t.Errorf("no field manager %q in %v", m, managers)
		}
		delete(managers, m)
	}
	for m := range managers {
		if !strings.HasPrefix(m, "kubectl") && m != "kube-scheduler Update" && m != "kube-scheduler Update status" {
			t.Errorf("field manager %q", m)
		}
	}

	r.do("delete", "deployment", "web", "--cascade=foreground")
	if left := r.do("get", "pods,replicasets", "-o", "name"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestDeploymentOverQuota: pods that can't be created are reported, and are created when the quota allows it.
func TestDeploymentOverQuota(t *testing.T) {
	shared.kubectl(t, "create", "namespace", "tight")
	defer func() { shared.kubectl(t, "delete", "namespace", "tight") }()
	shared.kubectl(t, "-n", "tight", "create", "quota", "few", "--hard=pods=1")
	shared.wait(t, "quota/few", "jsonpath={.status.hard.pods}=1", "-n", "tight")
	r := rollouts{shared, t, "tight"}
	r.do("create", "deployment", "web", "--image=busybox:1.36", "--replicas=3", "--", "sh", "-c", endsAtOnce)
	shared.wait(t, "deployment/web", "condition=ReplicaFailure", "-n", "tight")
	contains(t, "condition", r.do("get", "deployment", "web", "-o",
		`jsonpath={.status.conditions[?(@.type=="ReplicaFailure")]}`), "FailedCreate", "exceeded quota: few")
	r.do("patch", "quota", "few", "-p", `{"spec":{"hard":{"pods":"9"}}}`)
	r.rolledOut()
	if left := r.do("get", "deployment", "web", "-o",
		`jsonpath={.status.conditions[?(@.type=="ReplicaFailure")]}`); left != "" {
		t.Errorf("the condition stays: %s", left)
	}
}
