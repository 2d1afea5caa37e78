package inference

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"carob/internal/core/routing"
)

// Redirects, pages without end, ones that stop, and wrong answers are failures. A page that is compressed without
// a request for it is not unpacked.
func TestHostileServers(t *testing.T) {
	var elsewhere bool
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) {
		switch r.Host[:strings.IndexByte(r.Host, ':')] {
		case "127.0.0.1":
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		case "127.0.0.2":
			for line := strings.Repeat("x", 1<<16); ; {
				if _, err := io.WriteString(w, line); err != nil {
					return
				}
			}
		case "127.0.0.3":
			w.WriteHeader(http.StatusTeapot)
		case "127.0.0.4":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = z.Write(bytes.Repeat([]byte("vllm:num_requests_waiting 1\n"), 8<<20/28))
			_ = z.Close()
		case "127.0.0.5":
			_, _ = io.WriteString(w, "vllm:num_requests_waiting 1\n")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	})
	mux.HandleFunc("/elsewhere", func(http.ResponseWriter, *http.Request) { elsewhere = true })
	s := httptest.NewUnstartedServer(mux)
	l, err := net.Listen("tcp4", "0.0.0.0:0") //nolint:gosec,noctx // loopback addresses with one port
	if err != nil {
		t.Fatal(err)
	}
	s.Listener = l
	s.Start()
	defer s.Close()
	port := netip.MustParseAddrPort(l.Addr().String()).Port() //nolint:gosec // our own
	for i, want := range []string{"the answer is 302", "more than", "the answer is 418", errNoLoad.Error(),
		context.DeadlineExceeded.Error()} {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)}), port)
		from := routing.Source{Path: "/metrics"}
		if _, _, err := scrape(t.Context(), NewTransport(false), at, from, engineOf("vllm")); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", at, err, want)
		}
	}
	if elsewhere {
		t.Error("a redirect was followed")
	}
}

// Of large pages only a few are in memory at once: another one waits, until a place is given back or its time is over,
// and none of it is read before. Small ones do not wait.
func TestLargePages(t *testing.T) {
	page := "vllm:num_requests_waiting 3\n"
	large := page + strings.Repeat("# a comment\n", smallPage/12)
	read := func(ctx context.Context, text string) (left int, done func(), err error) {
		body := strings.NewReader(text)
		done, err = readPage(ctx, new(bytes.Buffer), body)
		return body.Len(), done, err
	}
	var all []func()
	for range cap(largePages) {
		_, done, err := read(t.Context(), large)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, done)
	}
	if _, done, err := read(t.Context(), page); err != nil {
		t.Error(err)
	} else {
		done()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	left, _, err := read(ctx, large)
	if !errors.Is(err, context.DeadlineExceeded) || left != len(large)-smallPage {
		t.Errorf("%v, %d bytes were not read", err, left)
	}
	got := make(chan error)
	go func() {
		_, done, err := read(t.Context(), large)
		if err == nil {
			done()
		}
		got <- err
	}()
	all[0]()
	if err := <-got; err != nil {
		t.Error(err)
	}
	if _, _, err := read(t.Context(), strings.Repeat(large, 17)); err != nil {
		if !strings.Contains(err.Error(), "more than 4194304 bytes") {
			t.Error(err)
		}
	} else {
		t.Error("a page that is too large was read")
	}
	for _, done := range all[1:] {
		done()
	}
	if n := len(largePages); n != 0 {
		t.Errorf("%d places are taken", n)
	}
}

// Metrics are read by TLS where the configuration requires it. Model servers sign their certificates themselves, which
// are accepted unless insecureSkipVerify is false.
func TestMetricsWithTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "vllm:num_requests_waiting 3\nvllm:num_requests_running 0\n"+
			"vllm:kv_cache_usage_perc 0\n")
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	at := netip.MustParseAddrPort(s.Listener.Addr().String())
	for parameters, want := range map[string]string{`"scheme": "https"`: "", `"scheme": "http"`: "400",
		`"scheme": "https", "insecureSkipVerify": false`: "certificate"} {
		c, err := ReadConfig([]byte(`{"apiVersion": "inference.networking.x-k8s.io/v1alpha1",
			"kind": "EndpointPickerConfig", "plugins": [{"type": "metrics-data-source", "parameters": {` +
			parameters + `}}]}`))
		if err != nil {
			t.Fatal(err)
		}
		rt := NewTransport(c.Source().Verify)
		stats, _, err := scrape(t.Context(), rt, at, c.Source(), engineOf("vllm"))
		if want == "" && (err != nil || stats.Waiting != 3) || want != "" && (err == nil ||
			!strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %+v %v", parameters, stats, err)
		}
		rt.(*http.Transport).CloseIdleConnections()
	}
}
