package gateway

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"carob/internal/gateway/accesslog"
)

// telemetry is what is seen of requests.
type telemetry struct {
	figures *figures
	log     *accesslog.Log // nil: off
}

// The access log: logText is the most bytes of a text that a client chooses, logTime the form of times.
const (
	logText = 2048
	logTime = "2006-01-02T15:04:05.000000Z"
)

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

// inferredLine is what a line says of an inference request beside the rest.
type inferredLine struct {
	Model string `json:"model,omitempty"` // that the client asked for
	// Target is the model that the server was asked for, if it is another.
	Target string `json:"targetModel,omitempty"`
	// InputTokens, OutputTokens and CachedTokens are what the server counted; 0: it did not say.
	InputTokens  int `json:"inputTokens,omitempty"`
	OutputTokens int `json:"outputTokens,omitempty"`
	CachedTokens int `json:"cachedTokens,omitempty"`
	// Reason is why the request was refused, as in the header x-llm-d-request-dropped-reason.
	Reason string `json:"reason,omitempty"`
}

func cut(text string) string {
	if len(text) > logText {
		text = text[:logText]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

func (t *telemetry) write(rec *seenRequest, r *http.Request, took time.Duration, trace string) {
	line := accessLine{Time: rec.began.UTC().Format(logTime), Client: r.RemoteAddr,
		Protocol: r.Proto, Method: cut(r.Method), Host: cut(r.Host), Path: cut(r.URL.EscapedPath()), Status: rec.status,
		BytesIn: rec.received.n.Load(), BytesOut: rec.sent, Seconds: took.Seconds(), Rule: rec.rule,
		Endpoint: rec.endpoint, Attempts: rec.attempts, UserAgent: cut(r.Header.Get("User-Agent")), Trace: trace,
		inferredLine: rec.inferred}
	line.Model, line.Target, line.Reason = cut(line.Model), cut(line.Target), cut(line.Reason)
	if rec.source != nil {
		line.Route = rec.source.Kind + "/" + rec.source.Namespace + "/" + rec.source.Name
	}
	if rec.backend.Name != "" {
		line.Backend = rec.backend.String()
	}
	t.queue(&line)
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
