package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"carob/internal/base/pki"
	"carob/internal/kinds/apiregistration"
)

// priorities are the order of the built-in groups and versions in discovery, as upstream has it.
var priorities = map[schema.GroupVersion][2]int32{
	{Version: "v1"}: {18000, 1}, {Group: "apps", Version: "v1"}: {17800, 15}, {Group: "events.k8s.io", Version: "v1"}: {17750, 15},
	{Group: "authentication.k8s.io", Version: "v1"}: {17700, 15}, {Group: "authorization.k8s.io", Version: "v1"}: {17600, 15},
	{Group: "autoscaling", Version: "v1"}: {17500, 15}, {Group: "autoscaling", Version: "v2"}: {17500, 30}, {Group: "batch", Version: "v1"}: {17400, 15},
	{Group: "certificates.k8s.io", Version: "v1"}: {17300, 15}, {Group: "networking.k8s.io", Version: "v1"}: {17200, 15}, {Group: "policy", Version: "v1"}: {17100, 15},
	{Group: "rbac.authorization.k8s.io", Version: "v1"}: {17000, 15}, {Group: "storage.k8s.io", Version: "v1"}: {16800, 15},
	{Group: "apiextensions.k8s.io", Version: "v1"}: {16700, 15}, {Group: "admissionregistration.k8s.io", Version: "v1"}: {16700, 15},
	{Group: "scheduling.k8s.io", Version: "v1"}: {16600, 15}, {Group: "coordination.k8s.io", Version: "v1"}: {16500, 15}, {Group: "node.k8s.io", Version: "v1"}: {16300, 15},
	{Group: "discovery.k8s.io", Version: "v1"}: {16200, 15}, {Group: "resource.k8s.io", Version: "v1"}: {16200, 21}, {Group: "flowcontrol.apiserver.k8s.io", Version: "v1"}: {16100, 21},
	{Group: "storagemigration.k8s.io", Version: "v1"}: {15800, 15}, {Group: apiregistration.GroupResource.Group, Version: "v1"}: {20000, 9},
}

func priority(gv schema.GroupVersion) (group, version int32) {
	if p, ok := priorities[gv]; ok {
		return p[0], p[1]
	}
	return 15000, 9
}

const (
	automanaged = "kube-aggregator.kubernetes.io/automanaged"
	onStart     = "onstart"
)

// storeLater makes the objects that nothing waits for: APIServices of the built-in
// groups and what other API servers need to trust this one.
func (s *Server) storeLater(ctx context.Context) {
	for _, gv := range s.versions {
		if ctx.Err() != nil {
			return
		}
		if gv.Group == apiregistration.GroupResource.Group {
			continue // it is the one that the others are listed by
		}
		if err := s.storeAPIService(ctx, gv); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Storing an APIService failed", "groupVersion", gv)
			s.conditions.fail(err, groupChecks...)
			return
		}
	}
	if err := s.storeTrust(ctx); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Storing the configuration of other API servers failed")
		s.conditions.fail(err, trustChecks...)
	}
	if err := s.trackTokens(ctx, time.Now()); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Storing since when the use of tokens is noted failed")
	}
}

// The names are upstream's.
const (
	tracking     = "kube-apiserver-legacy-service-account-token-tracking"
	trackedSince = "since"
)

// trackTokens keeps the config map that says since when the use of tokens in Secrets is
// noted, for whoever is to remove those that nobody uses.
func (s *Server) trackTokens(ctx context.Context, now time.Time) error {
	want := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: tracking, Namespace: metav1.NamespaceSystem},
		Data: map[string]string{trackedSince: now.UTC().Format(time.DateOnly)}}
	st := s.stores[corev1.Resource("configmaps")]
	ctx = apirequest.WithNamespace(ctx, want.Namespace)
	dated := func(o *corev1.ConfigMap) bool {
		_, err := time.Parse(time.DateOnly, o.Data[trackedSince])
		return err == nil
	}
	if o, err := st.Get(ctx, want.Name, &metav1.GetOptions{}); err == nil {
		if m, ok := o.(*corev1.ConfigMap); ok && dated(m) {
			return nil
		}
	}
	return upsert(ctx, st, want, func(o *corev1.ConfigMap) bool {
		if dated(o) {
			return false
		}
		if o.Data == nil {
			o.Data = map[string]string{}
		}
		maps.Copy(o.Data, want.Data)
		return true
	})
}

func (s *Server) storeAPIService(ctx context.Context, gv schema.GroupVersion) error {
	group, version := priority(gv)
	st := s.stores[apiregistration.GroupResource]
	ctx = apirequest.WithNamespace(ctx, "")
	want := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group, Labels: map[string]string{automanaged: onStart}},
		Spec:       apiregistrationv1.APIServiceSpec{Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: group, VersionPriority: version},
	}
	o, err := st.Get(ctx, want.Name, &metav1.GetOptions{})
	if err == nil {
		old, ok := o.(*apiregistrationv1.APIService)
		if !ok || old.Labels[automanaged] != onStart || equality.Semantic.DeepEqual(old.Spec, want.Spec) {
			return nil // somebody manages it, or it is right
		}
		changed := old.DeepCopy()
		changed.Spec = want.Spec
		_, _, err = st.Update(ctx, want.Name, rest.DefaultUpdatedObjectInfo(changed), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		return err
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	if _, err = st.Create(ctx, want, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// storeTrust keeps the config map from which other API servers learn whom to believe.
func (s *Server) storeTrust(ctx context.Context) error {
	proxy, err := s.cfg.PKI.FrontProxy(time.Now())
	if err != nil {
		return err
	}
	list := func(v ...string) string {
		b, err := json.Marshal(v)
		if err != nil {
			panic(fmt.Sprintf("apiserver: a list of strings: %v", err))
		}
		return string(b)
	}
	want := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "extension-apiserver-authentication", Namespace: metav1.NamespaceSystem}, Data: map[string]string{
		"client-ca-file":                     string(s.cfg.PKI.CAPEM),
		"requestheader-client-ca-file":       string(proxy.CAPEM),
		"requestheader-allowed-names":        list(pki.FrontProxyName),
		"requestheader-username-headers":     list("X-Remote-User"),
		"requestheader-uid-headers":          list("X-Remote-Uid"),
		"requestheader-group-headers":        list("X-Remote-Group"),
		"requestheader-extra-headers-prefix": list("X-Remote-Extra-"),
	}}
	st := s.stores[corev1.Resource("configmaps")]
	ctx = apirequest.WithNamespace(ctx, want.Namespace)
	if o, err := st.Get(ctx, want.Name, &metav1.GetOptions{}); err == nil {
		if m, ok := o.(*corev1.ConfigMap); ok && equality.Semantic.DeepEqual(m.Data, want.Data) {
			return nil
		}
	}
	return upsert(ctx, st, want, func(o *corev1.ConfigMap) bool {
		o.Data = want.Data
		return true
	})
}
