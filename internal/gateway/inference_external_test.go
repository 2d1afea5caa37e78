package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"carob/internal/base/testwait"
)

// An external picker that does not know yet that a pod leaves is asked once more, with the endpoints that are there;
// what it said first counts no more. One that names it again, or a stranger, is not asked a third time.
func TestPickerNamesALeavingPod(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	l.server(2, answering)
	picker, _ := l.picker()
	addr := func(i int) string { return fmt.Sprintf("%s:%d", l.pods[i].Status.PodIP, l.port) }
	gone, there := addr(0), addr(1)
	l.pods = l.pods[1:]
	l.serveNow()
	ask := func(answers ...func() []*extprocv3.ProcessingResponse) (status int, text string, h http.Header,
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
		status, text, h, among := ask(c.answers...)
		want(t, what, status, text, c.status, c.text)
		if status == 200 && h.Get("X-Who") != there || !slices.Equal(among, c.among) {
			t.Errorf("%s: served by %s, asked to choose among %q", what, h.Get("X-Who"), among)
		}
	}
	testwait.For(t, "all bytes are given back", func() bool { return l.bodies.Used() == 0 })
	l.pods = nil
	l.serveNow()
	if status, _, _, among := ask(names(gone, "first")); status != 503 || !slices.Equal(among, twice[:1]) {
		t.Errorf("no endpoint: %d, asked to choose among %q", status, among)
	}
}
