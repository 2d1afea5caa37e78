package aggregation

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/fake"
)

// groups records its calls, as "+g:v2,v1 100" and "-g".
type groups struct {
	mu    sync.Mutex
	calls []string
}

func (g *groups) AddGroup(group metav1.APIGroup, priority int32) {
	var versions []string
	for _, v := range group.Versions {
		versions = append(versions, v.Version)
	}
	g.record(fmt.Sprintf("+%s:%s %d", group.Name, strings.Join(versions, ","), priority))
}

func (g *groups) RemoveGroup(name string) { g.record("-" + name) }

func (g *groups) record(s string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls = append(g.calls, s)
}

// take returns the calls since the last time.
func (g *groups) take() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer func() { g.calls = nil }()
	return g.calls
}

// resolver resolves each service to at, or fails.
type resolver struct{ err error }

func (r *resolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if r.err != nil {
		return nil, r.err
	}
	return &url.URL{Scheme: "https", Host: fmt.Sprintf("%s.%s:%d", name, namespace, port)}, nil
}

// backend is the server of an APIService, without a network.
type backend struct {
	mu       sync.Mutex
	code     int
	body     string
	header   http.Header
	err      error
	requests []*http.Request
}

func (b *backend) RoundTrip(r *http.Request) (*http.Response, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests = append(b.requests, r)
	if b.err != nil {
		return nil, b.err
	}
	body, code := "{}", http.StatusOK
	if !strings.HasPrefix(r.URL.Path, "/openapi/") {
		body, code = b.body, b.code
	}
	return &http.Response{StatusCode: code, Header: b.header.Clone(), Body: io.NopCloser(strings.NewReader(body)),
		Request: r, ProtoMajor: 1, ProtoMinor: 1}, nil
}

// looks counts the discovery requests to the backend.
func (b *backend) looks() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.requests {
		if strings.HasPrefix(r.URL.Path, "/apis/") {
			n++
		}
	}
	return n
}

const resources = `{"kind":"APIResourceList","groupVersion":"g/v1","resources":[{"name":"things","namespaced":true,"kind":"Thing","verbs":["get"]}]}`

// ownKey is the key of the context of a request that a part of this process makes.
type ownKey struct{}

func newServer() (*Server, *groups) {
	g, known := &groups{}, runtime.NewScheme()
	metav1.AddToGroupVersion(known, schema.GroupVersion{Version: "v1"})
	return New(Config{Resolver: &resolver{}, Groups: g, Aggregated: aggregated.NewResourceManager("apis"),
		Serializer: serializer.NewCodecFactory(known),
		FrontProxy: func() (*tls.Certificate, error) { return &tls.Certificate{}, nil },
		Lasts:      func(r *http.Request) bool { return strings.Contains(r.URL.RawQuery, "watch=") },
		Own:        func(ctx context.Context) bool { return ctx.Value(ownKey{}) != nil }, Timeout: time.Minute,
		Next: http.HandlerFunc(func(w http.ResponseWriter,
			_ *http.Request) {
			w.WriteHeader(http.StatusTeapot)
		})}), g
}

func apiService(version, group string, groupPriority, versionPriority int32) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: version + "." + group},
		Spec: apiregistrationv1.APIServiceSpec{Group: group, Version: version,
			GroupPriorityMinimum: groupPriority, VersionPriority: versionPriority,
			Service: &apiregistrationv1.ServiceReference{Namespace: "ns", Name: "s"}}}
}

// change passes an update of an APIService to s, as the store does.
func change(s *Server, o *apiregistrationv1.APIService) { s.changed(o.Name, o) }

// put makes b the server of an APIService.
func put(s *Server, version, group string, b *backend) *remote {
	r := s.remotes[schema.GroupVersion{Group: group, Version: version}]
	st := *r.state.Load()
	st.transport = b
	r.state.Store(&st)
	return r
}

