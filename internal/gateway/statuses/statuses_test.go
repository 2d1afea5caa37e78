package statuses

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/gatewayplan"
	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/httproute"
)

// server is an API server as the transport of a client: it records writes, and responds as the test requires.
type server struct {
	mu     sync.Mutex
	writes []string // path of each request
	bodies []string // of each request
	// answer returns the HTTP status of the n-th write, from 1; 0: there is none before the request is cancelled.
	answer func(path string, n int) int
	stored func(path string) metav1.Object // nil: the object is gone
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		if o := s.stored(r.URL.Path); o != nil {
			body, err := json.Marshal(o)
			return respond(r, http.StatusOK, body), err
		}
		return refuse(r, http.StatusNotFound)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.writes, s.bodies = append(s.writes, r.Method+" "+r.URL.Path), append(s.bodies, string(body))
	code := http.StatusOK
	if s.answer != nil {
		code = s.answer(r.URL.Path, len(s.bodies))
	}
	s.mu.Unlock()
	if code == 0 {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if code != http.StatusOK {
		return refuse(r, code)
	}
	return respond(r, code, body), err
}

func refuse(r *http.Request, code int) (*http.Response, error) {
	body, err := json.Marshal(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status: metav1.StatusFailure, Code: int32(code), Reason: reasons[code]})
	return respond(r, code, body), err
}

func respond(r *http.Request, code int, body []byte) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Body: io.NopCloser(bytes.NewReader(body))}
}

var reasons = map[int]metav1.StatusReason{http.StatusConflict: metav1.StatusReasonConflict,
	http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusInternalServerError: metav1.StatusReasonInternalError}

// wrote returns the requests since the last call.
func (s *server) wrote() (paths []string) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	paths, s.writes = s.writes, nil
	return paths
}

// start runs a writer until the test ends.
func start(t *testing.T, s *server, client *fake.Clientset, events record.EventRecorder) *Writer {
	t.Helper()
	w := New(Config{Client: client, REST: &rest.Config{Host: "http://server", Transport: s, QPS: -1}, Events: events,
		Now: time.Now})
	runs(t, w)
	return w
}

// runs runs a writer until the test ends.
func runs(t *testing.T, w *Writer) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

func routes(names ...string) *gatewayplan.World {
	w := &gatewayplan.World{}
	for _, n := range names {
		w.HTTPRoutes = append(w.HTTPRoutes,
			&gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: n}})
	}
	return w
}

// accepted is a plan in which routes have one parent each, with a message.
func accepted(message string, names ...string) *gatewayplan.Plan {
	p := &gatewayplan.Plan{HTTPRoutes: map[gatewayplan.Name][]gatewayv1.RouteParentStatus{}}
	for _, n := range names {
		p.HTTPRoutes[gatewayplan.Name{Namespace: "ns", Name: n}] = []gatewayv1.RouteParentStatus{{
			ControllerName: gatewayplan.GatewayController,
			Conditions:     []metav1.Condition{{Type: "Accepted", Status: "True", Message: message}}}}
	}
	return p
}

const routePath = "PUT /apis/gateway.networking.k8s.io/v1/namespaces/ns/httproutes/%s/status"

func paths(names ...string) (out []string) {
	for _, n := range names {
		out = append(out, fmt.Sprintf(routePath, n))
	}
	return out
}

