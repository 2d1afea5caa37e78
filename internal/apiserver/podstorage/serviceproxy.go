package podstorage

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"carob/internal/apiserver/endpoints"
)

// serviceProxyREST proxies HTTP requests to a ready pod of a Service. The name may be "service",
// "service:port", or "https:service:port"; the port is a number or name in the Service.
type serviceProxyREST struct {
	resolver  *endpoints.Resolver
	transport http.RoundTripper
}

var _ rest.Connecter = (*serviceProxyREST)(nil)

func (*serviceProxyREST) New() runtime.Object { return &corev1.ServiceProxyOptions{} }

func (*serviceProxyREST) Destroy() {}

// ConnectMethods are the HTTP methods of the subresource.
func (*serviceProxyREST) ConnectMethods() []string { return proxyMethods }

// NewConnectOptions are the query parameters; the rest of the URL's path is the parameter "path".
func (*serviceProxyREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.ServiceProxyOptions{}, true, "path"
}

func (r *serviceProxyREST) Connect(ctx context.Context, id string, options runtime.Object,
	responder rest.Responder) (http.Handler, error) {
	o, ok := options.(*corev1.ServiceProxyOptions)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid options object: %#v", options))
	}
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", id))
	}
	hostPort, err := r.resolver.ResolvePod(ctx, genericapirequest.NamespaceValue(ctx), name, port)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(hostPort)
	if err == nil {
		err = proxyable(host)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	location := &url.URL{Scheme: cmp.Or(scheme, "http"), Host: hostPort, Path: joinPath(o.Path)}
	return passThrough(location, r.transport, responder), nil
}
