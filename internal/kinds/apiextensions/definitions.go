package apiextensions

import (
	"context"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"

	"carob/internal/kinds/registry"
)

// GroupResource is the group resource of definitions.
var GroupResource = apiextensionsv1.Resource("customresourcedefinitions")

// DefinitionCodec encodes definitions; ObjectCodec encodes custom resources (the library adds their
// conversion).
func DefinitionCodec() (runtime.Codec, runtime.GroupVersioner) {
	return apiextensionsapiserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion),
		apiextensionsv1.SchemeGroupVersion
}

// ObjectCodec is described at DefinitionCodec.
func ObjectCodec() runtime.Codec {
	return runtime.NewCodec(unstructured.UnstructuredJSONScheme, unstructured.UnstructuredJSONScheme)
}

// Storage returns the REST storage of definitions, keyed by path. written is called after a
// definition was stored, before the client gets the response.
func Storage(options generic.RESTOptionsGetter, written func()) (map[string]rest.Storage, error) {
	main, err := customresourcedefinition.NewREST(apiextensionsapiserver.Scheme, options)
	if err != nil {
		return nil, err
	}
	main.CreateStrategy = listed{main.CreateStrategy}
	main.AfterCreate = func(runtime.Object, *metav1.CreateOptions) { written() }
	registry.SpareDryRuns(main.Store)
	return map[string]rest.Storage{GroupResource.Resource: main,
		GroupResource.Resource + "/status": customresourcedefinition.NewStatusREST(apiextensionsapiserver.Scheme,
			main)}, nil
}

// listed creates definitions with an empty list of conditions: `kubectl wait` fails on null, which
// upstream writes.
type listed struct{ rest.RESTCreateStrategy }

func (l listed) PrepareForCreate(ctx context.Context, o runtime.Object) {
	l.RESTCreateStrategy.PrepareForCreate(ctx, o)
	if d, ok := o.(*apiextensions.CustomResourceDefinition); ok {
		d.Status.Conditions = []apiextensions.CustomResourceDefinitionCondition{}
	}
}
