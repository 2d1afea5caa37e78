package inprocess

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/audit"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	restclient "k8s.io/client-go/rest"
)

func client(h http.Handler, user string, groups ...string) *http.Client {
	return &http.Client{Transport: ClientConfig(WithUser(h), user, groups...).Transport}
}

func TestIdentity(t *testing.T) {
	var name string
	var groups []string
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		u, _ := apirequest.UserFrom(r.Context())
		name, groups = u.GetName(), u.GetGroups()
	})
	for _, tc := range []struct {
		user  string
		given []string
		want  string
	}{
		{"system:kube-scheduler", nil, "system:authenticated"},
		{"system:node:n", []string{"system:nodes"}, "system:nodes,system:authenticated"},
		{"system:serviceaccount:kube-system:a", nil,
			"system:serviceaccounts,system:serviceaccounts:kube-system,system:authenticated"},
	} {
		resp, err := client(h, tc.user, tc.given...).Get(host + "/x")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if name != tc.user || strings.Join(groups, ",") != tc.want {
			t.Errorf("%s in %v", name, groups)
		}
	}
}

// The name in the user agent, which the API server stores as field manager, is that of a component: it does not change
// with the name of the executable file.
func TestUserAgent(t *testing.T) {
	for cfg, want := range map[*restclient.Config]string{
		ClientConfig(http.NotFoundHandler(), "u"): "carob/v",
		{UserAgent: UserAgent("kubelet")}:         "kubelet/v",
	} {
		name, _, _ := strings.Cut(restclient.DefaultKubernetesUserAgent(), "/")
		if !strings.HasPrefix(cfg.UserAgent, want) || strings.Contains(cfg.UserAgent, name) {
			t.Errorf("user agent %q", cfg.UserAgent)
		}
	}
}

// A request that the server makes while it handles another one has nothing of this one but its end: the audit event of
// the first request, for instance, is not its event.
func TestRequestsWithinRequests(t *testing.T) {
	type key struct{}
	var inner, outer *http.Client
	ended := make(chan struct{})
	server := genericapifilters.WithAuditInit(WithUser(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		u, _ := apirequest.UserFrom(ctx)
		if r.URL.Path == "/inner" {
			if ctx.Value(key{}) != nil || u.GetName() != "inner" || !Is(ctx) {
				t.Errorf("the inner request has %v of the outer one, user %q", ctx.Value(key{}), u.GetName())
			}
			if err := audit.AuditContextFrom(ctx).Init(audit.RequestAuditConfig{}, nil); err != nil {
				t.Errorf("audit: %v", err)
			}
			<-ctx.Done() // it ends with the outer one
			close(ended)
			return
		}
		if err := audit.AuditContextFrom(ctx).Init(audit.RequestAuditConfig{}, nil); err != nil {
			t.Errorf("audit: %v", err)
		}
		ctx, cancel := context.WithCancel(context.WithValue(ctx, key{}, "a value"))
		time.AfterFunc(time.Millisecond, cancel)
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, host+"/inner", http.NoBody)
		if err != nil {
			t.Error(err)
			return
		}
		if resp, err := inner.Do(q); err == nil {
			resp.Body.Close()
			t.Error("the inner request did not end with the outer one")
		}
	})))
	inner = &http.Client{Transport: ClientConfig(server, "inner").Transport}
	outer = &http.Client{Transport: ClientConfig(server, "outer").Transport}
	resp, err := outer.Get(host + "/outer")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	<-ended
}

// A request without the identity in its context is rejected, whatever its headers say.
func TestNoEntryFromOutside(t *testing.T) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/x", nil)
	r.Header.Set("X-Remote-User", "admin")
	WithUser(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("let in") })).ServeHTTP(w, r)
	if w.Code != http.StatusUnauthorized {
		t.Errorf("status %d", w.Code)
	}
}

func TestBufferedResponse(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("X-A", "b")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(append([]byte(r.Method+" "+r.RequestURI+" "), body...))
	})
	resp, err := client(h, "u").Post(host+"/p?q=1", "text/plain", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || string(got) != "POST /p?q=1 body" || resp.StatusCode != http.StatusCreated ||
		resp.Header.Get("X-A") != "b" {
		t.Errorf("%q, %d, %v, %v", got, resp.StatusCode, resp.Header, err)
	}
}

func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		step, ended := make(chan string), make(chan struct{})
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(ended)
			w.(http.Flusher).Flush()
			for {
				select {
				case s := <-step:
					_, _ = w.Write([]byte(s))
				case <-r.Context().Done():
					return
				}
			}
		})
		resp, err := client(h, "u").Get(host + "/x?watch=true")
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 16)
		for _, want := range []string{"one", "two"} {
			step <- want
			n, err := resp.Body.Read(buf)
			if err != nil || string(buf[:n]) != want {
				t.Errorf("%q, %v", buf[:n], err)
			}
		}
		resp.Body.Close()
		<-ended // closing the body ends the handler
	})
}

func TestStreamEndsWithHandler(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("all")) })
	resp, err := client(h, "u").Get(host + "/x?watch=true")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(resp.Body); err != nil || string(got) != "all" {
		t.Errorf("%q, %v", got, err)
	}
}

// A reader that does not read makes the writer wait instead of filling memory.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written := 0
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for {
				n, err := w.Write(make([]byte, 64<<10))
				written += n
				if err != nil {
					return
				}
			}
		})
		resp, err := client(h, "u").Get(host + "/x?watch=true")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if written > maxBuffered+64<<10+1 {
			t.Errorf("%d bytes wait for the reader", written)
		}
		resp.Body.Close()
	})
}

func TestCancelWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			synctest.Wait()
			cancel()
		}()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, host+"/x?watch=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := client(h, "u").Do(req); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, %v", resp, err)
		}
	})
}

// A long-running request that ends at once has its answer, never the end of its own context.
func TestStreamThatEndsAtOnce(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) })
	var all sync.WaitGroup
	for range 64 { // so many that some handlers end before their caller waits
		all.Go(func() {
			for range 100 {
				resp, err := client(h, "u").Get(host + "/x?watch=true")
				if err != nil || resp.StatusCode != http.StatusGone {
					t.Errorf("%v, %v", resp, err)
					return
				}
				resp.Body.Close()
			}
		})
	}
	all.Wait()
}

func TestUpgradeRefused(t *testing.T) {
	req, err := http.NewRequest(http.MethodPost, host+"/exec", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Upgrade", "websocket")
	if _, err := client(http.NotFoundHandler(), "u").Do(req); !errors.Is(err, errUpgrade) {
		t.Errorf("%v", err)
	}
}
