package apiserver

import (
	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/runtime"
)

// Routes returns what the OpenAPI documents are made from: the served routes and
// the types in them. It is for the generator in tools/cmd/openapi, which builds a
// server on an empty directory and never runs it.
func (s *Server) Routes() ([]*restful.WebService, *runtime.Scheme) {
	return s.generic.Handler.GoRestfulContainer.RegisteredWebServices(), s.set.External
}

// Close releases a server that is not going to run.
func (s *Server) Close() { s.close() }
