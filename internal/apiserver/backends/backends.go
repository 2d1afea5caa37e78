// Package backends checks what servers answer whose answers the API server passes on: aggregated API servers, pods, and
// Services.
package backends

import (
	"fmt"
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Checked returns a transport that fails if an answer has a status code that net/http refuses to send by a panic.
// HTTP/1 has codes below 100, HTTP/2 any number.
func Checked(t http.RoundTripper) http.RoundTripper { return checked{t} }

type checked struct{ http.RoundTripper }

var _ utilnet.RoundTripperWrapper = checked{}

// WrappedRoundTripper implements net.RoundTripperWrapper: upgraded connections use the settings of the inner transport.
func (c checked) WrappedRoundTripper() http.RoundTripper { return c.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (c checked) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := c.RoundTripper.RoundTrip(r)
	if err != nil || res.StatusCode >= 100 && res.StatusCode <= 999 {
		return res, err
	}
	_ = res.Body.Close()
	return nil, fmt.Errorf("the answer has the status code %d, which does not exist", res.StatusCode)
}
