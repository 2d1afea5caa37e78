package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	ktesting "k8s.io/client-go/testing"

	"carob/internal/controllers/controllertest"
)

// runManager runs the manager on an API in memory until the test ends. The function that it returns has
// "IDENTITY VERB RESOURCE" of each write.
func runManager(t *testing.T, api *controllertest.API) (used func() map[string]bool) {
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	watcher := Clients{Kubernetes: api, Metadata: metadatafake.NewSimpleMetadataClient(scheme)}
	var mu sync.Mutex
	writes := map[string]bool{}
	as := func(identity string) (Clients, error) {
		c := fake.NewClientset()
		c.Resources = api.Resources
		c.ReactionChain, c.WatchReactionChain = slices.Clone(api.ReactionChain), api.WatchReactionChain
		c.PrependReactor("*", "*", func(a ktesting.Action) (bool, runtime.Object, error) {
			if verb := a.GetVerb(); verb != "get" && verb != "list" {
				mu.Lock()
				defer mu.Unlock()
				writes[fmt.Sprint(identity, " ", verb, " ", a.GetResource().Resource)] = true
			}
			return false, nil, nil
		})
		return Clients{Kubernetes: c, Metadata: watcher.Metadata}, nil
	}
	m, err := newManager(watcher, as, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { err = m.Run(ctx); close(done) }()
	t.Cleanup(func() {
		cancel()
		<-done
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	<-m.synced
	return func() map[string]bool {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(writes)
	}
}

// Each controller of workloads writes as its own service account (W11.6), and its events name it (W0.38). The events of
// an object that fails again and again are counted on one object (W0.80), written 25 times at once and then every five
// minutes (W0.81).
func TestIdentities(t *testing.T) { synctest.Test(t, testIdentities) }

func testIdentities(t *testing.T) {
	labels := map[string]string{"app": "web"}
	at := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	own := func(app string) (*metav1.LabelSelector, corev1.PodTemplateSpec) {
		s := map[string]string{"app": app}
		t := *template.DeepCopy()
		t.Labels = s
		return &metav1.LabelSelector{MatchLabels: s}, t
	}
	dsSelector, dsTemplate := own("ds")
	stsSelector, stsTemplate := own("sts")
	rsSelector, rsTemplate := own("rs")
	_, rcTemplate := own("rc")
	jobSelector, jobTemplate := own("job")
	jobTemplate.Spec.RestartPolicy = corev1.RestartPolicyNever
	one := batchv1.JobSpec{Parallelism: new(int32(1)), Completions: new(int32(1)), BackoffLimit: new(int32(6)),
		Selector: jobSelector, Template: jobTemplate}
	none := one
	none.Parallelism = new(int32(0))
	api := controllertest.New(
		ns("ns", false), readyNode("n1"),
		&appsv1.Deployment{ObjectMeta: at("web"), Spec: appsv1.DeploymentSpec{Replicas: new(int32(1)),
			Selector: selector, Template: template}},
		&appsv1.ReplicaSet{ObjectMeta: at("rs"), Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(1)),
			Selector: rsSelector, Template: rsTemplate}},
		&corev1.ReplicationController{ObjectMeta: at("rc"), Spec: corev1.ReplicationControllerSpec{
			Replicas: new(int32(1)), Selector: rcTemplate.Labels, Template: &rcTemplate}},
		&appsv1.StatefulSet{ObjectMeta: at("sts"), Spec: appsv1.StatefulSetSpec{Replicas: new(int32(1)),
			Selector: stsSelector, Template: stsTemplate}},
		&appsv1.DaemonSet{ObjectMeta: at("ds"), Spec: appsv1.DaemonSetSpec{Selector: dsSelector, Template: dsTemplate}},
		&batchv1.Job{ObjectMeta: at("job"), Spec: one},
		&batchv1.CronJob{ObjectMeta: at("tick"), Spec: batchv1.CronJobSpec{Schedule: "* * * * *",
			ConcurrencyPolicy: batchv1.ForbidConcurrent, JobTemplate: batchv1.JobTemplateSpec{Spec: none}}},
		&autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: at("hpa"), Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			MaxReplicas: 3, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1",
				Kind: "Deployment", Name: "web"}}},
		&policyv1.PodDisruptionBudget{ObjectMeta: at("empty"),
			Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{
				MatchLabels: map[string]string{"app": "none"}}}},
	)
	api.Before = func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error {
		if verb == "create" && gvr.Resource == "pods" && o.GetLabels()["app"] == "rs" {
			return apierrors.NewForbidden(gvr.GroupResource(), "", errors.New("exceeded quota"))
		}
		return nil
	}
	var counted atomic.Int32
	api.PrependReactor("patch", "events", func(a ktesting.Action) (bool, runtime.Object, error) {
		if p, ok := a.(ktesting.PatchAction); ok && strings.HasPrefix(p.GetName(), "rs.") {
			counted.Add(1)
		}
		return false, nil, nil
	})
	used := runManager(t, api)
	time.Sleep(time.Hour)
	synctest.Wait()
	list, err := api.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]bool{}
	objects, count := 0, int32(0)
	for _, e := range list.Items {
		sources[e.InvolvedObject.Kind+" "+e.Source.Component] = true
		if e.InvolvedObject.Name == "rs" && e.Reason == "FailedCreate" {
			objects, count = objects+1, count+e.Count
		}
	}
	for _, want := range []string{"Deployment deployment-controller", "ReplicaSet replicaset-controller",
		"ReplicationController replication-controller", "StatefulSet statefulset-controller",
		"DaemonSet daemonset-controller", "Job job-controller", "CronJob cronjob-controller",
		"HorizontalPodAutoscaler horizontal-pod-autoscaler", "PodDisruptionBudget controllermanager"} {
		if !sources[want] {
			t.Errorf("no event of %s in %v", want, sources)
		}
		kind, _, _ := strings.Cut(want, " ")
		for s := range sources {
			if strings.HasPrefix(s, kind+" ") && s != want {
				t.Errorf("an event of %s", s)
			}
		}
	}
	if n := counted.Load(); objects != 1 || count < 40 || n < 24 || n > 24+60/5 {
		t.Errorf("%d events of the refused set, counted %d times in an hour, in %d writes", objects, count, n)
	}
	writes := used()
	for _, want := range []string{"deployment-controller create replicasets", "replicaset-controller create pods",
		"replication-controller create pods", "daemon-set-controller create pods",
		"statefulset-controller create pods", "job-controller create pods", "cronjob-controller create jobs",
		"disruption-controller update poddisruptionbudgets", "horizontal-pod-autoscaler update horizontalpodautoscalers",
	} {
		if !writes[want] {
			t.Errorf("nobody did: %s", want)
		}
	}
	if t.Failed() {
		t.Log(writes)
	}
}
