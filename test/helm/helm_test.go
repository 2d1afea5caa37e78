package helm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	release "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

// TestRelease is the life of a release, once with server-side apply, which is
// Helm's default, and once with patches that the client computes from the old chart, the new chart, and the objects in
// the cluster.
func TestRelease(t *testing.T) {
	for _, serverSide := range []bool{true, false} {
		name := map[bool]string{true: "server-side", false: "client-side"}[serverSide]
		t.Run(name, func(t *testing.T) { life(newUser(t, "helm-"+name), serverSide) })
	}
}

func life(u *user, serverSide bool) {
	ctx := u.Context()
	// Install: the hook runs to its end first, the definition is there before its instance.
	first, err := u.install(values{}, func(do *action.Install) { do.ServerSideApply = serverSide })
	if err != nil {
		u.Fatal("install: ", err)
	}
	if got := u.kinds(first); !slices.Equal(got, kinds) {
		u.Errorf("the chart makes %v, not %v", got, kinds)
	}
	u.present(first)
	u.hooksRan(first, release.HookPreInstall)
	if log := u.hookLog.String(); !strings.Contains(log, "init: preparing r-before") {
		u.Errorf("the hook wrote %q", log)
	}
	if first.Info.Notes != "hello from revision 1\n" {
		u.Errorf("notes are %q", first.Info.Notes)
	}
	u.storedAs("deployed")
	address := u.service().Spec.ClusterIP
	if address == "" {
		u.Error("the service has no address")
	}
	if version := u.configMap("r").Data["version"]; !strings.HasPrefix(version, "v1.37") {
		u.Errorf("templates see Kubernetes %q", version)
	}

	// Others change what the release made: a note of theirs, and a number of the chart's.
	u.annotate("r", "ops.example/owner", "me")
	u.scale(7)

	// Upgrade.
	changed := values{"greeting": "good day", "password": "second", "replicas": 3, "maxReplicas": 9, "cpu": "250m",
		"port": 8080, "color": "green",
		"host": "new.example", "verbs": []any{"get", "list", "watch"}, "extra": true}
	mode := func(do *action.Upgrade) { do.ServerSideApply = fmt.Sprint(serverSide) }
	statuses := []string{"superseded", "deployed"}
	if serverSide {
		// Server-side apply reports which other manager owns a field, and takes it over only with force.
		if _, err := u.upgrade(changed, mode); err == nil || !strings.Contains(err.Error(), "conflict") ||
			!strings.Contains(err.Error(), ".spec.replicas") {
			u.Fatalf("an upgrade over somebody's replicas answered: %v", err)
		}
		u.storedAs("deployed", "failed")
		statuses = []string{"superseded", "failed", "deployed"}
	}
	second, err := u.upgrade(changed, mode, func(do *action.Upgrade) { do.ForceConflicts = serverSide })
	if err != nil {
		u.Fatal("upgrade: ", err)
	}
	u.present(second)
	u.hooksRan(second, release.HookPreUpgrade)
	u.storedAs(statuses...)
	u.kept(address)
	// lookup saw what the release before had.
	if seen, before := u.configMap("r-extra").Data["seen"],
		map[bool]string{true: "good day", false: "hello"}[serverSide]; seen != before {
		u.Errorf("lookup saw %q, not %q", seen, before)
	}

	// Roll back: what the upgrade added goes.
	if err := u.rollback(1); err != nil {
		u.Fatal("rollback: ", err)
	}
	third := u.get()
	if third.Manifest != first.Manifest {
		u.Errorf("the release that was rolled back says\n%s\nnot\n%s", third.Manifest, first.Manifest)
	}
	u.present(third)
	statuses[len(statuses)-1] = "superseded"
	statuses = append(statuses, "deployed")
	u.storedAs(statuses...)
	u.kept(address)
	if _, err := u.client.CoreV1().ConfigMaps(u.namespace).Get(ctx, "r-extra",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		u.Errorf("what the upgrade added is still there after the rollback (%v)", err)
	}

	// Test.
	tested, log, err := u.test()
	if err != nil {
		u.Fatal("test: ", err)
	}
	u.hooksRan(tested, release.HookTest)
	if !strings.Contains(log, "POD LOGS: r-greets (work)") || !strings.Contains(log, "init: preparing r-greets") {
		u.Errorf("the test wrote %q", log)
	}

	// Uninstall: nothing is left but the definition, which Helm never removes.
	if err := u.uninstall(); err != nil {
		u.Fatal("uninstall: ", err)
	}
	u.gone(second)
	u.storedAs()
}

