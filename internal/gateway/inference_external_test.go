package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"carob/internal/base/testwait"
)

// An external picker that names only a pod that has left is called once more, with the endpoints that are there. Its
// first response has no effect then. There is no third call, whatever the second response is.
func TestPickerNamesALeavingPod(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	l.server(2, answering)
	picker, _ := l.picker()
	addr := func(i int) string { return fmt.Sprintf("%s:%d", l.pods[i].Status.PodIP, l.port) }
	gone, there := addr(0), addr(1)
	l.pods = l.pods[1:]
	l.serveNow()
	post := func(answers ...func() []*extprocv3.ProcessingResponse) (status int, text string, h http.Header,
		among []string) {
		picker.mu.Lock()
		picker.among = nil
		picker.pick = func([]byte) []*extprocv3.ProcessingResponse {
			next := answers[0]
			if len(answers) > 1 {
				answers = answers[1:]
			}
			return next()
		}
		picker.mu.Unlock()
		status, text, h = l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`))
		picker.mu.Lock()
		defer picker.mu.Unlock()
		return status, text, h, picker.among
	}
	names := func(to, body string) func() []*extprocv3.ProcessingResponse {
		return func() []*extprocv3.ProcessingResponse { return append(replaced(body), toward(to)) }
	}
	twice := []string{"", there}
	for what, c := range map[string]struct {
		answers []func() []*extprocv3.ProcessingResponse
		status  int
		text    string
		among   []string
	}{
		"then one that is there": {
			[]func() []*extprocv3.ProcessingResponse{names(gone, "first"), names(there, "second")},
			200, `"got":"second"`, twice},
		"another one second": {[]func() []*extprocv3.ProcessingResponse{names(gone+","+there, "first")}, 200,
			`"got":"first"`, twice[:1]},
		"again":      {[]func() []*extprocv3.ProcessingResponse{names(gone, "first")}, 503, "", twice},
		"a stranger": {[]func() []*extprocv3.ProcessingResponse{names("10.255.255.255:1", "first")}, 503, "", twice},
	} {
		status, text, h, among := post(c.answers...)
		want(t, what, status, text, c.status, c.text)
		if status == 200 && h.Get("X-Who") != there || !slices.Equal(among, c.among) {
			t.Errorf("%s: served by %s, called to choose among %q", what, h.Get("X-Who"), among)
		}
	}
	testwait.For(t, "all bytes are given back", func() bool { return l.bodies.Used() == 0 })
	l.pods = nil
	l.serveNow()
	if status, _, _, among := post(names(gone, "first")); status != 503 || !slices.Equal(among, twice[:1]) {
		t.Errorf("no endpoint: %d, called to choose among %q", status, among)
	}
}

// The second response may come late, when its endpoint has left, too; twice; or never, until the client leaves.
func TestSecondCallOfAPicker(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	l.server(2, answering)
	picker, _ := l.picker()
	all := l.pods
	addr := func(i int) string { return fmt.Sprintf("%s:%d", all[i].Status.PodIP, l.port) }
	second := make(chan struct{})
	answers := func(then func() []*extprocv3.ProcessingResponse) {
		calls := 0
		picker.mu.Lock()
		defer picker.mu.Unlock()
		picker.pick = func([]byte) []*extprocv3.ProcessingResponse {
			if calls++; calls == 1 {
				return append(replaced("first"), toward(addr(0)))
			}
			return then()
		}
	}
	post := func(ctx context.Context) int {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+l.http+"/v1/completions",
			strings.NewReader(`{"model":"m"}`))
		if err != nil {
			t.Error(err)
			return 0
		}
		r.Host = "x"
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	for what, c := range map[string]struct {
		then   func() []*extprocv3.ProcessingResponse
		status int
	}{
		"twice": {func() []*extprocv3.ProcessingResponse {
			out := append(replaced("second"), toward(addr(1)))
			return append(out, out...)
		}, 200},
		"late": {func() []*extprocv3.ProcessingResponse {
			second <- struct{}{}
			<-second
			return append(replaced("second"), toward(addr(1)))
		}, 503},
		"never": {func() []*extprocv3.ProcessingResponse {
			second <- struct{}{}
			return nil
		}, 0},
	} {
		l.pods = all[1:]
		l.serveNow()
		answers(c.then)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan int, 1)
		go func() { got <- post(ctx) }()
		switch what {
		case "late":
			<-second
			l.pods = nil
			l.serveNow()
			second <- struct{}{}
		case "never":
			<-second
			cancel()
		}
		if status := <-got; status != c.status {
			t.Errorf("%s: %d, not %d", what, status, c.status)
		}
		cancel()
		testwait.For(t, "all bytes are given back", func() bool { return l.bodies.Used() == 0 })
	}
}
