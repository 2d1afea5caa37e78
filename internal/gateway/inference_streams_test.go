package gateway

import (
	"io"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/base/testwait"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/httproute"
)

// h2cPool serves the lab's model servers as a pool of v1 that speaks HTTP/2 without TLS.
func (l *inferenceLab) h2cPool() {
	l.world.HTTPRoutes[0].Spec.Rules[0].BackendRefs[0].Group = new(gatewayv1.Group(inferenceapi.Group))
	p := &inferenceapi.Pool{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "llm"}}
	p.Spec.Selector.MatchLabels = map[string]string{"app": "llm"}
	p.Spec.TargetPorts = []inferenceapi.Port{{Number: l.port}}
	p.Spec.AppProtocol = "kubernetes.io/h2c"
	l.world.Inference = &gatewayplan.Inference{Pools: []*inferenceapi.Pool{p}}
}

// Many streams of tokens are open at once (STREAMS is how many, 10000 in hack/nightly), over few connections, because a
// process has few descriptors: others are served, each takes bounded memory, and nothing is left of them. The memory is
// that of client, gateway, and server, which are all in this process.
func TestOpenStreams(t *testing.T) {
	n := 1_000
	if more, err := strconv.Atoi(os.Getenv("STREAMS")); err == nil {
		n = more
	}
	const most = 3 * 60 << 10 // bytes of a stream, for the three sides
	l := newInferenceLab(t)
	end := make(chan struct{})
	l.server(1, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("stream") == "" {
			answering(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: x\n\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-end:
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		case <-r.Context().Done():
		}
	})
	l.h2cPool()
	l.serveNow()
	tr := &http.Transport{Protocols: &http.Protocols{}}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr}
	begin := func() (*http.Response, error) {
		body := `{"model":"m","stream":true,"prompt":"` + strings.Repeat("word ", 800) + `"}`
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			"http://"+l.http+"/v1/completions?stream=1", strings.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Host = "x"
		res, err := client.Do(req)
		if err == nil {
			_, err = io.ReadFull(res.Body, make([]byte, len("data: x\n\n")))
		}
		return res, err
	}
	before := inUse()
	open := make([]*http.Response, n)
	var all sync.WaitGroup
	for worker := range 16 {
		all.Go(func() {
			for i := worker; i < n; i += 16 {
				res, err := begin()
				if err != nil || res.StatusCode != http.StatusOK {
					t.Errorf("stream %d: %v", i, err)
					return
				}
				open[i] = res
			}
		})
	}
	if all.Wait(); t.Failed() {
		return
	}
	each := (inUse() - before) / int64(n)
	t.Logf("%d streams, %d bytes each", n, each)
	if each > most {
		t.Errorf("a stream takes %d bytes", each)
	}
	status, text, _ := l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`))
	want(t, "another request", status, text, 200, `"completion_tokens":4`)
	p := l.known(httproute.Ref{Namespace: "default", Name: "llm", Pool: inferenceapi.Group})
	if _, servers := p.served.Load().own.Statuses(); servers[0].InFlight != n {
		t.Errorf("the picker knows %d requests", servers[0].InFlight)
	}
	close(end)
	for i, res := range open {
		if rest, err := io.ReadAll(res.Body); err != nil || string(rest) != "data: [DONE]\n\n" {
			t.Fatalf("stream %d: %q %v", i, rest, err)
		}
		_ = res.Body.Close()
	}
	testwait.For(t, "the picker knows that all have ended", func() bool {
		_, servers := p.served.Load().own.Statuses()
		return servers[0].InFlight == 0 && l.bodies.Used() == 0
	})
}

// inUse is the memory that the process uses, in bytes.
func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // pools are emptied by the second
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
