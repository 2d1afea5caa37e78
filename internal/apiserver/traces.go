package apiserver

import (
	"net/http"

	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	restclient "k8s.io/client-go/rest"
	basetracing "k8s.io/component-base/tracing"
)

// traced records a span for each request, if spans are exported. Below it, the handlers of the library make their own.
func (s *Server) traced(h http.Handler) http.Handler {
	if s.cfg.Traces == nil {
		return h
	}
	return genericapifilters.WithTracing(h, s.cfg.Traces)
}

// credentials are what the server authenticates with at webhooks: as in the admission configuration, otherwise nothing.
// Webhooks also get the trace of the request.
func (s *Server) credentials(inner webhookutil.AuthenticationInfoResolver) webhookutil.AuthenticationInfoResolver {
	if s.cfg.Traces == nil {
		return inner
	}
	trace := func(c *restclient.Config, err error) (*restclient.Config, error) {
		if err != nil {
			return nil, err
		}
		c = restclient.CopyConfig(c)
		c.Wrap(basetracing.WrapperFor(s.cfg.Traces))
		return c, nil
	}
	return &webhookutil.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(host string) (*restclient.Config, error) {
			return trace(inner.ClientConfigFor(host))
		},
		ClientConfigForServiceFunc: func(name, namespace string, port int) (*restclient.Config, error) {
			return trace(inner.ClientConfigForService(name, namespace, port))
		},
	}
}