// The list of groups follows the APIServices: versions by priority, then in Kubernetes' order, the
// group by the highest priority of its versions.
func TestGroupsFollowAPIServices(t *testing.T) {
	s, g := newServer()
	for _, step := range []struct {
		name  string
		do    func()
		calls []string
	}{
		{"first version", func() { change(s, apiService("v1beta1", "g", 100, 10)) }, []string{"+g:v1beta1 100"}},
		{"a newer one of the same priority", func() { change(s, apiService("v1", "g", 50, 10)) },
			[]string{"+g:v1,v1beta1 100"}},
		{"an older one of a greater priority", func() { change(s, apiService("v1alpha1", "g", 300, 20)) },
			[]string{"+g:v1alpha1,v1,v1beta1 300"}},
		{"the same again", func() { change(s, apiService("v1", "g", 50, 10)) }, nil},
		{"another priority", func() { change(s, apiService("v1", "g", 50, 30)) },
			[]string{"+g:v1,v1alpha1,v1beta1 300"}},
		{"one becomes the server's own", func() {
			o := apiService("v1alpha1", "g", 300, 20)
			o.Spec.Service = nil
			change(s, o)
		}, []string{"+g:v1,v1beta1 100"}},
		{"one is deleted", func() { s.changed("v1.g", nil) }, []string{"+g:v1beta1 100"}},
		{"it is deleted twice", func() { s.changed("v1.g", nil) }, nil},
		{"one that was never added is deleted", func() { s.changed("v1.other", nil) }, nil},
		{"the last is deleted", func() { s.changed("v1beta1.g", nil) }, []string{"-g"}},
	} {
		step.do()
		if calls := g.take(); !slices.Equal(calls, step.calls) {
			t.Errorf("%s: calls %q, want %q", step.name, calls, step.calls)
		}
	}
}

// Requests at the same time report their changes in any order: the newest counts, also if it is a deletion.
func TestChangesInAnyOrder(t *testing.T) {
	at := func(version string, priority int32) *apiregistrationv1.APIService {
		o := apiService("v1", "g", priority, 1)
		o.ResourceVersion = version
		return o
	}
	for _, test := range []struct {
		name  string
		do    func(s *Server)
		calls []string
	}{
		{"in order", func(s *Server) { s.Written(at("9", 1), true); s.Written(at("10", 2), true) },
			[]string{"+g:v1 1", "+g:v1 2"}},
		{"an update is late", func(s *Server) { s.Written(at("10", 2), true); s.Written(at("9", 1), true) },
			[]string{"+g:v1 2"}},
		{"twice", func(s *Server) { s.Written(at("10", 2), true); s.Written(at("10", 2), true) }, []string{"+g:v1 2"}},
		{"deleted", func(s *Server) { s.Written(at("9", 1), true); s.Written(at("10", 1), false) },
			[]string{"+g:v1 1", "-g"}},
		{"deleted, as it was", func(s *Server) { s.Written(at("9", 1), true); s.Written(at("9", 1), false) },
			[]string{"+g:v1 1", "-g"}},
		{"an update is reported after the deletion", func(s *Server) {
			s.Written(at("8", 1), true)
			s.Written(at("10", 1), false)
			s.Written(at("9", 2), true)
		}, []string{"+g:v1 1", "-g"}},
		{"a deletion is reported after the next creation", func(s *Server) {
			s.Written(at("9", 1), true)
			s.Written(at("11", 2), true)
			s.Written(at("10", 1), false)
		}, []string{"+g:v1 1", "+g:v1 2"}},
	} {
		s, g := newServer()
		if test.do(s); !slices.Equal(g.take(), test.calls) {
			t.Errorf("%s: want the calls %q", test.name, test.calls)
		}
	}
}

// The callback Taken is called when other servers start and stop serving a group.
func TestTakenGroups(t *testing.T) {
	s, _ := newServer()
	taken := map[string]bool{}
	s.cfg.Taken = func(group string, is bool) { taken[group] = is }
	change(s, apiService("v1", "g", 1, 1))
	change(s, apiService("v2", "g", 1, 1))
	if s.changed("v1.g", nil); !taken["g"] {
		t.Error("a version is left, and the group is free")
	}
	if s.changed("v2.g", nil); taken["g"] {
		t.Error("no version is left, and the group is taken")
	}
}

