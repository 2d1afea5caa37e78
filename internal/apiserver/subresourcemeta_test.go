package apiserver

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A write to /status that names another UID, or a deletion, is refused as upstream refuses it: the client had another
// object in mind.
func TestStatusOfAnotherObject(t *testing.T) {
	r := start(t, t.TempDir())
	r.account(t)
	merge := map[string]string{"Content-Type": "application/merge-patch+json"}
	for _, c := range []struct{ list, body string }{
		{"/apis/networking.k8s.io/v1/servicecidrs",
			`{"metadata":{"name":"a"},"spec":{"cidrs":["10.200.0.0/24"]}}`},
		{"/apis/apps/v1/namespaces/default/deployments", `{"metadata":{"name":"a"},"spec":{"replicas":0,
			"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},
			"spec":{"containers":[{"name":"c","image":"i"}]}}}}`},
		{"/api/v1/namespaces/default/pods", `{"metadata":{"name":"a"},"spec":{
			"automountServiceAccountToken":false,"containers":[{"name":"c","image":"i"}]}}`},
	} {
		if status, text, _ := r.raw(t, "POST", c.list, nil, []byte(c.body)); status != http.StatusCreated {
			t.Fatalf("POST %s: %d %s", c.list, status, text)
		}
		for _, p := range []struct {
			patch   string
			status  []int
			message string
		}{
			{`{"metadata":{"uid":"x"}}`, []int{http.StatusConflict, http.StatusUnprocessableEntity}, "x"},
			{`{"metadata":{"deletionGracePeriodSeconds":7}}`, []int{http.StatusUnprocessableEntity},
				"metadata.deletionGracePeriodSeconds"},
			{`{"metadata":{"resourceVersion":"1"}}`, []int{http.StatusConflict}, "modified"},
		} {
			status, text, _ := r.raw(t, "PATCH", c.list+"/a/status", merge, []byte(p.patch))
			if !slices.Contains(p.status, status) || !strings.Contains(text, p.message) {
				t.Errorf("PATCH %s/a/status %s: %d %s, want %v with %q", c.list, p.patch, status, text, p.status,
					p.message)
			}
		}
	}
	status, text, _ := r.raw(t, "PATCH", "/apis/apps/v1/namespaces/default/deployments/a/status", merge,
		[]byte(`{"metadata":{"deletionTimestamp":"2020-01-01T00:00:00Z"}}`))
	if status != http.StatusUnprocessableEntity || !strings.Contains(text, "metadata.deletionTimestamp") {
		t.Errorf("a deletion by /status: %d %s", status, text)
	}
}

// Server-side apply to ephemeralcontainers and resize records an owner of all that the request contains, as
// upstream's server, which declares no fields that these subresources never change. Of /status it is the status.
func TestOwnersOfPodSubresources(t *testing.T) {
	r := start(t, t.TempDir())
	r.account(t)
	const pod = "/api/v1/namespaces/default/pods"
	if status, text, _ := r.raw(t, "POST", pod, nil, []byte(`{"metadata":{"name":"a"},"spec":{
		"automountServiceAccountToken":false,"containers":[{"name":"c","image":"i"}]}}`)); status != http.StatusCreated {
		t.Fatalf("POST: %d %s", status, text)
	}
	for sub, want := range map[string][]string{
		"status": {"f:status"}, "ephemeralcontainers": {"f:spec", "f:status"}, "resize": {"f:spec", "f:status"},
	} {
		status, text, _ := r.raw(t, "PATCH", pod+"/a/"+sub+"?fieldManager=m&dryRun=All",
			map[string]string{"Content-Type": "application/apply-patch+yaml"}, []byte(`{"apiVersion":"v1","kind":"Pod",
			"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]},
			"status":{"phase":"Pending","qosClass":"BestEffort"}}`))
		var u unstructured.Unstructured
		if err := json.Unmarshal([]byte(text), &u.Object); err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d %s, %v", sub, status, text, err)
		}
		var owned []string
		for _, m := range u.GetManagedFields() {
			if m.Manager == "m" && m.Subresource == sub {
				var fields map[string]any
				if err := json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields); err != nil {
					t.Fatal(err)
				}
				owned = slices.Sorted(maps.Keys(fields))
			}
		}
		if !slices.Equal(owned, want) {
			t.Errorf("%s: owns %v, want %v", sub, owned, want)
		}
	}
}

// Clients of releases before 1.22 (cluster autoscalers, deschedulers, kubectl drain) evict with policy/v1beta1, which
// is served for nothing else. A binding names a node that can exist. The parameter stream of logs is behind a feature
// gate that is off.
func TestRequestsOfPodSubresources(t *testing.T) {
	r := start(t, t.TempDir())
	r.account(t)
	const pod = "/api/v1/namespaces/default/pods"
	if status, text, _ := r.raw(t, "POST", pod, nil, []byte(`{"metadata":{"name":"a"},"spec":{
		"automountServiceAccountToken":false,"containers":[{"name":"c","image":"i"}]}}`)); status != http.StatusCreated {
		t.Fatalf("POST: %d %s", status, text)
	}
	eviction := func(version string) string {
		return `{"apiVersion":"` + version + `","kind":"Eviction","metadata":{"name":"a"},
			"deleteOptions":{"dryRun":["All"]}}`
	}
	bind := func(node string) string {
		return `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"a"},"target":{"kind":"Node","name":"` + node + `"}}`
	}
	for _, c := range []struct {
		method, path, body string
		status             int
		message            string
	}{
		{"POST", pod + "/a/eviction", eviction("policy/v1"), http.StatusCreated, "Success"},
		{"POST", pod + "/a/eviction", eviction("policy/v1beta1"), http.StatusCreated, "Success"},
		{"POST", pod + "/a/eviction", eviction("policy/v1alpha1"), http.StatusBadRequest, "v1alpha1"},
		{"GET", "/apis/policy/v1beta1", "", http.StatusNotFound, ""},
		{"GET", "/apis/policy", "", http.StatusOK, `"versions":[{"groupVersion":"policy/v1","version":"v1"}]`},
		{"POST", pod + "/a/binding", bind("A_B"), http.StatusInternalServerError, "target.name: Invalid value"},
		{"GET", pod + "/a/log?stream=All", "", http.StatusUnprocessableEntity, "may not be specified"},
		{"GET", pod + "/a/log?stream=Stdout&tailLines=1", "", http.StatusUnprocessableEntity, "may not be specified"},
		{"POST", pod + "/a/binding", bind("node-1.example"), http.StatusCreated, "Success"},
	} {
		status, text, _ := r.raw(t, c.method, c.path, nil, []byte(c.body))
		if status != c.status || !strings.Contains(text, c.message) {
			t.Errorf("%s %s %s: %d %s, want %d with %q", c.method, c.path, c.body, status, text, c.status, c.message)
		}
	}
}

// account makes the service account that pods of the namespace default need.
func (r *running) account(t *testing.T) {
	t.Helper()
	if status, text, _ := r.raw(t, "POST", "/api/v1/namespaces/default/serviceaccounts", nil,
		[]byte(`{"metadata":{"name":"default"}}`)); status != http.StatusCreated {
		t.Fatalf("the service account: %d %s", status, text)
	}
}
