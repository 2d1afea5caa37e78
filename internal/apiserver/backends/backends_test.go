package backends

import (
	"io"
	"net/http"
	"strings"
	"testing"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// answering is a server that answers with a status code.
type answering struct {
	code   int
	closed bool
}

func (a *answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a.code, Body: a}, nil
}

func (a *answering) Read([]byte) (int, error) { return 0, io.EOF }

func (a *answering) Close() error { a.closed = true; return nil }

// Answers that net/http could not send are errors; all others pass. The inner transport can be found.
func TestChecked(t *testing.T) {
	for code, valid := range map[int]bool{-1: false, 0: false, 99: false, 100: true, 200: true, 999: true, 1000: false,
		9999: false} {
		server := &answering{code: code}
		transport := Checked(server)
		res, err := transport.RoundTrip(nil)
		switch {
		case valid && (err != nil || res.StatusCode != code || server.closed):
			t.Errorf("%d: %v, %v, closed: %t", code, res, err, server.closed)
		case !valid && (err == nil || !strings.Contains(err.Error(), "does not exist") || !server.closed):
			t.Errorf("%d: %v, closed: %t", code, err, server.closed)
		}
		if transport.(utilnet.RoundTripperWrapper).WrappedRoundTripper() != http.RoundTripper(server) {
			t.Error("the inner transport is hidden")
		}
	}
}