// TestWait proves that a release with --wait is ready when the installation
// ends, and gone when its removal ends, with each way of waiting that Helm has.
func TestWait(t *testing.T) {
	for _, strategy := range []kube.WaitStrategy{kube.StatusWatcherStrategy, kube.LegacyStrategy} {
		t.Run(string(strategy), func(t *testing.T) {
			u := newUser(t, "helm-wait-"+string(strategy))
			r, err := u.install(values{},
				func(do *action.Install) { do.WaitStrategy, do.WaitForJobs = strategy, true })
			if err != nil {
				t.Fatal(err)
			}
			pod, err := u.client.CoreV1().Pods(u.namespace).Get(t.Context(), "r", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}) {
				t.Errorf("the pod is not ready: %v", pod.Status.Conditions)
			}
			u.present(r)
			if err := u.uninstall(); err != nil {
				t.Fatal(err)
			}
			u.gone(r)
		})
	}
}

// TestRefused proves that an installation that fails prints why and, with
// --rollback-on-failure, leaves nothing.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		v    values
		want string
	}{
		{"hook", values{"hook": "nonsense"}, "failed pre-install"},
		{"custom", values{"color": "blue"}, `Unsupported value: "blue"`},
		{"field", values{"cpu": "lots"}, "quantities must match the regular expression"},
		{"service", values{"port": 70000}, "must be between 1 and 65535"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := newUser(t, "helm-refused-"+c.name)
			r, err := u.install(c.v, func(do *action.Install) { do.RollbackOnFailure = true })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("answered %v, not %q", err, c.want)
			}
			if c.name == "hook" && !strings.Contains(u.hookLog.String(), "usage: demo") {
				t.Errorf("the hook wrote %q", &u.hookLog)
			}
			u.gone(r)
		})
	}
}

// hooksRan checks that the hooks of an event ran to a good end, and that their
// pods went with them.
func (u *user) hooksRan(r *release.Release, event release.HookEvent) {
	u.Helper()
	n := 0
	for _, h := range r.Hooks {
		if !slices.Contains(h.Events, event) {
			continue
		}
		n++
		if h.LastRun.Phase != release.HookPhaseSucceeded {
			u.Errorf("hook %s is %s", h.Name, h.LastRun.Phase)
		}
		if _, err := u.client.CoreV1().Pods(u.namespace).Get(u.Context(), h.Name,
			metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			u.Errorf("the pod of hook %s is still there (%v)", h.Name, err)
		}
	}
	if n == 0 {
		u.Errorf("the release has no %s hook", event)
	}
}

// storedAs checks the history, and the secrets it is kept in: the status of each
// revision, the first first.
func (u *user) storedAs(statuses ...string) {
	u.Helper()
	want := map[string]string{}
	for i, s := range statuses {
		want[fmt.Sprintf("sh.helm.release.v1.r.v%d", i+1)] = s
	}
	if got := u.stored(); !maps.Equal(got, want) {
		u.Errorf("the secrets are %v, not %v", got, want)
	}
	if len(statuses) == 0 {
		return
	}
	if got := u.history(); !slices.Equal(got, statuses) {
		u.Errorf("the history is %v, not %v", got, statuses)
	}
}

// kept checks what an upgrade must not touch: what others added, and what the
// cluster filled in.
func (u *user) kept(address string) {
	u.Helper()
	if got := u.configMap("r").Annotations["ops.example/owner"]; got != "me" {
		u.Errorf("somebody's annotation is %q", got)
	}
	if got := u.service().Spec.ClusterIP; got != address {
		u.Errorf("the service's address was %s and is %s", address, got)
	}
}

func (u *user) service() *corev1.Service {
	u.Helper()
	s, err := u.client.CoreV1().Services(u.namespace).Get(u.Context(), "r", metav1.GetOptions{})
	if err != nil {
		u.Fatal(err)
	}
	return s
}

func (u *user) configMap(name string) *corev1.ConfigMap {
	u.Helper()
	c, err := u.client.CoreV1().ConfigMaps(u.namespace).Get(u.Context(), name, metav1.GetOptions{})
	if err != nil {
		u.Fatal(err)
	}
	return c
}

func (u *user) annotate(configMap, key, value string) {
	u.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
	if _, err := u.client.CoreV1().ConfigMaps(u.namespace).Patch(u.Context(), configMap, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: "ops"}); err != nil {
		u.Fatal(err)
	}
}

// scale changes the replicas as kubectl scale does; meanwhile the controller may write a status.
func (u *user) scale(replicas int32) {
	u.Helper()
	deployments := u.client.AppsV1().Deployments(u.namespace)
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		s, err := deployments.GetScale(u.Context(), "r", metav1.GetOptions{})
		if err != nil {
			return err
		}
		s.Spec.Replicas = replicas
		_, err = deployments.UpdateScale(u.Context(), "r", s, metav1.UpdateOptions{FieldManager: "ops"})
		return err
	}); err != nil {
		u.Fatal(err)
	}
}
