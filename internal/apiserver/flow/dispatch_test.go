package flow

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// request returns a request as it is after authentication.
func request(verb string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil)
	ctx := apirequest.WithRequestInfo(r.Context(),
		&apirequest.RequestInfo{IsResourceRequest: true, Verb: verb, APIVersion: "v1", Resource: "pods"})
	return r.WithContext(apirequest.WithUser(ctx,
		&user.DefaultInfo{Name: "u", Groups: []string{user.AllAuthenticated}}))
}

func lasts(_ *http.Request, info *apirequest.RequestInfo) bool { return info.Verb == "watch" }

// serve starts a request and returns its answer when it ends.
func serve(h http.Handler, r *http.Request) <-chan int {
	out := make(chan int, 1)
	go func() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		out <- w.Code
	}()
	return out
}

// Until the configuration is loaded, the plain limits apply: one request too many is rejected, and
// a long-running one is not counted.
func TestPlainLimitBeforeTheConfigurationIsKnown(t *testing.T) {
	d := New(Config{Reads: 1, Writes: 1, LongRunning: lasts})
	entered, leave := make(chan struct{}), make(chan struct{})
	h := d.Filter(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-leave
	}))
	if d.Active() {
		t.Error("active without a configuration")
	}
	var all []<-chan int
	for _, verb := range []string{"list", "create", "watch", "watch"} {
		all = append(all, serve(h, request(verb)))
		<-entered
	}
	for _, verb := range []string{"get", "update"} {
		if code := <-serve(h, request(verb)); code != http.StatusTooManyRequests {
			t.Errorf("%s: %d", verb, code)
		}
	}
	if r, w := d.executed.reads.Load(), d.executed.writes.Load(); r != 1 || w != 1 {
		t.Errorf("%d reads and %d writes are executed", r, w)
	}
	close(leave)
	for _, c := range all {
		if code := <-c; code != http.StatusOK {
			t.Error(code)
		}
	}
	if d.executed.reads.Load()+d.executed.writes.Load()+d.come.reads.Load()+d.come.writes.Load() != 0 {
		t.Error("requests that ended are counted")
	}
}

// Once the configuration is loaded, only it decides.
func TestConfigurationTakesOver(t *testing.T) {
	d := New(Config{Reads: 1, Writes: 1, LongRunning: lasts})
	h := d.Filter(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the plain limit let it pass") }))
	var sorted http.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if d.come.reads.Load() != 1 || d.executed.reads.Load() != 0 {
			t.Error("a request that waits is not counted as one")
		}
		w.WriteHeader(http.StatusTeapot)
	})
	d.ready.Store(&sorted)
	if code := <-serve(h, request("list")); code != http.StatusTeapot || !d.Active() {
		t.Error(code, d.Active())
	}
}

func TestDebugBeforeTheConfigurationIsKnown(t *testing.T) {
	w := httptest.NewRecorder()
	New(Config{}).Debug(w, httptest.NewRequest(http.MethodGet, DebugPath+"dump_requests", nil))
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "not sorted yet") {
		t.Error(w.Code, w.Body)
	}
}

// A deletion never waits for the dispatcher, and many deletions cause one update.
func TestDeletedNeverWaits(t *testing.T) {
	d := New(Config{})
	for range 3 {
		d.Deleted()
	}
	if len(d.deleted) != 1 {
		t.Errorf("%d reasons", len(d.deleted))
	}
}