// Until the first check of a changed APIService, clients are served as before the change; those of another server or
// another trust by new connections. What was never available, or is not according to its status, is not served.
func TestAvailableDuringAChange(t *testing.T) {
	serves := func(s *Server) bool {
		st := s.remotes[schema.GroupVersion{Group: "g", Version: "v1"}].state.Load()
		return st.err == nil && st.transport != nil
	}
	kept := func(s *Server, b *backend) bool {
		return s.remotes[schema.GroupVersion{Group: "g", Version: "v1"}].state.Load().transport == http.RoundTripper(b)
	}
	for _, step := range []struct {
		name         string
		change       func(o *apiregistrationv1.APIService)
		keepsClients bool
	}{
		{"a priority", func(o *apiregistrationv1.APIService) { o.Spec.VersionPriority++ }, true},
		{"the service", func(o *apiregistrationv1.APIService) { o.Spec.Service.Name = "other" }, false},
		{"trust", func(o *apiregistrationv1.APIService) { o.Spec.InsecureSkipTLSVerify = true }, false},
	} {
		s, _ := newServer()
		o, b := apiService("v1", "g", 1, 1), &backend{code: http.StatusOK, body: resources}
		change(s, o)
		if serves(s) {
			t.Errorf("%s: a new one is served before it was checked", step.name)
		}
		put(s, "v1", "g", b).check(t.Context())
		step.change(o)
		change(s, o)
		if !serves(s) || kept(s, b) != step.keepsClients {
			t.Errorf("%s changed: served: %t, connections kept: %t; want true, %t", step.name, serves(s), kept(s, b),
				step.keepsClients)
		}
	}
	for _, status := range []apiregistrationv1.ConditionStatus{apiregistrationv1.ConditionTrue,
		apiregistrationv1.ConditionFalse, apiregistrationv1.ConditionUnknown} {
		s, _ := newServer()
		o := apiService("v1", "g", 1, 1)
		o.Status.Conditions = []apiregistrationv1.APIServiceCondition{
			{Type: apiregistrationv1.Available, Status: status}}
		if change(s, o); serves(s) != (status == apiregistrationv1.ConditionTrue) {
			t.Errorf("after a restart, Available is %s: served: %t", status, serves(s))
		}
	}
	s, _ := newServer()
	o := apiService("v1", "g", 1, 1)
	o.Spec.CABundle = []byte("no certificate")
	o.Status.Conditions = []apiregistrationv1.APIServiceCondition{
		{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue}}
	if change(s, o); serves(s) {
		t.Error("without a certificate to trust, it is served")
	}
}