// Each kind is stored at its own path; a status that is stored already is not written again.
func TestStoresWhatDiffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		w := start(t, s, fake.NewClientset(), nil)
		name := gatewayplan.Name{Namespace: "ns", Name: "x"}
		meta := metav1.ObjectMeta{Namespace: "ns", Name: "x"}
		conditions := []metav1.Condition{{Type: "Accepted", Status: "True"}}
		parents := []gatewayv1.RouteParentStatus{{ControllerName: gatewayplan.GatewayController,
			Conditions: conditions}}
		world := &gatewayplan.World{
			GatewayClasses: []*gatewayv1.GatewayClass{{ObjectMeta: metav1.ObjectMeta{Name: "c"}},
				{ObjectMeta: metav1.ObjectMeta{Name: "of-another-controller"}}},
			Gateways:     []*gatewayv1.Gateway{{ObjectMeta: meta}},
			ListenerSets: []*gatewayv1.ListenerSet{{ObjectMeta: meta}},
			HTTPRoutes:   []*gatewayv1.HTTPRoute{{ObjectMeta: meta}},
			GRPCRoutes:   []*gatewayv1.GRPCRoute{{ObjectMeta: meta}},
			TLSRoutes:    []*gatewayv1.TLSRoute{{ObjectMeta: meta}},
			TCPRoutes:    []*gatewayv1.TCPRoute{{ObjectMeta: meta}},
			UDPRoutes:    []*gatewayv1.UDPRoute{{ObjectMeta: meta}},
			Policies:     []*gatewayv1.BackendTLSPolicy{{ObjectMeta: meta}},
		}
		plan := &gatewayplan.Plan{
			Classes:      map[string][]metav1.Condition{"c": conditions},
			Gateways:     map[gatewayplan.Name]gatewayv1.GatewayStatus{name: {Conditions: conditions}},
			ListenerSets: map[gatewayplan.Name]gatewayv1.ListenerSetStatus{name: {Conditions: conditions}},
			HTTPRoutes:   map[gatewayplan.Name][]gatewayv1.RouteParentStatus{name: parents},
			GRPCRoutes:   map[gatewayplan.Name][]gatewayv1.RouteParentStatus{name: parents},
			TLSRoutes:    map[gatewayplan.Name][]gatewayv1.RouteParentStatus{name: parents},
			TCPRoutes:    map[gatewayplan.Name][]gatewayv1.RouteParentStatus{name: parents},
			UDPRoutes:    map[gatewayplan.Name][]gatewayv1.RouteParentStatus{name: parents},
			Policies: map[gatewayplan.Name][]gatewayv1.PolicyAncestorStatus{name: {{
				ControllerName: gatewayplan.GatewayController, Conditions: conditions}}},
		}
		w.All(world, plan)
		want := []string{"PUT /apis/gateway.networking.k8s.io/v1/gatewayclasses/c/status"}
		for _, kind := range []string{"gateways", "listenersets", "httproutes", "grpcroutes", "tlsroutes",
			"tcproutes", "udproutes", "backendtlspolicies"} {
			want = append(want, "PUT /apis/gateway.networking.k8s.io/v1/namespaces/ns/"+kind+"/x/status")
		}
		if got := s.wrote(); !slices.Equal(got, want) {
			t.Fatalf("wrote\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if len(world.GatewayClasses[0].Status.Conditions) > 0 || len(world.Gateways[0].Status.Conditions) > 0 {
			t.Error("the objects of the watches were changed")
		}
		// The objects come back with what was stored.
		for i, o := range []runtime.Object{world.GatewayClasses[0], world.Gateways[0], world.ListenerSets[0],
			world.HTTPRoutes[0], world.GRPCRoutes[0], world.TLSRoutes[0], world.TCPRoutes[0],
			world.UDPRoutes[0], world.Policies[0]} {
			if err := json.Unmarshal([]byte(s.bodies[i]), o); err != nil {
				t.Fatal(err)
			}
		}
		if w.All(world, plan); len(s.wrote()) > 0 {
			t.Error("statuses that are stored already are written again")
		}
		plan.Classes["c"] = []metav1.Condition{{Type: "Accepted", Status: "False"}}
		if w.All(world, plan); !slices.Equal(s.wrote(), want[:1]) {
			t.Error("a class with another condition is not written")
		}
		world.GatewayClasses[0].Status.Conditions = plan.Classes["c"]
		world.GatewayClasses[0].Status.SupportedFeatures = nil
		if w.All(world, plan); !slices.Equal(s.wrote(), want[:1]) {
			t.Error("a class without features is not written")
		}
	})
}

