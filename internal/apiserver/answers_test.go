package apiserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
)

// testAnswers covers what test/differential found to differ from upstream: which kinds a PUT creates, which
// deletions return the object, what increments the generation, and which warnings are sent, and how often.
func testAnswers(t *testing.T, r *running) {
	var warnings []string
	send := func(verb, path string, body any) (int, map[string]any) {
		t.Helper()
		var answer map[string]any
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		header := map[string]string{"Accept": "application/json", "Content-Type": "application/json"}
		if verb == http.MethodPatch {
			header["Content-Type"] = "application/merge-patch+json"
		}
		code, raw, warned := r.raw(t, verb, path, header, b)
		warnings = warned
		if err := json.NewDecoder(strings.NewReader(raw)).Decode(&answer); err != nil {
			t.Fatalf("%s %s: %d, %v", verb, path, code, err)
		}
		return code, answer
	}
	type object = map[string]any
	template := object{"metadata": object{"labels": object{"a": "b"}},
		"spec": object{"containers": []object{{"name": "a", "image": "b"}}}}
	for _, x := range []struct {
		collection, kind string
		body             object
		put              int    // the answer to a PUT of a name that does not exist
		deleted          string // the kind that a deletion returns
		again            int    // the answer to a PUT without a resource version
	}{
		{"/api/v1/namespaces/default/services", "v1 Service", object{"spec": object{"ports": []object{{"port": 80}}}},
			http.StatusCreated, "Service", http.StatusOK},
		{"/api/v1/namespaces/default/serviceaccounts", "v1 ServiceAccount", nil, http.StatusNotFound, "ServiceAccount",
			http.StatusOK},
		{"/api/v1/namespaces/default/podtemplates", "v1 PodTemplate", object{"template": template}, http.StatusNotFound,
			"PodTemplate", http.StatusOK},
		{"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", "discovery.k8s.io/v1 EndpointSlice",
			object{"addressType": "IPv4", "endpoints": []object{}}, http.StatusNotFound, "Status", http.StatusOK},
		{"/apis/coordination.k8s.io/v1/namespaces/default/leases", "coordination.k8s.io/v1 Lease", nil,
			http.StatusCreated, "Status", http.StatusUnprocessableEntity},
		{"/apis/node.k8s.io/v1/runtimeclasses", "node.k8s.io/v1 RuntimeClass", object{"handler": "x"},
			http.StatusCreated, "Status", http.StatusUnprocessableEntity},
	} {
		version, kind, _ := strings.Cut(x.kind, " ")
		o := object{"apiVersion": version, "kind": kind, "metadata": object{"name": "answers"}}
		maps.Copy(o, x.body)
		at := x.collection + "/answers"
		code, _ := send("PUT", at, o)
		if code != x.put {
			t.Errorf("a PUT of a %s that is not there: %d, want %d", kind, code, x.put)
		}
		if code != http.StatusCreated {
			if code, answer := send("POST", x.collection, o); code != http.StatusCreated {
				t.Errorf("create %s: %d %v", kind, code, answer)
			}
		}
		_, list := send("GET", x.collection, nil)
		for _, item := range list["items"].([]any) {
			if got, ok := item.(object)["kind"]; ok {
				t.Errorf("an item of a %v says its kind %v", list["kind"], got)
			}
		}
		if code, answer := send("PUT", at, o); code != x.again {
			t.Errorf("a PUT of a %s without a resource version: %d %v, want %d", kind, code, answer["message"], x.again)
		}
		if _, gone := send("DELETE", at, object{}); gone["kind"] != x.deleted {
			t.Errorf("the deletion of a %s returns a %v, want %s", kind, gone["kind"], x.deleted)
		}
	}

	const daemons, deployments, jobs = "/apis/apps/v1/namespaces/default/daemonsets",
		"/apis/apps/v1/namespaces/default/deployments", "/apis/batch/v1/namespaces/default/jobs"
	selected := object{"selector": object{"matchLabels": object{"a": "b"}}, "template": template}
	generation := func(o object) string { return fmt.Sprint(o["metadata"].(object)["generation"]) }
	send("POST", deployments, object{"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": object{"name": "counts"}, "spec": selected})
	_, d := send("PATCH", deployments+"/counts", object{"metadata": object{"annotations": object{"a": "b"}}})
	if generation(d) != "2" {
		t.Errorf("generation of a deployment with another annotation: %s, want 2", generation(d))
	}
	if _, d = send("PATCH", deployments+"/counts",
		object{"metadata": object{"labels": object{"a": "b"}}}); generation(d) != "2" {
		t.Errorf("generation of a deployment with another label: %s, want 2", generation(d))
	}
	_, d = send("POST", daemons, object{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": object{"name": "counts"},
		"spec": selected})
	owned := d["metadata"].(object)["managedFields"]
	if !strings.Contains(fmt.Sprint(owned), "f:deprecated.daemonset.template.generation:") {
		t.Errorf("who creates a daemon set does not own the annotation that it gets: %v", owned)
	}
	_, d = send("PATCH", daemons+"/counts",
		object{"metadata": object{"annotations": nil},
			"spec": object{"template": object{"metadata": object{"annotations": object{"x": "y"}}}}})
	if got := d["metadata"].(object)["annotations"]; fmt.Sprint(
		got) != "map[deprecated.daemonset.template.generation:2]" {
		t.Errorf("annotations of a daemon set with its second template: %v", got)
	}
	send("POST", jobs, object{"apiVersion": "batch/v1", "kind": "Job", "metadata": object{"name": "kept"},
		"spec": object{"suspend": true,
			"template": object{"spec": object{"restartPolicy": "Never",
				"containers": []object{{"name": "a", "image": "b"}}}}}})
	// Labels that the template has given to the job get the job's own labels, too; those of the user do not.
	for _, own := range []bool{false, true} {
		job := object{"apiVersion": "batch/v1", "kind": "Job", "metadata": object{"name": "labels"},
			"spec": object{"template": object{"metadata": object{"labels": object{"a": "b"}},
				"spec": object{"restartPolicy": "Never", "containers": []object{{"name": "a", "image": "b"}}}}}}
		if own {
			job["metadata"].(object)["labels"] = object{"a": "b"}
		}
		_, d = send("POST", jobs+"?dryRun=All", job)
		if labels := d["metadata"].(object)["labels"].(object); len(labels) == 1 != own {
			t.Errorf("labels of a job whose user sets them, %t: %v", own, labels)
		}
	}
	send("DELETE", jobs+"/kept", object{})
	if !strings.Contains(strings.Join(warnings, "\n"), "child pods are preserved") {
		t.Errorf("the deletion of a job without a policy warns of %q", warnings)
	}

	send("POST", "/api/v1/namespaces/default/configmaps",
		object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "once"}})
	_, refused := send("PATCH", "/api/v1/namespaces/default/configmaps/once",
		object{"metadata": object{"labels": object{"-a": "b"}}})
	if causes, _ := refused["details"].(object)["causes"].([]any); len(causes) != 1 {
		t.Errorf("one wrong label on an update is said %d times: %v", len(causes), causes)
	}
}