// A request goes to the server of its group and version, all others to the next handler.
func TestRequestsGoToTheirServer(t *testing.T) {
	s, _ := newServer()
	get := func(path string) int {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code
	}
	if code := get("/apis/g/v1/things"); code != http.StatusTeapot {
		t.Errorf("without any: %d", code)
	}
	change(s, apiService("v1", "g", 1, 1))
	for path, want := range map[string]int{
		"/apis/g":               http.StatusOK, // its versions, from the APIServices
		"/apis/g/v1":            http.StatusServiceUnavailable,
		"/apis/g/v1/things":     http.StatusServiceUnavailable,
		"/apis/g/v2":            http.StatusTeapot,
		"/apis/other":           http.StatusTeapot,
		"/apis/other/v1/things": http.StatusTeapot,
		"/apis":                 http.StatusTeapot,
	} {
		if code := get(path); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
}

// Until its first check, also after a restart, the version of an APIService is listed as one whose kinds are unknown:
// without it, the deletion of a namespace would end without their objects. A change keeps what is known.
func TestVersionsAreListedBeforeTheirCheck(t *testing.T) {
	for _, available := range []apiregistrationv1.ConditionStatus{apiregistrationv1.ConditionTrue,
		apiregistrationv1.ConditionFalse} {
		s, _ := newServer()
		o := apiService("v1", "g", 1, 1)
		o.Status.Conditions = []apiregistrationv1.APIServiceCondition{
			{Type: apiregistrationv1.Available, Status: available}}
		change(s, o)
		if text := published(s); !strings.Contains(text, `"freshness":"Stale"`) {
			t.Errorf("available %s: %s", available, text)
		}
		r := put(s, "v1", "g", &backend{code: http.StatusOK, body: resources})
		r.check(t.Context())
		s.publish(r)
		o.Spec.VersionPriority++
		if change(s, o); !strings.Contains(published(s), "things") {
			t.Errorf("after a change: %s", published(s))
		}
		if s.changed("v1.g", nil); strings.Contains(published(s), `"v1"`) {
			t.Errorf("after the deletion: %s", published(s))
		}
	}
}

// endless is a server that never answers, or whose answers never end.
type endless struct{ answers bool }

func (e endless) RoundTrip(r *http.Request) (*http.Response, error) {
	if !e.answers {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(spaces{}), Request: r, ProtoMajor: 1,
		ProtoMinor: 1}, nil
}

type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// Requests of parts of this process, which set no time limit and hold the answer in memory, end with an error when a
// server does not answer, or does not stop. Only a watch may last.
func TestOwnRequestsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tc := range map[string]struct {
			server http.RoundTripper
			want   string
		}{
			"no answer":      {endless{}, "the server of APIService v1.g has not answered in time"},
			"no end":         {endless{answers: true}, "the answer is longer than"},
			"a strange code": {&backend{code: 0}, "status code 0"},
		} {
			s, _ := newServer()
			change(s, apiService("v1", "g", 1, 1))
			r := s.remotes[schema.GroupVersion{Group: "g", Version: "v1"}]
			r.state.Store(&state{transport: tc.server})
			ctx := context.WithValue(apirequest.WithUser(apirequest.WithRequestInfo(t.Context(),
				&apirequest.RequestInfo{}), &user.DefaultInfo{Name: "u"}), ownKey{}, true)
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/apis/g/v1/things", nil).WithContext(ctx))
			var status metav1.Status
			if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil || w.Code != http.StatusServiceUnavailable ||
				!strings.Contains(status.Message, tc.want) {
				t.Errorf("%s: %d %s, %v", name, w.Code, w.Body, err)
			}
			if name != "no answer" {
				continue
			}
			watches, cancel := context.WithTimeout(ctx, time.Hour)
			begun := time.Now()
			s.ServeHTTP(httptest.NewRecorder(),
				httptest.NewRequest(http.MethodGet, "/apis/g/v1/things?watch=1", nil).WithContext(watches))
			if cancel(); time.Since(begun) != time.Hour {
				t.Errorf("a watch ended after %v", time.Since(begun))
			}
		}
	})
}

