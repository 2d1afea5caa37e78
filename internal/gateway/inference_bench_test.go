package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
)

// BenchmarkInference measures one request with everything on its way: the client's connection, the body, the picker,
// and the connection to the server, which are all in this process.
func BenchmarkInference(b *testing.B) {
	for _, size := range []int{4 << 10, 220_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			l := newInferenceLab(b)
			l.server(1, discarding)
			l.server(2, discarding)
			l.serveNow()
			c, err := net.Dial("tcp", l.http)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			r := bufio.NewReader(c)
			body := `{"model":"m","prompt":"` + strings.Repeat("word ", size/5) + `"}`
			req := fmt.Appendf(nil, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
				"Content-Length: %d\r\n\r\n%s", len(body), body)
			b.ReportAllocs()
			before := processorTime()
			defer func() { b.ReportMetric(float64(processorTime()-before)/float64(b.N), "cpu-ns/op") }()
			for b.Loop() {
				if _, err := c.Write(req); err != nil {
					b.Fatal(err)
				}
				res, err := http.ReadResponse(r, nil)
				if err != nil || res.StatusCode != http.StatusOK {
					b.Fatal(res, err)
				}
				_, _ = io.Copy(io.Discard, res.Body)
			}
		})
	}
}

// processorTime is what this process has used of the processors, which says more than elapsed time on a busy machine.
func processorTime() int64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

var quiet = []byte("vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n")

// discarding answers as a model server that takes no time.
func discarding(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/metrics" {
		_, _ = w.Write(quiet)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_, _ = io.Copy(w, bytes.NewReader(quiet))
}
