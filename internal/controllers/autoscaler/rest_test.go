package autoscaler

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/source"
	"carob/internal/core/workload/autoscaler"
)

// server answers requests, by "METHOD PATH?QUERY", with texts as adapters and API servers send them.
type server struct {
	mu       sync.Mutex
	answers  map[string]string
	received []string
	bodies   []string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	what := r.Method + " " + r.URL.Path
	if q := r.URL.Query().Encode(); q != "" {
		what += "?" + q
	}
	s.received = append(s.received, what)
	if body, err := io.ReadAll(r.Body); err == nil && len(body) > 0 {
		s.bodies = append(s.bodies, r.Header.Get("Content-Type")+" "+string(body))
	}
	w.Header().Set("Content-Type", "application/json")
	if text, ok := s.answers[what]; ok {
		fmt.Fprint(w, text)
		return
	}
	w.WriteHeader(http.StatusNotFound)
	fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"the server could not find the `+
		`requested resource","reason":"NotFound","code":404}`)
}

// seen returns the requests since the last call.
func (s *server) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.received
	s.received = nil
	return out
}

func connect(t *testing.T, answers map[string]string) (*server, kubernetes.Interface) {
	t.Helper()
	s := &server{answers: answers}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: web.URL, QPS: -1,
		// The controllers' own client uses protobuf by default.
		ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	return s, client
}

// kinds are the kinds that the API serves, in the version that it prefers.
type kinds map[schema.GroupKind]inventory.Kind

func (k kinds) Preferred(gk schema.GroupKind) (inventory.Kind, bool) {
	kind, ok := k[gk]
	return kind, ok
}

func (k kinds) Synced() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func kindsOf(list ...inventory.Kind) kinds {
	k := kinds{}
	for _, one := range list {
		k[one.GroupVersionKind.GroupKind()] = one
	}
	return k
}

func kind(group, version, name, resource string) inventory.Kind {
	return inventory.Kind{GroupVersionKind: schema.GroupVersionKind{Group: group, Version: version, Kind: name},
		GroupVersionResource: schema.GroupVersionResource{Group: group, Version: version, Resource: resource}}
}

func show(s autoscaler.Sample) string {
	if s.Err != nil {
		return "error: " + s.Err.Error()
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(s.Pods)) {
		p := s.Pods[name]
		parts = append(parts,
			fmt.Sprintf("%s %dm at %s over %s", name, p.Value, p.At.UTC().Format("15:04:05"), p.Window))
	}
	for _, v := range s.Values {
		parts = append(parts, fmt.Sprintf("%dm", v))
	}
	return strings.Join(parts, ", ")
}

const (
	at     = `"timestamp":"2026-01-02T03:04:05Z"`
	group1 = `{"kind":"APIGroup","versions":[{"version":"v1beta1"}]}`
	group2 = `{"kind":"APIGroup","versions":[{"version":"v1beta1"},{"version":"v1beta2"}]}`
)

