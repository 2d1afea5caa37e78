package e2e

import (
	"strings"
	"testing"
)

// VerticalPodAutoscalers: off until the add-on is enabled; then a busy pod of a Deployment is resized
// in place without a restart, new pods are sized when they are created, also after a restart of carob,
// and what is disabled does nothing any more.
func TestVerticalPodAutoscaler(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "--registry-config", mirrors.dir)
	contains(t, "without the add-on", c.kubectlFails(t, "get", "vpa"), `doesn't have a resource type "vpa"`)
	if out := c.kubectl(t, "get", "crd", "-o", "name"); strings.TrimSpace(out) != "" {
		t.Errorf("definitions without add-ons: %s", out)
	}
	contains(t, "addon list", c.carob(t, "addon", "list"), "vpa         disabled")
	contains(t, "addon enable", c.carob(t, "addon", "enable", "vpa"), "addon/vpa enabled")
	contains(t, "addon enable, again", c.carob(t, "addon", "enable", "vpa"), "addon/vpa unchanged")

	autoscaler := func(policy string) string {
		return `
apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {name: busy}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: busy}
  updatePolicy: {updateMode: InPlaceOrRecreate, minReplicas: 1}
  resourcePolicy: {containerPolicies: [` + policy + `]}
`
	}
	gate := "you must enable feature gate CPUStartupBoost"
	for policy, want := range map[string]string{
		`{containerName: "*", minAllowed: {cpu: 2}, maxAllowed: {cpu: 1}}`:     "lower than min of",
		`{containerName: "*", mode: Sometimes}`:                                `Unsupported value: "Sometimes"`,
		`{containerName: "*", startupBoost: {cpu: {type: Factor, factor: 2}}}`: gate,
		`{containerName: "*", minAllowed: {cpu: "([a-z"}}`:                     "minAllowed.cpu",
	} {
		_, err := c.tryKubectl(autoscaler(policy), "apply", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("policy %s: %v, want %q", policy, err, want)
		}
	}
	c.kubectlIn(t, autoscaler(`{containerName: "*", minAllowed: {cpu: 30m}, maxAllowed: {cpu: 60m, memory: 64Mi}}`),
		"apply", "-f", "-")
	c.wait(t, "vpa/busy", "condition=ConfigUnsupported")
	contains(t, "a target that is not there", c.kubectl(t, "get", "vpa", "busy", "-o", "jsonpath={.status.conditions}"),
		"Cannot read targetRef. Reason: Deployment default/busy does not exist")

	c.kubectlIn(t, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: busy}
spec:
  selector: {matchLabels: {app: busy}}
  template:
    metadata: {labels: {app: busy}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: busybox
        command: [sh, -c, "while :; do :; done"]
        resources: {requests: {cpu: 10m, memory: 20Mi}, limits: {cpu: 100m, memory: 40Mi}}
`, "apply", "-f", "-")
	c.wait(t, "deployment/busy", "condition=Available")
	// The autoscaler is processed when it changes.
	c.kubectl(t, "patch", "vpa", "busy", "--type=merge", "-p", `{"spec":{"recommenders":[{"name":"default"}]}}`)
	c.wait(t, "vpa/busy", "condition=RecommendationProvided")
	name := strings.TrimSpace(c.kubectl(t, "get", "pods", "-l", "app=busy", "-o", "jsonpath={.items[0].metadata.name}"))
	before := c.pod(t, name)
	c.wait(t, "pod/"+name, "jsonpath={.status.containerStatuses[0].resources.requests.memory}=64Mi")
	after := c.pod(t, name).Status.ContainerStatuses[0]
	if b := before.Status.ContainerStatuses[0]; after.ContainerID != b.ContainerID || after.RestartCount != 0 {
		t.Errorf("the container was restarted: %s, then %s, %d restarts", b.ContainerID, after.ContainerID,
			after.RestartCount)
	}
	cpu := after.Resources.Requests.Cpu().MilliValue()
	if limit := after.Resources.Limits.Cpu().MilliValue(); cpu < 30 || cpu > 60 || limit != 10*cpu {
		t.Errorf("requests %dm, limit %dm", cpu, limit)
	}
	c.waitEvent(t, name, "InPlaceResizedByVPA")
	table := c.kubectl(t, "get", "vpa")
	for _, want := range []string{"NAME", "MODE", "CPU", "MEM", "PROVIDED", "AGE", "InPlaceOrRecreate", "64Mi",
		"True"} {
		contains(t, "get vpa", table, want)
	}
	contains(t, "metrics", c.kubectl(t, "get", "--raw", "/metrics"), "vpa_updater_in_place_updated_pods_total")

	recommended := func() string {
		return c.kubectl(t, "get", "vpa", "busy", "-o",
			"jsonpath={.status.recommendation.containerRecommendations[0].target}")
	}
	want := recommended()
	if _, err := run(carobBin, "down", "--data-dir", c.DataDir); err != nil {
		t.Fatal(err)
	}
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	contains(t, "addon list after a restart", c.carob(t, "addon", "list"), "enabled")
	if got := recommended(); got != want {
		t.Errorf("recommended %s, before the restart %s", got, want)
	}
	// Admission is there when autoscalers are checked.
	c.kubectl(t, "patch", "vpa", "busy", "--type=merge", "-p", `{"spec":{"recommenders":null}}`)
	fresh := func(old string) string {
		t.Helper()
		c.kubectl(t, "delete", "pod", old, "--force")
		c.wait(t, "deployment/busy", "jsonpath={.status.readyReplicas}=1")
		return strings.TrimSpace(c.kubectl(t, "get", "pods", "-l", "app=busy", "-o",
			"jsonpath={.items[0].metadata.name}"))
	}
	c.wait(t, "vpa/busy", "jsonpath={.status.observedGeneration}="+strings.TrimSpace(c.kubectl(t, "get", "vpa", "busy",
		"-o", "jsonpath={.metadata.generation}")))
	name = fresh(name)
	p := c.pod(t, name)
	got := p.Spec.Containers[0].Resources.Requests.Memory().String()
	if got != "64Mi" || p.Annotations["vpaUpdates"] == "" {
		t.Errorf("a new pod requests %s: %v", got, p.Annotations)
	}

	out := c.carob(t, "addon", "disable", "vpa")
	contains(t, "addon disable", out, "addon/vpa disabled\n"+
		"kept: 1 verticalpodautoscalers, 1 verticalpodautoscalercheckpoints")
	contains(t, "addon list", c.carob(t, "addon", "list"), "vpa         disabled")
	p = c.pod(t, fresh(name))
	if got = p.Spec.Containers[0].Resources.Requests.Memory().String(); got != "20Mi" {
		t.Errorf("a pod that is created while the add-on is disabled requests %s", got)
	}
	contains(t, "addon disable --purge", c.carob(t, "addon", "disable", "vpa", "--purge"), "addon/vpa purged")
	c.wait(t, "crd/verticalpodautoscalers.autoscaling.k8s.io", "delete")
	contains(t, "addon disable, again", c.carob(t, "addon", "disable", "vpa"), "unchanged")
}
