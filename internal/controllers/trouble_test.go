package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/daemonset"
	"carob/internal/controllers/deployment"
	"carob/internal/controllers/job"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/replicaset"
	"carob/internal/controllers/source"
	plan "carob/internal/core/workload/daemonset"
)

// beside runs a Deployment of ten pods beside the given number of Jobs whose pods a quota rejects. It returns
// the time until the Deployment had its pods, the number of reconciliations of Deployments and ReplicaSets, and
// how often a pod of a Job was rejected within two seconds.
func beside(t *testing.T, failing int) (took time.Duration, passes float64, refused int) {
	t.Helper()
	before := controllertest.Metrics(t)
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New()
		for i := range failing {
			name := fmt.Sprint("job-", i)
			labels := map[string]string{"job": name}
			api.Put(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "jobs", Name: name, UID: types.UID(name)},
				Spec: batchv1.JobSpec{Completions: new(int32(1)), Parallelism: new(int32(1)),
					BackoffLimit: new(int32(6)), Selector: &metav1.LabelSelector{MatchLabels: labels},
					Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}}}})
		}
		var mu sync.Mutex
		api.Before = func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error {
			if verb != "create" || gvr.Resource != "pods" || o.GetNamespace() != "jobs" {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			refused++
			return apierrors.NewForbidden(gvr.GroupResource(), o.GetName(), errors.New("exceeded quota: q"))
		}
		events := &record.FakeRecorder{} // not read
		jobs, deployments, sets := source.Jobs(api), source.Deployments(api), source.ReplicaSets(api)
		pods := source.Pods(api)
		a, err := job.New(api, events, jobs, pods)
		if err != nil {
			t.Fatal(err)
		}
		b, err := deployment.New(api, events, deployments, sets, pods)
		if err != nil {
			t.Fatal(err)
		}
		c, err := replicaset.New(api, events, sets, pods)
		if err != nil {
			t.Fatal(err)
		}
		controllertest.Run(t, all{a, b, c}, jobs, deployments, sets, pods)
		began := time.Now()
		labels := map[string]string{"app": "web"}
		api.Put(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "web"},
			Spec: appsv1.DeploymentSpec{Replicas: new(int32(10)), Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}}}})
		for len(controllertest.All[*corev1.Pod](api)) < 10 && time.Since(began) < time.Minute {
			time.Sleep(time.Millisecond)
		}
		took = time.Since(began)
		for time.Since(began) < 2*time.Second {
			time.Sleep(100 * time.Millisecond)
			api.ClearActions()
		}
	})
	after := controllertest.Metrics(t)
	for _, queue := range []string{"deployment", "replicaset"} {
		name := "workqueue_adds_total{" + queue + "}"
		passes += after[name] - before[name]
	}
	return took, passes, refused
}

type all []controllertest.Runner

func (a all) Run(ctx context.Context) {
	ctx = klog.NewContext(ctx, klog.Logger{}) // ten thousand Jobs fail
	var running sync.WaitGroup
	for _, c := range a {
		running.Go(func() { c.Run(ctx) })
	}
	running.Wait()
}

// Ten thousand Jobs that a quota rejects retry with growing back-off, and do not affect a healthy
// Deployment: its controllers reconcile as often as without them, and its pods are created as fast.
func TestFailingJobsBesideADeployment(t *testing.T) {
	metrics.Register()
	alone, baseline, none := beside(t, 0)
	const jobs = 10_000
	together, passes, refused := beside(t, jobs)
	// Events that come at once may be merged, or not: a few reconciliations more or less.
	if alone != together || passes > baseline+5 || baseline == 0 || none != 0 {
		t.Errorf("with failing Jobs the pods took %v and %v looks, without them %v and %v", together, passes, alone,
			baseline)
	}
	// After 20 ms, 40 ms, 80 ms … (TestRefusedTemplates has the rest of the hour).
	if each := float64(refused) / jobs; each < 5 || each > 8 {
		t.Errorf("%.1f attempts for each Job in two seconds", each)
	}
}

// A rejected pod is reported with upstream's message: by an event of the owner, and by a condition if the kind
// has one; both end when it is allowed (W0.40, W1.23, W2.56).
func TestRefusedTemplates(t *testing.T) {
	gvr := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	for name, refusal := range map[string]error{
		"quota":     apierrors.NewForbidden(gvr.GroupResource(), "", errors.New("exceeded quota: q, requested: pods=1")),
		"admission": apierrors.NewForbidden(gvr.GroupResource(), "", errors.New(`violates PodSecurity "restricted:latest"`)),
		"invalid":   apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "web", nil),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				labels := map[string]string{"app": "web"}
				api := controllertest.New(&appsv1.ReplicaSet{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
					Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(1)),
						Selector: &metav1.LabelSelector{MatchLabels: labels},
						Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}}}})
				allowed, tries := false, 0
				api.Before = func(verb string, gvr schema.GroupVersionResource, _ metav1.Object) error {
					if verb == "create" && gvr.Resource == "pods" && !allowed {
						tries++
						return refusal
					}
					return nil
				}
				events := record.NewFakeRecorder(10_000)
				sets, pods := source.ReplicaSets(api), source.Pods(api)
				c, err := replicaset.New(api, events, sets, pods)
				if err != nil {
					t.Fatal(err)
				}
				controllertest.Run(t, c, sets, pods)
				time.Sleep(time.Hour)
				synctest.Wait()
				for _, e := range controllertest.Events(events) {
					if e != "Warning FailedCreate Error creating: "+refusal.Error() {
						t.Errorf("event %q", e)
					}
				}
				if tries < 50 || tries > 80 {
					t.Errorf("%d attempts in an hour", tries)
				}
				conditions := func() string {
					var out []string
					for _, c := range controllertest.All[*appsv1.ReplicaSet](api)[0].Status.Conditions {
						out = append(out, fmt.Sprint(c.Type, " ", c.Status, " ", c.Reason, " ", c.Message))
					}
					return strings.Join(out, "\n")
				}
				if got := conditions(); got != "ReplicaFailure True FailedCreate "+refusal.Error() {
					t.Errorf("conditions %s", got)
				}
				allowed = true
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := conditions(); got != "" || len(controllertest.All[*corev1.Pod](api)) != 1 {
					t.Errorf("when it is allowed: %s", got)
				}
			})
		})
	}
}

