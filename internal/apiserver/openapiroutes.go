package apiserver

import (
	"slices"

	"github.com/emicklei/go-restful/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// Routes returns what the OpenAPI documents are generated from: the served routes and their types.
// The generator in tools/cmd/openapi uses it: it builds a server on an empty directory and never
// runs it.
func (s *Server) Routes() ([]*restful.WebService, *runtime.Scheme) {
	services := slices.Clone(s.generic.Handler.GoRestfulContainer.RegisteredWebServices())
	list := aggregated.WrapAggregatedDiscoveryToHandler(s.groups, s.groups, s.groups)
	services = append(services, list.GenerateWebService(genericapiserver.APIGroupPrefix, metav1.APIGroupList{}))
	for _, g := range s.groups.list().Groups {
		services = append(services, discovery.NewAPIGroupHandler(s.generic.Serializer, g).WebService())
	}
	services = append(services,
		described("/.well-known/openid-configuration", restful.MIME_JSON, "getServiceAccountIssuerOpenIDConfiguration",
			"get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'"),
		described("/openid/v1/jwks", "application/jwk-set+json", "getServiceAccountIssuerOpenIDKeyset",
			"get service account issuer OpenID JSON Web Key Set (contains public token verification keys)"))
	return services, s.set.External
}

// described lists, for the OpenAPI documents, a path that another handler serves.
func described(path, media, operation, doc string) *restful.WebService {
	ws := new(restful.WebService).Path(path)
	return ws.Route(ws.GET("").To(func(*restful.Request,
		*restful.Response) {
	}).Doc(doc).Operation(operation).Produces(media).Writes(""))
}
