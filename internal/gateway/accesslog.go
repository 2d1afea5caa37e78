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

// logTime is the form of times in the access log.
const logTime = "2006-01-02T15:04:05.000000Z"

// newAccessLog returns the access log; nil: there is none.
func newAccessLog(path string, f *figures) *accesslog.Log {
	if path == "" {
		return nil
	}
	return accesslog.New(path, accesslog.Queue, f.lost.Inc)
}

// accessLine is one line. A query may have secrets: it is not written.
type accessLine struct {
	Time      string  `json:"time"` // when the request began
	Client    string  `json:"client"`
	Protocol  string  `json:"protocol"`
	Method    string  `json:"method"`
	Host      string  `json:"host"`
	Path      string  `json:"path"`
	Status    int     `json:"status"` // 0: the client left before an answer
	BytesIn   int64   `json:"bytesIn"`
	BytesOut  int64   `json:"bytesOut"`
	Seconds   float64 `json:"seconds"`
	Route     string  `json:"route,omitempty"` // KIND/NAMESPACE/NAME
	Rule      string  `json:"rule,omitempty"`
	Backend   string  `json:"backend,omitempty"` // NAMESPACE/NAME:PORT
	Endpoint  string  `json:"endpoint,omitempty"`
	Attempts  int     `json:"attempts,omitempty"`
	UserAgent string  `json:"userAgent,omitempty"`
	Trace     string  `json:"trace,omitempty"` // of the W3C header traceparent
	inferredLine
}

// inferredLine are the additional fields of a line about an inference request.
type inferredLine struct {
	Model string `json:"model,omitempty"` // that the client requested
	// Target is the model in the request to the server, if it is another.
	Target string `json:"targetModel,omitempty"`
	// InputTokens, OutputTokens, and CachedTokens are what the server counted; 0: not reported.
	InputTokens  int `json:"inputTokens,omitempty"`
	OutputTokens int `json:"outputTokens,omitempty"`
	CachedTokens int `json:"cachedTokens,omitempty"`
	// Reason is why the request was refused, as in the header x-llm-d-request-dropped-reason.
	Reason string `json:"reason,omitempty"`
}

func (t *telemetry) write(rec *seenRequest, r *http.Request, took time.Duration, id string) {
	line := accessLine{Time: rec.began.UTC().Format(logTime), Client: r.RemoteAddr,
		Protocol: r.Proto, Method: accesslog.Text(r.Method), Host: accesslog.Text(r.Host),
		Path: accesslog.Text(r.URL.EscapedPath()), Status: rec.status,
		BytesIn: rec.received.n.Load(), BytesOut: rec.sent, Seconds: took.Seconds(), Rule: rec.rule,
		Endpoint: rec.endpoint, Attempts: rec.attempts, UserAgent: accesslog.Text(r.Header.Get("User-Agent")),
		Trace: id, inferredLine: rec.inferred}
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
