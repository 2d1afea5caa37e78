package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// The tries of the scheduler for a pod that has no node are in the timeline of one of the nodes; without any, the error
// says what the pod waits for.
func TestTimelineOfPodWithoutNode(t *testing.T) {
	tries := `[{"namespace":"default","pod":"huge","kind":"schedule","detail":"no room"}]`
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch path := r.URL.Path; {
		case strings.HasSuffix(path, "/nodes/b/proxy/timeline/default/huge") && tries != "":
			fmt.Fprint(w, tries)
		case strings.Contains(path, "/proxy/"):
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		case strings.HasSuffix(path, "/nodes"):
			fmt.Fprint(w, `{"kind":"NodeList","apiVersion":"v1",`+
				`"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}`)
		default:
			fmt.Fprint(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"huge"},"status":{"conditions":[`+
				`{"type":"PodScheduled","message":"no room"}]}}`)
		}
	}))
	defer api.Close()
	c, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	entries, err := podEntries(t.Context(), c, "default", "huge", "")
	if err != nil || len(entries) != 1 || entries[0].Detail != "no room" {
		t.Errorf("%+v %v", entries, err)
	}
	tries = ""
	if _, err = podEntries(t.Context(), c, "default", "huge", ""); err == nil ||
		!strings.HasSuffix(err.Error(), "not assigned to a node yet: no room") {
		t.Errorf("without entries: %v", err)
	}
}