// A webhook that changes the labels of a workload's pods, so that its selector does not match them, does not make it
// create pods without end. When the webhook is gone, the workload gets its pods.
func TestRelabelledPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		labels := map[string]string{"app": "web"}
		template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever}}
		selector := &metav1.LabelSelector{MatchLabels: labels}
		meta := metav1.ObjectMeta{Namespace: "ns", Name: "web"}
		api := controllertest.New(
			&appsv1.ReplicaSet{ObjectMeta: meta,
				Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(2)), Selector: selector, Template: template}},
			&batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Completions: new(int32(1)), Parallelism: new(int32(1)),
				BackoffLimit: new(int32(6)), Selector: selector, Template: template}})
		var mu sync.Mutex
		made, changed := map[string]int{}, true
		api.Before = func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error {
			mu.Lock()
			defer mu.Unlock()
			if verb == "create" && gvr.Resource == "pods" {
				made[metav1.GetControllerOf(o).Kind]++
				if changed {
					o.SetLabels(map[string]string{"app": "other"})
				}
			}
			return nil
		}
		events := record.NewFakeRecorder(10_000)
		sets, jobs, pods := source.ReplicaSets(api), source.Jobs(api), source.Pods(api)
		rs, err := replicaset.New(api, events, sets, pods)
		if err != nil {
			t.Fatal(err)
		}
		j, err := job.New(api, events, jobs, pods)
		if err != nil {
			t.Fatal(err)
		}
		controllertest.Run(t, all{rs, j}, sets, jobs, pods)
		time.Sleep(time.Hour)
		synctest.Wait()
		for _, kind := range []string{"ReplicaSet", "Job"} {
			if n := made[kind]; n < 10 || n > 20 {
				t.Errorf("%s: %d pods in an hour", kind, n)
			}
		}
		mu.Lock()
		changed = false
		mu.Unlock()
		time.Sleep(12 * time.Minute)
		synctest.Wait()
		owned := 0
		for _, p := range controllertest.All[*corev1.Pod](api) {
			if metav1.GetControllerOf(p) != nil {
				owned++
			}
		}
		if owned != 3 {
			t.Errorf("%d pods belong to their owners when the labels stay", owned)
		}
	})
}

// A webhook that replaces the node affinity of a DaemonSet's pods, so that they are for no node, does not make it
// create pods without end.
func TestDaemonPodsWithoutTheirNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		labels := map[string]string{"app": "d"}
		api := controllertest.New(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
			&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d"}, Spec: appsv1.DaemonSetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels}, RevisionHistoryLimit: new(int32(2)),
				Template:       corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}},
				UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}}})
		var mu sync.Mutex
		made, changed := 0, true
		api.Before = func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error {
			mu.Lock()
			defer mu.Unlock()
			if p, ok := o.(*corev1.Pod); ok && verb == "create" && gvr.Resource == "pods" && changed {
				made++
				p.Spec.Affinity = nil
			}
			return nil
		}
		watches := daemonset.Watches{Sets: source.DaemonSets(api), Pods: source.Pods(api), Nodes: source.Nodes(api),
			Revisions: source.Revisions(api)}
		events := record.NewFakeRecorder(10_000)
		c, err := daemonset.New(api, events, watches)
		if err != nil {
			t.Fatal(err)
		}
		controllertest.Run(t, all{c}, watches.Sets, watches.Pods, watches.Nodes, watches.Revisions)
		time.Sleep(time.Hour)
		synctest.Wait()
		if made < 10 || made > 20 {
			t.Errorf("%d pods in an hour", made)
		}
		for _, e := range controllertest.Events(events) {
			if !strings.HasPrefix(e, "Warning FailedCreate Created pod d-") {
				t.Errorf("event %q", e)
			}
		}
		mu.Lock()
		changed = false
		mu.Unlock()
		time.Sleep(12 * time.Minute)
		synctest.Wait()
		for _, p := range controllertest.All[*corev1.Pod](api) {
			if plan.Target(p) == "n" {
				return
			}
		}
		t.Error("the node has no pod when the affinity stays")
	})
}
