package apiserver

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"carob/internal/kinds/apiregistration"
)

const (
	automanaged = "kube-aggregator.kubernetes.io/automanaged"
	onStart     = "onstart"
)

func (s *Server) storeAPIService(ctx context.Context, gv schema.GroupVersion) error {
	group, version := priority(gv)
	st := s.stores[apiregistration.GroupResource]
	ctx = apirequest.WithNamespace(ctx, "")
	want := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group,
			Labels: map[string]string{automanaged: onStart}},
		Spec: apiregistrationv1.APIServiceSpec{Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: group,
			VersionPriority: version},
	}
	o, err := st.Get(ctx, want.Name, &metav1.GetOptions{})
	if err == nil {
		old, ok := o.(*apiregistrationv1.APIService)
		if !ok || old.Labels[automanaged] != onStart || equality.Semantic.DeepEqual(old.Spec, want.Spec) {
			return nil // another component manages it, or it is correct
		}
		changed := old.DeepCopy()
		changed.Spec = want.Spec
		_, _, err = st.Update(ctx, want.Name, rest.DefaultUpdatedObjectInfo(changed), rest.ValidateAllObjectFunc,
			rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		return err
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	if _, err = st.Create(ctx, want, rest.ValidateAllObjectFunc,
		&metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