// A write that fails is repeated after a second, then after twice as long each time, until it succeeds; other objects
// do not wait for it. A conflict with a newer version and an object that is gone are no reason to repeat; a webhook
// that refuses with these codes is.
func TestRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures, refusals := 3, 2
		stored := func(path string) metav1.Object {
			if strings.HasSuffix(path, "/gone") {
				return nil
			}
			o := routes("x").HTTPRoutes[0]
			o.APIVersion, o.Kind = "gateway.networking.k8s.io/v1", "HTTPRoute"
			if strings.HasSuffix(path, "/conflict") {
				o.ResourceVersion = "2"
			}
			return o
		}
		s := &server{stored: stored, answer: func(path string, _ int) int {
			switch {
			case strings.Contains(path, "/refused/") && refusals > 0:
				refusals--
				return []int{http.StatusConflict, http.StatusNotFound}[refusals]
			case strings.Contains(path, "/conflict/"):
				return http.StatusConflict
			case strings.Contains(path, "/gone/"):
				return http.StatusNotFound
			case strings.Contains(path, "/fails/") && failures > 0:
				failures--
				return http.StatusInternalServerError
			}
			return http.StatusOK
		}}
		w := start(t, s, fake.NewClientset(), nil)
		names := []string{"fails", "refused", "conflict", "gone", "works"}
		w.All(routes(names...), accepted("yes", names...))
		if got := s.wrote(); !slices.Equal(got, paths(names...)) {
			t.Fatalf("wrote %q", got)
		}
		for n := range 3 {
			time.Sleep(again.Initial<<n - 1)
			if got := s.wrote(); len(got) > 0 {
				t.Fatalf("%d: repeated too early: %q", n, got)
			}
			time.Sleep(time.Nanosecond)
			want := [][]string{{"fails", "refused"}, {"fails", "refused"}, {"fails"}}[n]
			if got := s.wrote(); !slices.Equal(slices.Sorted(slices.Values(got)), paths(want...)) {
				t.Fatalf("%d: repeated %q", n, got)
			}
		}
		time.Sleep(time.Hour)
		if got := s.wrote(); len(got) > 0 {
			t.Errorf("wrote %q after all is stored", got)
		}
	})
}

// What the API server always refuses is tried once a minute in the end, and a newer status at once; after a success the
// next failure is repeated after a second again.
func TestRefusedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuses := true
		s := &server{answer: func(string, int) int {
			if refuses {
				return http.StatusUnprocessableEntity
			}
			return http.StatusOK
		}}
		w := start(t, s, fake.NewClientset(), nil)
		w.All(routes("a"), accepted("first", "a"))
		time.Sleep(time.Hour)
		if n := len(s.wrote()); n < 60 || n > 70 {
			t.Errorf("tried %d times in an hour", n)
		}
		refuses = false
		newer := func(text string) {
			w.Some(&gatewayplan.Touched{HTTPRoutes: routes("a").HTTPRoutes},
				&gatewayplan.Live{Plan: accepted(text, "a")})
		}
		newer("second")
		if n := len(s.wrote()); n != 1 {
			t.Errorf("a newer status was written %d times", n)
		}
		refuses = true
		newer("third")
		time.Sleep(again.Initial)
		if n := len(s.wrote()); n != 2 {
			t.Errorf("after a success, a failure was tried %d times in a second", n)
		}
	})
}

// What is newer replaces what waits to be repeated, and objects that a later plan does not contain are not written.
func TestNewerStatusReplacesFailedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := true
		s := &server{answer: func(string, int) int {
			if broken {
				return http.StatusInternalServerError
			}
			return http.StatusOK
		}}
		w := start(t, s, fake.NewClientset(), nil)
		w.All(routes("a", "b"), accepted("old", "a", "b"))
		s.wrote()
		broken = false
		w.All(routes("a"), accepted("new", "a"))
		if got := s.wrote(); !slices.Equal(got, paths("a")) || !strings.Contains(s.bodies[len(s.bodies)-1], `"new"`) {
			t.Errorf("wrote %q, last %s", got, s.bodies[len(s.bodies)-1])
		}
		time.Sleep(time.Hour)
		if got := s.wrote(); len(got) > 0 {
			t.Errorf("wrote %q later", got)
		}
	})
}

// A newer status of one object is stored instead of the one that waits to be repeated.
func TestNewestOfOneWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(_ string, n int) int {
			if n == 1 {
				return http.StatusInternalServerError
			}
			return http.StatusOK
		}}
		w := start(t, s, fake.NewClientset(), nil)
		w.All(routes("a"), accepted("old", "a"))
		s.wrote()
		w.Some(&gatewayplan.Touched{HTTPRoutes: routes("a").HTTPRoutes}, &gatewayplan.Live{Plan: accepted("new", "a")})
		s.wrote()
		time.Sleep(time.Hour)
		s.wrote()
		if len(s.bodies) != 2 || !strings.Contains(s.bodies[1], `"new"`) {
			t.Errorf("wrote %q", s.bodies)
		}
	})
}

// A newer status that arrives while the older one is being written, in vain, is the one that is repeated.
func TestNewestWinsDuringWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w *Writer
		s := &server{answer: func(_ string, n int) int {
			if n == 1 {
				w.All(routes("a"), accepted("new", "a"))
				return http.StatusInternalServerError
			}
			return http.StatusOK
		}}
		w = start(t, s, fake.NewClientset(), nil)
		w.All(routes("a"), accepted("old", "a"))
		s.wrote()
		time.Sleep(time.Hour)
		s.wrote()
		if len(s.bodies) != 2 || !strings.Contains(s.bodies[1], `"new"`) {
			t.Errorf("wrote %q", s.bodies)
		}
	})
}

