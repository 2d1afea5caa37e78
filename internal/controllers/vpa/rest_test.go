package vpa

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"carob/internal/controllers/inventory"
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

// A checkpoint that cannot be read, of whatever namespace, does not hide the others. Its names are known, so that it is
// removed with its autoscaler.
func TestUnreadableCheckpoint(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"items": [
			{"metadata": {"namespace": "a", "name": "v-c"}, "spec": {"vpaObjectName": "v", "containerName": "c"},
				"status": {"version": "v3", "cpuHistogram": {"bucketWeights": {"x": -1}}}},
			{"metadata": {"namespace": "b", "name": "w-c"}, "spec": {"vpaObjectName": "w", "containerName": "c"},
				"status": {"version": "v3", "cpuHistogram": {"bucketWeights": {"3": 1}, "totalWeight": 2}}}]}`))
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	got, err := restAPI{client}.checkpoints(t.Context())
	if err != nil || len(got) != 2 {
		t.Fatalf("%v: %+v", err, got)
	}
	if c := got[0]; c.Namespace != "a" || c.Name != "v-c" || c.Spec.VPAObjectName != "v" || c.Status.Version != "" {
		t.Errorf("the unreadable one: %+v", c)
	}
	if c := got[1]; c.Name != "w-c" || c.Status.CPUHistogram.BucketWeights[3] != 1 {
		t.Errorf("the other one: %+v", c)
	}
}

// The name in a targetRef or an owner reference does not lead to an object of another namespace.
func TestScaleOfANameThatIsAPath(t *testing.T) {
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	kind := inventory.Kind{GroupVersionResource: schema.GroupVersionResource{Group: "g", Version: "v1", Resource: "r"}}
	for _, name := range []string{"../../other/r/x", "..", ".", "a/b", "a%2fb"} {
		if _, err := (restAPI{client}).get(t.Context(), kind, "ns", name); err == nil {
			t.Errorf("%q: no error", name)
		}
	}
	if _, err := (restAPI{client}).get(t.Context(), kind, "ns", "x"); err != nil {
		t.Error(err)
	}
	if len(got) != 1 || got[0] != "/apis/g/v1/namespaces/ns/r/x/scale" {
		t.Errorf("requests %q", got)
	}
}
