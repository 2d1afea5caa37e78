package webhooks

import (
	"context"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	apply "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// typeChecks writes into the status of validating policies where an expression does not fit the
// types of its objects.
type typeChecks struct {
	client   kubernetes.Interface
	policies informers.SharedInformerFactory
	checker  *validating.TypeChecker
	queue    workqueue.TypedRateLimitingInterface[string]
}

const typeCheckManager = "validatingadmissionpolicy-status-controller"

func newTypeChecks(f informers.SharedInformerFactory, client kubernetes.Interface, mapper meta.RESTMapper) (*typeChecks,
	error) {
	t := &typeChecks{client: client, policies: f,
		checker: &validating.TypeChecker{
			SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: client.Discovery()}, RestMapper: mapper},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())}
	add := func(o any) {
		if p, ok := o.(*admissionregistrationv1.ValidatingAdmissionPolicy); ok &&
			p.Generation > p.Status.ObservedGeneration {
			t.queue.Add(p.Name)
		}
	}
	_, err := f.Admissionregistration().V1().ValidatingAdmissionPolicies().Informer().AddEventHandler(
		cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, o any) { add(o) }})
	return t, err
}

// run checks until ctx ends.
func (t *typeChecks) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, t.queue.ShutDown)
	defer stop()
	for {
		name, done := t.queue.Get()
		if done {
			return
		}
		if err := t.check(ctx, name); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Checking the types of a policy failed, will retry", "policy", name, "err",
				err)
			t.queue.AddRateLimited(name)
		} else {
			t.queue.Forget(name)
		}
		t.queue.Done(name)
	}
}

func (t *typeChecks) check(ctx context.Context, name string) error {
	p, err := t.policies.Admissionregistration().V1().ValidatingAdmissionPolicies().Lister().Get(name)
	if err != nil || p.Generation <= p.Status.ObservedGeneration {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	checked := apply.TypeChecking()
	for _, w := range t.checker.Check(p) {
		checked.WithExpressionWarnings(apply.ExpressionWarning().WithFieldRef(w.FieldRef).WithWarning(w.Warning))
	}
	_, err = t.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().ApplyStatus(ctx,
		apply.ValidatingAdmissionPolicy(name).WithStatus(
			apply.ValidatingAdmissionPolicyStatus().WithObservedGeneration(p.Generation).WithTypeChecking(checked)),
		metav1.ApplyOptions{FieldManager: typeCheckManager, Force: true})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
