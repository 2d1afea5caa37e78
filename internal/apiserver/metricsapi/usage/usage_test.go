package usage

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// objects are what the API has.
type objects struct {
	pods  []*corev1.Pod
	nodes []*corev1.Node
}

func (o *objects) Get(_ context.Context, r schema.GroupResource, namespace, name string) (runtime.Object, error) {
	for _, p := range o.pods {
		if r.Resource == "pods" && p.Namespace == namespace && p.Name == name {
			return p, nil
		}
	}
	for _, n := range o.nodes {
		if r.Resource == "nodes" && n.Name == name {
			return n, nil
		}
	}
	return nil, apierrors.NewNotFound(r, name)
}

func (o *objects) List(_ context.Context, r schema.GroupResource, namespace string,
	fn func(runtime.Object) bool) error {
	if r.Resource == "nodes" {
		for _, n := range o.nodes {
			fn(n)
		}
		return nil
	}
	for _, p := range o.pods {
		if namespace == "" || p.Namespace == namespace {
			fn(p)
		}
	}
	return nil
}

type groups struct{ listed []string }

func (g *groups) AddGroup(group metav1.APIGroup, _ int32) { g.listed = append(g.listed, group.Name) }

func running(namespace, name, node string, containers ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		Labels: map[string]string{"name": name}}}
	p.UID, p.Spec.NodeName, p.Status.Phase = "u", node, corev1.PodRunning
	for _, c := range containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses,
			corev1.ContainerStatus{Name: c, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
	}
	return p
}

func serve(t *testing.T, o *objects, read func(context.Context, string) (*Summary, error)) (*Server,
	func(path string, accept ...string) (int, string)) {
	t.Helper()
	s, err := New(Config{Reader: o, Sampler: &Sampler{Read: read}, Groups: &groups{},
		Aggregated: aggregated.NewResourceManager("apis"),
		Next: http.HandlerFunc(func(w http.ResponseWriter,
			_ *http.Request) {
			http.Error(w, "next", http.StatusTeapot)
		})})
	if err != nil {
		t.Fatal(err)
	}
	h := genericapifilters.WithRequestInfo(s, &apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("apis")})
	return s, func(path string, accept ...string) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		for _, a := range accept {
			r.Header.Set("Accept", a)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
}

// W8.1–W8.8, as clients see them.
func TestAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{began: time.Now(), at: time.Now(), load: 500_000_000}
		time.Sleep(time.Hour)
		o := &objects{nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n",
			Labels: map[string]string{"zone": "a"}}}, {ObjectMeta: metav1.ObjectMeta{Name: "away"}}}}
		o.pods = []*corev1.Pod{
			running("a", "web", "n", "c"),
			running("a", "half", "n", "c", "unmeasured"),
			running("a", "lost", "away", "c"),
			running("a", "waits", ""),
			running("b", "other", "n", "c"),
		}
		o.pods[3].Status.Phase = corev1.PodPending
		_, get := serve(t, o, func(ctx context.Context, node string) (*Summary, error) {
			if node != "n" {
				return nil, errors.New("away")
			}
			return m.read(ctx, node)
		})
		code, text := get("/apis/metrics.k8s.io/v1beta1/namespaces/a/pods")
		var list metricsv1beta1.PodMetricsList
		if err := json.Unmarshal([]byte(text), &list); err != nil || code != 200 || list.Kind != "PodMetricsList" ||
			len(list.Items) != 1 {
			t.Fatalf("%d %s %v", code, text, err)
		}
		p := list.Items[0]
		if p.Name != "web" || p.Labels["name"] != "web" || p.Window.Duration != time.Second || p.Timestamp.IsZero() ||
			p.Containers[0].Usage.Cpu().MilliValue() != 500 || p.Containers[0].Usage.Memory().Value() != 4096 {
			t.Errorf("%+v", p)
		}
		for path, want := range map[string]int{
			"/apis/metrics.k8s.io/v1beta1/pods":                                                2,
			"/apis/metrics.k8s.io/v1/pods":                                                     2,
			"/apis/metrics.k8s.io/v1beta1/pods?labelSelector=name%3Dother":                     1,
			"/apis/metrics.k8s.io/v1beta1/pods?labelSelector=name%21%3Dother":                  1,
			"/apis/metrics.k8s.io/v1beta1/pods?fieldSelector=metadata.name%3Dweb":              1,
			"/apis/metrics.k8s.io/v1beta1/namespaces/a/pods?fieldSelector=metadata.name=other": 0,
			"/apis/metrics.k8s.io/v1beta1/nodes":                                               1,
			"/apis/metrics.k8s.io/v1beta1/nodes?labelSelector=zone%3Db":                        0,
		} {
			code, text := get(path)
			if n := strings.Count(text, `"window"`); code != 200 || n != want {
				t.Errorf("%s: %d, %d items, want %d: %s", path, code, n, want, text)
			}
		}
		for path, want := range map[string]int{
			"/apis/metrics.k8s.io/v1beta1/namespaces/a/pods/web":                          200,
			"/apis/metrics.k8s.io/v1beta1/namespaces/a/pods/half":                         404, // W8.6
			"/apis/metrics.k8s.io/v1beta1/namespaces/a/pods/lost":                         404, // W8.8
			"/apis/metrics.k8s.io/v1beta1/namespaces/a/pods/none":                         404,
			"/apis/metrics.k8s.io/v1beta1/nodes/n":                                        200,
			"/apis/metrics.k8s.io/v1beta1/nodes/away":                                     404,
			"/apis/metrics.k8s.io/v1beta1/pods?fieldSelector=spec.nodeName%3Dn":           400,
			"/apis/metrics.k8s.io":                                                        200,
			"/apis/metrics.k8s.io/v1beta1":                                                200,
			"/apis/metrics.k8s.io/v1beta1/namespaces/a/pods?watch=1":                      405,
			"/apis/metrics.k8s.io.evil/v1beta1/nodes":                                     http.StatusTeapot,
			"/apis/apps/v1/deployments":                                                   http.StatusTeapot,
			"/apis/metrics.k8s.io/v1beta1/namespaces/a/pods/web?pretty=true&timeout=nope": 200,
		} {
			if code, text := get(path); code != want {
				t.Errorf("%s: %d, want %d: %s", path, code, want, text)
			}
		}
		if _, text := get("/apis/metrics.k8s.io/v1beta1/namespaces/a/pods",
			"application/vnd.kubernetes.protobuf"); !strings.HasPrefix(text, "k8s\x00") {
			t.Errorf("no protobuf: %q", text) // W8.15
		}
		if _, text := get("/apis/metrics.k8s.io/v1beta1/nodes",
			"application/json;as=Table;v=v1;g=meta.k8s.io"); !strings.Contains(text, `"cells":["n","1","4Ki","1s"]`) {
			t.Errorf("no table: %s", text)
		}
	})
}

// An installed metrics server serves the group; when it is removed, carob does again.
func TestGiveWay(t *testing.T) {
	s, get := serve(t, &objects{}, nil)
	group := func() int { code, _ := get("/apis/metrics.k8s.io"); return code }
	if group() != 200 {
		t.Fatal("the group is not served")
	}
	s.GiveWay(true)
	if code := group(); code != http.StatusTeapot {
		t.Errorf("the group of another server: %d", code)
	}
	s.GiveWay(false)
	if listed := s.cfg.Groups.(*groups).listed; group() != 200 || len(listed) != 2 {
		t.Errorf("the group is not ours again: %d, listed %q", group(), listed)
	}
}
