package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// standaloneClient is the client of an agent without an API server (S14.1): each request returns NotFound, since
// nothing exists, and never blocks.
func standaloneClient() (kubernetes.Interface, error) {
	c, err := kubernetes.NewForConfig(&rest.Config{Host: "http://standalone.invalid", Transport: nothing{}, QPS: -1})
	if err != nil {
		return nil, fmt.Errorf("client of no API server: %w", err)
	}
	return c, nil
}

// nothing is an HTTP transport that returns NotFound for each request.
type nothing struct{}

// RoundTrip implements http.RoundTripper.
func (nothing) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
	text, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
		Message: "standalone mode, no API client: " + req.Method + " " + req.URL.Path,
	})
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: http.StatusNotFound, Status: "404 Not Found", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text)),
		ContentLength: int64(len(text)), Request: req,
	}, nil
}