// The condition Available is written when it changed, with the time of its transition, and only for
// the APIService that was checked.
func TestReport(t *testing.T) {
	condition := func(status apiregistrationv1.ConditionStatus, reason,
		message string) apiregistrationv1.APIServiceCondition {
		return apiregistrationv1.APIServiceCondition{Type: apiregistrationv1.Available, Status: status, Reason: reason,
			Message: message, LastTransitionTime: metav1.Unix(1000, 0)}
	}
	for name, tc := range map[string]struct {
		stored *apiregistrationv1.APIServiceCondition
		moved  bool // the stored one names another service
		err    error
		writes int
		keeps  bool // the time of the transition
	}{
		"first":     {nil, false, nil, 1, false},
		"as it was": {new(condition("True", "Passed", "all checks passed")), false, nil, 0, true},
		"it fails now": {new(condition("True", "Passed", "all checks passed")), false, errors.New("away"), 1,
			false},
		"it fails in another way": {new(condition("False", "MissingEndpoints", "none")), false, errors.New("away"), 1,
			true},
		"replaced meanwhile": {nil, true, nil, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newServer()
			o := apiService("v1", "g", 1, 1)
			change(s, o)
			if tc.stored != nil {
				o.Status.Conditions = []apiregistrationv1.APIServiceCondition{*tc.stored}
			}
			if tc.moved {
				o.Spec.Service.Name = "elsewhere"
			}
			client := fake.NewSimpleClientset(o)
			r := s.remotes[schema.GroupVersion{Group: "g", Version: "v1"}]
			st := &state{reason: "Passed", err: tc.err}
			if tc.err != nil {
				st.reason = "FailedDiscoveryCheck"
			}
			r.state.Store(st)
			if err := r.report(t.Context(), client); err != nil {
				t.Fatal(err)
			}
			writes := 0
			for _, a := range client.Actions() {
				if a.GetVerb() == "update" && a.GetSubresource() == "status" {
					writes++
				}
			}
			got, err := client.ApiregistrationV1().APIServices().Get(t.Context(), o.Name, metav1.GetOptions{})
			if err != nil || writes != tc.writes {
				t.Fatalf("%v, %d writes, want %d", err, writes, tc.writes)
			}
			if len(got.Status.Conditions) > 0 &&
				got.Status.Conditions[0].LastTransitionTime.Equal(new(metav1.Unix(1000, 0))) != tc.keeps {
				t.Errorf("since %v", got.Status.Conditions[0].LastTransitionTime)
			}
		})
	}
	s, _ := newServer()
	change(s, apiService("v1", "g", 1, 1))
	if err := s.remotes[schema.GroupVersion{Group: "g", Version: "v1"}].report(t.Context(),
		fake.NewSimpleClientset()); err != nil {
		t.Errorf("deleted meanwhile: %v", err)
	}
}

// pass sends a request through a server that answers.
func pass(t *testing.T, b *backend, who user.Info, header http.Header) *httptest.ResponseRecorder {
	t.Helper()
	return passTo(t, b, who, header, "/apis/g/v1/things?watch=1")
}

func passTo(t *testing.T, b *backend, who user.Info, header http.Header, target string) *httptest.ResponseRecorder {
	t.Helper()
	s, _ := newServer()
	change(s, apiService("v1", "g", 1, 1))
	r := put(s, "v1", "g", b)
	st := *r.state.Load()
	st.err = nil
	r.state.Store(&st)
	req := httptest.NewRequest(http.MethodGet, target, nil)
	req.Header = header
	ctx := req.Context()
	if who != nil {
		ctx = apirequest.WithUser(ctx, who)
	}
	ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{})
	w := httptest.NewRecorder()
	s.ServeHTTP(w, req.WithContext(ctx))
	return w
}

