package apiserver

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	restclient "k8s.io/client-go/rest"
	basetracing "k8s.io/component-base/tracing"
)

// credentials are what the server authenticates with at webhooks: as in the admission configuration, otherwise nothing.
// Webhooks also get the trace of the request, and their answers are limited.
func (s *Server) credentials(inner webhookutil.AuthenticationInfoResolver) webhookutil.AuthenticationInfoResolver {
	wrap := func(c *restclient.Config, err error) (*restclient.Config, error) {
		if err != nil {
			return nil, err
		}
		c = restclient.CopyConfig(c)
		if s.cfg.Traces != nil {
			c.Wrap(basetracing.WrapperFor(s.cfg.Traces))
		}
		c.Wrap(func(t http.RoundTripper) http.RoundTripper { return limited{t} })
		return c, nil
	}
	return &webhookutil.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(host string) (*restclient.Config, error) {
			return wrap(inner.ClientConfigFor(host))
		},
		ClientConfigForServiceFunc: func(name, namespace string, port int) (*restclient.Config, error) {
			return wrap(inner.ClientConfigForService(name, namespace, port))
		},
	}
}

const (
	// leastAnswer is what a webhook may always answer: a patch that replaces the largest object, in base64.
	leastAnswer = 16 << 20
	// answerGrowth is how much more than the request it may answer beyond that: a conversion webhook returns all the
	// objects that it gets.
	answerGrowth = 4
)

// limited limits the answers of webhooks. The library reads them into memory whole, as long as the timeout lasts, so
// that one webhook could end the process and with it the cluster.
type limited struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := l.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	most := leastAnswer + answerGrowth*max(r.ContentLength, 0)
	answer.Body = limitedBody{http.MaxBytesReader(nil, answer.Body, most)}
	return answer, nil
}

// limitedBody is the body of an answer. Its error names the answer, where that of http.MaxBytesReader names a request.
type limitedBody struct{ io.ReadCloser }

// Read implements io.Reader.
func (b limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if long, ok := errors.AsType[*http.MaxBytesError](err); ok {
		err = fmt.Errorf("the answer is longer than %d bytes", long.Limit)
	}
	return n, err
}
