package statuses

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/gatewayplan/inferenceapi"
)

// GatewayClient reads and writes objects of the Gateway API.
func GatewayClient(cfg *rest.Config) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	if err := gatewayv1.Install(scheme); err != nil {
		return nil, fmt.Errorf("register the Gateway API: %w", err)
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion(gatewayv1.GroupVersion))
	own := rest.CopyConfig(cfg)
	version := schema.GroupVersion(gatewayv1.GroupVersion)
	own.GroupVersion, own.APIPath = &version, "/apis"
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	own.ContentType, own.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	c, err := rest.RESTClientFor(own)
	if err != nil {
		return nil, fmt.Errorf("make a client for the Gateway API: %w", err)
	}
	return c, nil
}

// PoolClients read and write objects of the inference extension, by their group.
func PoolClients(cfg *rest.Config) (map[string]rest.Interface, error) {
	scheme := runtime.NewScheme()
	newer := schema.GroupVersion{Group: inferenceapi.Group, Version: "v1"}
	older := schema.GroupVersion{Group: inferenceapi.OldGroup, Version: "v1alpha2"}
	router := schema.GroupVersion{Group: inferenceapi.RouterGroup, Version: "v1alpha2"}
	for _, k := range []struct {
		at           schema.GroupVersion
		kind         string
		object, list runtime.Object
	}{
		{newer, "InferencePool", &inferenceapi.Pool{}, &inferenceapi.PoolList{}},
		{older, "InferencePool", &inferenceapi.OldPool{}, &inferenceapi.OldPoolList{}},
		{older, "InferenceModel", &inferenceapi.Model{}, &inferenceapi.ModelList{}},
		{older, "InferenceObjective", &inferenceapi.Objective{}, &inferenceapi.ObjectiveList{}},
		{older, "InferenceModelRewrite", &inferenceapi.Rewrite{}, &inferenceapi.RewriteList{}},
		{router, "InferenceObjective", &inferenceapi.Objective{}, &inferenceapi.ObjectiveList{}},
		{router, "InferenceModelRewrite", &inferenceapi.Rewrite{}, &inferenceapi.RewriteList{}},
	} {
		scheme.AddKnownTypeWithName(k.at.WithKind(k.kind), k.object)
		scheme.AddKnownTypeWithName(k.at.WithKind(k.kind+"List"), k.list)
	}
	out := map[string]rest.Interface{}
	for _, version := range []schema.GroupVersion{newer, older, router} {
		metav1.AddToGroupVersion(scheme, version)
		own := rest.CopyConfig(cfg)
		own.GroupVersion, own.APIPath = &version, "/apis"
		own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		own.ContentType, own.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
		c, err := rest.RESTClientFor(own)
		if err != nil {
			return nil, fmt.Errorf("make a client for %s: %w", version, err)
		}
		out[version.Group] = c
	}
	return out, nil
}