// What is queued twice is written once, and does not keep what follows in the queue from being written; nor does what a
// later plan does not contain.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		w := New(Config{REST: &rest.Config{Host: "http://server", Transport: s, QPS: -1}, Now: time.Now})
		w.All(routes("a", "b", "c"), accepted("old", "a", "b", "c"))
		w.All(routes("b", "c"), accepted("new", "b", "c"))
		for _, of := range []string{"b", "d", "d", "e"} {
			w.Some(&gatewayplan.Touched{HTTPRoutes: routes(of).HTTPRoutes},
				&gatewayplan.Live{Plan: accepted("newest", of)})
		}
		runs(t, w)
		if got := s.wrote(); !slices.Equal(got, paths("b", "c", "d", "e")) {
			t.Errorf("wrote %q", got)
		}
		for i, want := range []string{`"newest"`, `"new"`, `"newest"`, `"newest"`} {
			if !strings.Contains(s.bodies[i], want) {
				t.Errorf("%s: %s", want, s.bodies[i])
			}
		}
	})
}

// Statuses that come all the time do not put the repetition off, and do not bring it forward.
func TestRepeatsMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(path string, _ int) int {
			if strings.Contains(path, "/fails/") {
				return http.StatusInternalServerError
			}
			return http.StatusOK
		}}
		w := start(t, s, fake.NewClientset(), nil)
		w.All(routes("fails"), accepted("yes", "fails"))
		for range 30 {
			time.Sleep(again.Initial / 10)
			w.Some(&gatewayplan.Touched{HTTPRoutes: routes("works").HTTPRoutes},
				&gatewayplan.Live{Plan: accepted("yes", "works")})
		}
		count := map[string]int{}
		for _, path := range s.wrote() {
			count[path]++
		}
		if got := count[paths("fails")[0]]; got != 3 { // at once, after one second, and after three
			t.Errorf("written %d times in %v", got, 3*again.Initial)
		}
		if got := count[paths("works")[0]]; got != 30 {
			t.Errorf("the others were written %d times", got)
		}
	})
}

// A server that never answers does not keep Run from ending: start waits for it when the test ends.
func TestEndsDuringWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(string, int) int { return 0 }}
		start(t, s, fake.NewClientset(), nil).All(routes("a", "b"), accepted("yes", "a", "b"))
		if got := s.wrote(); !slices.Equal(got, paths("a")) {
			t.Errorf("wrote %q", got)
		}
	})
}

// An Ingress of carob's class gets its addresses, and one event for each problem until the problems change. One that
// is no longer served is forgotten. Ingresses of other classes are not touched.
func TestIngresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := record.NewFakeRecorder(10)
		client := fake.NewClientset()
		updates := 0
		client.PrependReactor("update", "ingresses", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetSubresource() != "status" {
				t.Errorf("wrote %s", a.GetSubresource())
			}
			if updates++; updates == 1 {
				return true, nil, errors.New("the server is not there")
			}
			return true, a.(clienttesting.UpdateAction).GetObject(), nil
		})
		w := start(t, &server{}, client, events)
		ingress := func(class string) *networkingv1.Ingress {
			return &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: class, UID: "uid"},
				Spec: networkingv1.IngressSpec{IngressClassName: &class}}
		}
		world := &gatewayplan.World{
			Classes: []*networkingv1.IngressClass{{ObjectMeta: metav1.ObjectMeta{Name: "carob"},
				Spec: networkingv1.IngressClassSpec{Controller: gatewayplan.IngressController}}},
			Ingresses: []*networkingv1.Ingress{ingress("carob"), ingress("other")},
		}
		plan := func(problems ...gatewayplan.Problem) *gatewayplan.Plan {
			return &gatewayplan.Plan{Ingresses: map[gatewayplan.Name]gatewayplan.IngressResult{
				{Namespace: "ns", Name: "carob"}: {Problems: problems,
					Addresses: []networkingv1.IngressLoadBalancerIngress{{IP: "192.0.2.1"}}}}}
		}
		expect := func(what string, wantUpdates int, wantEvents ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for len(events.Events) > 0 {
				got = append(got, <-events.Events)
			}
			if updates != wantUpdates || !slices.Equal(got, wantEvents) {
				t.Errorf("%s: %d updates, want %d; events %q, want %q", what, updates, wantUpdates, got, wantEvents)
			}
		}
		noBackend := gatewayplan.Problem{Reason: "NoBackend", Message: "there is none"}
		w.All(world, plan(noBackend))
		expect("the server fails", 1, "Warning NoBackend there is none")
		time.Sleep(again.Initial)
		expect("repeated", 2)
		world.Ingresses[0].Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: "192.0.2.1"}}
		w.All(world, plan(noBackend))
		expect("stored", 2)
		w.All(world, plan())
		expect("solved", 2)
		w.All(world, plan(noBackend))
		expect("there again", 2, "Warning NoBackend there is none")
		there := world.Ingresses
		world.Ingresses = nil
		w.All(world, plan())
		world.Ingresses = there
		w.All(world, plan(noBackend))
		expect("not served for a while", 2, "Warning NoBackend there is none")
	})
}