// The requests to each metrics API, their versions, and the results (W8.20, W8.23, W8.24: thousandths). A pod of which
// one container lacks the resource is not measured (W7.37).
func TestMetricsOverHTTP(t *testing.T) {
	queue := autoscalingv2.MetricIdentifier{Name: "queue", Selector: &metav1.LabelSelector{
		MatchLabels: map[string]string{"q": "a.b"}}}
	external := autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType,
		External: &autoscalingv2.ExternalMetricSource{Metric: queue}}
	ofPods := autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType,
		Pods: &autoscalingv2.PodsMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "hits"}}}
	object := func(apiVersion, kind string) autoscalingv2.MetricSpec {
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType,
			Object: &autoscalingv2.ObjectMetricSource{Metric: queue,
				DescribedObject: autoscalingv2.CrossVersionObjectReference{APIVersion: apiVersion, Kind: kind,
					Name: "main"}}}
	}
	cpu := autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU}}
	container := autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType,
		ContainerResource: &autoscalingv2.ContainerResourceMetricSource{Name: corev1.ResourceCPU, Container: "app"}}
	const (
		pods    = "GET /apis/metrics.k8s.io/v1beta1/namespaces/ns/pods?labelSelector=app%3Dd"
		custom  = "GET /apis/custom.metrics.k8s.io"
		hits    = "/namespaces/ns/pods/*/hits?labelSelector=app%3Dd"
		ingress = "/v1beta2/namespaces/ns/ingresses.networking.k8s.io/main/queue?metricLabelSelector=q%3Da.b"
		far     = "GET /apis/external.metrics.k8s.io/v1beta1/namespaces/ns/queue?labelSelector=q%3Da.b"
		usage   = `{"kind":"PodMetricsList","items":[
			{"metadata":{"name":"a"},` + at + `,"window":"15s","containers":[{"name":"app","usage":{"cpu":"250m"}},
				{"name":"side","usage":{"cpu":"1"}}]},
			{"metadata":{"name":"b"},` + at + `,"window":"15s","containers":[{"name":"side","usage":{"memory":"1Mi"}}]}]}`
	)
	for name, test := range map[string]struct {
		metric  autoscalingv2.MetricSpec
		answers map[string]string
		want    string
	}{
		"resource":  {cpu, map[string]string{pods: usage}, "a 1250m at 03:04:05 over 15s"},
		"container": {container, map[string]string{pods: usage}, "a 250m at 03:04:05 over 15s"},
		"resource, nothing": {cpu, map[string]string{pods: `{"items":[]}`},
			"error: no metrics returned from resource metrics API"},
		"resource, no API": {cpu, nil, "error: unable to fetch metrics from resource metrics API: the server could not " +
			"find the requested resource"},
		"resource, no JSON": {cpu, map[string]string{pods: "<html>"}, "error: unable to fetch metrics from resource " +
			"metrics API: read the answer: invalid character '<' looking for beginning of value"},
		"pods, newer version": {ofPods, map[string]string{custom: group2, custom + "/v1beta2" + hits: `{"items":[
			{"describedObject":{"kind":"Pod","name":"a"},"metric":{"name":"hits"},` + at + `,"windowSeconds":30,"value":"1500m"},
			{"describedObject":{"kind":"Pod","name":"b"},` + at + `,"value":"2k"}]}`},
			"a 1500m at 03:04:05 over 30s, b 2000000m at 03:04:05 over 1m0s"},
		"pods, older version": {ofPods, map[string]string{custom: group1, custom + "/v1beta1" + hits: `{"items":[
			{"describedObject":{"kind":"Pod","name":"a"},"metricName":"hits",` + at + `,"window":10,"value":"3"}]}`},
			"a 3000m at 03:04:05 over 10s"},
		"pods, nothing": {ofPods, map[string]string{custom: group2, custom + "/v1beta2" + hits: `{"items":[]}`},
			"error: no metrics returned from custom metrics API"},
		"pods, no adapter": {ofPods, nil, "error: unable to fetch metrics from custom metrics API: no custom metrics API " +
			"(custom.metrics.k8s.io) registered"},
		"pods, unknown version": {ofPods, map[string]string{custom: `{"versions":[{"version":"v7"}]}`},
			"error: unable to fetch metrics from custom metrics API: no known available metric versions found"},
		"object, in a version that is not served": {object("networking.k8s.io/v1beta1", "Ingress"),
			map[string]string{custom: group2, custom + ingress: `{"items":[{"value":"7"}]}`}, "7000m"},
		"object, two values": {object("networking.k8s.io/v1", "Ingress"),
			map[string]string{custom: group2, custom + ingress: `{"items":[{"value":"7"},{"value":"8"}]}`},
			"7000m, 8000m"}, // the plan rejects them
		"object, unknown kind": {object("example.com/v1", "Herd"), map[string]string{custom: group2},
			`error: unable to fetch metrics from custom metrics API: unable to map kind Herd.example.com to resource: ` +
				`no matches for kind "Herd" in group "example.com"`},
		"the namespace": {object("v1", "Namespace"), map[string]string{custom: group2,
			custom + "/v1beta2/namespaces/ns/metrics/queue?metricLabelSelector=q%3Da.b": `{"items":[{"value":"9"}]}`},
			"9000m"},
		"external": {external, map[string]string{far: `{"items":[{"metricName":"queue","value":"1500m"},{"value":"2"}]}`},
			"1500m, 2000m"},
		"external, nothing": {external, map[string]string{far: `{"items":[]}`},
			"error: no metrics returned from external metrics API"},
		"external, no adapter": {external, nil, "error: unable to fetch metrics from external metrics API: the server " +
			"could not find the requested resource"},
	} {
		s, client := connect(t, test.answers)
		r := restMetrics{func() rest.Interface { return client.CoreV1().RESTClient() },
			kindsOf(kind("networking.k8s.io", "v1", "Ingress", "ingresses"))}
		hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}
		got := show(r.sample(context.Background(), hpa, &test.metric, labels.SelectorFromSet(labels.Set{"app": "d"})))
		if got != test.want {
			t.Errorf("%s: %s, want %s (requests %q)", name, got, test.want, s.seen())
		}
	}
}

