package apiserver

import (
	"context"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/metadata"

	"carob/internal/base/zerocopy"
)

// Parts of this process get the API server's own objects without a copy, of each kind that the scheduler and
// controllers read, and only those that they may read.
func testZeroCopy(t *testing.T, r *running) {
	admin := r.admin(t)
	m, err := metadata.NewForConfig(r.ClientConfig("admin", user.SystemPrivilegedGroup))
	if err != nil {
		t.Fatal(err)
	}
	every := fields.Everything()
	for name, lw := range map[string]*zerocopy.ListWatch{
		"namespaces":   zerocopy.New(admin.CoreV1().Namespaces(), &corev1.Namespace{}, every),
		"pods":         zerocopy.New(admin.CoreV1().Pods(""), &corev1.Pod{}, every),
		"nodes":        zerocopy.New(admin.CoreV1().Nodes(), &corev1.Node{}, every),
		"services":     zerocopy.New(admin.CoreV1().Services(""), &corev1.Service{}, every),
		"endpoints":    zerocopy.New(admin.CoreV1().Endpoints(""), &corev1.Endpoints{}, every),
		"controllers":  zerocopy.New(admin.CoreV1().ReplicationControllers(""), &corev1.ReplicationController{}, every),
		"claims":       zerocopy.New(admin.CoreV1().PersistentVolumeClaims(""), &corev1.PersistentVolumeClaim{}, every),
		"accounts":     zerocopy.New(admin.CoreV1().ServiceAccounts(""), &corev1.ServiceAccount{}, named("default")),
		"config maps":  zerocopy.New(admin.CoreV1().ConfigMaps(""), &corev1.ConfigMap{}, named("kube-root-ca.crt")),
		"leases":       zerocopy.New(admin.CoordinationV1().Leases("kube-node-lease"), &coordinationv1.Lease{}, every),
		"slices":       zerocopy.New(admin.DiscoveryV1().EndpointSlices(""), &discoveryv1.EndpointSlice{}, every),
		"budgets":      zerocopy.New(admin.PolicyV1().PodDisruptionBudgets(""), &policyv1.PodDisruptionBudget{}, every),
		"deployments":  zerocopy.New(admin.AppsV1().Deployments(""), &appsv1.Deployment{}, every),
		"replica sets": zerocopy.New(admin.AppsV1().ReplicaSets(""), &appsv1.ReplicaSet{}, every),
		"sets":         zerocopy.New(admin.AppsV1().StatefulSets(""), &appsv1.StatefulSet{}, every),
		"daemon sets":  zerocopy.New(admin.AppsV1().DaemonSets(""), &appsv1.DaemonSet{}, every),
		"revisions":    zerocopy.New(admin.AppsV1().ControllerRevisions(""), &appsv1.ControllerRevision{}, every),
		"jobs":         zerocopy.New(admin.BatchV1().Jobs(""), &batchv1.Job{}, every),
		"cron jobs":    zerocopy.New(admin.BatchV1().CronJobs(""), &batchv1.CronJob{}, every),
		"autoscalers": zerocopy.New(admin.AutoscalingV2().HorizontalPodAutoscalers(""),
			&autoscalingv2.HorizontalPodAutoscaler{}, every),
		"metadata": zerocopy.New(m.Resource(rbacv1.SchemeGroupVersion.WithResource("clusterroles")), nil, every),
	} {
		list, err := lw.ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
		if err != nil || !lw.Shared() {
			t.Errorf("%s: the list is a copy: %v", name, err)
			continue
		}
		l, ok := list.(metav1.ListInterface)
		if !ok {
			t.Fatalf("%s: %T", name, list)
		}
		w, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: l.GetResourceVersion()})
		if err != nil || !lw.Shared() {
			t.Errorf("%s: the objects of the watch are copies: %v", name, err)
			continue
		}
		w.Stop()
	}

	own, cancel := context.WithCancel(t.Context())
	defer cancel()
	lw := zerocopy.New(r.client(t, "stranger").CoreV1().Secrets(""), &corev1.Secret{}, every)
	if list, err := lw.ListWithContext(own, metav1.ListOptions{}); !apierrors.IsForbidden(err) || list != nil {
		t.Errorf("a user without the right lists %v: %v", list, err)
	}
	if w, err := lw.WatchWithContext(own, metav1.ListOptions{}); !apierrors.IsForbidden(err) || w != nil {
		t.Errorf("a user without the right watches: %v", err)
	}
	// The server's limit on the time of a watch holds.
	w, err := zerocopy.New(admin.CoreV1().Secrets(""), &corev1.Secret{}, every).WatchWithContext(own,
		metav1.ListOptions{TimeoutSeconds: new(int64(1))})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for range w.ResultChan() { //nolint:revive // until it is closed
	}
}

func named(name string) fields.Selector {
	return fields.OneTermEqualSelector(metav1.ObjectNameField, name)
}
