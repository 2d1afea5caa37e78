package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"

	"carob/internal/base/testwait"
)

// Jobs, CronJobs and autoscalers, as people use them with kubectl.

func (c *cluster) job(t *testing.T, name string) *batchv1.Job {
	t.Helper()
	var j batchv1.Job
	if err := json.Unmarshal([]byte(c.kubectl(t, "get", "job", name, "-o", "json")), &j); err != nil {
		t.Fatal(err)
	}
	return &j
}

func TestJob(t *testing.T) {
	c := shared
	t.Cleanup(func() { _, _ = c.tryKubectl("", "delete", "job", "hello", "bad", "manual", "--ignore-not-found") })
	t.Cleanup(func() { _, _ = c.tryKubectl("", "delete", "cronjob", "tick", "--ignore-not-found") })
	out := c.kubectl(t, "create", "job", "hello", "--image=busybox:1.32.0", "--", "echo", "hello from a job")
	if strings.Contains(out, "Warning") {
		t.Errorf("a Job is warned of: %s", out)
	}
	c.wait(t, "job/hello", "condition=complete")
	contains(t, "log", c.kubectl(t, "logs", "job/hello"), "hello from a job")
	contains(t, "table", c.kubectl(t, "get", "job", "hello"), "Complete", "1/1")
	c.hasEvents(t, "hello", "Normal SuccessfulCreate Created pod: hello-",
		"Normal Completed Job completed")

	c.kubectlIn(
		t, `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"bad"},"spec":{"backoffLimit":0,"template":{"spec":
		{"restartPolicy":"Never","containers":[{"name":"c","image":"busybox:1.32.0","command":["sh","-c","exit 3"]}]}}}}`, "create", "-f", "-")
	c.wait(t, "job/bad", "condition=failed")
	if s := c.job(t, "bad").Status; s.Failed != 1 {
		t.Errorf("status %+v", s)
	}

	c.kubectl(t, "create", "cronjob", "tick", "--image=busybox:1.32.0", "--schedule=0 0 1 1 *", "--", "true")
	c.kubectl(t, "create", "job", "manual", "--from=cronjob/tick")
	c.wait(t, "job/manual", "condition=complete")
	contains(t, "W5.4: the Job", c.kubectl(t, "get", "job", "manual", "-o", "jsonpath={.metadata.annotations} "+
		"{.metadata.ownerReferences[0].kind}/{.metadata.ownerReferences[0].name}"),
		`"cronjob.kubernetes.io/instantiate":"manual"`, "CronJob/tick")
	// Deleting what is above takes along what is below (W6.27).
	c.kubectl(t, "delete", "cronjob", "tick")
	c.gone(t, "job/manual")
}

// kubectl top works without a metrics server, and an autoscaler follows it.
func TestTopAndAutoscale(t *testing.T) {
	t.Parallel()
	c := shared
	t.Cleanup(func() { _, _ = c.tryKubectl("", "delete", "hpa,deployment", "busy", "--ignore-not-found") })
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
      - name: works
        image: busybox:1.32.0
        command: [sh, -c, "while :; do :; done"]
        resources: {requests: {cpu: 10m}, limits: {cpu: 100m}}
      - name: sleeps
        image: busybox:1.32.0
        command: [sleep, "3600"]
        resources: {requests: {cpu: 10m}}
`, "apply", "-f", "-")
	c.wait(t, "deployment/busy", "condition=Available")
	// W8.11, W8.12: by container, those that use most first.
	testwait.For(t, "kubectl top pod shows what is used", func() bool {
		out, err := c.tryKubectl("", "top", "pod", "-l", "app=busy", "--containers", "--sort-by=cpu", "--no-headers")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		return err == nil && len(lines) == 2 && strings.Contains(lines[0], "works") &&
			strings.Contains(lines[1], "sleeps")
	})
	contains(t, "top node", c.kubectl(t, "top", "node", "--no-headers"), "%")
	contains(t, "another pod", c.kubectlFails(t, "top", "pod", "none"), "not found")
	// as older kubectls have it, too
	c.kubectl(t, "autoscale", "deployment", "busy", "--min=1", "--max=2", "--cpu-percent=50")
	c.wait(t, "hpa/busy", "condition=ScalingActive")
	c.wait(t, "deployment/busy", "jsonpath={.spec.replicas}=2")
	c.hasEvents(t, "busy",
		"Normal SuccessfulRescale New size: 2; reason: cpu resource utilization (percentage of request) above target")
}
