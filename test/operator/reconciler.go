package operator

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// finalizer keeps a deleted Website until the operator has finalized it.
const finalizer = "web.example.com/goodbye"

// reconciler makes a ConfigMap and a Deployment of each Website.
type reconciler struct {
	client.Client
	recorder events.EventRecorder
	goodbye  func(name string) // called once for each Website that is deleted
}

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var site Website
	if err := r.Get(ctx, req.NamespacedName, &site); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if site.DeletionTimestamp != nil {
		if controllerutil.RemoveFinalizer(&site, finalizer) {
			r.goodbye(site.Name)
			return ctrl.Result{}, client.IgnoreNotFound(r.Update(ctx, &site))
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(&site, finalizer) {
		return ctrl.Result{}, r.Update(ctx, &site)
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: site.Namespace, Name: site.Name}}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, config, func() error {
		site.configMap(config)
		return controllerutil.SetControllerReference(&site, config, r.Scheme())
	}); err != nil {
		return ctrl.Result{}, fmt.Errorf("config map: %w", err)
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: site.Namespace, Name: site.Name}}
	done, err := controllerutil.CreateOrUpdate(ctx, r.Client, deployment, func() error {
		site.deployment(deployment)
		return controllerutil.SetControllerReference(&site, deployment, r.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("deployment: %w", err)
	}
	if done == controllerutil.OperationResultCreated {
		r.recorder.Eventf(&site, deployment, corev1.EventTypeNormal, "Made", "Make", "made Deployment %s",
			deployment.Name)
	}
	return ctrl.Result{}, r.report(ctx, &site, deployment)
}

// report writes the status, by a patch of what changed.
func (r *reconciler) report(ctx context.Context, site *Website, d *appsv1.Deployment) error {
	before := site.DeepCopyObject().(*Website)
	site.Status.Replicas, site.Status.ObservedGeneration = d.Status.AvailableReplicas, site.Generation
	site.Status.Selector = "website=" + site.Name
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Rollout",
		ObservedGeneration: site.Generation}
	if want := d.Spec.Replicas; want != nil && d.Status.AvailableReplicas == *want &&
		d.Status.UpdatedReplicas == *want && d.Status.Replicas == *want && d.Status.ObservedGeneration == d.Generation {
		ready.Status, ready.Reason = metav1.ConditionTrue, "Available"
	}
	meta.SetStatusCondition(&site.Status.Conditions, ready)
	return client.IgnoreNotFound(r.Status().Patch(ctx, site, client.MergeFrom(before)))
}
