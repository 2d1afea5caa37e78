package gateway

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"carob/internal/base/testwait"
)

// ROUTES is how many Ingresses there are (2,000 without it), each with a host of its own: all are served, a plan of all
// makes no request wait or fail, and each takes a bounded amount of memory.
func TestManyRoutes(t *testing.T) {
	n := 2000
	if more, err := strconv.Atoi(os.Getenv("ROUTES")); err == nil {
		n = more
	}
	l := newLab(t)
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	l.ingress("first.example.com", nil, "/=a")
	l.update()
	memory := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	host := func(i int) string { return fmt.Sprintf("h%d.example.com", i) }
	for i := range n {
		l.ingress(host(i), nil, "/=a", "/none=missing")
	}
	var served atomic.Int64
	stop := make(chan struct{})
	var client sync.WaitGroup
	client.Go(func() {
		tr := &http.Transport{}
		defer tr.CloseIdleConnections()
		for {
			select {
			case <-stop:
				return
			default:
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.http+"/", nil)
			if err != nil {
				t.Error(err)
				return
			}
			r.Host = "first.example.com"
			res, err := tr.RoundTrip(r)
			if err != nil {
				t.Errorf("while all are planned: %v", err)
				return
			}
			_, err = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			if res.StatusCode != http.StatusOK || err != nil {
				t.Errorf("while all are planned: %s %v", res.Status, err)
				return
			}
			served.Add(1)
		}
	})
	testwait.For(t, "a request", func() bool { return t.Failed() || served.Load() > 0 })
	before := memory()
	l.update()
	each := int64(memory()-before) / int64(n)
	during := served.Load()
	testwait.For(t, "a request after the plan", func() bool { return t.Failed() || served.Load() > during+1 })
	close(stop)
	client.Wait()
	t.Logf("%d bytes for each of %d routes, %d requests", each, n, during)
	if each > 16<<10 {
		t.Errorf("a route takes %d bytes", each)
	}
	for _, i := range []int{0, n / 2, n - 1} {
		status, text, _ := l.get("GET", host(i), "/", nil)
		want(t, host(i), status, text, 200, "a GET")
		status, text, _ = l.get("GET", host(i), "/none", nil)
		want(t, "a Service that is not there", status, text, 500)
	}
	status, text, _ := l.get("GET", host(n), "/", nil)
	want(t, "no route", status, text, 404)
	late := l.ingress(host(n), nil, "/=a")
	l.change(map[string]*networkingv1.Ingress{late.Name: late})
	status, text, _ = l.get("GET", host(n), "/", nil)
	want(t, "one more", status, text, 200, "a GET")
}

// Of two Ingresses, or two rules, with the same host and path the older one is served, in whatever order they come.
func TestConflictingRoutes(t *testing.T) {
	l := newLab(t)
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	l.service("b", "", at(echo(t, "b").URL, "pb"))
	young, old := l.ingress("x.example.com", nil, "/=a"), l.ingress("x.example.com", nil, "/=b", "/more=b")
	old.CreationTimestamp.Time = old.CreationTimestamp.AddDate(2000, 0, 0)
	young.CreationTimestamp.Time = old.CreationTimestamp.AddDate(0, 0, 1)
	l.update()
	get := func(what, path, part string) {
		t.Helper()
		status, text, _ := l.get("GET", "x.example.com", path, nil)
		want(t, what, status, text, 200, part)
	}
	get("the older", "/", "b GET")
	l.change(map[string]*networkingv1.Ingress{old.Name: nil})
	get("the older has gone", "/", "a GET")
	l.change(map[string]*networkingv1.Ingress{old.Name: old})
	get("it comes back", "/", "b GET")
	get("without a conflict", "/more", "b GET")
}