// Identity headers from a client are ignored: the aggregated server gets the user whom this one has
// authenticated.
func TestClientsCannotNameThemselves(t *testing.T) {
	b := &backend{code: http.StatusOK, body: "{}"}
	w := pass(t, b, &user.DefaultInfo{Name: "eve", UID: "7", Groups: []string{"guests"},
		Extra: map[string][]string{"from": {"here"}}}, http.Header{
		"X-Remote-User": {"system:admin"}, "X-Remote-Group": {"system:masters"}, "X-Remote-Uid": {"0"},
		"X-Remote-Extra-Scopes": {"all"},
	})
	if w.Code != http.StatusOK || len(b.requests) != 1 {
		t.Fatal(w.Code, w.Body)
	}
	r := b.requests[0]
	if r.URL.String() != "https://s.ns:443/apis/g/v1/things?watch=1" {
		t.Error(r.URL)
	}
	got := map[string][]string{}
	for k, v := range r.Header {
		if k = strings.ToLower(k); strings.HasPrefix(k, "x-remote-") {
			got[k] = v
		}
	}
	want := map[string][]string{"x-remote-user": {"eve"}, "x-remote-group": {"guests"}, "x-remote-uid": {"7"},
		"x-remote-extra-from": {"here"}}
	for k := range got {
		if !slices.Equal(got[k], want[k]) {
			t.Errorf("%s: %q, want %q", k, got[k], want[k])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Queries that are invalid as a part of a URL are passed on as they are.
func TestHostileQueries(t *testing.T) {
	for _, query := range []string{"a#%zz", "a#b", "%zz", "a=%00;&&", "watch=1"} {
		b := &backend{code: http.StatusOK, body: "{}"}
		w := passTo(t, b, &user.DefaultInfo{Name: "u"}, http.Header{}, "/apis/g/v1/things?"+query)
		if w.Code != http.StatusOK || len(b.requests) != 1 || b.requests[0].URL.RawQuery != query {
			t.Errorf("%q: %d %v", query, w.Code, b.requests)
		}
	}
}

// Requests that cannot be proxied are rejected.
func TestRefusedRequests(t *testing.T) {
	if w := pass(t, &backend{}, nil, nil); w.Code != http.StatusInternalServerError {
		t.Errorf("without a user: %d", w.Code)
	}
	if w := pass(t, &backend{err: errors.New("away")}, &user.DefaultInfo{Name: "u"},
		nil); w.Code != http.StatusServiceUnavailable {
		t.Errorf("no connection: %d", w.Code)
	}
	// A redirect would send the client, with its credential, to an address of the aggregated
	// server's choice.
	elsewhere := &backend{code: http.StatusFound, header: http.Header{"Location": {"https://elsewhere/"}}}
	if w := pass(t, elsewhere, &user.DefaultInfo{Name: "u"}, nil); w.Code == http.StatusFound ||
		w.Header().Get("Location") != "" {
		t.Errorf("redirected: %d %v", w.Code, w.Header())
	}
}

// A request for OpenAPI documents gets those of the available servers.
func TestDocumentsOfServersThatAnswer(t *testing.T) {
	s, _ := newServer()
	for _, v := range []string{"v1", "v2", "v3"} {
		change(s, apiService(v, "g", 1, 1))
	}
	set := func(version string, st state) {
		s.remotes[schema.GroupVersion{Group: "g", Version: version}].state.Store(&st)
	}
	set("v1", state{v2: []byte("{}"), v2Tag: `"a"`, v3: map[string]string{"apis/g/v1": "/openapi/v3/apis/g/v1?hash=H"}})
	set("v2", state{v2: []byte("{}"), v2Tag: `"a"`}) // the same server, the same document
	set("v3", state{v2: []byte("{}"), v2Tag: `"b"`, err: errors.New("away")})
	if docs := s.V2(); len(docs) != 1 || !strings.HasPrefix(docs[0].Hash, "a") {
		t.Errorf("%+v", docs)
	}
	other := apiService("v4", "g", 1, 1)
	other.Spec.Service.Name = "other"
	change(s, other)
	set("v4", state{v2: []byte("[]"), v2Tag: `"a"`}) // another server with the same tag
	if docs := s.V2(); len(docs) != 2 {
		t.Errorf("%+v", docs)
	}
	if docs := s.V3(); len(docs) != 1 || docs["apis/g/v1"].Hash != "H" {
		t.Errorf("%+v", docs)
	}
}

// Run ends with its context, also if it was never woken.
func TestLoopThatIsNeverWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newServer()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.run(ctx, fake.NewSimpleClientset())
		}()
		time.Sleep(time.Hour)
		b := &backend{code: http.StatusOK, body: resources}
		s.mu.Lock() // as change does it, but the backend is there before the first look
		s.remotes[schema.GroupVersion{Group: "g", Version: "v1"}] = newRemote(s.cfg, apiService("v1", "g", 1, 1), nil)
		put(s, "v1", "g", b)
		s.mu.Unlock()
		s.signal()
		time.Sleep(10 * time.Minute)
		if n := b.looks(); n < 20 || n > 21 {
			t.Errorf("%d looks in ten minutes", n)
		}
		s.changed("v1.g", nil)
		synctest.Wait() // a look may have begun at the same moment
		before := b.looks()
		time.Sleep(time.Hour)
		if b.looks() != before {
			t.Error("it looks at what is gone")
		}
		cancel()
		<-ended
	})
}
