package helm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// workloadPods lists the pods with a label that are not ending, as "ready=BOOL ANNOTATION".
func (u *user) workloadPods(label, annotation string) (lines []string) {
	u.Helper()
	pods, err := u.client.CoreV1().Pods(u.namespace).List(u.Context(), metav1.ListOptions{LabelSelector: label})
	if err != nil {
		u.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.DeletionTimestamp != nil {
			continue
		}
		ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		lines = append(lines, fmt.Sprintf("ready=%v %s", ready, p.Annotations[annotation]))
	}
	slices.Sort(lines)
	return lines
}

// waits makes an installation and its upgrades return when everything is ready.
func waits() (func(*action.Install), func(*action.Upgrade)) {
	return func(do *action.Install) { do.WaitStrategy, do.WaitForJobs = kube.StatusWatcherStrategy, true },
		func(do *action.Upgrade) { do.WaitStrategy, do.WaitForJobs = kube.StatusWatcherStrategy, true }
}

// TestWorkloads installs, upgrades, and rolls back a web server and a database with --wait: when Helm returns, all pods
// are ready and of the right revision.
func TestWorkloads(t *testing.T) {
	for _, c := range []struct {
		chart, label, annotation string
		change                   values
	}{
		{"web", "app=web", "checksum/config", values{"greeting": "good day", "replicas": 3}},
		{"database", "app=db", "checksum/secret", values{"password": "second", "replicas": 3}},
	} {
		t.Run(c.chart, func(t *testing.T) {
			u := newUser(t, "helm-"+c.chart)
			u.chart = c.chart
			install, upgrade := waits()
			first, err := u.install(values{}, install)
			if err != nil {
				t.Fatal("install: ", err)
			}
			u.present(first)
			before := u.workloadPods(c.label, c.annotation)
			if len(before) != 2 || before[0] != before[1] || !strings.HasPrefix(before[0], "ready=true") {
				t.Fatalf("after the installation: %q", before)
			}
			second, err := u.upgrade(c.change, upgrade)
			if err != nil {
				t.Fatal("upgrade: ", err)
			}
			u.present(second)
			changed := u.workloadPods(c.label, c.annotation)
			if len(changed) != 3 || changed[0] != changed[2] || changed[0] == before[0] ||
				!strings.HasPrefix(changed[0], "ready=true") {
				t.Fatalf("after the upgrade: %q", changed)
			}
			do := action.NewRollback(u.config())
			do.Version, do.WaitStrategy, do.Timeout = 1, kube.StatusWatcherStrategy, patience
			if err := do.Run("r"); err != nil {
				t.Fatal("rollback: ", err)
			}
			if back := u.workloadPods(c.label, c.annotation); !slices.Equal(back, before) {
				t.Fatalf("after the rollback: %q, not %q", back, before)
			}
			if err := u.uninstall(); err != nil {
				t.Fatal(err)
			}
			u.gone(second)
		})
	}
}

// TestJobs: Jobs as hooks run before and after, --wait-for-jobs waits for those of the release, and a hook that fails
// ends the upgrade and leaves the release before it in force.
func TestJobs(t *testing.T) {
	u := newUser(t, "helm-batch")
	u.chart = "batch"
	install, upgrade := waits()
	r, err := u.install(values{}, install)
	if err != nil {
		t.Fatal("install: ", err)
	}
	u.present(r)
	jobs := u.client.BatchV1().Jobs(u.namespace)
	succeeded := func(name string) {
		t.Helper()
		if j, err := jobs.Get(t.Context(), name, metav1.GetOptions{}); err != nil || j.Status.Succeeded != 1 {
			t.Errorf("%s: %+v, %v", name, j.Status, err)
		}
	}
	succeeded("r-migrate")
	succeeded("r-task-1")
	if _, err := jobs.Get(t.Context(), "r-notify", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the hook that succeeded is still there (%v)", err)
	}
	if _, err := u.upgrade(values{"schedule": "*/5 * * * *"}, upgrade); err != nil {
		t.Fatal("upgrade: ", err)
	}
	succeeded("r-task-2")
	if c, err := u.client.BatchV1().CronJobs(u.namespace).Get(t.Context(), "r-nightly",
		metav1.GetOptions{}); err != nil ||
		c.Spec.Schedule != "*/5 * * * *" {
		t.Errorf("CronJob: %q, %v", c.Spec.Schedule, err)
	}
	if _, err := u.upgrade(values{"migrate": "nonsense"}, upgrade); err == nil ||
		!strings.Contains(err.Error(), "pre-upgrade") {
		t.Errorf("a hook that fails: %v", err)
	}
	succeeded("r-task-2")
	if err := u.rollback(2); err != nil {
		t.Fatal("rollback: ", err)
	}
	if err := u.uninstall(); err != nil {
		t.Fatal(err)
	}
}
