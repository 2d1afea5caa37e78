package apiserver

import (
	"net/http"

	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
)

// traced records a span for each request, if spans are exported. Below it, the handlers of the library make their own.
func (s *Server) traced(h http.Handler) http.Handler {
	if s.cfg.Traces == nil {
		return h
	}
	return genericapifilters.WithTracing(h, s.cfg.Traces)
}