// Of the objects of the inference extension, each is stored with the client of its group. One that fails does not keep
// the others from being stored. Objects whose pool does not exist get no conditions.
func TestPools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(_ string, n int) int {
			if n == 1 {
				return http.StatusInternalServerError
			}
			return http.StatusOK
		}}
		w := start(t, s, fake.NewClientset(), nil)
		meta := metav1.ObjectMeta{Namespace: "ns", Name: "x"}
		conditions := map[gatewayplan.Name][]metav1.Condition{{Namespace: "ns", Name: "x"}: {{Type: "Accepted",
			Status: "True"}}}
		parents := []inferenceapi.Parent{{ControllerName: string(gatewayplan.GatewayController),
			Conditions: []metav1.Condition{{Type: "Accepted", Status: "True",
				Message: "yes (" + string(gatewayplan.GatewayController) + ")"}}}}
		world := &gatewayplan.World{Inference: &gatewayplan.Inference{
			Pools: []*inferenceapi.Pool{{ObjectMeta: meta}}, OldPools: []*inferenceapi.OldPool{{ObjectMeta: meta}},
			Models: []*inferenceapi.Model{{ObjectMeta: meta},
				{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "without-pool"}}},
			Objectives: []*inferenceapi.Objective{{ObjectMeta: meta}},
			Rewrites:   []*inferenceapi.Rewrite{{ObjectMeta: meta}},

			RouterObjectives: []*inferenceapi.Objective{{ObjectMeta: meta}},
			RouterRewrites:   []*inferenceapi.Rewrite{{ObjectMeta: meta}}}}
		plan := &gatewayplan.Plan{Models: conditions, Objectives: conditions, Rewrites: conditions,
			RouterObjectives: conditions, RouterRewrites: conditions,
			PoolStatus: map[httproute.Ref][]inferenceapi.Parent{
				{Namespace: "ns", Name: "x", Pool: inferenceapi.Group}:    parents,
				{Namespace: "ns", Name: "x", Pool: inferenceapi.OldGroup}: parents}}
		w.All(world, plan)
		var want []string
		for _, p := range []string{inferenceapi.Group + "/v1|inferencepools", inferenceapi.OldGroup +
			"/v1alpha2|inferencepools", inferenceapi.OldGroup + "/v1alpha2|inferencemodels", inferenceapi.OldGroup +
			"/v1alpha2|inferenceobjectives", inferenceapi.RouterGroup + "/v1alpha2|inferenceobjectives",
			inferenceapi.OldGroup + "/v1alpha2|inferencemodelrewrites",
			inferenceapi.RouterGroup + "/v1alpha2|inferencemodelrewrites"} {
			version, kind, _ := strings.Cut(p, "|")
			want = append(want, "PUT /apis/"+version+"/namespaces/ns/"+kind+"/x/status")
		}
		for _, when := range []string{"first", "repeated"} {
			if got := s.wrote(); !slices.Equal(got, want) {
				t.Errorf("%s: wrote\n%s\nwant\n%s", when, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			time.Sleep(again.Initial)
		}
		// They come back with what was stored. About one without a pool nothing is said, whatever it says itself.
		in := world.Inference
		in.Models[1].Status.Conditions = []metav1.Condition{{Type: "Accepted", Status: "False"}}
		for i, o := range []runtime.Object{in.Pools[0], in.OldPools[0], in.Models[0], in.Objectives[0],
			in.RouterObjectives[0], in.Rewrites[0], in.RouterRewrites[0]} {
			if err := json.Unmarshal([]byte(s.bodies[i]), o); err != nil {
				t.Fatal(err)
			}
		}
		if w.All(world, plan); len(s.wrote()) > 0 {
			t.Error("statuses that are stored already are written again")
		}
	})
}
