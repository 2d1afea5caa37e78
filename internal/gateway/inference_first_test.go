package gateway

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/httproute"
	"carob/internal/core/routing"
)

// dying answers metrics, and of other requests only the header and some text.
func dying(text string, died *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			answering(w, r)
			return
		}
		_, _ = io.ReadAll(r.Body)
		died.Add(1)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// A server that streams sends the header before it computes the prompt. If it ends then, another one gets the request,
// once, and the client gets nothing of the first one. After the first token the response breaks off.
func TestServerEndsBeforeTheFirstToken(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		l := newInferenceLab(t)
		var died atomic.Int64
		l.server(1, dying("", &died))
		l.server(2, answering)
		if protocol == "HTTP/2" {
			l.h2cPool()
		}
		l.serveNow()
		for i := range 20 { // each prompt is another one: a server that has seen one would get it again
			body := fmt.Sprintf(`{"model":"m","stream":true,"prompt":"%d %s"}`, i, strings.Repeat("x", 9<<10))
			status, text, h := l.get("POST", "x", "/v1/completions", strings.NewReader(body))
			want(t, protocol, status, text, 200, fmt.Sprintf(`"length":%d`, len(body)))
			if h.Get("X-Who") == "" || strings.Contains(h.Get("Content-Type"), "event") {
				t.Errorf("%s: the client got a part of the first server's header: %v", protocol, h)
			}
		}
		if died.Load() == 0 {
			t.Errorf("%s: the server that dies was never tried", protocol)
		}
	}
	l := newInferenceLab(t)
	var died atomic.Int64
	l.server(1, dying("data: 1\n\n", &died))
	l.server(2, dying("data: 1\n\n", &died))
	l.serveNow()
	res, err := http.Post("http://"+l.http+"/v1/completions", "application/json", strings.NewReader(`{"model":"m"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil || string(text) != "data: 1\n\n" || died.Load() != 1 {
		t.Errorf("%d servers, %q, %v", died.Load(), text, err)
	}
}

// A request whose endpoints are removed between its pick and its attempt goes to one that the pool has now.
func TestPickedEndpointsAreGone(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	l.server(2, answering)
	l.serveNow()
	p := l.known(httproute.Ref{Namespace: "default", Name: "llm", Pool: inferenceapi.OldGroup})
	targets := *p.endpoints.Load()
	own := p.served.Load().own
	own.SetEndpoints(routingEndpoints(targets[:1], "default", l.pods))
	targets[0].gone.Store(true) // the picker does not know yet
	status, text, h := l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`))
	want(t, "the target is leaving", status, text, 200)
	if h.Get("X-Who") != targets[1].Address.String() {
		t.Errorf("served by %s", h.Get("X-Who"))
	}
	p.endpoints.Store(&[]*Target{targets[1]})
	status, text, _ = l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`))
	want(t, "the pool has another target", status, text, 200)
	p.endpoints.Store(&[]*Target{})
	status, text, h = l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`))
	want(t, "the pool has no target", status, text, 503)
	if h.Get(routing.ReasonHeader) != string(routing.NoEndpoints) {
		t.Error(h)
	}
	if _, all := own.Statuses(); all[0].InFlight != 0 {
		t.Errorf("%+v", all)
	}
	p.endpoints.Store(&targets)
}

// Clients can't choose where a server computes its prompts, or gets parts of answers from.
func TestHeadersOfPickers(t *testing.T) {
	l := newInferenceLab(t)
	var mu sync.Mutex
	var got http.Header
	l.server(1, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			mu.Lock()
			got = r.Header.Clone()
			mu.Unlock()
		}
		answering(w, r)
	})
	l.serveNow()
	headers := []string{"X-Gateway-Destination-Endpoint", "X-Prefiller-Host-Port", "X-Encoder-Hosts-Ports",
		"X-Kv-Cache-Source-Host-Port", "X-Data-Parallel-Host-Port"}
	set := []string{"X-Mine", "stays"}
	for _, name := range headers {
		set = append(set, name, "192.0.2.1:80")
	}
	status, text, _ := l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`), set...)
	want(t, "a request", status, text, 200)
	mu.Lock()
	defer mu.Unlock()
	for _, name := range headers {
		if got.Get(name) != "" {
			t.Errorf("the server got %s: %s", name, got.Get(name))
		}
	}
	if got.Get("X-Mine") != "stays" {
		t.Error(got)
	}
}
