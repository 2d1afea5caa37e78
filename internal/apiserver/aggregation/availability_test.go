package aggregation

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientset "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/fake"
)

// The result of a check is the reason that users see.
func TestLooks(t *testing.T) {
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "services"}, "s")
	for name, tc := range map[string]struct {
		resolve error
		backend *backend
		reason  string
		message string
	}{
		"it answers":      {nil, &backend{code: 200, body: resources}, "Passed", ""},
		"no such service": {notFound, &backend{}, "ServiceNotFound", `service/s in "ns" is not present`},
		"another port": {errors.New("no service port 443 found"), &backend{}, "ServicePortError",
			"is not listening on port 443"},
		"nobody behind it": {errors.New("no endpoints"), &backend{}, "MissingEndpoints", "have no addresses"},
		"no connection":    {nil, &backend{err: errors.New("refused")}, "FailedDiscoveryCheck", "refused"},
		"an error":         {nil, &backend{code: 500, body: resources}, "FailedDiscoveryCheck", "bad status"},
		"not JSON": {nil, &backend{code: 200, body: "<html>"}, "FailedDiscoveryCheck",
			"not a list of resources"},
		"a redirect": {nil, &backend{code: 302, header: http.Header{"Location": {"https://elsewhere/"}}},
			"FailedDiscoveryCheck", "bad status"},
		"nothing that it serves": {nil, &backend{code: 200, body: `{}`}, "Passed", ""},
		"too many kinds": {nil, &backend{code: 200, body: strings.Repeat(" ", maxKinds-1) + `{}`},
			"FailedDiscoveryCheck", "the answer is longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newServer()
			s.cfg.Resolver = &resolver{tc.resolve}
			change(s, apiService("v1", "g", 1, 1))
			r := put(s, "v1", "g", tc.backend)
			r.check(t.Context())
			st := r.state.Load()
			if st.reason != tc.reason || (st.err == nil) != (tc.reason == "Passed") {
				t.Errorf("%s: %v, want %s", st.reason, st.err, tc.reason)
			}
			if st.err != nil && !strings.Contains(st.err.Error(), tc.message) {
				t.Errorf("%v, want %q", st.err, tc.message)
			}
			if n := len(tc.backend.requests); tc.resolve != nil && n != 0 || tc.resolve == nil && n == 0 {
				t.Errorf("read %d times", n)
			}
		})
	}
}

// A failing server is checked after 1, 2, 4 … s, and at last every half minute; an available one
// every half minute.
func TestNextLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newServer()
		change(s, apiService("v1", "g", 1, 1))
		b := &backend{err: errors.New("away")}
		r := put(s, "v1", "g", b)
		for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
			if r.check(t.Context()); time.Until(r.due) != want*time.Second {
				t.Errorf("next look after %v, want %v s", time.Until(r.due), want)
			}
		}
		b.err, b.code, b.body = nil, http.StatusOK, resources
		if r.check(t.Context()); time.Until(r.due) != healthyPeriod {
			t.Errorf("a healthy one after %v", time.Until(r.due))
		}
		b.err = errors.New("away again")
		if r.check(t.Context()); time.Until(r.due) != failurePeriod {
			t.Errorf("one that fails anew after %v", time.Until(r.due))
		}
	})
}

// The loop of the checks: it checks a new server at once, an available one every half minute, and a
// deleted one never again.
func TestLooksFollowTheAPIServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newServer()
		client := fake.NewSimpleClientset()
		change(s, apiService("v1", "g", 1, 1))
		b := &backend{code: http.StatusOK, body: resources}
		put(s, "v1", "g", b)
		if next := looked(t, s, client); next != healthyPeriod || b.looks() != 1 {
			t.Errorf("next after %v, %d looks", next, b.looks())
		}
		time.Sleep(10 * time.Second)
		change(s, apiService("v2", "g", 1, 1)) // another one wakes the loop early
		other := &backend{err: errors.New("away")}
		put(s, "v2", "g", other)
		if next := looked(t, s, client); next != failurePeriod || b.looks() != 1 || other.looks() != 1 {
			t.Errorf("next after %v, %d and %d looks", next, b.looks(), other.looks())
		}
		s.changed("v2.g", nil)
		if next := looked(t, s, client); next != healthyPeriod-10*time.Second || other.looks() != 1 {
			t.Errorf("next after %v, %d looks at what is gone", next, other.looks())
		}
		s.changed("v1.g", nil)
		if next := looked(t, s, client); next != 0 {
			t.Errorf("next after %v without any", next)
		}
	})
}

// looked starts the checks that are due, and returns the time of the next one after they have ended.
func looked(t *testing.T, s *Server, client clientset.Interface) time.Duration {
	s.look(t.Context(), client)
	synctest.Wait()
	return s.look(t.Context(), client)
}

// hanging is a server that never answers.
type hanging struct{}

func (hanging) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// A server that hangs delays no others: not their next check, nor the first check of one that comes meanwhile. No more
// than maxChecks hang at a time; beyond them, checks begin in the order in which they are due.
func TestHangingServersDelayNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newServer()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		add := func(version string, rt http.RoundTripper) {
			s.mu.Lock() // as change does it, but the server is there before the first look
			r := newRemote(s.cfg, apiService(version, "g", 1, 1), nil)
			st := *r.state.Load()
			st.transport = rt
			r.state.Store(&st)
			s.remotes[r.groupVersion()] = r
			s.mu.Unlock()
			s.signal()
		}
		go func() {
			defer close(ended)
			s.run(ctx, fake.NewSimpleClientset())
		}()
		add("v1", hanging{})
		synctest.Wait()
		late := &backend{code: http.StatusOK, body: resources}
		add("v2", late)
		synctest.Wait()
		if late.looks() != 1 {
			t.Error("a server waits for one that hangs")
		}
		for i := range 3 * maxChecks {
			add(fmt.Sprintf("v%d", i+10), hanging{})
		}
		synctest.Wait()
		if s.running != maxChecks {
			t.Errorf("%d checks at a time", s.running)
		}
		time.Sleep(10 * time.Minute)
		if n := late.looks(); n < 10 {
			t.Errorf("%d looks in ten minutes", n)
		}
		cancel() // in the middle of checks
		<-ended
		if s.running != 0 {
			t.Errorf("%d checks are left", s.running)
		}
	})
}

// A result that comes after its APIService was replaced is discarded.
func TestLateAnswersAreDropped(t *testing.T) {
	s, _ := newServer()
	change(s, apiService("v1", "g", 1, 1))
	old := put(s, "v1", "g", &backend{code: http.StatusOK, body: resources})
	moved := apiService("v1", "g", 1, 1)
	moved.Spec.Service.Name = "elsewhere"
	change(s, moved)
	old.check(t.Context())
	s.publish(old)
	r := s.remotes[schema.GroupVersion{Group: "g", Version: "v1"}]
	if r == old || r.discovery().Freshness != "Stale" {
		t.Errorf("the new one is %+v", r.discovery())
	}
	if text := published(s); strings.Contains(text, "things") {
		t.Errorf("published: %s", text)
	}
	put(s, "v1", "g", &backend{code: http.StatusOK, body: resources}).check(t.Context())
	if s.publish(r); !strings.Contains(published(s), "things") {
		t.Errorf("not published: %s", published(s))
	}
}

// published is the aggregated discovery document.
func published(s *Server) string {
	w, req := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/apis", nil)
	req.Header.Set("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	s.aggregated.ServeHTTP(w, req)
	return w.Body.String()
}
