package apiserver

import (
	"context"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"

	"carob/internal/apiserver/auth"
)

// policyDelay leaves the first second after a start to the parts that read the whole cluster then:
// a hundred writes in a row would delay their first lists.
const policyDelay = time.Second

// reconcilePolicy stores the built-in policy: it creates missing objects, and adds missing rules to
// those with the autoupdate annotation. The authorizer has the policy already, so nothing waits
// for this.
func (s *Server) reconcilePolicy(ctx context.Context) {
	log := klog.FromContext(ctx)
	ctx = asServer(ctx)
	select {
	case <-time.After(policyDelay):
	case <-ctx.Done():
		return
	}
	for _, o := range auth.Builtin().Objects() {
		if ctx.Err() != nil {
			return
		}
		if err := s.reconcilePolicyObject(ctx, o); err != nil && ctx.Err() == nil {
			log.Error(err, "Storing the built-in RBAC policy failed", "resource", o.Resource)
			return
		}
	}
	s.storeAfterStart(ctx)
	s.aggregateRoles(ctx)
}

// aggregateRoles keeps the rules of aggregated ClusterRoles until ctx ends.
func (s *Server) aggregateRoles(ctx context.Context) {
	st := s.stores[rbacv1.Resource("clusterroles")]
	s.rbac.Aggregate(apirequest.WithNamespace(ctx, ""), func(ctx context.Context, role *rbacv1.ClusterRole) error {
		_, _, err := st.Update(ctx, role.Name, rest.DefaultUpdatedObjectInfo(role), rest.ValidateAllObjectFunc,
			rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		return err
	})
}

func (s *Server) reconcilePolicyObject(ctx context.Context, o auth.Object) error {
	m := o.Object.(metav1.Object)
	ctx = apirequest.WithNamespace(ctx, m.GetNamespace())
	st := s.stores[o.Resource]
	old, err := st.Get(ctx, m.GetName(), &metav1.GetOptions{ResourceVersion: "0"})
	if err == nil {
		merged, changed := auth.Merge(old, o.Object)
		if !changed {
			return nil
		}
		_, _, err = st.Update(ctx, m.GetName(), rest.DefaultUpdatedObjectInfo(merged), rest.ValidateAllObjectFunc,
			rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		return err
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = st.Create(ctx, o.Object.DeepCopyObject(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