// The scale of a target is read and written in the version that the server prefers, independent of the
// version in the autoscaler (W7.11); in JSON, which custom resources support.
func TestScaleOverHTTP(t *testing.T) {
	const deployment = "/apis/apps/v1/namespaces/ns/deployments/d/scale"
	const controller = "/api/v1/namespaces/ns/replicationcontrollers/d/scale"
	const scale = `{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"namespace":"ns","name":"d"},` +
		`"spec":{"replicas":2},"status":{"replicas":2,"selector":"app=d"}}`
	answers := map[string]string{}
	for _, path := range []string{deployment, controller} {
		answers["GET "+path], answers["PUT "+path] = scale, scale
	}
	s, client := connect(t, answers)
	c, err := New(client, record.NewFakeRecorder(10), kindsOf(kind("apps", "v1", "Deployment", "deployments"),
		kind("", "v1", "ReplicationController", "replicationcontrollers")), source.Autoscalers(controllertest.New()),
		source.Pods(controllertest.New()))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ version, kind, path, err string }{
		{"apps/v1", "Deployment", deployment, ""},
		{"apps/v1beta1", "Deployment", deployment, ""},
		{"v1", "ReplicationController", controller, ""},
		{"extensions/v1beta1", "Deployment", "", `no matches for kind "Deployment" in group "extensions"`},
		{"a/b/c", "Deployment", "", "unexpected GroupVersion string: a/b/c"},
	} {
		hpa := newHPA("h")
		hpa.Spec.ScaleTargetRef.APIVersion, hpa.Spec.ScaleTargetRef.Kind = test.version, test.kind
		kind, got, err := c.target(t.Context(), hpa)
		if test.err != "" {
			if err == nil || err.Error() != test.err {
				t.Errorf("%s %s: %v, want %s", test.version, test.kind, err, test.err)
			}
			continue
		}
		if err != nil || got.Spec.Replicas != 2 || got.Status.Selector != "app=d" {
			t.Errorf("%s %s: %+v, %v", test.version, test.kind, got, err)
			continue
		}
		if err := c.rescale(t.Context(), kind, got, 5); err != nil {
			t.Errorf("%s %s: %v", test.version, test.kind, err)
		}
		controllertest.Equal(t, test.version, s.seen(), "GET "+test.path, "PUT "+test.path)
		if body := s.bodies[len(s.bodies)-1]; !strings.HasPrefix(body, "application/json {") ||
			!strings.Contains(body, `"replicas":5`) {
			t.Errorf("%s: body %s", test.version, body)
		}
	}
}
