package external

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/metrics/pkg/apis/external_metrics/v1beta1"

	"carob/internal/base/externalmetrics"
)

// pools is a source with two pools in namespace a.
type pools struct{}

func (pools) Names() []string { return []string{"depth"} }

func (pools) Values(namespace, metric string, match func(map[string]string) bool) ([]externalmetrics.Value, bool) {
	if metric != "depth" {
		return nil, false
	}
	var out []externalmetrics.Value
	for name, v := range map[string]float64{"x": 2.0005, "y": -1} {
		if l := map[string]string{"name": name}; namespace == "a" && match(l) {
			out = append(out, externalmetrics.Value{Labels: l, Value: v, At: time.Unix(1, 0)})
		}
	}
	return out, true
}

type groups map[string]bool

func (g groups) AddGroup(group metav1.APIGroup, _ int32) { g[group.Name] = true }
func (g groups) RemoveGroup(name string)                 { delete(g, name) }

func serve(t *testing.T) (*Server, groups, func(method, path string) (int, string)) {
	t.Helper()
	listed := groups{}
	s := New(Config{Groups: listed, Aggregated: aggregated.NewResourceManager("apis"),
		Next: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "next", http.StatusTeapot)
		})})
	h := genericapifilters.WithRequestInfo(s, &apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("apis")})
	return s, listed, func(method, path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
		return w.Code, w.Body.String()
	}
}

// W8.22, as an autoscaler sees it; values that are not numbers of requests are left out.
func TestValues(t *testing.T) {
	s, _, get := serve(t)
	s.Serve(pools{})
	const at = "/apis/external.metrics.k8s.io/v1beta1"
	code, text := get("GET", at+"/namespaces/a/depth?labelSelector=name%3Dx")
	var list v1beta1.ExternalMetricValueList
	if err := json.Unmarshal([]byte(text), &list); err != nil || code != 200 ||
		list.Kind != "ExternalMetricValueList" || list.APIVersion != "external.metrics.k8s.io/v1beta1" {
		t.Fatalf("%d %s %v", code, text, err)
	}
	if len(list.Items) != 1 || list.Items[0].Value.MilliValue() != 2001 || list.Items[0].MetricName != "depth" ||
		list.Items[0].MetricLabels["name"] != "x" || list.Items[0].Timestamp.Unix() != 1 {
		t.Errorf("%+v", list.Items)
	}
	for path, want := range map[string]int{
		"":                                   200,
		"/namespaces/a/depth":                200,
		"/namespaces/b/depth":                200,
		"/namespaces/a/width":                404,
		"/namespaces/a/depth?labelSelector=": 200,
		"/namespaces/a/depth?labelSelector=a%20b": 400,
		"/depth":                     http.StatusTeapot,
		"/namespaces/a/depth/more":   http.StatusTeapot,
		"/../v1beta2/namespaces/a/b": http.StatusTeapot,
	} {
		if code, text := get("GET", at+path); code != want {
			t.Errorf("%s: %d, want %d: %s", path, code, want, text)
		}
	}
	if code, _ := get("POST", at+"/namespaces/a/depth"); code != http.StatusMethodNotAllowed {
		t.Error(code)
	}
}

// The group is served only with a source. An installed adapter takes it over; when the adapter is removed, carob
// serves the group again.
func TestGiveWay(t *testing.T) {
	s, listed, get := serve(t)
	is := func(what string, want bool) {
		t.Helper()
		code, _ := get("GET", "/apis/external.metrics.k8s.io")
		if (code == 200) != want || listed[Group] != want {
			t.Errorf("%s: %d, listed %t", what, code, listed[Group])
		}
	}
	is("without a source", false)
	s.Serve(pools{})
	is("with a source", true)
	delete(listed, Group) // the adapter's own entry replaces it
	s.GiveWay(true)
	is("with an adapter", false)
	s.Serve(nil)
	s.Serve(pools{})
	is("with an adapter and a new source", false)
	s.GiveWay(false)
	is("without the adapter", true)
	s.Serve(nil)
	is("without a source again", false)
}
