package vpa

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"carob/internal/core/workload/vpa"
)

// W9.36: a status is one JSON patch on the status subresource.
func TestStatusIsAPatch(t *testing.T) {
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = append(got, r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type")+" "+string(body))
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	err = restAPI{client}.status(t.Context(), vpa.Name{Namespace: "ns", Name: "v"}, &vpa.Status{})
	want := "PATCH /apis/autoscaling.k8s.io/v1/namespaces/ns/verticalpodautoscalers/v/status " +
		`application/json-patch+json [{"op":"add","path":"/status","value":{}}]`
	if err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("%v: %q, want %q", err, got, want)
	}
}
