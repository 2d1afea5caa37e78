package gateway

import (
	"encoding/json"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"

	"carob/internal/gateway/accesslog"
)

// telemetry is the observability of requests: metrics, access log, and spans.
type telemetry struct {
	figures *figures
	log     *accesslog.Log // nil: off
	spans   trace.Tracer   // nil: off
}

// newAccessLog returns the access log; nil: there is none.
func newAccessLog(path string, f *figures) *accesslog.Log {
	if path == "" {
		return nil
	}
	return accesslog.New(path, accesslog.Queue, f.lost.Inc)
}

func (t *telemetry) write(rec *seenRequest, r *http.Request, took time.Duration, id string) {
	line := accesslog.Line{Time: rec.began.UTC().Format(accesslog.Time), Client: r.RemoteAddr,
		Protocol: r.Proto, Method: accesslog.Text(r.Method), Host: accesslog.Text(r.Host),
		Path: accesslog.Text(r.URL.EscapedPath()), Status: rec.status,
		BytesIn: rec.received.n.Load(), BytesOut: rec.sent, Seconds: took.Seconds(), Rule: rec.rule,
		Endpoint: rec.endpoint, Attempts: rec.attempts, UserAgent: accesslog.Text(r.Header.Get("User-Agent")),
		Trace: id, Inferred: rec.inferred}
	for _, text := range []*string{&line.Model, &line.Target, &line.Reason} {
		*text = accesslog.Text(*text)
	}
	line.Route, line.Backend = rec.served()
	t.queue(&line)
}

// served returns the route as KIND/NAMESPACE/NAME, and the backend as NAMESPACE/NAME:PORT; "" if there is none.
func (r *seenRequest) served() (route, backend string) {
	if r.source != nil {
		route = r.source.Kind + "/" + r.source.Namespace + "/" + r.source.Name
	}
	if r.backend.Name != "" {
		backend = r.backend.String()
	}
	return route, backend
}

// queue has a line of the access log written, unless too many wait.
func (t *telemetry) queue(line any) {
	out, err := json.Marshal(line)
	if err != nil {
		t.figures.lost.Inc()
		return
	}
	t.log.Add(append(out, '\n'))
}
